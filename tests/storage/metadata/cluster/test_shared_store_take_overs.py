"""A process is stopped or killed inside a take-over, or its log file, and another one goes on."""

from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock

from storage.metadata.cluster.deadlines import beat_seconds
from storage.metadata.cluster.playing import SECOND_LOOK_SECONDS
from storage.metadata.cluster.roles import Role
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.epochs import MetadataEpochs
from storage.metadata.store import MetadataStore, Put, PutSequential, Record, starting_with
from storage.metadata.take_over import take_over
from tests.support.metadata_log import DATA, DIRECTORY
from tests.support.shared_stores import TIMEOUT, Brokers, brokers
from tests.support.stepped_files import SteppedFiles

LARGE = [Put(f"/large/{number}", bytes(100_000)) for number in range(9)]
"""A change set of several pieces, each with a sync of its own."""


def hold_at(them: Brokers, name: str, step: int, *, role: Role, is_killed: bool = False) -> trio.Event:
    """Stop or kill a process before so many operations of its disk in this role. The event says that it is there."""
    files = them.files[name]
    assert isinstance(files, SteppedFiles)
    held = trio.Event()
    left = step

    def count(_operation: str, _path: Path) -> None:
        nonlocal left
        if them.stores[name].role is role:
            left -= 1
        if left == 0 and not held.is_set():
            held.set()
            if is_killed:
                files.die()
            else:
                files.stop()

    files.at = count
    return held


async def everything(store: MetadataStore) -> list[Record]:
    return await store.scan(*starting_with(""))


async def require_a_restart_reads(them: Brokers, expected: list[Record]) -> None:
    """What the brokers show is what the files add up to."""
    await them.close_all()
    async with EmbeddedStore.open(them.disk.process(), DATA) as alone:
        assert [record for record in await everything(alone) if record.session is None] == [
            record for record in expected if record.session is None
        ]


@pytest.mark.parametrize("step", range(1, 62, 4))
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
async def test_a_standby_is_held_inside_its_take_over(step: int, is_killed: bool, autojump_clock: MockClock) -> None:
    """C24, M22: another one takes over from whatever it left, and it follows when it goes on, with its session."""
    async with brokers(seed=step, stepped=True) as them:
        first, second, third = [await them.start(name) for name in ("b1", "b2", "b3")]
        await first.commit(LARGE)
        session = await third.open_session(TIMEOUT)
        await third.commit([Put("/e", b"", session=session)])
        held = hold_at(them, "b2", step, role=Role.TAKING_OVER, is_killed=is_killed)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.commit, [PutSequential("/w", b"1", "p")])
            nursery.start_soon(second.commit, [PutSequential("/w", b"2", "p")])
            await trio.testing.wait_all_tasks_blocked()
            them.files["b3"].stop()
            await them.kill("b1")
            with trio.move_on_after(TIMEOUT / 2):
                await held.wait()
            them.files["b3"].resume()
            await them.controller("b3" if held.is_set() else "b2")
            await third.commit([PutSequential("/w", b"3", "p")])
            for name in ("b1", "b2"):
                them.files[name].resume()
                them.mend(name)
        for name in ("b1", "b2", "b3"):
            await them.until(name, Role.FOLLOWING, Role.LEADING)
        found = await everything(third)
        for store in (first, second):
            assert await everything(store) == found
        assert sorted(record.value for record in found if record.key.startswith("/w")) == [b"1", b"2", b"3"]
        await trio.sleep(2 * TIMEOUT)
        assert not session.has_ended
        assert await second.get("/e") is not None
        await require_a_restart_reads(them, await everything(third))


@pytest.mark.parametrize("writer", ["b1", "b2"])
@pytest.mark.parametrize("step", range(1, 26, 3))
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
async def test_a_large_change_set_is_made_once_and_whole(
    writer: str, step: int, is_killed: bool, autojump_clock: MockClock
) -> None:
    """R28, R16, M22: its controller is held between two pieces, and nobody sees a part of it."""
    async with brokers(seed=step, stepped=True) as them:
        stores = {name: await them.start(name) for name in ("b1", "b2", "b3")}
        await stores["b3"].put("/small", b"")
        held = hold_at(them, "b1", step, role=Role.LEADING, is_killed=is_killed)
        made = trio.Event()

        async def write() -> None:
            await stores[writer].commit([PutSequential("/once", b"", "p"), *LARGE])
            made.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await held.wait()
            leader = await them.controller("b2", "b3")
            assert len(await leader.scan(*starting_with("/large"))) in {0, len(LARGE)}
            await leader.put("/after", b"")
            if writer == "b2":
                await made.wait()
            them.files["b1"].resume()
            them.mend("b1")
        assert made.is_set()
        for name in stores:
            await them.until(name, Role.FOLLOWING, Role.LEADING)
        found = await everything(stores["b3"])
        for store in stores.values():
            assert await everything(store) == found
        assert sum(record.key.startswith("/large") for record in found) == len(LARGE)
        assert sum(record.key.startswith("/once") for record in found) == 1
        await require_a_restart_reads(them, found)


async def test_a_stopped_standby_has_the_lock_of_the_next_epoch(autojump_clock: MockClock) -> None:
    """C24: the others wait for nobody. The taker's end is seen by its beat, because its fence names no lock."""
    async with brokers(stepped=True) as them:
        first, second, third = [await them.start(name) for name in ("b1", "b2", "b3")]
        await first.put("/a", b"")
        files = them.files["b2"]
        assert isinstance(files, SteppedFiles)
        held = trio.Event()

        def hold(_operation: str, _path: Path) -> None:
            held.set()
            files.stop()

        def look(operation: str, path: Path) -> None:
            if operation == "lock" and path.name == "controller-0000000002.lock":
                # It has the lock before its next operation.
                files.at = hold

        files.at = look
        them.files["b3"].stop()
        await them.kill("b1")
        await held.wait()
        them.files["b3"].resume()
        await them.until("b3", Role.LEADING)
        fourth = await them.start("b4")
        await them.kill("b3")
        await them.until("b4", Role.LEADING)
        files.at = None
        files.resume()
        await them.until("b2", Role.FOLLOWING)
        assert await second.get("/a") == await fourth.get("/a")
        assert third.role is Role.LEADING


@pytest.mark.parametrize("is_late", [False, True], ids=["before the fence", "behind the fence"])
async def test_a_batch_that_is_being_written_is_no_damage(is_late: bool, autojump_clock: MockClock) -> None:
    """E3, C5: a standby reads half of what the controller is writing. It looks again, and then it is whole."""
    async with brokers(stepped=True) as them, trio.open_nursery() as nursery:
        first, second = await them.start("b1"), await them.start("b2")
        writer, taker = them.files["b1"], them.files["b2"]
        assert isinstance(writer, SteppedFiles)
        assert isinstance(taker, SteppedFiles)
        contents: list[bytes] = []

        def hold(operation: str, path: Path) -> None:
            if path.suffix == ".log":
                contents.append(them.disk.content(path))
            if (operation, path.suffix) == ("sync", ".log"):
                writer.at = None
                writer.stop()

        writer.at = hold
        nursery.start_soon(first.put, "/a", b"value")
        await them.until("b2", Role.SEEKING)
        before, whole = contents
        # Its operating system has not copied the end of the batch yet.
        size = len(whole.rstrip(b"\0")) - 10
        half = whole[:size].ljust(len(whole), b"\0")
        (name,) = [name for name in them.disk.names(DIRECTORY) if name.endswith(".log")]
        log = them.disk.open(DIRECTORY / name)
        log.write_at(0, before if is_late else half)

        def copy_on(operation: str, _path: Path) -> None:
            if operation == "link":
                log.write_at(0, half)

        taker.at = copy_on
        await them.until("b2", Role.TAKING_OVER)
        await trio.sleep(SECOND_LOOK_SECONDS / 2)
        log.write_at(0, whole)
        taker.at = None
        writer.resume()
        # Behind its fence, the controller of before may be faster than its second try.
        await them.until("b2", Role.LEADING, Role.FOLLOWING)
        found = await second.get("/a")
        assert found is not None
        assert found.value == b"value"
        await require_a_restart_reads(them, await everything(second))


async def test_a_second_look_deposes_nobody_who_was_faster(autojump_clock: MockClock) -> None:
    """C13: a standby looks again because of damage. Meanwhile another one has seen none, and leads."""
    async with brokers(stepped=True) as them, trio.open_nursery() as nursery:
        first = await them.start("b1")
        await them.start("b2")
        writer = them.files["b1"]
        assert isinstance(writer, SteppedFiles)

        def hold(operation: str, path: Path) -> None:
            if (operation, path.suffix) == ("sync", ".log"):
                writer.at = None
                writer.stop()

        writer.at = hold
        nursery.start_soon(first.put, "/a", b"value")
        await them.until("b2", Role.SEEKING)
        (name,) = [name for name in them.disk.names(DIRECTORY) if name.endswith(".log")]
        whole = them.disk.content(DIRECTORY / name)
        log = them.disk.open(DIRECTORY / name)
        log.write_at(0, whole[: len(whole.rstrip(b"\0")) - 10].ljust(len(whole), b"\0"))
        await them.until("b2", Role.TAKING_OVER)
        await trio.sleep(SECOND_LOOK_SECONDS / 2)
        log.write_at(0, whole)
        files = them.disk.process()
        faster = take_over(
            files,
            DIRECTORY,
            MetadataEpochs(files, DIRECTORY, Random(3).getrandbits),
            broker="b3",
            address="b3",
            after=1,
        )
        await them.until("b2", Role.SEEKING, Role.LEADING)
        faster.epoch.check()
        faster.close()
        await them.until("b2", Role.LEADING)
        writer.resume()


async def test_a_process_leads_again(autojump_clock: MockClock) -> None:
    """C5: its watches and its session outlive both reigns, and its writes are numbered on."""
    async with brokers() as them:
        first, second = await them.start("b1"), await them.start("b2")
        session = await first.open_session(TIMEOUT)
        await first.commit([Put("/e", b"", session=session)])
        async with first.watch_range(*starting_with("/w")) as watch:
            for number in range(4):
                await (first, second)[number % 2].commit([PutSequential("/w", b"%d" % number, "p")])
                (record,) = (await watch.next()).records
                assert record.value == b"%d" % number
                leader, other = ("b1", "b2") if first.role is Role.LEADING else ("b2", "b1")
                them.files[leader].stop()
                await them.until(other, Role.LEADING)
                them.files[leader].resume()
                await them.until(leader, Role.FOLLOWING)
                # The new controller renews the session. If it stopped at once, nobody would have for two fail-overs.
                await trio.sleep(2 * beat_seconds(TIMEOUT))
        assert first.statistics().extra["epoch"] == 5
        await trio.sleep(3 * TIMEOUT)
        assert not session.has_ended
        assert await second.get("/e") is not None
        await require_a_restart_reads(them, await everything(second))


async def test_a_process_leads_again_without_a_link_in_between(autojump_clock: MockClock) -> None:
    """M14: what it wrote in its first reign is not shown again when it reads on."""
    async with brokers() as them:
        first, second = await them.start("b1"), await them.start("b2")
        async with first.watch_range(*starting_with("/w")) as watch:
            await watch.next()
            for number in range(3):
                await first.commit([PutSequential("/w", b"%d" % number, "p")])
                await watch.next()
            them.files["b1"].stop()
            await them.until("b2", Role.LEADING)
            made = await second.commit([PutSequential("/w", b"3", "p")])
            await them.kill("b2")
            them.files["b1"].resume()
            change = await watch.next()
            assert (change.revision, len(change.records)) == (made.revision, 1)
            await them.until("b1", Role.LEADING)
        assert first.statistics().extra["links"] == 2, "its own two reigns"
        await require_a_restart_reads(them, await everything(first))


async def test_a_slower_standby_deposes_nobody(autojump_clock: MockClock) -> None:
    """C13: it saw that the controller before had ended. That says nothing of the one that was faster."""
    async with brokers(stepped=True) as them:
        _first, second, third = [await them.start(name) for name in ("b1", "b2", "b3")]
        held = hold_at(them, "b3", 1, role=Role.TAKING_OVER)
        them.files["b2"].stop()
        await them.kill("b1")
        await held.wait()
        them.files["b2"].resume()
        await them.until("b2", Role.LEADING)
        them.files["b3"].resume()
        await them.until("b3", Role.FOLLOWING)
        await third.put("/a", b"")
        assert second.role is Role.LEADING
        assert second.statistics().extra["epoch"] == 2


async def test_a_standby_whose_place_was_trimmed_takes_the_image(autojump_clock: MockClock) -> None:
    """M14, R16: its watch tells the difference, once."""
    async with brokers() as them:
        first, second = await them.start("b1"), await them.start("b2")
        await first.commit([Put("/w/gone", b""), Put("/w/kept", b"")])
        await second.barrier()
        async with second.watch_range(*starting_with("/w")) as watch:
            await watch.next()
            await them.cut("b2")
            await first.delete("/w/gone")
            await first.put("/w/new", b"")
            for _ in range(2):
                await first.put("/filler", b"")
                await first.take_snapshot()
            expected = await everything(first)
            await them.kill("b1")
            them.mend("b2")
            await them.until("b2", Role.LEADING)
            assert second.statistics().extra["images"] >= 1
            change = await watch.next()
            assert [record.key for record in change.records] == ["/w/new"]
            assert change.deleted == ("/w/gone",)
        assert await everything(second) == expected
