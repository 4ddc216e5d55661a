import anyio
import pytest

from tests.support.backends import on_both_backends
from tidewire.client.background import Background
from tidewire.client.errors import Closed


@on_both_backends
async def test_work_goes_on_while_the_program_is_cancelled_and_ends_with_the_client() -> None:
    steps: list[str] = []
    more = anyio.Event()

    async def work() -> None:
        try:
            await more.wait()
            steps.append("went on")
            await anyio.sleep_forever()
        finally:
            steps.append("ended")

    with anyio.CancelScope() as program:
        async with anyio.create_task_group() as tasks:
            background = Background(tasks)
            task = background.start(work(), "work", on_close=lambda error: steps.append(str(error)))
            await anyio.wait_all_tasks_blocked()
            program.cancel()
            with anyio.CancelScope(shield=True):
                more.set()
                await anyio.wait_all_tasks_blocked()
                assert steps == ["went on"]
                assert not task.is_finished
                await background.aclose()
                assert task.is_finished
    assert steps == ["went on", "the client was closed", "ended"]


@on_both_backends
async def test_work_can_be_ended_alone_and_is_then_not_told_of_the_close() -> None:
    told: list[Closed] = []
    async with anyio.create_task_group() as tasks:
        background = Background(tasks)
        task = background.start(anyio.sleep_forever(), "work", on_close=told.append)
        task.cancel()
        await task.wait()
        await background.aclose()
    assert told == []


@on_both_backends
async def test_after_the_close_nothing_begins() -> None:
    async with anyio.create_task_group() as tasks:
        background = Background(tasks)
        await background.aclose()
        for _ in range(2):
            with pytest.raises(Closed):
                background.start(anyio.sleep_forever(), "work")
            with pytest.raises(Closed):
                background.check_open()


@on_both_backends
async def test_a_mistake_in_it_is_not_hidden() -> None:
    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012 - out of the block
        async with anyio.create_task_group() as tasks:
            background = Background(tasks)
            background.start(work(), "work")
            await anyio.sleep_forever()
    assert raised.group_contains(ZeroDivisionError)
