"""How a connection's requests reach their handlers: which are served, in which versions, by what.

A handler takes a request that was read, and returns the response. Produce returns a `Later`: its batches have their
places in the log, and the response follows when they are durable. So the next Produce of the connection is handled
meanwhile, and both share a sync. Responses keep the order of the requests (K25).
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, NamedTuple, Protocol

import trio

from tidewire.wire.kafka.api_keys import ApiKey

AT_ONCE: Final = 64
"""Parts of one request that are handled before other tasks have a turn."""


async def take_turns(number: int, at_once: int = AT_ONCE) -> None:
    """Let other tasks run after each `at_once` parts of a request; this is the part of this number, from 0 on.

    A request has as many parts as its client likes, and what is in memory is answered without a wait. Parts whose topic
    is looked up have their turns there (`topics.py`).
    """
    if number % at_once == at_once - 1:
        await trio.lowlevel.checkpoint()


class Later(NamedTuple):
    """A response that is not there yet."""

    wait: Callable[[], Awaitable[Any]]
    """Returns the response; None if the client wants none."""


class ConnectionEnds(Exception):
    """The connection has to end, because its client learns of an error in no other way. The message is for the log."""


class Asked(NamedTuple):
    """What a handler may need of a request besides its fields."""

    version: int
    client_id: str
    while_connected: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """For long waits: in this block, the connection ends when its client leaves. The block must only wait."""


Handle = Callable[[Any, Asked], Awaitable[Any]]
"""Handles a request of this class. Returns the response, a `Later`, or None if the client wants no response."""


class Api(NamedTuple):
    """One kind of request that is served."""

    request: type[Any]
    response: type[Any]
    version_min: int
    version_max: int
    handle: Handle


class Handler(Protocol):
    """Serves some kinds of requests of one connection."""

    @property
    def apis(self) -> Mapping[ApiKey, Api]:
        """What it serves."""
        ...
