"""How an epoch begins: after any death, beside a stopped controller, on a full disk, on an older release's files."""

import base64
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from storage.epoch_files import EpochTaken
from storage.files import DiskFull
from storage.metadata import log as log_module
from storage.metadata import snapshots
from storage.metadata.batches import Body
from storage.metadata.chain import OffChain
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.epochs import Deposed, MetadataEpochs
from storage.metadata.image import Image
from storage.metadata.inspection import Inspection
from storage.metadata.offline import write_snapshot
from storage.metadata.opening import open_folder
from storage.metadata.record_codec import encode
from storage.metadata.records import AbortTransaction, BeginTransaction, SnapshotNamed, TakeOver
from storage.metadata.snapshots import SnapshotName, View
from storage.metadata.store import IndexEntry, Record
from storage.metadata.take_over import Started, take_over
from tests.support.disk import PowerLost, SimulatedFiles
from tests.support.metadata_log import DATA, DIRECTORY, records_of, snapshots_in

OLDER_FOLDERS = json.loads(Path(__file__).with_name("level_2_folders.json").read_text())
"""Folders of the release before epochs, file by file, and the state that it found in each."""


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "PREALLOCATION_BYTES", 512)


def new_disk(seed: int = 0) -> SimulatedFiles:
    disk = SimulatedFiles(seed=seed)
    disk.make_dir(DIRECTORY)
    return disk


def begin(files: SimulatedFiles, broker: str = "b", **standby: object) -> Started:
    epochs = MetadataEpochs(files, DIRECTORY, files.random.getrandbits)
    return take_over(files, DIRECTORY, epochs, broker=broker, address=None, **standby)  # type: ignore[arg-type]


def put(started: Started, *keys: str, revision: int) -> None:
    started.log.append([Body(encode(Record(key, b"", number)), 1) for number, key in enumerate(keys, revision)])


def keys_of(image: Image) -> list[str]:
    return [record.key for record in image.scan("", "~", None)]


def found_keys(files: SimulatedFiles) -> list[str]:
    """Return what the next controller finds."""
    started = begin(files)
    started.close()
    return keys_of(started.image)


def older_folder(name: str, seed: int = 0) -> SimulatedFiles:
    disk = new_disk(seed)
    for path, content in OLDER_FOLDERS[name]["files"].items():
        file = disk.open(DIRECTORY / path, create=True)
        file.write_at(0, zlib.decompress(base64.b64decode(content)))
        file.sync()
    disk.sync_dir(DIRECTORY)
    return disk


def state_of(image: Image) -> dict[str, object]:
    records = [
        [each.key, each.value.decode(), each.version, [list(entry) for entry in each.indexes], each.partition_key]
        for each in image.scan("", "\U0010ffff", None)
    ]
    return {"revision": image.revision, "sequence": image.sequence, "records": records}


def state_in(files: SimulatedFiles) -> dict[str, object]:
    opened = open_folder(files, DIRECTORY)
    opened.close()
    return state_of(opened.image)


# -- one after another


def test_each_start_is_an_epoch() -> None:
    """C1: it has its own file, whose first record says whose it is, and its predecessors' fences go."""
    disk = new_disk()
    for number in range(1, 5):
        started = begin(disk, f"broker-{number}")
        assert started.epoch.epoch == started.image.epoch == number
        assert started.image.taken_over == TakeOver(number - 1, number, f"broker-{number}")
        put(started, f"/{number}", revision=number)
        started.close()
    names = disk.names(DIRECTORY)
    assert [name for name in names if "fence" in name or "lock" in name] == [
        "controller-0000000004.lock",
        "fence-0000000004",
    ]
    assert [name for name in names if "log" in name] == [
        f"{2 * number - 1:020}-{number:010}.log" for number in range(1, 5)
    ]
    assert found_keys(disk) == ["/1", "/2", "/3", "/4"]


def test_a_deposed_controller_confirms_nothing() -> None:
    """C1, C3: its next append fails, and what it wrote is not in the log."""
    disk = new_disk()
    old = begin(disk)
    put(old, "/confirmed", revision=1)
    new = begin(disk.process())
    assert keys_of(new.image) == ["/confirmed"]
    with pytest.raises(Deposed):
        put(old, "/lost", revision=2)
    put(new, "/new", revision=2)
    assert found_keys(disk) == ["/confirmed", "/new"]


def test_an_open_transaction_is_aborted_in_the_first_batch() -> None:
    """R17, R19, R20: once, whoever wrote its begin."""
    disk = new_disk()
    started = begin(disk)
    begun = encode(BeginTransaction("t")) + encode(Record("/t", b"", 1))
    started.log.append([Body(begun, 2)])
    for _ in range(3):
        assert found_keys(disk) == []
    aborts = [record for record in records_of(disk) if isinstance(record, AbortTransaction)]
    assert len(aborts) == 1


def test_two_that_want_the_same_epoch() -> None:
    """C1: one of them gets it, at whichever operation of the other it begins."""
    for place in range(1, 200):
        disk = new_disk(place)
        first = begin(disk)
        put(first, "/a", revision=1)
        other = disk.process()
        winners: list[Started] = []
        count = 0

        def act(_operation: str, _path: Path) -> None:
            nonlocal count
            count += 1
            if count == place:  # noqa: B023 - called within this round only
                other.before = None  # noqa: B023
                winners.append(begin(disk, "winner"))  # noqa: B023

        other.before = act
        try:
            slower = begin(other, "slower")
        except (EpochTaken, Deposed):
            slower = None
        other.before = None
        if not winners:
            assert place > 40
            return
        confirmed = []
        for started, key in ((winners[0], "/w"), *(() if slower is None else ((slower, "/s"),))):
            try:
                put(started, key, revision=2)
                confirmed.append(key)
            except Deposed:
                pass
        assert len(confirmed) == 1
        assert found_keys(disk) == ["/a", *confirmed]
    raise AssertionError("the take-over never ended")


# -- deaths


@pytest.mark.parametrize("loses_power", [False, True])
def test_a_take_over_that_dies_at_any_operation(loses_power: bool) -> None:
    """C1, R17, E3: the next one finds what was confirmed, and nothing is refused."""
    for operations in range(200):
        disk = new_disk(operations)
        started = begin(disk)
        put(started, "/a", "/b", revision=1)
        started.log.append([Body(encode(BeginTransaction("t")) + encode(Record("/t", b"", 3)), 2)])
        disk.lose_power_after(operations)
        try:
            begin(disk.process())
        except PowerLost:
            pass
        else:
            assert operations > 40
            return
        disk = disk.crash() if loses_power else disk.kill()
        for _ in range(2):
            assert found_keys(disk) == ["/a", "/b"]
        assert len([each for each in records_of(disk) if isinstance(each, AbortTransaction)]) == 1
        assert not [name for name in disk.names(DIRECTORY) if "unfinished" in name]
    raise AssertionError("the take-over never ended")


# -- a stop at each operation, and a wake behind a successor


def appending(_files: SimulatedFiles, started: Started) -> Iterator[str]:
    """Append. Yields each key that was confirmed."""
    for revision, key in ((3, "/c"), (4, "/d")):
        put(started, key, revision=revision)
        yield key


def rolling(_files: SimulatedFiles, started: Started) -> Iterator[str]:
    started.log.roll()
    put(started, "/c", revision=3)
    yield "/c"


def taking_a_snapshot(files: SimulatedFiles, started: Started) -> Iterator[str]:
    started.image.apply([Record("/a", b"", 1), Record("/b", b"", 2)])
    started.log.roll()
    view = View(started.image, started.log.point)
    write_at_once(files, view, started.epoch.epoch)
    started.log.append([Body(encode(SnapshotNamed(2, *view.point, started.epoch.epoch)), 1)])
    snapshots.finish(files, DIRECTORY, SnapshotName(view.point.sequence, started.epoch.epoch))
    started.log.trim(view.point.sequence)
    put(started, "/c", revision=3)
    yield "/c"


def taking_over_again(files: SimulatedFiles, _started: Started) -> Iterator[str]:
    again = begin(files)
    put(again, "/c", revision=again.image.revision + 1)
    yield "/c"


def succeed(files: SimulatedFiles) -> tuple[int, list[str]]:
    """Take over, write, take a snapshot, and write on. Return the epoch and the keys."""
    epochs = MetadataEpochs(files, DIRECTORY, files.random.getrandbits)
    started = take_over(files, DIRECTORY, epochs, broker="s", address=None)
    image, epoch = started.image, started.epoch.epoch
    revision = image.revision + 1
    put(started, "/s1", revision=revision)
    image.apply([Record("/s1", b"", revision)])
    started.log.roll()
    view = View(image, started.log.point)
    name = SnapshotName(view.point.sequence, epoch)
    write_at_once(files, view, epoch)
    started.log.append([Body(encode(SnapshotNamed(revision, *view.point, epoch)), 1)])
    snapshots.finish(files, DIRECTORY, name)
    started.log.trim(name.sequence)
    put(started, "/s2", revision=revision + 1)
    return epoch, [*keys_of(image), "/s2"]


def write_at_once(files: SimulatedFiles, view: View, epoch: int) -> None:
    """Write a snapshot inside a synchronous hook."""
    writing = snapshots.write(files, DIRECTORY, view, epoch, turn=_no_pause)
    steps = writing.__await__()
    while True:
        try:
            next(steps)
        except StopIteration:
            return


async def _no_pause() -> None:
    """Nobody else runs."""


class AtOnce(SimulatedFiles):
    """A process whose disk calls need no event loop."""

    async def run(self, call: Callable[..., object], *args: object) -> object:  # type: ignore[override]
        return call(*args)


def process_of(disk: SimulatedFiles) -> AtOnce:
    other = AtOnce()
    other._disk = disk._disk
    return other


@pytest.mark.parametrize("act", [appending, rolling, taking_a_snapshot, taking_over_again])
def test_a_controller_that_stops_at_any_operation_and_wakes_behind_a_successor(
    act: Callable[[SimulatedFiles, Started], Iterator[str]],
) -> None:
    """C1, C2: it changes no byte and no name of the successor, and nobody ever finds what it did since."""
    for place in range(1, 300):
        disk = new_disk(place)
        stopped = process_of(disk)
        started = begin(stopped)
        put(started, "/a", "/b", revision=1)
        count = 0
        epoch = 0
        keys: list[str] = []
        before: dict[str, bytes] = {}

        def meanwhile(_operation: str, _path: Path) -> None:
            nonlocal count, epoch, keys, before
            count += 1
            if count == place:  # noqa: B023 - called within this round only
                stopped.before = None  # noqa: B023
                epoch, keys = succeed(process_of(disk))  # noqa: B023
                before = contents_of(disk, epoch)  # noqa: B023

        stopped.before = meanwhile
        confirmed: list[str] = []
        with suppress(Deposed, EpochTaken, FileNotFoundError):
            confirmed.extend(act(stopped, started))
        stopped.before = None
        if not epoch:
            assert place > 4
            return
        assert contents_of(disk, epoch) == before
        if act is not taking_over_again:
            assert set(confirmed) <= set(keys)
        found = begin(disk)
        assert sorted(keys_of(found.image)) == sorted({*keys, *confirmed})
        found.close()
    raise AssertionError("it never ended")


def contents_of(disk: SimulatedFiles, epoch: int) -> dict[str, bytes]:
    """Return the successor's log files and snapshots."""
    names = [name for name in disk.names(DIRECTORY) if f"-{epoch:010}" in name and name[0] == "0"]
    assert len(names) == 2
    return {name: disk.content(DIRECTORY / name) for name in names}


# -- a full disk


def test_a_full_disk_changes_no_epoch() -> None:
    """C24: at any size that is left, either the epoch begins, or everything is as it was."""
    begun = refused = 0
    for free in range(0, 4000, 97):
        disk = new_disk()
        old = begin(disk)
        put(old, "/a", revision=1)
        names = disk.names(DIRECTORY)
        disk.set_capacity(disk.used_bytes + free)
        try:
            begin(disk.process()).close()
            begun += 1
        except DiskFull:
            refused += 1
            assert [name for name in disk.names(DIRECTORY) if "controller" not in name] == [
                name for name in names if "controller" not in name
            ]
            put(old, "/b", revision=2)
        disk.set_capacity(None)
        assert found_keys(disk)[0] == "/a"
    assert begun
    assert refused > 5


# -- damage


def test_every_byte_of_a_fence() -> None:
    """E3, D9: a damaged fence is refused by name; an epoch that has begun never passes for one that has not."""
    disk = new_disk()
    started = begin(disk)
    put(started, "/a", revision=1)
    started.close()
    path = DIRECTORY / "fence-0000000001"
    written = len(disk.content(path).rstrip(b"\0")) * 8
    for bit in range(len(disk.content(path)) * 8):
        damaged = disk.crash(keep=1.0)
        damaged.flip(path, bit)
        if bit < written:
            with pytest.raises(CorruptMetadata, match="fence-0000000001"):
                begin(damaged)
        elif bit % 5 == 0:
            with suppress(CorruptMetadata):
                assert found_keys(damaged) == ["/a"]


def test_a_missing_fence_or_log_is_refused() -> None:
    """E3: a log without its fence, and a fence without its log."""
    for removed in ("fence-0000000001", f"{1:020}-{1:010}.log"):
        disk = new_disk()
        started = begin(disk)
        put(started, "/a", revision=1)
        started.close()
        disk.remove(DIRECTORY / removed)
        with pytest.raises(CorruptMetadata, match="missing"):
            begin(disk)


async def test_zeros_in_place_of_the_log_behind_a_snapshot_are_refused() -> None:
    """E3: the log names each snapshot before the snapshot gets its name, so it cannot be empty there."""
    disk = new_disk()
    async with EmbeddedStore.open(disk, DATA) as store:
        await store.put("/a", b"")
        await store.take_snapshot()
        await store.put("/b", b"")
    (name,) = [each for each in disk.names(DIRECTORY) if each.endswith(".log")]
    file = disk.open(DIRECTORY / name)
    file.write_at(0, bytes(file.size()))
    with pytest.raises(CorruptMetadata, match=f"{name}: damaged at byte 0: it does not begin with a whole batch"):
        begin(disk)


async def test_a_log_that_ends_before_the_snapshot_is_damage() -> None:
    """E3: as after an old copy of the log was put back. The error names the snapshot, so that a person can act."""
    disk = new_disk()
    async with EmbeddedStore.open(disk, DATA) as store:
        await store.put("/a", b"")
        old = disk.content(DIRECTORY / f"{1:020}-{1:010}.log")
        await store.put("/b", b"")
        await store.take_snapshot()
    (name,) = [each for each in disk.names(DIRECTORY) if each.endswith(".log")]
    (snapshot,) = snapshots_in(disk.names(DIRECTORY))
    disk.remove(DIRECTORY / name)
    file = disk.open(DIRECTORY / f"{1:020}-{1:010}.log", create=True)
    file.write_at(0, old)
    file.sync()
    with pytest.raises(CorruptMetadata, match=f"{snapshot}: damaged at byte 0: batch .* is not in the log that ends"):
        begin(disk)
    with pytest.raises(CorruptMetadata, match=snapshot):
        Inspection(disk, DIRECTORY).state(lambda _size: None)


# -- standbys


def test_a_standby_gets_what_its_image_lacks() -> None:
    """C5: as change sets to show, in order; its image does not change meanwhile."""
    disk = new_disk()
    leader = begin(disk)
    image, point = begin_image(leader)
    put(leader, "/a", "/b", revision=1)
    started = begin(disk.process(), image=image, point=point)
    assert started.image is image
    assert keys_of(image) == []
    assert [type(each[0]) for each in started.pending] == [Record, Record, TakeOver]
    for change_set in started.pending:
        image.apply(change_set)
    assert keys_of(image) == ["/a", "/b"]
    assert image.epoch == started.epoch.epoch == 2


def begin_image(leader: Started) -> tuple[Image, object]:
    """Return a follower's image at the leader's place."""
    image = Image()
    image.feature_level = leader.image.feature_level
    image.taken_over = leader.image.taken_over
    return image, leader.log.point


def test_a_standby_that_is_too_far_behind_gets_a_new_image() -> None:
    """C5: the log was trimmed behind its place."""
    disk = new_disk()
    leader = begin(disk)
    image, point = begin_image(leader)
    put(leader, "/a", "/b", revision=1)
    assert list(taking_a_snapshot(process_of(disk), leader)) == ["/c"]
    started = begin(disk.process(), image=image, point=point)
    assert started.image is not image
    assert keys_of(started.image) == ["/a", "/b", "/c"]
    assert started.pending == []


def test_a_standby_off_the_log_does_not_begin() -> None:
    """C1: its image holds what is not in the log."""
    disk = new_disk()
    leader = begin(disk)
    image, _ = begin_image(leader)
    put(leader, "/a", revision=1)
    with pytest.raises(OffChain):
        begin(disk.process(), image=image, point=leader.log.point._replace(crc=7))
    put(leader, "/b", revision=2)


# -- the release before epochs


@pytest.mark.parametrize("name", OLDER_FOLDERS)
def test_an_older_folder_is_upgraded(name: str) -> None:
    """C22: the state is the one that the older release found, and that release refuses the folder from then on."""
    disk = older_folder(name)
    for _ in range(3):
        assert state_in(disk) == OLDER_FOLDERS[name]["state"]
    names = disk.names(DIRECTORY)
    older = [each for each in names if each.endswith("log") and len(each.split(".")[0]) == 20]
    assert older == [each.replace(".log", ".closed-log") for each in OLDER_FOLDERS[name]["files"] if "log" in each]
    aborts = [record for record in records_of(disk) if isinstance(record, AbortTransaction)]
    assert len(aborts) == (name == "unfinished")


@pytest.mark.parametrize("name", OLDER_FOLDERS)
@pytest.mark.parametrize("loses_power", [False, True])
def test_an_upgrade_that_dies_at_any_operation_is_continued(name: str, loses_power: bool) -> None:
    """C22, R20: nothing is lost or refused, and an open transaction is aborted once."""
    for operations in range(200):
        disk = older_folder(name, seed=operations)
        disk.lose_power_after(operations)
        try:
            state_in(disk)
        except PowerLost:
            pass
        else:
            assert operations > 20
            return
        disk = disk.crash() if loses_power else disk.kill()
        for _ in range(2):
            assert state_in(disk) == OLDER_FOLDERS[name]["state"]
        aborts = [record for record in records_of(disk) if isinstance(record, AbortTransaction)]
        assert len(aborts) == (name == "unfinished")
    raise AssertionError("the upgrade never ended")


@pytest.mark.parametrize("name", OLDER_FOLDERS)
async def test_an_upgraded_folder_goes_back(name: str) -> None:
    """C22, R26: with what was written since, and under the older release's names alone."""
    disk = older_folder(name)
    async with EmbeddedStore.open(disk, DATA) as store:
        await store.put("/since", b"", indexes=(IndexEntry("i", "k"),))
    info = await write_snapshot(disk, DATA, feature_level=2)
    assert disk.names(DIRECTORY) == [f"{info.sequence:020}.snapshot", f"{info.sequence + 1:020}.log", "lock"]
    async with EmbeddedStore.open(disk.crash(keep=0.0), DATA) as store:
        assert await store.get("/since") is not None
        assert len(await store.scan("", "\U0010ffff")) == info.records


def test_the_lock_of_a_stopped_older_broker_refuses_the_upgrade() -> None:
    """C22: nothing in its folder changes."""
    disk = older_folder("log")
    names = disk.names(DIRECTORY)
    disk.process().lock(DIRECTORY / "lock")
    with pytest.raises(OSError, match="held elsewhere"):
        open_folder(disk, DIRECTORY)
    assert disk.names(DIRECTORY) == names
