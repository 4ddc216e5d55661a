"""Pid files that are never taken for another process, and signals that never reach one.

    note_pid(path, process.pid)
    with running(path) as process:       # None if it has ended, even if its number was used again
        process.send(signal.SIGTERM)
        wait_ended([process], seconds_max=30)

A pid file has the process's number, its start time in clock ticks since the machine started, and the identity of that
start. A number alone is used again. A process file descriptor (pidfd) holds on to the process while it is checked and
signalled. Linux only.
"""

import os
import selectors
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_START_TIME_FIELD: Final = 19
"""The index of `starttime` in /proc/PID/stat, counted behind the command's name (proc(5))."""


class Process:
    """A process that was running when it was found. It need not be a child."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return the pidfd. It becomes readable when the process has ended."""
        return self._descriptor

    def send(self, number: signal.Signals) -> None:
        """Send a signal. Does nothing if the process has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)


def note_pid(path: Path, pid: int) -> None:
    """Write the pid file of a running process, or of a child that was not yet waited for."""
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(f"{pid} {_identity(pid)}\n", encoding="ascii")
    unfinished.replace(path)


@contextmanager
def running(path: Path) -> Iterator[Process | None]:
    """Yield the process that the pid file names, for the length of the block; None if it has ended."""
    try:
        number, _, identity = path.read_text(encoding="ascii").strip().partition(" ")
        pid = int(number)
    except (FileNotFoundError, ValueError):
        yield None
        return
    with opened(pid) as process:
        yield process if process is not None and _identity_or_none(pid) == identity else None


@contextmanager
def opened(pid: int) -> Iterator[Process | None]:
    """Yield the process that has this number now; None if there is none, or it has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except (ProcessLookupError, OverflowError, OSError):
        yield None
        return
    try:
        process = Process(pid, descriptor)
        # A process that has ended keeps its number until its parent has waited for it.
        yield None if _ended([process], 0) else process
    finally:
        os.close(descriptor)


def wait_ended(processes: Sequence[Process], seconds_max: float) -> list[Process]:
    """Wait until all have ended. Return those that still run after `seconds_max`."""
    left = list(processes)
    deadline = monotonic() + seconds_max
    while left:
        seconds = deadline - monotonic()
        ended = _ended(left, max(0.0, seconds))
        left = [process for process in left if process not in ended]
        if seconds <= 0:
            break
    return left


def _ended(processes: Sequence[Process], seconds_max: float) -> list[Process]:
    """Wait until one has ended; return those that have."""
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process, selectors.EVENT_READ, process)
        return [key.data for key, _ in selector.select(seconds_max)]


def _identity(pid: int) -> str:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    # The command's name is in parentheses and may contain any characters.
    start_time = stat.rpartition(")")[2].split()[_START_TIME_FIELD]
    return f"{start_time} {_BOOT.read_text(encoding='ascii').strip()}"


def _identity_or_none(pid: int) -> str | None:
    try:
        return _identity(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
