"""The processes of the broker and the Spark job: started as by hand, stopped, and killed with kill -9.

Each prints on standard output the lines that the caller waits for. Everything else goes to a log file.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

LOG_LINES_SHOWN = 15
ROOT = Path(__file__).parents[__name__.count(".")]
"""The folder from which these modules are imported."""


class ProcessFailed(Exception):
    """A process ended unexpectedly, or with an error; the text has the end of its log."""


class Process:
    """A process with all its children, for the length of a `with` block."""

    def __init__(self, command: list[str], log: Path, *, ends_by_signal: bool) -> None:
        """Start the process. With `ends_by_signal` it stops at SIGTERM, otherwise when its input ends."""
        self._log = log
        self._ends_by_signal = ends_by_signal
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command],
                # Spark's workers also import the jobs by name.
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", ".")])},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                encoding="utf-8",
                # A separate group can be killed as a whole: a Spark driver is a Python and a Java process.
                start_new_session=True,
            )

    def line(self) -> str:
        """Wait for the next line of its output.

        Raises:
            ProcessFailed: it has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failed()
        return line.rstrip("\n")

    def ask(self, text: str) -> None:
        """Write a line to its input. If it has ended, the next call of `line` says why."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(text + "\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """Kill the process and all its children (kill -9), and wait for their end. Does nothing if it has ended."""
        if self._has_ended:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._gone()

    def end(self) -> None:
        """Stop the process cleanly.

        Raises:
            ProcessFailed: it did not end cleanly.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._ends_by_signal:
            self._process.terminate()
        self._gone()
        if self._process.returncode != 0:
            raise self._failed()

    @property
    def _has_ended(self) -> bool:
        return self._process.stdout is None or self._process.stdout.closed

    def _gone(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # The output ends when all processes of the group have ended.
        for _ in self._process.stdout:
            pass
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()

    def _failed(self) -> ProcessFailed:
        status = self._process.wait()
        log = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        # Leave out indented lines: they are stack traces, and the log has them.
        told = [line for line in log if line[:1].strip()][-LOG_LINES_SHOWN:]
        return ProcessFailed(f"A process ended with status {status}; the end of {self._log}:\n" + "\n".join(told))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._has_ended:
            return
        if kind is None:
            self.end()
        else:
            self.kill()


class Broker:
    """A broker on a folder. It can be killed and started again on the same addresses."""

    def __init__(self, data: Path, log: Path) -> None:
        """Set up; nothing is started yet."""
        self._data = data
        self._log = log
        self._process: Process | None = None
        # The system chooses the ports at the first start.
        self._pulsar = self._http = "127.0.0.1:0"

    @property
    def service_url(self) -> str:
        """The URL for clients and Spark."""
        return f"pulsar://{self._pulsar}"

    @property
    def http_url(self) -> str:
        """The URL for administration."""
        return f"http://{self._http}"

    def start(self) -> None:
        """Start it, and wait for its ready line."""
        addresses = ["--pulsar", self._pulsar, "--http", self._http, "--kafka", "none"]
        self._process = Process(
            ["tidewire.cli", "broker", "--data-dir", str(self._data), *addresses], self._log, ends_by_signal=True
        )
        ready = dict(word.split("=", 1) for word in self._process.line().split() if "=" in word)
        self._pulsar, self._http = ready["pulsar"], ready["http"]

    def kill(self) -> None:
        """Kill it (kill -9)."""
        assert self._process is not None
        self._process.kill()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            # Python does not call `__exit__` then, and Ctrl-C does not reach the separate process group.
            if self._process is not None:
                self._process.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.__exit__(kind, error, traceback)
