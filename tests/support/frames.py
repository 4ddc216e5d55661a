"""Sends Python objects over a stream between a test and its own processes. It must not be used for anything else.

async with trio.open_nursery() as nursery:
    peer = Peer(stream)
    await peer.send(("get", "/a"))
    async for told in peer: ...
"""

import pickle
import struct
from collections.abc import AsyncIterator
from typing import Any, Final

import trio

_LENGTH: Final = struct.Struct(">I")
_CHUNK_BYTES: Final = 256 * 1024


class Peer:
    """Sends and receives objects. Several tasks may send; one may receive. The end of the stream ends the iteration."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        """Set up. It does not close the stream."""
        self._stream = stream
        self._sending = trio.Lock()
        self._received = bytearray()

    async def send(self, told: Any) -> None:
        """Send one object, pickled.

        Raises:
            trio.BrokenResourceError: the other side is gone.
        """
        data = pickle.dumps(told, protocol=pickle.HIGHEST_PROTOCOL)
        # An object must be sent completely or not at all. A send that is cancelled halfway would break the stream.
        async with self._sending:
            with trio.CancelScope(shield=True):
                await self._stream.send_all(_LENGTH.pack(len(data)) + data)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while True:
            head = await self._take(_LENGTH.size)
            data = None if head is None else await self._take(*_LENGTH.unpack(head))
            if data is None:
                return
            yield pickle.loads(data)

    async def _take(self, size: int) -> bytes | None:
        while len(self._received) < size:
            try:
                data = await self._stream.receive_some(_CHUNK_BYTES)
            except trio.BrokenResourceError:
                # A killed process resets the connection, which counts as an end of the stream.
                return None
            if not data:
                return None
            self._received += data
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken
