"""Unsupported requests are refused by name."""

from collections.abc import Callable

import pytest
import trio

from broker.names import TopicName
from tests.broker.pulsar.test_consuming import PLAIN, fill, frame_of, subscribe
from tests.support.rooms import TOPIC, Rooms
from tests.support.wire import WireClient, connected, message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id

Type = pb.BaseCommand.Type

CREDENTIALS: list[dict[str, object]] = [
    {"auth_method_name": "token", "auth_data": b"a.b.c"},
    {"auth_method_name": "token"},
    {"auth_data": b"a.b.c"},
    {"auth_method": pb.AuthMethodAthens},
    {"original_principal": "somebody"},
    {"original_auth_data": "a.b.c"},
]
NONE: list[dict[str, object]] = [
    {},
    {"auth_method_name": "none", "auth_data": b""},
    {"auth_method_name": "", "auth_method": pb.AuthMethodNone, "original_principal": ""},
    {"proxy_to_broker_url": "pulsar://elsewhere:6650"},
]


def connect(version: str, fields: dict[str, object]) -> pb.BaseCommand:
    content = pb.CommandConnect(client_version=version, protocol_version=21, **fields)  # type: ignore[arg-type]
    return pb.BaseCommand(type=Type.CONNECT, connect=content)


@pytest.mark.parametrize("fields", CREDENTIALS)
async def test_credentials_are_refused(listener: trio.SocketListener, fields: dict[str, object]) -> None:
    """E20: otherwise clients would believe that they count."""
    async with connected(listener, greet=False) as client:
        refused = await client.ask(connect("Pulsar-Java-v5.0.0", fields))
        assert (refused.type, refused.error.error) == (Type.ERROR, pb.AuthenticationError)
        assert "does not check credentials" in refused.error.message
        assert await client.receive_frame() is None


@pytest.mark.parametrize("fields", NONE)
async def test_whoever_brings_none_is_served(listener: trio.SocketListener, fields: dict[str, object]) -> None:
    async with connected(listener, greet=False) as client:
        assert (await client.ask(connect("any", fields))).type == Type.CONNECTED


async def test_a_client_that_cannot_hear_it_at_connect_hears_it_at_each_request(
    listener: trio.SocketListener, broker: Rooms
) -> None:
    """E20: the C++ client takes an ERROR at CONNECT for a lost connection, and retries until its time-out."""
    async with connected(listener, greet=False) as client:
        assert (await client.ask(connect("Pulsar-CPP-v4.2.0", CREDENTIALS[0]))).type == Type.CONNECTED
        looked_up = await client.ask(commands.lookup(PLAIN, 1))
        assert looked_up.lookup_topic_response.error == pb.AuthenticationError
        produced = await client.produce(1, PLAIN)
        assert (produced.type, produced.error.error) == (Type.ERROR, pb.AuthenticationError)
        await client.send(commands.flow(1, 1))
        assert (await client.receive()).error.error == pb.AuthenticationError
        await client.receives_nothing_more()
        assert list(broker.topics) == []


async def test_a_lookup_for_somebody_else_is_refused(client: WireClient) -> None:
    """E20: an authenticating proxy names its client, but this broker cannot know that client's permissions."""
    lookup = commands.lookup(PLAIN, 1)
    lookup.lookup_topic.original_principal = "somebody"
    assert (await client.ask(lookup)).lookup_topic_response.error == pb.AuthenticationError
    partitions = commands.partitioned_metadata(PLAIN, 2)
    partitions.partition_metadata.original_auth_data = "a.b.c"
    assert (await client.ask(partitions)).partition_metadata_response.error == pb.AuthenticationError


async def test_v4_transactions_are_refused_where_their_client_looks_first(client: WireClient) -> None:
    """E20: it says at zero partitions that no coordinator is there yet."""
    ask = commands.partitioned_metadata("persistent://pulsar/system/transaction_coordinator_assign", 2)
    answer = (await client.ask(ask)).partition_metadata_response
    assert (answer.response, answer.error) == (pb.CommandPartitionedTopicMetadataResponse.Failed, pb.NotAllowedError)
    assert "transactions of v4 clients" in answer.message


@pytest.mark.parametrize(("version", "code"), [("any", pb.InvalidTopicName), ("Pulsar-CPP-v4.2.0", pb.NotAllowedError)])
async def test_an_illegal_name_ends_the_lookup(
    listener: trio.SocketListener, version: str, code: pb.ServerError
) -> None:
    """E20: at any other code the client would look it up again."""
    async with connected(listener, greet=False) as client:
        await client.ask(connect(version, {}))
        partitions = (await client.ask(commands.partitioned_metadata("a/b/c/d", 1))).partition_metadata_response
        assert (partitions.error, "cluster" in partitions.message) == (code, True)
        assert (await client.ask(commands.lookup("a/b/c/d", 2))).lookup_topic_response.error == code


async def test_a_named_listener_is_refused(client: WireClient) -> None:
    """E20: the client might not be able to reach another address."""
    lookup = commands.lookup(PLAIN, 1)
    lookup.lookup_topic.advertised_listener_name = "internal"
    answer = (await client.ask(lookup)).lookup_topic_response
    assert (answer.response, answer.error) == (answer.Failed, pb.NotAllowedError)
    assert "no listener named internal" in answer.message


def payload(**fields: object) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields)  # type: ignore[arg-type]
    return build_payload(metadata, b"value")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"deliver_at_time": 2**62}, "delayed delivery"),
        ({"deliver_at_time": 0, "properties": [pb.KeyValue(key="a", value="b")]}, "delayed delivery"),
        ({"marker_type": pb.TXN_COMMIT}, "markers"),
    ],
)
@pytest.mark.parametrize("scalable", [False, True])
@pytest.mark.parametrize(("version", "code"), [("any", pb.NotAllowedError), ("Pulsar-CPP-v4.2.0", pb.ChecksumError)])
async def test_a_message_that_is_not_to_be_delivered_now_is_refused(
    broker: Rooms,
    listener: trio.SocketListener,
    fields: dict[str, object],
    words: str,
    scalable: bool,
    version: str,
    code: pb.ServerError,
) -> None:
    """E20: at this code the client fails only this send; the producer's other sends are stored."""
    name = PLAIN
    if scalable:
        await broker.controller.create_topic(TOPIC, 1, {})
        name = str(await broker.segment(TOPIC, 0))
    topic = await broker.topics.get(TopicName.parse(name))
    async with connected(listener, greet=False) as client:
        await client.ask(connect(version, {}))
        await client.produce(1, name)
        await client.send_payload(commands.send(1, 0), payload(**fields))
        refused = await client.receive()
        assert (refused.type, refused.send_error.error, refused.send_error.sequence_id) == (Type.SEND_ERROR, code, 0)
        assert words in refused.send_error.message
        assert topic.ledger.next_index == 0
        await client.send_payload(commands.send(1, 1), payload())
        assert (await client.receive()).type == Type.SEND_RECEIPT


async def test_bytes_that_only_look_like_a_delivery_time_are_taken(client: WireClient) -> None:
    await client.produce(1, PLAIN)
    looks = payload(properties=[pb.KeyValue(key="\x18\x01", value="x")], ordering_key=b"\x98\x01\xa0\x01")
    await client.send_payload(commands.send(1, 0), looks)
    assert (await client.receive()).type == Type.SEND_RECEIPT
    marked = commands.send(1, 1)
    marked.send.marker = True
    await client.send_payload(marked, message())
    assert "markers" in (await client.receive()).send_error.message


@pytest.mark.parametrize("mode", [pb.Exclusive, pb.WaitForExclusive, pb.ExclusiveWithFencing])
async def test_access_modes_are_refused_by_name(client: WireClient, mode: pb.ProducerAccessMode) -> None:
    """E20: otherwise a producer would wrongly believe that it has exclusive access."""
    command = commands.producer(PLAIN, 1, 5)
    command.producer.producer_access_mode = mode
    refused = await client.ask(command)
    assert (refused.type, refused.error.error, refused.error.request_id) == (Type.ERROR, pb.NotAllowedError, 5)
    assert pb.ProducerAccessMode.Name(mode) in refused.error.message


async def test_a_producers_initial_subscription_is_made(broker: Rooms, client: WireClient) -> None:
    """E20: it gets everything from the first message on; on a scalable topic it is refused."""
    await fill(broker, 1)
    command = commands.producer(PLAIN, 1, 5)
    command.producer.initial_subscription_name = "kept"
    assert (await client.ask(command)).type == Type.PRODUCER_SUCCESS
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    assert topic.subscriptions["kept"].backlog_entries == 1
    await broker.controller.create_topic(TOPIC, 1, {})
    command.producer.producer_id, command.producer.topic = 2, str(await broker.segment(TOPIC, 0))
    assert "cannot create subscription " in (await client.ask(command)).error.message


Asked = Callable[[pb.CommandSubscribe], None]


def _properties(request: pb.CommandSubscribe) -> None:
    request.subscription_properties.add(key="a", value="b")


def _rollback(request: pb.CommandSubscribe) -> None:
    request.start_message_rollback_duration_sec = 60


@pytest.mark.parametrize(("change", "words"), [(_properties, "support properties"), (_rollback, "seek to the time")])
async def test_what_subscriptions_do_not_keep_is_refused(
    broker: Rooms, client: WireClient, change: Asked, words: str
) -> None:
    """E20: nothing is created."""
    command = commands.subscribe(PLAIN, "s", 1, 5)
    change(command.subscribe)
    refused = await client.ask(command)
    assert (refused.type, refused.error.error) == (Type.ERROR, pb.NotAllowedError)
    assert words in refused.error.message
    assert list(broker.topics) == []


async def test_an_acknowledgement_with_properties_is_refused(broker: Rooms, client: WireClient) -> None:
    """E20: it acknowledges nothing."""
    await fill(broker, 1)
    await subscribe(client)
    await client.send(commands.flow(1, 10))
    held = (await frame_of(client)).command.message.message_id
    ack = commands.ack(1, [held], request_id=3)
    ack.ack.properties.add(key="a", value=1)
    assert (await client.ask(ack)).ack_response.error == pb.NotAllowedError
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    assert topic.subscriptions["s"].backlog_entries == 1


async def test_statistics_of_a_consumer_are_refused_where_its_client_looks(broker: Rooms, client: WireClient) -> None:
    """E20: the C++ client ignores an ERROR for them."""
    await fill(broker, 1)
    await subscribe(client)
    refused = await client.ask(commands.consumer_stats(1, 9))
    assert (refused.type, refused.consumer_stats_response.request_id) == (Type.CONSUMER_STATS_RESPONSE, 9)
    assert refused.consumer_stats_response.error_code == pb.NotAllowedError


async def test_a_reader_may_ask_to_read_compacted(broker: Rooms, client: WireClient) -> None:
    """E20: no topic is compacted, so compaction would leave everything; table views always request it."""
    payloads = await fill(broker, 2)
    command = commands.subscribe(PLAIN, "r", 1, 5, durable=False, start=message_id(-1, -1))
    command.subscribe.read_compacted = True
    assert (await client.ask(command)).type == Type.SUCCESS
    await client.send(commands.flow(1, 10))
    assert [(await frame_of(client)).payload for _ in payloads] == payloads
