"""A Pulsar listener in this process, and clients that speak to it frame by frame, over loopback sockets.

async with listening(broker) as listener, connected(listener) as client:
    answer = await client.ask(commands.new_txn(1, 0, 1000))
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import trio
from trio.testing import open_stream_to_socket_listener

from broker.budgets import Budgets
from broker.pulsar.listener import PulsarServices, serve_pulsar
from tests.support.rooms import MESSAGE_BYTES_MAX, Rooms
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.frames import Frame, FrameDecoder, encode_command, encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

ANSWER_SECONDS_MAX = 60


class WireClient:
    """One connection."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.ignored: set[int] = set()
        """Types of commands that `receive` passes over."""
        self._decoder = FrameDecoder()

    @property
    def socket(self) -> trio.SocketStream:
        """The stream, if it is a socket."""
        assert isinstance(self.stream, trio.SocketStream)
        return self.stream

    async def send(self, *sent: pb.BaseCommand) -> None:
        """Send a command in one write."""
        await self.stream.send_all(b"".join(map(encode_command, sent)))

    async def send_payload(self, command: pb.BaseCommand, payload: bytes) -> None:
        """Send a SEND with its payload."""
        await self.stream.send_all(encode_payload_command(command, payload))

    async def receive_frame(self) -> Frame | None:
        """Return the next frame; None if the broker has closed the connection."""
        with trio.fail_after(ANSWER_SECONDS_MAX):
            while True:
                frame = self._decoder.next_frame()
                if frame is not None:
                    return frame
                try:
                    data = await self.stream.receive_some(65536)
                except trio.BrokenResourceError:
                    return None
                if not data:
                    return None
                self._decoder.feed(data)

    async def receive(self) -> pb.BaseCommand:
        """Return the next command; the connection must be open."""
        while True:
            frame = await self.receive_frame()
            assert frame is not None, "the broker has closed the connection"
            if frame.command.type not in self.ignored:
                return frame.command

    async def ask(self, command: pb.BaseCommand) -> pb.BaseCommand:
        """Send a request, and return the next answer."""
        await self.send(command)
        return await self.receive()

    async def receives_nothing_more(self) -> None:
        """Check that the broker sends nothing before the answer to a PING."""
        assert (await self.ask(commands.ping())).type == pb.BaseCommand.PONG

    async def produce(self, producer_id: int, topic: str, name: str | None = None) -> pb.BaseCommand:
        """Open a producer."""
        return await self.ask(commands.producer(topic, producer_id, 1_000 + producer_id, name=name))

    async def publish(
        self, producer_id: int, sequence_id: int, value: bytes = b"value", txn: tuple[int, int] | None = None
    ) -> None:
        """Send one message, without waiting for the answer."""
        await self.send_payload(commands.send(producer_id, sequence_id, txn=txn), message(value))

    async def close(self) -> None:
        """Leave without a command."""
        await self.stream.aclose()


def message(value: bytes = b"value", *, batch_of: int | None = None) -> bytes:
    """Make a payload with one message, or with a batch's metadata."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=batch_of)
    return build_payload(metadata, value)


@asynccontextmanager
async def listening(broker: Rooms, budgets: Budgets | None = None) -> AsyncIterator[trio.SocketListener]:
    """Run the listener that serves the rooms."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    services = PulsarServices.of(broker)
    if budgets is not None:
        services = replace(services, budgets=budgets)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_pulsar, listener, services, lambda reached: reached)
        yield listener
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def connected(
    listener: trio.SocketListener, *, greet: bool = True, version: str = "test"
) -> AsyncIterator[WireClient]:
    """Yield a connection that has sent CONNECT, with the client's version, unless told otherwise."""
    stream = await open_stream_to_socket_listener(listener)
    async with greeted(stream, greet=greet, version=version) as client:
        yield client


@asynccontextmanager
async def greeted(stream: trio.abc.Stream, *, greet: bool = True, version: str = "test") -> AsyncIterator[WireClient]:
    """Yield the same over an open stream."""
    async with stream:
        client = WireClient(stream)
        if greet:
            answer = await client.ask(commands.connect(version))
            assert answer.type == pb.BaseCommand.CONNECTED
            assert answer.connected.max_message_size == MESSAGE_BYTES_MAX
        yield client
