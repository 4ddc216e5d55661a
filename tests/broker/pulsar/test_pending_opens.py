"""Closing an object that is still being opened. The broker runs in this process and loads topics as slowly as told."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.config import load_settings
from broker.errors import ClosedMeanwhile
from broker.main import serve
from broker.pulsar.pending_opens import PendingOpens
from broker.pulsar.requests import request_id_of
from tests.support.processes import FREE_ADDRESSES
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import FrameDecoder, encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

TOPIC = "persistent://public/default/x"
Type = pb.BaseCommand.Type
MakeCommand = Callable[[int, int], pb.BaseCommand]


class Peer:
    """A client that writes its commands in one piece, and reads the answers."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._decoder = FrameDecoder()

    async def send(self, *sent: pb.BaseCommand) -> None:
        await self._stream.send_all(b"".join(encode_command(command) for command in sent))

    async def answers(self, count: int) -> dict[int, pb.BaseCommand]:
        """Return the next answers, by request id."""
        found: dict[int, pb.BaseCommand] = {}
        while len(found) < count:
            while (frame := self._decoder.next_frame()) is None:
                self._decoder.feed(await self._stream.receive_some())
            command = frame.command
            if command.type == Type.CONNECTED:
                continue
            found[request_id_of(command)] = command
        return found


@asynccontextmanager
async def peer(folder: Path) -> AsyncIterator[Peer]:
    settings = load_settings({"data_dir": str(folder / "data"), **FREE_ADDRESSES})
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        ready = await nursery.start(serve, settings, "test", stop)
        async with await trio.open_tcp_stream(ready.pulsar.host, ready.pulsar.port) as stream:
            connected = Peer(stream)
            await connected.send(commands.connect("test"))
            yield connected
        stop.set()


def subscribe(number: int, request_id: int) -> pb.BaseCommand:
    return commands.subscribe(TOPIC, "s", number, request_id)


def produce(number: int, request_id: int) -> pb.BaseCommand:
    return commands.producer(TOPIC, number, request_id, name="p")


@pytest.mark.parametrize(
    ("open_one", "close_one"),
    [(subscribe, commands.close_consumer), (produce, commands.close_producer)],
    ids=["consumer", "producer"],
)
async def test_what_is_closed_before_it_is_open_holds_nothing(
    open_one: MakeCommand, close_one: MakeCommand, tmp_path: Path
) -> None:
    async with peer(tmp_path) as client:
        # Both arrive at once, and the topic has yet to be loaded.
        await client.send(open_one(1, 10), close_one(1, 11))
        answers = await client.answers(2)
        assert answers[10].error.error == pb.ServiceNotReady
        assert answers[11].type == Type.SUCCESS
        # The exclusive subscription, or the producer's name, is free; and so is the number.
        await client.send(open_one(2, 12))
        assert (await client.answers(1))[12].type != Type.ERROR
        await client.send(close_one(2, 13))
        assert (await client.answers(1))[13].type == Type.SUCCESS
        await client.send(open_one(1, 14))
        assert (await client.answers(1))[14].type != Type.ERROR


async def test_a_number_is_given_to_one_request_at_a_time() -> None:
    opens = PendingOpens("consumer", 10, {})
    first, second = subscribe(1, 10), subscribe(1, 10)
    opens.announce(1, first)
    opens.announce(1, second)
    with pytest.raises(ClosedMeanwhile), opens.opening(1, second):
        raise AssertionError("it is not the first")
    with opens.opening(1, first):
        await trio.lowlevel.checkpoint()
    opens.announce(1, second)
    with opens.opening(1, second):
        await trio.lowlevel.checkpoint()


async def test_a_number_called_off_may_be_asked_for_again_at_once() -> None:
    opens = PendingOpens("consumer", 10, {})
    first, second = subscribe(1, 10), subscribe(1, 11)
    opens.announce(1, first)
    opens.call_off(1)
    opens.announce(1, second)
    with pytest.raises(ClosedMeanwhile), opens.opening(1, first):
        raise AssertionError("it was called off")
    with opens.opening(1, second):
        await trio.lowlevel.checkpoint()


async def opened_for_ever(opens: PendingOpens, request: pb.BaseCommand) -> None:
    with pytest.raises(ClosedMeanwhile), opens.opening(1, request):
        await trio.sleep_forever()


async def test_calling_off_ends_what_opens_it() -> None:
    opens = PendingOpens("consumer", 10, {})
    request = subscribe(1, 10)
    opens.announce(1, request)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(opened_for_ever, opens, request)
        await wait_all_tasks_blocked()
        opens.call_off(1)


def test_calling_off_what_is_not_being_opened_does_nothing() -> None:
    PendingOpens("producer", 10, {}).call_off(1)
