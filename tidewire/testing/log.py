"""The end of a broker's log, for people who look at a failed test."""

import os
from pathlib import Path
from typing import Final

LINES: Final = 40
_BYTES_MAX: Final = 64 * 1024


def tail(log: Path, lines: int = LINES) -> str:
    """Return the last lines of a log, of its last 64 KiB at most. Empty if there is no log."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _BYTES_MAX))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
