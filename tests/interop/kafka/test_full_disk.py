"""Kafka's producers at a broker whose disk fills up and gets space again."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pulsar
import pytest

from tests.interop.kafka.conftest import Station
from tests.scenarios.test_full_disk import DISK_BYTES, open_until_refused
from tests.support.kafka_clients.contract import Client, Place, ProducerOptions
from tests.support.kafka_clients.reading import read_all, values
from tests.support.processes import RunningBroker, running_broker
from tests.support.small_disk import small_disk, space_taken

pytestmark = pytest.mark.interop

RECORDS = 200
RECORD_BYTES = 100_000
"""Together more than the files have that are there before the disk is full."""


class Cramped(NamedTuple):
    broker: RunningBroker
    disk: Path


@pytest.fixture
def cramped(tmp_path: Path) -> Iterator[Cramped]:
    with (
        small_disk(tmp_path, DISK_BYTES) as disk,
        running_broker(disk / "data", "--journal-file-bytes-max", "8MiB") as broker,
    ):
        yield Cramped(broker, disk)


def test_records_wait_for_space(cramped: Cramped, client: Client) -> None:
    """E13: each client keeps its records, sends them when there is space, and no record is lost, doubled or moved."""
    station = Station(client, str(cramped.broker.kafka))
    station.admin().create("t")
    producer = station.producer(ProducerOptions(idempotent=True))
    producer.send("t", b"before")
    producer.flush()
    records = [b"%05d" % number + bytes(RECORD_BYTES) for number in range(RECORDS)]
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with (
        closing(pulsar.Client(cramped.broker.service_url, logger=logger)) as witness,
        space_taken(cramped.disk),
    ):
        sent = []

        def send_all() -> None:
            sent.extend([producer.send("t", record) for record in records])
            producer.flush()

        sending = threading.Thread(target=send_all)
        sending.start()
        open_until_refused(witness)
    sending.join()
    assert [one.result().offset for one in sent] == list(range(1, RECORDS + 1))
    assert values(read_all(station.consumer(), Place("t"))) == [b"before", *records]
