"""The log's files: recovery, rolling, trimming."""

from pathlib import Path

import pytest

from storage.metadata import log as log_module
from storage.metadata.batches import BEGINNING, Body, Point
from storage.metadata.log import CorruptMetadata, MetadataLog
from tests.support.disk import PowerLost, SimulatedFiles

DIRECTORY = Path("/data/metadata")


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "PREALLOCATION_BYTES", 256)


def new_disk(seed: int = 0) -> SimulatedFiles:
    disk = SimulatedFiles(seed=seed)
    disk.make_dir(DIRECTORY)
    return disk


def recover(disk: SimulatedFiles, after: Point = BEGINNING) -> tuple[MetadataLog, list[bytes]]:
    bodies: list[bytes] = []
    return MetadataLog.recover(disk, DIRECTORY, after, bodies.append), bodies


def append(log: MetadataLog, *bodies: bytes) -> None:
    log.append([Body(body, 1) for body in bodies])


def path(number: int) -> Path:
    return DIRECTORY / f"{number:020}.log"


def test_a_log_goes_on_where_it_ended() -> None:
    """M23: what was appended is read at the next opening, across preallocated pieces."""
    disk = new_disk()
    expected: list[bytes] = []
    for number in range(20):
        log, bodies = recover(disk)
        assert bodies == expected
        assert log.point.sequence == len(expected)
        added = [b"%d" % number * 30, b"x"]
        append(log, *added)
        expected += added
        log.close()
    assert disk.names(DIRECTORY) == [path(1).name]


def test_cut_at_every_byte() -> None:
    """R9, M23: whatever is left of the file, what is read is a prefix, and the log goes on behind it."""
    whole = new_disk()
    log, _ = recover(whole)
    history = [b"one", b"two" * 10, b"three", b"four" * 5]
    for body in history:
        append(log, body)
    size = log.tail_bytes
    for cut in range(size + 1):
        disk = whole.kill().crash(keep=1.0)
        disk.cut(path(1), cut)
        log, bodies = recover(disk)
        assert bodies == history[: len(bodies)]
        assert log.tail_bytes <= cut
        append(log, b"after")
        _, again = recover(disk)
        assert again == [*bodies, b"after"]
    assert bodies == history


def test_every_flipped_byte() -> None:
    """D9: damage to confirmed data is refused and names file and offset; only the last group's may look torn."""
    whole = new_disk()
    log, _ = recover(whole)
    history = [b"one", b"two" * 10, b"three", b"four" * 5]
    begins = []
    for body in history:
        begins.append(log.tail_bytes)
        append(log, body)
    for byte in range(whole.content(path(1)).__len__()):
        disk = whole.kill().crash(keep=1.0)
        disk.flip(path(1), byte * 8 + byte % 8)
        if byte < begins[-1]:
            with pytest.raises(CorruptMetadata) as caught:
                recover(disk)
            assert caught.value.path == path(1)
            assert caught.value.offset == max(begin for begin in begins if begin <= byte)
            assert str(path(1)) in str(caught.value)
            assert f"byte {caught.value.offset}" in str(caught.value)
        else:
            _, bodies = recover(disk)
            assert bodies == (history[:-1] if byte < log.tail_bytes else history)


def test_a_torn_tail_is_cut_for_good() -> None:
    """D9: what stood behind a torn batch never comes back, not even when the same batch is written again before it."""
    disk = new_disk()
    log, _ = recover(disk)
    append(log, b"kept")
    start = log.tail_bytes
    append(log, b"torn", b"whole but unconfirmed")
    disk.flip(path(1), start * 8 + 8 * 41)
    log, bodies = recover(disk)
    assert bodies == [b"kept"]
    append(log, b"torn")
    assert recover(disk)[1] == [b"kept", b"torn"]


@pytest.mark.parametrize("drops", [False, True])
def test_what_is_read_is_made_durable_first(drops: bool) -> None:
    """D13: a process that died between write and sync leaves bytes a power cut could still take.

    The more so when the sync failed and the operating system counts what it could not write as written.
    """
    disk = new_disk()
    log, _ = recover(disk)
    append(log, b"confirmed")
    disk.fail("sync", drops=drops)
    with pytest.raises(OSError, match="simulated"):
        append(log, b"written, not synced")
    survivor = disk.kill()
    _, bodies = recover(survivor)
    _, after_power_loss = recover(survivor.crash(keep=0.0))
    assert after_power_loss == bodies


def test_a_rolled_log_is_read_as_one() -> None:
    """R27: files follow one another; the chain of checksums goes on across them."""
    disk = new_disk()
    log, _ = recover(disk)
    log.roll()
    append(log, b"one", b"two")
    log.roll()
    log.roll()
    append(log, b"three")
    assert disk.names(DIRECTORY) == [path(1).name, path(3).name]
    log, bodies = recover(disk)
    assert bodies == [b"one", b"two", b"three"]
    append(log, b"four")
    assert recover(disk)[1][-1] == b"four"


def test_trimming_keeps_what_a_snapshot_does_not_hold() -> None:
    """R27: after a snapshot its tail alone is read, from the snapshot's place."""
    disk = new_disk()
    log, _ = recover(disk)
    append(log, b"one", b"two")
    point = log.point
    log.roll()
    append(log, b"three")
    tail = log.tail_bytes
    log.trim(point.sequence)
    assert log.tail_bytes < tail
    assert disk.names(DIRECTORY) == [path(3).name]
    assert recover(disk, point)[1] == [b"three"]


def test_files_left_over_from_trimming_are_removed() -> None:
    """R27: a crash between a snapshot and the trimming changes nothing."""
    disk = new_disk()
    log, _ = recover(disk)
    append(log, b"one", b"two")
    point = log.point
    log.roll()
    append(log, b"three")
    assert recover(disk, point)[1] == [b"three"]
    assert disk.names(DIRECTORY) == [path(3).name]


@pytest.mark.parametrize("removed", [1, 3, 4])
def test_a_missing_file_is_refused(removed: int) -> None:
    """D9: nothing is answered from less than there was."""
    disk = new_disk()
    log, _ = recover(disk)
    append(log, b"one", b"two")
    log.roll()
    append(log, b"three")
    log.roll()
    append(log, b"four")
    log.roll()
    disk.remove(path(removed))
    with pytest.raises(CorruptMetadata, match="a file is missing"):
        recover(disk)


def test_a_log_that_is_gone_beside_its_snapshot_is_refused() -> None:
    """D9: a log file that begins behind the snapshot was made before the snapshot was."""
    with pytest.raises(CorruptMetadata, match="missing"):
        recover(new_disk(), Point(7, 1))


def test_a_torn_tail_in_a_file_that_is_not_the_last_is_corruption() -> None:
    """D9: the log rolls only when all before it is durable."""
    disk = new_disk()
    log, _ = recover(disk)
    append(log, b"one")
    offset = log.tail_bytes
    append(log, b"two")
    log.roll()
    disk.flip(path(1), 8 * (offset + 10))
    with pytest.raises(CorruptMetadata) as caught:
        recover(disk)
    assert (caught.value.path, caught.value.offset) == (path(1), offset)


def test_a_body_that_cannot_be_replayed_is_named() -> None:
    """R4: the message leads to the batch."""
    disk = new_disk()
    log, _ = recover(disk)
    append(log, b"one")
    offset = log.tail_bytes
    append(log, b"two")

    def replay(body: bytes) -> None:
        if body == b"two":
            raise ValueError("no such thing")

    with pytest.raises(CorruptMetadata, match="no such thing") as caught:
        MetadataLog.recover(disk, DIRECTORY, BEGINNING, replay)
    assert caught.value.offset == offset


def test_files_of_other_names_are_left_alone() -> None:
    disk = new_disk()
    for name in ("lock", "notes.txt", "7.log", "x" * 20 + ".log"):
        disk.open(DIRECTORY / name, create=True)
    log, _ = recover(disk)
    append(log, b"one")
    assert recover(disk)[1] == [b"one"]
    assert len(disk.names(DIRECTORY)) == 5


def test_power_loss_at_every_operation() -> None:
    """M23, R9: what was confirmed is there, the rest is a prefix of what was tried, however the sectors settled."""
    refused = 0
    for seed in range(4):
        for operations in range(60):
            disk = new_disk(seed * 1000 + operations)
            disk.lose_power_after(operations)
            tried: list[bytes] = []
            confirmed = 0
            try:
                log, _ = recover(disk)
                for group in range(12):
                    bodies = [bytes([group, part]) * 200 for part in range(3)]
                    tried += bodies
                    append(log, *bodies)
                    confirmed = len(tried)
                    if group % 4 == 3:
                        log.roll()
            except PowerLost:
                refused += 1
            disk = disk.crash()
            if not disk.exists(path(1)):
                assert not confirmed
                continue
            log, bodies = recover(disk)
            assert bodies == tried[: len(bodies)]
            assert len(bodies) >= confirmed
            append(log, b"goes on")
            assert recover(disk.crash(keep=0.0))[1] == [*bodies, b"goes on"]
    assert refused
