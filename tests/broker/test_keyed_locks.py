"""Locks by key: first come, first served, and no lock is left behind."""

import trio
from trio.testing import wait_all_tasks_blocked

from broker.keyed_locks import KeyedLocks


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
