"""The embedded store: durability, groups, opening, cancellation and closing."""

from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.files import AlreadyLocked, DiskFiles, Files
from storage.metadata import log
from storage.metadata.batches import Body
from storage.metadata.cluster import proposals
from storage.metadata.cluster.proposals import ALONG_SECONDS_MAX
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.opening import open_folder
from storage.metadata.record_codec import encode
from storage.metadata.records import RECORD_BYTES_MAX, LogRecord, SequenceAdvance, SnapshotFooter
from storage.metadata.store import (
    ABSENT,
    ChangeSetTooLarge,
    Check,
    Committed,
    Conflict,
    Delete,
    IndexEntry,
    MetadataError,
    Op,
    Put,
    PutSequential,
    Record,
    SessionLost,
    StoreEnded,
    StoreUnavailable,
)
from tests.support.cancellation import cancel_at_each_step
from tests.support.disk import SimulatedFiles

DATA = Path("/data")
DIRECTORY = DATA / "metadata"
FIRST_LOG = DIRECTORY / f"{1:020}-{1:010}.log"


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
    """R12, D13: while the disk is busy, no read, query, watch or answer shows waiting change sets."""
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
    """D13: "already taken" is not answered while the write that took it could still be lost."""
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
    """D13: when the group fails, the refused writer also learns only that the outcome is unknown."""
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
    assert outcomes == [StoreEnded] * 2


async def test_waiting_writers_share_one_sync(disk: SimulatedFiles) -> None:
    """M23: a group commit takes all waiting change sets."""
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
    """M13, M14: nobody learns of a change earlier than the tasks that wait for it."""
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
    """M25: in advance, with its whole change set; a record of exactly the limit is stored."""
    async with EmbeddedStore.open(disk, DATA) as store:
        ops: list[Op] = [Put("/small", b""), Put("/large", bytes(RECORD_BYTES_MAX))]
        with pytest.raises(ChangeSetTooLarge):
            await store.commit(ops)
        assert await store.barrier() == 0
        await store.put("/large", bytes(RECORD_BYTES_MAX - 100))
    assert list(await content(disk.crash(keep=0.0))) == ["/large"]


async def test_on_a_real_disk(tmp_path: Path) -> None:
    """M23: the same with real files and worker threads."""
    async with EmbeddedStore.open(DiskFiles(), tmp_path, snapshot_log_bytes=20_000) as store:
        for number in range(100):
            await store.put(f"/{number % 10}", b"%d" % number * 100)
        before = await store.scan("", "~")
        assert store.statistics().extra["groups"] == 100
    async with EmbeddedStore.open(DiskFiles(), tmp_path) as store:
        assert await store.scan("", "~") == before
    assert (tmp_path / "metadata").is_dir()


# -- opening


async def test_a_folder_is_opened_once(disk: SimulatedFiles) -> None:
    """M23: one process at a time may open it; the second one gets an error."""
    async with EmbeddedStore.open(disk, DATA):
        with pytest.raises(AlreadyLocked):
            async with EmbeddedStore.open(disk.process(), DATA):
                pytest.fail("it opened")
    await content(disk)


async def test_a_damaged_log_does_not_open(disk: SimulatedFiles) -> None:
    """D9: the error names the file and the offset; the lock is released."""
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
    """D9: a snapshot's record, a counter that stands still, a record of a session that never existed."""
    await content(disk)
    opened = open_folder(disk, DIRECTORY)
    opened.log.append([Body(encode(record), 1)])
    opened.close()
    with pytest.raises(CorruptMetadata):
        await content(disk)


async def test_ephemerals_of_an_earlier_process_are_gone(disk: SimulatedFiles) -> None:
    """M18: one change set deletes them before anybody reads; session ids are never reused (M19)."""
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


# -- change sets that go along with others


async def test_what_nobody_waits_for_goes_along_with_the_next(
    disk: SimulatedFiles, mock_clock: trio.testing.MockClock
) -> None:
    """M23: they share a sync. Time stands still here, so the first one does not go alone."""
    async with EmbeddedStore.open(disk, DATA) as store, trio.open_nursery() as nursery:
        await store.put("/a", b"")
        before = store.statistics()
        nursery.start_soon(store.commit_along, [Delete("/a")])
        await wait_all_tasks_blocked()
        assert store.statistics() == before
        await store.put("/b", b"")
        await wait_all_tasks_blocked()
        after = store.statistics()
        assert after.revision - before.revision == 2
        assert after.extra["groups"] - before.extra["groups"] == 1
        assert [record.key for record in await store.scan("", "~")] == ["/b"]


async def test_what_nobody_waits_for_goes_alone_in_time(
    disk: SimulatedFiles, autojump_clock: trio.testing.MockClock
) -> None:
    """M23: no other change set comes; refusals are reported as usual."""
    async with EmbeddedStore.open(disk, DATA) as store:
        version = await store.put("/a", b"")
        start = trio.current_time()
        with pytest.raises(Conflict):
            await store.commit_along([Delete("/a", version + 1)])
        assert trio.current_time() - start <= ALONG_SECONDS_MAX
        await store.commit_along([Delete("/a", version)])
        assert trio.current_time() - start <= 2 * ALONG_SECONDS_MAX
        assert await store.get("/a") is None


async def test_what_goes_along_may_be_cancelled_at_any_step(
    disk: SimulatedFiles, autojump_clock: trio.testing.MockClock
) -> None:
    """M22: it happened or not, and the store continues."""
    async with EmbeddedStore.open(disk, DATA) as store:

        async def operation() -> None:
            await store.commit_along([Put("/a", b"")])

        async def check() -> None:
            await store.put("/b", b"")

        assert await cancel_at_each_step(operation, check) > 2


async def test_what_is_held_back_when_the_store_ends_is_told(
    disk: SimulatedFiles, mock_clock: trio.testing.MockClock
) -> None:
    """M22: no task waits forever."""
    errors: list[MetadataError] = []

    async def remove(store: EmbeddedStore) -> None:
        try:
            await store.commit_along([Delete("/a")])
        except MetadataError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery, EmbeddedStore.open(disk, DATA) as store:
        nursery.start_soon(remove, store)
        await wait_all_tasks_blocked()
    assert [type(error) for error in errors] == [StoreEnded]


# -- cancellation and closing


async def test_writers_wait_for_room(disk: SimulatedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """M22: the queue of proposals is bounded; a writer that is cancelled before there is room has written nothing."""
    monkeypatch.setattr(proposals, "PROPOSALS_WAITING_MAX", 3)
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
    """M22: cancelled in the queue or during its group's write, its write is made, and the others are answered."""
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
    """M18: a cancelled opening does not begin, or its session is returned so that it can be closed."""
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
    """M23: while inner tasks are cancelled, their last writes are still made."""
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
    """M22: change sets that wait at the close are made and answered; later callers get an error."""
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


async def test_a_condition_sees_the_group_before_it(disk: SimulatedFiles) -> None:
    """M26, M2: proposals of one group are decided in order, each on top of those before it."""
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
