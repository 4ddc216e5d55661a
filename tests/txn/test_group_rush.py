"""Groups of transactions with many concurrent steps, and brokers that lag."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.entry import TxnId
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Op
from tests.support.group_hosts import GroupHost, running
from tests.support.steered_store import SteeredStore
from txn.errors import InvalidTxnStatus
from txn.headers import TransactionGroup, header_key
from txn.states import EndAction, TxnState

ONE, TWO = TransactionGroup("app", 1), TransactionGroup("app", 2)


class Listener:
    def __init__(self) -> None:
        self.told: list[TxnState] = []

    def decided(self, txn: TxnId, state: TxnState) -> None:
        self.told.append(state)


async def test_a_watch_that_is_behind_tells_winners_that_they_won(autojump_clock: MockClock) -> None:
    """T27, D17: the watch reaches a winner's start when the next batch has begun, so the last one is over."""
    async with running(GroupHost(MemoryStore())) as host:
        elsewhere = await host.coordinator.new_transaction(0, 60_000)
        others = [Listener() for _ in range(1000)]
        for listener in others:
            host.transactions.headers.join(elsewhere, listener)
        await wait_all_tasks_blocked()
        await host.coordinator.end(elsewhere, EndAction.COMMIT)
        winner, loser = await host.join(ONE), await host.join(ONE)
        listeners = [Listener(), Listener()]
        for txn, listener in zip((winner, loser), listeners, strict=True):
            host.transactions.headers.join(txn, listener)
        await host.commit(ONE, winner)
        await host.join(TWO)
        assert not all(listener.told for listener in others), "it is behind"
        await wait_all_tasks_blocked()
        assert [listener.told for listener in listeners] == [[TxnState.COMMITTED], [TxnState.ABORTED]]


class SlowStore(MemoryStore):
    """Barriers take as long as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = trio.Event()
        self.answer = trio.Event()
        self.answer.set()

    async def barrier(self) -> int:
        """Wait as the contract says, but perhaps longer."""
        if not self.answer.is_set():
            self.asked.set()
            await self.answer.wait()
        return await super().barrier()


@pytest.mark.parametrize("action", EndAction)
async def test_an_end_that_is_overtaken_by_two_batches_is_told_what_was_decided(action: EndAction) -> None:
    """T7, D17: the next batch's record does not name this batch's winners; the headers do."""
    store = SlowStore()
    slow = GroupHost(store)
    winner = await slow.join(ONE)
    answers: list[str] = []

    async def end() -> None:
        try:
            await slow.coordinator.end(winner, action)
        except InvalidTxnStatus as refused:
            answers.append(str(refused).partition("already ")[2])
        else:
            answers.append("done")

    async with trio.open_nursery() as nursery:
        store.answer = trio.Event()
        nursery.start_soon(end)
        await store.asked.wait()
        held, store.answer = store.answer, trio.Event()
        store.answer.set()
        quick = GroupHost(store)
        await quick.commit(ONE, winner)
        await quick.join(TWO)
        assert await quick.state(winner) is TxnState.COMMITTED
        held.set()
    assert answers == [{EndAction.ABORT: "COMMITTED", EndAction.COMMIT: "done"}[action]]
    assert (await store.get(header_key(winner))) is not None


async def test_a_commit_that_is_asked_for_twice_at_once_is_answered_twice(autojump_clock: MockClock) -> None:
    """D17: a driver that lost its connection repeats the request, perhaps at another broker, during the decision."""
    for turns in range(12):
        store = MemoryStore()
        async with running(GroupHost(store)) as one, running(GroupHost(store)) as other, trio.open_nursery() as asking:
            winners = [await one.join(ONE) for _ in range(20)]
            asking.start_soon(one.commit, ONE, *winners)
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            asking.start_soon(other.commit, ONE, *winners)


async def test_tasks_that_fail_together_abort_at_a_change_set_each(autojump_clock: MockClock) -> None:
    """D17: at two brokers, with a slow store, each abort rewrites the group's record."""
    store = SteeredStore()
    hosts = GroupHost(store), GroupHost(store)
    members = [await hosts[0].join(ONE) for _ in range(60)]
    asked = store.commits

    async def sync(ops: Sequence[Op]) -> None:
        await trio.sleep(0.01)

    store.before = sync
    async with trio.open_nursery() as tasks:
        for number, txn in enumerate(members):
            tasks.start_soon(hosts[number % 2].coordinator.end, txn, EndAction.ABORT)
    assert {await hosts[0].state(txn) for txn in members} == {TxnState.ABORTED}
    assert store.commits - asked <= 2 * len(members)
