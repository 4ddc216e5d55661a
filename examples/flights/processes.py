"""The broker's and the Spark job's processes: started as you would by hand, and killed as nobody would wish.

Each says on standard output what somebody may wait for; everything else it has to say goes to a log file.
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
"""The folder in which the names of these modules begin."""


class ProcessFailed(Exception):
    """A process ended although nobody asked it to, or badly; the text has the end of its log."""


class Process:
    """A process with all that it starts, for the length of a `with`."""

    def __init__(self, command: list[str], log: Path, *, ends_by_signal: bool) -> None:
        """Start it; it ends in good order by SIGTERM, or else when its input ends."""
        self._log = log
        self._ends_by_signal = ends_by_signal
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command],
                # Spark's workers import the jobs by their names, too.
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", ".")])},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                encoding="utf-8",
                # A group of its own, to be killed as one: a Spark driver is a Python and a Java process.
                start_new_session=True,
            )

    def line(self) -> str:
        """Wait for its next line.

        Raises:
            ProcessFailed: there is none; it has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failed()
        return line.rstrip("\n")

    def ask(self, text: str) -> None:
        """Write a line to it. When it has ended, its next `line` says why."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(text + "\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """Kill -9 it and all that it started; on return all of it is gone. Does nothing when it has ended."""
        if self._has_ended:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._gone()

    def end(self) -> None:
        """Let it end in good order.

        Raises:
            ProcessFailed: it did not.
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
        # The end comes when nobody of the group holds the other end any more.
        for _ in self._process.stdout:
            pass
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()

    def _failed(self) -> ProcessFailed:
        status = self._process.wait()
        log = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        # Where in Java and Python it happened stands there, indented, for whoever asks.
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
    """A broker on a folder, which can be killed and started again at the same addresses."""

    def __init__(self, data: Path, log: Path) -> None:
        """Nothing is started yet."""
        self._data = data
        self._log = log
        self._process: Process | None = None
        # The first start lets the system choose the ports.
        self._pulsar = self._http = "127.0.0.1:0"

    @property
    def service_url(self) -> str:
        """For clients and Spark."""
        return f"pulsar://{self._pulsar}"

    @property
    def http_url(self) -> str:
        """For administration."""
        return f"http://{self._http}"

    def start(self) -> None:
        """Start it, and wait until it says that it is ready."""
        flags = ["--data-dir", str(self._data), "--pulsar", self._pulsar, "--http", self._http]
        self._process = Process(["tidewire.cli", "broker", *flags], self._log, ends_by_signal=True)
        ready = dict(word.split("=", 1) for word in self._process.line().split() if "=" in word)
        self._pulsar, self._http = ready["pulsar"], ready["http"]

    def kill(self) -> None:
        """Kill -9."""
        assert self._process is not None
        self._process.kill()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            # Nobody calls `__exit__` then, and it is in a group of its own, which Ctrl-C does not reach.
            if self._process is not None:
                self._process.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.__exit__(kind, error, traceback)
