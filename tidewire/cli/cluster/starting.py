"""Starts and stops the processes of a cluster on this machine. They outlive the command that starts them.

Each broker is a `tidewire broker`, as a user starts it by hand. All brokers start at once. If one of them does not
become ready, everything that the same command started is stopped again.
"""

import os
import re
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from tidewire.cli.cluster.folder import NO_LISTENER, OWN_ETCD, Addresses, Cluster, ClusterFolder
from tidewire.cli.cluster.pids import Process, note_pid, running, wait_ended
from tidewire.cli.endings import CommandFailed
from tidewire.cli.local_etcd import EtcdProcess

START_SECONDS_MAX: Final = 120.0
"""From the start of the brokers until all are ready, including recovery."""
STOP_SECONDS_MAX: Final = 30.0
"""From SIGTERM to a process's end. A broker promises less."""
KILL_SECONDS_MAX: Final = 10.0
"""From SIGKILL to the process's end, which takes only the kernel's work."""

_READY: Final = re.compile(r"ready pulsar=(\S+) http=(\S+) (?:kafka=(\S+) )?data=.+\n")

Say = Callable[[str], None]
"""Tells the user what was done."""


class Ending(StrEnum):
    """How a process took its stop."""

    STOPPED = "stopped"
    KILLED = "killed"
    """By SIGKILL, because SIGTERM did not end it."""
    RUNNING = "running"
    """Not even SIGKILL ended it."""


class Ended(NamedTuple):
    """A process that was to stop."""

    name: str
    pid: int
    ending: Ending

    @property
    def sentence(self) -> str:
        """What became of it, for people."""
        return {
            Ending.STOPPED: f"stopped {self.name}",
            Ending.KILLED: f"killed {self.name}, which still ran {STOP_SECONDS_MAX:.0f} s after SIGTERM",
            Ending.RUNNING: f"{self.name} (pid {self.pid}) does not end, not even by SIGKILL",
        }[self.ending]


Note = Callable[[Ended], None]
"""Takes what became of each process."""


class _Starting(NamedTuple):
    broker: str
    process: subprocess.Popen[str]
    log_begin: int
    """The size of its log before this start."""


def start_cluster(folder: ClusterFolder, cluster: Cluster, brokers: Sequence[str], say: Say) -> None:
    """Start those of `brokers` that do not run, and the cluster's own etcd. Return when they are ready.

    Raises:
        CommandFailed: a process did not become ready, or the folder refused a file. What this call started is stopped
            again.
    """
    started: list[tuple[str, Path]] = []
    before = folder.read()
    # A start that was killed may have left processes whose addresses nobody knows.
    known = {} if before is None else before.brokers
    unknown = [(broker, folder.pid_file(broker)) for broker in folder.started() if broker not in known]
    left = unknown if before is not None else [*unknown, (OWN_ETCD, folder.etcd_pid_file)]
    _stop(left, lambda ended: say(ended.sentence))
    try:
        if cluster.metadata == OWN_ETCD:
            cluster.etcd_port = _etcd(folder, cluster, started, say)
        starting = []
        for broker in brokers:
            with running(folder.pid_file(broker)) as found:
                if found is not None:
                    say(f"{broker} runs already (pid {found.pid})")
                    # It keeps what it has, which may be less than it would have now.
                    cluster.brokers[broker] = known.get(broker, cluster.brokers[broker])
                    continue
            starting.append(_launch(folder, cluster, broker, started))
        for broker, process, addresses in _ready(folder, starting):
            cluster.brokers[broker] = addresses
            say(f"{broker} {addresses.shown} pid={process.pid}")
        folder.write(cluster)
    except BaseException as failure:
        # The brokers first: etcd started first.
        _stop(started[::-1], _note_nothing)
        if isinstance(failure, OSError):
            raise CommandFailed(f"The folder {folder.path} cannot be used: {failure.strerror}.") from failure
        raise


def stop_cluster(folder: ClusterFolder, note: Note, brokers: Sequence[str] = ()) -> None:
    """Stop these brokers, if they run. Without any, stop all of them, and then the cluster's own etcd."""
    _stop([(broker, folder.pid_file(broker)) for broker in brokers or folder.started()], note)
    if not brokers:
        _stop([(OWN_ETCD, folder.etcd_pid_file)], note)


def _etcd(folder: ClusterFolder, cluster: Cluster, started: list[tuple[str, Path]], say: Say) -> int:
    """Start the cluster's own etcd if it does not run. Return its port."""
    with running(folder.etcd_pid_file) as process:
        if process is not None:
            return cluster.etcd_port
    etcd = EtcdProcess(folder.etcd, port=cluster.etcd_port, outlives=True)
    etcd.start()
    try:
        note_pid(folder.etcd_pid_file, etcd.pid)
    except BaseException:
        etcd.kill()
        raise
    started.append((OWN_ETCD, folder.etcd_pid_file))
    cluster.etcd_port = int(etcd.endpoint.rpartition(":")[2])
    say(f"etcd at {etcd.endpoint} pid={etcd.pid}")
    return cluster.etcd_port


def _launch(folder: ClusterFolder, cluster: Cluster, broker: str, started: list[tuple[str, Path]]) -> _Starting:
    addresses = cluster.brokers[broker]
    settings = ["--data-dir", str(folder.data_dir), "--broker-id", broker, "--metadata", cluster.metadata_place]
    if cluster.metadata_place == "embedded":
        # Later starts may add brokers, so a first one is never alone.
        settings += ["--internal", "127.0.0.1:0"]
    if cluster.config is not None:
        settings += ["--config", cluster.config]
    with folder.log(broker).open("ab") as log:
        begin = os.fstat(log.fileno()).st_size
        process = subprocess.Popen(  # noqa: S603 - our own command
            [
                *(sys.executable, "-m", "tidewire.cli", "broker"),
                *("--again", "--pulsar", addresses.pulsar, "--http", addresses.http),
                *("--kafka", addresses.kafka or NO_LISTENER),
                *settings,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            encoding="utf-8",
            # Ctrl-C in this command's terminal must not stop it.
            start_new_session=True,
        )
    try:
        note_pid(folder.pid_file(broker), process.pid)
    except BaseException:
        # Without its pid file, nobody would find it.
        with process:
            process.kill()
        raise
    started.append((broker, folder.pid_file(broker)))
    return _Starting(broker, process, begin)


def _ready(
    folder: ClusterFolder, starting: Sequence[_Starting]
) -> Iterator[tuple[str, "subprocess.Popen[str]", Addresses]]:
    """Yield each broker when it is ready.

    Raises:
        CommandFailed: one of them ended, or took too long.
    """
    deadline = monotonic() + START_SECONDS_MAX
    with selectors.DefaultSelector() as selector:
        for one in starting:
            assert one.process.stdout is not None
            selector.register(one.process.stdout, selectors.EVENT_READ, one)
        while selector.get_map():
            seconds = deadline - monotonic()
            keys = selector.select(seconds) if seconds > 0 else []
            if not keys:
                late = ", ".join(sorted(key.data.broker for key in selector.get_map().values()))
                raise CommandFailed(
                    f"Not ready within {START_SECONDS_MAX:.0f} s: {late}. See the logs in {folder.path}."
                )
            for key, _ in keys:
                one = key.data
                selector.unregister(key.fileobj)
                # The broker writes the short line at once, so it can be read whole. At the end of the output it is "".
                with one.process.stdout as output:
                    ready = _READY.fullmatch(output.readline())
                if ready is None:
                    raise CommandFailed(
                        f"{one.broker} did not start. {_complaint(folder.log(one.broker), one.log_begin)}"
                    )
                yield one.broker, one.process, Addresses(ready[1], ready[2], ready[3] or NO_LISTENER)


def _complaint(log: Path, begin: int) -> str:
    """Return the broker's last words, and where to read more."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", errors="replace").strip().splitlines()
    last = lines[-1].removeprefix("tidewire broker: ") if lines else "It said nothing."
    return f"{last} Its log is {log}."


def _note_nothing(_ended: Ended) -> None:
    """Tell the user nothing: the error says it all."""


def _stop(named: Sequence[tuple[str, Path]], note: Note) -> None:
    """Stop processes together: SIGTERM, and SIGKILL for those that do not end.

    Raises:
        CommandFailed: one of them is another user's.
    """
    with ExitStack() as stack:
        found: dict[Process, str] = {}
        for name, pid_file in named:
            process = stack.enter_context(running(pid_file))
            if process is not None:
                found[process] = name
                try:
                    process.send(signal.SIGTERM)
                except PermissionError:
                    raise CommandFailed(
                        f"{name} (pid {process.pid}) belongs to another user, who has to stop it."
                    ) from None
        stubborn = wait_ended(list(found), STOP_SECONDS_MAX)
        for process in stubborn:
            process.send(signal.SIGKILL)
        immortal = wait_ended(stubborn, KILL_SECONDS_MAX)
        for process, name in found.items():
            ending = Ending.RUNNING if process in immortal else Ending.KILLED if process in stubborn else Ending.STOPPED
            note(Ended(name, process.pid, ending))
        left = {found[process] for process in immortal}
        for name, pid_file in named:
            if name not in left:
                pid_file.unlink(missing_ok=True)
