"""Queue and checkpoint consumers against a broker started as users start it, under asyncio and Trio."""

from collections import Counter
from datetime import UTC, datetime

import anyio

import tidewire
from tests.scenarios.client.stories import SECONDS_MAX, new_topic, nothing_comes, receive, send, values
from tests.support.admin import Admin
from tests.support.backends import on_both_backends
from tests.support.subjects import Subject

SOON = tidewire.BackoffPolicy.fixed(0.05)


# --------------------------------------------------------------------------------------------------- queue consumers


@on_both_backends
async def test_two_queue_consumers_share_all_segments_through_splits_and_merges(broker: Subject) -> None:
    """Sealed segments accept acknowledgements; no step of a split loses or repeats a message."""
    topic, admin = new_topic(broker, 2), Admin(broker.http_url)
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
        sent = await send(producer, 0, 200)
        # Begun on a topic that was split before anybody subscribed.
        await admin.split(topic, 0)
        sent += await send(producer, 200, 400)
        seen: Counter[bytes] = Counter()
        by_consumer: Counter[str] = Counter()
        async with (
            client.queue_consumer(topic, "q", "one", queue_messages_max=10) as one,
            client.queue_consumer(topic, "q", "two", queue_messages_max=10) as two,
        ):

            async def consume(consumer: tidewire.QueueConsumer) -> None:
                async for message in consumer:
                    seen[message.value] += 1
                    by_consumer[consumer.name] += 1
                    await consumer.acknowledge(message)
                    if len(seen) == 800:
                        tasks.cancel_scope.cancel()

            with anyio.fail_after(SECONDS_MAX):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(consume, one)
                    tasks.start_soon(consume, two)
                    await admin.split(topic, 1)
                    sent += await send(producer, 400, 600)
                    await admin.merge(topic, 2, 3)
                    sent += await send(producer, 600, 800)
        assert seen == Counter(sent)
        assert min(by_consumer.values()) > 50
        async with client.queue_consumer(topic, "q") as third:
            await nothing_comes(third)


@on_both_backends
async def test_what_is_given_back_or_left_comes_again_and_in_the_end_is_put_aside(broker: Subject) -> None:
    topic, dead = new_topic(broker, 2), new_topic(broker)
    policy = tidewire.DeadLetterPolicy(2, dead)
    async with tidewire.connect(broker.service_url) as client:
        async with client.producer(topic) as producer:
            for number in range(20):
                await producer.enqueue(b"%02d" % number, key=str(number), properties={"number": str(number)})
        async with client.queue_consumer(topic, "q", negative_ack_backoff=SOON, dead_letter_policy=policy) as consumer:
            seen: Counter[bytes] = Counter()
            with anyio.move_on_after(SECONDS_MAX):
                async for message in consumer:
                    seen[message.value] += 1
                    if message.value in {b"03", b"07"}:
                        await consumer.negative_acknowledge(message)
                    else:
                        await consumer.acknowledge(message)
                    if len(seen) == 20 and all(seen[value] >= 3 for value in (b"03", b"07")):
                        break
            async with client.reader(dead) as reader:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(nothing_comes, consumer)
                    letters = await receive(reader, 2)
                assert values(letters) == [b"03", b"07"]
                (seven,) = [letter for letter in letters if letter.key == "7"]
                assert seven.properties["number"] == "7"
                assert seven.properties["REAL_TOPIC"] == topic
                assert seven.properties["REAL_SUBSCRIPTION"] == "q"
        async with client.queue_consumer(topic, "q") as consumer:
            await nothing_comes(consumer)


@on_both_backends
async def test_a_queue_is_moved_to_and_fro(broker: Subject) -> None:
    topic, admin = new_topic(broker, 2), Admin(broker.http_url)
    async with tidewire.connect(broker.service_url) as client, client.producer(topic, batching=False) as producer:
        sent = await send(producer, 0, 50)
        await admin.split(topic, 0)
        sent += await send(producer, 50, 100)
        async with client.queue_consumer(topic, "q") as one, client.queue_consumer(topic, "q") as two:
            got = []
            for message in await receive(one, 20):
                got.append(message)
                await one.acknowledge(message)
            await one.seek("earliest")
            again: list[bytes] = []

            async def take(consumer: tidewire.QueueConsumer) -> None:
                async for message in consumer:
                    again.append(message.value)
                    await consumer.acknowledge(message, confirmed=True)
                    if len(set(again)) >= 100:
                        tasks.cancel_scope.cancel()

            with anyio.fail_after(SECONDS_MAX):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(take, one)
                    tasks.start_soon(take, two)
            assert sorted(set(again)) == sent
        async with client.queue_consumer(topic, "q") as consumer:
            await nothing_comes(consumer)
            await send(producer, 100, 110)
            await consumer.skip_all()
            moment = datetime.now(UTC)
            later = await send(producer, 110, 120)
            assert values(await receive(consumer, 10)) == later
            await consumer.seek(moment)
            assert values(await receive(consumer, 10)) == later


@on_both_backends
async def test_a_queue_that_is_moved_back_brings_what_was_acknowledged_inside_a_batch(broker: Subject) -> None:
    topic = new_topic(broker)
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
        sent = await send(producer, 0, 10)
        async with client.queue_consumer(topic, "q") as consumer:
            got = await receive(consumer, 10)
            assert got[-1].message_id.batch_size == 10
            await consumer.acknowledge(*got[:5], confirmed=True)
            await consumer.seek("earliest")
            assert values(await receive(consumer, 10, seconds_max=10)) == sent


@on_both_backends
async def test_a_queue_begins_at_the_latest_and_goes_back_to_a_message(broker: Subject) -> None:
    topic = new_topic(broker)
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
        await send(producer, 0, 20)
        async with client.queue_consumer(topic, "q", initial="latest") as consumer:
            sent = await send(producer, 20, 40)
            got = await receive(consumer, 20)
            assert values(got) == sent
            await consumer.acknowledge(*got, confirmed=True)
            await consumer.seek(got[4].message_id)
            assert values(await receive(consumer, 15)) == values(got[5:])


@on_both_backends
async def test_what_a_consumer_leaves_goes_to_another(broker: Subject) -> None:
    """Whether it is closed or interrupted, its unacknowledged messages are not lost."""
    topic = new_topic(broker, 2)
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
        sent = await send(producer, 0, 100)
        async with tidewire.connect(broker.service_url) as other, other.queue_consumer(topic, "q", "first") as first:
            done = await receive(first, 60)
            await first.acknowledge(*done[:30], confirmed=True)
            with anyio.CancelScope() as scope:
                async with client.queue_consumer(topic, "q", "second") as second:
                    await producer.send(b"more")
                    scope.cancel()
                    await second.receive()
        async with client.queue_consumer(topic, "q", "third") as third:
            rest = await receive(third, 71)
        assert sorted(values(done[:30]) + values(rest)) == sorted([*sent, b"more"])


@on_both_backends
async def test_a_receive_that_is_cancelled_takes_nothing(broker: Subject) -> None:
    topic = new_topic(broker, 2)
    got: list[tidewire.Message] = []
    async with (
        tidewire.connect(broker.service_url) as client,
        client.producer(topic) as producer,
        client.queue_consumer(topic, "q") as queue,
        client.stream_consumer(topic, "s") as stream,
    ):

        async def produce() -> None:
            for first in range(0, 300, 20):
                await send(producer, first, first + 20)

        with anyio.fail_after(SECONDS_MAX):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(produce)
                for consumer in (queue, stream):
                    got.clear()
                    while len(got) < 300:
                        with anyio.move_on_after(0.001):
                            while len(got) < 300:
                                got.append(await consumer.receive())
                    assert values(got) == [b"%04d" % number for number in range(300)]


# ---------------------------------------------------------------------------------------------- checkpoint consumers


@on_both_backends
async def test_a_checkpoint_goes_on_where_it_was_taken_through_splits_merges_and_transactions(
    broker: Subject,
) -> None:
    topic, admin = new_topic(broker, 2), Admin(broker.http_url)
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
        sent = await send(producer, 0, 100)
        await admin.split(topic, 0)
        async with client.transaction() as txn:
            for number in range(100, 150):
                sent.append(b"%04d" % number)
                await producer.enqueue(sent[-1], key=str(number % 16), txn=txn)
        stored: list[tuple[bytes, list[bytes]]] = []
        got: list[bytes] = []
        async with client.checkpoint_consumer(topic, "earliest") as consumer:
            for count in (0, 70, 60):
                got += [message.value for message in await receive(consumer, count)]
                stored.append((consumer.checkpoint().to_bytes(), sorted(got)))
        await admin.merge(topic, 2, 3)
        sent += await send(producer, 150, 200)
        for data, before in stored:
            async with client.checkpoint_consumer(topic, tidewire.Checkpoint.from_bytes(data)) as consumer:
                rest = await receive(consumer, 200 - len(before))
                assert sorted(before + values(rest)) == sent


@on_both_backends
async def test_a_checkpoint_consumer_begins_at_the_latest_or_at_a_time(broker: Subject) -> None:
    topic, admin = new_topic(broker, 2), Admin(broker.http_url)
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
        await send(producer, 0, 20)
        await anyio.sleep(0.01)
        moment = datetime.now(UTC)
        later = await send(producer, 20, 40)
        await admin.split(topic, 1)
        async with client.checkpoint_consumer(topic, "latest") as latest:
            latest_of_all = await send(producer, 40, 60)
            assert values(await receive(latest, 20)) == latest_of_all
        async with client.checkpoint_consumer(topic, moment) as consumer:
            assert values(await receive(consumer, 40)) == later + latest_of_all
