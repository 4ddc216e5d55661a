from pathlib import Path

import pytest

from storage.files import DiskFull
from storage.metadata.cluster.beats import Beat, BeatWatch, read_beat
from tests.support.disk import SimulatedFiles

FOLDER = Path("/metadata")


@pytest.fixture
def files() -> SimulatedFiles:
    made = SimulatedFiles()
    made.make_dir(FOLDER)
    return made


def test_a_beat_moves_for_other_processes(files: SimulatedFiles) -> None:
    """C13: without a sync, and each epoch has its own."""
    other = files.process()
    assert read_beat(other, FOLDER, 3) is None
    beat = Beat.make(files, FOLDER, 3)
    seen = [read_beat(other, FOLDER, 3)]
    for _ in range(300):
        beat.advance()
        seen.append(read_beat(other, FOLDER, 3))
    assert len(set(seen)) == 301
    assert None not in seen
    assert read_beat(other, FOLDER, 4) is None
    beat.close()
    files.cut(FOLDER / "beat-0000000003", 3)
    assert read_beat(other, FOLDER, 3) is None


def test_a_full_disk_stops_no_beat(files: SimulatedFiles) -> None:
    """C24: the space is there before the epoch is taken."""
    files.set_capacity(0)
    with pytest.raises(DiskFull):
        Beat.make(files, FOLDER, 1)
    files.set_capacity(8)
    beat = Beat.make(files, FOLDER, 1)
    for _ in range(300):
        beat.advance()
    assert read_beat(files, FOLDER, 1) == 301


def test_a_beat_that_stands_still_is_silent() -> None:
    """C13: once it stood still for the whole time, and not for a beat that moves."""
    watch = BeatWatch(1.0)
    assert not watch.saw(1, 5, asked=100.0, now=100.0)
    assert not watch.saw(1, 5, asked=100.9, now=100.9)
    assert not watch.saw(1, 6, asked=101.0, now=101.0)
    assert not watch.saw(1, 6, asked=101.9, now=101.9)
    assert watch.saw(1, 6, asked=102.0, now=102.0)
    assert not watch.saw(1, 7, asked=102.1, now=102.1)
    assert not watch.saw(2, 7, asked=105.0, now=105.0), "another controller"
    assert watch.saw(2, 7, asked=106.0, now=106.0)


def test_a_controller_that_never_beat_is_silent() -> None:
    watch = BeatWatch(1.0)
    assert not watch.saw(1, None, asked=100.0, now=100.0)
    assert watch.saw(1, None, asked=101.0, now=101.0)
    assert not watch.saw(1, 1, asked=102.0, now=102.0)


def test_a_stall_of_the_watcher_is_no_silence() -> None:
    """C13: it is stopped inside a reading, before or after the bytes are read, while the controller beats on."""
    watch = BeatWatch(1.0)
    assert not watch.saw(1, 5, asked=100.0, now=130.0)
    assert not watch.saw(1, 5, asked=130.1, now=130.1)
    assert not watch.saw(1, 5, asked=130.2, now=160.0)
    assert not watch.saw(1, 9, asked=160.1, now=160.1)
