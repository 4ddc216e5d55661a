"""Transaction coordinator v5: transactions are metadata records, and a decision is one compare-and-set (PIP-473).

There is no log to replay and no participant to call. Any broker may act as any coordinator at any time. Every step is
conditional, so if two act at once, one wins and the other learns of it (T8, T10).
"""

import orjson
import trio

from storage.clock import WallClock
from storage.entry import TxnId
from storage.metadata.store import ABSENT, Conflict, MetadataStore, Op
from txn.counters import OpCounters
from txn.errors import CoordinatorNotFound, GroupDecides, InvalidTxnStatus, TransactionNotFound
from txn.groups import TransactionGroups
from txn.headers import Header, TransactionGroup, header_key, v5_id
from txn.states import MOVES, TARGET, Answer, EndAction, TxnState
from txn.statistics import CoordinatorStatistics
from txn.wall_clock_timer import WallClockTimer

ID_BLOCK = 1000
"""Ids reserved by one write. When the broker stops, unused ids are skipped and never reused (D6)."""


class _IdBlock:
    """Ids reserved for one coordinator id and not given out yet."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.next = 0
        self.end = 0


class Coordinator:
    """Opens and ends transactions for the coordinator ids 0 to `count - 1`."""

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        count: int,
        now_ms: WallClock,
        timeout_ms_max: int,
        final_timer: WallClockTimer,
        once_timer: WallClockTimer,
        counters: OpCounters,
    ) -> None:
        """Set up. Reads and writes nothing.

        Args:
            metadata: holds the headers.
            count: how many coordinator ids clients may spread over.
            now_ms: the wall clock.
            timeout_ms_max: the longest a transaction may stay open; longer requests are cut to it.
            final_timer: gets the moment of every decision.
            once_timer: gets the moment when a group that runs only once began or ended.
            counters: counts queries.
        """
        self.count = count
        self._metadata = metadata
        self._now_ms = now_ms
        self._timeout_ms_max = timeout_ms_max
        self._final_timer = final_timer
        self._blocks = [_IdBlock() for _ in range(count)]
        self._statistics = CoordinatorStatistics()
        self.groups = TransactionGroups(
            metadata,
            now_ms=now_ms,
            final_timer=final_timer,
            once_timer=once_timer,
            counters=counters,
            statistics=self._statistics,
        )
        """The transactions that are decided together."""

    def statistics(self) -> CoordinatorStatistics:
        """The live counters."""
        return self._statistics

    async def new_transaction(self, tc_id: int, timeout_ms: int) -> TxnId:
        """Open a transaction that the sweep aborts `timeout_ms` from now. Its header is durable on return (T4).

        A timeout above the broker's maximum is cut to that, because an open transaction holds back every reader.

        Raises:
            CoordinatorNotFound: `tc_id` is not below `count`.
        """
        txn = await self._new_id(tc_id)
        await self._open(txn, timeout_ms, None)
        return txn

    async def new_in_group(
        self, tc_id: int, timeout_ms: int, group: TransactionGroup, *, once: bool, origin: str | None = None
    ) -> TxnId | None:
        """As `new_transaction`, for a member of a group.

        Returns None if the group is applied already, so that nothing remains to be done.

        Raises:
            CoordinatorNotFound: `tc_id` is not below `count`.
            AppliedByAnother: a batch of this number from another origin is applied.
        """
        txn = await self._new_id(tc_id)
        while (admission := await self.groups.admission(group, once=once, origin=origin)) is not None:
            try:
                await self._open(txn, timeout_ms, group, admission)
            except Conflict:
                # Another attempt began the batch, or a transaction of it ended.
                continue
            return txn
        return None

    async def _new_id(self, tc_id: int) -> TxnId:
        return v5_id(tc_id, await self._reserve(tc_id))

    async def _open(self, txn: TxnId, timeout_ms: int, group: TransactionGroup | None, *conditions: Op) -> None:
        now = self._now_ms()
        header = Header(TxnState.OPEN, now + min(timeout_ms, self._timeout_ms_max), now, group=group)
        await self._metadata.commit([header.to_put(txn, ABSENT), *conditions])
        self._statistics.opened += 1

    def require(self, tc_id: int) -> None:
        """Return if this coordinator exists.

        Raises:
            CoordinatorNotFound: it does not.
        """
        if not 0 <= tc_id < self.count:
            raise CoordinatorNotFound(tc_id, self.count)

    async def end(self, txn: TxnId, action: EndAction) -> None:
        """Decide the transaction. The decision, or an equal earlier one, is durable on return.

        It is one compare-and-set, whatever the number of participants. None of them is called (T6).

        Raises:
            TransactionNotFound: the store has no header.
            InvalidTxnStatus: the opposite was decided first (T7, T8).
            GroupDecides: it belongs to a group, and only the group can commit it.
        """
        key = header_key(txn)
        target = TARGET[action]
        # A stale image does no harm: a final state never changes, and the compare-and-set fails on any other.
        record = self._metadata.peek(key)
        while True:
            if record is None:
                record = (await self._metadata.fresh([key])).records[key]
                if record is None:
                    raise TransactionNotFound(txn)
            header = Header.from_value(record.value)
            if header.group is not None and not header.state.is_final:
                if action is EndAction.ABORT:
                    await self.groups.abort_alone(txn, header.group)
                elif not await self.groups.has_decided(txn, header.group):
                    raise GroupDecides(txn)
                # The header has the result.
                record = await self._metadata.get(key)
                continue
            answer = MOVES[header.state, action]
            if answer is Answer.REPEATED:
                return
            if answer is Answer.REFUSED:
                self._statistics.cas_reject += 1
                raise InvalidTxnStatus(txn, header.state, action.value)
            now = self._now_ms()
            try:
                await self._metadata.commit([header.ended(target, now).to_put(txn, record.version)])
            except Conflict:
                # Another caller decided in between. Its decision determines the answer.
                self._statistics.cas_conflict += 1
                record = await self._metadata.get(key)
                continue
            self._statistics.count(target)
            self._final_timer.at_latest(now)
            return

    async def _reserve(self, tc_id: int) -> int:
        self.require(tc_id)
        block = self._blocks[tc_id]
        while block.next == block.end:
            # The lock limits this process to one reservation at a time. The condition excludes other brokers.
            async with block.lock:
                if block.next == block.end:
                    await self._reserve_block(tc_id, block)
        number = block.next
        block.next += 1
        return number

    async def _reserve_block(self, tc_id: int, block: _IdBlock) -> None:
        key = f"/txn/tc-seq/{tc_id}"
        record = await self._metadata.get(key)
        fields = {} if record is None else orjson.loads(record.value)
        first = int(fields.get("next", 0))
        version = ABSENT if record is None else record.version
        try:
            await self._metadata.put(key, orjson.dumps({**fields, "next": first + ID_BLOCK}), expected=version)
        except Conflict:
            return
        block.next, block.end = first, first + ID_BLOCK
