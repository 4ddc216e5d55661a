"""A damaged ledger over the wire: its reader gets an error, and all others continue."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from storage.metadata.memory import MemoryStore
from storage.position import Position
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS
from tests.support.rooms import Rooms, rooms
from tests.support.wire import WireClient, connected, listening
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id, position

NAME = "persistent://public/default/plain"
Type = pb.BaseCommand.Type


@asynccontextmanager
async def after_a_flipped_bit(entries: int = 4) -> AsyncIterator[tuple[Rooms, WireClient, WireClient, list[Position]]]:
    """Prepare a topic whose second message was damaged while no broker ran, two connections, and the positions."""
    files, metadata = SimulatedFiles(seed=5), MemoryStore()
    stored: list[Position] = []
    async with rooms(metadata, files) as broker, listening(broker) as listener, connected(listener) as client:
        await client.ask(commands.subscribe(NAME, "behind", 5, 50))
        await client.ask(commands.producer(NAME, 1, 1))
        for number in range(entries):
            await client.publish(1, number, b"message %d" % number)
            stored.append(Position(*position((await client.receive()).send_receipt.message_id)))
    async with rooms(metadata, files):
        pass  # The journal is in the ledger now.
    path = LEDGERS / f"{stored[1].ledger:020}.ledger"
    files.flip(path, files.content(path).index(b"message 1") * 8)
    async with (
        rooms(metadata, files) as broker,
        listening(broker) as listener,
        connected(listener) as client,
        connected(listener) as other,
    ):
        yield broker, client, other, stored


async def values_until_error(client: WireClient) -> tuple[list[Position], pb.CommandError]:
    found: list[Position] = []
    while True:
        command = await client.receive()
        if command.type == Type.ERROR:
            return found, command.error
        found.append(Position(*position(command.message.message_id)))


async def test_the_reader_of_a_damaged_ledger_is_told_and_everybody_else_goes_on() -> None:
    """E10: one error names file, offset and entries; producers, tail readers and the connection continue."""
    async with after_a_flipped_bit() as (_broker, client, other, stored):
        assert (await other.ask(commands.producer(NAME, 1, 1))).type == Type.PRODUCER_SUCCESS
        assert (await other.ask(commands.subscribe(NAME, "tail", 2, 20))).type == Type.SUCCESS
        await other.send(commands.flow(2, 10))
        reader = commands.subscribe(NAME, "r", 7, 70, durable=False, start=message_id(-1, -1))
        assert (await client.ask(reader)).type == Type.SUCCESS
        await client.send(commands.flow(7, 100))
        found, error = await values_until_error(client)
        assert found == stored[:1]
        assert (error.error, error.consumer_id, error.request_id) == (pb.PersistenceError, 7, 2**64 - 1)
        ledger = stored[1].ledger
        assert f"{ledger:020}.ledger is damaged at byte " in error.message
        assert f"entries from {ledger}:1 to " in error.message
        await other.publish(1, 9, b"tail")
        came = {(await other.receive()).type for _ in range(2)}
        assert came == {Type.SEND_RECEIPT, Type.MESSAGE}
        await client.receives_nothing_more()
        await other.receives_nothing_more()


async def test_a_seek_goes_on_behind_the_damage() -> None:
    """E10: a durable subscription continues at the position of the seek, as the error says."""
    async with after_a_flipped_bit() as (_broker, client, _other, stored):
        await client.ask(commands.subscribe(NAME, "behind", 7, 70))
        await client.send(commands.flow(7, 100))
        _found, error = await values_until_error(client)
        last = error.message.rpartition("seek behind ")[2].split()[0]
        ledger, entry = map(int, last.split(":"))
        assert (ledger, entry) >= stored[1]
        client.ignored.add(Type.CLOSE_CONSUMER)
        assert (await client.ask(commands.seek(7, 71, to=message_id(ledger, entry + 1)))).type == Type.SUCCESS
        await client.ask(commands.subscribe(NAME, "behind", 8, 80))
        await client.send(commands.flow(8, 100))
        await client.receives_nothing_more()


async def test_who_subscribes_to_a_topic_that_cannot_be_opened_is_told_the_damage() -> None:
    """E10: the error is permanent, because a client would repeat a retriable request until its time is over."""
    files, metadata = SimulatedFiles(seed=5), MemoryStore()
    async with rooms(metadata, files) as broker, listening(broker) as listener, connected(listener) as client:
        await client.ask(commands.producer(NAME, 1, 1))
        await client.publish(1, 0, b"message")
        ledger = position((await client.receive()).send_receipt.message_id)[0]
    async with rooms(metadata, files):
        pass  # The journal is in the ledger now, whose end is in no record yet.
    files.remove(LEDGERS / f"{ledger:020}.ledger")
    async with rooms(metadata, files) as broker, listening(broker) as listener, connected(listener) as client:
        for ask in (commands.subscribe(NAME, "s", 2, 20), commands.producer(NAME, 3, 30)):
            answer = await client.ask(ask)
            assert answer.type == Type.ERROR
            assert answer.error.error == pb.NotAllowedError
            assert f"{ledger:020}.ledger is damaged at byte 0: the file is missing" in answer.error.message
