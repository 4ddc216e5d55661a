"""A regular topic of v4 clients becomes a scalable one, while brokers end in any way."""

import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

import anyio
import pulsar
import pytest

import tidewire
from tests.support.admin import Admin
from tests.support.dying_broker import DyingBroker, dying_broker
from tests.support.dying_process import Death
from tests.support.processes import RunningBroker, running_broker

REGULAR = "persistent://public/default/orders"
SCALABLE = "topic://public/default/orders"
RECEIVE_MS_MAX = 10_000
SECONDS_MAX = 60
QUIET_SECONDS = 0.2
WRITES_OF_A_START = 31
WRITES_MAX = 200
WRITES_STEP = 8


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path / "data") as made:
        yield made


def old_client(broker: RunningBroker | DyingBroker) -> closing[pulsar.Client]:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return closing(pulsar.Client(broker.service_url, operation_timeout_seconds=20, logger=logger))


def subscribe(client: pulsar.Client, subscription: str) -> pulsar.Consumer:
    kind, start = pulsar.ConsumerType.Shared, pulsar.InitialPosition.Earliest
    return client.subscribe(REGULAR, subscription, consumer_type=kind, initial_position=start)


def test_the_python_clients_of_before_and_after(broker: RunningBroker) -> None:
    """T20: newer clients read the remaining messages once and first, through a migration, a kill and a split."""
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


async def check_whole(broker: DyingBroker, value: bytes) -> None:
    """Check that exactly the unacknowledged messages are redelivered, the new message last."""
    with anyio.fail_after(SECONDS_MAX):
        async with tidewire.connect(broker.service_url) as client:
            async with client.producer(SCALABLE) as sender:
                await sender.send(value)
            async with client.stream_consumer(SCALABLE, "board") as consumer:
                for expected in (b"b", b"c", value):
                    message = await consumer.receive()
                    assert message.value == expected
                    await consumer.acknowledge_cumulative(message)
                with anyio.move_on_after(QUIET_SECONDS):
                    raise AssertionError(f"{(await consumer.receive()).value!r} came as well")


def test_a_broker_that_dies_anywhere_in_a_migration(tmp_path: Path) -> None:
    """D10: it dies at a disk write, done or not; after a restart the topic is completely the one kind or the other."""
    with running_broker(tmp_path / "before") as made, old_client(made) as client:
        producer, consumer = client.create_producer(REGULAR), subscribe(client, "board")
        for value in (b"a", b"b", b"c"):
            producer.send(value)
        consumer.acknowledge(consumer.receive(timeout_millis=RECEIVE_MS_MAX))
        consumer.close()
    found = set()
    data = tmp_path / "data"
    with dying_broker(data) as broker:
        for write in range(WRITES_OF_A_START, WRITES_MAX, WRITES_STEP):
            shutil.rmtree(data, ignore_errors=True)
            shutil.copytree(tmp_path / "before", data)
            migrated = False
            if broker.start(Death(write, is_done=bool(write % 2))):
                with suppress(OSError, HTTPException):
                    Admin(f"http://{broker.http}").migrate(SCALABLE)
                    migrated = True
            if migrated:
                broker.kill()
            elif broker.is_running:
                broker.wait()
            broker.start()
            try:
                Admin(f"http://{broker.http}").migrate(SCALABLE)
                found.add(204)
            except HTTPError as error:
                found.add(error.code)
            anyio.run(check_whole, broker, b"d")
            broker.kill()
            if migrated:
                assert found == {204, 409}, "it was done by then, or not yet"
                return
    pytest.fail("it died every time")
