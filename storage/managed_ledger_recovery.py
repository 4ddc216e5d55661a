"""What the previous owner of a managed ledger left: the ends that its record does not have yet.

A ledger that is open in the record has no known end. The record names its writer. That writer is fenced first, and only
then is the ledger read. Ledgers that this process itself has open are read from memory, because a full disk may keep
their files from being completed.
"""

from dataclasses import dataclass, field

from storage.ledger_list import LedgerList
from storage.ledger_reading import LedgerReading, closed_info
from storage.ledger_record import LedgerInfo, ManagedLedgerRecord
from storage.ledger_store import LedgerStore, OpenLedger


@dataclass(slots=True)
class Recovered:
    """The ledgers that exist when an owner begins."""

    ledgers: LedgerList
    reading: LedgerReading
    next_index: int = 0
    """The index of the next message."""
    last_timestamp_ms: int = 0
    """When the last entry was taken, milliseconds since the epoch."""
    unfinished: list[OpenLedger] = field(default_factory=list)
    """Ledgers of this process whose files are not complete on the disk, in order. No record may name their ends."""
    empty: list[int] = field(default_factory=list)
    """Ledgers without entries that the record still lists."""


def nothing_there(store: LedgerStore) -> Recovered:
    """The state of a new managed ledger."""
    return Recovered(LedgerList(()), LedgerReading(store))


async def recover(record: ManagedLedgerRecord, store: LedgerStore) -> Recovered:
    """Fence the writers of the ledgers without an end, and find the ends. Does not write the record.

    Raises:
        WriterAlive, LedgerOutOfReach: another broker may still write to one of them.
        LedgerCorrupt: confirmed entries at the end are damaged or missing.
    """
    found = nothing_there(store)
    found.next_index = record.trimmed.next_index
    closed: list[LedgerInfo] = []
    for listed in record.ledgers:
        assert listed.writer is not None, "every record names the writers"
        store.require_within_reach(listed.writer)
        info = listed
        if not listed.closed:
            await store.fence(listed.writer, listed.id)
            info = await _end_of(listed, found, store)
            # Its first entries may be damaged, but their messages still count.
            gap = info.first_index - found.next_index
            info = info._replace(first_index=found.next_index, messages=info.messages + gap)
            if not info.entries:
                found.empty.append(info.id)
        if info.entries:
            assert info.first_index == found.next_index, "the index has no gaps"
            closed.append(info)
            found.next_index += info.messages
            found.last_timestamp_ms = max(found.last_timestamp_ms, info.last_timestamp_ms)
    found.ledgers = LedgerList(closed, record.trimmed)
    return found


async def _end_of(listed: LedgerInfo, found: Recovered, store: LedgerStore) -> LedgerInfo:
    """The contents of a ledger without an end on record, whose writer is fenced."""
    left = await store.left_open(listed.id)
    if left is None:
        sealed = await store.recover(listed.id)
        found.reading.put_sealed(sealed)
        return closed_info(await sealed.index(), found.next_index, listed.writer, listed.epoch)
    if left.next_entry:
        found.reading.put_open(left)
        found.unfinished.append(left)
    info = closed_info(await left.index(), found.next_index, listed.writer, listed.epoch)
    return info._replace(closed=False)
