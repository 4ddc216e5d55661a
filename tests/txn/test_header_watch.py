"""Every participant of a transaction is told when it ends, and nobody else."""

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.entry import TxnId
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, IndexEntry, Put
from tests.support.idle import TaskSteps
from tests.support.schedules import every_schedule
from tests.support.steered_store import LaggingStore
from txn.header_watch import HeaderWatch
from txn.headers import BY_DEADLINE, Header, header_key, v5_id
from txn.states import TxnState
from txn.transactions import Transactions, TransactionSettings

SETTINGS = TransactionSettings(coordinators=1, timeout_ms_max=10, retention_ms=10)


class Listener:
    def __init__(self) -> None:
        self.told: list[tuple[TxnId, TxnState]] = []

    def decided(self, txn: TxnId, state: TxnState) -> None:
        self.told.append((txn, state))


class Desk:
    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.watch = HeaderWatch(self.store)

    async def open(self, number: int) -> TxnId:
        txn = v5_id(0, number)
        await self.store.commit([Header(TxnState.OPEN, 10, 1).to_put(txn, ABSENT)])
        return txn

    async def end(self, txn: TxnId, state: TxnState) -> None:
        record = await self.store.get(header_key(txn))
        assert record is not None
        await self.store.commit([Header.from_value(record.value).ended(state, 2).to_put(txn, record.version)])


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    async with trio.open_nursery() as nursery:
        await nursery.start(made.watch.run)
        yield made
        nursery.cancel_scope.cancel()


async def test_those_who_joined_are_told_once_each(desk: Desk) -> None:
    """T27: a transaction has many segments; those of another one get no news."""
    first, second = await desk.open(1), await desk.open(2)
    joined = [Listener() for _ in range(11)]
    other = Listener()
    for listener in joined:
        desk.watch.join(first, listener)
    desk.watch.join(second, other)
    gone = joined.pop()
    desk.watch.leave(first, gone)
    await desk.end(first, TxnState.ABORTED)
    await wait_all_tasks_blocked()
    assert [listener.told for listener in joined] == [[(first, TxnState.ABORTED)]] * 10
    assert gone.told == other.told == []
    for listener in joined:
        desk.watch.leave(first, listener)
        desk.watch.leave(first, listener)
    assert desk.watch.transactions_joined == 1


async def test_participants_may_leave_while_they_are_told(desk: Desk) -> None:
    """T27: a participant that needs no more news leaves at once, and the others are still told."""

    class Leaving(Listener):
        def decided(self, txn: TxnId, state: TxnState) -> None:
            super().decided(txn, state)
            desk.watch.leave(txn, self)

    txn = await desk.open(1)
    joined = [Leaving() for _ in range(11)]
    for listener in joined:
        desk.watch.join(txn, listener)
    await desk.end(txn, TxnState.COMMITTED)
    await wait_all_tasks_blocked()
    assert [listener.told for listener in joined] == [[(txn, TxnState.COMMITTED)]] * 11
    assert desk.watch.transactions_joined == 0


async def test_a_header_that_opens_tells_nobody_and_one_that_goes_is_no_commit(desk: Desk) -> None:
    """T17, T19: only a header proves a commit; a participant waiting for a deleted one is told of an abort."""
    txn = v5_id(0, 5)
    listener = Listener()
    desk.watch.join(txn, listener)
    await desk.open(5)
    await wait_all_tasks_blocked()
    assert listener.told == []
    await desk.store.delete(header_key(txn))
    await wait_all_tasks_blocked()
    assert listener.told == [(txn, TxnState.ABORTED)]


@pytest.mark.parametrize(
    "damaged",
    [
        Put("/txn/id/nobody", b"{}"),
        Put(header_key(v5_id(0, 7)), b"[]", indexes=(IndexEntry(BY_DEADLINE, "soon"),)),
        Put(header_key(v5_id(0, 1)), b"{}"),
    ],
    ids=["key", "deadline", "header"],
)
async def test_a_damaged_header_ends_nothing(damaged: Put) -> None:
    """E11: participants of other transactions are told, even when the damaged record is deleted."""
    desk = Desk()
    watch = HeaderWatch(desk.store)
    watch.attach(Transactions(desk.store, SETTINGS, lambda: 0).timeout_sweep.due)
    async with trio.open_nursery() as nursery:
        await nursery.start(watch.run)
        first, second = await desk.open(1), await desk.open(2)
        listener = Listener()
        for txn in (first, second):
            watch.join(txn, listener)
        await desk.store.commit([damaged])
        await wait_all_tasks_blocked()
        await desk.store.delete(damaged.key)
        await desk.end(second, TxnState.COMMITTED)
        await wait_all_tasks_blocked()
        assert (second, TxnState.COMMITTED) in listener.told
        assert (first, TxnState.COMMITTED) not in listener.told
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("store", [MemoryStore, LaggingStore])
async def test_catching_up_needs_no_watch(store: type[MemoryStore]) -> None:
    """T27, D5: reading the header suffices, whatever happened to watch and image; an open header is no decision."""
    desk = Desk(store())
    ended, still_open = await desk.open(1), await desk.open(2)
    listener = Listener()
    missing = v5_id(0, 99)
    for txn in (ended, still_open, missing):
        desk.watch.join(txn, listener)
    # What the image shows until the next barrier.
    await desk.store.barrier()
    await desk.end(ended, TxnState.COMMITTED)
    await desk.watch.catch_up([ended, still_open, missing])
    assert listener.told == [(ended, TxnState.COMMITTED), (missing, TxnState.ABORTED)]


@every_schedule(examples_max=40)
async def test_joining_an_open_transaction_never_misses_its_end() -> None:
    """T27: in any task order, a participant that joined before the header changed is told."""
    desk = Desk()
    async with trio.open_nursery() as nursery:
        await nursery.start(desk.watch.run)
        txns = [await desk.open(number) for number in range(3)]
        listeners = [Listener() for _ in txns]
        for txn, listener in zip(txns, listeners, strict=True):
            desk.watch.join(txn, listener)
        async with trio.open_nursery() as ending:
            for txn in txns:
                ending.start_soon(desk.end, txn, TxnState.COMMITTED)
        await wait_all_tasks_blocked()
        for txn, listener in zip(txns, listeners, strict=True):
            assert listener.told == [(txn, TxnState.COMMITTED)]
        nursery.cancel_scope.cancel()


async def test_an_idle_watch_is_not_scheduled(desk: Desk) -> None:
    """T16: other records do not wake it."""
    desk.watch.join(await desk.open(1), Listener())
    await wait_all_tasks_blocked()
    with TaskSteps() as steps:
        await desk.store.put("/elsewhere", b"")
        await wait_all_tasks_blocked()
        assert steps.of("HeaderWatch.run") == 0
