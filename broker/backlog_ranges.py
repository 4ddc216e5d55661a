"""Ranges of a topic's backlog: their messages and bytes, and where a range of limited size ends.

Readers that work on ranges of positions must know the size of a range in advance; Spark plans with it. The answer comes
from the ledgers' index and offsets, so nothing is counted and at most two entries are read.
"""

from typing import NamedTuple

from storage.entry import Entry
from storage.managed_ledger import ManagedLedger
from storage.position import Position


class BacklogRange(NamedTuple):
    """A range of entries: those after `after`, up to and including `end`."""

    after: Position
    """The range begins after this position."""
    end: Position
    """The position of its last entry; `after` if the range is empty."""
    first_index: int
    """The index of its first message. In an empty range, the index that the next message after `after` will get."""
    messages: int
    """Its messages, including those of aborted transactions."""
    size_bytes: int
    """Its stored bytes, exact to a chunk of the ledgers' index."""
    first_timestamp_ms: int | None
    """When its first entry was appended; None if the range is empty."""
    last_timestamp_ms: int | None
    """When its last entry was appended; None if the range is empty."""


async def measure(
    ledger: ManagedLedger,
    last: Entry | None,
    after: Position,
    *,
    messages_max: int | None = None,
    bytes_max: int | None = None,
    until_ms: int | None = None,
) -> BacklogRange:
    """Measure what stands behind `after`, up to `last` or to as much as is wanted, but at least one entry.

    With `until_ms` the range may be empty though entries follow: they were all taken later.

    Args:
        ledger: the topic's ledger.
        last: the last entry that the reader may see; None if there is none.
        after: any position.
        messages_max: at most this many messages, unless the first entry has more.
        bytes_max: at most this many bytes, as exact as they are known, unless the first entry has more.
        until_ms: only entries appended at this time or before, in milliseconds since the epoch.

    Raises:
        LedgerCorrupt: the search met damage.
    """
    first = await _entry_at(ledger, ledger.next_after(after))
    is_late = until_ms is not None and first is not None and first.timestamp_ms > until_ms
    if last is None or last.position <= after or first is None or is_late:
        return BacklogRange(after, after, await _index_behind(ledger, after, first), 0, 0, None, None)
    end = last.position
    end_index = last.first_index + last.message_count
    if until_ms is not None and last.timestamp_ms > until_ms:
        # Within a ledger, times never decrease. So one position divides the earlier entries from the later ones.
        end = min(end, ledger.previous(await ledger.position_at_time(until_ms + 1)))
    if messages_max is not None and end_index - first.first_index > messages_max:
        too_far = await ledger.position_of_index(first.first_index + messages_max)
        end = min(end, ledger.previous(too_far))
    begin_bytes = await ledger.bytes_upto(after)
    if bytes_max is not None and await ledger.bytes_upto(end) - begin_bytes > bytes_max:
        end = min(end, await ledger.position_within(begin_bytes + bytes_max))
    end = max(end, first.position)
    last_time_ms = last.timestamp_ms
    if end != last.position:
        entry = await _entry_at(ledger, end)
        assert entry is not None, "a visible entry follows it"
        end_index = entry.first_index + entry.message_count
        last_time_ms = entry.timestamp_ms
    size_bytes = max(0, await ledger.bytes_upto(end) - begin_bytes)
    messages = end_index - first.first_index
    return BacklogRange(after, end, first.first_index, messages, size_bytes, first.timestamp_ms, last_time_ms)


async def _entry_at(ledger: ManagedLedger, position: Position) -> Entry | None:
    entries = await ledger.read(position, upto=position, entries_max=1, bytes_max=1)
    return entries[0] if entries else None


async def _index_behind(ledger: ManagedLedger, after: Position, first: Entry | None) -> int:
    if first is not None:
        return first.first_index
    # Entries that are appended but not yet confirmed are not part of the range.
    confirmed = ledger.confirmed.value
    before = ledger.previous(Position(after.ledger, after.entry + 1)) if after < confirmed else confirmed
    entry = await _entry_at(ledger, before) if before.ledger >= 0 else None
    return ledger.first_index if entry is None else entry.first_index + entry.message_count
