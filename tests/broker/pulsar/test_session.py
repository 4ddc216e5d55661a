"""A connection from its first command to its end, over sockets and other streams."""

import gc
import socket
import struct
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, lockstep_stream_pair, wait_all_tasks_blocked

from broker.pulsar.consuming import ConsumerHandler
from broker.pulsar.listener import PulsarServices, open_session
from broker.pulsar.producing import ProducerHandler
from broker.pulsar.registry import Registry
from broker.pulsar.scalable import ScalableHandler
from broker.pulsar.session import GOODBYE_SECONDS, PulsarSession
from broker.pulsar.transactions import TransactionHandler
from broker.pulsar.unsupported import Peer
from tests.support.any_stream import StreamPair, encrypted_pair, plain_pair
from tests.support.reference_counts import collector_stopped
from tests.support.rooms import Rooms
from tests.support.wire import WireClient, connected, greeted
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

TOPIC = "persistent://public/default/t"
KINDS = (PulsarSession, Registry, ProducerHandler, ConsumerHandler, ScalableHandler, TransactionHandler)


async def use(client: WireClient) -> None:
    """Publish a message and receive it."""
    await client.produce(1, TOPIC)
    subscribed = await client.ask(commands.subscribe(TOPIC, "s", 1, 1, sub_type=pb.CommandSubscribe.Shared))
    assert subscribed.type == pb.BaseCommand.SUCCESS
    await client.send(commands.flow(1, 10))
    await client.publish(1, 0)
    assert {(await client.receive()).type for _ in range(2)} == {pb.BaseCommand.SEND_RECEIPT, pb.BaseCommand.MESSAGE}
    await client.receives_nothing_more()


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
async def test_a_connection_that_has_ended_is_freed_at_once(is_reset: bool, listener: trio.SocketListener) -> None:
    """E16: no part of it waits for the garbage collector, which rarely visits old objects."""
    gc.collect()
    with collector_stopped():
        async with connected(listener) as client:
            await use(client)
            freed: list[weakref.ref[Any]] = [weakref.ref(one) for one in gc.get_objects() if isinstance(one, KINDS)]
            assert len(freed) == len(KINDS)
            if is_reset:
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await wait_all_tasks_blocked()
        assert all(ref() is None for ref in freed)


@asynccontextmanager
async def serving(broker: Rooms, stream: trio.abc.Stream) -> AsyncIterator[trio.Event]:
    """Run a session over this stream. The event says that it has ended."""
    ended = trio.Event()

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            services = PulsarServices.of(broker)
            await open_session(stream, Peer("a test"), services, "pulsar://127.0.0.1:6650", nursery).run()
            nursery.cancel_scope.cancel()
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        yield ended
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("pair", [plain_pair, encrypted_pair])
async def test_a_session_serves_any_stream(pair: Callable[[], StreamPair], broker: Rooms) -> None:
    """Only the listener knows sockets, so encryption concerns only the listener."""
    near, far = pair()
    async with serving(broker, near) as ended:
        async with greeted(far) as client:
            await use(client)
        with trio.fail_after(1):
            await ended.wait()


async def test_a_client_that_breaks_the_protocol_over_tls_is_told_so(broker: Rooms) -> None:
    """The stream ends properly, after the error."""
    near, far = encrypted_pair()
    async with serving(broker, near) as ended, greeted(far) as client:
        await client.stream.send_all(bytes(100))
        assert (await client.receive()).type == pb.BaseCommand.ERROR
        assert await client.receive_frame() is None
        await ended.wait()


async def test_a_client_that_hears_no_goodbye_does_not_keep_its_session(
    broker: Rooms, autojump_clock: MockClock
) -> None:
    """E9: closing an encrypted stream takes a write, which blocks if the client has stopped reading."""
    near, far = encrypted_pair(lockstep_stream_pair)
    with trio.fail_after(10 * GOODBYE_SECONDS):
        async with serving(broker, near) as ended, greeted(far) as client:
            began = trio.current_time()
            await client.stream.send_all(bytes(100))
            # It reads the error, and not what ends the stream.
            assert (await client.receive()).type == pb.BaseCommand.ERROR
            await ended.wait()
            assert trio.current_time() - began == GOODBYE_SECONDS
            await trio.aclose_forcefully(far)
