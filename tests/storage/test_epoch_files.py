"""Fences: of several processes on one disk, at most one passes its check. `process()` makes another process."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.epoch_files import EpochFiles, EpochTaken, TakenEpoch
from storage.files import DiskFull
from tests.support.disk import PowerLost, SimulatedFiles
from tests.support.interleaving import interleave

FOLDER = Path("/fences")


@pytest.fixture
def files() -> SimulatedFiles:
    made = SimulatedFiles()
    made.make_dir(FOLDER)
    return made


def fences(files: SimulatedFiles) -> EpochFiles:
    return EpochFiles(files, FOLDER)


def contents(files: SimulatedFiles) -> dict[int, bytes | None]:
    found = fences(files)
    return {epoch: found.read(epoch, bytes) for epoch in found.epochs()}


def take(files: SimulatedFiles, epoch: int, nonce: int = 1) -> TakenEpoch:
    return fences(files).make(epoch, b"%d" % epoch, nonce)


def test_an_epoch_has_one_holder(files: SimulatedFiles) -> None:
    """C8: exactly the epoch that was asked for, or none."""
    take(files, 1)
    second = take(files, 2)
    for epoch in (1, 2):
        with pytest.raises(EpochTaken):
            take(files, epoch, nonce=2)
    assert second.is_newest()
    assert contents(files) == {1: b"1", 2: b"2"}
    assert files.names(FOLDER) == ["fence-0000000001", "fence-0000000002"]


def test_a_claim_that_skips_numbers_ends_every_lower_epoch(files: SimulatedFiles) -> None:
    """C8: a holder looks only at the number above its own, which nobody took."""
    first = take(files, 1)
    second = take(files, 5)
    assert not first.is_newest()
    assert second.is_newest()
    third = take(files, 9)
    assert not second.is_newest()
    assert contents(files) == {1: b"1", 2: None, 3: None, 5: b"5", 6: None, 9: b"9"}
    fences(files).remove_below(9)
    assert files.names(FOLDER) == ["fence-0000000009"]
    assert not first.is_newest()
    assert third.is_newest()


def test_a_skipped_number_is_not_taken_later(files: SimulatedFiles) -> None:
    """C8: the maker was stopped before its link, and its successor took a higher number."""
    for number in (2, 3, 4):
        other = files.process()

        def overtake(operation: str, _path: Path, other: SimulatedFiles = other) -> None:
            if operation == "link":
                files.before = None
                take(other, fences(other).highest() + 5, nonce=2)

        before = fences(files).highest()
        files.before = overtake
        with pytest.raises(EpochTaken):
            take(files, before + number)
        newest = fences(files).highest()
        assert newest == before + 5


@pytest.mark.parametrize("moment", ["open", "link"])
def test_a_number_is_never_made_twice(files: SimulatedFiles, moment: str) -> None:
    """D2, C1: else the old holder of that number would find its fence again, and none above it."""
    sleeper = files.process()
    held: list[TakenEpoch] = []

    def overtake(operation: str, _path: Path) -> None:
        if operation == moment:
            sleeper.before = None
            held.extend(take(files, epoch, nonce=2) for epoch in (1, 2, 3))
            fences(files).remove_below(3)

    sleeper.before = overtake
    with pytest.raises(EpochTaken):
        take(sleeper, 1)
    assert [each.is_newest() for each in held] == [False, False, True]
    assert files.names(FOLDER) == ["fence-0000000003"]


def test_a_full_disk_changes_no_epoch(files: SimulatedFiles) -> None:
    """C24: neither for the file nor for its name is there space."""
    holder = take(files, 1)
    used = files.used_bytes
    for free in (0, 1, 2, 3):
        files.set_capacity(used + free)
        with pytest.raises(DiskFull):
            fences(files).make(2, b"1234", 2)
        assert holder.is_newest()
        assert files.names(FOLDER) == ["fence-0000000001"]
    files.set_capacity(used + 4)
    with pytest.raises(DiskFull):
        fences(files).make(2, b"1234", 2)
    assert holder.is_newest()
    files.set_capacity(None)
    assert take(files, 2).is_newest()


def test_damage_is_believed_when_two_readings_agree(files: SimulatedFiles) -> None:
    """E3: a reader may meet a fence half rewritten."""
    taken = take(files, 1)

    def decode(contents: bytes) -> str:
        if contents != b"whole":
            raise ValueError("damaged")
        return "decoded"

    with pytest.raises(ValueError, match="damaged"):
        fences(files).read(1, decode)
    reader = files.process()
    readings = 0

    def complete(operation: str, _path: Path) -> None:
        nonlocal readings
        readings += operation == "read"
        if readings == 2:
            taken.rewrite(b"whole")

    reader.before = complete
    assert fences(reader).read(1, decode) == "decoded"
    assert fences(reader).read(2, decode) is None


def test_a_fence_appears_whole_or_not_at_all() -> None:
    """C1: power is lost at each operation; the next claim reads what is there, and takes a higher number."""
    moment = 0
    while True:
        disk = SimulatedFiles(seed=moment)
        disk.make_dir(FOLDER)
        disk.sync_dir(FOLDER)
        disk.lose_power_after(moment)
        try:
            take(disk, 1)
        except PowerLost:
            is_made = False
        else:
            is_made = True
        for _ in range(20):
            survivor = disk.crash()
            found = contents(survivor)
            assert found in ({}, {1: b"1"})
            assert found or not is_made, "it was durable"
            following = take(survivor, fences(survivor).highest() + 1, nonce=2)
            assert following.is_newest()
            fences(survivor).remove_below(following.epoch)
            assert survivor.names(FOLDER) == [following.path.name]
        if is_made:
            return
        moment += 1


def life(rng: random.Random, made: list[int]) -> Callable[[SimulatedFiles], list[TakenEpoch]]:
    """A process that takes two epochs. `made` has the epochs of all processes in the order in which they were taken."""
    nonces = [rng.getrandbits(64) for _ in range(40)]
    steps = [rng.choice((1, 1, 1, 2, 3)) for _ in range(40)]
    removes = rng.random() < 0.7

    def run(files: SimulatedFiles) -> list[TakenEpoch]:
        epochs = fences(files)
        taken: list[TakenEpoch] = []
        while len(taken) < 2:
            nonce = nonces.pop()
            try:
                mine = epochs.make(epochs.highest() + steps.pop(), b"%d" % nonce, nonce)
            except EpochTaken:
                continue
            made.append(mine.epoch)
            taken.append(mine)
            for _ in range(3):
                newest = max(made)
                if mine.is_newest():
                    assert mine.epoch == newest, "a check that passes found no later fence"
                    if removes:
                        epochs.remove_below(mine.epoch)
        return taken

    return run


@pytest.mark.parametrize("deaths", [0.0, 0.5])
def test_at_most_one_passes_its_check(deaths: float) -> None:
    """C1, C8, D2: processes claim, check and remove, each stopped at any operation for any time, or killed."""
    for seed in range(400):
        rng = random.Random(seed)
        disk = SimulatedFiles(seed=seed)
        disk.make_dir(FOLDER)
        made: list[int] = []
        lives = interleave(disk, rng, [life(rng, made) for _ in range(4)], deaths=deaths)
        assert len(set(made)) == len(made), f"a number was taken twice (seed {seed})"
        taken = [each for some in lives if isinstance(some, list) for each in some]
        newest = [each.epoch for each in taken if each.is_newest()]
        assert newest in ([], [max(made, default=0)]), f"seed {seed}"
        assert newest or deaths, f"seed {seed}"
