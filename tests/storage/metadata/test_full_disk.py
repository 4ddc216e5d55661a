"""The embedded store while its disk is full: it refuses definitely, applies nothing partly, and continues."""

import pytest
import structlog
import trio

from storage.metadata import log as metadata_log
from storage.metadata import transactions
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.opening import metadata_directory
from storage.metadata.store import ABSENT, Conflict, Delete, Put, StoreFull
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import DATA

PIECE = 16 * 1024
FOLDER = metadata_directory(DATA)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_log, "PREALLOCATION_BYTES", PIECE)
    monkeypatch.setattr(transactions, "PIECE_BYTES_MAX", 8 * 1024)


async def fill(store: EmbeddedStore) -> int:
    """Write until the store refuses. Return how many records were written."""
    number = 0
    while True:
        try:
            await store.put(f"/filling/{number:05}", b"x" * 500, expected=ABSENT)
        except StoreFull:
            return number
        number += 1


async def test_a_full_disk_is_a_definite_refusal() -> None:
    """E13, C24: beyond the reserve nothing is applied or shown, and the store continues when there is space."""
    disk = SimulatedFiles(seed=1)
    async with EmbeddedStore.open(disk, DATA) as store:
        session = await store.open_session(5)
        await store.put("/a", b"1", session=session)
        disk.set_capacity(disk.used_bytes)
        written = await fill(store)
        assert written * 500 > metadata_log.RESERVE_PIECES * PIECE, "the reserve is for what makes space and ends work"
        before = await store.scan("", "~")
        revision = store.statistics().revision
        with structlog.testing.capture_logs() as logs:
            for _ in range(10):
                with pytest.raises(StoreFull, match="disk is full") as refused:
                    await store.commit([Put("/b", b"2" * 5_000), Delete("/a")])
        assert logs == [], "it was said when the disk refused first"
        assert (refused.value.definite, refused.value.retriable) == (True, True)
        assert await store.scan("", "~") == before
        assert store.statistics().revision == revision
        assert not session.has_ended
        dead = disk.crash(keep=0.0)
        disk.set_capacity(None)
        await store.commit([Put("/b", b"2" * 5_000), Delete("/a")])
        assert await store.get("/a") is None
    async with EmbeddedStore.open(dead, DATA) as again:
        assert len(await again.scan("/filling/", "/filling0")) == written
        assert await again.get("/b") is None


async def test_all_of_a_group_are_refused() -> None:
    """E13, C24: this includes a change set that would conflict with one decided just before, which is not made."""
    disk = SimulatedFiles(seed=2)
    outcomes: list[type[BaseException]] = []
    async with EmbeddedStore.open(disk, DATA) as store:
        disk.set_capacity(disk.used_bytes)
        await fill(store)

        async def create() -> None:
            try:
                await store.put("/once", b"x" * 5_000, expected=ABSENT)
            except (StoreFull, Conflict) as error:
                outcomes.append(type(error))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(create)
        assert outcomes == [StoreFull] * 5


@pytest.mark.parametrize("room_pieces", [0, 1, 3, 7])
async def test_a_large_change_set_is_whole_or_not_there(room_pieces: int) -> None:
    """E13, C24, R15: one that meets the end of the disk is aborted in the log, in space reserved for that."""
    disk = SimulatedFiles(seed=3)
    async with EmbeddedStore.open(disk, DATA) as store:
        await store.put("/before", b"")
        disk.set_capacity(disk.used_bytes + room_pieces * PIECE)
        before = await store.scan("", "~")
        with pytest.raises(StoreFull):
            await store.commit([Put(f"/large/{number:03}", b"x" * 1_000) for number in range(300)])
        assert await store.scan("", "~") == before
        assert store.statistics().extra["transactions_aborted"] == 1
        dead = disk.crash(keep=0.0)
        disk.set_capacity(None)
        await store.commit([Put(f"/large/{number:03}", b"x" * 1_000) for number in range(300)])
        assert len(await store.scan("/large/", "/large0")) == 300
        alive = disk.crash(keep=0.0)
    async with EmbeddedStore.open(dead, DATA) as again:
        assert await again.scan("/large/", "/large0") == []
        await again.put("/after", b"")
    async with EmbeddedStore.open(alive, DATA) as again:
        assert len(await again.scan("/large/", "/large0")) == 300


async def test_a_snapshot_that_does_not_fit_is_put_off() -> None:
    """E13: the log grows; the caller learns of it, and a later snapshot is taken."""
    disk = SimulatedFiles(seed=4)
    async with EmbeddedStore.open(disk, DATA) as store:
        for number in range(30):
            await store.put(f"/{number:02}", b"x" * 500)
        # Not even the next log file; then that, and part of the snapshot.
        for room in (0, 3 * PIECE, 3 * PIECE + 5_000):
            disk.set_capacity(disk.used_bytes + room)
            with pytest.raises(StoreFull):
                await store.take_snapshot()
            assert [name for name in disk.names(FOLDER) if "unfinished" in name] == []
            await store.put("/still", b"writes")
        assert store.statistics().extra["snapshots"] == 0
        disk.set_capacity(None)
        await store.take_snapshot()
        assert store.statistics().extra["snapshots"] == 1
        dead = disk.crash(keep=0.0)
    async with EmbeddedStore.open(dead, DATA) as again:
        assert len(await again.scan("", "~")) >= 31


async def test_the_abort_of_a_large_change_set_always_fits() -> None:
    """E13, C24: this holds wherever in the log the disk is full."""
    for filler in range(0, 9_000, 600):
        disk = SimulatedFiles(seed=5)
        async with EmbeddedStore.open(disk, DATA) as store:
            await store.put("/filler", b"x" * filler)
            disk.set_capacity(disk.used_bytes)
            with pytest.raises(StoreFull):
                await store.commit([Put(f"/large/{number:03}", b"x" * 1_000) for number in range(100)])
            disk.set_capacity(None)
            await store.put("/after", b"")
            dead = disk.crash(keep=0.0)
        async with EmbeddedStore.open(dead, DATA) as again:
            assert {record.key for record in await again.scan("/", "0")} == {"/filler", "/after"}


@pytest.mark.parametrize("left", [f"{1:020}-{1:010}.snapshot", f"{2:020}-{1:010}.log", f"{2:010}-{7:016x}.log"])
async def test_what_a_killed_process_left_unfinished_does_not_fill_the_disk(left: str) -> None:
    """C24: the next start makes space for its own file first."""
    disk = SimulatedFiles(seed=6)
    async with EmbeddedStore.open(disk, DATA) as store:
        await store.put("/a", b"")
        dead = disk.kill()
    file = dead.open(FOLDER / f"{left}-unfinished", create=True)
    file.write_at(0, bytes(10 * PIECE))
    file.sync()
    dead.set_capacity(dead.used_bytes)
    async with EmbeddedStore.open(dead, DATA) as again:
        assert [each.key for each in await again.scan("/", "0")] == ["/a"]
        await again.put("/b", b"")
    assert not [name for name in dead.names(FOLDER) if "unfinished" in name]
