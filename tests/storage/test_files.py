"""What both disks promise, and what only the simulated one does on purpose."""

import os
import threading
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.files import AlreadyLocked, DiskFiles, DiskFull, Files, ReadOnlyFiles
from tests.support.disk import PowerLost, SimulatedFiles


@pytest.fixture(params=["disk", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, Path]:
    files: Files = DiskFiles() if request.param == "disk" else SimulatedFiles()
    root = tmp_path if request.param == "disk" else Path("/root")
    files.make_dir(root / "a" / "b")
    return files, root / "a" / "b"


def test_a_file_cannot_be_made_a_folder(place: tuple[Files, Path]) -> None:
    files, folder = place
    file = files.open(folder / "f", create=True)
    file.write_at(0, b"hello")
    for below in (folder / "f", folder / "f" / "g" / "h"):
        with pytest.raises(NotADirectoryError) as refused:
            files.make_dir(below)
        assert refused.value.filename == str(folder / "f")
    assert file.read_at(0, 100) == b"hello"


def test_bytes_are_read_where_they_were_written(place: tuple[Files, Path]) -> None:
    files, folder = place
    file = files.open(folder / "f", create=True)
    file.write_at(0, b"hello")
    file.write_at(10, bytearray(b"world"))
    file.write_at(1, memoryview(b"E"))
    assert file.size() == 15
    assert file.read_at(0, 100) == b"hEllo\0\0\0\0\0world"
    assert file.read_at(12, 2) == b"rl"
    assert file.read_at(99, 5) == b""
    file.truncate(4)
    assert file.read_at(0, 100) == b"hEll"
    file.truncate(6)
    assert file.read_at(0, 100) == b"hEll\0\0"
    file.preallocate(3 * 1024 * 1024 + 5)
    assert file.size() == 3 * 1024 * 1024 + 5
    assert file.read_at(0, 4) == b"hEll"
    assert not any(file.read_at(4, 1 << 22))
    file.preallocate(10)
    assert file.size() == 3 * 1024 * 1024 + 5
    file.sync()
    file.close()
    file.close()


def test_pieces_are_written_one_behind_the_other(place: tuple[Files, Path]) -> None:
    """There are more pieces than one system call takes."""
    files, folder = place
    file = files.open(folder / "f", create=True)
    pieces = [b"%d," % number for number in range(3_000)]
    file.write_pieces_at(7, pieces)
    file.write_pieces_at(2, [])
    file.write_pieces_at(0, [b"begins,"])
    whole = b"begins," + b"".join(pieces)
    assert file.size() == len(whole)
    assert file.read_at(0, len(whole)) == whole
    file.close()


def test_pieces_that_the_system_writes_in_part_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DiskFiles().open(tmp_path / "f", create=True)
    write_all = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, pieces, at: write_all(fd, [b"".join(pieces)[:700]], at))
    pieces = [bytes([number % 251]) * 3 for number in range(2_500)]
    file.write_pieces_at(5, pieces)
    assert file.read_at(0, 10_000) == bytes(5) + b"".join(pieces)
    file.close()


def test_names_come_and_go(place: tuple[Files, Path]) -> None:
    files, folder = place
    with pytest.raises(FileNotFoundError):
        files.open(folder / "absent")
    for name in ("b", "a"):
        files.open(folder / name, create=True, exclusive=True).close()
    with pytest.raises(FileExistsError):
        files.open(folder / "a", create=True, exclusive=True)
    assert files.names(folder) == ["a", "b"]
    files.rename(folder / "a", folder / "b")
    assert files.names(folder) == ["b"]
    assert files.exists(folder / "b")
    assert files.exists(folder)
    assert files.names(folder.parent) == ["b"]
    files.sync_dir(folder)
    files.remove(folder / "b")
    assert not files.exists(folder / "b")
    with pytest.raises(FileNotFoundError):
        files.remove(folder / "b")
    with pytest.raises(FileNotFoundError):
        files.names(folder / "none")


def test_a_removed_file_stays_readable_for_who_has_it_open(place: tuple[Files, Path]) -> None:
    files, folder = place
    file = files.open(folder / "f", create=True)
    file.write_at(0, b"kept")
    files.remove(folder / "f")
    assert file.read_at(0, 9) == b"kept"
    file.close()


def test_a_second_name_is_the_same_file(place: tuple[Files, Path]) -> None:
    """C1: of two callers that make one name, one succeeds, and neither changes what the other made."""
    files, folder = place
    file = files.open(folder / "mine", create=True)
    file.write_at(0, b"whole")
    file.close()
    files.open(folder / "other", create=True).close()
    files.link(folder / "mine", folder / "target")
    for late in ("other", "mine"):
        with pytest.raises(FileExistsError):
            files.link(folder / late, folder / "target")
    with pytest.raises(FileNotFoundError):
        files.link(folder / "absent", folder / "second")
    assert files.names(folder) == ["mine", "other", "target"]
    files.remove(folder / "mine")
    linked = files.open(folder / "target")
    assert linked.read_at(0, 9) == b"whole"
    linked.close()


def test_a_lock_has_one_holder(place: tuple[Files, Path]) -> None:
    files, folder = place
    lock = files.lock(folder / "lock")
    with pytest.raises(AlreadyLocked):
        files.lock(folder / "lock")
    lock.close()
    lock.close()
    files.lock(folder / "lock").close()
    assert files.names(folder) == ["lock"]


def test_a_shared_lock_has_many_holders(place: tuple[Files, Path]) -> None:
    """C22: a release that shares the lock and one that wants it alone keep each other out."""
    files, folder = place
    first, second = files.lock(folder / "lock", shared=True), files.lock(folder / "lock", shared=True)
    for each in (first, second):
        with pytest.raises(AlreadyLocked):
            files.lock(folder / "lock")
        each.close()
    alone = files.lock(folder / "lock")
    with pytest.raises(AlreadyLocked):
        files.lock(folder / "lock", shared=True)
    alone.close()
    files.lock(folder / "lock", shared=True).close()


def test_a_lock_belongs_to_the_file(place: tuple[Files, Path]) -> None:
    """Whoever removes a lock's file lets another process take a lock of the same path, but of another name."""
    files, folder = place
    held = files.lock(folder / "lock")
    files.remove(folder / "lock")
    another = files.lock(folder / "lock")
    assert another.name != held.name
    held.close()
    with pytest.raises(AlreadyLocked):
        files.lock(folder / "lock")
    another.close()
    again = files.lock(folder / "lock")
    assert again.name == another.name
    again.close()


def test_who_only_looks_changes_nothing(tmp_path: Path) -> None:
    file = DiskFiles().open(tmp_path / "f", create=True)
    file.write_at(0, b"hello")
    looking = ReadOnlyFiles()
    looked_at = looking.open(tmp_path / "f")
    assert looked_at.read_at(0, 100) == b"hello"
    assert looking.names(tmp_path) == ["f"]
    with pytest.raises(FileNotFoundError):
        looking.open(tmp_path / "absent")
    for change in (
        lambda: looked_at.write_at(0, b"H"),
        lambda: looked_at.truncate(1),
        lambda: looked_at.preallocate(4096),
        lambda: looking.open(tmp_path / "g", create=True),
        lambda: looking.rename(tmp_path / "f", tmp_path / "g"),
        lambda: looking.link(tmp_path / "f", tmp_path / "g"),
        lambda: looking.remove(tmp_path / "f"),
        lambda: looking.make_dir(tmp_path / "d"),
    ):
        with pytest.raises(OSError):
            change()
    assert looking.names(tmp_path) == ["f"]
    assert file.read_at(0, 100) == b"hello"


def test_many_may_look_while_nobody_writes(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    looking = ReadOnlyFiles()
    with pytest.raises(FileNotFoundError):
        looking.lock(lock, shared=True)
    writer = DiskFiles().lock(lock)
    with pytest.raises(AlreadyLocked):
        looking.lock(lock, shared=True)
    writer.close()
    first, second = looking.lock(lock, shared=True), looking.lock(lock, shared=True)
    first.close()
    with pytest.raises(AlreadyLocked):
        DiskFiles().lock(lock)
    second.close()
    DiskFiles().lock(lock).close()


async def test_a_call_that_began_is_finished_when_its_task_is_cancelled(place: tuple[Files, Path]) -> None:
    files, folder = place

    def write() -> str:
        file = files.open(folder / "f", create=True)
        file.write_at(0, b"done")
        file.close()
        scope.cancel()
        return "result"

    for run in (files.run, files.run_urgent):
        with trio.CancelScope() as scope:
            assert await run(write) == "result"
        assert files.exists(folder / "f")


async def test_nobody_waits_for_a_look_at_a_disk_that_does_not_answer(nursery: trio.Nursery) -> None:
    """E11: its thread is left alone, and is the only one."""
    files = DiskFiles()
    answers = threading.Event()
    looks: list[str] = []

    def hang() -> None:
        looks.append("first")
        trio.from_thread.run_sync(scope.cancel)
        answers.wait()

    async def look_again() -> None:
        await files.look(looks.append, "second")

    with trio.CancelScope() as scope:
        await files.look(hang)
    assert scope.cancelled_caught
    nursery.start_soon(look_again)
    await wait_all_tasks_blocked()
    assert looks == ["first"]
    answers.set()
    await files.look(looks.append, "third")
    assert looks == ["first", "second", "third"]


# -- the faults of the simulated disk


@pytest.fixture
def disk() -> SimulatedFiles:
    made = SimulatedFiles(seed=1)
    made.make_dir(Path("/d"))
    return made


FILE = Path("/d/f")


def test_a_crash_forgets_what_was_not_synced(disk: SimulatedFiles) -> None:
    file = disk.open(FILE, create=True)
    file.write_at(0, b"synced")
    file.sync()
    assert not disk.crash(keep=0.0).exists(FILE)
    disk.sync_dir(FILE.parent)
    file.write_at(0, b"UNSYNC")
    assert disk.crash(keep=0.0).content(FILE) == b"synced"
    assert disk.crash(keep=1.0).content(FILE) == b"UNSYNC"
    assert disk.kill().content(FILE) == b"UNSYNC"


def test_a_crash_tears_by_whole_sectors_and_reorders(disk: SimulatedFiles) -> None:
    file = disk.open(FILE, create=True)
    file.preallocate(4_096)
    disk.sync_dir(FILE.parent)
    for sector in range(8):
        file.write_at(sector * 512, bytes([sector + 1]) * 512)
    survivors = set()
    for _ in range(200):
        content = disk.crash(keep=0.5).content(FILE)
        kept = tuple(content[sector * 512] for sector in range(8))
        assert content == b"".join(bytes([value]) * 512 for value in kept)
        survivors.add(kept)
    assert len(survivors) > 100
    assert any(not kept[0] and kept[-1] for kept in survivors)


def test_within_a_sector_a_later_write_never_survives_without_the_earlier(disk: SimulatedFiles) -> None:
    file = disk.open(FILE, create=True)
    file.preallocate(512)
    disk.sync_dir(FILE.parent)
    file.write_at(0, b"a")
    file.write_at(1, b"b")
    found = {disk.crash(keep=0.5).content(FILE)[:2] for _ in range(100)}
    assert found == {b"\0\0", b"a\0", b"ab"}


def test_names_survive_as_a_prefix_of_what_was_done(disk: SimulatedFiles) -> None:
    for name in "abc":
        disk.open(Path("/d") / name, create=True).close()
    disk.remove(Path("/d/a"))
    found = {tuple(disk.crash(keep=0.7).names(Path("/d"))) for _ in range(200)}
    assert found == {(), ("a",), ("a", "b"), ("a", "b", "c"), ("b", "c")}


def test_a_failed_sync_may_lose_what_a_later_one_claims_to_keep(disk: SimulatedFiles) -> None:
    file = disk.open(FILE, create=True)
    disk.sync_dir(FILE.parent)
    file.write_at(0, b"x" * 5_120)
    disk.fail("sync", drops=True)
    with pytest.raises(OSError, match="simulated"):
        file.sync()
    file.sync()
    found = disk.crash(keep=1.0).content(FILE)
    assert len(file.read_at(0, 9_999)) == 5_120
    assert found.count(b"x") % 512 == 0
    assert 0 < found.count(b"x") < 5_120


def test_a_link_survives_with_what_was_synced(disk: SimulatedFiles) -> None:
    file = disk.open(FILE, create=True)
    file.write_at(0, b"whole")
    file.sync()
    disk.link(FILE, Path("/d/second"))
    disk.remove(FILE)
    found = {tuple(disk.crash(keep=0.7).names(Path("/d"))) for _ in range(200)}
    assert found == {(), ("f",), ("f", "second"), ("second",)}
    disk.sync_dir(Path("/d"))
    file.write_at(0, b"WHOLE")
    survivor = disk.crash(keep=0.0)
    assert survivor.names(Path("/d")) == ["second"]
    assert survivor.content(Path("/d/second")) == b"whole"


def test_a_full_disk_takes_no_further_name(disk: SimulatedFiles) -> None:
    disk.open(FILE, create=True).write_at(0, b"12345")
    disk.set_capacity(5)
    for change in (lambda: disk.link(FILE, Path("/d/second")), lambda: disk.lock(Path("/d/lock"))):
        with pytest.raises(DiskFull):
            change()
    assert disk.names(Path("/d")) == ["f"]


def test_locks_end_with_their_process(disk: SimulatedFiles) -> None:
    """The lock's name stays the same until the machine restarts."""
    path = Path("/d/lock")
    held = disk.lock(path)
    disk.sync_dir(path.parent)
    with pytest.raises(AlreadyLocked):
        disk.process().lock(path)
    assert disk.kill().lock(path).name == held.name
    assert disk.crash().lock(path).name != held.name


def test_power_is_lost_for_good(disk: SimulatedFiles) -> None:
    file = disk.open(FILE, create=True)
    disk.lose_power_after(1)
    file.write_at(0, b"a")
    for _ in range(2):
        with pytest.raises(PowerLost):
            file.write_at(1, b"b")
    with pytest.raises(PowerLost):
        disk.exists(FILE)


async def test_a_stopped_process_waits_before_its_next_call(disk: SimulatedFiles) -> None:
    other = disk.process()
    disk.stop()
    done: list[str] = []

    async def call() -> None:
        done.append(await disk.run(lambda: "went on"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        assert done == []
        assert await other.run(lambda: "undisturbed") == "undisturbed"
        disk.resume()
    assert done == ["went on"]


def test_damage_is_on_both_sides_of_a_crash(disk: SimulatedFiles) -> None:
    file = disk.open(FILE, create=True)
    file.write_at(0, b"\0\0\0")
    file.sync()
    disk.sync_dir(FILE.parent)
    disk.flip(FILE, 9)
    assert disk.content(FILE) == disk.crash(keep=0.0).content(FILE) == b"\0\2\0"
    disk.cut(FILE, 1)
    assert disk.content(FILE) == disk.crash(keep=0.0).content(FILE) == b"\0"
