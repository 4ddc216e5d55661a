import errno
from pathlib import Path

import pytest

from storage.open_files import OpenFiles
from tests.support.disk import SimulatedFile, SimulatedFiles

FOLDER = Path("/files")


@pytest.fixture
def disk() -> SimulatedFiles:
    made = SimulatedFiles()
    made.make_dir(FOLDER)
    return made


def path(number: int) -> Path:
    return FOLDER / str(number)


def make(disk: SimulatedFiles, *numbers: int) -> None:
    for number in numbers:
        disk.open(path(number), create=True).close()


def test_descriptors_are_bounded_and_files_stay_readable(disk: SimulatedFiles) -> None:
    opened = OpenFiles(disk, descriptors_max=3)
    make(disk, *range(10))
    for number in range(10):
        opened.write(path(number), 0, [b"%d" % number])
        assert len(opened) <= 3
    for number in range(10):
        with opened.use(path(number)) as file:
            assert file.read_at(0, 9) == b"%d" % number
    assert len(opened) == 3


def test_a_file_in_use_is_not_closed(disk: SimulatedFiles) -> None:
    opened = OpenFiles(disk, descriptors_max=1)
    make(disk, *range(4))
    opened.write(path(0), 0, [b"kept"])
    with opened.use(path(0)) as file:
        for number in range(1, 4):
            opened.write(path(number), 0, [b"x"])
        opened.forget(path(0))
        opened.close()
        assert file.read_at(0, 9) == b"kept"
    with pytest.raises(AssertionError, match="closed file"):
        file.read_at(0, 9)


def test_what_was_written_is_synced_before_its_file_is_closed(disk: SimulatedFiles) -> None:
    """The system reports a failed write-back only to open descriptors."""
    opened = OpenFiles(disk, descriptors_max=1)
    make(disk, 0, 1)
    disk.sync_dir(FOLDER)
    opened.write(path(0), 0, [b"first"])
    opened.write(path(1), 0, [b"second"])
    assert disk.crash(keep=0.0).content(path(0)) == b"first"
    assert disk.crash(keep=0.0).content(path(1)) == b""
    opened.sync(path(1))
    assert disk.crash(keep=0.0).content(path(1)) == b"second"


def test_a_failed_sync_at_closing_is_told_to_who_asks_for_durability(disk: SimulatedFiles) -> None:
    opened = OpenFiles(disk, descriptors_max=1)
    make(disk, 0, 1)
    opened.write(path(0), 0, [b"lost"])
    disk.fail("sync")
    opened.write(path(1), 0, [b"unconcerned"])
    with pytest.raises(OSError, match="simulated"):
        opened.sync(path(0))


def test_an_absent_file_is_never_made(disk: SimulatedFiles) -> None:
    """C10: a later owner has removed it. Neither a write nor a sync of an earlier one brings it back."""
    opened = OpenFiles(disk)
    with pytest.raises(FileNotFoundError), opened.use(path(0)):
        raise AssertionError("it is absent")
    with pytest.raises(FileNotFoundError):
        opened.write(path(0), 0, [b"late"])
    assert len(opened) == 0
    opened.sync(path(0))
    assert disk.names(FOLDER) == []


def test_a_file_that_was_removed_after_a_write_has_nothing_to_sync(disk: SimulatedFiles) -> None:
    """C10: whether its descriptor is still open or not."""
    opened = OpenFiles(disk)
    make(disk, 0)
    for _ in range(2):
        opened.write(path(0), 0, [b"early"])
        if disk.exists(path(0)):
            disk.remove(path(0))
        opened.sync(path(0))
    opened.write(path(0), 0, [b"early"])
    opened.close()
    opened.sync(path(0))
    assert disk.names(FOLDER) == []


def test_unused_files_are_closed_when_the_process_has_no_descriptor_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """E9: whoever took the descriptors, the next ledger file is opened as long as another one can be closed."""
    files = SimulatedFiles()
    files.make_dir(FOLDER)
    opened = OpenFiles(files)
    make(files, *range(7))
    for number in range(5):
        opened.write(path(number), 0, [b"x"])
    refused = OSError(errno.EMFILE, "too many open files")
    failures = [refused]
    real = files.open

    def scarce(path: Path, *, create: bool = False, exclusive: bool = False) -> SimulatedFile:
        if failures:
            raise failures.pop()
        return real(path, create=create, exclusive=exclusive)

    monkeypatch.setattr(files, "open", scarce)
    opened.write(path(5), 0, [b"y"])
    assert len(opened) == 1
    failures[:] = [refused, refused]
    with pytest.raises(OSError, match="too many"):
        opened.write(path(6), 0, [b"z"])
