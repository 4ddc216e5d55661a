"""Messages are taken from one topic and put into another, all in transactions, by the client `tidewire`."""

import uuid
from collections import Counter
from collections.abc import Iterator

import anyio
import anyio.to_thread
import pytest

import tidewire
from tests.support.admin import Admin
from tests.support.backends import on_backends, on_both_backends
from tests.support.processes import RunningBroker, running_broker

SECONDS_MAX = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One broker for the stories that do not kill it; each has topics of its own."""
    with running_broker(tmp_path_factory.mktemp("acknowledgements") / "data") as broker:
        yield broker


@pytest.fixture
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker to kill."""
    with running_broker(tmp_path_factory.mktemp("mortal") / "data") as broker:
        yield broker


def new_topic(broker: RunningBroker, segments: int = 1) -> str:
    return Admin(broker.http_url).create(f"topic://public/default/{uuid.uuid4().hex}", segments)


Receiver = tidewire.QueueConsumer | tidewire.StreamConsumer | tidewire.Reader


async def receive(consumer: Receiver, count: int) -> list[tidewire.Message]:
    with anyio.fail_after(SECONDS_MAX):
        return [await consumer.receive() for _ in range(count)]


async def nothing_comes(consumer: Receiver) -> None:
    with anyio.move_on_after(0.3) as scope:
        pytest.fail(f"{(await consumer.receive()).value!r} came again")
    assert scope.cancelled_caught


def values(messages: list[tidewire.Message]) -> list[bytes]:
    return sorted(message.value for message in messages)


async def send(producer: tidewire.Producer, first: int, last: int) -> list[bytes]:
    sent = [b"%04d" % number for number in range(first, last)]
    for number, value in zip(range(first, last), sent, strict=True):
        await producer.enqueue(value, key=str(number % 16))
    await producer.flush()
    return sent


@on_both_backends
async def test_acknowledgements_of_a_queue_count_when_their_transaction_commits(broker: RunningBroker) -> None:
    """T22, T23, T24: nothing moves before the commit; an abort brings the messages back; conflicts are refused."""
    topic = new_topic(broker, 2)
    async with (
        tidewire.connect(broker.service_url) as client,
        client.producer(topic) as producer,
        client.queue_consumer(topic, "q") as consumer,
    ):
        sent = await send(producer, 0, 20)
        got = await receive(consumer, 20)
        committed, aborted = await client.new_transaction(), await client.new_transaction()
        await consumer.acknowledge(*got[:12], transaction=committed)
        await consumer.acknowledge(*got[12:], transaction=aborted)
        other = await client.new_transaction()
        with pytest.raises(tidewire.TransactionConflict):
            await consumer.acknowledge(got[0], transaction=other)
        with pytest.raises(tidewire.TransactionConflict):
            await other.commit()
        await aborted.abort()
        again = await receive(consumer, 8)
        assert values(again) == values(got[12:])
        await consumer.acknowledge(*again, confirmed=True)
        await committed.commit()
        assert values(got) == sent
    async with tidewire.connect(broker.service_url) as client, client.queue_consumer(topic, "q") as consumer:
        await nothing_comes(consumer)


@on_both_backends
async def test_acknowledgements_of_a_stream_count_when_their_transaction_commits(broker: RunningBroker) -> None:
    topic = new_topic(broker, 2)
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
        await send(producer, 0, 40)
        async with client.stream_consumer(topic, "s") as consumer:
            got = await receive(consumer, 30)
            txn = await client.new_transaction()
            await consumer.acknowledge_cumulative(got[-1], transaction=txn)
            await txn.abort()
        async with client.stream_consumer(topic, "s") as consumer:
            again = await receive(consumer, 30)
            async with client.transaction() as txn:
                await consumer.acknowledge_cumulative(again[10], transaction=txn)
                await consumer.acknowledge_cumulative(again[19], transaction=txn)
        async with client.stream_consumer(topic, "s") as consumer:
            rest = await receive(consumer, 20)
            assert values(again[:20] + rest) == [b"%04d" % number for number in range(40)]


@on_backends("trio")
async def test_a_pipeline_through_splits_copies_each_message_once(broker: RunningBroker) -> None:
    """T20, T33: messages taken and put in one transaction, while the segments under both topics are split."""
    source, target, admin = new_topic(broker, 2), new_topic(broker, 2), Admin(broker.http_url)
    count = 80
    async with (
        tidewire.connect(broker.service_url) as client,
        client.producer(source, batching=tidewire.Batching(messages_max=3)) as sources,
        client.producer(target) as targets,
    ):
        await send(sources, 0, count)
        copied: set[bytes] = set()

        async def copy(attempts_of_three: int) -> None:
            async with client.queue_consumer(source, "copy", queue_messages_max=5) as consumer:
                number = attempts_of_three
                while True:
                    messages = [await consumer.receive()]
                    number += 1
                    txn = await client.new_transaction()
                    try:
                        for message in messages:
                            await targets.send(message.value, key=message.key, txn=txn)
                        await consumer.acknowledge(*messages, transaction=txn)
                        if number % 3 == 0:
                            await txn.abort()
                            continue
                        await txn.commit()
                    except (tidewire.TransactionConflict, tidewire.ConnectionLost):
                        await txn.abort()
                        continue
                    copied.update(message.value for message in messages)
                    if len(copied) == count:
                        tasks.cancel_scope.cancel()

        with anyio.fail_after(SECONDS_MAX):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(copy, 0)
                tasks.start_soon(copy, 1)
                await admin.split(source, 0)
                await admin.split(target, 1)
                await admin.merge(source, 2, 3)
        async with client.reader(target) as reader:
            found = Counter(message.value for message in await receive(reader, count))
            assert found == Counter(b"%04d" % number for number in range(count))
            await nothing_comes(reader)


@on_backends("trio")
async def test_a_pipeline_goes_on_after_kill_9_and_copies_each_message_once(mortal: RunningBroker) -> None:
    """DESIGN 9.2, D3: what a committed transaction took and put survives together; what it did not is done again."""
    source, target = new_topic(mortal, 2), new_topic(mortal)
    count = 60
    async with (
        tidewire.connect(mortal.service_url) as client,
        client.producer(source, batching=False) as sources,
        client.producer(target) as targets,
        client.queue_consumer(source, "copy") as consumer,
    ):
        await send(sources, 0, count)
        done = 0
        half = anyio.Event()

        async def copy() -> None:
            nonlocal done
            while done < count:
                message = await consumer.receive()

                async def work(txn: tidewire.Transaction, message: tidewire.Message = message) -> None:
                    await targets.send(message.value, key=message.key, txn=txn)
                    await consumer.acknowledge(message, transaction=txn)

                try:
                    await client.run_transaction(work, attempts_max=1)
                except (tidewire.TransactionConflict, tidewire.ConnectionLost, tidewire.OutcomeUnknown):
                    # It comes again if it did not count.
                    continue
                done += 1
                if done == count // 2:
                    half.set()

        async def crash() -> None:
            await half.wait()
            await anyio.to_thread.run_sync(mortal.restart)

        with anyio.move_on_after(SECONDS_MAX / 2) as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(crash)
                tasks.start_soon(copy)
                # An unknown outcome may have counted, so that no message is left to count to the end.
                async with client.reader(target) as reader:
                    found = Counter(message.value for message in await receive(reader, count))
                tasks.cancel_scope.cancel()
        assert not scope.cancelled_caught
        assert found == Counter(b"%04d" % number for number in range(count))
