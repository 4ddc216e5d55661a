"""The program that compares Kafka's protocol with Kafka still runs; its measurements do not matter here."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from scripts.comparison import Report
from scripts.kafka_targets import TARGETS, judge

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


def test_a_quick_run_measures_everything_but_kafka_and_says_so(tmp_path: Path) -> None:
    """Every target's row is measured, so that none is left out by a changed name."""
    saved = tmp_path / "figures.json"
    run = subprocess.run(
        [
            sys.executable,
            "scripts/bench_kafka.py",
            "--quick",
            "--json",
            str(saved),
            "--plot",
            str(tmp_path / "plot.png"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "WITHOUT KAFKA" in run.stdout.splitlines()[0]
    figures = orjson.loads(saved.read_bytes())
    assert {target.row for target in TARGETS} <= figures.keys()
    assert all(len(by_system["tidewire"]) == 1 for by_system in figures.values())
    assert all(figure > 0 for row, by_system in figures.items() if "CPU" not in row for figure in by_system["tidewire"])
    assert (tmp_path / "plot.png").stat().st_size > 0


def test_a_target_is_judged_by_its_ratio_to_kafka(capsys: pytest.CaptureFixture[str]) -> None:
    """A rate has to be high, a time low, and one time is judged by itself."""
    report = Report(("tidewire", "kafka"))
    figures = {
        "commit to visible: p50 ms": (1.0, 2.1),
        "memory after the load: MiB": (201.0, 1000.0),
        "produce 1 KiB: messages a second": (80.0, 100.0),
        "1,000 messages a second: p50 ms": (1.1, 3.0),
    }
    for row, (ours, theirs) in figures.items():
        report.add(row, "tidewire", ours, ".2f")
        report.add(row, "kafka", theirs, ".2f")
    judge(report)
    verdicts = {
        line.split("  ")[1].strip(): line.rsplit(": ", 1)[1]
        for line in capsys.readouterr().out.partition("targets")[2].splitlines()
        if line
    }
    assert list(verdicts.values()) == ["met", "met", "MISSED", "MISSED"]
