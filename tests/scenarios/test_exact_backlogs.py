"""Backlogs of a topic of both protocols, as administrators and Prometheus see them, at a broker that is killed."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import orjson
import pulsar
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.processes import RunningBroker, running_broker

WAIT_SECONDS: Final = 30
ROWS: Final = re.compile(
    r"^tidewire_(subscription_backlog_messages|subscription_backlog_entries|group_lag_messages)\{.*\} (\S+)$",
    re.MULTILINE,
)


@contextmanager
def subscribed(broker: RunningBroker) -> Iterator[pulsar.Consumer]:
    with closing(pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))) as client:
        yield client.subscribe("orders", "s", initial_position=pulsar.InitialPosition.Earliest)


def transact(producer: Producer, value: bytes, *, is_commit: bool) -> None:
    producer.begin_transaction()
    producer.produce("orders", value, partition=0)
    if is_commit:
        producer.commit_transaction(WAIT_SECONDS)
    else:
        producer.flush()
        producer.abort_transaction(WAIT_SECONDS)


def backlogs(broker: RunningBroker) -> tuple[int, int]:
    """What is left for the subscription and for the group, as the topic's statistics say."""
    with urlopen(f"{broker.http_url}/admin/v2/persistent/public/default/orders/stats") as answer:
        found: dict[str, Any] = orjson.loads(answer.read())
    return found["subscriptions"]["s"]["msgBacklog"], found["kafkaGroups"]["g"]["msgBacklog"]


def scraped(broker: RunningBroker) -> dict[str, float]:
    """What Prometheus sees."""
    with urlopen(f"{broker.http_url}/metrics") as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in ROWS.findall(text)}


def test_aborts_between_messages_are_no_backlog_after_a_kill(tmp_path: Path) -> None:
    """K35: the subscription has acknowledged the second message, and the group has committed behind the first."""
    with running_broker(tmp_path / "data") as broker:
        producer = Producer({"bootstrap.servers": str(broker.kafka), "transactional.id": "tid"})
        producer.init_transactions(WAIT_SECONDS)
        for number in range(6):
            transact(producer, b"%d" % number, is_commit=number % 2 == 0)
        with subscribed(broker) as consumer:
            first, second = (consumer.receive(timeout_millis=1000 * WAIT_SECONDS) for _ in range(2))
            assert (first.data(), second.data()) == (b"0", b"2")
            consumer.acknowledge(second)
        reader = Consumer({"bootstrap.servers": str(broker.kafka), "group.id": "g"})
        reader.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
        reader.close()
        for is_killed in (False, True):
            if is_killed:
                broker.kill()
                broker.start()
            assert backlogs(broker) == (2, 2)
            # In messages, those behind the oldest unread one count, acknowledged or not.
            assert scraped(broker) == {
                "subscription_backlog_messages": 3,
                "subscription_backlog_entries": 2,
                "group_lag_messages": 2,
            }
