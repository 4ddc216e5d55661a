"""The etcd that the demo and the tests start."""

from pathlib import Path

import pytest

from tidewire.cli import local_etcd
from tidewire.cli.cluster.pids import opened
from tidewire.cli.local_etcd import EtcdFailed, EtcdProcess


def test_it_comes_back_where_it_was(tmp_path: Path) -> None:
    """After a kill it has the same address and data. After a loss of its data it has none of it."""
    with EtcdProcess(tmp_path / "etcd") as etcd:
        endpoint, pid = etcd.endpoint, etcd.pid
        etcd.kill()
        etcd.kill()
        etcd.start()
        assert etcd.endpoint == endpoint
        assert etcd.pid != pid
        assert (tmp_path / "etcd" / "data" / "member").is_dir()
        etcd.stop()
        etcd.lose_data()
        etcd.start()


def test_a_missing_command_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(EtcdFailed, match="apt-get install etcd-server"), EtcdProcess(tmp_path, command="no-such-etcd"):
        raise AssertionError("it runs")


def test_one_that_ends_at_once_shows_its_log(tmp_path: Path) -> None:
    command = tmp_path / "etcd"
    command.write_text("#!/bin/sh\necho no room on the disk >&2\nexit 1\n", encoding="utf-8")
    command.chmod(0o755)
    with pytest.raises(EtcdFailed, match="no room on the disk"), EtcdProcess(tmp_path / "x", command=str(command)):
        raise AssertionError("it runs")


def test_an_interrupted_start_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C23: Ctrl-C while etcd starts. In a session of its own, it would outlive the command that nobody finished."""
    pids: list[int] = []

    def interrupt(_notes: object, pid: int) -> bool:
        pids.append(pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(local_etcd, "_is_ready", interrupt)
    etcd = EtcdProcess(tmp_path / "etcd", outlives=True)
    with pytest.raises(KeyboardInterrupt):
        etcd.start()
    with opened(pids[0]) as left:
        try:
            assert left is None
        finally:
            etcd.kill()
