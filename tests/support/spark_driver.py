"""Spark's driver in separate processes, started as a user starts it: by spark-submit, with a job and a checkpoint.

    async with trio.open_nursery() as nursery:
        driver = SparkDriver(folder, arguments, happenings, master="local-cluster[2,1,1024]")
        await driver.start(nursery)               # until the job says that it has started
        await happenings.nth(OFFSETS_WRITTEN, 3)  # Spark's log says it; spark_steering tells more
        driver.kill(Victims.ALL)                  # kill -9
        await driver.ended.wait()

Spark is a tree of processes: the driver's JVM, the user's Python below it, planners and workers in Python, and
executors' JVMs with their workers. The caller chooses which of them are killed. The others may end by themselves, or
may still run when the next driver starts.
"""

import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final

import trio

from tests.support import spark_job, spark_steering
from tests.support.happenings import Happenings
from tests.support.java import QUICK_JAVA

ROOT: Final = Path(__file__).parent.parent.parent
START_SECONDS_MAX: Final = 240.0
"""A driver that has not started by then never will. An idle machine takes ten seconds."""
LINES_KEPT_MAX: Final = 100

STARTED: Final = "driver started"
OFFSETS_BEGUN: Final = "offsets begun"
"""Spark is about to write a micro-batch's offsets down."""
OFFSETS_WRITTEN: Final = "offsets written"
MANIFEST_BEGUN: Final = "manifest begun"
"""The file sink is about to write down which files belong to a micro-batch."""
MANIFEST_WRITTEN: Final = "manifest written"
COMMITS_BEGUN: Final = "commits begun"
"""Spark is about to write down that a micro-batch is done."""
COMMITS_WRITTEN: Final = "commits written"

_FILES: Final = {"offsets": "offsets", "commits": "commits", "_spark_metadata": "manifest"}
_FILE: Final = re.compile(
    r"(Writing atomically to|Renamed temp file \S+ to) \S*/(offsets|commits|_spark_metadata)/[0-9]+(\.compact)?( |$)"
)
_RAISED: Final = re.compile(r"[\w.]+(Error|Exception): ")
_LOGGING: Final = """
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
logger.streaming.name = org.apache.spark.sql.execution.streaming
logger.streaming.level = info
"""
_JAVA_OPTIONS: Final = " ".join((*QUICK_JAVA, "-Xss4m"))


class Victims(Enum):
    """Which of a driver's or an executor's processes are killed. The others notice some time later."""

    ALL = "all of it"
    JVM = "its JVM"
    PYTHON = "its Python"


class SparkDriver:
    """See the module's docstring."""

    def __init__(self, folder: Path, arguments: Sequence[str], happenings: Happenings, *, master: str) -> None:
        """Set up; nothing runs yet. `folder` is for Spark, `arguments` are the job's."""
        self.ended = trio.Event()
        self.status: int | None = None
        self.was_killed = False
        self._last_lines: deque[str] = deque(maxlen=LINES_KEPT_MAX)
        """Of its log, those that are no mere information."""
        self._folder = folder
        self._arguments = list(arguments)
        self._happenings = happenings
        self._master = master
        self._process: trio.Process | None = None
        self._known: dict[int, int] = {}
        """Descriptors of all processes that were seen below it, by number."""

    async def start(self, nursery: trio.Nursery) -> None:
        """Start it. Return when the job has started, or all processes have ended."""
        self._folder.mkdir(parents=True, exist_ok=True)
        home = self._home()
        logging = self._folder / "log4j2.properties"
        logging.write_text(_LOGGING)
        options = f"-Dlog4j2.configurationFile=file:{logging} {_JAVA_OPTIONS}"
        conf = {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": options,
            "spark.executor.extraJavaOptions": options,
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            # Executors are killed more often than a cluster's master allows by default.
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.local.dir": str(self._folder / "local"),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        command = [str(home / "bin" / "spark-submit"), "--master", self._master]
        for name, value in conf.items():
            command += ["--conf", f"{name}={value}"]
        command += [str(spark_job.__file__), *self._arguments]
        self._process = await trio.lowlevel.open_process(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
        started = trio.Event()
        nursery.start_soon(self._run, self._process, started)
        with trio.fail_after(START_SECONDS_MAX):
            await started.wait()

    def _home(self) -> Path:
        """Return the installed Spark's home, but let executors keep their files in this folder."""
        import pyspark

        home = self._folder / "home"
        if not home.exists():
            home.mkdir()
            for name in ("bin", "jars", "python"):
                (home / name).symlink_to(Path(pyspark.__file__).parent / name)
        return home

    async def _run(self, process: trio.Process, started: trio.Event) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_output, process.stdout, started)
                nursery.start_soon(self._read_log, process.stderr)
                self.status = await process.wait()
                # Processes that the killed one leaves behind may keep the pipes open.
                nursery.cancel_scope.deadline = trio.current_time() + 1
        finally:
            process.kill()
            self.ended.set()
            started.set()

    async def _read_output(self, stream: trio.abc.ReceiveStream, started: trio.Event) -> None:
        async for line in _lines(stream):
            if line == "started":
                self._happenings.note(STARTED)
                started.set()
            else:
                self._keep(line)

    async def _read_log(self, stream: trio.abc.ReceiveStream) -> None:
        async for line in _lines(stream):
            event = event_of(line)
            if event is not None:
                self._happenings.note(event)
            self._keep(line)

    def _keep(self, line: str) -> None:
        with (self._folder / "log").open("a") as log:
            print(line, file=log)
        if " INFO " not in line:
            self._last_lines.append(line)

    # Kills

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and not self.ended.is_set()

    @property
    def reason(self) -> str:
        """Return why it ended: the job's own message, or the end of its log."""
        return next((line for line in reversed(self._last_lines) if _RAISED.match(line)), "\n".join(self._last_lines))

    def executors(self) -> list[int]:
        """Return the JVMs of its executors."""
        return [pid for pid in self._below() if b"CoarseGrainedExecutorBackend" in _command(pid)]

    def executor_of(self, pid: int) -> int | None:
        """Return the JVM of a worker's executor; None if it is gone, or if the driver works alone."""
        executors = set(self.executors())
        while pid > 1:
            if pid in executors:
                return pid
            pid = _parents().get(pid, 0)
        return None

    def kill(self, victims: Victims) -> None:
        """Kill the driver."""
        assert self._process is not None, "it was never started"
        self.was_killed = True
        self._kill(self._process.pid, victims)

    def kill_executor(self, pid: int, victims: Victims) -> None:
        """Kill one of its executors."""
        self._kill(pid, victims)

    def _kill(self, top: int, victims: Victims) -> None:
        below = list(self._below(top))
        chosen = {Victims.ALL: [top, *below], Victims.JVM: [top]}.get(victims)
        if chosen is None:
            chosen = [pid for pid in below if b"python" in _command(pid).partition(b"\0")[0]]
        for pid in chosen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _below(self, top: int | None = None) -> Iterator[int]:
        """Return the processes below one, without it."""
        assert self._process is not None, "it was never started"
        children: dict[int, list[int]] = {}
        for pid, parent in _parents().items():
            children.setdefault(parent, []).append(pid)
        waiting = [self._process.pid if top is None else top]
        while waiting:
            for pid in children.get(waiting.pop(), ()):
                if pid not in self._known:
                    with suppress(ProcessLookupError):
                        self._known[pid] = os.pidfd_open(pid)
                waiting.append(pid)
                yield pid

    def close(self) -> None:
        """Kill all remaining processes."""
        if self.is_running:
            self.kill(Victims.ALL)
        for descriptor in self._known.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
        self._known.clear()


def event_of(line: str) -> str | None:
    """Return the event that a line of Spark's log reports, if any."""
    found = _FILE.search(line)
    if found is None:
        return None
    return f"{_FILES[found[2]]} {'begun' if found[1].startswith('Writing') else 'written'}"


async def listen(steering: Path, happenings: Happenings, *, held: trio.MemorySendChannel[int]) -> None:
    """Note what steered data sources report, until cancelled. `held` gets the ids of paused processes."""
    # It is opened for writing, too; otherwise the pipe would end with its first writer.
    async with trio.lowlevel.FdStream(os.open(steering / spark_steering.PIPE, os.O_RDWR | os.O_NONBLOCK)) as stream:
        async for line in _lines(stream):
            event, _, pid = line.rpartition(" ")
            if event.startswith(spark_steering.HELD):
                held.send_nowait(int(pid))
            happenings.note(event)


async def _lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[str]:
    waiting = b""
    async for data in stream:
        *lines, waiting = (waiting + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")


def _parents() -> dict[int, int]:
    """Return the parent of each process."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                # The process's name before it, in parentheses, may contain any text.
                found[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
