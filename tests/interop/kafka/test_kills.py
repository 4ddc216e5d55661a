"""Kafka's clients copy records exactly once, while they and the broker are killed (scripts/kafka_kills.py)."""

from pathlib import Path

import pytest

from scripts import kafka_kills

pytestmark = pytest.mark.interop


async def test_kills_of_clients_and_broker_lose_and_double_nothing(tmp_path: Path) -> None:
    """K19, K27, K31, K34: one seed; tests/scenarios/test_kafka_kills.py has more."""
    report = await kafka_kills.run(seed=7, folder=tmp_path)
    assert report.complaints == []
    assert report.broker.total() == kafka_kills.BROKER_DEATHS
    assert min(report.copies.values()) > 0
