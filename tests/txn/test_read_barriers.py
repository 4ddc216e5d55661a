"""Which barrier a publish must wait for. It depends on when the publish arrived and when the barrier began."""

import trio
from trio.testing import wait_all_tasks_blocked

from storage.metadata.memory import MemoryStore
from tests.support.cancellation import cancel_at_each_step
from tests.support.steered_store import LaggingStore
from txn.read_barriers import ReadBarriers


class HeldStore(LaggingStore):
    """Barriers pass when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[trio.Event] = []

    async def barrier(self) -> int:
        event = trio.Event()
        self.held.append(event)
        await event.wait()
        return await super().barrier()


class CountingStore(MemoryStore):
    """Counts the barriers of a store whose image is never stale."""

    def __init__(self) -> None:
        super().__init__()
        self.barriers = 0

    async def barrier(self) -> int:
        self.barriers += 1
        return await super().barrier()


async def test_one_that_began_before_is_not_enough(nursery: trio.Nursery) -> None:
    """D5: with two barriers in progress, the first one is too old for a publish that arrived between their starts."""
    store = HeldStore()
    barriers = ReadBarriers(store)
    passed: list[str] = []

    async def wait(name: str, number: int) -> None:
        await barriers.wait_passed(number)
        passed.append(name)

    nursery.start_soon(wait, "early", barriers.next())
    await wait_all_tasks_blocked()
    late = barriers.next()
    nursery.start_soon(wait, "late", late)
    await wait_all_tasks_blocked()
    store.held[0].set()
    await wait_all_tasks_blocked()
    assert passed == ["early"]
    nursery.start_soon(wait, "as late", late)
    await wait_all_tasks_blocked()
    assert passed == ["early"], "it has begun and not passed"
    for event in store.held:
        event.set()
    await wait_all_tasks_blocked()
    assert sorted(passed) == ["as late", "early", "late"]


async def test_a_later_one_serves_who_arrived_before_it(nursery: trio.Nursery) -> None:
    """D5: this holds whichever passes first."""
    store = HeldStore()
    barriers = ReadBarriers(store)
    early = barriers.next()
    nursery.start_soon(barriers.wait_passed, early)
    await wait_all_tasks_blocked()
    nursery.start_soon(barriers.wait_passed, barriers.next())
    await wait_all_tasks_blocked()
    store.held[1].set()
    await wait_all_tasks_blocked()
    with trio.fail_after(1):
        await barriers.wait_passed(early)
    store.held[0].set()


async def test_one_that_was_cancelled_served_nobody() -> None:
    """D5: at any step; the next caller begins another one."""
    store = LaggingStore()
    barriers = ReadBarriers(store)
    number = barriers.next()

    async def operation() -> None:
        nonlocal number
        number = barriers.next()
        await barriers.wait_passed(number)

    async def check() -> None:
        before = store.barriers
        await barriers.wait_passed(barriers.next())
        assert store.barriers == before + 1

    assert await cancel_at_each_step(operation, check) > 1


async def test_a_store_that_decides_in_this_process_is_asked_too() -> None:
    """C4: its barrier says whether it still decides."""
    store = CountingStore()
    barriers = ReadBarriers(store)
    for asked in (1, 2):
        await barriers.wait_passed(barriers.next())
        assert store.barriers == asked


async def test_publishes_that_go_on_in_one_step_share_a_barrier(nursery: trio.Nursery) -> None:
    """C4: it began after all of them arrived. Where nothing has to be waited for, one look at the fence is enough."""
    store = CountingStore()
    barriers = ReadBarriers(store)
    arrived = barriers.next()
    for _ in range(10):
        nursery.start_soon(barriers.wait_passed, arrived)
    await wait_all_tasks_blocked()
    assert store.barriers == 1
