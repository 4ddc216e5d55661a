"""Which transactions were aborted on a segment, for as long as their entries are retained (T19).

A header is deleted soon after its transaction ended. The entries of an aborted transaction stay until they are trimmed.
So the segment keeps its own record for each aborted transaction, `/txn/segment-state/<segment>/aborted/<tc>_<n>`, with
the positions of its first and last entry. One change set writes this record and removes the op record.

Once a ledger is closed and everything in it is decided, these records move to the ledger's aborted-transaction index.
That is a file beside the ledger, and it is read with the ledger. So neither the metadata store nor memory grows with
history (docs/design.md#transactions).

An entry whose transaction has neither an op record nor an abort record here is committed. Nothing is guessed.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Set
from contextlib import aclosing
from typing import Final, NamedTuple

import orjson
import structlog

from storage.aborted_index import AbortedSpan
from storage.entry import Entry, TxnId
from storage.errors import LedgerCorrupt, LedgerNotFound, NoSpace
from storage.managed_ledger import ManagedLedger
from storage.metadata.paging import each_record
from storage.metadata.store import Delete, DeleteRange, IndexEntry, MetadataStore, Op, Put, starting_with
from storage.position import Position
from storage.unknown_fields import NOTHING_UNKNOWN, Unknown, restored, unknown_in
from txn.headers import fixed_width, txn_from_name, txn_name
from txn.ops import segment_index_key

KEY_PREFIX: Final = "/txn/segment-state/"
ABORTED_BY_POSITION: Final = "aborted-by-position"

_FIELDS: Final = frozenset({"first", "last", "owner"})

ABORTED_IN_LEDGER_MAX: Final = 2_000
"""Aborted transactions that end in one ledger before another ledger takes over, so that their records can move to its
index. Otherwise memory and metadata store would keep a record for each transaction aborted since the last roll."""

INDEXES_CACHED_MAX: Final = 16
"""Ledgers of one segment whose index is kept in memory. Reading further back loads an index again."""

MOVED_AT_ONCE_MAX: Final = 100
"""The most records that one change set removes, which keeps it below etcd's 128 operations."""


log = structlog.get_logger(__name__)


class Span(NamedTuple):
    """The positions of a transaction's first and last entry on this segment, both included."""

    first: Position
    last: Position


def _prefix(segment: str) -> str:
    return f"{KEY_PREFIX}{segment_index_key(segment)}/aborted/"


def aborted_records(segment: str) -> tuple[str, str]:
    """The key range of a segment's abort records."""
    return starting_with(_prefix(segment))


class AbortedTransactions:
    """One segment's aborted transactions."""

    def __init__(self, ledger: ManagedLedger, owner: int | None = None) -> None:
        """Set up for the owner with this claim version, which its records carry."""
        self._ledger = ledger
        self._owner = owner
        self._name = segment_index_key(ledger.name)
        self._prefix = _prefix(ledger.name)
        self._recent: dict[TxnId, Span] = {}
        """Transactions with a record in the metadata store, or about to have one."""
        self._versions: dict[TxnId, int] = {}
        """The versions of their durable records. A removal names them."""
        self._unknown: dict[TxnId, Unknown] = {}
        """Unknown fields of records that earlier owners wrote."""
        self._recent_ledgers: Counter[int] = Counter()
        """How many of them end in each ledger."""
        self._indexed: OrderedDict[int, frozenset[TxnId]] = OrderedDict()
        """The indexes of closed ledgers. The most recently used one comes last."""
        self._damaged: set[int] = set()
        """Ledgers whose index is damaged. Their records stay."""
        self._moves = 0
        """How many indexes were written."""

    def __len__(self) -> int:
        return len(self._recent)

    def hides(self, entry: Entry) -> bool:
        """Whether the entry belongs to an aborted transaction. Pass its ledger to `prepare` first."""
        return entry.txn is not None and self.has(entry.txn, entry.position.ledger)

    def has(self, txn: TxnId, ledger: int) -> bool:
        """Whether a transaction that wrote to this ledger was aborted. Prepare the ledger first."""
        return txn in self._recent or txn in self._indexed.get(ledger, frozenset())

    async def load(self, metadata: MetadataStore) -> None:
        """Read what earlier owners of the segment recorded."""
        # Closed, because a damaged record ends it early.
        async with aclosing(each_record(metadata.scan, *starting_with(self._prefix))) as records:
            async for record in records:
                fields = orjson.loads(record.value)
                txn = txn_from_name(record.key.removeprefix(self._prefix))
                self.remember(txn, Span(Position(*fields["first"]), Position(*fields["last"])))
                self._versions[txn] = record.version
                if unknown := unknown_in(fields, _FIELDS):
                    self._unknown[txn] = unknown

    @property
    def hides_nothing(self) -> bool:
        """Whether no transaction that wrote to the segment was aborted."""
        return not self._recent and not any(info.aborted for info in self._ledger.closed)

    def may_hide(self, ledger: int) -> bool:
        """Whether anything decided in this closed ledger can be hidden."""
        info = self._ledger.info(ledger)
        recent = any(span.first.ledger <= ledger <= span.last.ledger for span in self._recent.values())
        return recent or (info is not None and info.aborted > 0)

    async def prepare(self, entries: Iterable[Entry]) -> None:
        """Load the indexes of these entries' ledgers. Does not wait for recently written entries.

        Raises:
            LedgerCorrupt: an index is damaged or missing, so it does not show which entries are visible.
            LedgerNotFound: a ledger was trimmed since the entries were read.
        """
        await self.prepare_ledgers({entry.position.ledger for entry in entries if entry.txn is not None})

    async def prepare_ledgers(self, ledgers: Set[int]) -> None:
        """As `prepare`, for the entries of transactions in these ledgers."""
        # Checked again after each wait. Meanwhile a ledger may have closed, or one load may have evicted another index.
        while missing := [ledger for ledger in ledgers if ledger not in self._indexed and not self._is_open(ledger)]:
            moves = self._moves
            spans = await self._ledger.load_aborted(missing[0])
            # An index loaded while records moved may be older than they are. It would show entries that they hide.
            if moves == self._moves:
                self._keep(missing[0], frozenset(span.txn for span in spans), besides=len(ledgers))
        for ledger in ledgers & self._indexed.keys():
            self._indexed.move_to_end(ledger)

    def remember(self, txn: TxnId, span: Span) -> None:
        """Hide the transaction's entries from now on. `to_put` makes that durable."""
        if txn not in self._recent:
            self._recent_ledgers[span.last.ledger] += 1
            if self._recent_ledgers[span.last.ledger] >= ABORTED_IN_LEDGER_MAX and self._is_open(span.last.ledger):
                self._ledger.request_roll()
        self._recent[txn] = span

    def to_put(self, txn: TxnId) -> Put:
        """The record that makes `remember` durable. A repetition is the same record."""
        first, last = self._recent[txn]
        unknown = self._unknown.get(txn, NOTHING_UNKNOWN)
        fields = {"first": tuple(first), "last": tuple(last), "owner": self._owner}
        value = orjson.dumps({**fields, **restored(unknown)})
        index = IndexEntry(ABORTED_BY_POSITION, f"{self._name}:{fixed_width(last.ledger)}:{fixed_width(last.entry)}")
        return Put(self._prefix + txn_name(txn), value, indexes=(index,))

    def recorded(self, ops: Iterable[Op], revision: int) -> None:
        """This change set is durable. Its abort records are as of `revision`."""
        for op in ops:
            if isinstance(op, Put):
                self._versions[self._txn_of(op)] = revision

    def to_delete(self) -> DeleteRange:
        """Deletes every record, for a segment whose data is deleted."""
        return DeleteRange(*aborted_records(self._ledger.name))

    async def move_to_indexes(self, readable: Position) -> list[list[Op]]:
        """Write records below `readable` into their ledgers' indexes.

        Returns the change sets that then remove the records.

        It takes only durable records of ledgers that are closed and in which everything is decided. The indexes are
        durable on return, so the removals may be made or repeated at any time. `forget` follows each. Transactions of a
        ledger with a damaged index keep their records, which go on hiding them.
        """
        moving = {txn: self._recent[txn] for txn in self._versions if self._is_passed_by(txn, readable)}
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
                # The records go on hiding the entries. The next transaction that ends here tries again.
                log.warning(
                    "an aborted-transaction index is not written yet", segment=self._ledger.name, reason=str(full)
                )
                return []
        for ledger, stored in indexes.items():
            self._moves += 1
            # Kept even if the ledger was trimmed, because its entries may have been read before.
            self._keep(ledger, frozenset(span.txn for span in stored))
        removals: list[Op] = [Delete(self._prefix + txn_name(txn), self._versions[txn]) for txn in moving]
        return [removals[start : start + MOVED_AT_ONCE_MAX] for start in range(0, len(removals), MOVED_AT_ONCE_MAX)]

    def forget(self, removed: Iterable[Op]) -> None:
        """These operations removed their records from the store. The indexes answer for them now."""
        for op in removed:
            if isinstance(op, Delete):
                txn = self._txn_of(op)
                span = self._recent.pop(txn)
                del self._versions[txn]
                self._unknown.pop(txn, None)
                self._recent_ledgers[span.last.ledger] -= 1
                if not self._recent_ledgers[span.last.ledger]:
                    del self._recent_ledgers[span.last.ledger]

    def has_passed(self, readable: Position) -> bool:
        """Whether `move_to_indexes` has anything to do."""
        return bool(self._recent_ledgers) and self._is_passed(min(self._recent_ledgers), readable)

    async def _known(self, ledger: int) -> Iterable[AbortedSpan] | None:
        """The spans in the ledger's index; None if it is damaged and cannot be rebuilt."""
        if ledger in self._damaged:
            return None
        try:
            return await self._ledger.load_aborted(ledger)
        except LedgerNotFound:
            return ()
        except LedgerCorrupt as damaged:
            self._damaged.add(ledger)
            log.error("an aborted-transaction index is damaged", segment=self._ledger.name, reason=str(damaged))
            return None

    def _is_open(self, ledger: int) -> bool:
        """Whether it accepts entries, and so has no index yet."""
        return self._ledger.takes_entries(ledger)

    def _txn_of(self, op: Put | Delete) -> TxnId:
        return txn_from_name(op.key.removeprefix(self._prefix))

    def _is_passed_by(self, txn: TxnId, readable: Position) -> bool:
        return self._is_passed(self._recent[txn].last.ledger, readable)

    def _is_passed(self, ledger: int, readable: Position) -> bool:
        if self._ledger.next_after(readable).ledger > ledger:
            return True
        return self._ledger.is_sealed and readable >= self._ledger.last_position

    def _keep(self, ledger: int, txns: frozenset[TxnId], *, besides: int = 0) -> None:
        self._indexed[ledger] = txns
        self._indexed.move_to_end(ledger)
        # Keep everything that one read needs. Otherwise loading its last index would evict its first.
        while len(self._indexed) > INDEXES_CACHED_MAX + besides:
            self._indexed.popitem(last=False)
