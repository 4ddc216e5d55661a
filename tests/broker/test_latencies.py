"""How long clients wait: what is timed, and what is not."""

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.traffic import Latencies
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST, Position
from storage.watermark import Watermark
from tests.support.disk import SimulatedFiles
from tests.support.kafka_connection import kafka_client
from tests.support.kafka_producer import TransactionalProducer
from tests.support.rooms import TOPIC, Rooms, moving_clock, rooms
from tests.support.wire import connected, listening
from tidewire.wire.kafka.records import Record, build
from tidewire.wire.pulsar import commands


@pytest.fixture
async def broker() -> AsyncIterator[Rooms]:
    async with rooms(MemoryStore(), SimulatedFiles(seed=5), clock=moving_clock()) as made:
        yield made


def counted(broker: Rooms, protocol: str) -> dict[str, int]:
    latencies = broker.monitor.statistics().latencies
    return {what: sum(times.counts) for (what, of), times in latencies.items() if of == protocol}


async def test_a_delivery_is_timed_from_when_the_message_became_readable(mock_clock: MockClock) -> None:
    """The time before the consumer came is not the broker's."""
    readable, latencies = Watermark(EARLIEST), Latencies.none()
    latencies.delivered(readable, since=trio.current_time())
    assert sum(latencies.delivery.counts) == 0, "it was readable before this process began"
    readable.raise_to(Position(1, 0))
    mock_clock.jump(3)
    latencies.delivered(readable, since=trio.current_time() - 5)
    assert latencies.delivery.sum_seconds == 3
    latencies.delivered(readable, since=trio.current_time() - 1)
    assert latencies.delivery.sum_seconds == 4


async def test_clients_of_pulsar_are_timed(broker: Rooms) -> None:
    """A refused send, an abort and a hand-over from a backlog do not count."""
    await broker.controller.create_topic(TOPIC, 1, {})
    name = str(await broker.segment(TOPIC, 0))
    async with listening(broker) as listener, connected(listener) as client, connected(listener) as reader:
        await reader.ask(commands.subscribe(name, "s", 1, 1))
        await client.produce(1, name)
        for sequence_id in range(2):
            await client.publish(1, sequence_id)
            await client.receive()
        await client.publish(1, 2, txn=(0, 5))
        assert (await client.receive()).HasField("send_error")
        assert counted(broker, "pulsar") == {"publish": 2, "commit": 0, "delivery": 0}
        await reader.send(commands.flow(1, 1))
        await reader.receive_frame()
        assert counted(broker, "pulsar")["delivery"] == 0, "another message was readable"
        await reader.send(commands.flow(1, 100))
        await reader.receive_frame()
        assert counted(broker, "pulsar")["delivery"] == 1
        for commit in (False, True):
            txn = (await client.ask(commands.new_txn(1, 3, 60_000))).new_txn_response
            await client.ask(commands.end_txn(3, (txn.txnid_most_bits, txn.txnid_least_bits), commit=commit))
        assert counted(broker, "pulsar") == {"publish": 2, "commit": 1, "delivery": 1}
    assert counted(broker, "kafka") == {"publish": 0, "commit": 0, "delivery": 0}


async def test_clients_of_kafka_are_timed(broker: Rooms) -> None:
    """A refused batch and a fetch that finds nothing do not count."""
    async with kafka_client(broker) as client, trio.open_nursery() as nursery:
        nursery.start_soon(broker.kafka_sweeps.run)
        await client.create("t")
        assert (await client.produce("t", build([Record(None, b"v", 1)]))).error_code == 0
        assert (await client.produce("t", b"no batch")).error_code != 0
        await client.fetch("t", 0)
        await client.fetch("t", 1)
        assert counted(broker, "kafka") == {"publish": 1, "commit": 0, "delivery": 1}
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        for is_commit in (False, True):
            await producer.add(("t", 0))
            await producer.send("t", b"v")
            await producer.end(is_commit=is_commit)
        assert counted(broker, "kafka") == {"publish": 3, "commit": 1, "delivery": 1}
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
