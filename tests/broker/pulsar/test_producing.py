"""Producers over the wire: answers in order, closing, splits, lost connections."""

from collections.abc import Sequence

import pytest
import structlog.testing
import trio
from trio.testing import wait_all_tasks_blocked

from broker.names import TopicName
from broker.pulsar import producer_sessions, registry
from storage.entry import TxnId
from storage.errors import Fenced
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Op, Put, PutSequential
from storage.position import Position
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC, Rooms, rooms, visible
from tests.support.steered_store import SteeredStore
from tests.support.wire import WireClient, connected, listening, message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command, encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from txn.headers import txn_name
from txn.ops import KEY_PREFIX

Type = pb.BaseCommand.Type
PLAIN = "persistent://public/default/plain"


async def segment(broker: Rooms, segment_id: int = 0) -> str:
    if segment_id == 0:
        await broker.controller.create_topic(TOPIC, 1, {})
    return str(await broker.segment(TOPIC, segment_id))


async def test_answers_come_in_the_order_of_the_sends(broker: Rooms, client: WireClient) -> None:
    """T11: this includes errors; the sends behind a transaction's first write wait for it."""
    name = await segment(broker)
    await client.produce(1, name)
    opened = (await client.ask(commands.new_txn(1, 0, 60_000))).new_txn_response
    txn = (opened.txnid_most_bits, opened.txnid_least_bits)
    sent = []
    for sequence_id in range(12):
        payload = message()
        if sequence_id % 4 == 1:
            payload = payload[:3] + bytes([payload[3] ^ 1]) + payload[4:]
        command = commands.send(1, sequence_id, txn=txn if sequence_id % 4 == 2 else None)
        sent.append(encode_payload_command(command, payload))
    await client.stream.send_all(b"".join(sent))
    answers = [await client.receive() for _ in range(12)]
    ids = [a.send_receipt.sequence_id if a.type == Type.SEND_RECEIPT else a.send_error.sequence_id for a in answers]
    assert ids == list(range(12))
    assert [a.type == Type.SEND_ERROR for a in answers] == [i % 4 == 1 for i in range(12)]
    positions = [
        Position(a.send_receipt.message_id.ledger_id, a.send_receipt.message_id.entry_id)
        for a in answers
        if a.type == Type.SEND_RECEIPT
    ]
    assert positions == sorted(set(positions))


async def test_a_batch_is_answered_by_its_ids(client: WireClient) -> None:
    """A receipt has both ids, an error the highest one: clients know a failed batch by its last message."""
    await client.produce(1, PLAIN)
    batch = commands.send(1, 10, num_messages=5, highest_sequence_id=14)
    await client.send_payload(batch, message(batch_of=5))
    receipt = (await client.receive()).send_receipt
    assert (receipt.sequence_id, receipt.highest_sequence_id) == (10, 14)
    await client.publish(1, 15)
    receipt = (await client.receive()).send_receipt
    assert (receipt.sequence_id, receipt.HasField("highest_sequence_id")) == (15, False)
    broken = message()
    await client.send_payload(batch, broken[:3] + bytes([broken[3] ^ 1]) + broken[4:])
    assert (await client.receive()).send_error.sequence_id == 14


async def test_a_send_is_answered_once_it_is_durable_and_not_with_those_before() -> None:
    """Two sends wait for their answers, and the disk has synced only the first."""
    files = SimulatedFiles(seed=5)
    async with rooms(MemoryStore(), files) as broker, listening(broker) as listener, connected(listener) as client:
        await client.produce(1, PLAIN)
        files.stop()
        for number in range(2):
            await client.publish(1, number)
            await client.receives_nothing_more()
            await wait_all_tasks_blocked()
        files.before = lambda operation, _path: files.stop() if operation == "sync" else None
        files.resume()
        assert (await client.receive()).send_receipt.sequence_id == 0
        await client.receives_nothing_more()
        files.before = None
        files.resume()
        assert (await client.receive()).send_receipt.sequence_id == 1


async def test_a_name_belongs_to_one_producer(client: WireClient, other: WireClient) -> None:
    """The name is free again when its connection is lost."""
    assert (await client.produce(1, PLAIN, "me")).producer_success.producer_name == "me"
    refused = await other.produce(1, PLAIN, "me")
    assert (refused.type, refused.error.error) == (Type.ERROR, pb.ProducerBusy)
    given = {(await other.produce(number, PLAIN)).producer_success.producer_name for number in (2, 3, 4)}
    assert len(given) == 3
    again = await client.ask(commands.producer(PLAIN, 1, 9))
    assert (again.type, again.error.error) == (Type.ERROR, pb.NotAllowedError)
    await client.close()
    await wait_all_tasks_blocked()
    assert (await other.produce(1, PLAIN, "me")).type == Type.PRODUCER_SUCCESS


async def test_producers_of_kinds_that_are_not_served(client: WireClient) -> None:
    command = commands.producer(PLAIN, 1, 5)
    command.producer.producer_access_mode = pb.Exclusive
    answer = await client.ask(command)
    assert (answer.type, answer.error.error, answer.error.request_id) == (Type.ERROR, pb.NotAllowedError, 5)


async def test_closing_a_producer_answers_its_sends_first(broker: Rooms, client: WireClient) -> None:
    """T20: at the answer to CLOSE_PRODUCER, a client fails its unanswered sends, and with them the transaction."""
    await client.produce(1, PLAIN)
    sends = [encode_payload_command(commands.send(1, number), message()) for number in range(20)]
    await client.stream.send_all(b"".join(sends) + encode_command(commands.close_producer(1, 77)))
    answers = [await client.receive() for _ in range(21)]
    assert [a.send_receipt.sequence_id for a in answers[:20]] == list(range(20))
    assert (answers[20].type, answers[20].success.request_id) == (Type.SUCCESS, 77)
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    assert len(topic.clients.producers) == 0
    assert (await client.produce(1, PLAIN)).type == Type.PRODUCER_SUCCESS


async def test_closing_a_producer_waits_for_the_send_that_is_being_published() -> None:
    """T20: its op record takes a while, and meanwhile all other commands are answered."""
    store = SteeredStore()
    async with rooms(store, SimulatedFiles(seed=5)) as broker, listening(broker) as listener:
        name = await segment(broker)
        async with connected(listener) as client:
            await client.produce(1, name)
            opened = [(await client.ask(commands.new_txn(i, 0, 60_000))).new_txn_response for i in range(2)]
            txns = [(answer.txnid_most_bits, answer.txnid_least_bits) for answer in opened]
            go_on = {KEY_PREFIX + txn_name(TxnId(*txn)): trio.Event() for txn in txns}

            async def hold(ops: Sequence[Op]) -> None:
                for op in ops:
                    if isinstance(op, PutSequential) and op.prefix in go_on:
                        await go_on[op.prefix].wait()

            store.before = hold
            for number, txn in enumerate(txns):
                await client.publish(1, number, txn=txn)
            await client.send(commands.close_producer(1, 77))
            await client.receives_nothing_more()
            first, second = go_on.values()
            first.set()
            assert (await client.receive()).send_receipt.sequence_id == 0
            await client.receives_nothing_more()
            second.set()
            assert (await client.receive()).send_receipt.sequence_id == 1
            assert (await client.receive()).success.request_id == 77


async def test_sends_under_way_at_a_split_are_taken(broker: Rooms, client: WireClient) -> None:
    """T20: the client learns of the children first, and leaves after its last send, so no send fails."""
    name = await segment(broker)
    await broker.control()
    await client.ask(commands.scalable_topic_lookup(5, str(TOPIC)))
    await client.produce(1, name)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.controller.split, TOPIC, 0)
        assert (await client.receive()).scalable_topic_update.dag.epoch == 1
        await client.publish(1, 0)
        await client.publish(1, 1)
        await client.send(commands.close_producer(1, 77))
        answers = [await client.receive() for _ in range(3)]
        assert [a.type for a in answers] == [Type.SEND_RECEIPT, Type.SEND_RECEIPT, Type.SUCCESS]
    parent = await broker.topics.get(TopicName.parse(name))
    assert parent.ledger.is_sealed
    assert len(await visible(parent)) == 2
    refused = await client.produce(2, name)
    assert (refused.type, refused.error.error) == (Type.ERROR, pb.TopicTerminatedError)


async def test_a_producer_that_does_not_leave_is_sent_away_behind_the_seal(
    broker: Rooms, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T20: the update precedes CLOSE_PRODUCER on the wire; a later send is dropped, and its client resends it."""
    monkeypatch.setattr("broker.scalable.segment_owner.LEAVING_SECONDS_MAX", 0)
    name = await segment(broker)
    await broker.control()
    first = await client.ask(commands.scalable_topic_lookup(5, str(TOPIC)))
    assert first.scalable_topic_update.dag.epoch == 0
    await client.produce(1, name)
    await broker.controller.split(TOPIC, 0)
    update, closed = await client.receive(), await client.receive()
    assert (update.type, update.scalable_topic_update.dag.epoch) == (Type.SCALABLE_TOPIC_UPDATE, 1)
    assert (closed.type, closed.close_producer.producer_id) == (Type.CLOSE_PRODUCER, 1)
    await client.publish(1, 5)
    await client.receives_nothing_more()


async def test_sends_that_meet_the_seal_are_refused_behind_the_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """T20: they wait while the parent is being sealed; then they are refused in order, and the producer is closed."""
    monkeypatch.setattr("broker.scalable.segment_owner.LEAVING_SECONDS_MAX", 0)
    store = SteeredStore()
    async with rooms(store, SimulatedFiles(seed=5)) as broker, listening(broker) as listener:
        name = await segment(broker)
        await broker.control()
        async with connected(listener) as client, trio.open_nursery() as nursery:
            await client.ask(commands.scalable_topic_lookup(5, str(TOPIC)))
            await client.produce(1, name)
            parent = await broker.topics.get(TopicName.parse(name))
            go_on = trio.Event()

            async def hold(ops: Sequence[Op]) -> None:
                if any(isinstance(op, Put) and b'"sealed":true' in op.value for op in ops):
                    await go_on.wait()

            store.before = hold
            nursery.start_soon(broker.controller.split, TOPIC, 0)
            assert (await client.receive()).type == Type.SCALABLE_TOPIC_UPDATE
            await wait_all_tasks_blocked()
            await client.publish(1, 0)
            await client.publish(1, 1)
            await client.receives_nothing_more()
            go_on.set()
            answers = [await client.receive() for _ in range(3)]
            assert [a.type for a in answers] == [Type.SEND_ERROR, Type.SEND_ERROR, Type.CLOSE_PRODUCER]
            assert [a.send_error.sequence_id for a in answers[:2]] == [0, 1]
            assert {a.send_error.error for a in answers[:2]} == {pb.TopicTerminatedError}
            assert await visible(parent) == []


async def test_a_topic_that_closes_under_a_full_producer_leaves_the_connection_alive(
    broker: Rooms, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sends that wait for room are dropped with their producer, and the connection is read again."""
    monkeypatch.setattr(producer_sessions, "INBOX_BYTES_MAX", 1000)
    name = await segment(broker)
    await client.produce(1, name)
    (topic,) = broker.topics
    await topic.ledger.seal()
    for number in range(6):
        await client.publish(1, number, b"x" * 600)
    await wait_all_tasks_blocked()
    topic.clients.send_away()
    await client.send(commands.ping())
    closed, pong = await client.receive(), await client.receive()
    assert (closed.type, pong.type) == (Type.CLOSE_PRODUCER, Type.PONG)


async def test_a_ledger_that_ends_sends_its_producers_away() -> None:
    """C2: another broker has taken over. The client looks up again, and the log has no traceback of its connection."""
    files = SimulatedFiles(seed=5)
    async with rooms(MemoryStore(), files) as broker, listening(broker) as listener, connected(listener) as client:
        with structlog.testing.capture_logs() as logs:
            await client.produce(1, PLAIN)
            topic = await broker.topics.get(TopicName.parse(PLAIN))
            files.stop()
            await client.publish(1, 0)
            await client.receives_nothing_more()
            topic.ledger.confirmed.fail(Fenced("another process took over the journal"))
            await client.send(commands.ping())
            # The connection learns of the end beside its own reading.
            answers = [await client.receive(), await client.receive()]
            assert {answer.type for answer in answers} == {Type.CLOSE_PRODUCER, Type.PONG}
        assert not [line for line in logs if line["log_level"] == "error"]
        files.resume()


async def test_a_failure_of_one_producer_ends_its_connection_alone(
    broker: Rooms, client: WireClient, other: WireClient
) -> None:
    """A defect on one connection must not end the broker."""
    await client.produce(1, PLAIN)
    await other.produce(2, PLAIN)
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    (first, _second) = topic.clients.producers
    first._publish = None  # type: ignore[attr-defined]
    await client.publish(1, 0)
    assert await client.receive_frame() is None
    await other.publish(2, 0)
    assert (await other.receive()).type == Type.SEND_RECEIPT
    assert len(topic.clients.producers) == 1


async def test_closed_producers_are_not_remembered_for_ever(
    broker: Rooms, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sends to a producer that the broker has just closed are dropped; the memory of old producers is bounded."""
    monkeypatch.setattr(registry, "CLOSED_PRODUCERS_MAX", 2)
    for producer_id in (1, 2, 3):
        await client.produce(producer_id, PLAIN)
    await broker.topics.unload(TopicName.parse(PLAIN))
    closed = [(await client.receive()).close_producer.producer_id for _ in range(3)]
    for producer_id in closed:
        await client.publish(producer_id, 0)
    refused = (await client.receive()).send_error
    assert refused.producer_id == closed[0]
    await client.receives_nothing_more()
    assert (await client.produce(closed[1], "topic://public/default/none")).type == Type.ERROR
    await client.publish(closed[1], 0)
    assert (await client.receive()).send_error.producer_id == closed[1]
