"""The broker's process, driven as a user drives it: by the command, its ready line, signals and exit status.

All methods block; code with an event loop calls them in a thread.
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
"""From the start of the process to its ready line, including recovery after a kill."""

STOP_SECONDS_MAX: Final = 30.0
"""From SIGTERM to the process's end."""

KILL_SECONDS_MAX: Final = 10.0
"""From SIGKILL to the process's end, which takes only the kernel's work."""

LOG_LINES_SHOWN: Final = 20
"""How many of the last lines of the broker's log a failure shows."""

_ANY_PORT: Final = "127.0.0.1:0"
_READY: Final = re.compile(r"ready pulsar=(\S+) http=(\S+) data=.+")


class BrokerFailed(CommandFailed):
    """The broker did not start, ended by itself or failed to stop cleanly; the text has the end of its log."""


class BrokerProcess:
    """A broker on `data_dir` that runs for the length of a `with` block; its log goes to `log_path`.

    A normal end of the block stops the broker with SIGTERM and checks its exit status. An exception kills it. It is
    what `load.Serving` describes.
    """

    survives: Final = False

    def __init__(self, data_dir: Path, log_path: Path, *, metadata: str = "embedded") -> None:
        self.data_dir = data_dir
        self.metadata = metadata
        self._log_path = log_path
        self._process: subprocess.Popen[str] | None = None
        # The system chooses the ports of the first start; later starts use them again.
        self._pulsar = _ANY_PORT
        self._http = _ANY_PORT

    @property
    def service_url(self) -> str:
        """The URL for clients."""
        return f"pulsar://{self._pulsar}"

    @property
    def http_url(self) -> str:
        """The URL for administration."""
        return f"http://{self._http}"

    @property
    def pid(self) -> int | None:
        """The id of the running process, if one runs."""
        return None if self._process is None else self._process.pid

    @property
    def http_addresses(self) -> tuple[str]:
        """The address for administration, as `load.Serving` has it."""
        return (self._http,)

    def crash(self) -> str:
        """Kill the broker, for a load."""
        pid = self.pid
        self.kill()
        return f"kill -9 {pid}"

    def wait_given_up(self) -> None:
        """Do nothing: there is nobody else."""

    def restart(self) -> None:
        """Start the killed broker again. It is ready on return."""
        self.start()

    def start(self) -> None:
        """Start the broker and wait until it accepts connections.

        Raises:
            BrokerFailed: the broker ended, or took longer than START_SECONDS_MAX.
        """
        assert self._process is None, "it runs"
        command = [sys.executable, "-m", "tidewire.cli", "broker", "--data-dir", str(self.data_dir)]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [
                    *(*command, "--metadata", self.metadata),
                    *("--pulsar", self._pulsar, "--http", self._http, "--kafka", "none"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                encoding="utf-8",
            )
        try:
            line = self._first_line(self._process)
            ready = _READY.fullmatch(line.rstrip("\n"))
            if ready is None:
                raise self._failed(f"printed {line!r} instead of its ready line" if line else "did not become ready")
        except BaseException:
            self.kill()
            raise
        self._pulsar, self._http = ready[1], ready[2]

    def kill(self) -> None:
        """Kill the broker (kill -9), as a crash would, and wait for its end. Does nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._wait(self._process, KILL_SECONDS_MAX)

    def stop(self) -> None:
        """Stop the broker with SIGTERM and wait for its end.

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
        """Check that the broker has not ended by itself.

        Raises:
            BrokerFailed: it has ended.
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
            # The broker writes the short line at once, so it can be read whole. At the end of the output it is "".
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
