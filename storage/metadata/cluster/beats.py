"""The beat of a controller: a counter in a file, by which others see that its process runs.

`beat-<epoch>` is not synced. All processes read what the operating system holds, and after a restart of the machine
every process of before has ended. The beat is no fence. A beat that stands still only lets another process try to take
over (`epochs`), and a controller whose beat moves may be deposed all the same.
"""

from pathlib import Path
from typing import Final

from storage.files import File, Files

_BYTES: Final = 8


class Beat:
    """The beat of this process as the controller of one epoch. Blocks."""

    __slots__ = ("_count", "_file")

    def __init__(self, file: File) -> None:
        self._file = file
        self._count = 0
        self.advance()

    @classmethod
    def make(cls, files: Files, directory: Path, epoch: int) -> "Beat":
        """Make the file. Later beats need no space, so this comes before the epoch is taken.

        Raises:
            DiskFull: it cannot be made.
        """
        file = files.open(_path(directory, epoch), create=True)
        try:
            return cls(file)
        except BaseException:
            file.close()
            raise

    def advance(self) -> None:
        """Show that this process runs. Only for who has taken the epoch."""
        self._count += 1
        self._file.write_at(0, self._count.to_bytes(_BYTES))

    def close(self) -> None:
        """Stop. Idempotent."""
        self._file.close()


def read_beat(files: Files, directory: Path, epoch: int) -> int | None:
    """The beat of an epoch's controller; None if it has none. Blocks."""
    try:
        file = files.open(_path(directory, epoch))
    except FileNotFoundError:
        return None
    try:
        found = file.read_at(0, _BYTES)
    finally:
        file.close()
    return int.from_bytes(found) if len(found) == _BYTES else None


class BeatWatch:
    """How long a controller's beat has stood still, by the monotonic clock of the process that watches it.

    Pure: the caller reads the beat, and passes the times in seconds. `silence_seconds` includes the caller's jitter,
    so that not all watchers try to take over at once.
    """

    __slots__ = ("_beat", "_epoch", "_silence_seconds", "_since")

    def __init__(self, silence_seconds: float) -> None:
        self._silence_seconds = silence_seconds
        self._epoch: int | None = None
        self._beat: int | None = None
        self._since = 0.0
        """When a reading that differed from the one before was complete."""

    def saw(self, epoch: int, beat: int | None, *, asked: float, now: float) -> bool:
        """Take a reading that began at `asked` and was complete at `now`. Whether the beat stood still long enough.

        Time counts from the end of the first equal reading to the beginning of this one. So a stall of this process
        beside a reading never passes for the silence of the controller. A beat that was never made stands still.
        """
        if (epoch, beat) != (self._epoch, self._beat):
            self._epoch, self._beat, self._since = epoch, beat, now
            return False
        return asked - self._since >= self._silence_seconds


def _path(directory: Path, epoch: int) -> Path:
    return directory / f"beat-{epoch:010d}"
