"""The parts, the transport and the size of messages. Every consumer gets them as they were sent."""

from contextlib import closing
from functools import partial
from random import Random

import anyio
import pulsar
import pytest
import trio

import tidewire
from tests.scenarios.client.stories import Receiver, new_topic, nothing_comes, plain_topic, receive
from tests.support.admin import Admin
from tests.support.backends import on_both_backends
from tests.support.subjects import Subject
from tidewire.client.producer import Compression

CODECS: tuple[Compression, ...] = ("none", "lz4", "zlib", "zstd", "snappy")
MEBIBYTE = 1024 * 1024


def noise(size: int, seed: int) -> bytes:
    """Return bytes that no codec can compress."""
    return Random(seed).randbytes(size)


@pytest.mark.parametrize("is_batched", [True, False])
async def test_large_messages_that_compress_well_pass_between_pulsars_client_and_ours(
    broker: Subject, *, is_batched: bool
) -> None:
    """The broker's limit holds for the compressed message, alone or in a batch."""
    topic, value = plain_topic(), b"much of the same" * MEBIBYTE
    in_thread = trio.to_thread.run_sync
    with closing(pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))) as theirs:
        make = partial(
            theirs.create_producer, topic, compression_type=pulsar.CompressionType.ZSTD, batching_enabled=is_batched
        )
        producer = await in_thread(make)
        await in_thread(producer.send, value)
        async with tidewire.connect(broker.service_url) as ours:
            async with ours.producer(topic, compression="zstd") as sending:
                await sending.send(value)
            async with ours.reader(topic) as reader:
                assert [message.value == value for message in await receive(reader, 2)] == [True, True]
        read = await in_thread(partial(theirs.create_reader, topic, pulsar.MessageId.earliest))
        assert [(await in_thread(read.read_next, 60_000)).data() == value for _ in range(2)] == [True, True]


@pytest.mark.parametrize("compression", CODECS)
@on_both_backends
async def test_messages_arrive_whatever_they_are_compressed_with(broker: Subject, compression: Compression) -> None:
    topic = new_topic(broker)
    sent = [b"", b"small", b"much of the same " * 1000, noise(10_000, 1)] + [b"%d" % number for number in range(100)]
    async with tidewire.connect(broker.service_url) as client:
        async with client.producer(topic, compression=compression, batching=False) as producer:
            for value in sent:
                await producer.enqueue(value)
        async with client.producer(topic, compression=compression) as producer:
            for value in sent:
                await producer.enqueue(value)
        async with client.reader(topic) as reader:
            got = await receive(reader, 2 * len(sent))
    assert [message.value for message in got] == sent + sent
    assert max(message.message_id.batch_size for message in got) > 1


@on_both_backends
async def test_each_message_of_a_batch_has_its_own_parts(broker: Subject) -> None:
    topic = new_topic(broker)
    async with tidewire.connect(broker.service_url) as client:
        async with client.producer(topic, "parts", batching=tidewire.Batching(messages_max=7)) as producer:
            for number in range(50):
                await producer.enqueue(
                    b"%d" % number,
                    key=None if number % 3 == 0 else f"key {number}",
                    properties={"number": str(number), "ü": ""} if number % 2 else None,
                    event_time_ms=number or None,
                )
        async with client.queue_consumer(topic, "q") as consumer:
            got = await receive(consumer, 50)
    for number, message in enumerate(got):
        assert message.value == b"%d" % number
        assert message.key == (None if number % 3 == 0 else f"key {number}")
        assert message.properties == ({"number": str(number), "ü": ""} if number % 2 else {})
        assert message.event_time_ms == (number or None)
        assert message.producer_name == "parts"
    assert [message.sequence_id for message in got] == sorted({message.sequence_id for message in got})
    assert max(message.message_id.batch_size for message in got) == 7


@on_both_backends
async def test_messages_without_a_key_are_spread_and_those_of_a_key_stay_together(broker: Subject) -> None:
    topic = new_topic(broker, 4)
    async with tidewire.connect(broker.service_url) as client:
        async with client.producer(topic) as producer:
            unkeyed = [await producer.send(b"x") for _ in range(8)]
            keyed = [await producer.send(b"x", key="k") for _ in range(8)]
        assert {message_id.segment_id for message_id in unkeyed} == {0, 1, 2, 3}
        assert len({message_id.segment_id for message_id in keyed}) == 1
        async with client.stream_consumer(topic, "s") as consumer:
            got = {message.message_id for message in await receive(consumer, 16)}
    assert got == {*unkeyed, *keyed}


@on_both_backends
async def test_a_message_in_chunks_is_put_together_by_every_kind_of_consumer(broker: Subject) -> None:
    topic = new_topic(broker, 2)
    large, larger = noise(12 * MEBIBYTE - 1, 1), noise(100_000, 2)
    async with tidewire.connect(broker.service_url) as client:
        async with client.producer(topic, chunking=True) as producer:
            await producer.enqueue(b"before", key="k")
            receipt = await producer.enqueue(large, key="k", properties={"a": "b"}, event_time_ms=7)
            await producer.enqueue(b"after", key="k")
            assert len((await receipt).chunks) == 2
        async with client.producer(topic, compression="lz4", chunking=tidewire.Chunking(30_000)) as producer:
            await producer.send(larger, key="k")
        expected = [b"before", large, b"after", larger]

        async def expect(consumer: Receiver) -> tidewire.Message:
            got = await receive(consumer, 4)
            assert [message.value for message in got] == expected
            assert (got[1].properties, got[1].event_time_ms, got[1].key) == ({"a": "b"}, 7, "k")
            assert got[1].message_id == await receipt
            return got[1]

        async with client.reader(topic) as reader:
            second = await expect(reader)
        async with client.reader(topic, tidewire.MessageId.from_bytes(second.message_id.to_bytes())) as reader:
            assert [message.value for message in await receive(reader, 2)] == expected[2:]
        async with client.stream_consumer(topic, "s") as stream:
            await stream.acknowledge_cumulative(await expect(stream), confirmed=True)
        async with client.stream_consumer(topic, "s", stream.name) as stream:
            assert [message.value for message in await receive(stream, 2)] == expected[2:]
        async with client.queue_consumer(topic, "q") as queue:
            await queue.acknowledge(await expect(queue), confirmed=True)
        async with client.queue_consumer(topic, "q") as queue:
            got = await receive(queue, 3)
            assert [message.value for message in got] == [b"before", b"after", larger]
            await queue.acknowledge(*got, confirmed=True)
        async with client.queue_consumer(topic, "q") as queue:
            await nothing_comes(queue)


@on_both_backends
async def test_chunks_of_several_producers_lie_between_each_other(broker: Subject) -> None:
    topic = new_topic(broker)
    sent = {noise(200_000, seed) for seed in range(12)}
    async with tidewire.connect(broker.service_url) as client:

        async def produce(values: list[bytes]) -> None:
            async with client.producer(topic, chunking=tidewire.Chunking(10_000)) as producer:
                for value in values:
                    await producer.send(value, key="k")

        async with client.stream_consumer(topic, "s") as consumer:
            async with anyio.create_task_group() as tasks:
                values = list(sent)
                for first in range(3):
                    tasks.start_soon(produce, values[first::3])
            got = []
            for message in await receive(consumer, len(sent)):
                got.append(message.value)
                await consumer.acknowledge_cumulative(message, confirmed=True)
            assert set(got) == sent
        async with client.stream_consumer(topic, "s", consumer.name) as consumer:
            await nothing_comes(consumer)


@on_both_backends
async def test_a_message_in_chunks_is_given_back_and_put_aside_whole(broker: Subject) -> None:
    topic, dead = new_topic(broker), new_topic(broker)
    value = noise(100_000, 3)
    async with tidewire.connect(broker.service_url) as client:
        async with client.producer(topic, chunking=tidewire.Chunking(10_000)) as producer:
            await producer.send(value, key="k")
        async with client.queue_consumer(
            topic,
            "q",
            negative_ack_backoff=tidewire.BackoffPolicy.fixed(0.05),
            dead_letter_policy=tidewire.DeadLetterPolicy(1, dead),
        ) as consumer:
            for count in range(2):
                (message,) = await receive(consumer, 1)
                assert (message.value, message.redelivery_count) == (value, count)
                await consumer.negative_acknowledge(message)
            async with client.reader(dead) as reader, anyio.create_task_group() as tasks:
                tasks.start_soon(nothing_comes, consumer)
                assert [message.value for message in await receive(reader, 1)] == [value]
        async with client.queue_consumer(topic, "q") as consumer:
            await nothing_comes(consumer)


@on_both_backends
async def test_chunks_in_a_transaction_through_a_split(broker: Subject) -> None:
    """The segment splits between the chunks. Committed messages arrive whole, aborted ones never."""
    topic, admin = new_topic(broker), Admin(broker.http_url)
    first, second = noise(100_000, 4), noise(100_000, 5)
    async with (
        tidewire.connect(broker.service_url) as client,
        client.producer(topic, chunking=tidewire.Chunking(10_000)) as producer,
        client.stream_consumer(topic, "s") as consumer,
    ):
        committed, aborted = await client.new_transaction(), await client.new_transaction()
        for txn in (committed, aborted):
            await producer.send(first, key="k", txn=txn)
        await admin.split(topic, 0)
        for txn in (committed, aborted):
            await producer.send(second, key="k", txn=txn)
        await aborted.abort()
        await committed.commit()
        await producer.send(b"last", key="k")
        for value in (first, second, b"last"):
            (message,) = await receive(consumer, 1)
            assert message.value == value
            await consumer.acknowledge_cumulative(message)


@on_both_backends
async def test_messages_above_the_limit_are_refused(broker: Subject) -> None:
    topic = plain_topic()
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
        with pytest.raises(tidewire.MessageTooLarge):
            await producer.send(bytes(6_000_000))
        await producer.send(bytes(5_000_000))
        async with client.producer(topic, chunking=True) as chunking:
            with pytest.raises(tidewire.MessageTooLarge):
                await chunking.send(bytes(64 * MEBIBYTE + 1))
            with pytest.raises(tidewire.MessageTooLarge):
                await chunking.send(b"", properties={"large": "x" * 3_000_000})
            await chunking.send(bytes(6_000_000))
        async with client.consumer(topic, "alone") as consumer:
            got = await receive(consumer, 2)
            assert [len(message.value) for message in got] == [5_000_000, 6_000_000]
            await consumer.acknowledge(got[1], confirmed=True)
        async with client.consumer(topic, "alone") as consumer:
            assert [len(message.value) for message in await receive(consumer, 1)] == [5_000_000]
            await nothing_comes(consumer)
