"""Kafka's clients keep their transactions whole, while they and the broker are killed.

tests/scenarios has many seeds of both scripts.
"""

from pathlib import Path

import pytest

from scripts import kafka_histories, kafka_kills
from tests.support.history import Fate

pytestmark = pytest.mark.interop


async def test_kills_of_clients_and_broker_lose_and_double_nothing(tmp_path: Path) -> None:
    """K19, K27, K31, K34: one seed of scripts/kafka_kills.py."""
    report = await kafka_kills.run(seed=7, folder=tmp_path)
    assert report.complaints == []
    assert report.broker.total() == kafka_kills.BROKER_DEATHS
    assert min(report.copies.values()) > 0


async def test_histories_of_several_clients_break_no_promise(tmp_path: Path) -> None:
    """K3, K27, K28, K29, K32: one seed of scripts/kafka_histories.py, with transaction versions 1 and 2."""
    report = await kafka_histories.run(seed=2, folder=tmp_path)
    assert report.complaints == []
    assert min(report.fates[Fate.COMMITTED], report.fates[Fate.ABORTED], report.readings) > 0
