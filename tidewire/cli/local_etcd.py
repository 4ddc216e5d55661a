"""A real etcd process on loopback, for the demo, tests and benchmarks.

    with EtcdProcess(folder) as etcd:
        etcd.endpoint                 # 127.0.0.1:40311
        etcd.kill()                   # kill -9
        etcd.start()                  # same data, same address

Its data and its log are in `folder`. The command `etcd` must be on the path; Debian's package is etcd-server. All
methods block; code with an event loop calls them in a thread.
"""

import shutil
import socket
import subprocess
import threading
from collections import deque
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import IO, Final, Self

from tidewire.cli.endings import CommandFailed

START_SECONDS_MAX: Final = 20.0
"""From the start of the process until it serves, including its leader election."""

END_SECONDS_MAX: Final = 10.0
"""From a signal to the process's end."""

STARTS_MAX: Final = 3
"""How many ports a start tries: another process may take a free port before etcd binds it."""

LOG_LINES_SHOWN: Final = 10
"""How many of the last lines of etcd's log a failure shows."""

_SERVES: Final = b"serving client traffic"


class EtcdFailed(CommandFailed):
    """etcd is not installed, did not start or did not stop. If it did not start, the text has the end of its log."""


class EtcdProcess:
    """See the module's docstring."""

    def __init__(self, folder: Path, *, command: str = "etcd") -> None:
        self.folder = folder
        self._command = command
        self._data = folder / "data"
        self._log_path = folder / "etcd.log"
        self._process: subprocess.Popen[bytes] | None = None
        # The first start chooses it; later starts use it again.
        self._port = 0

    @property
    def endpoint(self) -> str:
        """The HOST:PORT that clients connect to."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None, "it does not run"
        return self._process.pid

    def start(self) -> None:
        """Start etcd, and return when it serves.

        Raises:
            EtcdFailed: etcd is not installed, it ended, or it took longer than START_SECONDS_MAX.
        """
        assert self._process is None, "it runs"
        if shutil.which(self._command) is None:
            raise EtcdFailed("The command etcd is missing. Install it (Debian: apt-get install etcd-server).")
        # After the first start the port is fixed, so there is no other one to try.
        attempts_left = 1 if self._port else STARTS_MAX
        while self._process is None:
            attempts_left -= 1
            self._port = self._port or _free_port()
            try:
                self._start()
            except EtcdFailed:
                if not attempts_left:
                    raise
                self._port = 0

    def kill(self) -> None:
        """Kill etcd (kill -9), as a crash would, and wait for its end. Does nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._wait()

    def stop(self) -> None:
        """Stop etcd cleanly (SIGTERM) and wait for its end. Does nothing if it does not run.

        Raises:
            EtcdFailed: it was still running after END_SECONDS_MAX; it is killed then.
        """
        if self._process is not None:
            self._process.terminate()
            try:
                self._wait()
            except subprocess.TimeoutExpired:
                self.kill()
                raise EtcdFailed(f"etcd was still running {END_SECONDS_MAX:.0f} s after SIGTERM.") from None

    def lose_data(self) -> None:
        """Delete all of etcd's data; it must not be running."""
        assert self._process is None, "it runs"
        shutil.rmtree(self._data)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Its data is not needed afterwards, so a kill is enough.
        self.kill()

    def _start(self) -> None:
        client = f"http://{self.endpoint}"
        # Members of a cluster use this port among themselves. There is only one member, so any port will do.
        peer = "http://127.0.0.1:0"
        self.folder.mkdir(parents=True, exist_ok=True)
        process = self._process = subprocess.Popen(  # noqa: S603 - etcd
            [
                self._command,
                *("--data-dir", str(self._data)),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"default={peer}"),
                *("--logger", "zap", "--log-outputs", "stderr"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert process.stderr is not None
        serves: SimpleQueue[bool] = SimpleQueue()
        # This thread reads to the end, so etcd never blocks on a full pipe.
        threading.Thread(target=_keep_log, args=(process.stderr, self._log_path, serves), daemon=True).start()
        try:
            is_serving = serves.get(timeout=START_SECONDS_MAX)
        except Empty:
            is_serving = False
        if not is_serving:
            self.kill()
            raise EtcdFailed(f"etcd did not start. The end of its log:\n{self._shown()}")

    def _wait(self) -> None:
        assert self._process is not None, "it does not run"
        self._process.wait(END_SECONDS_MAX)
        self._process = None

    def _shown(self) -> str:
        with self._log_path.open(encoding="utf-8", errors="replace") as log:
            return "".join(f"  {line}" for line in deque(log, LOG_LINES_SHOWN))


def _keep_log(lines: IO[bytes], path: Path, serves: SimpleQueue[bool]) -> None:
    with lines, path.open("ab") as log:
        for line in lines:
            log.write(line)
            log.flush()
            if _SERVES in line:
                serves.put(True)
    serves.put(False)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
