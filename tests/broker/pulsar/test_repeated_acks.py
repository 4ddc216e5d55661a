"""Acknowledgements in transactions after a lost connection: what the consumer gets, and what it may repeat."""

import gc

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.pulsar.acknowledging import Acknowledging
from storage.entry import EntryFormat
from storage.metadata.memory import MemoryStore
from storage.position import Position
from tests.broker.pulsar.test_acks_in_transactions import SHARED, Scene, Type, acknowledge, messages, scene
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC, Rooms, rooms
from tests.support.wire import WireClient, connected, listening, message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import position

KINDS = [SHARED, pb.CommandSubscribe.Exclusive]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_consumer_that_reconnects_is_not_sent_what_it_acknowledged(
    broker: Rooms, client: WireClient, other: WireClient, kind: pb.CommandSubscribe.SubType
) -> None:
    """E5: its transaction is open; acknowledging an older copy is a conflict, whatever the request's number is."""
    stage = await scene(broker)
    await stage.subscribe(client, sub_type=kind, name="me")
    ids = await messages(client, 4)
    txn = await stage.begin(client)
    assert not (await acknowledge(client, [ids[1]], txn)).HasField("error")
    await client.close()
    await wait_all_tasks_blocked()
    await stage.subscribe(other, sub_type=kind, name="me")
    assert await messages(other, 3) == [ids[0], *ids[2:]]
    await other.receives_nothing_more()
    answer = await other.ask(commands.ack(1, [ids[1]], txn=txn, request_id=8))
    assert answer.ack_response.error == pb.TransactionConflict
    await stage.end(other, txn, commit=True)
    cursor = stage.topic.subscriptions["s"].cursor
    assert [cursor.is_acknowledged(Position(*position(at))) for at in ids] == [False, True, False, False]


@pytest.mark.parametrize("name", ["me", None])
async def test_a_command_whose_answer_was_lost_is_repeated(
    broker: Rooms, client: WireClient, other: WireClient, name: str | None
) -> None:
    """E5: a consumer of the same name repeats it on a new connection, with its number; nameless consumers cannot."""
    stage = await scene(broker)
    await stage.subscribe(client, sub_type=SHARED, name=name)
    ids = await messages(client, 4)
    txn = await stage.begin(client)
    assert not (await acknowledge(client, ids[:2], txn)).HasField("error")
    assert (await acknowledge(client, ids[:2], txn)).error == pb.TransactionConflict, "it was answered here"
    await client.close()
    await stage.subscribe(other, sub_type=SHARED, name=name, permits=0)
    answer = await acknowledge(other, ids[:2], txn)
    assert answer.HasField("error") is (name is None)
    assert (await acknowledge(other, ids[:1], txn)).error == pb.TransactionConflict
    assert await stage.op_records() == 1


async def test_a_pending_command_keeps_no_lost_connection_in_memory(broker: Rooms, client: WireClient) -> None:
    """E5, E9: clients that come and go during a long transaction leave only their op records."""
    stage = await scene(broker)
    await stage.subscribe(client, sub_type=SHARED, name="me")
    ids = await messages(client, 4)
    txn = await stage.begin(client)
    assert not (await acknowledge(client, ids[:2], txn)).HasField("error")
    await client.close()
    await wait_all_tasks_blocked(0.01)
    gc.collect()
    assert not [held for held in gc.get_objects() if type(held) is Acknowledging]
    assert await stage.op_records() == 1


async def test_a_command_is_repeated_after_a_restart() -> None:
    """E5: its op record identifies it."""
    metadata, files = MemoryStore(), SimulatedFiles(seed=5)
    async with rooms(metadata, files) as broker, listening(broker) as listener, connected(listener) as client:
        stage = await scene(broker)
        await stage.subscribe(client, sub_type=SHARED, name="me")
        ids = await messages(client, 4)
        txn = await stage.begin(client)
        assert not (await acknowledge(client, ids[:2], txn)).HasField("error")
    files = files.crash()
    async with rooms(metadata, files) as broker, listening(broker) as listener, connected(listener) as client:
        name = await broker.segment(TOPIC, 0)
        stage = Scene(broker, str(name), await broker.topics.get(name))
        await stage.subscribe(client, sub_type=SHARED, name="me")
        assert await messages(client, 2) == ids[2:]
        assert not (await acknowledge(client, ids[:2], txn)).HasField("error")
        answer = await client.ask(commands.ack(1, ids[:2], txn=txn, request_id=8))
        assert answer.ack_response.error == pb.TransactionConflict
        assert await stage.op_records() == 1
        await stage.end(client, txn, commit=True)
        await client.receives_nothing_more()


async def test_a_part_of_a_batch_that_is_pending_does_not_come_again(
    broker: Rooms, client: WireClient, other: WireClient
) -> None:
    """E5: the reconnected consumer learns which messages of the batch are left."""
    stage = await scene(broker, 0)
    topic = stage.topic
    batch = await topic.publish(message(batch_of=3), message_count=3, txn=None, entry_format=EntryFormat.PULSAR)
    await topic.ledger.confirmed.wait_for(batch)
    await stage.subscribe(client, sub_type=SHARED, name="me")
    (at,) = await messages(client, 1)
    txn = await stage.begin(client)
    first = pb.MessageIdData(ledger_id=at.ledger_id, entry_id=at.entry_id, ack_set=[0b110], batch_size=3)
    assert not (await acknowledge(client, [first], txn)).HasField("error")
    await client.close()
    await stage.subscribe(other, sub_type=SHARED, name="me")
    command = await other.receive()
    assert (command.type, list(command.message.ack_set)) == (Type.MESSAGE, [0b110])
    answer = await other.ask(commands.ack(1, [first], txn=txn, request_id=8))
    assert answer.ack_response.error == pb.TransactionConflict
    assert not (await acknowledge(other, [first], txn)).HasField("error"), "the repeat of the command itself"
