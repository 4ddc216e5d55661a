"""Repeated sends, after a lost connection, a restart or a seal. Each is stored once and gets its receipt."""

from dataclasses import replace

from trio.testing import wait_all_tasks_blocked

from broker.names import TopicName
from storage.metadata.memory import MemoryStore
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC, Rooms, rooms, visible
from tests.support.wire import WireClient, connected, listening
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.frames import encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

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
