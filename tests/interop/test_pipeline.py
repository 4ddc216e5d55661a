"""`make pipeline` for three days of flights. It needs Java, and gives the correct answer through two kills."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.interop

CHECKOUT: Final = Path(__file__).parents[2]
RUN_SECONDS_MAX: Final = 550.0


def test_three_days_come_out_right_and_no_process_is_left_behind(tmp_path: Path) -> None:
    """T20: through kill -9 of broker and driver, splits, a merge, and aborted transactions, row by row."""
    folder = tmp_path / "work"
    ended = subprocess.run(
        [sys.executable, "-m", "examples.flights.run", "--days", "3", "--folder", str(folder)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    assert ended.stderr == ""
    lines = ended.stdout.splitlines()
    assert lines[-1] == "pipeline: OK"
    assert sum("kill -9" in line for line in lines) == 1
    assert sum("split segment" in line for line in lines) == 1
    assert sum("merged segments" in line for line in lines) == 1
    assert (folder / "flights.html").is_file()
    assert (folder / "flights.svg").is_file()
    assert [pid for pid in processes() if str(folder) in command_of(pid)] == []


def processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def command_of(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
