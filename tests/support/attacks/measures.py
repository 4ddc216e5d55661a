"""What a broker's process uses (memory, sockets, descriptors), as the system reports it, and what it has logged."""

import re
from pathlib import Path
from typing import Final

import trio

from tests.support.processes import RunningBroker

SETTLED_SECONDS_MAX: Final = 120
"""Longer than the broker waits for any client that neither sends nor reads (BODY_SECONDS_MAX, 60 s)."""
FILES_MORE_MAX: Final = 8
"""Journal and metadata files are created and removed."""
_LOOK_SECONDS: Final = 0.2
_DEFECT: Final = re.compile(r"Traceback|\[(error|critical)\s*\]", re.IGNORECASE)
"""A log line that no client can cause: only a bug in the broker writes one."""


class Held:
    """What the process uses now, and its maximum since `begin`."""

    def __init__(self, broker: RunningBroker) -> None:
        self._broker = broker
        self._process = Path(f"/proc/{broker.pid}")
        self._sockets_before = 0
        self._files_before = 0
        self._log_before = 0

    def begin(self) -> None:
        """Start counting here."""
        # This resets the kernel's peak of the resident size.
        (self._process / "clear_refs").write_text("5")
        self._sockets_before = self.sockets()
        self._files_before = self._files()
        self._log_before = len(self._broker.stderr)

    def is_alive(self) -> bool:
        """Whether the same process still runs."""
        return self._broker.process.poll() is None

    def peak_mib(self) -> float:
        """The most memory that was resident since `begin`."""
        found = re.search(r"VmHWM:\s+(\d+) kB", (self._process / "status").read_text())
        assert found is not None
        return int(found[1]) / 1024

    def sockets(self) -> int:
        """Return the number of open sockets, including listeners."""
        return sum(name.startswith("socket:") for name in self._names())

    def descriptors(self) -> int:
        """Return the number of open files and sockets."""
        return len(self._names())

    def more_files(self) -> int:
        """Return how many more files are open than at `begin`, beyond FILES_MORE_MAX; not sockets and ledgers."""
        more = self._files() - self._files_before
        return more if more > FILES_MORE_MAX else 0

    def _files(self) -> int:
        # Open ledger files have their own bound (storage/open_files.py).
        return sum(not name.startswith("socket:") and "/ledgers/" not in name for name in self._names())

    def log_lines(self) -> list[str]:
        """Return what the broker has logged since `begin`."""
        return self._broker.stderr[self._log_before :].splitlines()

    def defects(self, besides: str) -> list[str]:
        """Return the log lines that report a defect, except errors whose text begins with `besides`."""
        return [line for line in self.log_lines() if _DEFECT.search(line) and f"] {besides}" not in line]

    async def settled(self) -> int:
        """Wait until as few sockets are open as at `begin`. Return how many more are left after SETTLED_SECONDS_MAX.

        Polling is necessary, because the broker is another process.
        """
        until = trio.current_time() + SETTLED_SECONDS_MAX
        while (more := self.sockets() - self._sockets_before) > 0 and trio.current_time() < until:  # noqa: ASYNC110
            await trio.sleep(_LOOK_SECONDS)
        return max(0, more)

    def _names(self) -> list[str]:
        names = []
        for path in (self._process / "fd").iterdir():
            try:
                names.append(str(path.readlink()))
            except FileNotFoundError:
                continue  # Closed between listing and looking.
        return names
