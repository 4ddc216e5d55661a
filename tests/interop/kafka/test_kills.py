"""Kafka's clients keep their transactions whole, while they and the broker are killed.

tests/scenarios has many seeds of both scripts.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced

from scripts import kafka_histories, kafka_kills
from tests.interop.kafka.conftest import Station
from tests.support.history import Fate
from tests.support.kafka_clients.contract import ConsumerOptions, Place
from tests.support.kafka_clients.every import CONFLUENT
from tests.support.kafka_clients.reading import read_all, values
from tests.support.kafka_copiers import steps as at
from tests.support.kafka_copiers.aio import _Copier
from tests.support.kafka_copiers.copying import Record, copy_of
from tests.support.kafka_copiers.orders import Fenced, Orders
from tests.support.kafka_copiers.steps import Steps

pytestmark = pytest.mark.interop

RECORDS = 30


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


class FailingOnce(Steps):
    """Something fails just before a step begins for the first time."""

    def __init__(self, step: str) -> None:
        # With this seed no transaction is aborted on purpose.
        super().__init__(None, Random(0))
        self.fail: Callable[[], None] | None = None
        self._step = step

    def begin(self, step: str) -> None:
        if step == self._step and self.fail is not None:
            fail, self.fail = self.fail, None
            fail()


@pytest.mark.parametrize("client", [CONFLUENT], indirect=True)
@pytest.mark.parametrize("step", [at.SEND, at.OFFSETS])
@pytest.mark.parametrize("is_fenced", [False, True])
def test_a_copier_of_aiokafka_learns_why_its_transaction_failed_between_two_calls(
    station: Station, name: str, step: str, *, is_fenced: bool
) -> None:
    """K30, K34: its client's next call tells of a wrong call only. Fenced, it ends; otherwise it copies all again."""
    target = f"{name}-copies"
    for topic in (name, target):
        station.admin().create(topic)
    writer = station.producer()
    for n in range(RECORDS):
        writer.send(name, b"%d" % n, key=b"key")
    writer.flush()
    steps, place = FailingOnce(step), TopicPartition(name, 0)
    orders = Orders("aiokafka", station.address, name, target, 1, name, None, "range", name, "", None)

    async def copy_all() -> None:
        copier: Any = _Copier(orders, steps)

        def fail() -> None:
            manager = copier._producers[place]._txn_manager
            if is_fenced:
                manager.fatal_error(ProducerFenced())
            else:
                manager.error_transaction(KafkaError("the broker is gone"))

        steps.fail = fail
        await copier.start()
        try:
            while await copier._consumer.committed(place) != RECORDS:
                await copier.copy_some()
        finally:
            await copier.close()

    ends: AbstractContextManager[object] = pytest.raises(Fenced) if is_fenced else nullcontext()
    with ends:
        anyio.run(copy_all, backend="asyncio")
    assert steps.fail is None
    copies = values(read_all(station.consumer(ConsumerOptions(read_committed=True)), Place(target)))
    expected = [copy_of(Record(0, n, b"key", b"%d" % n), is_doomed=False) for n in range(RECORDS)]
    assert copies == ([] if is_fenced else expected)
