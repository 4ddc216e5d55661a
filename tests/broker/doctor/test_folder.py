"""What the doctor reads from a data folder on a real disk, without changing it."""

from pathlib import Path

from broker.doctor.facts import Fence
from broker.doctor.folder import read_folder
from storage.files import DiskFiles, ReadOnlyFiles
from storage.metadata.opening import metadata_directory, open_folder


def test_a_copy_without_locks_is_read(tmp_path: Path) -> None:
    """E1: a backup may leave the empty files out. Then no process holds them."""
    directory = metadata_directory(tmp_path)
    open_folder(DiskFiles(), directory, broker="one").close()
    for lock in directory.glob("*lock"):
        lock.unlink()
    before = sorted(tmp_path.rglob("*"))
    assert read_folder(ReadOnlyFiles(), tmp_path).facts.fence == Fence(1, "one", has_ended=True)
    assert sorted(tmp_path.rglob("*")) == before
