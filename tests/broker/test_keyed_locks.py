"""Locks by key: first come, first served, and no lock is left behind."""

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.keyed_locks import InterruptibleLocks, KeyedLocks


async def test_one_task_at_a_time_for_each_key() -> None:
    locks: KeyedLocks[str] = KeyedLocks()
    order: list[str] = []
    go = trio.Event()

    async def take(key: str, name: str) -> None:
        async with locks.hold(key):
            order.append(f"{name} begins")
            await go.wait()
            order.append(f"{name} ends")

    async with trio.open_nursery() as nursery:
        for key, name in (("a", "a1"), ("a", "a2"), ("b", "b1")):
            nursery.start_soon(take, key, name)
            await wait_all_tasks_blocked()
        assert order == ["a1 begins", "b1 begins"]
        assert len(locks) == 2
        go.set()
    assert order.index("a1 ends") < order.index("a2 begins")
    assert len(locks) == 0


async def test_keys_are_forgotten_when_their_users_are_cancelled() -> None:
    locks: KeyedLocks[str] = KeyedLocks()

    async def take() -> None:
        async with locks.hold("a"):
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert len(locks) == 0


async def test_a_lock_that_is_seized_interrupts_its_holder_and_who_waits_before(autojump_clock: MockClock) -> None:
    """E13: and nobody else. Whoever comes later gets the lock afterwards."""
    locks: InterruptibleLocks[str] = InterruptibleLocks(lambda key: ValueError(f"{key} was seized"))
    order: list[str] = []

    async def hang(key: str, name: str) -> None:
        try:
            async with locks.hold(key):
                order.append(f"{name} holds")
                await trio.sleep_forever()
        except ValueError as error:
            order.append(f"{name}: {error}")

    async def seize(name: str, seconds: float) -> None:
        async with locks.seize("a"):
            order.append(f"{name} seizes")
            await trio.sleep(seconds)
            order.append(f"{name} is done")

    with trio.move_on_after(1):
        async with trio.open_nursery() as nursery:
            for key, name in (("a", "a1"), ("a", "a2"), ("b", "b1")):
                nursery.start_soon(hang, key, name)
                await wait_all_tasks_blocked()
            for name in ("first", "second"):
                nursery.start_soon(seize, name, 0.01)
                await wait_all_tasks_blocked()
            nursery.start_soon(hang, "a", "late")
    assert order == [
        *("a1 holds", "b1 holds", "a1: a was seized", "a2: a was seized"),
        *("first seizes", "first is done", "second seizes", "second is done", "late holds"),
    ]
    assert len(locks) == 0


async def test_a_block_that_ends_as_it_is_interrupted_is_done() -> None:
    locks: InterruptibleLocks[str] = InterruptibleLocks(ValueError)

    async def seize() -> None:
        async with locks.seize("a"):
            pass

    async with trio.open_nursery() as nursery, locks.hold("a"):
        nursery.start_soon(seize)
        with trio.CancelScope(shield=True):
            await wait_all_tasks_blocked()
