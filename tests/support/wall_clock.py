"""A wall clock that a test sets while processes run under it. Other processes keep theirs, and all keep steady clocks.

    clock = WallClock(tmp_path / "clock")
    with running_broker(tmp_path / "data", command=clock.over(BROKER_COMMAND)):
        clock.jump(3600)              # an hour ahead
        clock.jump(-3600)             # an hour behind

libfaketime stands between the process and the system's clock. Debian has it; `scripts/need.py debian:libfaketime`
installs it.
"""

from collections.abc import Sequence
from pathlib import Path

from scripts.need import place

NEED = "debian:libfaketime"
SEEN_SECONDS_MAX = 1
"""A process sees a jump after this long at most. Looking each time would cost it more than its work."""

_LIBRARY = "libfaketimeMT.so.1"


class WallClock:
    """See the module's docstring."""

    def __init__(self, path: Path) -> None:
        """Make a clock that is right, in a new file."""
        self._path = path
        self.jump(0)

    def jump(self, seconds: int) -> None:
        """Be so far ahead of the system's clock."""
        unfinished = self._path.with_name(self._path.name + "-unfinished")
        unfinished.write_text(f"{seconds:+d}\n")
        unfinished.rename(self._path)

    def over(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return the command under this clock.

        Raises:
            NeedError: libfaketime is not installed; the message has the command that installs it.
        """
        library = next(line for line in place(NEED).read_text().splitlines() if line.endswith(_LIBRARY))
        return (
            "env",
            f"LD_PRELOAD={library}",
            f"FAKETIME_TIMESTAMP_FILE={self._path}",
            f"FAKETIME_CACHE_DURATION={SEEN_SECONDS_MAX}",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            "NO_FAKE_STAT=1",
            *command,
        )
