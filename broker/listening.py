"""Listening sockets, opened before anything else so that a taken address is found out before a file is touched."""

import errno
from typing import Final

import trio

from broker.addresses import Address

BACKLOG: Final = 512


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
