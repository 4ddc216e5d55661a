"""Values with a schema arrive as they were sent; the broker keeps versions and refuses incompatible ones."""

from dataclasses import dataclass
from typing import Any

import anyio
import pytest

import tidewire
from tests.scenarios.client.stories import SECONDS_MAX, new_topic
from tests.support.admin import Admin
from tests.support.backends import on_both_backends
from tests.support.subjects import Subject
from tidewire import Schema


@dataclass
class Trip:
    origin: str
    passengers: int


@dataclass
class LongerTrip:
    origin: str
    passengers: int
    delay: int | None = None


@dataclass
class OtherTrip:
    origin: str
    carrier: str


# A record's name counts for compatibility.
LongerTrip.__name__ = OtherTrip.__name__ = "Trip"

SIMPLE: list[tuple[Schema[Any], Any]] = [
    (Schema.string(), "häuser"),
    (Schema.bool(), True),
    (Schema.int8(), -128),
    (Schema.int16(), -300),
    (Schema.int32(), -70_000),
    (Schema.int64(), 2**62),
    (Schema.float32(), 1.5),
    (Schema.float64(), -0.1),
    (Schema.json(Trip), Trip("EWR", 3)),
    (Schema.avro(Trip), Trip("EWR", 3)),
]


@pytest.mark.parametrize(("schema", "value"), SIMPLE, ids=lambda it: type(it).__name__)
@on_both_backends
async def test_values_come_back_as_they_were_sent(broker: Subject, schema: Schema[Any], value: Any) -> None:
    topic = new_topic(broker)
    async with tidewire.connect(broker.service_url) as client:
        async with client.producer(topic, schema=schema) as producer:
            for _ in range(3):
                await producer.enqueue(value)
        async with client.queue_consumer(topic, "q", schema=schema) as queue:
            with anyio.fail_after(SECONDS_MAX):
                message = await queue.receive()
            assert (message.value, message.data) == (value, schema.encode(value))
        # Whoever wants bytes gets bytes.
        async with client.reader(topic) as reader:
            with anyio.fail_after(SECONDS_MAX):
                assert (await reader.receive()).value == schema.encode(value)


@pytest.mark.parametrize("kind", [Schema.avro, Schema.json], ids=["avro", "json"])
@on_both_backends
async def test_records_pass_from_one_version_to_the_next_through_a_split(broker: Subject, kind: Any) -> None:
    """Each message is read with the version that it was written with, also on the children of its segment."""
    topic, admin = new_topic(broker), Admin(broker.http_url)
    old, new = kind(Trip), kind(LongerTrip)
    async with (
        tidewire.connect(broker.service_url) as client,
        client.producer(topic, schema=old) as older,
        client.producer(topic, schema=new) as newer,
    ):
        sent = []
        for number in range(2):
            await older.send(Trip("EWR", number), key="k")
            await newer.send(LongerTrip("JFK", number, 17), key="k")
            sent += [LongerTrip("EWR", number), LongerTrip("JFK", number, 17)]
            if number == 0:
                await admin.split(topic, 0)
        async with client.stream_consumer(topic, "s", schema=new) as consumer:
            got = []
            with anyio.fail_after(SECONDS_MAX):
                for _ in sent:
                    message = await consumer.receive()
                    got.append(message.value)
                    await consumer.acknowledge_cumulative(message)
            assert got == sent
        async with client.reader(topic, schema=old) as reader:
            with anyio.fail_after(SECONDS_MAX):
                values = [(await reader.receive()).value for _ in sent]
            assert values == [Trip(trip.origin, trip.passengers) for trip in sent]


@pytest.mark.parametrize("kind", [Schema.avro, Schema.json], ids=["avro", "json"])
@on_both_backends
async def test_what_does_not_go_with_the_topic_is_refused(broker: Subject, kind: Any) -> None:
    topic = new_topic(broker)
    async with tidewire.connect(broker.service_url) as client, client.producer(topic, schema=kind(Trip)) as producer:
        await producer.send(Trip("EWR", 3))
        others: list[tuple[Schema[Any], Any]] = [(kind(OtherTrip), OtherTrip("EWR", "UA")), (Schema.string(), "EWR")]
        for schema, value in others:
            async with client.producer(topic, schema=schema) as other:
                with pytest.raises(tidewire.IncompatibleSchema):
                    await other.send(value)
            with pytest.raises(tidewire.IncompatibleSchema):
                async with client.queue_consumer(topic, "q", schema=schema):
                    pass
        await producer.send(Trip("JFK", 4))


@on_both_backends
async def test_a_value_that_cannot_be_read_is_said_and_the_next_one_comes(broker: Subject) -> None:
    topic, schema = new_topic(broker), Schema.int32()
    async with tidewire.connect(broker.service_url) as client:
        async with client.producer(topic, schema=schema.encoded()) as producer:
            for value in (b"\0\0\0\1", b"odd", b"\0\0\0\2"):
                await producer.enqueue(value, key="k")
        async with client.reader(topic, schema=schema) as reader:
            with anyio.fail_after(SECONDS_MAX):
                assert (await reader.receive()).value == 1
                with pytest.raises(tidewire.MessageCorrupted):
                    await reader.receive()
                assert (await reader.receive()).value == 2


@on_both_backends
async def test_dead_letters_keep_their_values(broker: Subject) -> None:
    topic, dead = new_topic(broker), new_topic(broker)
    schema = Schema.avro(Trip)
    async with tidewire.connect(broker.service_url) as client:
        async with client.producer(topic, schema=schema) as producer:
            await producer.send(Trip("EWR", 3), key="k")
        async with (
            client.queue_consumer(
                topic,
                "q",
                schema=schema,
                negative_ack_backoff=tidewire.BackoffPolicy.fixed(0.05),
                dead_letter_policy=tidewire.DeadLetterPolicy(0, dead),
            ) as consumer,
            client.reader(dead, schema=schema) as reader,
            anyio.create_task_group() as tasks,
        ):
            with anyio.fail_after(SECONDS_MAX):
                await consumer.negative_acknowledge(await consumer.receive())
                tasks.start_soon(consumer.receive)
                letter = await reader.receive()
            tasks.cancel_scope.cancel()
        assert (letter.value, letter.key) == (Trip("EWR", 3), "k")
