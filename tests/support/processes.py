"""A broker in a separate process, started as a user starts it.

    with running_broker(tmp_path / "data") as broker:
        broker.service_url            # pulsar://127.0.0.1:40311
        broker.kafka                  # 127.0.0.1:40313
        broker.kill()                 # kill -9
        broker.restart()              # same data, same addresses
        broker.stop()                 # SIGTERM, and the exit status must be 0; leaving the block does the same

When an exception leaves the block, the broker's standard error is printed, and pytest shows it with the failed test. It
is also in every error raised here.

The methods block on purpose, so that tests on Trio, on asyncio and in plain Python can use the same object. Every wait
has a time limit, and nothing polls: a thread reads the ready line from a pipe.
"""

import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from broker.addresses import Address
from tidewire.testing.ports import ReservedPort

START_SECONDS_MAX: Final = 120.0
"""From the start of the process to its ready line."""

STOP_SECONDS_MAX: Final = 60.0
"""From SIGTERM to the process's end."""

END_SECONDS_MAX: Final = 120.0
"""How long a process may take that should end by itself."""

KILL_SECONDS_MAX: Final = 60.0
"""From SIGKILL to the process's end: the kernel's work alone."""

FREE_PORTS: Final = ("--pulsar", "127.0.0.1:0", "--http", "127.0.0.1:0", "--kafka", "127.0.0.1:0")
"""Flags with which every listener takes a port that the system chooses. No test may take a default port."""

FREE_ADDRESSES: Final = dict.fromkeys(("pulsar", "http", "kafka"), "127.0.0.1:0")
"""The same as settings."""

BROKER_COMMAND: Final = (sys.executable, "-m", "tidewire.cli", "broker")

_READY = re.compile(r"ready pulsar=(\S+:[0-9]+) http=(\S+:[0-9]+) kafka=(\S+:[0-9]+) data=(.+)")


class BrokerFailure(AssertionError):
    """The broker did not start, ended by itself, or did not stop cleanly; the text has its standard error."""


class RunningBroker:
    """See the module's docstring; made by `running_broker`."""

    def __init__(
        self,
        data_dir: Path,
        arguments: Sequence[str],
        command: Sequence[str],
        stderr_path: Path | None = None,
    ) -> None:
        self.data_dir = data_dir
        # Beside the data, not in it: what is in there is the broker's.
        self._stderr_path = stderr_path or data_dir.with_name(data_dir.name + ".stderr")
        self._arguments = tuple(arguments)
        self._command = tuple(command)
        self._process: subprocess.Popen[str] | None = None
        # Otherwise a client that connects to the dead broker could take one of its ports before it starts again.
        self._ports = [ReservedPort() for _ in range(3)]
        self.pulsar, self.http, self.kafka = (Address.parse(port.address) for port in self._ports)

    @property
    def service_url(self) -> str:
        """The URL for clients of the Pulsar protocol."""
        return f"pulsar://{self.pulsar}"

    @property
    def http_url(self) -> str:
        """The address for REST and metrics."""
        return f"http://{self.http}"

    @property
    def process(self) -> subprocess.Popen[str]:
        """The running process."""
        assert self._process is not None, "the broker is not running"
        return self._process

    @property
    def pid(self) -> int:
        """The running process's id; `restart` changes it."""
        return self.process.pid

    @property
    def stderr(self) -> str:
        """Everything that it wrote to standard error, in all its lives."""
        if not self._stderr_path.exists():
            return ""
        return self._stderr_path.read_text(encoding="utf-8", errors="replace")

    def start(self) -> None:
        """Start it and wait for its ready line.

        Raises:
            BrokerFailure: it ended, or was not ready within START_SECONDS_MAX.
        """
        assert self._process is None, "the broker is running already"
        with self._stderr_path.open("ab") as stderr:
            self._process = subprocess.Popen(
                self._line(self.pulsar, self.http, self.kafka),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                encoding="utf-8",
            )
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        # Reads to the end, so that a broker that says more than its ready line never blocks on a full pipe.
        threading.Thread(target=_read_lines, args=(self._process.stdout, lines), daemon=True).start()
        try:
            line = lines.get(timeout=START_SECONDS_MAX)
        except queue.Empty:
            self.kill()
            raise self._failure(f"not ready within {START_SECONDS_MAX} s") from None
        if line is None:
            # Its output has ended, so it has ended too, or is about to.
            status = self.process.wait(KILL_SECONDS_MAX)
            self._process = None
            raise self._failure(f"ended with status {status} instead of becoming ready")
        ready = _READY.fullmatch(line)
        if ready is None:
            self.kill()
            raise self._failure(f"said {line!r} instead of its ready line")
        # A test's own flags may name others than the reserved ones.
        self.pulsar = Address.parse(ready[1])
        self.http = Address.parse(ready[2])
        self.kafka = Address.parse(ready[3])

    def refused_twin(self) -> str:
        """Start the same broker once more beside this one. It must refuse, and not say that it is ready.

        Returns:
            the last line that it wrote to standard error.
        """
        free = Address("127.0.0.1", 0)
        ended = subprocess.run(
            self._line(free, free, free),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_SECONDS_MAX,
        )
        assert ended.returncode == 1, ended
        assert ended.stdout == "", ended
        return ended.stderr.splitlines()[-1]

    def _line(self, pulsar: Address, http: Address, kafka: Address) -> list[str]:
        addresses = ["--pulsar", str(pulsar), "--http", str(http), "--kafka", str(kafka)]
        return [*self._command, "--data-dir", str(self.data_dir), *addresses, *self._arguments]

    def kill(self) -> None:
        """Kill it as a crash would (kill -9), and wait until it is gone."""
        process = self.process
        self._process = None
        process.kill()
        process.wait(KILL_SECONDS_MAX)

    def restart(self) -> None:
        """Kill it if it runs, and start it again on the same data and the same addresses."""
        if self._process is not None:
            self.kill()
        self.start()

    def stop(self) -> None:
        """Stop it (SIGTERM), and wait for its end.

        Raises:
            BrokerFailure: it had ended by itself, did not end within STOP_SECONDS_MAX, or its status was not 0.
        """
        process = self.process
        if (status := process.poll()) is not None:
            self._process = None
            raise self._failure(f"ended by itself with status {status}")
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._failure(f"still running {STOP_SECONDS_MAX} s after SIGTERM") from None
        self._process = None
        if status != 0:
            raise self._failure(f"ended with status {status} after SIGTERM")

    def close(self) -> None:
        """Kill it if it runs, and give its ports back. It cannot be started again."""
        if self._process is not None:
            self.kill()
        for port in self._ports:
            port.release()

    def wait_ended(self) -> int:
        """Wait until it ends by itself, and return its exit status.

        Raises:
            BrokerFailure: it did not end within END_SECONDS_MAX.
        """
        try:
            status = self.process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise self._failure(f"still runs after {END_SECONDS_MAX} s") from None
        self._process = None
        return status

    @property
    def is_running(self) -> bool:
        """False after `kill` and `stop`. A process that ended by itself counts as running until `stop` raises."""
        return self._process is not None

    def _failure(self, what: str) -> BrokerFailure:
        return BrokerFailure(f"the broker on {self.data_dir} {what}; its standard error:\n{self.stderr}")


@contextmanager
def running_broker(data_dir: Path, *arguments: str, command: Sequence[str] = BROKER_COMMAND) -> Iterator[RunningBroker]:
    """Run a broker on `data_dir`; it is ready. `arguments` are further flags.

    Raises:
        BrokerFailure: it did not start, or did not end cleanly at the end of the block.
    """
    broker = RunningBroker(data_dir, arguments, command)
    try:
        broker.start()
        yield broker
        if broker.is_running:
            broker.stop()
    except BaseException:
        print(f"standard error of the broker on {data_dir}:\n{broker.stderr}", file=sys.stderr)
        raise
    finally:
        broker.close()


def children_of(supervisor: RunningBroker) -> dict[str, int]:
    """Return the processes that it started, by the ids of their brokers."""
    found = {}
    for children in Path(f"/proc/{supervisor.pid}/task").glob("*/children"):
        for pid in children.read_text().split():
            arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            found[arguments[len(arguments) - arguments[::-1].index("--broker-id")]] = int(pid)
    return found


def _read_lines(stdout: IO[str] | None, lines: queue.SimpleQueue[str | None]) -> None:
    assert stdout is not None
    with stdout:
        for line in stdout:
            lines.put(line.rstrip("\n"))
    lines.put(None)
