"""A process that is killed and restarted many times, quickly, and that can kill itself at a chosen disk write.

A kill from outside comes between two arbitrary instructions. But recovery must handle the moments between two durable
steps, and some of these last only microseconds. A `Death` finds them by counting the process's disk writes since its
start. The process can also pause there before it dies, as on a slow disk. Then code that wrongly does not wait for this
write continues, and the error becomes visible.

A start needs no imports: one process imports the program, and forks a child for each start. The child runs the
program's `main` with the given arguments. Everything here blocks, with a time limit.
"""

import io
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, NoReturn

from tests.support.processes import KILL_SECONDS_MAX, START_SECONDS_MAX, STOP_SECONDS_MAX, BrokerFailure

_KILLED: Final = -signal.SIGKILL
_HELD: Final = "held"
"""Whoever asked for a start has a descriptor of the process."""


class Death(NamedTuple):
    """Where a process kills itself.

    Every change of a file is a write: writing, syncing, truncating, renaming, removing. Preallocating a file is one.
    """

    write: int
    """Which write since the start; the first is 1."""
    is_done: bool
    """Whether to die after the write, before it is reported; otherwise instead of it."""
    stall_seconds: float = 0.0
    """How long to pause before."""

    def __str__(self) -> str:
        stall = f", after {self.stall_seconds * 1000:.0f} ms" if self.stall_seconds else ""
        return f"{'behind' if self.is_done else 'instead of'} disk write {self.write}{stall}"


class DyingProcess:
    """See the module's docstring. `program` and `imports` are modules: the one whose `main` runs, and what it needs."""

    def __init__(self, program: str, imports: Sequence[str], *, name: str, stderr_path: Path) -> None:
        """Set up; nothing runs yet. `name` is used in error messages."""
        self.stderr_path = stderr_path
        self._name = name
        self._process: int | None = None
        """A descriptor of the running process."""
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        with self.stderr_path.open("ab") as stderr:
            self._forker = subprocess.Popen(
                [sys.executable, "-m", "tests.support.dying_process", program, *imports],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        threading.Thread(target=_read_lines, args=(self._forker.stdout, self._lines), daemon=True).start()

    @property
    def is_running(self) -> bool:
        """Whether it was started and its end was not noticed yet."""
        return self._process is not None

    def launch(self, arguments: Sequence[str], death: Death | None = None) -> str | None:
        """Start it and return its ready line; None if it killed itself before.

        Raises:
            BrokerFailure: it ended in another way, or was not ready within START_SECONDS_MAX.
        """
        assert self._process is None, f"{self._name} is running already"
        assert self._forker.stdin is not None
        print(json.dumps({"arguments": list(arguments), "death": death}), file=self._forker.stdin, flush=True)
        line = self._next_line(START_SECONDS_MAX)
        assert line is not None, "the process that forks does not answer"
        assert line[0] == "forked", line
        # The process id may be reused by another process. A descriptor is never reused.
        self._process = os.pidfd_open(int(line[1]))
        print(_HELD, file=self._forker.stdin, flush=True)
        line = self._next_line(START_SECONDS_MAX)
        if line is None:
            raise self._failure(f"not ready within {START_SECONDS_MAX} s")
        kind, told = line
        if kind == "ended":
            self._forget()
            if death is not None and int(told) == _KILLED:
                return None
            raise self._failure(f"ended with status {told} instead of becoming ready")
        return f"{kind} {told}"

    def kill(self) -> None:
        """Kill it as a crash would, and wait for its end. It may have killed itself before.

        Raises:
            BrokerFailure: it had ended in another way.
        """
        self.send_kill()
        if not self.wait():
            raise self._failure(f"still runs {KILL_SECONDS_MAX} s after being killed")

    def send_kill(self) -> None:
        """The first half of `kill`, which does not block."""
        self._signal(signal.SIGKILL)

    def wait(self, seconds_max: float = KILL_SECONDS_MAX) -> bool:
        """Wait until it was killed or has killed itself. Return False if it still runs after `seconds_max`.

        Raises:
            BrokerFailure: it ended in another way.
        """
        status = self._wait(seconds_max)
        if status not in {_KILLED, None}:
            raise self._failure(f"ended by itself with status {status}")
        return status is not None

    def stop(self) -> None:
        """Stop it (SIGTERM), and wait for its end.

        Raises:
            BrokerFailure: it did not end within STOP_SECONDS_MAX, or its status was not 0.
        """
        self._signal(signal.SIGTERM)
        status = self._wait(STOP_SECONDS_MAX)
        if status is None:
            raise self._failure(f"still runs {STOP_SECONDS_MAX} s after SIGTERM")
        if status != 0:
            raise self._failure(f"ended with status {status} after SIGTERM")

    def close(self) -> None:
        """Kill it if it runs, and end the process that forks."""
        if self._process is not None:
            self.send_kill()
            self._forget()
        assert self._forker.stdin is not None
        self._forker.stdin.close()
        self._forker.wait(KILL_SECONDS_MAX)

    def _signal(self, number: int) -> None:
        assert self._process is not None, f"{self._name} is not running"
        # It may have ended by itself just now.
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, number)

    def _forget(self) -> None:
        assert self._process is not None
        os.close(self._process)
        self._process = None

    def _wait(self, seconds_max: float) -> int | None:
        line = self._next_line(seconds_max)
        if line is None:
            return None
        kind, told = line
        assert kind == "ended", line
        self._forget()
        return int(told)

    def _next_line(self, seconds_max: float) -> tuple[str, str] | None:
        try:
            kind, _, told = self._lines.get(timeout=seconds_max).partition(" ")
        except queue.Empty:
            return None
        return kind, told

    def _failure(self, what: str) -> BrokerFailure:
        stderr = self.stderr_path.read_text(encoding="utf-8", errors="replace")
        return BrokerFailure(f"{self._name} {what}; its standard error:\n{stderr}")


def _read_lines(stdout: IO[str] | None, lines: queue.SimpleQueue[str]) -> None:
    assert stdout is not None
    with stdout:
        for line in stdout:
            lines.put(line.rstrip("\n"))


# ------------------------------------------------------------------------------------------- in the process that forks


def _fork_as_told() -> None:
    """For each line on standard input, fork a process, and print its process id and later how it ended."""
    # A line must be written at once (PYTHONUNBUFFERED writes its end separately): the forked process shares standard
    # output with this one, and may die at any moment.
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(write_through=False)
    # Import before the first fork, so that starts are fast. No import may start a thread.
    program, *imports = sys.argv[1:]
    for name in imports:
        import_module(name)
    main = import_module(program).main
    for line in sys.stdin:
        told = json.loads(line)
        pid = os.fork()
        if pid == 0:
            # It says so itself, so that this line comes before all of its others.
            print("forked", os.getpid(), flush=True)
            _be_the_program(main, told["arguments"], told["death"])
        # Its process id stays its own until it is waited for, also when it has died at once.
        assert next(sys.stdin) == f"{_HELD}\n"
        _pid, status = os.waitpid(pid, 0)
        print("ended", os.waitstatus_to_exitcode(status), flush=True)


def _be_the_program(main: Callable[[], None], arguments: list[str], death: list[Any] | None) -> NoReturn:
    status = 1
    try:
        # Later lines of standard input are not for this process.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if death is not None:
            _arrange(Death(*death))
        sys.argv = [sys.argv[1], *arguments]
        main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _arrange(death: Death) -> None:
    """Arrange that this process dies at the given write."""
    from storage.files import DiskFile, DiskFiles

    numbers = count(1)
    inside = threading.local()

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def write(*args: Any) -> Any:
            # Preallocating a file makes many writes, but counts as one step.
            if getattr(inside, "is_writing", False):
                return method(*args)
            dies = next(numbers) == death.write
            if not dies or death.is_done:
                inside.is_writing = True
                try:
                    result = method(*args)
                finally:
                    inside.is_writing = False
                if not dies:
                    return result
            threading.Event().wait(death.stall_seconds)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("nobody survives this")

        return write

    for owner, names in (
        (DiskFile, ("write_at", "sync", "truncate", "preallocate")),
        (DiskFiles, ("rename", "remove", "sync_dir")),
    ):
        for name in names:
            setattr(owner, name, counted(getattr(owner, name)))


if __name__ == "__main__":
    _fork_as_told()
