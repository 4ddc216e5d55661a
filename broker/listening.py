"""Listening sockets, and the only code that knows that an accepted client's stream is a socket.

The sockets are opened before anything else, so an address in use is reported before any file is touched. A front end
gets only a stream and two addresses for each connection. So TLS would wrap the stream here.
"""

import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import trio

from broker.addresses import NO_LISTENER, Address
from broker.errors import StartError

BACKLOG: Final = 512

KEEPALIVE_IDLE_SECONDS: Final = 30
KEEPALIVE_INTERVAL_SECONDS: Final = 10
KEEPALIVE_PROBES: Final = 3
USER_TIMEOUT_MS: Final = 60_000
"""How long sent bytes may stay unacknowledged before the kernel treats the peer as dead (TCP_USER_TIMEOUT)."""


class ListenerError(StartError):
    """The broker cannot listen on an address; the message names it and says what to do."""


async def open_listener(address: Address, setting: str, *, is_optional: bool = False) -> trio.SocketListener:
    """Open a listening socket; port 0 takes a free port.

    Args:
        address: where to listen.
        setting: the flag that gave the address, for the operator.
        is_optional: whether the broker can do without this listener.

    Raises:
        ListenerError: the address is in use, or it does not belong to this machine.
    """
    try:
        listeners = await trio.open_tcp_listeners(address.port, host=address.host, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            without = f" {setting} {NO_LISTENER} leaves this listener out." if is_optional else ""
            raise ListenerError(
                f"Another process already listens on {address}. Stop it, or choose another port with {setting} "
                f"(0 takes a free one).{without}"
            ) from error
        reason = "this machine has no such address" if error.errno == errno.EADDRNOTAVAIL else error.strerror or error
        raise ListenerError(f"Cannot listen on {address}: {reason}. Choose another address with {setting}.") from error
    first, *others = listeners
    # A host name may resolve to several addresses. Clients are told one, so only one is served.
    for other in others:
        await other.aclose()
    return first


def adopt_listener(descriptor: int) -> trio.SocketListener:
    """Take over a listening socket that this process has inherited. Several processes may accept on it."""
    return trio.SocketListener(trio.socket.from_stdlib_socket(socket.socket(fileno=descriptor)))


class Accepted(NamedTuple):
    """A client's connection, for a front end to serve."""

    stream: trio.abc.Stream
    client: Address
    """The client's address."""
    reached: Address
    """The broker's address that the client connected to."""


async def serve_clients(
    listener: trio.SocketListener,
    serve: Callable[[Accepted], Awaitable[None]],
    *,
    handler_nursery: trio.Nursery | None = None,
) -> None:
    """Run `serve` for every connection until cancelled. Close the connection's stream when `serve` returns.

    Args:
        listener: an open socket; this function closes it.
        serve: serves one connection; its errors reach the nursery.
        handler_nursery: where `serve` runs, if connections are to outlive this call.
    """

    async def handle(stream: trio.SocketStream) -> None:
        _keep_alive(stream)
        try:
            client, reached = stream.socket.getpeername(), stream.socket.getsockname()
        except OSError:
            # The client has already disconnected.
            return
        await serve(Accepted(stream, Address(*client[:2]), Address(*reached[:2])))

    await trio.serve_listeners(handle, [listener], handler_nursery=handler_nursery)


def _keep_alive(stream: trio.SocketStream) -> None:
    """Let the kernel detect dead peers, so the broker needs no timers for it (docs/design.md#dispatch)."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_SECONDS)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
