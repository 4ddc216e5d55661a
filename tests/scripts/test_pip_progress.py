"""`make env` says how far pip is, and nothing if pip is quick."""

import subprocess
from pathlib import Path
from typing import Final

SCRIPT: Final = Path(__file__).resolve().parents[2] / "scripts" / "pip_progress.sh"

QUICK: Final = b"Requirement already satisfied: trio==0.35 in /x\n" * 3


def test_quick_work_says_nothing() -> None:
    done = subprocess.run([SCRIPT, "3", "60"], input=QUICK, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_long_work_says_how_far_it_is_while_pip_is_silent() -> None:
    with subprocess.Popen([SCRIPT, "5", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline().startswith("  looking for packages (")
        # Half a line has come when the time is over.
        process.stdin.write("Requirement already satisfied: trio==0.35 in /x\nCollecting pys")
        process.stdin.flush()
        while "1 of at most 5 packages found, the last is trio (" not in (said := process.stdout.readline()):
            assert said.startswith("  looking")
        process.stdin.write("park==4.3 (from -r requirements.lock (line 7))\n  Downloading pyspark.tar.gz (400 MB)\n")
        process.stdin.flush()
        while "2 of at most 5 packages found, the last is pyspark (" not in (said := process.stdout.readline()):
            assert "trio" in said
        process.stdin.write("Installing collected packages: trio, pyspark\n")
        process.stdin.flush()
        while "unpacking them (" not in (said := process.stdout.readline()):
            assert "pyspark" in said
        process.stdin.close()
        assert process.wait(60) == 0
