"""What the next owner of a subscription finds: the op records of its pending acknowledgements, decoded.

A damaged record hides which messages its transaction acknowledged. Its key still names the transaction, so it becomes a
command without acknowledgements, and `PendingAcks` withholds everything until that transaction is aborted. The record
may belong to a removed subscription of the same name. Nobody can tell, so it counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import structlog

from storage.entry import TxnId
from storage.metadata.store import Record, RecordVersion
from txn.errors import OpRecordDamaged, RecordUnreadable
from txn.ops import AckOp, txn_of_op
from txn.pending_steps import pause_after
from txn.pending_transaction import Command

log = structlog.get_logger(__name__)


@dataclass
class FoundAcks:
    """The op records of one subscription."""

    commands: list[tuple[TxnId, Command]] = field(default_factory=list)
    """Those of this subscription, each with its transaction."""
    strangers: list[RecordVersion] = field(default_factory=list)
    """Those of removed subscriptions of the same name (D16)."""

    @classmethod
    async def read(cls, records: Iterable[Record], creation_id: str) -> "FoundAcks":
        """Decode the records of the subscription whose cursor has this creation id.

        Raises:
            OpRecordDamaged: a record's key names no transaction.
        """
        found = cls()
        done = 0
        for record in records:
            stored, size = RecordVersion.of(record), len(record.value)
            try:
                op = AckOp.from_record(record)
            except RecordUnreadable as damaged:
                found.commands.append((_named(record, damaged), Command((), False, size, stored, is_damaged=True)))
                continue
            done = await pause_after(done + len(op.acks))
            if op.creation_id == creation_id:
                command = Command(op.acks, op.cumulative, size, stored, op.command, len(op.acks))
                found.commands.append((op.txn, command))
            else:
                found.strangers.append(stored)
        return found


def _named(record: Record, damaged: RecordUnreadable) -> TxnId:
    """The transaction of a damaged record."""
    log.error("an op record of an acknowledgement is damaged", key=record.key, reason=str(damaged))
    try:
        return txn_of_op(record.key)
    except RecordUnreadable as unknown:
        raise OpRecordDamaged(f"The op record {record.key} is damaged: {unknown}. Restore it from a copy") from unknown
