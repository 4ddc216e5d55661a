"""Making an owner of a managed ledger, and releasing what an owner left.

A new owner fences the writers before it, recovers the ends that are not on record, and continues in a new ledger with a
greater id. So positions rise and are never used twice.
"""

import uuid
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from storage.clock import WallClock
from storage.errors import LedgerCorrupt
from storage.ledger_chain import LedgerChain, ManagedLedgerConfig
from storage.ledger_ids import LedgerIds
from storage.ledger_record import LedgerInfo, ManagedLedgerRecord
from storage.ledger_store import LedgerStore
from storage.managed_ledger import ManagedLedger
from storage.managed_ledger_record import NO_LEDGER, RecordChanged, RecordKeeper, first_record
from storage.managed_ledger_recovery import nothing_there, recover
from storage.managed_ledger_removal import remove_all
from storage.metadata.store import Check, Conflict, MetadataStore
from storage.writer import Writer

CREATION_ID_DIGITS: Final = 16
"""Hexadecimal digits, so 64 random bits."""

log = structlog.get_logger(__name__)


async def open_managed_ledger(
    name: str,
    *,
    metadata: MetadataStore,
    ledgers: LedgerStore,
    claim: Check | None,
    config: ManagedLedgerConfig,
    now_ms: WallClock,
    ids: LedgerIds | None = None,
) -> ManagedLedger:
    """Take over the managed ledger of this name. Make it if there is none.

    On return, no earlier owner's writer gets anything confirmed, and confirmed entries are durable and readable. Unless
    it is sealed, it accepts entries. On a full disk it accepts them as soon as there is space, while `run` runs. All
    managed ledgers of a process should share one `ids`.

    Raises:
        Fenced: the claim does not hold.
        LedgerCorrupt: confirmed entries at its end are damaged or missing.
        LedgerListCorrupt: its record is damaged.
        NoSpace: the disk is full, and there was no managed ledger of this name.
    """
    ids = ids or LedgerIds(metadata)
    while True:
        keeper = RecordKeeper(name, metadata, claim)
        try:
            record = await keeper.read()
            if record is not None and record.is_deleting:
                await remove_all(keeper, ledgers)
                record = await keeper.read()
            if record is None:
                recovered = nothing_there(ledgers)
                next_id = await ids.take(above=NO_LEDGER)
                # Ledger ids begin again in another data folder. The creation id distinguishes its topics from these.
                begun = ManagedLedgerRecord(uuid.uuid4().hex[:CREATION_ID_DIGITS], (), next_id)
            else:
                recovered = await recover(record, ledgers)
                for missing in await ledgers.missing([info.id for info in recovered.ledgers.closed]):
                    log.error("a ledger's file is missing; its entries cannot be read", topic=name, ledger=missing)
                begun = record
                next_id = record.newest_id if record.sealed else await ids.take(above=record.newest_id)
            chain = LedgerChain(name, keeper, ledgers, ids, config, recovered)
            await chain.take_over(begun, next_id, is_new=record is None)
        except RecordChanged:
            continue  # Changed by a caller with the same claim, or without one. The new record decides.
        return ManagedLedger(chain, now_ms)


async def creation_id_of(name: str, metadata: MetadataStore, conditions: Sequence[Check] = ()) -> str:
    """The creation id of a managed ledger, which is made without an owner if there is none. Durable on return.

    Raises:
        LedgerListCorrupt: its record is damaged.
        Conflict: there is none, and one of the `conditions` does not hold.
    """
    while True:
        record = await RecordKeeper(name, metadata, None).read()
        if record is not None:
            return record.creation_id
        first = first_record(name, uuid.uuid4().hex[:CREATION_ID_DIGITS])
        try:
            await metadata.commit([first, *conditions])
        except Conflict as conflict:
            if conflict.key != first.key:
                raise


async def let_go_of_managed_ledger(
    name: str, *, metadata: MetadataStore, ledgers: LedgerStore, claim: Check
) -> Check | None:
    """Close what an owner in this process left open, and record where it ends. Durable on return.

    Call it before the claim is given up, because no other broker takes over a ledger that a living broker has open.
    Give the claim up under the condition that it returns: the owner's last change of the record may have had no answer,
    and be made only now. Returns None if the managed ledger is being deleted and has an open ledger. This process then
    has to finish the deletion.

    Raises:
        Fenced: the claim does not hold.
        LedgerFailed: the writer has ended.
        LedgerCorrupt, LedgerListCorrupt: the end cannot be found.
    """
    return await record_ends(
        name, metadata=metadata, ledgers=ledgers, claim=claim, is_left=lambda writer: writer == ledgers.writer
    )


async def record_ends(
    name: str,
    *,
    metadata: MetadataStore,
    ledgers: LedgerStore,
    claim: Check,
    is_left: Callable[[Writer], bool],
) -> Check | None:
    """Record where the ledgers end that these writers left open. Durable on return.

    Without an owner, `claim` is a condition that holds while there is none. Returns a condition that holds while the
    record stays as it then is, or None if the managed ledger is being deleted and has such a ledger.

    Raises:
        Fenced: `claim` does not hold.
        WriterAlive, LedgerOutOfReach, RecoveryElsewhere, JournalContended: another broker may still write to one.
        LedgerCorrupt, LedgerListCorrupt, JournalDamaged, JournalMissing: an end cannot be found.
        LedgerFailed: this process's writer has ended.
    """
    keeper = RecordKeeper(name, metadata, claim)
    record = await keeper.read()
    while True:
        if record is None or all(info.closed or not is_left(_writer_of(info)) for info in record.ledgers):
            return keeper.unchanged
        if record.is_deleting:
            return None
        try:
            recovered = await recover(record, ledgers)
            break
        except LedgerCorrupt:
            known, record = record, await keeper.read()
            if record == known:
                raise
            # A new owner was faster, and has removed a ledger without entries.
    left = LedgerChain(name, keeper, ledgers, LedgerIds(metadata), ManagedLedgerConfig(), recovered)
    await left.record_ends()
    return keeper.unchanged


def _writer_of(info: LedgerInfo) -> Writer:
    assert info.writer is not None, "every record names the writers"
    return info.writer
