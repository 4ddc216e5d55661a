"""A broker's process is found by its lock file. A killed one is in `test_command.py`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidewire.cli.cluster import killing
from tidewire.cli.cluster.killing import kill_broker
from tidewire.cli.endings import CommandFailed


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "brokers" / "one" / "lock"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_a_process_that_closes_files_meanwhile_is_found(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E11: a busy broker has always just closed a connection or a file that was listed."""
    waits = (sys.executable, "-c", "import signal; signal.pause()")
    with subprocess.Popen(waits) as child:
        try:
            descriptors = tmp_path / "proc" / str(child.pid) / "fd"
            descriptors.mkdir(parents=True)
            (descriptors / "3").symlink_to(tmp_path / "closed")
            (descriptors / "4").symlink_to(lock)
            (descriptors / "5").symlink_to(tmp_path / "closed too")
            monkeypatch.setattr(killing, "_PROCESSES", tmp_path / "proc")
            assert kill_broker(tmp_path / "data", "one") == child.pid
        finally:
            child.kill()


def test_who_has_another_file_open_is_no_broker(lock: Path, tmp_path: Path) -> None:
    """This process has a file beside the lock open, and is not killed."""
    with (lock.parent / "other").open("w") as other:
        assert os.fstat(other.fileno())
        with pytest.raises(CommandFailed, match="No broker one of"):
            kill_broker(tmp_path / "data", "one")
    with pytest.raises(CommandFailed, match="No broker two of"):
        kill_broker(tmp_path / "data", "two")
