"""Sweeps of several brokers: each does its part, and trusts no other broker's clock."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.ages import SKEW_MAX_MS
from storage.entry import TxnId
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, starting_with
from storage.position import Position
from tests.support.duties import Share
from txn.due_records import SWEEP_BATCH
from txn.duty import EVERYTHING, Duty, shard_name
from txn.group_record import GroupRecord, GroupState, group_key
from txn.headers import KEY_PREFIX, Header, TransactionGroup, header_key
from txn.ops import WriteOp
from txn.states import EndAction, TxnState
from txn.transactions import Transactions, TransactionSettings

TIMEOUT = 60
RETENTION = 30
HOUR = 3_600
SHARDS = 4
ALL = [shard_name(number) for number in range(SHARDS)]
ONE = TransactionGroup("app", 1)


class Host:
    """One broker's transactions, whose clock is ahead by some seconds."""

    def __init__(self, store: MemoryStore, duty: Duty, ahead: float = 0) -> None:
        self.store = store
        self._ahead = ahead
        settings = TransactionSettings(
            coordinators=SHARDS, timeout_ms_max=TIMEOUT * 1000, retention_ms=RETENTION * 1000
        )
        self.transactions = Transactions(store, settings, self.now_ms, duty)
        self.sweep = self.transactions.header_sweep(self.redrive)
        self.redriven: list[str] = []

    def now_ms(self) -> int:
        return 1_000_000_000 + round((trio.current_time() + self._ahead) * 1000)

    async def redrive(self, segment: str) -> bool:
        self.redriven.append(segment)
        return True

    async def open(self, shard: int = 0) -> TxnId:
        return await self.transactions.coordinator.new_transaction(shard, TIMEOUT * 1000)

    async def end(self, txn: TxnId) -> None:
        await self.transactions.coordinator.end(txn, EndAction.COMMIT)

    @property
    def queries(self) -> int:
        return self.transactions.counters.index_queries

    @property
    def remembered(self) -> int:
        return len(self.transactions.timeout_sweep.due) + len(self.sweep.due)


async def state(store: MemoryStore, txn: TxnId) -> TxnState | None:
    record = await store.get(header_key(txn))
    return None if record is None else Header.from_value(record.value).state


@asynccontextmanager
async def sweeping(*hosts: Host) -> AsyncIterator[None]:
    """Run the hosts' background work."""
    async with trio.open_nursery() as nursery:
        for host in hosts:
            await host.transactions.start(nursery)
            for work in (host.transactions.timeout_sweep, host.sweep, host.transactions.group_sweep):
                nursery.start_soon(work.run)
        await wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


APART = pytest.mark.parametrize("ahead", [HOUR, -HOUR, 0], ids=["ahead", "behind", "equal"])


@APART
async def test_a_wrong_clock_aborts_nothing_early_and_nothing_late(
    autojump_clock: MockClock, store: MemoryStore, ahead: int
) -> None:
    """C17, T9: the sweeper's clock is wrong by an hour; the transaction of another broker is aborted at its age."""
    opener, sweeper = Host(store, Share()), Host(store, Share(*ALL), ahead)
    async with sweeping(opener, sweeper):
        txns = [await opener.open(shard) for shard in range(SHARDS)]
        await trio.sleep(TIMEOUT - 1)
        assert {await state(store, txn) for txn in txns} == {TxnState.OPEN}
        await trio.sleep(2)
        assert {await state(store, txn) for txn in txns} == {TxnState.ABORTED}


@APART
async def test_a_wrong_clock_forgets_nothing_early_and_nothing_late(
    autojump_clock: MockClock, store: MemoryStore, ahead: int
) -> None:
    """C17, T28: likewise for the header of a finished transaction."""
    opener, sweeper = Host(store, Share()), Host(store, Share(*ALL), ahead)
    async with sweeping(opener, sweeper):
        txn = await opener.open()
        await trio.sleep(10)
        await opener.end(txn)
        await trio.sleep(RETENTION - 1)
        assert await state(store, txn) is TxnState.COMMITTED
        await trio.sleep(2)
        assert await state(store, txn) is None
        assert sweeper.remembered == 0


@APART
async def test_a_wrong_clock_keeps_the_decision_of_a_job(
    autojump_clock: MockClock, store: MemoryStore, ahead: int
) -> None:
    """C17, D17: the record of a job that runs once is removed at its age."""
    opener, sweeper = Host(store, Share()), Host(store, Share(*ALL, group_key("app")), ahead)
    groups = opener.transactions.coordinator.groups
    async with sweeping(opener, sweeper):
        txn = await opener.transactions.coordinator.new_in_group(0, TIMEOUT * 1000, ONE, once=True)
        assert txn is not None
        await trio.sleep(TIMEOUT - 10)
        await groups.commit(ONE, [txn], once=True)
        await trio.sleep(TIMEOUT - 1)
        assert await store.get(group_key("app")) is not None, "counted from the decision"
        await trio.sleep(2)
        assert await store.get(group_key("app")) is None


async def test_a_group_written_again_is_not_removed_by_its_old_age(mock_clock: MockClock, store: MemoryStore) -> None:
    """C17, C18: the watch has not yet shown the new record when the old one is due."""
    sweeper = Host(store, Share(group_key("app")))
    due = sweeper.transactions.group_sweep.due
    old = GroupRecord(1, GroupState.COMMITTED, sweeper.now_ms(), once=True, applied=1)
    await store.commit([old.to_put("app", ABSENT)])
    assert [page async for page in due.pages()] == [], "seen now"
    mock_clock.jump(TIMEOUT)
    found = await store.get(group_key("app"))
    assert found is not None
    new = GroupRecord(2, GroupState.COMMITTED, sweeper.now_ms(), once=True, applied=2)
    await store.commit([new.to_put("app", found.version)])
    assert [page async for page in due.pages()] == []
    again = await store.get(group_key("app"))
    assert again is not None
    due.shown(again)
    mock_clock.jump(TIMEOUT - 1)
    assert [page async for page in due.pages()] == []
    mock_clock.jump(1)
    assert [page async for page in due.pages()] == [[again]]


async def test_a_group_written_again_while_it_is_swept_counts_anew(mock_clock: MockClock, store: MemoryStore) -> None:
    """C17: the sweep keeps a due record for a later try, but not at the cost of its new age."""
    sweeper = Host(store, Share(group_key("app")))
    due = sweeper.transactions.group_sweep.due
    await store.commit([GroupRecord(1, GroupState.COMMITTED, sweeper.now_ms(), once=True).to_put("app", ABSENT)])
    assert [page async for page in due.pages()] == []
    mock_clock.jump(TIMEOUT)
    async for _page in due.pages():
        mock_clock.jump(10)
        found = await store.get(group_key("app"))
        assert found is not None
        due.shown(found)
    mock_clock.jump(TIMEOUT - 10)
    assert [page async for page in due.pages()] == []
    mock_clock.jump(10)
    assert [page async for page in due.pages()] == [[found]]


async def test_each_sweeps_its_own_shards(autojump_clock: MockClock, store: MemoryStore) -> None:
    """C16: two brokers, and a shard that nobody owns for the moment."""
    one, two = Host(store, Share(*ALL[:2])), Host(store, Share(ALL[2]))
    async with sweeping(one, two):
        txns = [await one.open(shard) for shard in range(SHARDS)]
        await trio.sleep(TIMEOUT + 1)
        assert [await state(store, txn) for txn in txns] == [TxnState.ABORTED] * 3 + [TxnState.OPEN]
        assert one.transactions.coordinator.statistics().aborted == 2
        assert two.transactions.coordinator.statistics().aborted == 1
        await trio.sleep(RETENTION + 1)
        assert (one.sweep.deleted, two.sweep.deleted) == (2, 1)


async def test_a_new_owner_of_a_shard_counts_anew(autojump_clock: MockClock, store: MemoryStore) -> None:
    """C17, T9, T10: what it finds is postponed by one span at most, even if the last owner did nothing."""
    last, following = Share(*ALL), Share()
    one, two = Host(store, last), Host(store, following)
    async with sweeping(one, two):
        txn = await one.open()
        await trio.sleep(TIMEOUT / 2)
        last.take(*ALL)
        following.give(*ALL)
        await trio.sleep(TIMEOUT - 1)
        assert await state(store, txn) is TxnState.OPEN
        assert one.remembered == 0
        await trio.sleep(2)
        assert await state(store, txn) is TxnState.ABORTED
        assert two.transactions.coordinator.statistics().aborted == 1


async def test_a_start_after_a_long_pause_trusts_old_stamps(autojump_clock: MockClock, store: MemoryStore) -> None:
    """C17, T9: no clock is wrong by more than the bound, so nothing that old waits for another span."""
    first = Host(store, EVERYTHING)
    txn = await first.open()
    await trio.sleep(TIMEOUT + SKEW_MAX_MS / 1000)
    async with sweeping(Host(store, Share(*ALL))):
        assert await state(store, txn) is TxnState.ABORTED


async def test_a_broker_that_is_alone_needs_no_memory_and_waits_for_nobody(
    autojump_clock: MockClock, store: MemoryStore
) -> None:
    """C17, E16, T9: after a restart it aborts what is past its deadline at once."""
    first = Host(store, EVERYTHING)
    txn, later = await first.open(), await first.open()
    await trio.sleep(TIMEOUT - 1)
    again = Host(store, Share(*ALL, is_alone=True))
    async with sweeping(again):
        assert await state(store, txn) is TxnState.OPEN
        assert again.remembered == 0
        await trio.sleep(1.1)
        assert await state(store, txn) is TxnState.ABORTED
        assert await state(store, later) is TxnState.ABORTED


async def test_a_clock_set_back_while_a_lone_broker_was_away_prolongs_nothing_by_the_step(
    autojump_clock: MockClock, store: MemoryStore
) -> None:
    """C17, E15, T9, T28: stamps of the future count from the start; a deadline moves back by one span at most."""
    before = Host(store, EVERYTHING)
    left, ended = await before.open(), await before.open()
    await before.end(ended)
    await before.transactions.coordinator.groups.commit(ONE, [], once=True)
    await trio.sleep(TIMEOUT / 2)
    again = Host(store, Share(*ALL, group_key("app"), is_alone=True), -HOUR)
    async with sweeping(again):
        later = await again.open()
        assert again.remembered == 2, "what is stamped with the true time costs no memory"
        await trio.sleep(RETENTION + 1)
        assert await state(store, ended) is None
        assert await state(store, left) is TxnState.OPEN
        await trio.sleep(TIMEOUT - RETENTION)
        assert [await state(store, txn) for txn in (left, later)] == [TxnState.ABORTED] * 2
        assert await store.get(group_key("app")) is None
        assert again.remembered == 0
        await trio.sleep(2 * RETENTION)
        assert await state(store, left) is None


async def test_a_record_of_the_future_is_swept_once_a_round(mock_clock: MockClock, store: MemoryStore) -> None:
    """C17, E7: its op records keep it until its stamp has passed, too; and what is written again counts anew."""
    before = Host(store, EVERYTHING, HOUR)
    txn = await before.open()
    await before.end(txn)
    host = Host(store, EVERYTHING)
    due = host.sweep.due
    assert [page async for page in due.pages()] == []
    found = await store.get(header_key(txn))
    assert found is not None
    mock_clock.jump(RETENTION)
    due.shown(found)
    assert [page async for page in due.pages()] == [[found]]
    assert [page async for page in due.pages()] == []
    mock_clock.jump(HOUR)
    assert [page async for page in due.pages()] == [[found]]
    assert len(due) == 0
    assert due.is_due(found)


async def test_a_second_broker_ends_the_trust_in_stamps(autojump_clock: MockClock, store: MemoryStore) -> None:
    """C17, T9: from then on, the first broker's clock, which is ahead, ends nothing early; nothing is forgotten."""
    duty = Share(*ALL, is_alone=True)
    one = Host(store, duty, HOUR)
    two = Host(store, Share())
    async with sweeping(one, two):
        before = await one.open()
        await trio.sleep(TIMEOUT / 2)
        duty.join()
        txn = await two.open()
        await trio.sleep(TIMEOUT - 1)
        assert await state(store, txn) is TxnState.OPEN
        assert await state(store, before) is TxnState.OPEN, "counted from the joining"
        await trio.sleep(2)
        assert await state(store, txn) is TxnState.ABORTED
        assert await state(store, before) is TxnState.ABORTED


async def test_a_change_of_duties_costs_one_look_at_each_index(autojump_clock: MockClock, store: MemoryStore) -> None:
    """C16, E7: and between two changes the sweeps ask the index nothing, however much they end."""
    duty = Share(*ALL[:2])
    host = Host(store, duty)
    async with sweeping(host):
        asked = host.queries
        txns = [await host.open(number % 2) for number in range(SWEEP_BATCH + 10)]
        await trio.sleep(TIMEOUT + RETENTION + 2)
        assert [await state(store, txn) for txn in txns] == [None] * len(txns)
        assert host.sweep.deleted == len(txns)
        assert host.queries == asked
        duty.give(ALL[2])
        await wait_all_tasks_blocked()
        # Deadlines, two kinds of ends, jobs that ran once, and groups to settle.
        assert host.queries == asked + 5
        assert host.remembered == 0


async def test_what_cannot_be_settled_is_tried_again_in_peace(autojump_clock: MockClock, store: MemoryStore) -> None:
    """C16, T29: a segment keeps its op record; the header's sweep comes back once a retention."""
    host = Host(store, Share(*ALL))
    async with sweeping(host):
        txn = await host.open()
        await store.commit([WriteOp(txn, "segment://public/default/x/0000-ffff-0", "c", Position(1, 0)).to_put()])
        await host.end(txn)
        await trio.sleep(10 * RETENTION + 1)
        assert 9 <= len(host.redriven) <= 10
        assert await state(store, txn) is TxnState.COMMITTED


async def test_a_duty_that_changes_within_a_sweep_loses_nothing(autojump_clock: MockClock, store: MemoryStore) -> None:
    """C16, T9: shards come and go at each page of a sweep; each transaction is aborted in the end, once."""
    shares = [Share(*ALL), Share()]
    hosts = [Host(store, share) for share in shares]
    async with sweeping(*hosts):
        for number in range(3 * SWEEP_BATCH):
            await hosts[0].open(number % SHARDS)

        async def shuffle() -> None:
            for turn in range(40):
                shard = ALL[turn % SHARDS]
                source, target = shares if shard in shares[0].keys else reversed(shares)
                source.take(shard)
                await trio.lowlevel.checkpoint()
                target.give(shard)
                for _ in range(turn):
                    await trio.lowlevel.checkpoint()

        await trio.sleep(TIMEOUT - 0.001)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shuffle)
            await trio.sleep(0.002)
        await trio.sleep(TIMEOUT + 1)
        headers = await store.scan(*starting_with(KEY_PREFIX))
        assert {Header.from_value(record.value).state for record in headers} <= {TxnState.ABORTED}
        assert sum(host.transactions.coordinator.statistics().aborted for host in hosts) == 3 * SWEEP_BATCH


async def test_a_group_written_again_while_another_broker_had_the_duty_is_forgotten(
    mock_clock: MockClock, store: MemoryStore
) -> None:
    """C17, E16: the duty comes back before a sweep has seen that it was gone."""
    share = Share(group_key("app"))
    sweeper = Host(store, share)
    due = sweeper.transactions.group_sweep.due
    await store.commit([GroupRecord(1, GroupState.COMMITTED, sweeper.now_ms(), once=True).to_put("app", ABSENT)])
    assert [page async for page in due.pages()] == []
    share.take(group_key("app"))
    found = await store.get(group_key("app"))
    assert found is not None
    await store.commit([GroupRecord(2, GroupState.COMMITTED, sweeper.now_ms(), once=True).to_put("app", found.version)])
    found = await store.get(group_key("app"))
    assert found is not None
    due.shown(found)
    share.give(group_key("app"))
    assert [page async for page in due.pages()] == []
    mock_clock.jump(TIMEOUT)
    assert [page async for page in due.pages()] == [[found]]
