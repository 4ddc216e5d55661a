"""Snapshots: what they contain, what they refuse, and that they equal the log that they replace."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.metadata import snapshots
from storage.metadata.batches import BEGINNING, Body, Damage, Point, encode_batches, read_batches
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.delta import Delta
from storage.metadata.image import Image, Written
from storage.metadata.outcomes import Made, Run, WriteId
from storage.metadata.record_codec import decode, encode
from storage.metadata.records import (
    AbortTransaction,
    BeginTransaction,
    EndTransaction,
    FeatureLevel,
    LogRecord,
    SnapshotFooter,
    SnapshotHeader,
    SnapshotNamed,
    TakeOver,
)
from storage.metadata.snapshots import SnapshotName
from storage.metadata.store import Delete, DeleteRange, IndexEntry, Op, Put, PutSequential, Record
from tests.support.disk import PowerLost, SimulatedFiles

DIRECTORY = Path("/data/metadata")
POINT = Point(7, 1234)
EPOCH = 3
PATH = DIRECTORY / f"{7:020}-{EPOCH:010}.snapshot"


def new_disk(seed: int = 0) -> SimulatedFiles:
    disk = SimulatedFiles(seed=seed)
    disk.make_dir(DIRECTORY)
    return disk


def change(image: Image, decide: Callable[[Delta], object]) -> list[Written]:
    delta = Delta(image)
    decide(delta)
    return [written for change_set in delta.change_sets for written in image.apply(change_set)]


def commit(image: Image, *ops: Op) -> list[Written]:
    return change(image, lambda delta: delta.commit(ops))


def sample() -> Image:
    image = Image()
    change(image, lambda delta: delta.set_feature_level(1))
    change(image, lambda delta: delta.open_session(5000))
    for number in range(600):
        commit(image, Put(f"/{number % 577}", b"%d" % number, indexes=(IndexEntry("i", f"{number % 7}"),)))
    commit(image, PutSequential("/op/1", b"x", "1"), Delete("/5"))
    commit(image, DeleteRange("/op", "/op0"), DeleteRange("/10", "/12"))
    image.apply([Record("/e", b"", image.revision + 1, (), "p", session=1)])
    return image


def state(image: Image) -> object:
    """Return everything in an image, as a comparable value."""
    return (
        image.revision,
        image.sequence,
        image.feature_level,
        {session: (state.timeout_ms, sorted(state.keys)) for session, state in image.sessions.items()},
        image.scan("", "\U0010ffff", None),
        image.query("i", "", "\U0010ffff", None),
    )


async def write(disk: SimulatedFiles, view: snapshots.View) -> int:
    """Write a snapshot, and give it its name, as if the log named it."""
    size = await snapshots.write(disk, DIRECTORY, view, EPOCH)
    snapshots.finish(disk, DIRECTORY, SnapshotName(view.point.sequence, EPOCH))
    return size


async def write_and_load(image: Image) -> Image:
    disk = new_disk()
    size = await write(disk, snapshots.View(image, POINT))
    loaded = snapshots.load_newest(disk, DIRECTORY)
    assert loaded[1:] == (POINT, SnapshotName(7, EPOCH), size)
    return loaded.image


async def test_a_snapshot_is_the_state() -> None:
    """R27: records with versions, indexes, sessions, counters and revision are restored."""
    image = sample()
    loaded = await write_and_load(image)
    assert state(loaded) == state(image)
    for both in (image, loaded):
        commit(both, PutSequential("/op/2", b"", "2"), DeleteRange("/2", "/3"))
        change(both, lambda delta: delta.end_sessions([1]))
    assert state(loaded) == state(image)


def sample_of_a_cluster() -> Image:
    """Return the state of a store with a link's session and the outcomes of its writes."""
    image = Image()
    image.apply([FeatureLevel(0, 3), TakeOver(0, 6, "b", "localhost:1")])
    change(image, lambda delta: delta.open_session(5000, "c", 77))
    for number in (1, 2, 3):
        delta = Delta(image)
        revision = delta.commit([Put(f"/{number}", b"")]).revision
        delta.answer(WriteId(1, number, 2 if number == 3 else 1), Made(revision, (Run(number, 1),)))
        image.apply(delta.change_sets[0])
    return image


async def test_the_state_of_a_cluster_is_restored() -> None:
    """R27, M22: also the epoch, whose link a session is, and the outcomes that a write may be repeated for."""
    image = sample_of_a_cluster()
    loaded = await write_and_load(image)
    assert state(loaded) == state(image)
    assert loaded.taken_over == image.taken_over == TakeOver(0, 6, "b", "localhost:1")
    assert loaded.sessions[1][2:] == image.sessions[1][2:] == ("c", 77)
    assert list(loaded.outcomes.each()) == list(image.outcomes.each()) != []
    assert loaded.outcomes.answered_below(1) == 2


async def test_a_snapshot_for_an_older_release_has_only_what_that_knows() -> None:
    """R26: what needs level 3 stays out at level 2, and the rest is there."""
    image = sample_of_a_cluster()
    disk = new_disk()
    await write(disk, snapshots.View(image, POINT, feature_level=2))
    loaded = snapshots.load_newest(disk, DIRECTORY).image
    assert loaded.scan("", "~", None) == image.scan("", "~", None)
    assert (loaded.taken_over, list(loaded.outcomes.each()), loaded.sessions[1][2:]) == (None, [], ("", 0))
    assert loaded.feature_level == 2


async def test_an_empty_state_is_a_state() -> None:
    """R27: a store that never had anything is restored as such."""
    assert state(await write_and_load(Image())) == state(Image())


async def test_the_state_is_that_of_the_moment_it_was_taken() -> None:
    """R22: writes during a snapshot are not in it."""
    image = sample()
    disk = new_disk()
    before = state(image)
    view = snapshots.View(image, POINT)
    view.note(commit(image, Put("/new", b""), Put("/1", b"changed"), DeleteRange("/3", "/5")))
    view.note(change(image, lambda delta: delta.end_sessions([1])))
    await write(disk, view)
    assert state(snapshots.load_newest(disk, DIRECTORY).image) == before


KEYS = st.sampled_from([f"/{number:02}" for number in range(30)])
CHANGES: st.SearchStrategy[list[Op]] = st.lists(
    st.one_of(
        st.builds(Put, KEYS, st.binary(max_size=2)),
        st.builds(Delete, KEYS),
        st.builds(DeleteRange, KEYS, KEYS),
        st.builds(PutSequential, KEYS, st.just(b""), st.just("p")),
    ),
    max_size=3,
    unique_by=str,
)


@given(st.lists(CHANGES, max_size=5), st.lists(CHANGES, max_size=20), st.integers(1, 7))
def test_a_view_stands_still_while_its_image_moves(before: list[list[Op]], after: list[list[Op]], slice_: int) -> None:
    """R22, R27: read in slices, between which records change, it is the state from its start."""
    image = Image()
    for number in range(0, 30, 2):
        commit(image, Put(f"/{number:02}", b""))
    for ops in before:
        commit(image, *ops)
    expected = image.scan("", "~", None)
    view = snapshots.View(image, POINT)
    found: list[Record] = []
    for ops in after:
        view.note(commit(image, *ops))
        found += view.next(slice_)
    while records := view.next(slice_):
        found += records
    assert found == expected


@pytest.mark.parametrize("records_max", [1, 7, 10_000])
async def test_batching_does_not_matter(monkeypatch: pytest.MonkeyPatch, records_max: int) -> None:
    """R23: with any number of records per batch, the loaded image is the same."""
    monkeypatch.setattr(snapshots, "SLICE_RECORDS_MAX", records_max)
    image = sample()
    assert state(await write_and_load(image)) == state(image)


async def test_a_snapshot_holds_no_markers() -> None:
    """R21: it has only a header, plain records and a footer."""
    disk = new_disk()
    await write(disk, snapshots.View(sample(), POINT))
    data = disk.content(PATH)
    kinds: set[type[LogRecord]] = set()
    for batch in read_batches(data, BEGINNING):
        assert not isinstance(batch, Damage)
        kinds.update(map(type, decode(batch.body)))
    assert SnapshotHeader in kinds
    assert not kinds & {BeginTransaction, EndTransaction, AbortTransaction}


def put_file(disk: SimulatedFiles, *records: LogRecord) -> None:
    data, _ = encode_batches(BEGINNING, [Body(b"".join(map(encode, records)), len(records))], confirmed=0, offset=0)
    file = disk.open(PATH, create=True)
    file.write_at(0, data)
    file.sync()


HEADER = SnapshotHeader(3, *POINT)


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([HEADER, BeginTransaction(), SnapshotFooter(1)], "BeginTransaction"),
        ([HEADER, SnapshotNamed(1, 1, 1, 1), SnapshotFooter(1)], "SnapshotNamed"),
        ([HEADER, EndTransaction(), SnapshotFooter(1)], "EndTransaction"),
        ([HEADER, AbortTransaction("r"), SnapshotFooter(1)], "AbortTransaction"),
        ([HEADER, Record("/a", b"", 1)], "no footer"),
        ([HEADER, Record("/a", b"", 1), SnapshotFooter(2)], "counts 2"),
        ([HEADER, SnapshotFooter(0), Record("/a", b"", 1)], "footer"),
        ([Record("/a", b"", 1), SnapshotFooter(1)], "does not begin"),
        ([HEADER, FeatureLevel(1, 99), SnapshotFooter(1)], "feature level 99"),
        ([HEADER, Record("/e", b"", 1, session=5), SnapshotFooter(1)], "bound to session 5"),
        ([SnapshotHeader(3, 8, 1), SnapshotFooter(0)], "after batch 8"),
        ([], "does not begin"),
    ],
)
def test_what_a_snapshot_never_holds_is_refused(records: list[LogRecord], reason: str) -> None:
    """R21: loading one with markers, or an incomplete one, is an error that names the file."""
    disk = new_disk()
    put_file(disk, *records)
    with pytest.raises(CorruptMetadata, match=reason) as caught:
        snapshots.load_newest(disk, DIRECTORY)
    assert caught.value.path == PATH


async def test_a_damaged_snapshot_is_refused() -> None:
    """D9: it was complete when it got its name, so any damage is damage to confirmed data."""
    disk = new_disk()
    await write(disk, snapshots.View(sample(), POINT))
    size = len(disk.content(PATH))
    for place in range(0, size, 97):
        damaged = disk.crash(keep=1.0)
        damaged.flip(PATH, place * 8)
        with pytest.raises(CorruptMetadata):
            snapshots.load_newest(damaged, DIRECTORY)
        cut = disk.crash(keep=1.0)
        cut.cut(PATH, place)
        with pytest.raises(CorruptMetadata):
            snapshots.load_newest(cut, DIRECTORY)


async def test_a_snapshot_without_its_name_is_none() -> None:
    """C2: nobody loads a snapshot that the log may not name, and it replaces nothing."""
    disk = new_disk()
    await write(disk, snapshots.View(sample(), POINT))
    await snapshots.write(disk, DIRECTORY, snapshots.View(sample(), Point(9, 1)), EPOCH + 1)
    assert snapshots.load_newest(disk, DIRECTORY).name == SnapshotName(7, EPOCH)
    assert snapshots.newest(disk, DIRECTORY) == SnapshotName(7, EPOCH)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("00000000000000000007.snapshot", SnapshotName(7, 0)),
        ("00000000000000000007-0000000003.snapshot", SnapshotName(7, 3)),
        ("00000000000000000007-0000000003.snapshot-unfinished", None),
        ("00000000000000000007-3.snapshot", None),
        ("00000000000000000007.log", None),
    ],
)
def test_names_of_snapshots(text: str, name: SnapshotName | None) -> None:
    assert SnapshotName.parse(text) == name
    assert name is None or str(name) == text


async def test_power_loss_at_every_operation() -> None:
    """R27: the newest snapshot that has its name is complete, old or new."""
    old, new = sample(), sample()
    commit(new, Put("/new", b""))
    found: list[int] = []
    for operations in range(40):
        disk = new_disk(operations)
        await write(disk, snapshots.View(old, POINT))
        disk.lose_power_after(operations)
        try:
            await write(disk, snapshots.View(new, Point(9, 1)))
        except PowerLost:
            disk = disk.crash()
        else:
            disk = disk.crash(keep=0.0)
        loaded = snapshots.load_newest(disk, DIRECTORY)
        found.append(loaded.point.sequence)
        assert state(loaded.image) == state(old if loaded.point == POINT else new)
    assert found[0] == 7
    assert found[-1] == 9
