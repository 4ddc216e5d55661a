"""Histories of Kafka's clients under kills keep the promises of transactions (scripts/kafka_histories.py).

tests/interop/kafka/test_kills.py has a small run.
"""

from pathlib import Path

import pytest

from scripts import kafka_histories


@pytest.mark.thorough
@pytest.mark.kills
@pytest.mark.parametrize("seed", range(1, 11))
async def test_histories_break_no_promise(tmp_path: Path, seed: int) -> None:
    """K3, K27, K28, K29, K32: no dirty reads, lost, doubled, torn or reordered writes, in versions 1 and 2."""
    report = await kafka_histories.run(seed=seed, folder=tmp_path)
    assert report.complaints == []
