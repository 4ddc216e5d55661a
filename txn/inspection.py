"""What administrators are told about transactions, and how they abort one.

All of it is read from the metadata store: the headers, and the op records that name the participants. So any broker
answers for all coordinators. An abort is the same compare-and-set as a client's (`txn.coordinator`).
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final, NamedTuple

from storage.clock import WallClock
from storage.entry import TxnId
from storage.metadata.paging import each_record
from storage.metadata.store import MetadataStore, Record, starting_with
from storage.position import Position
from txn.coordinator import Coordinator
from txn.errors import RecordUnreadable, TransactionNotFound
from txn.headers import BY_DEADLINE, Header, header_key, txn_of_key
from txn.ops import AckOp, WriteOp, kind_of, ops_of
from txn.states import EndAction

LISTED_MAX: Final = 1000
"""Most transactions in one list, so that it needs bounded memory."""
_PAGE: Final = 256


class Participant(NamedTuple):
    """A segment that a transaction writes to, or a subscription on which it acknowledges."""

    segment: str
    subscription: str | None
    """None for a write."""
    position: Position | None
    """Of a write: no entry of the transaction is below it. Of acknowledgements: the last one, if it is cumulative."""


@dataclass(frozen=True, slots=True)
class InspectedTransaction:
    """A transaction, as administrators see it."""

    txn: TxnId
    header: Header
    participants: tuple[Participant, ...]
    """Those that have not applied the end. Damaged records are left out."""
    unreadable: int
    """How many of its records are damaged."""


class Inspection:
    """See the module's docstring."""

    def __init__(self, metadata: MetadataStore, coordinator: Coordinator, now_ms: WallClock) -> None:
        self._metadata = metadata
        self._coordinator = coordinator
        self._now_ms = now_ms

    @property
    def coordinators(self) -> int:
        """How many coordinators there are."""
        return self._coordinator.count

    async def open(
        self, *, age_ms_min: int = 0, coordinator: int | None = None, limit: int = LISTED_MAX
    ) -> list[InspectedTransaction]:
        """Return the open transactions that are at least this old, oldest first, at most `limit` of them.

        Raises:
            CoordinatorNotFound: there is no such coordinator.
        """
        if coordinator is not None:
            self._coordinator.require(coordinator)
        begun_by = self._now_ms() - age_ms_min
        found = [
            (header.created_ms, txn, header)
            async for txn, header in self._open_headers()
            if header.created_ms <= begun_by and coordinator in {None, txn.most}
        ]
        oldest = nsmallest(min(limit, LISTED_MAX), found, key=lambda one: one[:2])
        return [await self._inspected(txn, header) for _begun, txn, header in oldest]

    async def find(self, txn: TxnId) -> InspectedTransaction:
        """Return a transaction that is open, or ended not long ago.

        Raises:
            TransactionNotFound: there is no such transaction.
        """
        record = await self._metadata.get(header_key(txn))
        if record is None:
            raise TransactionNotFound(txn)
        return await self._inspected(txn, Header.from_value(record.value))

    async def abort(self, txn: TxnId) -> None:
        """Abort a transaction; durable on return. Nothing happens if it is aborted already.

        Raises:
            TransactionNotFound: there is no such transaction.
            InvalidTxnStatus: it is committed.
        """
        await self._coordinator.end(txn, EndAction.ABORT)

    async def _open_headers(self) -> AsyncIterator[tuple[TxnId, Header]]:
        # The keys of this index end in the transaction's name, so none is equal to another.
        start, end = starting_with("")
        while hits := await self._metadata.query(BY_DEADLINE, start, end, limit=_PAGE):
            for hit in hits:
                try:
                    yield txn_of_key(hit.record.key), Header.from_value(hit.record.value)
                except RecordUnreadable:
                    # The sweep reports it.
                    continue
            start = hits[-1].index_key + "\0"

    async def _inspected(self, txn: TxnId, header: Header) -> InspectedTransaction:
        participants: list[Participant] = []
        unreadable = 0
        async for record in each_record(self._metadata.scan, *ops_of(txn)):
            try:
                participants.append(_participant(record))
            except RecordUnreadable:
                unreadable += 1
        return InspectedTransaction(txn, header, tuple(participants), unreadable)


def _participant(record: Record) -> Participant:
    if kind_of(record) == "write":
        write = WriteOp.from_record(record)
        return Participant(write.segment, None, write.lower_bound)
    ack = AckOp.from_record(record)
    last = max((one.position for one in ack.acks), default=None) if ack.cumulative else None
    return Participant(ack.segment, ack.subscription, last)
