"""Where what a reader may see ends: the last message, with hidden entries behind it passed over."""

from typing import Final

import trio

from dispatch.source import Source
from storage.entry import Entry
from storage.managed_ledger import ManagedLedger
from storage.position import EARLIEST, Position

LOOKED_AT_ONCE: Final = 256
"""Entries that are read at once where the last visible one is looked for behind hidden ones."""

_READ_BYTES: Final = 1024 * 1024


async def last_visible(source: Source, ledger: ManagedLedger) -> Entry | None:
    """The last readable entry of a source over this ledger that is visible, or None. Reads backwards."""
    upto, count = source.readable.value, 1
    while True:
        first = _back(ledger, upto, count)
        found = await _last_visible_of(source, first, upto)
        if found is not None:
            return found
        upto, count = ledger.previous(first), LOOKED_AT_ONCE
        if upto == EARLIEST:
            return None


def _back(ledger: ManagedLedger, position: Position, entries: int) -> Position:
    """The first of so many entries of which the last stands at `position`, if there are so many."""
    for _ in range(entries - 1):
        earlier = ledger.previous(position)
        if earlier == EARLIEST:
            break
        position = earlier
    return position


async def _last_visible_of(source: Source, first: Position, upto: Position) -> Entry | None:
    found = None
    while first <= upto:
        entries = await source.read(first, entries_max=LOOKED_AT_ONCE, bytes_max=_READ_BYTES)
        if not entries:
            break
        for entry in entries:
            if entry.position <= upto and source.is_visible(entry):
                found = entry
        first = source.next_after(entries[-1].position)
    # Reads served from memory do not pause.
    await trio.lowlevel.checkpoint()
    return found
