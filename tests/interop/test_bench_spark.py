"""The program that compares Spark with Kafka still runs; its measurements do not matter here."""

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from tests.support.java import QUICK_ENVIRONMENT

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


def test_a_quick_run_measures_everything_but_kafka_and_says_so(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "scripts/bench_spark.py", "--quick", "--save", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, **QUICK_ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "WITHOUT KAFKA" in run.stdout.splitlines()[0]
    saved = orjson.loads((tmp_path / "spark.json").read_bytes())
    measured = {what for what, by_whom in saved["results"].items() if by_whom.get("tidewire")}
    assert {"write 100 B: rows/s", "read 100 B: rows/s", "read 1024 B: rows/s", "latency p50, ms"} <= measured
    assert all(figure > 0 for what in measured for figure in saved["results"][what]["tidewire"] if "rows/s" in what)
    assert (tmp_path / "spark.png").stat().st_size > 0
