import anyio
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.backends import on_both_backends
from tests.support.cancellation import cancel_at_each_step
from tidewire.client.waking import Changes, Fairness, Room, Signal


@on_both_backends
async def test_a_signal_is_remembered_and_ten_calls_wake_once() -> None:
    signal = Signal()
    for _ in range(10):
        signal.set()
    await signal.wait()
    with anyio.move_on_after(0) as scope:
        await signal.wait()
    assert scope.cancelled_caught


@on_both_backends
async def test_a_signal_wakes_its_waiter() -> None:
    signal = Signal()
    woken = []

    async def waiter() -> None:
        await signal.wait()
        woken.append(1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiter)
        await anyio.wait_all_tasks_blocked()
        assert not woken
        signal.set()
    assert woken == [1]


async def test_a_cancelled_wait_consumes_no_call() -> None:
    signal = Signal()

    async def operation() -> None:
        signal.set()
        await signal.wait()

    async def check() -> None:
        with trio.move_on_after(0):
            await signal.wait()

    assert await cancel_at_each_step(operation, check) > 1
    signal.set()
    with trio.CancelScope() as scope:
        scope.cancel()
        await signal.wait()
    await signal.wait()


@on_both_backends
async def test_a_change_wakes_all_who_wait_and_none_who_come_later() -> None:
    changes = Changes()
    woken: list[int] = []

    async def waiter(number: int) -> None:
        await changes.wait()
        woken.append(number)

    changes.notify()
    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(waiter, number)
        await anyio.wait_all_tasks_blocked()
        assert woken == []
        changes.notify()
        await anyio.wait_all_tasks_blocked()
        assert sorted(woken) == [0, 1, 2]


@on_both_backends
async def test_a_loop_of_calls_lets_others_run_now_and_then() -> None:
    fairness = Fairness()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        for _ in range(10 * Fairness.EVERY):
            await fairness.checkpoint()
        tasks.cancel_scope.cancel()
    assert 5 <= turns <= 20


@on_both_backends
async def test_each_call_notices_cancellation() -> None:
    fairness = Fairness()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await fairness.checkpoint()
    assert scope.cancelled_caught


@on_both_backends
async def test_room_is_given_out_first_come_first_served() -> None:
    room = Room(messages_max=1, bytes_max=100)
    got: list[str] = []

    async def taker(name: str, size: int) -> None:
        await room.take(size)
        got.append(name)

    await room.take(60)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(taker, "large", 60)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(taker, "small", 1)
        await anyio.wait_all_tasks_blocked()
        assert got == []
        room.give_back(1, 60)
        await anyio.wait_all_tasks_blocked()
        assert got == ["large"]
        room.give_back(1, 60)
    assert got == ["large", "small"]
    assert (room.messages, room.bytes) == (1, 1)


@on_both_backends
async def test_who_would_fit_waits_behind_who_does_not() -> None:
    room = Room(messages_max=9, bytes_max=100)
    got: list[str] = []

    async def taker(name: str, size: int) -> None:
        await room.take(size)
        got.append(name)

    await room.take(60)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(taker, "large", 60)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(taker, "small", 1)
        await anyio.wait_all_tasks_blocked()
        assert got == []
        room.give_back(1, 60)
    assert sorted(got) == ["large", "small"]


@on_both_backends
async def test_a_message_larger_than_the_room_gets_in_alone() -> None:
    room = Room(messages_max=10, bytes_max=100)
    await room.take(1000)
    with anyio.move_on_after(0) as scope:
        await room.take(1)
    assert scope.cancelled_caught
    room.give_back(1, 1000)
    await room.take(1)


async def test_cancelled_takers_leave_no_trace_at_whatever_step() -> None:
    room = Room(messages_max=1, bytes_max=100)
    full = Signal()

    async def empty_it_when_someone_waits() -> None:
        while True:
            await full.wait()
            await wait_all_tasks_blocked()
            room.give_back(1, 10)

    async def operation() -> None:
        with trio.CancelScope(shield=True):
            await room.take(10)
        full.set()
        await room.take(20)
        room.give_back(1, 20)

    async def check() -> None:
        with trio.fail_after(60):
            await room.take(100)
        room.give_back(1, 100)
        assert (room.messages, room.bytes) == (0, 0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(empty_it_when_someone_waits)
        assert await cancel_at_each_step(operation, check) > 2
        nursery.cancel_scope.cancel()


async def test_room_granted_to_a_cancelled_taker_goes_to_the_next() -> None:
    room = Room(messages_max=1, bytes_max=100)
    await room.take(1)
    got = []

    async def first(scope: trio.CancelScope) -> None:
        with scope:
            await room.take(1)
            pytest.fail("it was cancelled")

    async def second() -> None:
        await room.take(1)
        got.append(2)

    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first, scope)
        await wait_all_tasks_blocked()
        nursery.start_soon(second)
        await wait_all_tasks_blocked()
        # In this order within one step: the first is cancelled before it can know that it has been served.
        scope.cancel()
        room.give_back(1, 1)
        await wait_all_tasks_blocked()
        assert got == [2]
    assert room.messages == 1
