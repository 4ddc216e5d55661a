"""Controllers on one disk. `process()` makes another process."""

import random
from pathlib import Path

import pytest

from storage.epoch_files import EpochTaken
from storage.files import DiskFull
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.epochs import Deposed, FoundEpoch, MetadataEpochs
from tests.support.disk import PowerLost, SimulatedFiles

FOLDER = Path("/metadata")
ADDRESS = "pulsar://10.0.0.7:6650"


@pytest.fixture
def files() -> SimulatedFiles:
    made = SimulatedFiles()
    made.make_dir(FOLDER)
    return made


def epochs(files: SimulatedFiles, seed: int = 0) -> MetadataEpochs:
    return MetadataEpochs(files, FOLDER, random.Random(seed).getrandbits)


def test_a_controller_is_found_by_its_fence(files: SimulatedFiles) -> None:
    """C5: followers learn from it where the controller is."""
    assert epochs(files).newest() is None
    lock = epochs(files).controller_lock(1)
    first = epochs(files).claim(1, "broker-1", ADDRESS, lock)
    found = epochs(files).newest()
    assert found == first.found
    assert found is not None
    assert (found.epoch, found.broker, found.address, found.is_locked, found.first) == (1, "broker-1", ADDRESS, True, 0)
    second = epochs(files, 2).claim(2, "broker-2", None, None)
    second.note_begun(17)
    found = epochs(files).newest()
    assert found == second.found
    assert found is not None
    assert (found.epoch, found.address, found.is_locked, found.first) == (2, None, False, 17)
    assert [each.epoch for each in epochs(files).found()] == [1, 2]


def test_a_successor_deposes_the_controller(files: SimulatedFiles) -> None:
    """C3, C4: from the moment its fence exists; a later claim of the same epoch changes nothing."""
    first = epochs(files).claim(1, "broker-1", ADDRESS, None)
    first.check()
    second = epochs(files, 2).claim(2, "broker-2", ADDRESS, None)
    with pytest.raises(Deposed):
        first.check()
    with pytest.raises(EpochTaken):
        epochs(files, 3).claim(2, "broker-3", ADDRESS, None)
    second.check()
    assert epochs(files).newest() == second.found
    epochs(files).remove_older(second)
    with pytest.raises(Deposed):
        first.check()
    with pytest.raises(Deposed):
        first.note_begun(3)
    assert files.names(FOLDER) == ["fence-0000000002"]


def test_a_free_lock_proves_that_the_controller_has_ended(files: SimulatedFiles) -> None:
    """C13: and nothing else does. A stopped process keeps its lock."""
    lock = epochs(files).controller_lock(1)
    assert lock is not None
    first = epochs(files).claim(1, "broker-1", ADDRESS, lock)
    other = epochs(files.process(), 2)
    assert other.controller_lock(1) is None
    assert not other.has_ended(first.found)
    assert other.has_ended(first.found) is False
    first.close()
    first.close()
    assert other.has_ended(first.found)
    assert other.has_ended(first.found), "looking keeps no lock"
    unlocked = epochs(files).claim(2, "broker-1", ADDRESS, None)
    assert not other.has_ended(unlocked.found), "its maker never held this lock"
    assert epochs(files.kill()).has_ended(first.found)


def test_a_new_controller_removes_what_earlier_ones_left(files: SimulatedFiles) -> None:
    """C1: by number, so a stopped one that does so later removes nothing of its successors."""
    taken = []
    for epoch in (1, 2, 3):
        taken.append(epochs(files, epoch).claim(epoch, "b", None, epochs(files).controller_lock(epoch)))
        files.open(FOLDER / f"beat-{epoch:010d}", create=True).close()
    files.open(FOLDER / "00000000000000000001-0000000001.log", create=True).close()
    files.open(FOLDER / f"fence-{7:016x}.unfinished", create=True).close()
    before = files.names(FOLDER)
    epochs(files).remove_older(taken[0])
    assert files.names(FOLDER) == [name for name in before if not name.endswith("unfinished")]
    epochs(files).remove_older(taken[2])
    assert files.names(FOLDER) == [
        "00000000000000000001-0000000001.log",
        "beat-0000000003",
        "controller-0000000003.lock",
        "fence-0000000003",
    ]
    taken[2].check()


def test_two_may_remove_at_once(files: SimulatedFiles) -> None:
    """C1: a deposed controller wakes inside its removals."""
    first = epochs(files).claim(1, "b", None, epochs(files).controller_lock(1))
    second = epochs(files, 2).claim(2, "b", None, None)
    third = epochs(files, 3).claim(3, "b", None, None)
    woken = files.process()

    def overtake(operation: str, _path: Path) -> None:
        if operation == "remove":
            woken.before = None
            epochs(files).remove_older(third)

    woken.before = overtake
    epochs(woken).remove_older(second)
    assert files.names(FOLDER) == ["fence-0000000003"]
    first.close()


def test_a_damaged_fence_is_named(files: SimulatedFiles) -> None:
    """E3: each flipped bit, each cut, and the fence of another epoch."""
    taken = epochs(files).claim(1, "broker-1", ADDRESS, None)
    path = FOLDER / "fence-0000000001"
    whole = files.content(path)
    assert FoundEpoch.decode(whole) == taken.found
    for bit in range(0, 8 * len(whole), 7):
        files.flip(path, bit)
        with pytest.raises(CorruptMetadata, match="fence-0000000001"):
            epochs(files).newest()
        files.flip(path, bit)
    assert epochs(files).newest() == taken.found
    files.link(path, FOLDER / "fence-0000000002")
    with pytest.raises(CorruptMetadata, match="the fence of epoch 1"):
        epochs(files).newest()
    files.remove(FOLDER / "fence-0000000002")
    for size in (100, 8, 0):
        files.cut(path, size)
        with pytest.raises(CorruptMetadata, match="fence-0000000001"):
            epochs(files).newest()


def test_a_fence_that_is_removed_while_it_is_read_is_not_damage(files: SimulatedFiles) -> None:
    epochs(files).claim(1, "b", None, None)
    reader = files.process()

    def overtake(operation: str, _path: Path) -> None:
        if operation == "open":
            reader.before = None
            epochs(files, 2).remove_older(epochs(files, 2).claim(2, "b", ADDRESS, None))

    reader.before = overtake
    found = epochs(reader).newest()
    assert found is not None
    assert (found.epoch, found.address) == (2, ADDRESS)


def test_a_full_disk_deposes_nobody(files: SimulatedFiles) -> None:
    """C24: a standby finds no space for its lock or for its fence."""
    first = epochs(files).claim(1, "broker-1", ADDRESS, None)
    used = files.used_bytes
    files.set_capacity(used)
    with pytest.raises(DiskFull):
        epochs(files, 2).controller_lock(2)
    for free in range(0, 513, 64):
        files.set_capacity(used + free)
        with pytest.raises(DiskFull):
            epochs(files, 2).claim(2, "broker-2", ADDRESS, None)
        first.check()
    first.note_begun(9)
    assert epochs(files).newest() == first.found


def test_the_largest_names_fit() -> None:
    """E8: the longest broker id and host name."""
    largest = FoundEpoch(2**33 - 1, "b" * 64, f"pulsar+ssl://{'h' * 255}:65535", 2**64 - 1, False, 2**63)
    assert FoundEpoch.decode(largest.encode()) == largest


def test_a_controller_that_began_is_found_after_a_power_loss() -> None:
    """E3: power is lost at each operation of a claim and of the note that its log has a file."""
    moment = 0
    is_over = False
    while not is_over:
        disk = SimulatedFiles(seed=moment)
        disk.make_dir(FOLDER)
        disk.sync_dir(FOLDER)
        disk.lose_power_after(moment)
        done = 0
        try:
            taken = epochs(disk).claim(1, "b", ADDRESS, None)
            done = 1
            taken.note_begun(5)
            is_over = True
        except PowerLost:
            pass
        for _ in range(20):
            found = epochs(disk.crash()).newest()
            assert found is not None or not done
            assert found is None or found.first in (0, 5)
            assert not is_over or (found is not None and found.first == 5)
        moment += 1
