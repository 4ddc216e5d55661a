"""Kafka's own command line, as its scripts start it. `scripts/need.py maven:org.apache.kafka:kafka-tools:4.3.0`."""

import subprocess
from collections.abc import Callable
from typing import Final, TypeAlias

import pytest

from scripts.need import place
from tests.interop.kafka.conftest import Station
from tests.support.java import QUICK_JAVA
from tests.support.kafka_clients.contract import ProducerOptions
from tests.support.kafka_clients.every import CONFLUENT

pytestmark = [pytest.mark.interop, pytest.mark.parametrize("client", [CONFLUENT], indirect=True)]

ARTIFACT: Final = "maven:org.apache.kafka:kafka-tools:4.3.0"
TOPICS: Final = "TopicCommand"
GROUPS: Final = "consumer.group.ConsumerGroupCommand"
TRANSACTIONS: Final = "TransactionsCommand"
"""The classes behind kafka-topics.sh, kafka-consumer-groups.sh and kafka-transactions.sh."""
RUN_SECONDS_MAX: Final = 180.0

Tool: TypeAlias = Callable[..., list[list[str]]]


@pytest.fixture
def tool(address: str) -> Tool:
    """Return a function that runs a command at the shared broker, and returns the words of each line."""
    java = ("java", *QUICK_JAVA, "-cp", f"{place(ARTIFACT)}/*")

    def run(command: str, *arguments: str) -> list[list[str]]:
        ended = subprocess.run(
            [*java, f"org.apache.kafka.tools.{command}", "--bootstrap-server", address, *arguments],
            capture_output=True,
            encoding="utf-8",
            timeout=RUN_SECONDS_MAX,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return [line.split() for line in ended.stdout.splitlines() if line]

    return run


def test_a_topic_is_created_and_described(tool: Tool, station: Station, name: str) -> None:
    """K37: with its own settings."""
    tool(TOPICS, "--create", "--topic", name, "--partitions", "2", "--config", "retention.ms=3600000")
    first, *partitions = tool(TOPICS, "--describe", "--topic", name)
    assert first[:2] == ["Topic:", name]
    assert "retention.ms=3600000" in first[-1]
    assert len(partitions) == 2
    assert station.admin().topics()[name] == 2


def test_a_groups_lag_is_told_and_its_offsets_are_reset(tool: Tool, station: Station, topic: str) -> None:
    """K36: the lag is what the group has not read, and a reset shows in it."""
    producer = station.producer()
    for n in range(10):
        producer.send(topic, b"%d" % n)
    producer.flush()
    tool(GROUPS, "--reset-offsets", "--group", topic, "--topic", f"{topic}:0", "--to-offset", "4", "--execute")
    described = tool(GROUPS, "--describe", "--group", topic)
    assert described[-1][:6] == [topic, topic, "0", "4", "10", "6"]
    tool(GROUPS, "--reset-offsets", "--group", topic, "--topic", f"{topic}:0", "--to-latest", "--execute")
    described = tool(GROUPS, "--describe", "--group", topic)
    assert described[-1][:6] == [topic, topic, "0", "10", "10", "0"]


def test_transactions_are_listed_and_found_in_their_partitions(tool: Tool, station: Station, topic: str) -> None:
    """K1: that is how an administrator looks for one that hangs (KIP-664). A young one does not."""
    producer = station.producer(ProducerOptions(transactional_id=topic))
    producer.init_transactions()
    producer.begin()
    producer.send(topic, b"open")
    producer.flush()
    (listed,) = (line for line in tool(TRANSACTIONS, "list") if line[0] == topic)
    assert listed[-1] == "Ongoing"
    described = tool(TRANSACTIONS, "describe-producers", "--topic", topic, "--partition", "0")
    assert described[-1][-1] == "0"
    (_head,) = tool(TRANSACTIONS, "find-hanging", "--topic", topic)
    producer.commit()
