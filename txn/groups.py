"""Groups of transactions: one decision commits some attempts of a batch's tasks and aborts the others.

Spark writes a batch in many tasks. It retries failed tasks, and runs slow ones twice. Each attempt is a transaction of
its own, so none of its output is visible. The driver names the attempts that count. One compare-and-set on the record
of the application decides all of them, once for each batch, however often it is asked (docs/design.md#groups, D17).

Only that record holds the decision. `txn.group_settlement` learns of it and has it written into the headers. From
these, segments and subscriptions learn of it like any other end of a transaction. Until then, a reader of an open
header asks the record (open_header.py).
"""

from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakValueDictionary

import structlog
import trio

from storage.clock import WallClock
from storage.entry import TxnId
from storage.metadata.store import ABSENT, Check, Conflict, MetadataStore, Op, Record
from storage.unknown_fields import NOTHING_UNKNOWN
from txn.counters import OpCounters
from txn.errors import InvalidTxnStatus, RecordUnreadable, TooManyWinners, TransactionNotFound
from txn.group_record import (
    UNKNOWN,
    Content,
    GroupRecord,
    GroupState,
    group_key,
    require_going_on,
    require_origin,
    require_same,
    standing,
    state_in,
)
from txn.headers import BY_GROUP, Header, TransactionGroup, group_members, header_key, txn_of_key
from txn.open_header import Lookup
from txn.states import TxnState
from txn.statistics import CoordinatorStatistics
from txn.unreadable import Unreadable
from txn.wall_clock_timer import WallClockTimer

log = structlog.get_logger(__name__)

WINNERS_MAX: Final = 10_000
"""A record names all winners, and it must fit into a change set of any store."""

SETTLE_BATCH_MAX: Final = 50
"""Headers written in one change set. With the group's record it stays below etcd's 124 operations."""


class TransactionGroups:
    """Opens, decides and forgets groups. Any number of brokers may do so at once, because every step is conditional."""

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        now_ms: WallClock,
        final_timer: WallClockTimer,
        once_timer: WallClockTimer,
        counters: OpCounters,
        statistics: CoordinatorStatistics,
    ) -> None:
        """Set up. Reads and writes nothing.

        Args:
            metadata: holds records and headers.
            now_ms: the wall clock.
            final_timer: gets every moment at which transactions ended.
            once_timer: gets the moment when an application that runs only once began or ended.
            counters: counts queries.
            statistics: counts ended transactions.
        """
        self._metadata = metadata
        self._now_ms = now_ms
        self._final_timer = final_timer
        self._once_timer = once_timer
        self._counters = counters
        self._statistics = statistics
        self._unreadable = Unreadable()
        self._aborting: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        self._settling: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    async def admission(self, group: TransactionGroup, *, once: bool, origin: str | None = None) -> Op | None:
        """The condition to commit with the header of a new transaction. None if the group is applied already.

        A Conflict on it means: ask again. Transactions that earlier batches of the application left open have ended on
        return.

        Raises:
            AppliedByAnother: a batch of this number from another origin is applied.
            GroupAborted: the group accepts nothing more.
            RecordUnreadable: a winner of the last batch is damaged, so its header does not say yet that it is one.
        """
        record, found = await self._read(group.application)
        require_going_on(record, group)
        is_applied, is_current = standing(record, group.batch)
        if is_applied:
            require_origin(record, group, origin)
            return None
        if is_current:
            assert found is not None, "there is no current batch without a record"
            return Check(found.key, found.version)
        if record is not None:
            # Nobody else would end what the previous batch, or a later abandoned one, left open.
            if record.state is GroupState.COMMITTED:
                # Once a later batch has begun, nobody knows the winners of this one.
                if damaged := await self.settle(group.application) & set(map(header_key, record.winners)):
                    raise RecordUnreadable(f"the header of a committed transaction is damaged: {min(damaged)}")
            else:
                await self._end_all(group.application, record, found)
        now = self._now_ms()
        if once:
            self._once_timer.at_latest(now)
        last = record or GroupRecord(group.batch, GroupState.OPEN, now)
        begun = GroupRecord(
            group.batch,
            GroupState.OPEN,
            now,
            once,
            last.applied,
            origin=origin or last.origin,
            content=last.content,
            unknown=last.unknown,
        )
        return begun.to_put(group.application, ABSENT if found is None else found.version)

    async def commit(
        self,
        group: TransactionGroup,
        winners: Sequence[TxnId],
        *,
        once: bool,
        origin: str | None = None,
        content: Content | None = None,
        trusts_number: bool = False,
    ) -> None:
        """Commit these transactions of the group and abort its others. Durable on return; the headers follow.

        If the batch is applied already, nothing happens, and that is no error.

        Args:
            group: the batch.
            winners: its transactions that count.
            once: see `admission`.
            origin: see `admission`.
            content: what the batch holds; None if only its number identifies it.
            trusts_number: an applied batch of this number counts as this one, whatever it holds.

        Raises:
            AppliedOtherwise: this batch or a later one is applied, with other contents.
            TransactionNotFound: a winner is no transaction of this group.
            InvalidTxnStatus: a winner is aborted. Nothing is decided.
            TooManyWinners: nothing is decided.
            AppliedByAnother, GroupAborted: see `admission`.
        """
        if len(winners) > WINNERS_MAX:
            raise TooManyWinners(f"a batch has {len(winners)} transactions; at most {WINNERS_MAX} are allowed")
        while True:
            record, found, lookup = await self._read_with(group.application, winners)
            require_going_on(record, group)
            is_applied, is_current = standing(record, group.batch)
            if is_applied:
                require_origin(record, group, origin)
                if not trusts_number:
                    require_same(record, group, content)
                return
            # As of the record's revision. Once another broker has decided, winners are no longer open.
            for txn in winners:
                self._require_member(lookup, txn, group)
            if not is_current:
                # No task wrote anything, so nobody has begun the batch.
                admission = await self.admission(group, once=once, origin=origin)
                if admission is not None:
                    await self._try([admission])
                continue
            assert record is not None, "a current batch has a record"
            assert found is not None, "a current batch has a record"
            now = self._now_ms()
            if record.once:
                self._once_timer.at_latest(now)
            decided = GroupRecord(
                group.batch,
                GroupState.COMMITTED,
                now,
                record.once,
                group.batch,
                frozenset(winners),
                origin or record.origin,
                content or UNKNOWN,
                record.unknown,
            )
            if await self._try([decided.to_put(group.application, found.version)]):
                return

    async def abort(self, group: TransactionGroup, *, once: bool) -> int | None:
        """Abort every open transaction of the group, unless the group is applied.

        The batch may be tried again, except for a job that runs only `once`. Such a job refuses late attempts, because
        nobody would end their transactions before the timeout, and all readers would wait for that.

        Returns the application's last applied batch, or None. So a caller that keeps no count learns the next number.
        """
        record, found = await self._read(group.application)
        while once and (record is None or record.state is GroupState.OPEN):
            now = self._now_ms()
            self._once_timer.at_latest(now)
            unknown = NOTHING_UNKNOWN if record is None else record.unknown
            decided = GroupRecord(group.batch, GroupState.ABORTED, now, once, unknown=unknown)
            await self._try([decided.to_put(group.application, ABSENT if found is None else found.version)])
            record, found = await self._read(group.application)
        _, is_current = standing(record, group.batch)
        if is_current:
            assert record is not None, "a current batch has a record"
            await self._end_all(group.application, record, found)
            record, _ = await self._read(group.application)
        return None if record is None else record.applied

    async def has_decided(self, txn: TxnId, group: TransactionGroup) -> bool:
        """Whether the group has decided this transaction, whose header was open.

        If so, the header has the result on return.

        The record alone is no answer. It may be about a later batch already, and no longer name the winners of this
        one.
        """
        record, _ = await self._read(group.application)
        if not state_in(record, group, txn).is_final:
            return False
        await self.settle(group.application)
        return True

    async def abort_alone(self, txn: TxnId, group: TransactionGroup) -> None:
        """Abort one transaction of the group, unless the group has decided it. Its header has the result on return."""
        # One after another, because each writes the record again, which refuses all concurrent ones.
        async with self._aborting.setdefault(group.application, trio.Lock()):
            while True:
                record, found, lookup = await self._read_with(group.application, [txn])
                own = lookup(header_key(txn))
                if own is None or (header := Header.from_value(own.value)).state.is_final:
                    return
                if state_in(record, group, txn).is_final:
                    await self.settle(group.application)
                    return
                await self._write([(own, header, TxnState.ABORTED)], _undecided(group.application, record, found))

    async def abort_due(self, application: str, is_due: Callable[[Record], bool]) -> None:
        """Abort the transactions of the application that are past their deadline, together, unless they are decided.

        The headers say so on return. One by one, each abort would be a change set that writes the record again.
        `is_due` says of an open header whether it is past its deadline. Damaged headers stay as they are.
        """
        async with self._aborting.setdefault(application, trio.Lock()):
            while True:
                members, _ = await self._members(application)
                record, found = await self._read(application)
                due = [
                    (member, header, TxnState.ABORTED)
                    for member, header, group in members
                    if not state_in(record, group, txn_of_key(member.key)).is_final and is_due(member)
                ]
                if not due:
                    break
                await self._abort_all(application, due, record, found)
        await self.settle(application)

    async def settle(self, application: str) -> frozenset[str]:
        """Write the decision of the application's record into the open headers. They say so on return.

        Damaged headers stay as they are. Returns their keys.
        """
        # One after another, because all tasks of the next batch ask for this at once and would collide.
        async with self._settling.setdefault(application, trio.Lock()):
            while True:
                members, damaged = await self._members(application)
                record, _ = await self._read(application)
                ended = [
                    (member, header, state)
                    for member, header, group in members
                    if (state := state_in(record, group, txn_of_key(member.key))).is_final
                ]
                if not ended:
                    return damaged
                await self._write(ended)

    async def _members(self, application: str) -> tuple[list[tuple[Record, Header, TransactionGroup]], frozenset[str]]:
        """The application's open headers, decoded and as they are stored, and the keys of damaged ones."""
        members = []
        keys: set[str] = set()
        async for hit in self._counters.each_hit(self._metadata, BY_GROUP, *group_members(application)):
            keys.add(hit.record.key)
            with self._unreadable.reading(hit.record.key):
                txn_of_key(hit.record.key)
                header = Header.from_value(hit.record.value)
                if header.group is None or header.state.is_final:
                    raise RecordUnreadable("it is in the index of open members, and is no open member of a group")
                members.append((hit.record, header, header.group))
        return members, frozenset(keys) - {member.key for member, _, _ in members}

    async def _read(self, application: str) -> tuple[GroupRecord | None, Record | None]:
        record, found, _ = await self._read_with(application, ())
        return record, found

    async def _read_with(
        self, application: str, txns: Sequence[TxnId]
    ) -> tuple[GroupRecord | None, Record | None, Lookup]:
        """The application's record, decoded and as it is stored, and the headers of `txns`, all at one revision."""
        key = group_key(application)
        fresh = await self._metadata.fresh([key, *map(header_key, txns)])
        found = fresh.records[key]
        return None if found is None else GroupRecord.from_value(found.value), found, fresh.records.get

    def _require_member(self, lookup: Lookup, txn: TxnId, group: TransactionGroup) -> None:
        found = lookup(header_key(txn))
        header = None if found is None else Header.from_value(found.value)
        if header is None or header.group != group:
            raise TransactionNotFound(txn)
        if header.state.is_final:
            raise InvalidTxnStatus(txn, header.state, "commit")

    async def _end_all(self, application: str, record: GroupRecord, found: Record | None) -> None:
        """Abort everything open of an undecided batch. No decision can rest on the state before that."""
        while found is not None and record.state is GroupState.OPEN:
            members, _ = await self._members(application)
            if not members:
                return
            headers = [(member, header, TxnState.ABORTED) for member, header, _ in members]
            await self._abort_all(application, headers, record, found)
            again, found = await self._read(application)
            if again is None or again.batch != record.batch:
                return
            record = again

    async def _abort_all(
        self,
        application: str,
        headers: Sequence[tuple[Record, Header, TxnState]],
        record: GroupRecord | None,
        found: Record | None,
    ) -> None:
        """Abort members in parts, as long as nothing was decided. If that changed, the caller's next read shows it.

        Reading again for each part would read all members as often as there are parts.
        """
        for start in range(0, len(headers), SETTLE_BATCH_MAX):
            await self._write(headers[start : start + SETTLE_BATCH_MAX], _undecided(application, record, found))
            again, found = await self._read(application)
            if again != record:
                return

    async def _write(self, ended: Sequence[tuple[Record, Header, TxnState]], *conditions: Op) -> None:
        """End transactions with open headers. If another caller was first, the caller's next read shows it."""
        for start in range(0, len(ended), SETTLE_BATCH_MAX):
            part = ended[start : start + SETTLE_BATCH_MAX]
            now = self._now_ms()
            puts: list[Op] = [
                header.ended(state, now).to_put(txn_of_key(found.key), found.version) for found, header, state in part
            ]
            if await self._try([*puts, *conditions]):
                self._final_timer.at_latest(now)
                for _, _, state in part:
                    self._statistics.count(state)

    async def _try(self, ops: Sequence[Op]) -> bool:
        try:
            await self._metadata.commit(ops)
        except Conflict:
            return False
        return True


def _undecided(application: str, record: GroupRecord | None, found: Record | None) -> Op:
    """Goes with an abort: writes the record again, so that no decision rests on the state before the abort."""
    if record is None or found is None:
        return Check(group_key(application), ABSENT)
    return record.to_put(application, found.version)
