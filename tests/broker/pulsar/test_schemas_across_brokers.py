"""A schema that a consumer declares, while other brokers own some of the topic's segments."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from broker.layouts.parts import Segment
from broker.names import TopicName
from tests.broker.pulsar.test_schemas import AUTO, STRING, avro
from tests.broker.test_administration_anywhere import served
from tests.support.rooms import TOPIC, Rooms
from tests.support.wire import WireClient, connected, listening
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type


@asynccontextmanager
async def two_brokers() -> AsyncIterator[tuple[Rooms, WireClient, WireClient]]:
    """Run brokers with a topic of two segments, and a client of each."""
    async with (
        served("one", "two") as ((one, _), (two, _)),
        listening(one) as at_one,
        listening(two) as at_two,
        connected(at_one) as first,
        connected(at_two) as second,
    ):
        await one.controller.create_topic(TOPIC, 2, {})
        yield one, first, second


async def consume(broker: Rooms, client: WireClient, segment_id: int, schema: pb.Schema | None) -> pb.BaseCommand:
    topic = str(await broker.segment(TOPIC, segment_id))
    shared = pb.CommandSubscribe.Shared
    return await client.ask(
        commands.subscribe(topic, "s", segment_id, 200 + segment_id, sub_type=shared, schema=schema)
    )


async def test_a_consumers_schema_becomes_the_first_one_of_a_topic_on_two_brokers() -> None:
    """C14: it was refused as if the topic were in use. The Java client declares one at each segment."""
    async with two_brokers() as (broker, first, second):
        topic = str(await broker.segment(TOPIC, 1))
        assert (await second.ask(commands.subscribe(topic, "any", 9, 9, schema=AUTO))).type == Type.SUCCESS
        assert (await consume(broker, first, 0, STRING)).type == Type.SUCCESS
        assert (await consume(broker, second, 1, STRING)).type == Type.SUCCESS


async def test_both_segments_may_declare_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """C14: whoever comes second finds the topic in use, but by then it has the schema."""
    async with two_brokers() as (broker, first, second):
        look = broker.segment_work.is_untouched
        topic = str(await broker.segment(TOPIC, 1))
        assert (await second.ask(commands.subscribe(topic, "any", 9, 9, schema=AUTO))).type == Type.SUCCESS

        async def meanwhile(topic: TopicName, segment: Segment) -> bool:
            if segment.id == 1:
                assert (await consume(broker, second, 1, STRING)).type == Type.SUCCESS
            return await look(topic, segment)

        monkeypatch.setattr(broker.segment_work, "is_untouched", meanwhile)
        assert (await consume(broker, first, 0, STRING)).type == Type.SUCCESS


@pytest.mark.parametrize("use", ["a message", "a consumer"])
async def test_a_topic_in_use_at_another_broker_gets_no_schema(use: str) -> None:
    async with two_brokers() as (broker, first, second):
        topic = str(await broker.segment(TOPIC, 1))
        if use == "a message":
            assert (await second.produce(1, topic)).type == Type.PRODUCER_SUCCESS
            await second.publish(1, 0)
            assert (await second.receive()).type == Type.SEND_RECEIPT
        else:
            assert (await consume(broker, second, 1, None)).type == Type.SUCCESS
        refused = await consume(broker, first, 0, avro("a"))
        assert refused.error.error == pb.IncompatibleSchema
        assert "in use without a schema" in refused.error.message


async def test_a_declared_schema_moves_no_segment() -> None:
    """C14: the broker that checked it took all segments that nobody owned yet."""
    async with two_brokers() as (broker, first, _):
        assert (await consume(broker, first, 0, STRING)).type == Type.SUCCESS
        assert broker.topics.owned == (await broker.segment(TOPIC, 0),)
