"""What `start` and `stop` make of a folder that another command, or a killed one, has left. No broker runs here."""

import errno
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidewire.cli.cluster import command, starting
from tidewire.cli.cluster.folder import Addresses, Cluster, ClusterFolder
from tidewire.cli.cluster.pids import note_pid
from tidewire.cli.endings import CommandFailed

WAITS = (sys.executable, "-c", "import signal; signal.pause()")
KEPT = Addresses("127.0.0.1:7000", "127.0.0.1:7001", "127.0.0.1:7002")


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    """A folder in which a cluster of one broker was started."""
    made = ClusterFolder(tmp_path)
    made.path.mkdir()
    made.write(Cluster("embedded", KEPT.pulsar, KEPT.http, KEPT.kafka, brokers={"broker-1": KEPT}))
    return made


@contextmanager
def process(folder: ClusterFolder, broker: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process that the pid file of this broker names."""
    with subprocess.Popen(WAITS) as child:
        note_pid(folder.pid_file(broker), child.pid)
        try:
            yield child
        finally:
            child.kill()


@contextmanager
def behind_another_command(monkeypatch: pytest.MonkeyPatch, left: Cluster) -> Iterator[None]:
    """Let another command end, and leave `left`, when the next one has begun and is not alone yet."""
    locked = ClusterFolder.locked

    @contextmanager
    def locked_behind(folder: ClusterFolder) -> Iterator[None]:
        with locked(folder):
            folder.write(left)
            yield

    with monkeypatch.context() as patch:
        patch.setattr(ClusterFolder, "locked", locked_behind)
        yield


def test_a_start_goes_on_from_what_another_one_has_just_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """C21: it neither forgets the other's brokers nor replaces their addresses."""
    left = Cluster("embedded", KEPT.pulsar, KEPT.http, KEPT.kafka, brokers={"broker-1": KEPT})
    started: list[tuple[Cluster, list[str]]] = []
    monkeypatch.setattr(
        starting, "start_cluster", lambda _folder, cluster, names, _say: started.append((cluster, names))
    )
    with behind_another_command(monkeypatch, left):
        command.start(data_dir=tmp_path)
    assert started == [(left, ["broker-1"])]
    assert f"service-url=pulsar://{KEPT.pulsar} " in capsys.readouterr().out


def test_a_stop_stops_what_a_start_has_just_added(folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    later = Cluster("embedded", KEPT.pulsar, KEPT.http, KEPT.kafka, brokers={"broker-1": KEPT, "broker-2": KEPT})
    with process(folder, "broker-2") as child, behind_another_command(monkeypatch, later):
        command.stop(data_dir=folder.data_dir)
        assert child.poll() == -signal.SIGTERM


@pytest.mark.parametrize("is_first", [False, True])
def test_a_stop_stops_what_a_killed_start_left(
    folder: ClusterFolder, is_first: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """E4: pid files alone name it. With the first start, nothing else was written yet."""
    if is_first:
        (folder.path / "cluster.json").unlink()
    with process(folder, "broker-2") as child:
        command.stop(data_dir=folder.data_dir)
        assert child.poll() == -signal.SIGTERM
    assert "stopped broker-2" in capsys.readouterr().out
    assert not folder.pid_file("broker-2").exists()


def test_the_processes_of_another_user_are_left_alone(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_process: int, _number: signal.Signals) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with process(folder, "broker-1") as child:
        with monkeypatch.context() as patch:
            patch.setattr(signal, "pidfd_send_signal", refuse)
            with pytest.raises(SystemExit):
                command.stop(data_dir=folder.data_dir)
        assert f"broker-1 (pid {child.pid}) belongs to another user" in capsys.readouterr().err
        assert folder.pid_file("broker-1").exists()


def test_a_start_replaces_all_that_a_killed_one_left(folder: ClusterFolder) -> None:
    """E4: also brokers that this start does not ask for."""
    cluster = folder.read()
    assert cluster is not None
    with process(folder, "broker-1") as known, process(folder, "broker-7") as unknown:
        starting.start_cluster(folder, cluster, ["broker-1"], print)
        assert unknown.poll() == -signal.SIGTERM
        assert known.poll() is None


def test_a_broker_without_a_pid_file_does_not_stay_behind(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C24: the disk is full, so nobody could find the broker later."""
    children: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(_command: object, **settings: object) -> "subprocess.Popen[bytes]":
        children.append(popen(WAITS, **settings))  # type: ignore[call-overload]
        return children[-1]

    def refuse(_path: Path, _pid: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(starting, "note_pid", refuse)
    cluster = folder.read()
    assert cluster is not None
    try:
        with pytest.raises(CommandFailed, match="No space left on device"):
            starting.start_cluster(folder, cluster, ["broker-1"], print)
        assert [child.poll() for child in children] == [-signal.SIGKILL]
    finally:
        for child in children:
            child.kill()


def test_brokers_of_an_earlier_release_get_addresses_for_kafka(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That release kept none. A broker that still runs has none until it is started again."""
    fields = json.loads((folder.path / "cluster.json").read_text())
    del fields["kafka"]
    for addresses in fields["brokers"].values():
        del addresses["kafka"]
    (folder.path / "cluster.json").write_text(json.dumps(fields))
    with process(folder, "broker-1"):
        command.start(data_dir=folder.data_dir, kafka="127.0.0.1:7100")
    kept = folder.read()
    assert kept is not None
    assert (kept.kafka, kept.brokers["broker-1"].kafka) == ("127.0.0.1:7100", None)
    monkeypatch.setattr(starting, "start_cluster", lambda folder, cluster, _names, _say: folder.write(cluster))
    command.start(data_dir=folder.data_dir, brokers=2)
    kept = folder.read()
    assert kept is not None
    assert [addresses.kafka for addresses in kept.brokers.values()] == ["127.0.0.1:7100", "127.0.0.1:7101"]
    assert kept.bootstrap_servers == "127.0.0.1:7100,127.0.0.1:7101"
    with pytest.raises(SystemExit):
        command.start(data_dir=folder.data_dir, kafka="127.0.0.1:7200")


def test_a_cluster_may_leave_kafka_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "start_cluster", lambda folder, cluster, _names, _say: folder.write(cluster))
    command.start(data_dir=tmp_path, kafka="none")
    kept = ClusterFolder(tmp_path).read()
    assert kept is not None
    assert [addresses.kafka for addresses in kept.brokers.values()] == ["none"] * 3
    assert kept.bootstrap_servers == ""
