"""Listening sockets, and the only code that knows that a client's stream is a socket.

They are opened before anything else, so that a taken address is found out before a file is touched. What a front end
gets of a connection is a stream and two addresses. So a stream that encrypts is put in here, and nowhere else.
"""

import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import trio

from broker.addresses import Address

BACKLOG: Final = 512

KEEPALIVE_IDLE_SECONDS: Final = 30
KEEPALIVE_INTERVAL_SECONDS: Final = 10
KEEPALIVE_PROBES: Final = 3
USER_TIMEOUT_MS: Final = 60_000
"""How long sent bytes may stay unacknowledged before the peer counts as dead (TCP_USER_TIMEOUT)."""


class ListenerError(Exception):
    """The address cannot be listened on; the message says which and what to do."""


async def open_listener(address: Address) -> trio.SocketListener:
    """A listening socket; port 0 takes a free one.

    Raises:
        ListenerError: the address is taken or not one of this machine.
    """
    try:
        listeners = await trio.open_tcp_listeners(address.port, host=address.host, backlog=BACKLOG)
    except OSError as error:
        if _errno(error) == errno.EADDRINUSE:
            raise ListenerError(
                f"{address} is taken by another process: stop it, or choose another port (0 takes a free one)."
            ) from error
        raise ListenerError(f"Cannot listen on {address}: {error}.") from error
    first, *others = listeners
    # A host name may stand for several addresses; clients are told one, so one is served.
    for other in others:
        await other.aclose()
    return first


class Accepted(NamedTuple):
    """A client's connection, as a front end serves it."""

    stream: trio.abc.Stream
    client: Address
    """The client's end."""
    reached: Address
    """Our end: the address by which the client reached the broker."""


async def serve_clients(
    listener: trio.SocketListener,
    serve: Callable[[Accepted], Awaitable[None]],
    *,
    handler_nursery: trio.Nursery | None = None,
) -> None:
    """Run `serve` for every connection until cancelled, and close its stream when that returns.

    Args:
        listener: an open socket, of which this takes possession.
        serve: what it raises goes through the nursery.
        handler_nursery: where `serve` runs, if connections are to outlive this call.
    """

    async def handle(stream: trio.SocketStream) -> None:
        _keep_alive(stream)
        try:
            client, reached = stream.socket.getpeername(), stream.socket.getsockname()
        except OSError:
            # The client has left already.
            return
        await serve(Accepted(stream, Address(*client[:2]), Address(*reached[:2])))

    await trio.serve_listeners(handle, [listener], handler_nursery=handler_nursery)


def _keep_alive(stream: trio.SocketStream) -> None:
    """Let the kernel find dead peers, so that no timer of ours has to (docs/design.md#dispatch)."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_SECONDS)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


def _errno(error: BaseException | None) -> int | None:
    """The errno of an error or of what caused it; Trio wraps that of a failed bind."""
    while error is not None:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif isinstance(error, OSError) and error.errno is not None:
            return error.errno
        else:
            error = error.__cause__
    return None
