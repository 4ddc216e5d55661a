"""Opening a folder many times, without a store that stays open long enough for a snapshot."""

import pytest

from storage.metadata import log as log_module
from storage.metadata import opening
from storage.metadata.batches import Body
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.log import ABORT_BYTES
from storage.metadata.opening import LOG_FILES_MAX, open_folder
from storage.metadata.record_codec import encode
from storage.metadata.records import LogRecord, SessionStart
from storage.metadata.store import Record
from tests.support.disk import PowerLost, SimulatedFiles
from tests.support.metadata_log import DATA, DIRECTORY


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "PREALLOCATION_BYTES", 512)


def die_at_once(disk: SimulatedFiles, key: str) -> None:
    """Open the folder, write, and die without a snapshot."""
    opened = open_folder(disk, DIRECTORY)
    revision = opened.image.revision
    records: list[LogRecord] = [SessionStart(revision + 1, 1000), Record(key, b"", revision + 2)]
    opened.log.append([Body(b"".join(map(encode, records)), len(records))])
    disk.forget_locks()


def found(disk: SimulatedFiles) -> list[str]:
    opened = open_folder(disk, DIRECTORY)
    opened.close()
    assert not opened.image.sessions
    return [each.key for each in opened.image.scan("", "~", None)]


def test_starts_that_die_soon_leave_a_bounded_folder() -> None:
    """R27, E13: otherwise log files fill the disk, and each start takes longer than the one before."""
    disk = SimulatedFiles(seed=1)
    most = largest = 0
    for number in range(4 * LOG_FILES_MAX):
        die_at_once(disk, f"/{number:04}")
        most = max(most, len(disk.names(DIRECTORY)))
        largest = max(largest, disk.used_bytes)
    assert most <= LOG_FILES_MAX + 4
    assert largest < (LOG_FILES_MAX + 2) * (3 * 512 + ABORT_BYTES)
    assert found(disk) == [f"/{number:04}" for number in range(4 * LOG_FILES_MAX)]


@pytest.mark.parametrize("loses_power", [False, True])
def test_a_start_that_dies_while_it_replaces_the_log(monkeypatch: pytest.MonkeyPatch, loses_power: bool) -> None:
    """E3, R27: whichever operation it dies at, the next one finds everything, and leaves nothing behind."""
    monkeypatch.setattr(opening, "LOG_FILES_MAX", 3)
    for operations in range(300):
        disk = SimulatedFiles(seed=operations)
        die_at_once(disk, "/a")
        die_at_once(disk, "/b")
        disk.lose_power_after(operations)
        try:
            assert found(disk.process()) == ["/a", "/b"]
        except PowerLost:
            pass
        else:
            assert operations > 60
            return
        disk = disk.crash() if loses_power else disk.kill()
        for _ in range(3):
            assert found(disk) == ["/a", "/b"]
        assert not [name for name in disk.names(DIRECTORY) if "unfinished" in name]
    raise AssertionError("the start never ended")


async def test_a_start_goes_on_without_space_for_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """C24, E13: at any space beyond its own log file, it opens with everything, and a later start replaces the log."""
    monkeypatch.setattr(opening, "LOG_FILES_MAX", 3)
    monkeypatch.setattr(log_module, "PREALLOCATION_BYTES", 4096)
    for free in range(3 * 4096 + 2048, 8 * 4096, 1024):
        disk = SimulatedFiles(seed=free)
        die_at_once(disk, "/a")
        die_at_once(disk, "/b")
        disk.set_capacity(disk.used_bytes + free)
        assert found(disk) == ["/a", "/b"]
        assert not [name for name in disk.names(DIRECTORY) if "unfinished" in name]
        disk.set_capacity(None)
        for _ in range(3):
            assert found(disk) == ["/a", "/b"]
        async with EmbeddedStore.open(disk, DATA) as store:
            await store.put("/c", b"")
        assert found(disk) == ["/a", "/b", "/c"]
