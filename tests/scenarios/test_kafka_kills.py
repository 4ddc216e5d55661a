"""Repeated kills of Kafka's clients and of the broker lose and double no record (scripts/kafka_kills.py).

tests/interop/kafka/test_kills.py has a small run.
"""

from pathlib import Path

import pytest

from scripts import kafka_kills


@pytest.mark.thorough
@pytest.mark.kills
@pytest.mark.parametrize("seed", range(1, 51))
async def test_every_record_is_copied_exactly_once(tmp_path: Path, seed: int) -> None:
    """K19, K27, K28, K31, K34: by count and content, in each key's order, and nothing aborted is shown."""
    report = await kafka_kills.run(seed=seed, folder=tmp_path)
    assert report.complaints == []
