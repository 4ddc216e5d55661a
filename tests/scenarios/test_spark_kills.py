"""Repeated kills of Spark's driver, executors and broker lose and double no row (scripts/spark_kills.py).

tests/interop/test_spark_kills.py has a small run.
"""

from pathlib import Path

import pytest

from scripts import spark_kills
from tests.support.spark_moments import Target


@pytest.mark.thorough
@pytest.mark.kills
@pytest.mark.parametrize("target", Target)
async def test_thirty_kills_lose_and_double_nothing(tmp_path: Path, target: Target) -> None:
    """D8, D17, T14, T20: at moments everywhere in the protocol."""
    report = await spark_kills.run({target: 30}, seed=1, folder=tmp_path)
    assert report.complaints == []
    assert report.kills == {target.value: 30}
