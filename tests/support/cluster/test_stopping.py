"""Processes of a simulated cluster stop as by SIGSTOP."""

import pytest
import trio

from tests.support.cluster.stopping import Process
from tests.support.cluster.transcripts import run


def test_a_stopped_process_makes_no_step() -> None:
    """Its tasks, and those that they started, go on where they were. Others go on all the time."""

    async def main() -> None:
        process = Process()
        steps: list[str] = []

        async def count(name: str) -> None:
            while True:
                await trio.sleep(1)
                steps.append(name)

        async def two() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(count, "own")
                nursery.start_soon(count, "own")

        async with trio.open_nursery() as nursery:
            process.start_soon(nursery, two)
            nursery.start_soon(count, "other")
            await trio.sleep(2.5)
            process.stop()
            assert steps.count("own") == 4
            await trio.sleep(5)
            assert (steps.count("own"), steps.count("other")) == (4, 7)
            process.go_on()
            await trio.sleep(0.1)
            assert steps.count("own") == 6
            nursery.cancel_scope.cancel()

    run(main)


def test_a_timeout_of_a_stopped_process_comes_when_it_goes_on() -> None:
    async def main() -> None:
        process = Process()
        ended: list[float] = []

        async def wait() -> None:
            with trio.move_on_after(1):
                await trio.sleep_forever()
            ended.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            process.start_soon(nursery, wait)
            await trio.sleep(0.5)
            process.stop()
            await trio.sleep(4)
            process.go_on()
        assert ended == [pytest.approx(4.5)]

    run(main)


def test_what_is_sent_to_a_stopped_process_waits_for_it() -> None:
    async def main() -> None:
        process = Process()
        send, receive = trio.open_memory_channel[int](10)
        found: list[int] = []

        async def read() -> None:
            found.extend([await receive.receive() for _ in range(3)])

        async with trio.open_nursery() as nursery:
            process.start_soon(nursery, read)
            await trio.sleep(1)
            process.stop()
            for number in range(3):
                await send.send(number)
            await trio.sleep(1)
            assert found == []
            process.go_on()
        assert found == [0, 1, 2]

    run(main)


def test_an_error_of_a_task_reaches_its_nursery() -> None:
    async def main() -> None:
        process = Process()

        async def fail() -> None:
            await trio.sleep(1)
            raise KeyError("as it should")

        with pytest.RaisesGroup(KeyError):
            async with trio.open_nursery() as nursery:
                process.start_soon(nursery, fail)

    run(main)
