"""Removing a managed ledger, opened or not, so that no crash leaves a file that no record names.

    1. fence every writer of an open ledger                nothing is removed yet; a refusal here leaves all as it was
    2. CAS: the record says that it is being deleted       from here on only forward
    3. remove the files of every ledger that it names
    4. remove the record

The next deletion of that name, or the next owner, continues from the mark of step 2. The owner then begins a new
managed ledger. No ledger is read, so damaged or missing files do not stop a removal.
"""

from dataclasses import replace

import structlog

from storage.errors import Fenced, JournalDamaged, JournalMissing
from storage.ledger_record import ManagedLedgerRecord
from storage.ledger_store import LedgerStore
from storage.managed_ledger_record import RecordChanged, RecordKeeper
from storage.metadata.store import Check, MetadataStore

log = structlog.get_logger(__name__)


async def remove_managed_ledger(name: str, *, metadata: MetadataStore, ledgers: LedgerStore, claim: Check) -> None:
    """Remove the managed ledger of this name, if there is one. Nobody may have it open. Durable on return.

    Raises:
        Fenced: the claim does not hold. Nothing was removed.
        WriterAlive, LedgerOutOfReach: another broker may have one of its ledgers open. Nothing was removed.
    """
    keeper = RecordKeeper(name, metadata, claim)
    if await keeper.read() is None:
        return
    try:
        await remove_all(keeper, ledgers)
    except RecordChanged as changed:
        raise Fenced(f"{name} was changed by another owner") from changed


async def remove_all(keeper: RecordKeeper, ledgers: LedgerStore) -> None:
    """Remove the files that the record names, then the record. Durable on return. May be repeated after a failure.

    Raises:
        RecordChanged: the record has changed since it was read.
        Fenced, WriterAlive, LedgerOutOfReach: as `remove_managed_ledger`.
    """
    record = keeper.record
    assert record is not None, "the caller has read it"
    await _fence_writers(record, ledgers)
    if not record.is_deleting:
        await keeper.write(replace(record, is_deleting=True))
    for ledger in (*record.removing, *(info.id for info in record.ledgers)):
        await ledgers.delete(ledger)
    await keeper.remove()


async def _fence_writers(record: ManagedLedgerRecord, ledgers: LedgerStore) -> None:
    for info in record.ledgers:
        assert info.writer is not None, "every record names the writers"
        ledgers.require_within_reach(info.writer)
        if info.closed:
            continue
        try:
            await ledgers.fence(info.writer, info.id)
        except (JournalMissing, JournalDamaged) as lost:
            # Its writer confirms nothing without its journal, and its confirmed entries are being deleted.
            log.warning("deleting a ledger although its journal cannot be read", ledger=info.id, reason=str(lost))
