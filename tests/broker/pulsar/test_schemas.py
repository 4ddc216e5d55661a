"""Schemas over the wire: declared by producers and consumers, requested, refused."""

import json

import pytest

from broker.names import TopicName
from tests.support.rooms import TOPIC, Rooms
from tests.support.wire import WireClient
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type
PLAIN = "persistent://public/default/plain"
V0, V1 = bytes(8), bytes(7) + b"\x01"

STRING = pb.Schema(name="String", schema_data=b"", type=pb.Schema.String)
AUTO = pb.Schema(name="", schema_data=b"", type=pb.Schema.AutoConsume)
NONE = pb.Schema(name="", schema_data=b"", type=pb.Schema.NoSchema)


def avro(*fields: str, required: bool = False) -> pb.Schema:
    made = [
        {"name": name, "type": "int"} if required else {"name": name, "type": "int", "default": 0} for name in fields
    ]
    data = json.dumps({"type": "record", "name": "R", "fields": made}).encode()
    return pb.Schema(name="R", schema_data=data, type=pb.Schema.Avro, properties=[pb.KeyValue(key="k", value="v")])


async def produce(client: WireClient, number: int, topic: str, schema: pb.Schema | None) -> pb.BaseCommand:
    return await client.ask(commands.producer(topic, number, 100 + number, schema=schema))


async def consume(client: WireClient, number: int, topic: str, schema: pb.Schema | None) -> pb.BaseCommand:
    return await client.ask(
        commands.subscribe(topic, "s", number, 200 + number, sub_type=pb.CommandSubscribe.Shared, schema=schema)
    )


async def get(client: WireClient, topic: str, version: bytes | None = None) -> pb.CommandGetSchemaResponse:
    answer = await client.ask(commands.get_schema(7, topic, version=version))
    assert (answer.type, answer.get_schema_response.request_id) == (Type.GET_SCHEMA_RESPONSE, 7)
    return answer.get_schema_response


async def segments(broker: Rooms, count: int) -> list[str]:
    await broker.controller.create_topic(TOPIC, count, {})
    return [str(await broker.segment(TOPIC, number)) for number in range(count)]


async def test_a_producer_learns_its_version(client: WireClient) -> None:
    """The first schema is version 0, also if repeated; a compatible one is the next; without a schema there is none."""
    versions = []
    for number, schema in enumerate([avro("a"), avro("a"), avro("a", "b"), avro("a"), None, NONE]):
        answer = await produce(client, number, PLAIN, schema)
        assert answer.type == Type.PRODUCER_SUCCESS
        versions.append(answer.producer_success.schema_version)
    assert versions == [V0, V0, V1, V0, b"", b""]


async def test_schemas_are_asked_for_by_version(client: WireClient) -> None:
    await produce(client, 1, PLAIN, avro("a"))
    await produce(client, 2, PLAIN, avro("a", "b"))
    latest, first = await get(client, PLAIN), await get(client, PLAIN, V0)
    assert latest.schema_version == V1
    assert (first.schema_version, first.schema.schema_data) == (V0, avro("a").schema_data)
    assert (first.schema.type, first.schema.properties[0].value) == (pb.Schema.Avro, "v")
    assert first.schema.name == "public/default/plain"


@pytest.mark.parametrize(
    ("topic", "version", "code"),
    [
        (PLAIN + "-other", None, pb.TopicNotFound),
        (PLAIN, V1, pb.TopicNotFound),
        (PLAIN, b"\xff" * 8, pb.TopicNotFound),
        (PLAIN, b"", pb.IncompatibleSchema),
        (PLAIN, b"\x00", pb.IncompatibleSchema),
        ("persistent://a/b", None, pb.InvalidTopicName),
    ],
)
async def test_schemas_that_there_are_not(
    client: WireClient, topic: str, version: bytes | None, code: pb.ServerError
) -> None:
    await produce(client, 1, PLAIN, avro("a"))
    refused = await get(client, topic, version)
    assert refused.HasField("error_code")
    assert refused.error_code == code


async def test_a_producer_whose_schema_does_not_follow_is_refused(client: WireClient) -> None:
    """The code is IncompatibleSchema. Nothing is changed, and the producer's id and name are free."""
    await produce(client, 1, PLAIN, avro("a"))
    broken = pb.Schema(name="", schema_data=b"no json", type=pb.Schema.Avro)
    for schema in (STRING, avro("a", "b", required=True), broken, AUTO):
        refused = await client.ask(commands.producer(PLAIN, 2, 9, name="me", schema=schema))
        assert (refused.type, refused.error.error, refused.error.request_id) == (Type.ERROR, pb.IncompatibleSchema, 9)
    assert (await get(client, PLAIN)).schema_version == V0
    assert (await client.ask(commands.producer(PLAIN, 2, 9, name="me"))).type == Type.PRODUCER_SUCCESS


async def test_a_version_for_messages_of_another_schema(client: WireClient) -> None:
    """A producer of several schemas sends GET_OR_CREATE_SCHEMA between its sends."""
    await produce(client, 1, PLAIN, avro("a"))
    versions = []
    for schema in (avro("a", "b"), avro("a"), NONE):
        answer = await client.ask(commands.get_or_create_schema(8, PLAIN, schema))
        assert answer.type == Type.GET_OR_CREATE_SCHEMA_RESPONSE
        assert not answer.get_or_create_schema_response.HasField("error_code")
        versions.append(answer.get_or_create_schema_response.schema_version)
    assert versions == [V1, V0, b""]
    refused = (await client.ask(commands.get_or_create_schema(8, PLAIN, STRING))).get_or_create_schema_response
    assert (refused.request_id, refused.error_code) == (8, pb.IncompatibleSchema)


async def test_a_consumers_schema_is_the_first_of_an_untouched_topic(client: WireClient) -> None:
    """Consumers that accept any schema do not count as its users."""
    assert (await consume(client, 1, PLAIN, AUTO)).type == Type.SUCCESS
    assert (await consume(client, 2, PLAIN, avro("a"))).type == Type.SUCCESS
    assert (await get(client, PLAIN)).schema_version == V0
    assert (await consume(client, 3, PLAIN, avro())).type == Type.SUCCESS
    refused = await consume(client, 4, PLAIN, avro("a", "b", required=True))
    assert (refused.type, refused.error.error, refused.error.request_id) == (Type.ERROR, pb.IncompatibleSchema, 204)
    assert (await consume(client, 5, PLAIN, None)).type == Type.SUCCESS
    assert (await get(client, PLAIN)).schema_version == V0


@pytest.mark.parametrize("used_by", ["producer", "consumer", "data"])
async def test_a_topic_in_use_without_a_schema_gets_none_from_a_consumer(
    broker: Rooms, client: WireClient, used_by: str
) -> None:
    """The refused consumer leaves no subscription."""
    if used_by == "consumer":
        await consume(client, 1, PLAIN, None)
    else:
        await produce(client, 1, PLAIN, None)
    if used_by == "data":
        await client.publish(1, 0)
        await client.receive()
        await client.ask(commands.close_producer(1, 5))
    command = commands.subscribe(PLAIN, "mine", 2, 6, sub_type=pb.CommandSubscribe.Shared, schema=STRING)
    refused = await client.ask(command)
    assert (refused.type, refused.error.error) == (Type.ERROR, pb.IncompatibleSchema)
    assert "mine" not in (await broker.topics.get(TopicName.parse(PLAIN))).subscriptions
    assert (await produce(client, 3, PLAIN, STRING)).producer_success.schema_version == V0
    assert (await client.ask(command)).type == Type.SUCCESS


async def test_segments_share_the_schemas_of_their_topic(broker: Rooms, client: WireClient) -> None:
    """This includes the children of a split. The versions are removed with the topic."""
    first, second = await segments(broker, 2)
    assert (await produce(client, 1, first, avro("a"))).producer_success.schema_version == V0
    assert (await produce(client, 2, second, avro("a", "b"))).producer_success.schema_version == V1
    await client.ask(commands.close_producer(1, 5))
    await broker.controller.split(TOPIC, 0)
    child = str(await broker.segment(TOPIC, 2))
    assert (await produce(client, 3, child, avro("a"))).producer_success.schema_version == V0
    assert (await get(client, str(TOPIC))).schema_version == V1
    refused = await consume(client, 1, child, STRING)
    assert (refused.type, refused.error.error) == (Type.ERROR, pb.IncompatibleSchema)
    assert not (await broker.layouts.get(TOPIC)).subscriptions
    client.ignored.add(Type.CLOSE_PRODUCER)
    await broker.controller.delete_topic(TOPIC, force=True)
    await broker.controller.create_topic(TOPIC, 1, {})
    assert (await get(client, str(TOPIC))).error_code == pb.TopicNotFound


async def test_a_consumer_on_an_untouched_segment_of_a_used_topic(broker: Rooms, client: WireClient) -> None:
    """Messages without a schema elsewhere on the topic count."""
    first, second = await segments(broker, 2)
    await produce(client, 1, first, None)
    await client.publish(1, 0)
    await client.receive()
    refused = await consume(client, 1, second, STRING)
    assert (refused.type, refused.error.error) == (Type.ERROR, pb.IncompatibleSchema)


async def test_a_deleted_topic_has_no_schema(broker: Rooms, client: WireClient) -> None:
    client.ignored.add(Type.CLOSE_PRODUCER)
    await produce(client, 1, PLAIN, STRING)
    await broker.topics.delete(TopicName.parse(PLAIN))
    assert (await get(client, PLAIN)).error_code == pb.TopicNotFound
    assert (await produce(client, 2, PLAIN, avro("a"))).producer_success.schema_version == V0
