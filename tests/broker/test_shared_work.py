"""Two and three brokers share the work that no client asks for, and trust no other broker's clock."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster.assignments import ASSIGNMENTS
from broker.cluster.membership import Membership
from broker.cluster.placement import preferred
from broker.layouts.parts import StartPosition
from broker.names import TopicName
from broker.retention import Retention
from broker.retention_policies import topic_key
from storage.clock import WallClock
from storage.entry import TxnId
from storage.ledger_chain import ManagedLedgerConfig
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Op, Put, Session, starting_with
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import FOLDER
from tests.support.rooms import TOPIC, Rooms, moving_clock, publish, rooms, subscribe
from tests.support.steered_store import SteeredStore
from txn.group_record import group_key
from txn.headers import Header, TransactionGroup, header_key
from txn.ops import KEY_PREFIX as OPS
from txn.states import EndAction, TxnState

BROKERS = ("left", "right", "third")
TIMEOUT = 60
RETENTION = 30
HOUR = 3_600
SHARDS = range(16)
PLAIN = TopicName.parse("persistent://public/default/plain")


def clock_ahead(seconds: float) -> WallClock:
    right = moving_clock()
    return lambda: right() + round(seconds * 1000)


@asynccontextmanager
async def working(
    store: MemoryStore, files: SimulatedFiles, broker_id: str, *, ahead: float = 0, segment_retention_seconds: int = 0
) -> AsyncIterator[Rooms]:
    """Run a registered broker with the background work of transactions. The end is its death."""
    async with (
        rooms(
            store,
            files,
            clock=clock_ahead(ahead),
            broker_id=broker_id,
            txn_retention_seconds=RETENTION,
            txn_timeout_seconds_max=TIMEOUT,
            segment_retention_seconds=segment_retention_seconds,
        ) as made,
        trio.open_nursery() as nursery,
    ):
        made.services = replace(made.services, ledger_config=ManagedLedgerConfig(ledger_bytes_max=60))
        made.services = replace(made.services, ledger_config=ManagedLedgerConfig(ledger_bytes_max=60))
        await made.register()
        sweeps = (made.transactions.timeout_sweep, made.header_sweep, made.transactions.group_sweep)
        for work in (made.shards, made.handover, *sweeps):
            nursery.start_soon(work.run)
        await wait_all_tasks_blocked()
        yield made
        nursery.cancel_scope.cancel()


async def registered(store: MemoryStore, broker_id: str) -> Session:
    """Register a broker that does nothing, as one that is stopped."""
    session = await store.open_session(10)
    membership = Membership(
        store,
        broker_id=broker_id,
        folder_id=FOLDER,
        lock_name=broker_id,
        service_url=f"pulsar://{broker_id}:6650",
        http_url="http://x",
        release="test",
    )
    await membership.register(session, timeout_seconds=10)
    return session


async def states(store: MemoryStore, txns: Sequence[TxnId]) -> list[TxnState | None]:
    records = [await store.get(header_key(txn)) for txn in txns]
    return [None if record is None else Header.from_value(record.value).state for record in records]


async def open_everywhere(broker: Rooms) -> list[TxnId]:
    return [await broker.coordinator.new_transaction(shard, TIMEOUT * 1000) for shard in SHARDS]


def aborted(*brokers: Rooms) -> int:
    return sum(broker.coordinator.statistics().aborted for broker in brokers)


def settled(broker: Rooms) -> int:
    statistics = broker.coordinator.statistics()
    return statistics.committed + statistics.aborted


def forgotten(*brokers: Rooms) -> int:
    return sum(broker.header_sweep.deleted for broker in brokers)


@pytest.mark.parametrize("ahead", [(HOUR, 0, 0), (0, HOUR, -HOUR), (-HOUR, HOUR, 0)])
async def test_a_wrong_clock_ends_nothing_early(autojump_clock: MockClock, ahead: tuple[int, int, int]) -> None:
    """C16, C17, T9, T28: each transaction is aborted at its age and forgotten at its age, once, by some broker."""
    store = MemoryStore()
    async with AsyncExitStack() as stack:
        brokers = [
            await stack.enter_async_context(working(store, SimulatedFiles(seed=1), name, ahead=seconds))
            for name, seconds in zip(BROKERS, ahead, strict=True)
        ]
        txns = [txn for broker in brokers for txn in await open_everywhere(broker)]
        await trio.sleep(TIMEOUT - 1)
        assert set(await states(store, txns)) == {TxnState.OPEN}
        await trio.sleep(2)
        assert set(await states(store, txns)) == {TxnState.ABORTED}
        assert aborted(*brokers) == len(txns)
        assert all(aborted(broker) for broker in brokers), "each did a part"
        await trio.sleep(RETENTION - 3)
        assert set(await states(store, txns)) == {TxnState.ABORTED}
        await trio.sleep(4)
        assert set(await states(store, txns)) == {None}
        assert forgotten(*brokers) == len(txns)


async def test_the_work_of_a_dead_broker_is_done_by_the_others(autojump_clock: MockClock) -> None:
    """C16, C17, T10: it dies before the deadline and comes back behind it, with a clock that is ahead."""
    store, files = MemoryStore(), SimulatedFiles(seed=2)
    async with working(store, SimulatedFiles(seed=1), "left") as left:
        async with working(store, files, "right", ahead=HOUR) as right:
            txns = await open_everywhere(right)
            await trio.sleep(TIMEOUT / 2)
        await trio.sleep(TIMEOUT / 2 - 1)
        assert set(await states(store, txns)) == {TxnState.OPEN}
        # What the dead one owned is postponed by less than one span.
        await trio.sleep(TIMEOUT / 2 + 2)
        assert set(await states(store, txns)) <= {TxnState.ABORTED, None}
        assert aborted(left) == len(txns)
        async with working(store, files.kill(), "right", ahead=HOUR) as again:
            later = await open_everywhere(left)
            await trio.sleep(TIMEOUT - 1)
            assert set(await states(store, later)) == {TxnState.OPEN}
            await trio.sleep(2)
            assert set(await states(store, later)) == {TxnState.ABORTED}
            assert aborted(left, again) - len(txns) == len(later)
            assert aborted(again)


async def test_members_that_change_in_the_middle_of_a_sweep(autojump_clock: MockClock) -> None:
    """C16, T9, T10: brokers come and go at each change set of it. All is aborted and forgotten, and once."""
    store = SteeredStore()
    async with (
        working(store, SimulatedFiles(seed=1), "left") as left,
        working(store, SimulatedFiles(seed=2), "right") as right,
        trio.open_nursery() as nursery,
    ):
        others: list[Rooms] = []
        names = iter(["n0", "n1", "n2"])
        txns = [*await open_everywhere(left), *await open_everywhere(right)]

        async def come_and_go(name: str) -> None:
            async with working(store, SimulatedFiles(seed=3), name) as other:
                others.append(other)
                await trio.sleep(1)

        async def disturb(ops: Sequence[Op]) -> None:
            is_abort = any(isinstance(op, Put) and op.key.startswith("/txn/id/") for op in ops)
            if is_abort and (name := next(names, None)) is not None:
                nursery.start_soon(come_and_go, name)
                await trio.sleep(0.3)

        await trio.sleep(TIMEOUT - 1)
        store.before = disturb
        await trio.sleep(2 * TIMEOUT)
        assert len(others) == 3
        store.before = None
        await trio.sleep(2 * RETENTION)
        assert set(await states(store, txns)) == {None}
        assert aborted(left, right, *others) == forgotten(left, right, *others) == len(txns)


async def test_one_broker_settles_each_group(autojump_clock: MockClock) -> None:
    """C16, D17: the one that the hash prefers, whoever decided."""
    store = SteeredStore()
    apps = [f"app{number}" for number in range(6)]
    assert {preferred(group_key(app), BROKERS[:2]) for app in apps} == set(BROKERS[:2])
    async with (
        working(store, SimulatedFiles(seed=1), "left") as left,
        working(store, SimulatedFiles(seed=2), "right") as right,
    ):
        for app in apps:
            group = TransactionGroup(app, 1)
            winner = await left.coordinator.new_in_group(0, 1000, group, once=False)
            loser = await left.coordinator.new_in_group(0, 1000, group, once=False)
            assert winner is not None
            assert loser is not None
            before = settled(left), settled(right)
            await left.coordinator.groups.commit(group, [winner], once=False)
            await wait_all_tasks_blocked()
            is_right = preferred(group_key(app), BROKERS[:2]) == "right"
            assert (settled(left) - before[0], settled(right) - before[1]) == ((0, 2) if is_right else (2, 0))
            assert await states(store, [winner, loser]) == [TxnState.COMMITTED, TxnState.ABORTED]


async def test_a_group_whose_broker_dies_is_settled_by_another(autojump_clock: MockClock) -> None:
    """C16, D17: the preferred broker is registered and stopped, so the headers wait until its session ends."""
    store = SteeredStore()
    app = next(name for name in map(str, range(99)) if preferred(group_key(name), BROKERS[:2]) == "right")
    async with working(store, SimulatedFiles(seed=1), "left") as left:
        stopped = await registered(store, "right")
        group = TransactionGroup(app, 1)
        winner = await left.coordinator.new_in_group(0, 50_000, group, once=False)
        loser = await left.coordinator.new_in_group(0, 50_000, group, once=False)
        assert winner is not None
        assert loser is not None
        await left.coordinator.groups.commit(group, [winner], once=False)
        await wait_all_tasks_blocked()
        assert await states(store, [winner, loser]) == [TxnState.OPEN, TxnState.OPEN]
        await stopped.close()
        await wait_all_tasks_blocked()
        assert await states(store, [winner, loser]) == [TxnState.COMMITTED, TxnState.ABORTED]


async def test_a_sweep_takes_no_ownership(autojump_clock: MockClock) -> None:
    """C16, T29: the op record of a segment that nobody owns is applied by the broker that should own the segment."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with rooms(store, files, broker_id="third") as third:
        await third.controller.create_topic(TOPIC, 1, {})
        await subscribe(third, "s", StartPosition.EARLIEST)
        name = await third.segment(TOPIC, 0)
        segment = await third.topics.get(name)
        txn = await third.coordinator.new_transaction(0, TIMEOUT * 1000)
        await publish(segment, b"a", txn)
    async with (
        working(store, files.process(), "left") as left,
        working(store, files.process(), "right") as right,
    ):
        assert len(await store.scan(*starting_with(OPS))) == 1
        await left.coordinator.end(txn, EndAction.COMMIT)
        await trio.sleep(RETENTION + 1)
        by_name = {"left": left, "right": right}
        candidate = by_name.pop(preferred(str(TOPIC), list(by_name)) or "")
        (other,) = by_name.values()
        assert other.opened == [], "whatever the shard's owner is"
        assert candidate.opened == [name]
        assert await store.scan(*starting_with(ASSIGNMENTS)) == [], "the claim has used it up"
        assert await store.scan(*starting_with(OPS)) == []
        await trio.sleep(RETENTION + 1)
        assert await states(store, [txn]) == [None]
        assert other.opened == []


async def test_a_clock_ahead_trims_nothing_early(autojump_clock: MockClock) -> None:
    """C17, E18: the next owner's clock is ahead by an hour; the policy keeps acknowledged messages for ten minutes."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with working(store, files, "left") as left:
        topic = await left.topics.get(PLAIN)
        for number in range(8):
            await publish(topic, b"%d" % number)
            await wait_all_tasks_blocked()
        assert len(topic.ledger.closed) >= 2
        await left.retention.store(topic_key(PLAIN), Retention(10, -1))
    async with working(store, files.process(), "right", ahead=HOUR) as right:
        topic = await right.topics.get(PLAIN)
        await trio.sleep(100)
        assert topic.ledger.first_index == 0
        topic.clients.touch()
        with topic.clients.held():
            await trio.sleep(10 * 60)
        assert topic.ledger.first_index > 0


async def test_a_clock_ahead_prunes_nothing_early(autojump_clock: MockClock) -> None:
    """C17: the next owner's clock is ahead by an hour; a replaced segment is kept for ten minutes, and not longer."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with working(store, files, "left", segment_retention_seconds=600) as left:
        await left.controller.create_topic(TOPIC, 1, {})
        await subscribe(left, "s")
        await left.controller.split(TOPIC, 0)
    async with (
        working(store, files.process(), "right", ahead=HOUR, segment_retention_seconds=600) as right,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(right.pruner.run)
        await trio.sleep(590)
        assert 0 in (await right.layouts.get(TOPIC)).segments
        await trio.sleep(20)
        assert 0 not in (await right.layouts.get(TOPIC)).segments
        nursery.cancel_scope.cancel()
