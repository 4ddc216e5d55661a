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


def test_descriptors_are_bounded_and_files_stay_readable(disk: SimulatedFiles) -> None:
    opened = OpenFiles(disk, descriptors_max=3)
    for number in range(10):
        opened.write(path(number), 0, [b"%d" % number])
        assert len(opened) <= 3
    for number in range(10):
        with opened.use(path(number)) as file:
            assert file.read_at(0, 9) == b"%d" % number
    assert len(opened) == 3


def test_a_file_in_use_is_not_closed(disk: SimulatedFiles) -> None:
    opened = OpenFiles(disk, descriptors_max=1)
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
    opened.write(path(0), 0, [b"first"])
    opened.write(path(1), 0, [b"second"])
    disk.sync_dir(FOLDER)
    assert disk.crash(keep=0.0).content(path(0)) == b"first"
    assert disk.crash(keep=0.0).content(path(1)) == b""
    opened.sync(path(1))
    assert disk.crash(keep=0.0).content(path(1)) == b"second"


def test_a_failed_sync_at_closing_is_told_to_who_asks_for_durability(disk: SimulatedFiles) -> None:
    opened = OpenFiles(disk, descriptors_max=1)
    opened.write(path(0), 0, [b"lost"])
    disk.fail("sync")
    opened.write(path(1), 0, [b"unconcerned"])
    with pytest.raises(OSError, match="simulated"):
        opened.sync(path(0))


def test_an_absent_file_is_made_only_on_demand(disk: SimulatedFiles) -> None:
    opened = OpenFiles(disk)
    with pytest.raises(FileNotFoundError), opened.use(path(0)):
        raise AssertionError("it is absent")
    assert len(opened) == 0
    opened.sync(path(0))


def test_unused_files_are_closed_when_the_process_has_no_descriptor_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """E9: whoever took the descriptors, the next ledger file is opened as long as another one can be closed."""
    files = SimulatedFiles()
    files.make_dir(FOLDER)
    opened = OpenFiles(files)
    for number in range(5):
        opened.write(FOLDER / f"{number}", 0, [b"x"])
    refused = OSError(errno.EMFILE, "too many open files")
    failures = [refused]
    real = files.open

    def scarce(path: Path, *, create: bool = False, exclusive: bool = False) -> SimulatedFile:
        if failures:
            raise failures.pop()
        return real(path, create=create, exclusive=exclusive)

    monkeypatch.setattr(files, "open", scarce)
    opened.write(FOLDER / "another", 0, [b"y"])
    assert len(opened) == 1
    failures[:] = [refused, refused]
    with pytest.raises(OSError, match="too many"):
        opened.write(FOLDER / "one more", 0, [b"z"])
