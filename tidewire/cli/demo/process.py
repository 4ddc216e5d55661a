"""The broker's process, driven as a user drives it: by the command, its ready line, signals and exit status.

Blocking, since starting and ending are moments of the story and not of an event loop; who has one uses a thread.
"""

import re
import selectors
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tidewire.cli.endings import CommandFailed

START_SECONDS_MAX: Final = 60.0
"""From the start of the process to its ready line, recovery of what a kill left included."""

STOP_SECONDS_MAX: Final = 30.0
"""From SIGTERM to the process's end."""

KILL_SECONDS_MAX: Final = 10.0
"""From SIGKILL to the process's end: the kernel's work alone."""

LOG_LINES_SHOWN: Final = 20
"""How much of the broker's log a failure shows, from its end."""

_ANY_PORT: Final = "127.0.0.1:0"
_READY: Final = re.compile(r"ready pulsar=(\S+) http=(\S+) data=.+")


class BrokerFailed(CommandFailed):
    """The broker did not start, ended by itself or ended badly; the text has the end of its log."""


class BrokerProcess:
    """A broker on `data_dir`, for the length of a `with`; its log goes to `log_path`.

    Leaving the block in good order ends it by SIGTERM and checks its exit status; leaving it by an exception kills it.
    """

    def __init__(self, data_dir: Path, log_path: Path, *, metadata: str = "embedded") -> None:
        self.data_dir = data_dir
        self.metadata = metadata
        self._log_path = log_path
        self._process: subprocess.Popen[str] | None = None
        # The first start lets the system choose the ports; later ones ask for the same again.
        self._pulsar = _ANY_PORT
        self._http = _ANY_PORT

    @property
    def service_url(self) -> str:
        """For clients."""
        return f"pulsar://{self._pulsar}"

    @property
    def http_url(self) -> str:
        """For administration."""
        return f"http://{self._http}"

    @property
    def pid(self) -> int | None:
        """Of the process now running."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it and wait until it accepts connections.

        Raises:
            BrokerFailed: it ended, or took longer than START_SECONDS_MAX.
        """
        assert self._process is None, "it runs"
        command = [sys.executable, "-m", "tidewire.cli", "broker", "--data-dir", str(self.data_dir)]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [*command, "--pulsar", self._pulsar, "--http", self._http, "--metadata", self.metadata],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                encoding="utf-8",
            )
        try:
            line = self._first_line(self._process)
            ready = _READY.fullmatch(line.rstrip("\n"))
            if ready is None:
                raise self._failed(f"said {line!r} instead of that it is ready" if line else "did not become ready")
        except BaseException:
            self.kill()
            raise
        self._pulsar, self._http = ready[1], ready[2]

    def kill(self) -> None:
        """End it as a crash would (kill -9); on return it is gone. Does nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._wait(self._process, KILL_SECONDS_MAX)

    def stop(self) -> None:
        """Ask it to end (SIGTERM) and wait.

        Raises:
            BrokerFailed: it had ended by itself, took longer than STOP_SECONDS_MAX, or its exit status is not 0.
        """
        process = self._process
        assert process is not None, "it does not run"
        if (status := process.poll()) is not None:
            self._wait(process, KILL_SECONDS_MAX)
            raise self._failed(f"ended by itself with status {status}")
        process.terminate()
        try:
            status = self._wait(process, STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._failed(f"was still running {STOP_SECONDS_MAX:.0f} s after SIGTERM") from None
        if status != 0:
            raise self._failed(f"ended with status {status} after SIGTERM")

    def check_running(self) -> None:
        """See that it has not ended by itself.

        Raises:
            BrokerFailed: it has.
        """
        if self._process is not None and (status := self._process.poll()) is not None:
            raise self._failed(f"ended by itself with status {status}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()

    def _first_line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            # The line is short and written at once: what can be read holds all of it. At the end, it is empty.
            return process.stdout.readline() if selector.select(START_SECONDS_MAX) else ""

    def _wait(self, process: subprocess.Popen[str], seconds_max: float) -> int:
        status = process.wait(seconds_max)
        assert process.stdout is not None
        process.stdout.close()
        self._process = None
        return status

    def _failed(self, what: str) -> BrokerFailed:
        log = self._log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        shown = "\n".join(f"  {line}" for line in log[-LOG_LINES_SHOWN:])
        return BrokerFailed(f"The broker {what}. The end of its log:\n{shown}" if log else f"The broker {what}.")
