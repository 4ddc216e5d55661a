"""Requests for replication between clusters, inside and outside transactions, over the wire and over HTTP."""

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.topic import Topic
from storage.entry import EntryFormat
from storage.metadata.store import starting_with
from storage.position import EARLIEST
from tests.support.rooms import TOPIC, Rooms, visible
from tests.support.wire import WireClient, message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type

REPLICATED = [{"replicated_from": "elsewhere"}, {"replicate_to": ["elsewhere"]}, {"replicate_to": ["__local__", "far"]}]


async def segment(broker: Rooms) -> Topic:
    await broker.controller.create_topic(TOPIC, 1, {})
    return await broker.topics.get(await broker.segment(TOPIC, 0))


async def begin(client: WireClient) -> tuple[int, int]:
    opened = (await client.ask(commands.new_txn(1, 0, 60_000))).new_txn_response
    return opened.txnid_most_bits, opened.txnid_least_bits


async def send(client: WireClient, sequence_id: int, txn: tuple[int, int] | None, **fields: object) -> pb.BaseCommand:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1, **fields)  # type: ignore[arg-type]
    await client.send_payload(commands.send(1, sequence_id, txn=txn), build_payload(metadata, b"value"))
    return await client.receive()


async def records(broker: Rooms) -> int:
    return len(await broker.metadata.scan(*starting_with("/txn/op/")))


@pytest.mark.parametrize("fields", REPLICATED)
async def test_a_replicated_message_is_part_of_no_transaction(
    broker: Rooms, client: WireClient, fields: dict[str, object]
) -> None:
    """T36: it is refused and changes nothing; the transaction continues, and outside one the message is stored."""
    topic = await segment(broker)
    await client.produce(1, str(topic.name))
    txn = await begin(client)
    refused = await send(client, 0, txn, **fields)
    assert (refused.type, refused.send_error.error) == (Type.SEND_ERROR, pb.NotAllowedError)
    assert "does not replicate transactions" in refused.send_error.message
    assert await records(broker) == 0
    assert topic.ledger.next_index == 0
    assert (await send(client, 1, None, **fields)).type == Type.SEND_RECEIPT
    assert (await send(client, 2, txn, replicate_to=["__local__"])).type == Type.SEND_RECEIPT
    assert (await send(client, 3, txn)).type == Type.SEND_RECEIPT
    answer = await client.ask(commands.end_txn(7, txn, commit=True))
    assert not answer.end_txn_response.HasField("error")
    await wait_all_tasks_blocked()
    assert len(await visible(topic)) == 3


async def test_a_message_that_does_not_say_what_it_asks_for_is_part_of_no_transaction(
    broker: Rooms, client: WireClient
) -> None:
    """T36: its metadata cannot be read; the connection and the transaction continue."""
    topic = await segment(broker)
    await client.produce(1, str(topic.name))
    txn = await begin(client)
    await client.send_payload(commands.send(1, 0, txn=txn), b"\0\0\xff\xff")
    assert (await client.receive()).send_error.error == pb.NotAllowedError
    assert topic.ledger.next_index == 0
    assert (await send(client, 1, txn)).type == Type.SEND_RECEIPT


async def test_a_replicated_subscription_acknowledges_in_no_transaction(broker: Rooms, client: WireClient) -> None:
    """T36: its progress would have to count in another cluster, too; it is refused and changes nothing."""
    topic = await segment(broker)
    await topic.ledger.confirmed.wait_for(
        await topic.publish(message(), message_count=1, txn=None, entry_format=EntryFormat.PULSAR)
    )
    subscribe = commands.subscribe(
        str(topic.name), "s", 1, 5, initial_position=pb.CommandSubscribe.InitialPosition.Earliest
    )
    subscribe.subscribe.replicate_subscription_state = True
    assert (await client.ask(subscribe)).type == Type.SUCCESS
    await client.send(commands.flow(1, 10))
    got = (await client.receive()).message.message_id
    txn = await begin(client)
    refused = await client.ask(commands.ack(1, [got], cumulative=True, txn=txn, request_id=7))
    assert refused.ack_response.error == pb.NotAllowedError
    assert "not replicated" in refused.ack_response.message
    assert await records(broker) == 0
    assert topic.subscriptions["s"].cursor.mark_delete == EARLIEST
    taken = await client.ask(commands.ack(1, [got], cumulative=True, request_id=8))
    assert not taken.ack_response.HasField("error")
