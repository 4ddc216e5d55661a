"""The writes of one unresolved transaction on a segment, and where its entries are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import trio

from storage.entry import TxnId
from storage.errors import EntriesUnreadable
from storage.managed_ledger import ManagedLedger
from storage.metadata.store import RecordVersion
from storage.position import EARLIEST, LATEST, Position
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


async def find_spans(ledger: ManagedLedger, bounds: Mapping[TxnId, Position]) -> dict[TxnId, Span]:
    """Where the entries of transactions are: each from its first one, at or above its bound, to the recovered end.

    The place of a last entry is unknown without reading on, and the recovered end is not below it. A transaction
    without an entry has no span (T18). However many there are, each entry is read at most once.
    """
    end = ledger.confirmed.value
    order = sorted(bounds, key=bounds.__getitem__)
    spans: dict[TxnId, Span] = {}
    start = EARLIEST
    for txn in order:
        start = max(start, bounds[txn])
        while txn not in spans and start <= end:
            # Reads from memory do not pause.
            await trio.lowlevel.checkpoint()
            try:
                entries = await ledger.read(start, upto=end, entries_max=SCAN_ENTRIES_MAX, bytes_max=SCAN_BYTES_MAX)
            except EntriesUnreadable as damage:
                # Any first entry that is still sought may be in this range.
                for sought in order:
                    if bounds[sought] <= damage.last:
                        spans.setdefault(sought, Span(damage.first, end))
                start = ledger.next_after(damage.last)
                continue
            if not entries:
                return spans
            for entry in entries:
                if entry.txn is not None and bounds.get(entry.txn, LATEST) <= entry.position:
                    spans.setdefault(entry.txn, Span(entry.position, end))
            start = ledger.next_after(entries[-1].position)
    return spans
