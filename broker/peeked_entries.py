"""Finds whole entries for Pulsar's tools: by position, by number, or as a subscription would get them.

Numbers count entries, and those that no consumer gets are among them, as in Pulsar. The places are found in memory.
So a large number costs no reading.
"""

from typing import Final

import trio

from broker.contents import ToolView
from broker.entry_codecs import ViewForTools
from broker.errors import MessageNotFound
from broker.peek_contract import State, StoredEntry
from broker.peeking import STATES
from broker.topic_source import TopicSource
from storage.base_cursor import BaseCursor
from storage.entry import Entry
from storage.errors import LedgerNotFound
from storage.metadata.pacing import paced
from storage.position import EARLIEST, Position

_AT_ONCE: Final = 1_000
"""Places that one step of the event loop passes."""

_NOTHING: Final = ToolView((), b"")


async def nth_unacknowledged(source: TopicSource, cursor: BaseCursor, number: int) -> Position | None:
    """Return the place of an entry that a cursor has not acknowledged, by its number from 1 on; None behind the end."""
    upto = source.ledger.confirmed.value
    position = max(cursor.first_unacknowledged(), await source.first_kept())
    for passed in range(1, number):
        if position > upto:
            break
        position = cursor.next_unacknowledged(position)
        if passed % _AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
    return position if position <= upto else None


async def nth(source: TopicSource, number: int, *, from_end: bool) -> Position | None:
    """Return the place of an entry by its number from 1 on; None if there are not so many."""
    ledger = source.ledger
    upto, first = ledger.confirmed.value, ledger.next_after(max((await source.first_kept()).before(), EARLIEST))
    position = upto if from_end else first
    for passed in range(1, number):
        if not first <= position <= upto:
            break
        position = ledger.previous(position) if from_end else ledger.next_after(position)
        if passed % _AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
    return position if first <= position <= upto else None


async def stored_entry(source: TopicSource, position: Position, view: ViewForTools) -> StoredEntry:
    """Return the durable entry at a position.

    Raises:
        MessageNotFound: there is none, or it was deleted.
        LedgerCorrupt: it is damaged, or it is unknown whether it was aborted.
    """
    ledger = source.ledger
    try:
        found = await ledger.read(position, upto=position, entries_max=1, bytes_max=1)
        if found and found[0].first_index + found[0].message_count > ledger.start_index:
            return await _told(source, found[0], view)
    except LedgerNotFound:
        pass  # It was trimmed meanwhile.
    raise MessageNotFound(
        f"{ledger.name} has no entry at {position}, or it was deleted. The log has entries from "
        f"{ledger.next_after(EARLIEST)} to {ledger.confirmed.value}."
    )


async def _told(source: TopicSource, entry: Entry, view: ViewForTools) -> StoredEntry:
    state = State.MARKER if entry.is_control else STATES[await source.state_of(entry)]
    is_readable = entry.position <= source.readable.value
    return StoredEntry(
        entry.position,
        state,
        is_readable,
        entry.first_index,
        entry.message_count,
        entry.timestamp_ms,
        _NOTHING if entry.is_control else await paced(view(await source.in_their_format(entry))),
        source.control_of(entry) if entry.is_control else "",
    )
