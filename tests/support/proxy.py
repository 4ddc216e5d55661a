"""A TCP proxy in front of a real server, for tests of what a bad network does.

    async with open_proxy("127.0.0.1:2379") as proxy:
        proxy.endpoint                # give this to the client
        proxy.cut()                   # every connection ends, and new ones end at once
        proxy.mute()                  # requests still pass, answers do not
        proxy.hold()                  # nothing passes, but connections stay open and lose nothing
        proxy.delay(0.2)              # what passes waits
        proxy.half_close()            # the server is told that its clients have ended; they are told nothing
        proxy.mend()                  # back to normal; connections that lost bytes are ended

Faults: a connection that ends, an unreachable server, answers that are lost after the request was carried out, a
network that stands still or is slow, and connections that have ended in one direction alone. The proxy does not change
any byte.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import trio

CHUNK_BYTES = 65536


class Proxy:
    """See the module's docstring; made by `open_proxy`."""

    def __init__(self, server: str, port: int) -> None:
        self.endpoint = f"127.0.0.1:{port}"
        self.server = server
        """Where new connections go."""
        self._connections: set[_Connection] = set()
        self._is_cut = False
        self._is_muted = False
        self._flows = trio.Event()
        """Replaced while the network stands still."""
        self._flows.set()
        self._delay_seconds = 0.0
        self.lost_bytes = 0
        """Of answers that were not passed on."""
        self._lost = trio.Event()

    def serve(self, server: str) -> None:
        """Pass new connections to this server, HOST:PORT, from now on."""
        self.server = server

    def cut(self) -> None:
        """Let nobody reach the server."""
        self._is_cut = True
        for connection in self._connections:
            connection.scope.cancel()

    def mute(self) -> None:
        """Discard answers from now on."""
        self._is_muted = True
        self._lost = trio.Event()

    def hold(self) -> None:
        """Let nothing pass in either direction until `mend`. Nothing is lost."""
        self._flows = trio.Event()

    def delay(self, seconds: float) -> None:
        """Let everything wait this long, in both directions. Less passes then, too."""
        self._delay_seconds = seconds

    def half_close(self) -> None:
        """End every connection that is open now in the direction to the server. New ones are not affected."""
        for connection in self._connections:
            connection.is_half_closed = True
            connection.changed.set()

    def mend(self) -> None:
        """Let everything pass again, and end connections that lost something."""
        for connection in self._connections:
            if self._is_muted or connection.is_half_closed:
                connection.scope.cancel()
        self._is_cut = self._is_muted = False
        self._delay_seconds = 0.0
        self._flows.set()

    async def answer_lost(self) -> None:
        """Return once an answer was lost since `mute`."""
        await self._lost.wait()

    async def handle(self, client: trio.SocketStream) -> None:
        """Serve one connection."""
        if self._is_cut:
            await client.aclose()
            return
        connection = _Connection()
        with connection.scope:
            self._connections.add(connection)
            try:
                with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                    server = await dial(self.server)
                    async with client, server, trio.open_nursery() as nursery:
                        nursery.start_soon(self._pass_requests, connection, client, server)
                        await self._pass_answers(server, client)
                        nursery.cancel_scope.cancel()
            except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # One of the two ended it.
            finally:
                self._connections.discard(connection)

    async def _pass_requests(
        self, connection: "_Connection", client: trio.SocketStream, server: trio.SocketStream
    ) -> None:
        async def copy() -> None:
            while data := await client.receive_some(CHUNK_BYTES):
                await self._wait_turn()
                await server.send_all(data)
            connection.changed.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(copy)
            await connection.changed.wait()
            nursery.cancel_scope.cancel()
        await server.send_eof()
        while connection.is_half_closed and await client.receive_some(CHUNK_BYTES):
            pass  # What the client sends is lost.

    async def _pass_answers(self, server: trio.SocketStream, client: trio.SocketStream) -> None:
        while data := await server.receive_some(CHUNK_BYTES):
            await self._wait_turn()
            if self._is_muted:
                self.lost_bytes += len(data)
                self._lost.set()
            else:
                await client.send_all(data)

    async def _wait_turn(self) -> None:
        if self._delay_seconds:
            await trio.sleep(self._delay_seconds)
        await self._flows.wait()


@dataclass(eq=False, slots=True)
class _Connection:
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_half_closed: bool = False
    changed: trio.Event = field(default_factory=trio.Event)
    """Set when no more requests pass."""


async def dial(address: str) -> trio.SocketStream:
    """Connect to HOST:PORT."""
    host, _, port = address.rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


async def start_proxy(nursery: trio.Nursery, server: str) -> Proxy:
    """Run a proxy to `server`, HOST:PORT, on its own port, in this nursery."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    proxy = Proxy(server, listener.socket.getsockname()[1])
    nursery.start_soon(trio.serve_listeners, proxy.handle, [listener])
    return proxy


@asynccontextmanager
async def open_proxy(server: str) -> AsyncIterator[Proxy]:
    """Run a proxy to `server`, HOST:PORT, on its own port."""
    async with trio.open_nursery() as nursery:
        yield await start_proxy(nursery, server)
        nursery.cancel_scope.cancel()
