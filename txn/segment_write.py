"""The writes of one unresolved transaction on a segment, and where its entries are."""

from dataclasses import dataclass, field
from typing import Final

import trio

from storage.entry import TxnId
from storage.errors import EntriesUnreadable
from storage.managed_ledger import ManagedLedger
from storage.metadata.store import RecordVersion
from storage.position import Position
from txn.aborted_transactions import Span
from txn.states import TxnState

SCAN_ENTRIES_MAX: Final = 500
SCAN_BYTES_MAX: Final = 4 * 1024 * 1024


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


async def find_span(ledger: ManagedLedger, txn: TxnId, lower_bound: Position) -> Span | None:
    """Where a transaction's entries are: from the first one, at or above the bound, to the recovered end.

    The place of its last entry is unknown without reading on, and the recovered end is not below it. None if it has no
    entry (T18).
    """
    end = ledger.confirmed.value
    start = lower_bound
    while start <= end:
        try:
            entries = await ledger.read(start, upto=end, entries_max=SCAN_ENTRIES_MAX, bytes_max=SCAN_BYTES_MAX)
        except EntriesUnreadable as damage:
            # Its first entry may be in this range.
            return Span(damage.first, end)
        if not entries:
            return None
        for entry in entries:
            if entry.txn == txn:
                return Span(entry.position, end)
        start = ledger.next_after(entries[-1].position)
    return None
