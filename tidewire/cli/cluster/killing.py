"""Finds the process of a broker on this machine, however it was started, and kills it.

A broker holds its lock file open for as long as it runs. So the process that has the file open is the broker, and no
other process can be taken for it.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from tidewire.cli.cluster.pids import opened, wait_ended
from tidewire.cli.endings import CommandFailed

KILL_SECONDS_MAX: Final = 10.0
"""From SIGKILL to the process's end, which takes only the kernel's work."""

_PROCESSES: Final = Path("/proc")


def kill_broker(data_dir: Path, broker: str) -> int:
    """Kill the broker with this id on the data folder, and wait for its end. Return its pid.

    Raises:
        CommandFailed: it does not run on this machine.
    """
    lock = data_dir / "brokers" / broker / "lock"
    for pid in _holders(lock):
        with opened(pid) as process:
            # Only now it is certain that the number has not passed to another process.
            if process is None or pid not in _holders(lock):
                continue
            process.send(signal.SIGKILL)
            if wait_ended([process], KILL_SECONDS_MAX):
                raise CommandFailed(f"{broker} (pid {pid}) does not end, not even by SIGKILL.")
            return pid
    raise CommandFailed(f"No broker {broker} of {data_dir} runs on this machine, or it belongs to another user.")


def _holders(path: Path) -> Iterator[int]:
    """Yield the processes of this user that have the file open."""
    try:
        wanted = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    for folder in _PROCESSES.glob("[0-9]*/fd"):
        # If the process has just gone, or belongs to another user, it shows no files.
        with suppress(OSError):
            if any(_is_same(entry, wanted) for entry in folder.iterdir()):
                yield int(folder.parent.name)


def _is_same(descriptor: Path, wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(descriptor.stat(), wanted)
    except OSError:
        # A busy process opens and closes files all the time.
        return False
