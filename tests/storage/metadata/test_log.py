"""The log's files: appending, rolling, trimming, and what a take-over makes of them."""

from pathlib import Path

import pytest

from storage.metadata import log as log_module
from storage.metadata import log_files
from storage.metadata.batches import Body, Point
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.epochs import MetadataEpochs
from storage.metadata.image import Image
from storage.metadata.log import MetadataLog
from storage.metadata.record_codec import encode
from storage.metadata.records import BeginTransaction, FeatureLevel, TakeOver
from storage.metadata.store import Record
from storage.metadata.take_over import take_over
from tests.support.disk import PowerLost, SimulatedFiles

DIRECTORY = Path("/data/metadata")

HEADER_BYTES = 64
"""No header of a batch has as many."""


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "PREALLOCATION_BYTES", 512)


def new_disk(seed: int = 0) -> SimulatedFiles:
    disk = SimulatedFiles(seed=seed)
    disk.make_dir(DIRECTORY)
    return disk


def epochs_of(disk: SimulatedFiles) -> MetadataEpochs:
    return MetadataEpochs(disk, DIRECTORY, disk.random.getrandbits)


def recover(disk: SimulatedFiles) -> tuple[MetadataLog, list[bytes]]:
    """Begin a new epoch. Return its log, and the values that were in the log, in order."""
    started = take_over(disk, DIRECTORY, epochs_of(disk), broker="b", address=None)
    records = sorted(started.image.scan("", "~", None), key=lambda record: record.version)
    return started.log, [record.value for record in records]


def recover_behind(disk: SimulatedFiles, point: Point) -> list[bytes]:
    """Return the values that the log has behind a place, as a standby with an image of that place finds them."""
    image = Image()
    image.apply([FeatureLevel(0, 3), TakeOver(0, 1, "b")])
    started = take_over(disk, DIRECTORY, epochs_of(disk), broker="b", address=None, image=image, point=point)
    started.log.close()
    return [record.value for change_set in started.pending for record in change_set if isinstance(record, Record)]


def append(log: MetadataLog, *values: bytes) -> None:
    """Append a record for each value, each in its own batch. A value's revision is the number of its batch."""
    first = log.point.sequence + 1
    log.append([Body(encode(Record(f"/{number}", value, number)), 1) for number, value in enumerate(values, first)])


def path(number: int, epoch: int = 1) -> Path:
    return DIRECTORY / f"{number:020}-{epoch:010}.log"


def closed(number: int, epoch: int = 1) -> Path:
    return DIRECTORY / f"{number:020}-{epoch:010}.closed-log"


def logs(disk: SimulatedFiles) -> list[str]:
    return [name for name in disk.names(DIRECTORY) if name.endswith("log")]


def test_a_log_goes_on_where_it_ended() -> None:
    """M23: the next epoch reads what was appended, across preallocated pieces."""
    disk = new_disk()
    expected: list[bytes] = []
    for number in range(20):
        log, bodies = recover(disk)
        assert bodies == expected
        added = [b"%d" % number * 30, b"x"]
        append(log, *added)
        expected += added
        log.close()
    assert logs(disk) == [path(1 + 3 * number, 1 + number).name for number in range(20)]


def written(bodies: list[bytes]) -> tuple[SimulatedFiles, list[int]]:
    """Make a disk with these confirmed batches in its log. Return their starts, and the last end."""
    disk = new_disk()
    log, _ = recover(disk)
    places = [0, log.tail_bytes]
    for body in bodies:
        append(log, body)
        places.append(log.tail_bytes)
    return disk, places


HISTORY = [b"one", b"2" * 300, b"three", b"four" * 50]


def test_cut_at_every_byte() -> None:
    """R9, D9: a file of whole sectors and batches is accepted, any other was cut; the offset is named."""
    whole, places = written(HISTORY)
    assert 512 in places
    size = len(whole.content(path(1)))
    for cut in range(size + 1):
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
            # Without its first batch, the file is in no log.
            expected = (0,) if cut < places[1] else (cut, max(place for place in places if place <= cut))
            assert caught.value.offset in expected


def test_every_flipped_bit() -> None:
    """D9: damage to confirmed data is refused with file and offset; in unused space it is harmless."""
    whole, places = written(HISTORY)
    for bit in range(len(whole.content(path(1))) * 8):
        if bit // 8 > places[-1] + HEADER_BYTES and bit % 17:
            # Prepared space behind the place of the next header, of which every place is like the next.
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


def test_damage_in_a_file_that_another_epoch_follows_is_named_with_its_place() -> None:
    """D9, E3: the file and the byte, whichever epoch goes on behind it."""
    whole, places = written(HISTORY)
    append(recover(whole)[0], b"after")
    for place in places[1:-1]:
        disk = whole.kill().crash(keep=1.0)
        disk.flip(path(1), 8 * (place + 43))
        with pytest.raises(CorruptMetadata) as caught:
            recover(disk)
        assert (caught.value.path, caught.value.offset) == (path(1), place)


def test_a_log_larger_than_a_window_is_read_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """R8, D9: the borders of reads change nothing, with and without damage behind them."""
    bodies = [bytes([number]) * (7 * number) for number in range(1, 60)]
    whole, places = written(bodies)
    for window in (600, 777, 5000):
        monkeypatch.setattr(log_files, "READ_BYTES", window)
        assert recover(whole.kill())[1] == bodies
        for number in range(0, len(bodies), 7):
            disk = whole.kill().crash(keep=1.0)
            disk.flip(path(1), 8 * places[number + 1] + 8 * 45)
            with pytest.raises(CorruptMetadata) as caught:
                recover(disk)
            assert caught.value.offset == places[number + 1]


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
    append(log, b"one", b"two")
    log.roll()
    log.roll()
    append(log, b"three")
    assert logs(disk) == [closed(1).name, path(4).name]
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
    assert log.tail_files == 2
    log.trim(point.sequence)
    assert log.tail_bytes < tail
    assert log.tail_files == 1
    assert logs(disk) == [path(4).name]
    assert recover_behind(disk, point) == [b"three"]


def test_a_place_between_two_batches_of_a_file_is_found() -> None:
    """C5: a standby needs only what its image lacks, wherever in a file that begins."""
    disk = new_disk()
    log, _ = recover(disk)
    append(log, b"one", b"two")
    point = log.point
    append(log, b"three", b"four")
    assert recover_behind(disk, point) == [b"three", b"four"]


@pytest.mark.parametrize("removed", [1, 4, 5, 6])
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
    disk.remove(path(removed) if removed == 6 else closed(removed))
    with pytest.raises(CorruptMetadata, match=r"missing|no file holds|does not hold|does not begin|it ends with"):
        recover(disk)


def test_damage_at_the_end_of_a_file_that_is_not_the_last_is_corruption() -> None:
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
    log.append([Body(b"two", 1)])
    with pytest.raises(CorruptMetadata, match="a record") as caught:
        recover(disk)
    assert (caught.value.path, caught.value.offset) == (path(1), offset)


def test_what_may_not_be_open_when_a_file_ends_is_named() -> None:
    """R18: the message names the end of the file that is not the last."""
    disk = new_disk()
    log, _ = recover(disk)
    log.append([Body(encode(BeginTransaction()), 1)])
    offset = log.tail_bytes
    log.roll()
    with pytest.raises(CorruptMetadata, match="is open at the end of a file") as caught:
        recover(disk)
    assert (caught.value.path, caught.value.offset) == (closed(1), offset)


def test_files_of_other_names_are_left_alone() -> None:
    disk = new_disk()
    others = ["lock", "notes.txt", "7.log", "x" * 20 + ".log", f"{1:020}-1.log"]
    for name in others:
        disk.open(DIRECTORY / name, create=True)
    log, _ = recover(disk)
    append(log, b"one")
    assert recover(disk)[1] == [b"one"]
    assert set(others) <= set(disk.names(DIRECTORY))


def test_power_loss_at_every_operation() -> None:
    """M23, R9: confirmed batches are there, the rest is a prefix of the attempts, however the sectors settled."""
    refused = 0
    for seed in range(4):
        for operations in range(100):
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
    disk.remove(path(3))
    with pytest.raises(CorruptMetadata, match="the file is missing") as caught:
        recover(disk)
    assert caught.value.path == path(3)


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
            assert recover(disk)[1] == [*bodies, b"later"]
        else:
            assert operations > 5
            return
    raise AssertionError("the roll never ended")
