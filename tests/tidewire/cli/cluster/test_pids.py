"""Pid files: they name a process or nothing, never another process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidewire.cli.cluster.pids import note_pid, running, wait_ended

WAITS = (sys.executable, "-c", "import sys; sys.stdin.read()")


def test_a_process_is_found_until_it_ends(tmp_path: Path) -> None:
    """Also if nobody has waited for it yet, so that its number is not free."""
    path = tmp_path / "one.pid"
    with subprocess.Popen(WAITS, stdin=subprocess.PIPE) as child:
        note_pid(path, child.pid)
        with running(path) as found:
            assert found is not None
            assert found.pid == child.pid
            assert wait_ended([found], 0) == [found]
            found.send(signal.SIGKILL)
            assert wait_ended([found], 30) == []
            found.send(signal.SIGKILL)
        with running(path) as found:
            assert found is None
    with running(path) as found:
        assert found is None


def test_another_process_with_the_number_is_not_taken_for_it(tmp_path: Path) -> None:
    """E4: the number was used again, or the machine has started anew."""
    path = tmp_path / "one.pid"
    note_pid(path, os.getpid())
    number, started, boot = path.read_text().split()
    for text in (f"{number} {int(started) - 1} {boot}", f"{number} {started} {boot[::-1]}", number):
        path.write_text(text)
        with running(path) as found:
            assert found is None


@pytest.mark.parametrize("text", ["", "x", "-1 2 3", "0 1 2", "99999999999999999999 1 2", "4194305 1 2"])
def test_a_damaged_file_names_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "one.pid"
    path.write_text(text)
    with running(path) as found:
        assert found is None
    with running(tmp_path / "missing.pid") as found:
        assert found is None
