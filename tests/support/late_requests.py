"""A proxy in front of a Kafka broker that withholds one request, and delivers it when its client has long gone on.

    async with open_late_requests() as proxy:
        proxy.endpoint                       # what the broker must advertise
        proxy.serve(str(broker.kafka))
        proxy.withhold(ApiKey.END_TXN)       # the next one
        await proxy.withheld.wait()
        await proxy.deliver()                # now the broker gets it, on its old connection

The client of a withheld request loses its connection, and repeats the request on another one. The broker keeps the old
connection, because what was sent on it is still on its way.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple

import trio

from tests.support.proxy import dial
from tidewire.wire.kafka.api_keys import ApiKey, is_flexible

CHUNK_BYTES: Final = 65536
_GONE: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, EOFError)


class _Late(NamedTuple):
    server: trio.SocketStream
    frame: bytes


class LateRequests:
    """See the module's docstring; made by `open_late_requests`."""

    def __init__(self, port: int) -> None:
        self.endpoint: Final = f"127.0.0.1:{port}"
        self.withheld = trio.Event()
        """Set when a request is withheld."""
        self._server = ""
        self._wanted: ApiKey | None = None
        self._late: _Late | None = None

    def serve(self, server: str) -> None:
        """Pass connections to this broker."""
        self._server = server

    def withhold(self, key: ApiKey) -> None:
        """Withhold the next request of this kind."""
        self._wanted = key
        self.withheld = trio.Event()

    async def deliver(self) -> int:
        """Deliver it. Return the error code in the answer, which stands behind the throttle time."""
        assert self._late is not None, "a request is withheld"
        (server, frame), self._late = self._late, None
        await server.send_all(frame)
        answer = await _frame(server)
        key, version = ApiKey(int.from_bytes(frame[4:6])), int.from_bytes(frame[6:8])
        at = 4 + 4 + is_flexible(key, version) + 4
        await server.aclose()
        return int.from_bytes(answer[at : at + 2], signed=True)

    async def handle(self, client: trio.SocketStream) -> None:
        """Serve one connection."""
        try:
            async with client:
                server = await dial(self._server)
                is_kept = False
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._pass_answers, server, client, nursery.cancel_scope)
                        is_kept = await self._pass_requests(client, server)
                        nursery.cancel_scope.cancel()
                finally:
                    if not is_kept:
                        await trio.aclose_forcefully(server)
        except* _GONE:
            pass  # One of the two ended it.

    async def _pass_requests(self, client: trio.SocketStream, server: trio.SocketStream) -> bool:
        """Pass requests until one is withheld: True."""
        while True:
            frame = await _frame(client)
            if self._wanted is not None and int.from_bytes(frame[4:6]) == self._wanted:
                self._wanted, self._late = None, _Late(server, frame)
                self.withheld.set()
                return True
            await server.send_all(frame)

    @staticmethod
    async def _pass_answers(server: trio.SocketStream, client: trio.SocketStream, scope: trio.CancelScope) -> None:
        with suppress(*_GONE):
            while data := await server.receive_some(CHUNK_BYTES):
                await client.send_all(data)
        scope.cancel()


async def _frame(stream: trio.SocketStream) -> bytes:
    """Receive a request or an answer, with its size before it."""
    data = bytearray()
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4]):
        wanted = 4 - len(data) if len(data) < 4 else 4 + int.from_bytes(data[:4]) - len(data)
        more = await stream.receive_some(wanted)
        if not more:
            raise EOFError("the connection has ended")
        data += more
    return bytes(data)


@asynccontextmanager
async def open_late_requests() -> AsyncIterator[LateRequests]:
    """Run such a proxy on its own port."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        proxy = LateRequests(listener.socket.getsockname()[1])
        nursery.start_soon(trio.serve_listeners, proxy.handle, [listener])
        yield proxy
        nursery.cancel_scope.cancel()
