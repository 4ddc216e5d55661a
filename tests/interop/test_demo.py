"""`tidewire demo` as users type it, for one day of flights. It needs Java, and gives the correct answer."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.interop

CHECKOUT: Final = Path(__file__).parents[2]
RUN_SECONDS_MAX: Final = 300.0


def test_a_days_flights_come_out_right_and_nothing_is_left_behind(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    ended = subprocess.run(
        [sys.executable, "-m", "tidewire.cli", "demo", "--days", "1", "--data-dir", str(tmp_path / "data")],
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
    assert sum("kill -9" in line and "ready again" in line for line in lines) == 1
    assert sum(line.startswith("split segment") for line in lines) >= 3
    assert (tmp_path / "data").is_dir()
    assert list(folder.iterdir()) == []
