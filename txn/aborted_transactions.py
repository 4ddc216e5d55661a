"""Which transactions were aborted on a segment, for as long as their entries are retained (T19).

A header is forgotten soon after its transaction ended; the entries of an aborted one stay until they are trimmed. So
the segment keeps a record of its own per aborted transaction, `/txn/segment-state/<segment>/aborted/<tc>_<n>`, with the
positions between which its entries stand, written in one change set with the removal of its op record. Once a ledger is
closed and everything in it is decided, these records move to the ledger's aborted-transaction index, a file beside it,
which is read when the ledger is: neither the metadata store nor memory grows with history
(docs/design.md#transactions).

An entry whose transaction has neither op record nor abort record here is committed: nothing is guessed.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Set
from typing import Final, NamedTuple

import orjson
import structlog

from storage.aborted_index import AbortedSpan
from storage.entry import Entry, TxnId
from storage.errors import LedgerCorrupt, LedgerNotFound, NoSpace
from storage.managed_ledger import ManagedLedger
from storage.metadata.store import Delete, DeleteRange, IndexEntry, MetadataStore, Op, Put, starting_with
from storage.position import Position
from txn.headers import fixed_width, txn_from_name, txn_name
from txn.ops import segment_index_key

KEY_PREFIX: Final = "/txn/segment-state/"
ABORTED_BY_POSITION: Final = "aborted-by-position"

ABORTED_IN_LEDGER_MAX: Final = 2_000
"""Aborted transactions that end in one ledger before another one takes over, so that their records can move to its
index: otherwise memory and metadata store would keep one record for every transaction aborted since the last roll."""

INDEXES_CACHED_MAX: Final = 16
"""Ledgers of one segment whose index is kept in memory; reading further back loads it again."""

MOVED_AT_ONCE_MAX: Final = 100
"""Records removed by one change set, which keeps it below etcd's 128 operations."""


log = structlog.get_logger(__name__)


class Span(NamedTuple):
    """Between which positions, both included, a transaction's entries stand on this segment."""

    first: Position
    last: Position


def _prefix(segment: str) -> str:
    return f"{KEY_PREFIX}{segment_index_key(segment)}/aborted/"


def aborted_records(segment: str) -> tuple[str, str]:
    """The key range of a segment's abort records."""
    return starting_with(_prefix(segment))


class AbortedTransactions:
    """One segment's aborted transactions."""

    def __init__(self, ledger: ManagedLedger) -> None:
        self._ledger = ledger
        self._name = segment_index_key(ledger.name)
        self._prefix = _prefix(ledger.name)
        self._recent: dict[TxnId, Span] = {}
        """Those that stand, or are about to stand, in the metadata store."""
        self._recent_ledgers: Counter[int] = Counter()
        """How many of them end in which ledger."""
        self._indexed: OrderedDict[int, frozenset[TxnId]] = OrderedDict()
        """Of closed ledgers, those in their index; the one used last comes last."""
        self._damaged: set[int] = set()
        """Ledgers whose index was found damaged; their records stay."""
        self._moves = 0
        """How many indexes were written."""

    def __len__(self) -> int:
        return len(self._recent)

    def hides(self, entry: Entry) -> bool:
        """Whether the entry belongs to an aborted transaction. Its ledger has been passed to `prepare` before."""
        return entry.txn is not None and self.has(entry.txn, entry.position.ledger)

    def has(self, txn: TxnId, ledger: int) -> bool:
        """Whether the transaction was aborted, which wrote to this ledger. The ledger has been prepared before."""
        return txn in self._recent or txn in self._indexed.get(ledger, frozenset())

    async def load(self, metadata: MetadataStore) -> None:
        """Read what earlier owners of the segment recorded."""
        for record in await metadata.scan(*starting_with(self._prefix)):
            fields = orjson.loads(record.value)
            txn = txn_from_name(record.key.removeprefix(self._prefix))
            self.remember(txn, Span(Position(*fields["first"]), Position(*fields["last"])))

    async def prepare(self, entries: Iterable[Entry]) -> None:
        """Have the indexes of these entries' ledgers at hand; nothing to wait for in what was written lately.

        Raises:
            LedgerCorrupt: an index is damaged or missing, so nobody can tell which entries may be shown.
            LedgerNotFound: a ledger was trimmed since the entries were read.
        """
        await self.prepare_ledgers({entry.position.ledger for entry in entries if entry.txn is not None})

    async def prepare_ledgers(self, ledgers: Set[int]) -> None:
        """As `prepare`, for the entries of transactions in these ledgers."""
        # Looked at again after each wait: meanwhile a ledger may have closed, or one load pushed out another.
        while missing := [ledger for ledger in ledgers if ledger not in self._indexed and not self._is_open(ledger)]:
            moves = self._moves
            spans = await self._ledger.load_aborted(missing[0])
            # What was loaded while records moved may be older than they are, and would show what they hid.
            if moves == self._moves:
                self._keep(missing[0], frozenset(span.txn for span in spans), besides=len(ledgers))
        for ledger in ledgers & self._indexed.keys():
            self._indexed.move_to_end(ledger)

    def remember(self, txn: TxnId, span: Span) -> None:
        """Filter the transaction's entries from now on; `to_put` makes that durable."""
        if txn not in self._recent:
            self._recent_ledgers[span.last.ledger] += 1
            if self._recent_ledgers[span.last.ledger] >= ABORTED_IN_LEDGER_MAX and self._is_open(span.last.ledger):
                self._ledger.request_roll()
        self._recent[txn] = span

    def to_put(self, txn: TxnId) -> Put:
        """The record that makes `remember` durable; the same for every repetition."""
        first, last = self._recent[txn]
        value = orjson.dumps({"first": tuple(first), "last": tuple(last)})
        index = IndexEntry(ABORTED_BY_POSITION, f"{self._name}:{fixed_width(last.ledger)}:{fixed_width(last.entry)}")
        return Put(self._prefix + txn_name(txn), value, indexes=(index,))

    def to_delete(self) -> DeleteRange:
        """Forgets every record, for a segment whose data is deleted."""
        return DeleteRange(*aborted_records(self._ledger.name))

    async def move_to_indexes(self, readable: Position) -> list[list[Op]]:
        """Write what is behind `readable` into its ledgers' indexes; the change sets that then remove the records.

        Only ledgers that are closed, and of which everything is decided. The indexes are durable on return, so the
        removals may be made or repeated at any time; `forget` follows each. Transactions of a ledger whose index is
        damaged keep their records, which go on hiding them.
        """
        moving = {txn: span for txn, span in self._recent.items() if self._is_passed(span.last.ledger, readable)}
        spans: dict[int, list[AbortedSpan]] = {}
        for txn, (first, last) in moving.items():
            for begin, end in self._ledger.cut_at_ledgers(first, last):
                spans.setdefault(begin.ledger, []).append(AbortedSpan(txn, begin.entry, end.entry))
        indexes: dict[int, set[AbortedSpan]] = {}
        for ledger, fresh in spans.items():
            known = await self._known(ledger)
            if known is None:
                for span in fresh:
                    moving.pop(span.txn, None)
            else:
                indexes[ledger] = {*known, *fresh}
        if indexes:
            try:
                await self._ledger.store_aborted(indexes)
            except NoSpace as full:
                # The records go on hiding them. The next transaction that ends here asks again.
                log.warning(
                    "an aborted-transaction index is not written yet", segment=self._ledger.name, reason=str(full)
                )
                return []
        for ledger, stored in indexes.items():
            self._moves += 1
            # Kept also if the ledger was trimmed: its entries may have been read before.
            self._keep(ledger, frozenset(span.txn for span in stored))
        keys = [self._prefix + txn_name(txn) for txn in moving]
        return [
            [Delete(key) for key in keys[start : start + MOVED_AT_ONCE_MAX]]
            for start in range(0, len(keys), MOVED_AT_ONCE_MAX)
        ]

    def forget(self, removed: Iterable[Op]) -> None:
        """The records that these operations removed are gone from the store: the indexes answer for them."""
        for op in removed:
            if isinstance(op, Delete):
                span = self._recent.pop(txn_from_name(op.key.removeprefix(self._prefix)))
                self._recent_ledgers[span.last.ledger] -= 1
                if not self._recent_ledgers[span.last.ledger]:
                    del self._recent_ledgers[span.last.ledger]

    def has_passed(self, readable: Position) -> bool:
        """Whether there is anything for `move_to_indexes` to do."""
        return bool(self._recent_ledgers) and self._is_passed(min(self._recent_ledgers), readable)

    async def _known(self, ledger: int) -> Iterable[AbortedSpan] | None:
        """What the ledger's index names already; None if it is damaged and cannot be written anew."""
        if ledger in self._damaged:
            return None
        try:
            return await self._ledger.load_aborted(ledger)
        except LedgerNotFound:
            return ()
        except LedgerCorrupt as damaged:
            if not self._ledger.aborted_count(ledger):
                # It was not on record yet, so every metadata record that it was made of is still there.
                return ()
            self._damaged.add(ledger)
            log.error("an aborted-transaction index is damaged", segment=self._ledger.name, reason=str(damaged))
            return None

    def _is_open(self, ledger: int) -> bool:
        """Whether it takes entries, and so has no index yet."""
        return self._ledger.takes_entries(ledger)

    def _is_passed(self, ledger: int, readable: Position) -> bool:
        if self._ledger.next_after(readable).ledger > ledger:
            return True
        return self._ledger.is_sealed and readable >= self._ledger.last_position

    def _keep(self, ledger: int, txns: frozenset[TxnId], *, besides: int = 0) -> None:
        self._indexed[ledger] = txns
        self._indexed.move_to_end(ledger)
        # What one read needs stays together, or loading its last index would push out its first.
        while len(self._indexed) > INDEXES_CACHED_MAX + besides:
            self._indexed.popitem(last=False)
