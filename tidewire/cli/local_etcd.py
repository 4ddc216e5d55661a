"""A real etcd process on loopback, for the demo, tests and benchmarks.

    with EtcdProcess(folder) as etcd:
        etcd.endpoint                 # 127.0.0.1:40311
        etcd.kill()                   # kill -9
        etcd.start()                  # same data, same address

Its data and its log are in `folder`. The command `etcd` must be on the path; Debian's package is etcd-server. All
methods block; code with an event loop calls them in a thread.

etcd says that it serves by a message to the socket in NOTIFY_SOCKET (sd_notify(3)). So nothing has to read its log, and
an etcd of its own session outlives the process that starts it.
"""

import os
import selectors
import shutil
import socket
import subprocess
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Final, NamedTuple, Self

from tidewire.cli.endings import CommandFailed

START_SECONDS_MAX: Final = 60.0
"""From the start of the process until it serves, including its leader election, also on a busy machine."""

END_SECONDS_MAX: Final = 10.0
"""From a signal to the process's end."""

STARTS_MAX: Final = 3
"""How many ports a start tries: another process may take a free port before etcd binds it."""

LOG_LINES_SHOWN: Final = 10
"""How many of the last lines of etcd's log a failure shows."""

_SERVES: Final = b"READY=1"
_NOTE_BYTES_MAX: Final = 4096


class EtcdFailed(CommandFailed):
    """etcd is not installed, did not start or did not stop. If it did not start, the text has the end of its log."""


class Membership(NamedTuple):
    """Which member of an etcd cluster a process is."""

    name: str = "default"
    ports: Mapping[str, int] = {"default": 0}
    """By name, the loopback ports on which the members talk to each other. One that is alone may take any port."""


class EtcdProcess:
    """See the module's docstring."""

    def __init__(
        self,
        folder: Path,
        *,
        command: str = "etcd",
        port: int = 0,
        outlives: bool = False,
        membership: Membership = Membership(),
    ) -> None:
        """Set up; nothing runs yet.

        Args:
            folder: for its data and log.
            command: the program.
            port: where it listens on loopback; 0 takes a free port.
            outlives: whether it goes on when this process ends, and gets none of its terminal's signals.
            membership: its place among the members of its cluster; by default it is the only one. A member serves once
                the cluster has a leader, so several of them must start at the same time.
        """
        self.folder = folder
        self._outlives = outlives
        self._membership = membership
        self._command = command
        self._data = folder / "data"
        self._log_path = folder / "etcd.log"
        self._process: subprocess.Popen[bytes] | None = None
        # If it is 0, the first start chooses it, and later starts use it again.
        self._port = port

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
            self._port = self._port or free_port()
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
        members = {name: f"http://127.0.0.1:{port}" for name, port in self._membership.ports.items()}
        peer = members[self._membership.name]
        self.folder.mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notes, self._log_path.open("ab") as log:
            # The kernel chooses a free name in the abstract namespace, which is written with an @ for its NUL byte.
            notes.bind("")
            name: bytes = notes.getsockname()
            self._process = subprocess.Popen(  # noqa: S603 - etcd
                [
                    self._command,
                    *("--name", self._membership.name, "--data-dir", str(self._data)),
                    *("--listen-client-urls", client, "--advertise-client-urls", client),
                    *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                    *("--initial-cluster", ",".join(f"{name}={url}" for name, url in members.items())),
                    *("--logger", "zap", "--log-outputs", "stderr"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=os.environ | {"NOTIFY_SOCKET": "@" + name[1:].decode("ascii")},
                start_new_session=self._outlives,
            )
            try:
                is_serving = _is_ready(notes, self._process.pid)
            except BaseException:
                # Nobody waits for it any more, for example after Ctrl-C.
                self.kill()
                raise
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


def _is_ready(notes: socket.socket, pid: int) -> bool:
    """Wait until the process says that it serves. Return False if it ends before, or takes too long."""
    ended = os.pidfd_open(pid)
    deadline = monotonic() + START_SECONDS_MAX
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(notes, selectors.EVENT_READ)
            selector.register(ended, selectors.EVENT_READ)
            while (seconds := deadline - monotonic()) > 0:
                ready = {key.fileobj for key, _ in selector.select(seconds)}
                if notes in ready and _SERVES in notes.recv(_NOTE_BYTES_MAX).splitlines():
                    return True
                if ended in ready:
                    return False
        return False
    finally:
        os.close(ended)


def free_port() -> int:
    """Return a loopback port that nobody used a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
