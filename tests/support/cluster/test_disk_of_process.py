"""A process of a simulated cluster stops, ends and pauses between two operations of its disk."""

from pathlib import Path
from random import Random

import pytest
import trio

from storage.files import AlreadyLocked
from tests.support.cluster.disk_of_process import Moment, ProcessEnded, ProcessFiles
from tests.support.cluster.stopping import Process
from tests.support.cluster.transcripts import run
from tests.support.disk import SimulatedFiles

FOLDER = Path("/data")


def make(disk: SimulatedFiles, process: Process) -> ProcessFiles:
    disk.make_dir(FOLDER)
    return ProcessFiles(disk, process, Random(1))


def write_three(files: ProcessFiles) -> None:
    file = files.open(FOLDER / "a", create=True)
    for number in range(3):
        file.write_at(number, b"x")


def test_a_process_stops_in_the_middle_of_a_call() -> None:
    async def main() -> None:
        disk, process = SimulatedFiles(), Process()
        files = make(disk, process)
        files.at(Moment("write", "a", 3), process.stop)
        async with trio.open_nursery() as nursery:
            process.start_soon(nursery, files.run, write_three, files)
            await trio.sleep(10)
            assert disk.content(FOLDER / "a") == b"xx"
            process.go_on()
        assert disk.content(FOLDER / "a") == b"xxx"

    run(main)


def test_a_process_that_ends_writes_nothing_more_and_holds_no_lock() -> None:
    async def main() -> None:
        disk, process = SimulatedFiles(), Process()
        files = make(disk, process)
        files.lock(FOLDER / "lock")
        with pytest.raises(AlreadyLocked):
            disk.lock(FOLDER / "lock")
        files.at(Moment("write", "a", 2), files.end)
        with pytest.raises(ProcessEnded):
            await files.run(write_three, files)
        assert disk.content(FOLDER / "a") == b"x"
        disk.lock(FOLDER / "lock").close()

    run(main)


def test_others_work_while_a_call_pauses() -> None:
    async def main() -> None:
        disk, process = SimulatedFiles(), Process()
        files = make(disk, process)
        files.pauses, files.latency_max = 1.0, 1.0
        sizes: set[int] = set()

        async def look() -> None:
            while True:
                await trio.sleep(0.01)
                if disk.exists(FOLDER / "a"):
                    sizes.add(len(disk.content(FOLDER / "a")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await files.run(write_three, files)
            nursery.cancel_scope.cancel()
        assert {0, 1, 2} <= sizes

    run(main)
