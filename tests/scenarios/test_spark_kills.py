"""Spark's driver, executors and broker, killed again and again, lose and double no row (scripts/spark_kills.py).

In small it is one of the tests in tests/interop/test_spark_kills.py.
"""

from pathlib import Path

import pytest

from scripts import spark_kills
from tests.support.spark_moments import Target


@pytest.mark.thorough
@pytest.mark.kills
@pytest.mark.parametrize("target", Target)
async def test_thirty_kills_lose_and_double_nothing(tmp_path: Path, target: Target) -> None:
    """D8, D17, T14, T20: everywhere in the protocol."""
    report = await spark_kills.run({target: 30}, seed=1, folder=tmp_path)
    assert report.complaints == []
    assert report.kills == {target.value: 30}
