"""`tidewire demo` as users type it, for one day of flights, at one broker and at a cluster. It needs Java."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.interop

CHECKOUT: Final = Path(__file__).parents[2]
RUN_SECONDS_MAX: Final = 550.0


def demo(tmp_path: Path, *arguments: str) -> list[str]:
    """Run the demo to its good end, and return the lines of its output."""
    folder = tmp_path / "work"
    folder.mkdir()
    ended = subprocess.run(
        [sys.executable, "-m", "tidewire.cli", "demo", "--days", "1", "--data-dir", str(tmp_path / "data"), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    assert ended.stderr == ""
    lines = ended.stdout.splitlines()
    assert lines[-1] == "demo: OK"
    assert sum(line.startswith("split segment") for line in lines) >= 3
    assert (tmp_path / "data").is_dir()
    assert list(folder.iterdir()) == []
    return lines


def test_a_days_flights_come_out_right_and_nothing_is_left_behind(tmp_path: Path) -> None:
    lines = demo(tmp_path)
    assert sum("kill -9" in line and "ready again" in line for line in lines) == 1


def test_they_come_out_right_when_a_broker_of_a_cluster_dies_on_the_way(tmp_path: Path) -> None:
    """D1, E17: the metadata controller, which owns segments, dies under transactions, and the others go on."""
    lines = demo(tmp_path, "--brokers", "3")
    (died,) = [line for line in lines if "It died with" in line]
    assert "was the metadata controller, and the owner of" in died
    assert "with 0 transactions" not in died
    (taken_over,) = [line for line in lines if line.startswith("the others took over")]
    (restarted,) = [place for place, line in enumerate(lines) if "runs already" in line and "broker-" in line][:1]
    assert lines.index(died) < lines.index(taken_over) < restarted
    assert [line.split()[3] for line in lines if line.startswith("$ tidewire cluster")][-1] == "stop"
    pid_files = list((tmp_path / "data" / "cluster").glob("*.pid"))
    assert pid_files == [], "it left a process"
