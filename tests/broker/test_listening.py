"""What a front end gets for a connection: a stream with keep-alive, and two addresses."""

import socket
import struct

import trio
from trio.testing import open_stream_to_socket_listener, wait_all_tasks_blocked

from broker.addresses import Address
from broker.listening import KEEPALIVE_IDLE_SECONDS, USER_TIMEOUT_MS, Accepted, open_listener, serve_clients

LOOPBACK = Address("127.0.0.1", 0)


async def test_clients_are_served_by_a_stream_that_finds_dead_peers(nursery: trio.Nursery) -> None:
    """The kernel probes silent clients, so the broker needs no timer."""
    listener = await open_listener(LOOPBACK, "--pulsar")
    served = trio.Event()

    async def serve(accepted: Accepted) -> None:
        assert accepted.client == Address(*client.socket.getsockname())
        assert accepted.reached == Address(*listener.socket.getsockname())
        options = accepted.stream
        assert isinstance(options, trio.SocketStream)
        assert options.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert options.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == KEEPALIVE_IDLE_SECONDS
        assert options.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == USER_TIMEOUT_MS
        served.set()

    client = await open_stream_to_socket_listener(listener)
    nursery.start_soon(serve_clients, listener, serve)
    async with client:
        await served.wait()
        assert await client.receive_some() == b"", "the stream is closed when `serve` returns"


async def test_a_client_that_has_left_is_not_served(nursery: trio.Nursery) -> None:
    """The client left while the broker was busy, so its socket has no peer any more."""
    listener = await open_listener(LOOPBACK, "--pulsar")
    served: list[Accepted] = []

    async def serve(accepted: Accepted) -> None:
        served.append(accepted)

    client = await open_stream_to_socket_listener(listener)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await client.aclose()
    nursery.start_soon(serve_clients, listener, serve)
    async with await open_stream_to_socket_listener(listener) as other:
        assert await other.receive_some() == b""
    await wait_all_tasks_blocked()
    assert len(served) == 1
