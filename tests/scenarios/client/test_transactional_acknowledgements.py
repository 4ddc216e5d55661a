"""The client `tidewire` copies messages from one topic to another, all in transactions."""

from collections import Counter

import anyio
import pytest

import tidewire
from tests.scenarios.client.stories import SECONDS_MAX, new_topic, nothing_comes, receive, send, values
from tests.support.admin import Admin
from tests.support.backends import on_backends, on_both_backends
from tests.support.subjects import Subject


@on_both_backends
async def test_acknowledgements_of_a_queue_count_when_their_transaction_commits(broker: Subject) -> None:
    """T22, T23, T24: nothing moves before the commit; an abort redelivers the messages; conflicts are refused."""
    topic = new_topic(broker, 2)
    async with (
        tidewire.connect(broker.service_url) as client,
        client.producer(topic, batching=False) as producer,
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
async def test_acknowledgements_inside_a_batch_collide_like_any_others(broker: Subject) -> None:
    """T24: what another transaction has acknowledged is refused, whether it is all of the batch or a part."""
    topic = new_topic(broker)
    async with (
        tidewire.connect(broker.service_url, operation_timeout_seconds=5) as client,
        client.producer(topic) as producer,
        client.queue_consumer(topic, "q") as consumer,
    ):
        for number in range(5):
            await producer.enqueue(b"%d" % number)
        await producer.flush()
        batch = await receive(consumer, 5)
        assert {message.message_id.batch_size for message in batch} == {5}
        for taken in (batch[:2], batch):
            first, second = await client.new_transaction(), await client.new_transaction()
            await consumer.acknowledge(*taken, transaction=first)
            with pytest.raises(tidewire.TransactionConflict):
                await consumer.acknowledge(batch[0], transaction=second)
            await first.abort()
            await second.abort()
            batch = sorted(await receive(consumer, 5), key=lambda message: message.message_id.batch_index)


@on_both_backends
async def test_acknowledgements_of_a_stream_count_when_their_transaction_commits(broker: Subject) -> None:
    topic = new_topic(broker, 2)
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
        await send(producer, 0, 40)
        async with client.stream_consumer(topic, "s", "name") as consumer:
            got = await receive(consumer, 30)
            txn = await client.new_transaction()
            await consumer.acknowledge_cumulative(got[-1], transaction=txn)
            await txn.abort()
        async with client.stream_consumer(topic, "s", "name") as consumer:
            again = await receive(consumer, 30)
            async with client.transaction() as txn:
                await consumer.acknowledge_cumulative(again[10], transaction=txn)
                await consumer.acknowledge_cumulative(again[19], transaction=txn)
        async with client.stream_consumer(topic, "s", "name") as consumer:
            rest = await receive(consumer, 20)
            assert values(again[:20] + rest) == [b"%04d" % number for number in range(40)]


@on_backends("trio")
async def test_a_pipeline_through_splits_copies_each_message_once(broker: Subject) -> None:
    """T20, T33: the segments of both topics are split while messages are received and sent in one transaction."""
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
