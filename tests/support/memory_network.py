"""A network in memory: byte streams between two tasks of one program.

    near, far = memory_stream_pair()
    await near.send(b"abc"); await far.receive()         # b"abc", or pieces of it
    await far.aclose()                                   # `near` reads the end, and cannot write any more

The bytes in flight are bounded, as in a socket's buffer. It works under asyncio and Trio, takes no time, and does not
use the operating system. So tests on it are repeatable, and the clock can jump.
"""

from collections.abc import Callable, Mapping
from typing import Any

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

CHUNKS_MAX = 16


class MemoryByteStream(anyio.abc.ByteStream):
    """One end of a connection."""

    def __init__(self, outgoing: MemoryObjectSendStream[bytes], incoming: MemoryObjectReceiveStream[bytes]) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._rest = b""

    async def send(self, item: bytes) -> None:
        """Hand the bytes over. Wait while too many bytes are not received."""
        await self._outgoing.send(bytes(item))

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return the arrived bytes, at most `max_bytes`."""
        if not self._rest:
            self._rest = await self._incoming.receive()
        taken, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return taken

    async def send_eof(self) -> None:
        """Signal the end of this direction."""
        await self._outgoing.aclose()

    async def aclose(self) -> None:
        """End both directions."""
        self._outgoing.close()
        self._incoming.close()
        await anyio.lowlevel.checkpoint()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """There are none, because there is no socket."""
        return {}


def memory_stream_pair() -> tuple[MemoryByteStream, MemoryByteStream]:
    """Return the two ends of a new connection."""
    to_far, at_far = anyio.create_memory_object_stream[bytes](CHUNKS_MAX)
    to_near, at_near = anyio.create_memory_object_stream[bytes](CHUNKS_MAX)
    return MemoryByteStream(to_far, at_near), MemoryByteStream(to_near, at_far)
