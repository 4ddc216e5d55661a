"""The embedded store: durability, groups, failures, sessions over restarts, snapshots while it works."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.files import AlreadyLocked, DiskFiles, Files
from storage.metadata import embedded, log, snapshots
from storage.metadata.batches import Body
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.log import CorruptMetadata
from storage.metadata.opening import open_folder
from storage.metadata.records import RECORD_BYTES_MAX, LogRecord, SequenceAdvance, SnapshotFooter, encode
from storage.metadata.store import (
    ABSENT,
    ChangeSetTooLarge,
    Check,
    Committed,
    Conflict,
    IndexEntry,
    MetadataError,
    Op,
    Put,
    PutSequential,
    Record,
    SessionLost,
    SnapshotTaken,
    StoreUnavailable,
)
from tests.support.disk import SimulatedFiles

DATA = Path("/data")
DIRECTORY = DATA / "metadata"
FIRST_LOG = DIRECTORY / f"{1:020}.log"


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PREALLOCATION_BYTES", 4096)


@pytest.fixture
def disk() -> SimulatedFiles:
    return SimulatedFiles(seed=1)


async def content(files: Files) -> dict[str, bytes]:
    async with EmbeddedStore.open(files, DATA) as store:
        return {record.key: record.value for record in await store.scan("", "~")}


# -- durability


async def test_what_was_answered_survives_a_power_loss(disk: SimulatedFiles) -> None:
    """M23: records, versions, indexes, partition keys and the sequence counter."""
    async with EmbeddedStore.open(disk, DATA) as store:
        entry = (IndexEntry("i", "k"),)
        await store.commit([Put("/a", b"1", indexes=entry, partition_key="p"), PutSequential("/op/1", b"", "1")])
        await store.put("/b", b"2")
        await store.delete("/b")
        before = await store.scan("", "~")
        hits = await store.query("i", "", "~")
        statistics = store.statistics()
        survivor = disk.crash(keep=0.0)
    async with EmbeddedStore.open(survivor, DATA) as store:
        assert await store.scan("", "~") == before
        assert await store.query("i", "", "~") == hits
        assert store.statistics().revision == statistics.revision == 3
        (key,) = (await store.commit([PutSequential("/op/1", b"", "1")])).keys
        assert key is not None
        assert key > before[-1].key
        assert await store.put("/b", b"again", expected=ABSENT) == 5


async def test_nothing_is_shown_before_it_is_durable(disk: SimulatedFiles) -> None:
    """R12, D13: while the disk is busy no read, index query, watch or answer tells of what waits."""
    async with EmbeddedStore.open(disk, DATA) as store, trio.open_nursery() as nursery:
        events: list[str] = []

        async def put() -> None:
            await store.put("/a", b"", indexes=(IndexEntry("i", "k"),))
            events.append("answered")

        async def follow() -> None:
            async with store.watch_key("/a") as watch:
                assert await watch.next() is None
                await watch.next()
                events.append("watched")

        nursery.start_soon(follow)
        await wait_all_tasks_blocked()
        disk.stop()
        nursery.start_soon(put)
        await wait_all_tasks_blocked()
        assert store.peek("/a") is None
        assert await store.get("/a") is None
        assert await store.scan("", "~") == []
        assert await store.query("i", "", "~") == []
        assert await store.barrier() == 0
        assert events == []
        disk.resume()
        await wait_all_tasks_blocked()
        assert sorted(events) == ["answered", "watched"]


async def test_a_refusal_waits_until_what_it_rests_on_is_durable(disk: SimulatedFiles) -> None:
    """D13: "already taken" is not said while the write that took it could still be lost."""
    async with EmbeddedStore.open(disk, DATA) as store, trio.open_nursery() as nursery:
        outcomes: list[str] = []

        async def create() -> None:
            try:
                await store.put("/a", b"", expected=ABSENT)
            except Conflict as conflict:
                outcomes.append(f"refused, is {conflict.actual}")
            else:
                outcomes.append("made")

        # With the committer at rest, what two tasks propose in one turn becomes one group.
        await wait_all_tasks_blocked()
        disk.stop()
        nursery.start_soon(create)
        nursery.start_soon(create)
        await wait_all_tasks_blocked()
        assert store.statistics().writes_waiting == 0
        assert outcomes == []
        disk.resume()
        await wait_all_tasks_blocked()
        assert sorted(outcomes) == ["made", "refused, is 1"]


async def test_a_refusal_is_not_given_if_its_ground_is_lost(disk: SimulatedFiles) -> None:
    """D13: when the group fails, the refused one too learns only that the outcome is unknown."""
    async with EmbeddedStore.open(disk, DATA) as store, trio.open_nursery() as nursery:
        outcomes: list[type[BaseException]] = []

        async def create() -> None:
            try:
                await store.put("/a", b"", expected=ABSENT)
            except MetadataError as error:
                outcomes.append(type(error))

        disk.fail("sync")
        nursery.start_soon(create)
        nursery.start_soon(create)
    assert outcomes == [StoreUnavailable] * 2


async def test_waiting_writers_share_one_sync(disk: SimulatedFiles) -> None:
    """M23: a group commit takes all that wait."""
    syncs = 0

    def count(operation: str, _path: Path) -> None:
        nonlocal syncs
        syncs += operation == "sync"

    async with EmbeddedStore.open(disk, DATA) as store:
        disk.before = count
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(store.put, f"/{number}", b"")
        assert len(await store.scan("", "~")) == 100
    assert syncs <= 4


async def test_a_watcher_wakes_in_the_turn_of_the_answer(disk: SimulatedFiles) -> None:
    """M13, M14: nobody learns of a change a scheduler turn before those who wait for it."""
    turns: dict[str, int] = {}
    turn = 0

    class Turns(trio.abc.Instrument):
        def after_io_wait(self, timeout: float) -> None:
            nonlocal turn
            turn += 1

    async with EmbeddedStore.open(disk, DATA) as store, trio.open_nursery() as nursery:

        async def follow_key() -> None:
            async with store.watch_key("/a") as watch:
                await watch.next()
                await watch.next()
                turns["key"] = turn

        async def follow_range() -> None:
            async with store.watch_range("/", "0") as watch:
                await watch.next()
                await watch.next()
                turns["range"] = turn

        nursery.start_soon(follow_key)
        nursery.start_soon(follow_range)
        await wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(instrument := Turns())
        await store.put("/a", b"")
        turns["writer"] = turn
        await wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(instrument)
    assert len(turns) == 3
    assert len(set(turns.values())) == 1


async def test_a_record_above_the_limit_is_refused(disk: SimulatedFiles) -> None:
    """M25: up front, and nothing of its change set is made; a record of just the limit is."""
    async with EmbeddedStore.open(disk, DATA) as store:
        ops: list[Op] = [Put("/small", b""), Put("/large", bytes(RECORD_BYTES_MAX))]
        with pytest.raises(ChangeSetTooLarge):
            await store.commit(ops)
        assert await store.barrier() == 0
        await store.put("/large", bytes(RECORD_BYTES_MAX - 100))
    assert list(await content(disk.crash(keep=0.0))) == ["/large"]


async def test_on_a_real_disk(tmp_path: Path) -> None:
    """M23: the same with the operating system's files and worker threads."""
    async with EmbeddedStore.open(DiskFiles(), tmp_path, snapshot_log_bytes=20_000) as store:
        for number in range(100):
            await store.put(f"/{number % 10}", b"%d" % number * 100)
        before = await store.scan("", "~")
        assert store.statistics().extra["groups"] == 100
    async with EmbeddedStore.open(DiskFiles(), tmp_path) as store:
        assert await store.scan("", "~") == before
    assert (tmp_path / "metadata").is_dir()


# -- crashes


class Story:
    """Writers that note what they were told, and what must hold after a crash."""

    def __init__(self) -> None:
        self.answered: dict[str, int] = {}
        self.sequential: set[str] = set()
        self.tried: dict[str, int] = {}

    async def write(self, store: EmbeddedStore, writer: int, *, rounds: int = 6) -> None:
        session = await store.open_session(5)
        for number in range(1, rounds + 1):
            key = str(writer)
            value = b"%d" % number
            self.tried[key] = self.tried.get(key, 0) + 1
            done = await store.commit(
                [
                    Put(f"/a/{key}", value, indexes=(IndexEntry("i", key),)),
                    PutSequential(f"/op/{key}", value, key),
                    Put(f"/b/{key}", value * 400),
                    Put(f"/e/{key}", value, session=session),
                ]
            )
            self.answered[key] = done.revision
            assert done.keys[1] is not None
            self.sequential.add(done.keys[1])

    async def check(self, store: EmbeddedStore) -> None:
        first = {record.key[3:]: record for record in await store.scan("/a/", "/a0")}
        second = {record.key[3:]: record for record in await store.scan("/b/", "/b0")}
        assert set(first) == set(second) == {hit.index_key for hit in await store.query("i", "", "~")}
        for key, record in first.items():
            assert second[key].version == record.version <= store.statistics().revision
            assert second[key].value == record.value * 400
        for key, revision in self.answered.items():
            assert first[key].version >= revision
        operations = {record.key for record in await store.scan("/op/", "/op0")}
        assert self.sequential <= operations
        # A prefix: whatever has a lower revision than something that is there was there at that moment.
        assert sum(int(record.value) for record in first.values()) == len(operations)
        assert await store.scan("/e/", "/e0") == []
        (fresh,) = (await store.commit([PutSequential("/op/9", b"9", "9")])).keys
        assert fresh is not None
        assert all(fresh[-20:] > key[-20:] for key in operations)
        await store.delete(fresh)


async def crash_story(seed: int, operations: int, snapshot_log_bytes: int) -> int:
    """Work, lose power at some operation, twice; the operations a whole story takes.

    The second time only the process dies, and the power goes after the store was opened again.
    """
    disk = SimulatedFiles(seed=seed)
    story = Story()
    for only_the_process in (False, True):
        disk.lose_power_after(operations)
        start = disk.operations
        try:
            async with EmbeddedStore.open(disk, DATA, snapshot_log_bytes=snapshot_log_bytes) as store:
                await store.commit([])
                async with trio.open_nursery() as nursery:
                    for writer in range(3):
                        nursery.start_soon(story.write, store, writer)
        except* (OSError, StoreUnavailable):
            pass
        taken = disk.operations - start
        if only_the_process:
            disk = disk.kill()
            async with EmbeddedStore.open(disk, DATA) as store:
                await store.put("/after", b"")
            disk = disk.crash(keep=0.0)
            assert "/after" in await content(disk)
        else:
            disk = disk.crash()
        async with EmbeddedStore.open(disk, DATA) as store:
            await forgetting_rounds(story, store)
    return taken


async def forgetting_rounds(story: Story, store: EmbeddedStore) -> None:
    await story.check(store)
    # The next round counts from one again, so what the last left is cleared away.
    for record in [*await store.scan("/a/", "/b0"), *await store.scan("/op/", "/op0")]:
        await store.delete(record.key)
    story.answered.clear()
    story.sequential.clear()


@pytest.mark.parametrize("snapshot_log_bytes", [3_000, 1_000_000])
async def test_power_loss_at_every_operation(snapshot_log_bytes: int) -> None:
    """M23, R9, R27: what was answered is there, change sets are whole, the rest is a prefix, also around snapshots."""
    whole = await crash_story(0, 10_000, snapshot_log_bytes)
    assert whole > 20
    for seed in range(2):
        for operations in range(whole + 5):
            await crash_story(seed * 1000 + operations, operations, snapshot_log_bytes)


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_failed_write_ends_the_store(disk: SimulatedFiles, operation: str) -> None:
    """M22, M23: unknown to all who wait, refused to all who come, and never tried again on that file."""
    writes = 0

    def count(name: str, _path: Path) -> None:
        nonlocal writes
        writes += name == "write"

    async with EmbeddedStore.open(disk, DATA) as store:
        await store.put("/before", b"")
        session = await store.open_session(5)
        unavailable = 0

        async def expect(call: Callable[[], object]) -> None:
            nonlocal unavailable
            with pytest.raises(StoreUnavailable) as caught:
                await call()  # type: ignore[misc]
            assert caught.value.retriable
            assert not caught.value.definite
            assert "simulated fault" in str(caught.value)
            unavailable += 1

        async with (
            trio.open_nursery() as nursery,
            store.watch_key("/before") as key_watch,
            store.watch_range("", "~") as range_watch,
        ):
            await key_watch.next()
            await range_watch.next()
            nursery.start_soon(expect, key_watch.next)
            nursery.start_soon(expect, range_watch.next)
            await wait_all_tasks_blocked()
            disk.fail(operation, where=lambda path: path.suffix == ".log")
            disk.before = count
            for number in range(5):
                nursery.start_soon(expect, lambda number=number: store.put(f"/{number}", b""))
            await session.wait_lost()
            await wait_all_tasks_blocked()
            assert unavailable == 7
        assert not store.authoritative
        for call in (
            lambda: store.get("/before"),
            lambda: store.scan("", "~"),
            lambda: store.query("i", "", "~"),
            lambda: store.put("/after", b""),
            lambda: store.put("/after", b"", session=session),
            lambda: store.open_session(5),
            store.barrier,
            session.close,
        ):
            await expect(call)
        peeked = store.peek("/before")
        assert peeked is not None
    assert writes == 1
    disk.before = None
    found = await content(disk.crash())
    assert "/before" in found
    assert "/after" not in found


async def test_who_waits_for_room_learns_of_the_end(disk: SimulatedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """M22: nobody is left waiting in front of a store that has ended."""
    monkeypatch.setattr(embedded, "PROPOSALS_WAITING_MAX", 1)
    unavailable = 0

    async def put() -> None:
        nonlocal unavailable
        with pytest.raises(StoreUnavailable):
            await store.put("/a", b"")
        unavailable += 1

    async with EmbeddedStore.open(disk, DATA) as store, trio.open_nursery() as nursery:
        disk.fail("sync")
        disk.stop()
        for _ in range(5):
            nursery.start_soon(put)
        await wait_all_tasks_blocked()
        disk.resume()
    assert unavailable == 5


async def test_a_failed_snapshot_ends_the_store(disk: SimulatedFiles) -> None:
    """M23: a disk that refuses writes is not trusted with the next one."""
    async with EmbeddedStore.open(disk, DATA, snapshot_log_bytes=500) as store:
        disk.fail("sync", where=lambda path: "snapshot" in path.name)
        made = 0

        async def write() -> None:
            nonlocal made
            while made < 100:
                await store.put(f"/{made:03}", bytes(100))
                made += 1

        with pytest.raises(StoreUnavailable):
            await write()
    assert 0 < made < 100
    assert len(await content(disk.crash())) >= made


# -- opening


async def test_a_folder_is_opened_once(disk: SimulatedFiles) -> None:
    """M23: by one process at a time, and the second is told so."""
    async with EmbeddedStore.open(disk, DATA):
        with pytest.raises(AlreadyLocked):
            async with EmbeddedStore.open(disk.process(), DATA):
                pytest.fail("it opened")
    await content(disk)


async def test_a_damaged_log_does_not_open(disk: SimulatedFiles) -> None:
    """D9: the error names the file and the place; the lock is given back."""
    async with EmbeddedStore.open(disk, DATA) as store:
        for number in range(3):
            await store.put(f"/{number}", b"")
    disk.flip(FIRST_LOG, 8 * 60)
    for _ in range(2):
        with pytest.raises(CorruptMetadata) as caught:
            await content(disk)
        assert caught.value.path == FIRST_LOG


@pytest.mark.parametrize("record", [SnapshotFooter(0), SequenceAdvance(1, 0), Record("/e", b"", 1, session=5)])
async def test_a_log_that_makes_no_sense_does_not_open(disk: SimulatedFiles, record: LogRecord) -> None:
    """D9: a record of a snapshot, a counter that stands still, a record of a session that never was."""
    await content(disk)
    opened = open_folder(disk, DIRECTORY)
    opened.log.append([Body(encode(record), 1)])
    opened.close()
    with pytest.raises(CorruptMetadata):
        await content(disk)


async def test_ephemerals_of_an_earlier_process_are_gone(disk: SimulatedFiles) -> None:
    """M18: deleted in one change set before anybody reads; session ids are never used again (M19)."""
    async with EmbeddedStore.open(disk, DATA) as store:
        first, second = await store.open_session(5), await store.open_session(5)
        await store.put("/e/1", b"", session=first, indexes=(IndexEntry("i", "k"),))
        await store.put("/e/2", b"", session=second)
        await store.put("/lasting", b"")
        revision = await store.barrier()
        survivor = disk.crash(keep=0.0)
    async with EmbeddedStore.open(survivor, DATA) as store:
        assert [record.key for record in await store.scan("", "~")] == ["/lasting"]
        assert await store.query("i", "", "~") == []
        assert await store.barrier() == revision + 1
        third = await store.open_session(5)
        assert third.id not in (first.id, second.id)
        # An earlier store's session is not one of this store's, whatever its number.
        with pytest.raises(SessionLost):
            await store.put("/e/3", b"", session=first)
        await third.close()
    async with EmbeddedStore.open(survivor, DATA) as store:
        assert await store.barrier() == revision + 3


# -- snapshots


async def test_snapshots_keep_the_log_short(disk: SimulatedFiles) -> None:
    """R27: log and snapshots hold what is there, not its history, and opening gives the same state."""
    async with EmbeddedStore.open(disk, DATA, snapshot_log_bytes=4000) as store:
        for number in range(300):
            await store.put(f"/{number % 7}", b"%d" % number * 20)
            await wait_all_tasks_blocked()
        statistics = store.statistics()
        assert statistics.extra["snapshots"] >= 3
        assert statistics.extra["log_tail_bytes"] < 6000
        before = await store.scan("", "~")
        names = disk.names(DIRECTORY)
        assert len([name for name in names if name.endswith(".snapshot")]) == 1
        assert len([name for name in names if name.endswith(".log")]) == 1
    async with EmbeddedStore.open(disk.crash(keep=0.0), DATA) as store:
        assert await store.scan("", "~") == before
        assert await store.barrier() == statistics.revision


async def test_snapshots_do_not_write_more_than_the_log(disk: SimulatedFiles) -> None:
    """R27: a large state is written anew only after as much log."""
    async with EmbeddedStore.open(disk, DATA, snapshot_log_bytes=1000) as store:
        await store.commit([Put(f"/{number:03}", bytes(1000)) for number in range(50)])
        await wait_all_tasks_blocked()
        assert store.statistics().extra["snapshots"] == 1
        for number in range(100):
            await store.put(f"/{number:03}", bytes(100))
            await wait_all_tasks_blocked()
        assert store.statistics().extra["snapshots"] == 1


async def test_writes_go_on_while_a_snapshot_is_written(disk: SimulatedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """R22, R27: a snapshot stands still at its place in the log while the store moves on."""
    slices = trio.Event()
    write = snapshots.write

    async def slow(files: Files, directory: Path, view: snapshots.View) -> int:
        await slices.wait()
        return await write(files, directory, view)

    monkeypatch.setattr(snapshots, "write", slow)
    async with EmbeddedStore.open(disk, DATA, snapshot_log_bytes=1000) as store:
        for number in range(50):
            await store.put(f"/{number:02}", bytes(50))
        assert store.statistics().extra["snapshots"] == 0
        held = len([name for name in disk.names(DIRECTORY) if name.endswith(".log")])
        assert held == 2
        slices.set()
        await wait_all_tasks_blocked()
        assert store.statistics().extra["snapshots"] == 1
        survivor = disk.crash(keep=0.0)
    assert len(await content(survivor)) == 50


async def test_a_snapshot_is_taken_when_asked_for(disk: SimulatedFiles) -> None:
    """R22, R27: it holds all that was answered before; one that was begun earlier does not count."""
    async with EmbeddedStore.open(disk, DATA) as store, trio.open_nursery() as nursery:
        await store.put("/a", b"1")
        taken: list[SnapshotTaken] = []

        async def take() -> None:
            taken.append(await store.take_snapshot())

        def is_begun() -> bool:
            return any("unfinished" in name for name in disk.names(DIRECTORY))

        nursery.start_soon(take)
        while not is_begun():
            await trio.lowlevel.checkpoint()
        await store.put("/b", b"2")
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        assert [(each.revision, each.sequence) for each in taken] == [(1, 2), (2, 3)]
        assert taken[1].size_bytes == store.statistics().extra["snapshot_bytes"]
        names = disk.names(DIRECTORY)
        assert names == [f"{3:020}.snapshot", f"{4:020}.log"]
        # Taking another of the same state is no error.
        assert await store.take_snapshot() == taken[1]
    assert len(await content(disk.crash(keep=0.0))) == 2


async def test_who_waits_for_a_snapshot_learns_of_the_end(disk: SimulatedFiles) -> None:
    """M22: whether the store was closed or its disk failed."""
    for fails in (False, True):
        refused = 0

        async def take(store: EmbeddedStore) -> None:
            nonlocal refused
            with pytest.raises(StoreUnavailable):
                await store.take_snapshot()
            refused += 1

        async with trio.open_nursery() as nursery:
            async with EmbeddedStore.open(disk, DATA) as store:
                if fails:
                    disk.fail("write", where=lambda path: "snapshot" in path.name)
                disk.stop()
                nursery.start_soon(take, store)
                nursery.start_soon(take, store)
                await wait_all_tasks_blocked()
                disk.resume()
            await take(store)
        assert refused == 3
    await content(disk)


async def test_replay_of_any_prefix_and_from_any_snapshot(disk: SimulatedFiles) -> None:
    """R27: after every change set, log from zero and snapshot with tail give the state that was read."""

    @asynccontextmanager
    async def reopened(files: SimulatedFiles, after: int) -> AsyncIterator[EmbeddedStore]:
        async with EmbeddedStore.open(files, DATA, snapshot_log_bytes=after) as store:
            yield store

    def change_set(number: int) -> list[Op]:
        return [
            Put(f"/{number % 5}", b"%d" % number, indexes=(IndexEntry("i", str(number % 3)),)),
            PutSequential("/op", b"", "p"),
        ]

    other = SimulatedFiles(seed=2)
    for number in range(25):
        async with reopened(disk, 10**9) as from_zero, reopened(other, 1 if number % 4 else 10**9) as from_snapshot:
            assert await from_zero.scan("", "~") == await from_snapshot.scan("", "~")
            assert await from_zero.query("i", "", "~") == await from_snapshot.query("i", "", "~")
            assert await from_zero.barrier() == await from_snapshot.barrier() == number
            assert await from_zero.commit(change_set(number)) == await from_snapshot.commit(change_set(number))
            await wait_all_tasks_blocked()
    assert any(name.endswith(".snapshot") for name in other.names(DIRECTORY))


# -- cancellation and closing


async def test_writers_wait_for_room(disk: SimulatedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """M22: the queue of proposals is bounded; who is cancelled before there is room has written nothing."""
    monkeypatch.setattr(embedded, "PROPOSALS_WAITING_MAX", 3)
    async with EmbeddedStore.open(disk, DATA) as store, trio.open_nursery() as nursery:
        disk.stop()
        nursery.start_soon(store.put, "/busy", b"")
        await wait_all_tasks_blocked()
        for number in range(5):
            nursery.start_soon(store.put, f"/{number}", b"")
        await wait_all_tasks_blocked()
        assert store.statistics().writes_waiting == 3
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.put("/cancelled", b"")
        disk.resume()
        await wait_all_tasks_blocked()
        assert [record.key for record in await store.scan("", "~")] == ["/0", "/1", "/2", "/3", "/4", "/busy"]


async def test_a_cancelled_writer_harms_nobody(disk: SimulatedFiles) -> None:
    """M22: cancelled in the queue or while its group is written, its write is made and the others are answered."""
    async with EmbeddedStore.open(disk, DATA) as store, trio.open_nursery() as nursery:
        disk.stop()
        scopes = [trio.CancelScope() for _ in range(2)]
        answers: list[Committed] = []

        async def cancelled(number: int) -> None:
            with scopes[number]:
                await store.put(f"/cancelled/{number}", b"")

        async def patient(number: int) -> None:
            answers.append(await store.commit([Put(f"/patient/{number}", b"")]))

        for number in range(2):
            nursery.start_soon(cancelled, number)
            nursery.start_soon(patient, number)
            await wait_all_tasks_blocked()
        for scope in scopes:
            scope.cancel()
        await wait_all_tasks_blocked()
        assert all(scope.cancelled_caught for scope in scopes)
        disk.resume()
        await wait_all_tasks_blocked()
        assert len(answers) == 2
        assert len(await store.scan("", "~")) == 4


async def test_a_session_is_not_opened_behind_its_openers_back(disk: SimulatedFiles) -> None:
    """M18: opening is cancelled before it begins, or its session is returned to be closed."""
    async with EmbeddedStore.open(disk, DATA) as store:
        sessions = []
        scopes = [trio.CancelScope() for _ in range(2)]

        async def open_one(scope: trio.CancelScope) -> None:
            with scope:
                sessions.append(await store.open_session(5))

        disk.stop()
        scopes[1].cancel()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_one, scopes[0])
            nursery.start_soon(open_one, scopes[1])
            await wait_all_tasks_blocked()
            scopes[0].cancel()
            await wait_all_tasks_blocked()
            assert sessions == []
            disk.resume()
        assert len(sessions) == 1
        assert await store.barrier() == 1


async def test_closing_commits_for_those_who_tidy_up(disk: SimulatedFiles) -> None:
    """M23: while what runs inside is cancelled, its last writes are still made."""
    with trio.CancelScope() as scope:
        async with EmbeddedStore.open(disk, DATA) as store:
            try:
                scope.cancel()
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await store.put("/last", b"words")
    assert scope.cancelled_caught
    assert await content(disk.crash(keep=0.0)) == {"/last": b"words"}


async def test_a_closed_store_answers_nothing(disk: SimulatedFiles) -> None:
    """M22: what was waiting when it closed is made and answered; who comes late is told."""
    async with trio.open_nursery() as nursery, EmbeddedStore.open(disk, DATA) as store:
        session = await store.open_session(5)
        nursery.start_soon(session.wait_lost)
        disk.stop()
        for key in ("/being-written", "/waiting"):
            nursery.start_soon(store.put, key, b"")
            await wait_all_tasks_blocked()
        assert store.statistics().writes_waiting == 1
        disk.resume()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.put("/late", b"")
    assert await content(disk) == {"/being-written": b"", "/waiting": b""}


async def test_a_snapshot_is_given_up_when_the_store_closes(
    disk: SimulatedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R27: closing does not wait for a snapshot, and its remains are removed at the next opening."""
    monkeypatch.setattr(snapshots, "SLICE_RECORDS_MAX", 1)
    async with EmbeddedStore.open(disk, DATA, snapshot_log_bytes=1000) as store:
        for number in range(30):
            await store.put(f"/{number:02}", bytes(50))
            if any("unfinished" in name for name in disk.names(DIRECTORY)):
                break
        else:
            pytest.fail("no snapshot was begun")
    assert any("unfinished" in name for name in disk.names(DIRECTORY))
    assert len(await content(disk)) == number + 1
    assert not any("unfinished" in name for name in disk.names(DIRECTORY))


async def test_a_condition_sees_the_group_before_it(disk: SimulatedFiles) -> None:
    """M26, M2: proposals of one group are judged one after another, each on top of those before it."""
    async with EmbeddedStore.open(disk, DATA) as store, trio.open_nursery() as nursery:
        outcomes: dict[int, object] = {}

        async def commit(number: int, *ops: Op) -> None:
            try:
                outcomes[number] = (await store.commit(ops)).revision
            except Conflict as conflict:
                outcomes[number] = (conflict.key, conflict.actual)

        disk.stop()
        nursery.start_soon(store.put, "/busy", b"")
        await wait_all_tasks_blocked()
        proposals: list[list[Op]] = [
            [Put("/a", b"", ABSENT)],
            [Put("/b", b"", ABSENT), Check("/a", ABSENT)],
            [Put("/b", b"", ABSENT), Check("/a", 2)],
            [Put("/a", b"", 2), Check("/b", 3)],
            [Check("/a", 2)],
        ]
        for number, ops in enumerate(proposals):
            nursery.start_soon(commit, number, *ops)
            await wait_all_tasks_blocked()
        disk.resume()
        await wait_all_tasks_blocked()
        assert outcomes == {0: 2, 1: ("/a", 2), 2: 3, 3: 4, 4: ("/a", 4)}
