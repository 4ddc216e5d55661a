"""One process of a broker: started until it serves, stopped for a while, killed.

The methods block. So tests under asyncio, under Trio and without an event loop use the same object. A start and an end
have time limits, and nothing polls.

A thread starts the process and then reads its output to the end. The kernel kills the process when that thread ends
(`tidewire.cli.parent`), so it lives until the process or all of pytest ends.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from tidewire.testing.log import tail

START_SECONDS_MAX: Final = 120.0
"""From the start of the process to its ready line."""

KILL_SECONDS_MAX: Final = 60.0
"""From SIGKILL to the process's end: the kernel's work alone."""

# -P keeps the current folder off the import path, because the tested application may have modules of any name there.
COMMAND: Final = (sys.executable, "-P", "-m", "tidewire.cli", "broker")

_READY: Final = "ready "
"""How its first line begins."""


class BrokerFailed(Exception):
    """The broker did not start, or ended by itself. The message has the end of its log."""


class BrokerProcess:
    """A process that serves, or has served. Made by `start`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """For `start`."""
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status, once it has ended. A negative number is that of a signal."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill it as a crash would (kill -9). It is gone on return. Does nothing if it has ended."""
        self._process.kill()
        self._process.wait(KILL_SECONDS_MAX)

    def pause(self) -> None:
        """Stop all its threads (SIGSTOP). On return none of them runs, or the process has ended."""
        self._process.send_signal(signal.SIGSTOP)
        # The kernel handles the signal later. WNOWAIT leaves the status to a second call, and that of an end to
        # `_process`.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let it run again (SIGCONT)."""
        self._process.send_signal(signal.SIGCONT)


def start(
    options: Sequence[str], log: Path, environment: Mapping[str, str], *, seconds_max: float = START_SECONDS_MAX
) -> BrokerProcess:
    """Start a broker, and wait until it serves. It is killed when this process ends, however that happens.

    Args:
        options: those of `tidewire broker`.
        log: the file that gets its standard error, behind what is there.
        environment: all its environment variables.
        seconds_max: how long the start may take.

    Raises:
        BrokerFailed: it ended, or it was not ready in time.
    """
    started: Future[subprocess.Popen[str]] = Future()
    said: Future[str] = Future()

    def live() -> None:
        try:
            process = subprocess.Popen(  # noqa: S603 - our own command
                [*COMMAND, "--parent", str(os.getpid()), *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                env=environment,
                encoding="utf-8",
                errors="replace",
                # Ctrl-C in the terminal is for the tests alone.
                process_group=0,
            )
        except Exception as error:
            started.set_exception(error)
            return
        assert process.stdout is not None
        started.set_result(process)
        with process.stdout:
            said.set_result(process.stdout.readline())
            # A broker that says more must never block on a full pipe.
            for _ in process.stdout:
                pass

    with log.open("ab") as output:
        threading.Thread(target=live, name="tidewire broker", daemon=True).start()
        process = started.result()
    try:
        _check_ready(process, said, log, seconds_max)
    except BaseException:
        process.kill()
        process.wait(KILL_SECONDS_MAX)
        raise
    return BrokerProcess(process)


def _check_ready(process: subprocess.Popen[str], said: "Future[str]", log: Path, seconds_max: float) -> None:
    """Wait for the ready line."""
    try:
        line = said.result(seconds_max)
    except TimeoutError:
        raise BrokerFailed(f"The Tidewire broker was not ready within {seconds_max:g} s:\n{tail(log)}") from None
    if not line:
        # Its output has ended, so it has ended too, or is about to.
        status = process.wait(KILL_SECONDS_MAX)
        raise BrokerFailed(f"The Tidewire broker did not start. It ended with status {status}:\n{tail(log)}")
    if not line.startswith(_READY):
        raise BrokerFailed(f"The Tidewire broker said {line!r} instead of its addresses:\n{tail(log)}")
