"""The log's files: recovery, rolling, trimming."""

from pathlib import Path

import pytest

from storage.metadata import log as log_module
from storage.metadata.batches import BEGINNING, Body, Point
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.log import (
    MetadataLog,
)
from tests.support.disk import SECTOR, PowerLost, SimulatedFiles

DIRECTORY = Path("/data/metadata")


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "PREALLOCATION_BYTES", 512)


class Bodies:
    """Records what recovery reads, and whether it accepts files of any length."""

    def __init__(self, *, trusts_length: bool = True) -> None:
        self.bodies: list[bytes] = []
        self.trusts_length = trusts_length

    def batch(self, body: bytes) -> None:
        self.bodies.append(body)

    def end_file(self) -> None:
        pass


def new_disk(seed: int = 0) -> SimulatedFiles:
    disk = SimulatedFiles(seed=seed)
    disk.make_dir(DIRECTORY)
    return disk


def recover(disk: SimulatedFiles, after: Point = BEGINNING) -> tuple[MetadataLog, list[bytes]]:
    reader = Bodies()
    return MetadataLog.recover(disk, DIRECTORY, after, reader), reader.bodies


def append(log: MetadataLog, *bodies: bytes) -> None:
    log.append([Body(body, 1) for body in bodies])


def path(number: int) -> Path:
    return DIRECTORY / f"{number:020}.log"


def closed(number: int) -> Path:
    return DIRECTORY / f"{number:020}.closed-log"


def test_a_log_goes_on_where_it_ended() -> None:
    """M23: the next opening reads what was appended, across preallocated pieces."""
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


def written(bodies: list[bytes]) -> tuple[SimulatedFiles, list[int]]:
    """Make a disk with these confirmed batches in its log. Return their starts, and the last end."""
    disk = new_disk()
    log, _ = recover(disk)
    places = [0]
    for body in bodies:
        append(log, body)
        places.append(log.tail_bytes)
    return disk, places


HISTORY = [b"one", b"2" * (512 - 43 - 40), b"three", b"four" * 50]


def test_cut_at_every_byte() -> None:
    """R9, D9: a file of whole sectors and batches is accepted, any other was cut; the offset is named."""
    whole, places = written(HISTORY)
    for cut in range(len(whole.content(path(1))) + 1):
        disk = whole.kill().crash(keep=1.0)
        disk.cut(path(1), cut)
        if cut and cut % 512 == 0 and (cut in places or cut > places[-1]):
            log, bodies = recover(disk)
            assert bodies == HISTORY[: 2 if cut == 512 else 4]
            append(log, b"after")
            assert recover(disk)[1] == [*bodies, b"after"]
        else:
            with pytest.raises(CorruptMetadata) as caught:
                recover(disk)
            assert caught.value.path == path(1)
            assert caught.value.offset in (cut, max(place for place in places if place <= cut))


def test_every_flipped_bit() -> None:
    """D9: damage to confirmed data is refused with file and offset; in unused space it is harmless."""
    whole, places = written(HISTORY)
    for bit in range(len(whole.content(path(1))) * 8):
        if bit // 8 > places[-1] + SECTOR and bit % 17:
            # Prepared space, of which every place is like the next.
            continue
        disk = whole.kill().crash(keep=1.0)
        disk.flip(path(1), bit)
        if bit // 8 < places[-1]:
            with pytest.raises(CorruptMetadata) as caught:
                recover(disk)
            assert caught.value.path == path(1)
            assert caught.value.offset == max(place for place in places[:-1] if place <= bit // 8)
            assert str(path(1)) in str(caught.value)
            assert f"byte {caught.value.offset}" in str(caught.value)
        else:
            log, bodies = recover(disk)
            assert bodies == HISTORY
            append(log, b"after")
            assert recover(disk)[1] == [*bodies, b"after"]


def test_files_of_an_earlier_release_may_end_between_batches() -> None:
    """D9, R25: it cut torn tails without overwriting them, and named a file before filling it."""
    for size in (0, 100, 40 + len(HISTORY[0])):
        disk, _ = written(HISTORY[:1] if size > 100 else [])
        disk.cut(path(1), size)
        with pytest.raises(CorruptMetadata, match="the file was cut there"):
            recover(disk)
        reader = Bodies(trusts_length=False)
        log = MetadataLog.recover(disk, DIRECTORY, BEGINNING, reader)
        assert len(reader.bodies) == (size > 100)
        log.close()
        # From here on it is whole.
        assert recover(disk)[1] == reader.bodies
        append(log := recover(disk)[0], b"after")
        assert recover(disk)[1] == [*reader.bodies, b"after"]


def test_a_log_larger_than_a_window_is_read_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """R8, D9: the borders of reads change nothing, with and without damage behind them."""
    bodies = [bytes([number]) * (7 * number) for number in range(1, 60)]
    whole, places = written(bodies)
    for window in (500, 512, 777, 5000):
        monkeypatch.setattr(log_module, "READ_BYTES", window)
        assert recover(whole.kill())[1] == bodies
        for number in range(0, len(bodies), 7):
            disk = whole.kill().crash(keep=1.0)
            disk.flip(path(1), 8 * places[number] + 8 * 45)
            with pytest.raises(CorruptMetadata) as caught:
                recover(disk)
            assert caught.value.offset == places[number]


@pytest.mark.parametrize("drops", [False, True])
def test_what_is_read_is_made_durable_first(drops: bool) -> None:
    """D13: a process that died between write and sync leaves bytes that a power loss could still take.

    This matters most after a failed sync, when the operating system counts unwritten bytes as written.
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
    """R27: files follow one another, and the chain of checksums continues across them."""
    disk = new_disk()
    log, _ = recover(disk)
    log.roll()
    append(log, b"one", b"two")
    log.roll()
    log.roll()
    append(log, b"three")
    assert disk.names(DIRECTORY) == [closed(1).name, path(3).name]
    log, bodies = recover(disk)
    assert bodies == [b"one", b"two", b"three"]
    append(log, b"four")
    assert recover(disk)[1][-1] == b"four"


def test_trimming_keeps_what_a_snapshot_does_not_hold() -> None:
    """R27: after a snapshot, only the tail behind the snapshot is read."""
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


@pytest.mark.parametrize("removed", [1, 3, 4, 5])
def test_a_missing_file_is_refused(removed: int) -> None:
    """D9: the store does not serve less than there was."""
    disk = new_disk()
    log, _ = recover(disk)
    append(log, b"one", b"two")
    log.roll()
    append(log, b"three")
    log.roll()
    append(log, b"four")
    log.roll()
    log.close()
    disk.remove(path(removed) if removed == 5 else closed(removed))
    with pytest.raises(CorruptMetadata, match="file is missing"):
        recover(disk)


def test_a_log_that_is_gone_beside_its_snapshot_is_refused() -> None:
    """D9: a log file that begins after the snapshot was made before the snapshot."""
    with pytest.raises(CorruptMetadata, match="missing"):
        recover(new_disk(), Point(7, 1))


def test_a_torn_tail_in_a_file_that_is_not_the_last_is_corruption() -> None:
    """D9: the log rolls only when everything before is durable."""
    disk = new_disk()
    log, _ = recover(disk)
    append(log, b"one")
    offset = log.tail_bytes
    append(log, b"two")
    log.roll()
    disk.flip(closed(1), 8 * (offset + 10))
    with pytest.raises(CorruptMetadata) as caught:
        recover(disk)
    assert (caught.value.path, caught.value.offset) == (closed(1), offset)


def test_a_body_that_cannot_be_replayed_is_named() -> None:
    """R4: the message names the batch."""
    disk = new_disk()
    log, _ = recover(disk)
    append(log, b"one")
    offset = log.tail_bytes
    append(log, b"two")

    class Fussy(Bodies):
        def batch(self, body: bytes) -> None:
            if body == b"two":
                raise ValueError("no such thing")

    with pytest.raises(CorruptMetadata, match="no such thing") as caught:
        MetadataLog.recover(disk, DIRECTORY, BEGINNING, Fussy())
    assert caught.value.offset == offset


def test_what_may_not_be_open_when_a_file_ends_is_named() -> None:
    """R18: the message names the end of the file that is not the last."""
    disk = new_disk()
    log, _ = recover(disk)
    append(log, b"one")
    offset = log.tail_bytes
    log.roll()

    class Fussy(Bodies):
        def end_file(self) -> None:
            raise ValueError("something is open")

    with pytest.raises(CorruptMetadata, match="something is open") as caught:
        MetadataLog.recover(disk, DIRECTORY, BEGINNING, Fussy())
    assert (caught.value.path, caught.value.offset) == (closed(1), offset)


def test_files_of_other_names_are_left_alone() -> None:
    disk = new_disk()
    for name in ("lock", "notes.txt", "7.log", "x" * 20 + ".log"):
        disk.open(DIRECTORY / name, create=True)
    log, _ = recover(disk)
    append(log, b"one")
    assert recover(disk)[1] == [b"one"]
    assert len(disk.names(DIRECTORY)) == 5


def test_power_loss_at_every_operation() -> None:
    """M23, R9: confirmed batches are there, the rest is a prefix of the attempts, however the sectors settled."""
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
            if not disk.names(DIRECTORY):
                assert not confirmed
                continue
            log, bodies = recover(disk)
            assert bodies == tried[: len(bodies)]
            assert len(bodies) >= confirmed
            append(log, b"goes on")
            assert recover(disk.crash(keep=0.0))[1] == [*bodies, b"goes on"]
    assert refused


def test_a_missing_newest_file_is_damage_and_not_the_end() -> None:
    """E3: between a roll and the removal of the older file, losing the newer one must not lose its content."""
    disk = new_disk()
    log, _ = recover(disk)
    append(log, b"old")
    log.roll()
    append(log, b"confirmed in the newer file")
    log.close()
    disk.remove(path(2))
    with pytest.raises(CorruptMetadata, match="the file is missing") as caught:
        recover(disk)
    assert caught.value.path == path(2)


def test_a_roll_that_loses_power_at_any_step_goes_on() -> None:
    """E3: nothing is refused, and the older file is closed before only the newer one has data."""
    for operations in range(40):
        disk = new_disk(seed=operations)
        log, _ = recover(disk)
        append(log, b"old")
        disk.lose_power_after(operations)
        try:
            log.roll()
            append(log, b"new")
        except PowerLost:
            disk = disk.crash()
            log, bodies = recover(disk)
            assert bodies in ([b"old"], [b"old", b"new"])
            append(log, b"later")
            assert disk.names(DIRECTORY) in ([path(1).name], [closed(1).name, path(2).name])
        else:
            assert operations > 5
            return
    raise AssertionError("the roll never ended")
