"""Queue and checkpoint consumers against a broker started as a user starts it, under asyncio and under Trio."""

import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

import anyio
import anyio.to_thread
import pytest

import tidewire
from tests.support.admin import Admin
from tests.support.backends import on_backends, on_both_backends
from tests.support.processes import RunningBroker, running_broker

SECONDS_MAX = 60
"""No story here takes nearly as long; a message that never comes ends it."""
SOON = tidewire.BackoffPolicy.fixed(0.05)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One broker for the stories that do not kill it; each has topics of its own."""
    with running_broker(tmp_path_factory.mktemp("consumers") / "data") as broker:
        yield broker


@pytest.fixture
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker to kill."""
    with running_broker(tmp_path_factory.mktemp("mortal") / "data") as broker:
        yield broker


def new_topic(broker: RunningBroker, segments: int = 1) -> str:
    return Admin(broker.http_url).create(f"topic://public/default/{uuid.uuid4().hex}", segments)


async def receive(
    consumer: tidewire.QueueConsumer | tidewire.StreamConsumer | tidewire.Reader, count: int
) -> list[tidewire.Message]:
    with anyio.fail_after(SECONDS_MAX):
        return [await consumer.receive() for _ in range(count)]


async def nothing_comes(consumer: tidewire.QueueConsumer) -> None:
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


# --------------------------------------------------------------------------------------------------- queue consumers


@on_both_backends
async def test_two_queue_consumers_share_all_segments_through_splits_and_merges(broker: RunningBroker) -> None:
    """DESIGN 6: sealed segments take acknowledgements; no step of a split loses or repeats a message."""
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
async def test_what_is_given_back_or_left_comes_again_and_in_the_end_is_put_aside(broker: RunningBroker) -> None:
    topic, dead = new_topic(broker, 2), new_topic(broker)
    policy = tidewire.DeadLetterPolicy(2, dead)
    async with tidewire.connect(broker.service_url) as client:
        async with client.producer(topic) as producer:
            for number in range(20):
                await producer.enqueue(b"%02d" % number, key=str(number), properties={"number": str(number)})
        async with client.queue_consumer(
            topic, "q", negative_ack_backoff=SOON, processing_timeout_seconds=0.2, dead_letter_policy=policy
        ) as consumer:
            seen: Counter[bytes] = Counter()
            with anyio.move_on_after(SECONDS_MAX):
                async for message in consumer:
                    seen[message.value] += 1
                    if message.value in {b"03", b"07"}:
                        await consumer.negative_acknowledge(message)
                    elif message.value != b"11":  # which is forgotten
                        await consumer.acknowledge(message)
                    if len(seen) == 20 and all(seen[value] >= 3 for value in (b"03", b"07", b"11")):
                        break
            async with client.reader(dead) as reader:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(nothing_comes, consumer)
                    letters = await receive(reader, 3)
                assert values(letters) == [b"03", b"07", b"11"]
                (seven,) = [letter for letter in letters if letter.key == "7"]
                assert seven.properties["number"] == "7"
                assert seven.properties["REAL_TOPIC"] == topic
                assert seven.properties["REAL_SUBSCRIPTION"] == "q"
        async with client.queue_consumer(topic, "q") as consumer:
            await nothing_comes(consumer)


@on_both_backends
async def test_a_queue_is_moved_to_and_fro(broker: RunningBroker) -> None:
    topic, admin = new_topic(broker, 2), Admin(broker.http_url)
    async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
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


@on_backends("trio")
async def test_a_queue_goes_on_after_kill_9_and_what_was_confirmed_does_not_come_again(mortal: RunningBroker) -> None:
    """DESIGN 9.1: an acknowledgement that was confirmed survives, on sealed segments too."""
    topic, admin = new_topic(mortal, 2), Admin(mortal.http_url)
    async with tidewire.connect(mortal.service_url) as client, client.producer(topic) as producer:
        sent = await send(producer, 0, 60)
        await admin.split(topic, 1)
        sent += await send(producer, 60, 120)
        async with client.queue_consumer(topic, "q") as consumer:
            got = await receive(consumer, 80)
            await consumer.acknowledge(*got[::2], confirmed=True)
            await anyio.to_thread.run_sync(mortal.restart)
            rest = await receive(consumer, 80)
            assert values(got[::2]) + values(rest) != sent
            assert sorted(values(got[::2]) + values(rest)) == sent


# ---------------------------------------------------------------------------------------------- checkpoint consumers


@on_both_backends
async def test_a_checkpoint_goes_on_where_it_was_taken_through_splits_merges_and_transactions(
    broker: RunningBroker,
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
async def test_a_checkpoint_consumer_begins_at_the_latest_or_at_a_time(broker: RunningBroker) -> None:
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


@on_backends("asyncio")
async def test_a_checkpoint_survives_kill_9_of_the_broker(mortal: RunningBroker) -> None:
    topic = new_topic(mortal, 2)
    async with tidewire.connect(mortal.service_url) as client, client.producer(topic) as producer:
        sent = await send(producer, 0, 50)
        async with client.checkpoint_consumer(topic, "earliest") as consumer:
            got = values(await receive(consumer, 20))
            checkpoint = consumer.checkpoint()
            await anyio.to_thread.run_sync(mortal.restart)
            assert sorted(got + values(await receive(consumer, 30))) == sent
        async with client.checkpoint_consumer(topic, checkpoint) as consumer:
            assert sorted(got + values(await receive(consumer, 30))) == sent
