"""Repeated sends, after a lost connection, a restart or a seal. Each is stored once and gets its receipt."""

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.deduplication import sequences
from broker.deduplication.deduplication import Deduplication
from broker.deduplication.sequences import CLOSED_SECONDS
from broker.names import TopicName
from storage.metadata.memory import MemoryStore
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC, Rooms, rooms, visible
from tests.support.wire import WireClient, connected, listening
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.frames import encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from txn.states import EndAction

Type = pb.BaseCommand.Type
PLAIN = "persistent://public/default/plain"


def payload(name: str, sequence_id: int) -> bytes:
    return build_payload(pb.MessageMetadata(producer_name=name, sequence_id=sequence_id, publish_time=1), b"value")


async def send(
    client: WireClient, name: str, sequence_id: int, txn: tuple[int, int] | None = None
) -> pb.CommandSendReceipt:
    command = commands.send(1, sequence_id, txn=txn)
    await client.stream.send_all(encode_payload_command(command, payload(name, sequence_id)))
    answer = await client.receive()
    assert answer.type == Type.SEND_RECEIPT, answer
    assert answer.send_receipt.sequence_id == sequence_id
    return answer.send_receipt


async def returns(client: WireClient, topic: str, name: str) -> pb.BaseCommand:
    """Reconnect, as a client does after its connection was lost."""
    return await client.ask(commands.producer(topic, 1, 9, name=name, epoch=1))


async def one_segment(broker: Rooms) -> str:
    await broker.controller.create_topic(TOPIC, 1, {})
    return str(await broker.segment(TOPIC, 0))


async def stored(broker: Rooms, topic: str) -> int:
    return len(await visible(await broker.topics.get(TopicName.parse(topic))))


async def test_a_send_comes_again_on_another_connection(broker: Rooms, client: WireClient, other: WireClient) -> None:
    """Its receipt has the position of the first copy."""
    name = await one_segment(broker)
    opened = (await client.produce(1, name)).producer_success
    producer = opened.producer_name
    assert opened.last_sequence_id == -1
    places = [(await send(client, producer, number)).message_id for number in range(3)]
    await client.close()
    while (await returns(other, name, producer)).type != Type.PRODUCER_SUCCESS:
        pass
    assert [(await send(other, producer, number)).message_id for number in (1, 2)] == places[1:]
    assert (await send(other, producer, 3)).message_id not in places
    assert await stored(broker, name) == 4


async def test_a_send_comes_again_after_a_restart() -> None:
    """D8: the log shows what was stored; a producer that reopens under its name continues counting after it."""
    metadata, files = MemoryStore(), SimulatedFiles(seed=5)
    async with rooms(metadata, files) as broker, listening(broker) as listener, connected(listener) as client:
        name = await one_segment(broker)
        await client.produce(1, name, "me")
        places = [(await send(client, "me", number)).message_id for number in range(3)]
    files = files.crash()
    async with rooms(metadata, files) as broker, listening(broker) as listener:
        async with connected(listener) as client:
            assert (await returns(client, name, "me")).type == Type.PRODUCER_SUCCESS
            assert (await send(client, "me", 2)).message_id == places[2]
            await send(client, "me", 3)
        async with connected(listener) as client:
            while (answer := await client.produce(1, name, "me")).type != Type.PRODUCER_SUCCESS:
                pass
            assert answer.producer_success.last_sequence_id == 3
        assert await stored(broker, name) == 4


async def test_a_send_that_comes_again_is_answered_when_its_first_copy_is_durable() -> None:
    """Invariant 1 (docs/design.md#invariants): a write in progress is no reason for a receipt."""
    files = SimulatedFiles(seed=5)
    async with rooms(MemoryStore(), files) as broker, listening(broker) as listener, connected(listener) as other:
        name = await one_segment(broker)
        async with connected(listener) as client:
            await client.produce(1, name, "me")
            await send(client, "me", 0)
            files.stop()
            await client.stream.send_all(encode_payload_command(commands.send(1, 1), payload("me", 1)))
            await client.receives_nothing_more()
        while (await returns(other, name, "me")).type != Type.PRODUCER_SUCCESS:
            pass
        await other.stream.send_all(encode_payload_command(commands.send(1, 1), payload("me", 1)))
        await wait_all_tasks_blocked()
        await other.receives_nothing_more()
        files.resume()
        assert (await other.receive()).send_receipt.sequence_id == 1
        assert await stored(broker, name) == 2


async def test_a_send_comes_again_after_the_seal(broker: Rooms, client: WireClient, other: WireClient) -> None:
    """T20: its producer may open once more, learns that the send is stored, and leaves with the unstored ones."""
    name = await one_segment(broker)
    producer = (await client.produce(1, name)).producer_success.producer_name
    place = (await send(client, producer, 0)).message_id
    await client.close()
    await broker.controller.split(TOPIC, 0)
    assert (await returns(other, name, producer)).type == Type.PRODUCER_SUCCESS
    assert (await send(other, producer, 0)).message_id == place
    await other.publish(1, 1)
    refused = await other.receive()
    assert (refused.type, refused.send_error.error) == (Type.SEND_ERROR, pb.TopicTerminatedError)
    assert await stored(broker, name) == 1
    stranger = await other.ask(commands.producer(name, 2, 10, name="stranger", epoch=1))
    assert stranger.error.error == pb.TopicTerminatedError


async def test_a_send_in_a_transaction_comes_again(broker: Rooms, client: WireClient) -> None:
    """It is stored once, whether the transaction is open or decided."""
    name = await one_segment(broker)
    producer = (await client.produce(1, name)).producer_success.producer_name
    opened = (await client.ask(commands.new_txn(1, 0, 60_000))).new_txn_response
    txn = (opened.txnid_most_bits, opened.txnid_least_bits)
    place = (await send(client, producer, 0, txn)).message_id
    assert (await send(client, producer, 0, txn)).message_id == place
    ended = await client.ask(commands.end_txn(2, txn, commit=True))
    assert ended.type == Type.END_TXN_RESPONSE
    assert (await send(client, producer, 0, txn)).message_id == place
    assert await stored(broker, name) == 1


async def test_a_send_that_was_refused_is_new_when_it_comes_again(broker: Rooms, client: WireClient) -> None:
    """This holds behind its successors, too: after a damaged payload a client resends all of them."""
    name = await one_segment(broker)
    producer = (await client.produce(1, name)).producer_success.producer_name
    damaged = bytearray(payload(producer, 0))
    damaged[3] ^= 1
    await client.stream.send_all(encode_payload_command(commands.send(1, 0), bytes(damaged)))
    assert (await client.receive()).send_error.error == pb.ChecksumError
    later = (await send(client, producer, 1)).message_id
    place = (await send(client, producer, 0)).message_id
    assert (await send(client, producer, 1)).message_id == later
    assert place != later
    assert await stored(broker, name) == 2


async def test_persistent_topics_as_the_setting_says(broker: Rooms, client: WireClient) -> None:
    """The setting is off, as in Pulsar: repeats are stored again, and clients may number messages freely."""
    await client.produce(1, PLAIN, "me")
    for _ in range(2):
        await send(client, "me", 0)
    assert await stored(broker, PLAIN) == 2


async def test_persistent_topics_with_deduplication(broker: Rooms, client: WireClient) -> None:
    broker.services = replace(broker.services, deduplicates_persistent=True)
    await client.produce(1, PLAIN, "me")
    assert (await send(client, "me", 0)).message_id == (await send(client, "me", 0)).message_id
    assert await stored(broker, PLAIN) == 1


async def test_a_deleted_topic_remembers_nobody(broker: Rooms, client: WireClient) -> None:
    client.ignored.add(Type.CLOSE_PRODUCER)
    name = await one_segment(broker)
    await client.produce(1, name, "me")
    await send(client, "me", 0)
    await broker.controller.delete_topic(TOPIC, force=True)
    name = await one_segment(broker)
    assert (await client.produce(1, name, "me")).producer_success.last_sequence_id == -1
    await send(client, "me", 0)
    assert await stored(broker, name) == 1


async def memory_of(broker: Rooms, topic: str) -> Deduplication:
    memory = (await broker.topics.get(TopicName.parse(topic))).deduplication
    assert memory is not None
    return memory


@pytest.mark.parametrize("name", [None, "mine"])
@pytest.mark.parametrize("way", ["closed", "closed and gone", "lost"])
async def test_a_producer_without_a_name_of_its_own_is_forgotten_soon_after_it_was_closed(
    autojump_clock: MockClock, broker: Rooms, client: WireClient, other: WireClient, name: str | None, way: str
) -> None:
    """K26: nobody uses that name again, unless its client only lost the connection."""
    topic = await one_segment(broker)
    await other.produce(1, topic, "keeps the topic loaded")
    producer = (await client.produce(1, topic, name)).producer_success.producer_name
    await send(client, producer, 0)
    if way == "closed":
        assert (await client.ask(commands.close_producer(1, 2))).type == Type.SUCCESS
    else:
        if way == "closed and gone":
            await client.send(commands.close_producer(1))
        await client.close()
    await wait_all_tasks_blocked(0.01)
    memory = await memory_of(broker, topic)
    await memory.write_down()
    assert memory.knows(producer)
    await trio.sleep(CLOSED_SECONDS)
    await memory.write_down()
    assert memory.knows(producer) is (name is not None or way == "lost")


async def test_a_client_that_closes_a_producer_to_open_it_again_is_remembered(
    autojump_clock: MockClock, broker: Rooms, client: WireClient
) -> None:
    """K26, D8: the Java client closes a producer whose opening timed out. Then it comes back and resends."""
    topic = await one_segment(broker)
    producer = (await client.produce(1, topic)).producer_success.producer_name
    place = (await send(client, producer, 0)).message_id
    await client.ask(commands.close_producer(1, 2))
    await trio.sleep(CLOSED_SECONDS / 2)
    opened = await client.ask(commands.producer(topic, 1, 9, name=producer, is_generated=True, epoch=1))
    assert opened.type == Type.PRODUCER_SUCCESS
    memory = await memory_of(broker, topic)
    await trio.sleep(CLOSED_SECONDS)
    await memory.write_down()
    assert (await send(client, producer, 0)).message_id == place
    assert await stored(broker, topic) == 1


async def test_a_producer_that_the_topic_has_no_place_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, broker: Rooms, client: WireClient, other: WireClient
) -> None:
    """K26, E8: its sends would be stored twice when they are resent. Its client tries again, and the others go on."""
    monkeypatch.setattr(sequences, "PRODUCERS_MAX", 2)
    topic = await one_segment(broker)
    for number, name in enumerate(("first", "second")):
        assert (await client.produce(number, topic, name)).type == Type.PRODUCER_SUCCESS
    refused = (await other.produce(1, topic, "third")).error
    assert refused.error == pb.ProducerBlockedQuotaExceededError
    assert "Close producers" in refused.message
    await other.receives_nothing_more()
    await send(client, "second", 0)
    await client.ask(commands.close_producer(0, 2))
    assert (await other.produce(1, topic, "third")).type == Type.PRODUCER_SUCCESS
    assert (await other.produce(2, topic, "first")).type == Type.ERROR
    assert (await client.produce(7, topic, "second")).error.error == pb.ProducerBusy


async def test_a_send_in_too_many_open_transactions_is_refused_alone(
    monkeypatch: pytest.MonkeyPatch, broker: Rooms, client: WireClient
) -> None:
    """K26, E8: forgetting another transaction's sends would store their resends twice."""
    monkeypatch.setattr(sequences, "OPEN_OF_PRODUCER_MAX", 1)
    topic = await one_segment(broker)
    await client.produce(1, topic, "me")
    txns = [await broker.coordinator.new_transaction(0, 60_000) for _ in range(2)]
    await send(client, "me", 0, txns[0])
    await client.publish(1, 1, txn=txns[1])
    refused = (await client.receive()).send_error
    assert refused.sequence_id == 1
    assert "Too many open transactions" in refused.message
    await send(client, "me", 2, txns[0])
    await send(client, "me", 3)
    await broker.coordinator.end(txns[0], EndAction.COMMIT)
    await wait_all_tasks_blocked()
    await send(client, "me", 1, txns[1])
    assert await stored(broker, topic) == 3, "and one more in the open transaction"
