"""How decisions with many steps are applied, and who waits for them."""

from collections.abc import Iterator

import trio
from trio.testing import wait_all_tasks_blocked

from storage.entry import TxnId
from txn.pending_decisions import PendingDecisions
from txn.pending_transaction import PendingTransaction

ONE, TWO = PendingTransaction(TxnId(0, 1)), PendingTransaction(TxnId(0, 2))


async def test_decisions_take_turns() -> None:
    """E7: the first step is made at once. A small decision does not wait for a large one."""
    decisions = PendingDecisions()
    made: list[str] = []

    def steps(name: str, count: int) -> Iterator[None]:
        for _ in range(count - 1):
            made.append(name)
            yield
        made.append(name)

    assert decisions.begin(PendingTransaction(TxnId(0, 3)), steps("small", 1))
    assert not decisions.begin(ONE, steps("one", 4))
    assert not decisions.begin(TWO, steps("two", 2))
    assert made == ["small", "one", "two"]
    applied: list[PendingTransaction] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(decisions.run, applied.append)
        await decisions.wait_applied()
        assert applied == [TWO, ONE]
        assert made == ["small", "one", "two", "one", "two", "one", "one"]
        nursery.cancel_scope.cancel()


async def test_nobody_waits_for_a_decision_that_is_not_applied_here() -> None:
    """D1: the subscription ended in between. Its next owner applies the decision."""
    decisions = PendingDecisions()
    applied: list[PendingTransaction] = []
    decisions.begin(ONE, iter([None] * 1_000))
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as task:
            task.start_soon(decisions.run, applied.append)
            nursery.start_soon(decisions.wait_applied)
            await trio.lowlevel.checkpoint()
            task.cancel_scope.cancel()
        with trio.fail_after(1):
            await wait_all_tasks_blocked()
            await decisions.wait_applied()
        assert not nursery.child_tasks
    assert not applied
