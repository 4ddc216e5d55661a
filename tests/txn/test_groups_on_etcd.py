"""Groups of transactions on a real etcd, with two brokers whose stores share only etcd.

Broker one owns the left segment and broker two the right one, so both serve members of a group. Each learns through
etcd
what the other one does.
"""

from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import trio

from storage.entry import TxnId
from storage.metadata.etcd.store import EtcdStore
from tests.support import group_hosts
from tests.support.disk import SimulatedFiles
from tests.support.etcd import HeldBack, etcd_store, fresh_root
from tests.support.segments import Segment, SegmentHost, segment_host
from tidewire.cli.local_etcd import EtcdProcess
from txn.errors import InvalidTxnStatus, TransactionEnded, TransactionNotFound
from txn.headers import Header, TransactionGroup, header_key
from txn.states import TxnState

LEFT, RIGHT = "segment://t/n/a/0000-7fff-0", "segment://t/n/a/8000-ffff-1"
ROUNDS = 12
MANY = 130
"""More than etcd's operations in one transaction."""


class Broker(NamedTuple):
    """One of the two."""

    host: SegmentHost
    segment: Segment
    store: EtcdStore

    async def join(self, group: TransactionGroup) -> TxnId:
        txn = await self.host.coordinator.new_in_group(0, 60_000, group, once=False)
        assert txn is not None, "the group is not applied"
        return txn

    async def write(self, group: TransactionGroup, payload: bytes) -> TxnId:
        """Write one row as a new member."""
        txn = await self.join(group)
        await self.segment.publish(payload, txn)
        return txn

    async def commit(self, group: TransactionGroup, *winners: TxnId) -> bool:
        """Commit; return whether the batch is committed, now or earlier."""
        try:
            await self.host.coordinator.groups.commit(group, winners, once=False)
        except (InvalidTxnStatus, TransactionNotFound):
            return False
        return True

    async def abort(self, txn: TxnId) -> bool:
        try:
            await self.host.abort(txn)
        except InvalidTxnStatus:
            return False
        return True

    async def is_applied(self, group: TransactionGroup) -> bool:
        return await self.host.coordinator.new_in_group(0, 60_000, group, once=False) is None

    async def rows(self) -> list[bytes]:
        """Return what a reader sees, after asking where the segment ends."""
        await self.segment.buffer.caught_up()
        return await self.segment.visible()

    async def end_of(self, txn: TxnId) -> TxnState:
        """Return the state in its header, once it has ended."""
        async with self.store.watch_key(header_key(txn)) as watch:
            while True:
                record = await watch.next()
                if record is not None and (state := Header.from_value(record.value).state).is_final:
                    return state


@pytest.fixture
async def stores(etcd_server: EtcdProcess) -> AsyncIterator[tuple[EtcdStore, EtcdStore]]:
    root = fresh_root()
    async with (
        etcd_store(etcd_server.endpoint, root=root) as first,
        etcd_store(etcd_server.endpoint, root=root) as second,
    ):
        yield first, second


@pytest.fixture
async def brokers(stores: tuple[EtcdStore, EtcdStore]) -> AsyncIterator[tuple[Broker, Broker]]:
    async with segment_host(stores[0], SimulatedFiles()) as one, segment_host(stores[1], SimulatedFiles()) as two:
        yield (
            Broker(one, await one.own(LEFT), stores[0]),
            Broker(two, await two.own(RIGHT), stores[1]),
        )


async def test_of_two_drivers_one_decides_both_segments(brokers: tuple[Broker, Broker]) -> None:
    """D17: each driver names its own attempts, at its own broker, at once; both learn that the batch is applied."""
    for each in brokers:
        await each.host.start_groups()
    expected: list[list[bytes]] = [[], []]
    for batch in range(ROUNDS):
        group = TransactionGroup("app", batch)
        choices = [
            [await broker.write(group, b"%d by %d" % (batch, driver)) for broker in brokers] for driver in range(2)
        ]
        answers: list[bool] = []

        async def decide(
            broker: Broker, driver: int, group: TransactionGroup, winners: list[TxnId], answers: list[bool]
        ) -> None:
            answers.append(await broker.commit(group, *winners))

        async with trio.open_nursery() as nursery:
            for driver, broker in enumerate(brokers):
                nursery.start_soon(decide, broker, driver, group, choices[driver], answers)
        assert answers == [True, True]
        states = [[await brokers[0].end_of(txn) for txn in choice] for choice in choices]
        won = states.index([TxnState.COMMITTED] * 2)
        assert states[1 - won] == [TxnState.ABORTED] * 2
        for rows in expected:
            rows.append(b"%d by %d" % (batch, won))
    assert [await broker.rows() for broker in brokers] == expected


async def test_an_abort_of_a_winner_and_the_commit_exclude_each_other(brokers: tuple[Broker, Broker]) -> None:
    """D17, T8: they run at two brokers at once; the one that reports success has taken effect on both segments."""
    one, two = brokers
    for each in brokers:
        await each.host.start_groups()
    shown = []
    for batch in range(ROUNDS):
        group = TransactionGroup("app", batch)
        winners = [await broker.write(group, b"%d" % batch) for broker in brokers]
        answers: dict[str, bool] = {}

        async def commit(group: TransactionGroup, winners: list[TxnId], answers: dict[str, bool]) -> None:
            answers["commit"] = await one.commit(group, *winners)

        async def abort(txn: TxnId, answers: dict[str, bool], questions: int) -> None:
            # A commit asks etcd more often, so it would lose every time.
            for _ in range(questions):
                await two.store.barrier()
            answers["abort"] = await two.abort(txn)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit, group, winners, answers)
            nursery.start_soon(abort, winners[batch % 2], answers, batch % 4)
        assert answers["commit"] != answers["abort"]
        if answers["commit"]:
            shown.append(b"%d" % batch)
        else:
            # The batch is tried again, with nothing in it.
            assert await two.commit(group)
        for txn in winners:
            assert await two.end_of(txn) is (TxnState.COMMITTED if answers["commit"] else TxnState.ABORTED)
    assert await one.rows() == await two.rows() == shown


async def test_a_batch_that_is_there_is_not_written_again(brokers: tuple[Broker, Broker]) -> None:
    """D17: it is replayed at the other broker, aborted there, committed with other winners; then the next one."""
    one, two = brokers
    for each in brokers:
        await each.host.start_groups()
    first, second = TransactionGroup("app", 1), TransactionGroup("app", 2)
    winner, late = await one.write(first, b"won"), await two.write(first, b"lost")
    assert await one.commit(first, winner)
    assert await two.is_applied(first)
    assert await two.host.coordinator.groups.abort(first, once=False) == 1
    assert await two.commit(first, late)
    assert [await two.end_of(txn) for txn in (winner, late)] == [TxnState.COMMITTED, TxnState.ABORTED]
    given_up = await one.write(second, b"given up")
    assert await two.host.coordinator.groups.abort(second, once=False) == 1
    assert await one.end_of(given_up) is TxnState.ABORTED
    assert not await one.commit(second, given_up)
    assert await one.commit(second, await two.write(second, b"next"))
    assert await one.is_applied(second)
    assert (await one.rows(), await two.rows()) == ([b"won"], [b"next"])


async def test_more_members_than_one_transaction_of_etcd_takes(brokers: tuple[Broker, Broker]) -> None:
    """D17, M25: a broker that opened none of them aborts the batch, then retries and commits it."""
    one, two = brokers
    await two.host.start_groups()
    group = TransactionGroup("app", 1)
    for end in (TxnState.ABORTED, TxnState.COMMITTED):
        members: list[TxnId] = []

        async def join(members: list[TxnId] = members) -> None:
            members.append(await one.join(group))

        async with trio.open_nursery() as nursery:
            for _ in range(MANY):
                nursery.start_soon(join)
        if end is TxnState.ABORTED:
            await two.host.coordinator.groups.abort(group, once=False)
        else:
            assert await two.commit(group, *members)
        assert {await one.end_of(txn) for txn in members} == {end}


async def test_a_decision_is_told_by_another_broker_than_took_it(stores: tuple[EtcdStore, EtcdStore]) -> None:
    """D17: the deciding broker died between the record and the headers."""
    group = TransactionGroup("app", 1)
    async with segment_host(stores[1], SimulatedFiles()) as alive:
        await alive.start_groups()
        two = Broker(alive, await alive.own(RIGHT), stores[1])
        winner, loser = await two.write(group, b"won"), await two.write(group, b"lost")
        async with segment_host(stores[0], SimulatedFiles()) as dying:
            await dying.coordinator.groups.commit(group, [winner], once=False)
        assert [await two.end_of(txn) for txn in (winner, loser)] == [TxnState.COMMITTED, TxnState.ABORTED]
        assert await two.rows() == [b"won"]


async def test_a_member_of_a_broker_that_is_gone_times_out(stores: tuple[EtcdStore, EtcdStore]) -> None:
    """T9, T10, D17: another broker ends it, and the batch cannot name it; nothing of the batch is decided."""
    group = TransactionGroup("app", 1)
    dead = group_hosts.GroupHost(stores[0])
    async with group_hosts.running(group_hosts.GroupHost(stores[1])) as alive:
        slow = await dead.coordinator.new_in_group(0, 1, group, once=False)
        quick = await alive.join(group)
        assert slow is not None
        async with stores[1].watch_key(header_key(slow)) as watch:
            while (record := await watch.next()) is None or not Header.from_value(record.value).state.is_final:
                pass
        with pytest.raises(InvalidTxnStatus, match="already ABORTED"):
            await dead.commit(group, slow, quick)
        assert await dead.state(quick) is TxnState.OPEN
        await dead.commit(group, quick)
        await alive.groups.settle("app")
        assert await dead.states(slow, quick) == "ABORTED COMMITTED"


async def test_a_broker_that_is_behind_takes_nothing_more(brokers: tuple[Broker, Broker]) -> None:
    """T11, T12: it accepts no writes of winner or loser; the record tells its driver that the batch is applied."""
    one, two = brokers
    group = TransactionGroup("app", 1)
    winner, loser = await two.write(group, b"won"), await two.write(group, b"lost")
    unused = await two.join(group)
    held = HeldBack(two.store)
    assert await one.commit(group, winner)
    before = two.segment.ledger.next_position
    answers: list[object] = []

    async def publish(txn: TxnId) -> None:
        with pytest.raises(TransactionEnded):
            await two.segment.publish(b"late", txn)
        answers.append(txn)

    async def commit() -> None:
        assert await two.commit(group, loser)
        answers.append(group)

    async with trio.open_nursery() as nursery:
        for txn in (winner, loser, unused):
            nursery.start_soon(publish, txn)
        nursery.start_soon(commit)
        for _ in range(5):
            await one.store.barrier()
        assert answers == []
        held.let_go()
    assert set(answers) == {winner, loser, unused, group}
    assert two.segment.ledger.next_position == before
    assert two.segment.ended is None
    assert await two.rows() == [b"won"]


async def test_a_broker_that_is_two_batches_behind_shows_both(brokers: tuple[Broker, Broker]) -> None:
    """D17: it learns at once what the first batch decided, and that the second one has begun without winners."""
    one, two = brokers
    first, second = TransactionGroup("app", 1), TransactionGroup("app", 2)
    winner, loser = await two.write(first, b"won"), await two.write(first, b"lost")
    held = HeldBack(two.store)
    assert await one.commit(first, winner)
    following = await one.write(second, b"next")
    held.let_go()
    assert [await two.end_of(txn) for txn in (winner, loser)] == [TxnState.COMMITTED, TxnState.ABORTED]
    assert await two.rows() == [b"won"]
    assert await two.commit(second, following)
    assert await one.rows() == [b"next"]
