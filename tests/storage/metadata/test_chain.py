"""Chains of files that several controllers wrote: as tables, and on a disk with controllers that stop and wake."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from storage.epoch_files import EpochTaken
from storage.metadata.batches import BEGINNING, Batch, Body, Point, encode_batches, read_batches
from storage.metadata.chain import Chain, Fences, FoundFile, LogName, NoChain, OffChain, chain_of
from storage.metadata.epochs import Deposed, MetadataEpoch, MetadataEpochs
from storage.metadata.found_files import find_chain, found_files
from storage.sector import SECTOR
from tests.support.disk import SimulatedFiles
from tests.support.interleaving import interleave

FOLDER = Path("/metadata")


# -- tables: a point of epoch e has the crc e * 1000 + sequence


def at(sequence: int, epoch: int) -> Point:
    return Point(sequence, epoch * 1000 + sequence) if sequence else BEGINNING


class Row(NamedTuple):
    """A file that its epoch's controller wrote: batches `first`..`last`, behind a batch of epoch `behind`."""

    epoch: int
    first: int
    last: int
    behind: int | None = None
    is_closed: bool = False


def folder(*rows: Row) -> list[FoundFile]:
    befores = {row: at(row.first - 1, row.epoch if row.behind is None else row.behind) for row in rows}
    found = []
    for row in rows:
        name = LogName(row.first, row.epoch, row.is_closed)
        if row.last < row.first:
            found.append(FoundFile(name, None, None))
            continue
        points = [at(sequence, row.epoch) for sequence in range(row.first, row.last + 1)]
        found.append(FoundFile(name, befores[row], points[-1], frozenset(points)))
    return found


def shown(chain: Chain) -> list[tuple[int, int, int | None]]:
    """Epoch, first batch and cut of each part."""
    return [(part.file.name.epoch, part.file.name.number, part.cut and part.cut.sequence) for part in chain]


ONE = Row(1, 1, 7, behind=0)
LATE = Row(2, 6, 6, behind=1)
THREE = Row(3, 6, 8, behind=1)


@pytest.mark.parametrize("shuffle", range(3))
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([], [], id="a new log"),
        pytest.param([ONE], [(1, 1, None)], id="one epoch"),
        pytest.param([ONE, LATE], [(1, 1, 5), (2, 6, None)], id="a take-over cuts what was not confirmed"),
        pytest.param([ONE, LATE, THREE], [(1, 1, 5), (3, 6, None)], id="a take-over that was not seen"),
        pytest.param(
            [ONE, LATE, Row(3, 8, 9, behind=1)], [(1, 1, 7), (3, 8, None)], id="a file that begins before the cut"
        ),
        pytest.param(
            [ONE, LATE, Row(3, 7, 9, behind=2)], [(1, 1, 5), (2, 6, 6), (3, 7, None)], id="a take-over that counts"
        ),
        pytest.param(
            [ONE, Row(1, 8, 9), Row(1, 10, 9), LATE], [(1, 1, 5), (2, 6, None)], id="a deposed controller rolls on"
        ),
        pytest.param(
            [Row(1, 1, 7, 0, is_closed=True), Row(1, 8, 9, is_closed=True), Row(1, 10, 9)],
            [(1, 1, 7), (1, 8, 9), (1, 10, None)],
            id="a log that just rolled",
        ),
        pytest.param([Row(1, 1, 7, 0), Row(1, 8, 7)], [(1, 1, 7), (1, 8, None)], id="rolled, not closed yet"),
        pytest.param(
            [Row(0, 1, 4, is_closed=True), Row(0, 5, 6, is_closed=True), Row(1, 7, 9, behind=0)],
            [(0, 1, 4), (0, 5, 6), (1, 7, None)],
            id="after the upgrade of a single broker's log",
        ),
        pytest.param([Row(0, 1, 4, is_closed=True)], [(0, 1, None)], id="an interrupted upgrade"),
        pytest.param([Row(0, 1, 0)], [(0, 1, None)], id="a single broker's log without a batch"),
        pytest.param(
            [ONE, *(Row(epoch, 6, 6, behind=1) for epoch in range(2, 20))],
            [(1, 1, 5), (19, 6, None)],
            id="many controllers that never served",
        ),
    ],
)
def test_the_chain_is_found_from_its_head(
    rows: Sequence[Row], expected: list[tuple[int, int, int | None]], shuffle: int
) -> None:
    """C1: whatever deposed controllers left beside it."""
    found = folder(*rows)
    random.Random(shuffle).shuffle(found)
    newest = max((row.epoch for row in rows), default=0)
    assert shown(chain_of(found, BEGINNING, 0, Fences(max(newest, 1)))) == expected


@pytest.mark.parametrize(
    ("below", "epoch", "expected"),
    [
        (at(3, 1), 1, [(1, 1, 5), (3, 6, None)]),
        (at(5, 1), 1, [(3, 6, None)]),
        (at(6, 3), 3, [(3, 6, None)]),
        (at(8, 3), 3, [(3, 6, None)]),
    ],
)
def test_the_chain_begins_behind_the_place_of_the_reader(
    below: Point, epoch: int, expected: list[tuple[int, int, int | None]]
) -> None:
    found = folder(ONE, LATE, THREE)
    assert shown(chain_of(found, below, epoch, Fences(3, 3, 6))) == expected


@pytest.mark.parametrize("below", [at(6, 1), at(7, 1), at(6, 2), at(9, 3), at(9, 1), at(5, 2), Point(3, 7)])
def test_a_reader_that_is_off_the_chain_is_told_so(below: Point) -> None:
    """C1: it holds what a deposed controller never confirmed, or what the log no longer has."""
    with pytest.raises(OffChain, match=f"batch {below.sequence} "):
        chain_of(folder(ONE, LATE, THREE), below, 1, Fences(3, 3, 6))


def test_a_log_that_rolled_at_the_snapshot_follows_it() -> None:
    """E3: without epochs. With them, the first batch names the epoch or the snapshot, so without one it is damaged."""
    assert shown(chain_of(folder(Row(0, 8, 7)), at(7, 0), 0, Fences())) == [(0, 8, None)]
    empty = folder(Row(2, 8, 7))
    for below, epoch, fences in ((at(7, 2), 2, Fences(2, 2, 6)), (at(7, 1), 1, Fences(2, 2, 8))):
        with pytest.raises(NoChain, match=r"00000000000000000008-0000000002\.log: it does not begin") as raised:
            chain_of(empty, below, epoch, fences)
        assert (raised.value.name, raised.value.batch) == ("00000000000000000008-0000000002.log", 8)
    with pytest.raises(NoChain, match="does not begin"):
        chain_of([*folder(ONE), *empty], BEGINNING, 0, Fences(2))


@pytest.mark.parametrize(
    ("rows", "fences", "name", "batch"),
    [
        pytest.param([], Fences(2, 2, 6), LogName(6, 2), 6, id="all files"),
        pytest.param([ONE], Fences(2, 2, 6), LogName(6, 2), 6, id="the newest epoch"),
        pytest.param([ONE], Fences(3, 2, 6), LogName(6, 2), 6, id="the newest epoch that began"),
        pytest.param([ONE], Fences(), LogName(1, 1), 1, id="all fences"),
        pytest.param([ONE, LATE], Fences(1, 1, 1), LogName(6, 2), 6, id="the newest fence"),
        pytest.param([LATE], Fences(2), LogName(6, 2), 5, id="the epoch before"),
        pytest.param([ONE, Row(3, 10, 12, behind=2)], Fences(3), LogName(1, 1), 9, id="an epoch between"),
        pytest.param([ONE, Row(1, 9, 9)], Fences(1), LogName(1, 1), 8, id="a file between"),
        pytest.param([ONE, Row(1, 10, 9)], Fences(1), LogName(1, 1), 8, id="a file before an empty one"),
        pytest.param([Row(1, 1, 7, 0, is_closed=True)], Fences(1), LogName(8, 1), 8, id="the newest file"),
        pytest.param([Row(0, 1, 7, is_closed=True)], Fences(), LogName(8, 0), 8, id="a single broker's newest file"),
        pytest.param([ONE, Row(2, 6, 5)], Fences(2), LogName(6, 2), 6, id="the first batch of an epoch"),
    ],
)
def test_what_is_missing_is_named(rows: Sequence[Row], fences: Fences, name: LogName, batch: int) -> None:
    """E3, C1: a gap never passes for a log that ends before it."""
    with pytest.raises(NoChain) as raised:
        chain_of(folder(*rows), BEGINNING, 0, fences)
    assert (raised.value.name, raised.value.batch) == (str(name), batch)
    assert raised.value.name in str(raised.value)


def test_a_missing_log_is_named() -> None:
    """E3: the snapshot is there, and the file behind it is not."""
    with pytest.raises(NoChain, match=r"00000000000000000010-0000000003\.log: the file is missing"):
        chain_of([], at(9, 3), 3, Fences(3))


def test_a_renamed_file_is_named() -> None:
    """E3: its name and its first batch differ."""
    (file,) = folder(ONE)
    renamed = file._replace(name=LogName(4, 1))
    with pytest.raises(NoChain, match=r"00000000000000000004-0000000001\.log: it begins with batch 1"):
        chain_of([renamed], BEGINNING, 0, Fences(1))


def test_names_are_read_as_they_are_written() -> None:
    for name in (LogName(1, 0), LogName(1, 0, True), LogName(10**20 - 1, 4_000_000_000), LogName(7, 3, True)):
        assert LogName.parse(str(name)) == name
    for other in ("00000000000000000001.snapshot", "fence-0000000001", "1.log", "00000000000000000001.log-unfinished"):
        assert LogName.parse(other) is None


# -- a disk, and controllers that stop and wake


def read_chain(files: SimulatedFiles, epochs: MetadataEpochs, *, settle: bool = False) -> list[Point]:
    """The batches that are on the chain. `settle` writes them again in place, so that all of them are durable."""
    points: list[Point] = []
    for part in find_chain(files, FOLDER, epochs, BEGINNING, 0):
        file = files.open(FOLDER / str(part.file.name))
        data = file.read_at(0, file.size())
        on_chain = [
            batch
            for batch in read_batches(data, part.file.before or BEGINNING)
            if isinstance(batch, Batch) and (part.cut is None or batch.point.sequence <= part.cut.sequence)
        ]
        points += (batch.point for batch in on_chain)
        if settle and on_chain:
            file.write_at(0, data[: on_chain[-1].end])
            file.sync()
        file.close()
        assert part.cut in (None, points[-1])
    return points


class Controller:
    """A short version of what a controller does: take over, append, roll."""

    def __init__(self, files: SimulatedFiles, epoch: MetadataEpoch, cut: Point, confirmed: list[Point]) -> None:
        self.files = files
        self.epoch = epoch
        self.point = cut
        self.confirmed = confirmed
        self.offset = 0
        name = LogName(cut.sequence + 1, epoch.epoch)
        unfinished = FOLDER / f"{name}-{epoch.found.nonce}-unfinished"
        self.file = files.open(unfinished, create=True, exclusive=True)
        self.file.preallocate(16 * SECTOR)
        self._write(b"take over")
        self.name = name
        files.rename(unfinished, FOLDER / str(name))
        files.sync_dir(FOLDER)
        epoch.note_begun(name.number)
        epoch.check()
        confirmed.append(self.point)

    def _write(self, body: bytes) -> None:
        data, self.point = encode_batches(
            self.point, [Body(body, 1)], confirmed=self.point.sequence, offset=self.offset
        )
        self.file.write_at(self.offset, data)
        self.offset += len(data)
        self.file.sync()

    def append(self, body: bytes) -> None:
        self._write(body)
        self.epoch.check()
        self.confirmed.append(self.point)

    def roll(self) -> None:
        closed, self.name = self.name, LogName(self.point.sequence + 1, self.epoch.epoch)
        self.file = self.files.open(FOLDER / str(self.name), create=True, exclusive=True)
        self.file.preallocate(16 * SECTOR)
        self.files.sync_dir(FOLDER)
        self.files.rename(FOLDER / str(closed), FOLDER / str(closed._replace(is_closed=True)))
        self.files.sync_dir(FOLDER)
        self.offset = 0


def life(rng: random.Random, confirmed: list[Point]) -> Callable[[SimulatedFiles], None]:
    """A process that takes over twice, and checks each time that it finds everything confirmed before."""

    def run(files: SimulatedFiles) -> None:
        epochs = MetadataEpochs(files, FOLDER, rng.getrandbits)
        reigns = 0
        while reigns < 2:
            newest = epochs.newest()
            try:
                mine = epochs.claim(1 if newest is None else newest.epoch + 1, "b", None, None)
            except EpochTaken:
                continue
            reigns += 1
            before = list(confirmed)
            try:
                found = read_chain(files, epochs, settle=True)
                assert set(before) <= set(found), "everything confirmed before the fence is on the chain"
                controller = Controller(files, mine, found[-1] if found else BEGINNING, confirmed)
                epochs.remove_older(mine)
                for number in range(rng.randrange(6)):
                    if rng.random() < 0.3:
                        controller.roll()
                    controller.append(b"%d" % number * rng.randrange(1, 400))
            except Deposed:
                continue

    return run


@pytest.mark.parametrize("deaths", [0.0, 0.4])
def test_what_was_confirmed_stays_on_the_chain(deaths: float) -> None:
    """C1, C3: controllers stop before any operation, wake behind successors, or die. No successor's byte changes."""
    for seed in range(150):
        rng = random.Random(seed)
        disk = SimulatedFiles(seed=seed)
        disk.make_dir(FOLDER)
        confirmed: list[Point] = []
        interleave(disk, rng, [life(rng, confirmed) for _ in range(3)], deaths=deaths)
        for survivor in (disk, disk.crash()):
            found = read_chain(survivor, MetadataEpochs(survivor, FOLDER, rng.getrandbits))
            assert found == sorted(found)
            assert [point.sequence for point in found] == list(range(1, len(found) + 1))
            assert set(confirmed) <= set(found), f"seed {seed}"
            assert confirmed == sorted(confirmed), f"two controllers confirmed at once (seed {seed})"


def test_a_folder_that_changes_while_it_is_read_is_read_again() -> None:
    """C1: the controller closes a file after its name was listed."""
    disk = SimulatedFiles(seed=1)
    disk.make_dir(FOLDER)
    epochs = MetadataEpochs(disk, FOLDER, random.Random(1).getrandbits)
    confirmed: list[Point] = []
    controller = Controller(disk, epochs.claim(1, "b", None, None), BEGINNING, confirmed)
    controller.append(b"a")
    reader = disk.process()

    def roll(operation: str, _path: Path) -> None:
        if operation == "open":
            reader.before = None
            controller.roll()

    reader.before = roll
    names = [str(file.name) for file in found_files(reader, FOLDER, BEGINNING)]
    assert names == ["00000000000000000001-0000000001.closed-log", "00000000000000000003-0000000001.log"]
    with pytest.raises(FileNotFoundError):
        found_files(disk, Path("/absent"), BEGINNING)


def test_what_does_not_continue_the_file_is_not_part_of_it() -> None:
    """R9: whole batches of another chain behind its end, as a damaged disk may leave them."""
    disk = SimulatedFiles(seed=1)
    disk.make_dir(FOLDER)
    first, point = encode_batches(BEGINNING, [Body(b"a", 1)], confirmed=0, offset=0)
    stray, stray_point = encode_batches(Point(1, 7), [Body(b"b", 1)], confirmed=1, offset=len(first))
    file = disk.open(FOLDER / str(LogName(1, 1)), create=True)
    file.write_at(0, first + stray)
    (found,) = found_files(disk, FOLDER, stray_point)
    assert found == FoundFile(LogName(1, 1), BEGINNING, point)
