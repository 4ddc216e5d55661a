"""A regular topic of v4 clients becomes a scalable one, while brokers end as they like."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import pulsar
import pytest

import tidewire
from tests.support.admin import Admin
from tests.support.processes import RunningBroker, running_broker

REGULAR = "persistent://public/default/orders"
SCALABLE = "topic://public/default/orders"
RECEIVE_MS_MAX = 10_000
SECONDS_MAX = 60


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path / "data") as made:
        yield made


def old_client(broker: RunningBroker) -> closing[pulsar.Client]:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return closing(pulsar.Client(broker.service_url, operation_timeout_seconds=20, logger=logger))


def subscribe(client: pulsar.Client, subscription: str) -> pulsar.Consumer:
    kind, start = pulsar.ConsumerType.Shared, pulsar.InitialPosition.Earliest
    return client.subscribe(REGULAR, subscription, consumer_type=kind, initial_position=start)


def test_the_python_clients_of_before_and_after(broker: RunningBroker) -> None:
    """T20: what v4 clients left is read by newer ones, once and first, through a migration, a kill and a split."""
    admin = Admin(broker.http_url)
    with old_client(broker) as client:
        producer = client.create_producer(REGULAR)
        consumer = subscribe(client, "board")
        subscribe(client, "later").close()
        for value in (b"a", b"b", b"c"):
            producer.send(value)
        first = consumer.receive(timeout_millis=RECEIVE_MS_MAX)
        consumer.acknowledge(first)
        consumer.close()
        producer.close()
        assert first.data() == b"a"
    admin.migrate(SCALABLE)
    broker.restart()
    with old_client(broker) as client, pytest.raises(pulsar.TopicTerminated):
        client.create_producer(REGULAR)

    async def go_on() -> tuple[list[bytes], list[bytes]]:
        with anyio.fail_after(SECONDS_MAX):
            async with tidewire.connect(broker.service_url) as new:
                return await read_on(new)

    async def read_on(new: tidewire.Client) -> tuple[list[bytes], list[bytes]]:
        async with new.producer(SCALABLE) as sender:
            await sender.send(b"d")
            await admin.split(SCALABLE, 1)
            await sender.send(b"e", key="k")
        async with new.queue_consumer(SCALABLE, "board") as board:
            rest = sorted([(await board.receive()).value for _ in range(4)])
        async with new.stream_consumer(SCALABLE, "later") as later:
            ordered = []
            for _ in range(5):
                message = await later.receive()
                ordered.append(message.value)
                await later.acknowledge_cumulative(message)
        return rest, ordered

    rest, ordered = anyio.run(go_on)
    assert rest == [b"b", b"c", b"d", b"e"]
    assert ordered == [b"a", b"b", b"c", b"d", b"e"]
