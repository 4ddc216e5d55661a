"""The writes of one unresolved transaction on a segment, and where its entries are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from storage.entry import TxnId
from storage.errors import EntriesUnreadable
from storage.managed_ledger import ManagedLedger
from storage.metadata.store import Record, RecordVersion
from storage.position import EARLIEST, LATEST, Position
from txn.aborted_transactions import Span
from txn.errors import OpRecordDamaged, RecordUnreadable
from txn.ops import WriteOp, txn_of_op
from txn.states import TxnState

SCAN_ENTRIES_MAX: Final = 500
SCAN_BYTES_MAX: Final = 4 * 1024 * 1024

log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class SegmentWrite:
    """One transaction on one segment, from its joining until its records are removed.

        phase       `joining`   `ops`       `span`                 `decided`          next
        joining     an event    none        None                   None or final      appending, settling, or forgotten
        appending   None        some        None, then it grows    None               settling
        settling    None        some        stays                  final              forgotten

    A decision that comes during `joining` is applied when the joining ends. Recovery also begins in `joining`, with
    keys and a span.
    """

    txn: TxnId
    ops: list[RecordVersion] = field(default_factory=list)
    """Its durable op records. Empty only while it joins, or if the record was refused."""
    span: Span | None = None
    """From its first append here to its last one; None before the first. The start never moves, and the end rises."""
    decided: TxnState | None = None
    """Final, and set once. Nothing is appended from then on."""
    joining: trio.Event | None = None
    """Set when its op record is durable or was refused. None once that is settled, and then it stays None."""


def found_op(record: Record, segment: str, creation_id: str) -> WriteOp:
    """Decode an op record that the segment's index names. A damaged one is reported, and nothing is lost by it.

    Its key still names the transaction. The transaction's entries may then be anywhere on the segment, and they are
    found there. If the record was that of a removed segment of the same name, there are none.

    Raises:
        OpRecordDamaged: the key names no transaction, so nobody knows whose entries are unresolved.
    """
    try:
        return WriteOp.from_record(record)
    except RecordUnreadable as damaged:
        log.error("an op record of a write is damaged", key=record.key, segment=segment, reason=str(damaged))
    try:
        return WriteOp(txn_of_op(record.key), segment, creation_id, EARLIEST)
    except RecordUnreadable as unknown:
        raise OpRecordDamaged(f"The op record {record.key} is damaged: {unknown}. Restore it from a copy") from unknown


async def find_spans(ledger: ManagedLedger, bounds: Mapping[TxnId, Position]) -> dict[TxnId, tuple[int, Span]]:
    """Where the entries of transactions are: each from its first one, at or above its bound, to the recovered end.

    With each span comes the index of its first message. If that entry cannot be read, it is a true lower bound.

    The place of a last entry is unknown without reading on, and the recovered end is not below it. A transaction
    without an entry has no span (T18). However many there are, each entry is read at most once.
    """
    end = ledger.confirmed.value
    order = sorted(bounds, key=bounds.__getitem__)
    spans: dict[TxnId, tuple[int, Span]] = {}
    start, index = EARLIEST, 0
    for txn in order:
        start = max(start, bounds[txn])
        while txn not in spans and start <= end:
            # Reads from memory do not pause.
            await trio.lowlevel.checkpoint()
            try:
                entries = await ledger.read(start, upto=end, entries_max=SCAN_ENTRIES_MAX, bytes_max=SCAN_BYTES_MAX)
            except EntriesUnreadable as damage:
                # Any first entry that is still sought may be in this range.
                index = max(index, _first_index_of(ledger, damage.first))
                for sought in order:
                    if bounds[sought] <= damage.last:
                        spans.setdefault(sought, (index, Span(damage.first, end)))
                start = ledger.next_after(damage.last)
                continue
            if not entries:
                return spans
            for entry in entries:
                if entry.txn is not None and bounds.get(entry.txn, LATEST) <= entry.position:
                    spans.setdefault(entry.txn, (entry.first_index, Span(entry.position, end)))
                index = entry.first_index + entry.message_count
            start = ledger.next_after(entries[-1].position)
    return spans


def _first_index_of(ledger: ManagedLedger, position: Position) -> int:
    """The index of the first message in the ledger with this position, or of the first one of all."""
    return next((info.first_index for info in ledger.closed if info.id == position.ledger), ledger.first_index)
