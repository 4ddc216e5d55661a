"""A TCP proxy in front of a real server, for tests of what a bad network does.

    async with open_proxy("127.0.0.1:2379") as proxy:
        proxy.endpoint                # give this to the client
        proxy.cut()                   # every connection ends, and new ones end at once
        proxy.mute()                  # requests still pass, answers do not
        proxy.mend()                  # back to normal; muted connections are ended

Faults: a connection that ends, an unreachable server, answers that are lost after the request was carried out. The
proxy does not delay or change any byte.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

CHUNK_BYTES = 65536


class Proxy:
    """See the module's docstring; made by `open_proxy`."""

    def __init__(self, server: str, port: int) -> None:
        self.endpoint = f"127.0.0.1:{port}"
        self.serve(server)
        self._connections: set[trio.CancelScope] = set()
        self._is_cut = False
        self._is_muted = False
        self.lost_bytes = 0
        """Of answers that were not passed on."""
        self._lost = trio.Event()

    def serve(self, server: str) -> None:
        """Pass new connections to this server, HOST:PORT, from now on."""
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))

    def cut(self) -> None:
        """Let nobody reach the server."""
        self._is_cut = True
        self._end_all()

    def mute(self) -> None:
        """Discard answers from now on."""
        self._is_muted = True
        self._lost = trio.Event()

    def mend(self) -> None:
        """Let everything pass again, and end muted connections."""
        if self._is_muted:
            self._end_all()
        self._is_cut = self._is_muted = False

    async def answer_lost(self) -> None:
        """Return once an answer was lost since `mute`."""
        await self._lost.wait()

    async def handle(self, client: trio.SocketStream) -> None:
        """Serve one connection."""
        if self._is_cut:
            await client.aclose()
            return
        with trio.CancelScope() as scope:
            self._connections.add(scope)
            try:
                with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                    server = await trio.open_tcp_stream(*self._server)
                    async with client, server, trio.open_nursery() as nursery:
                        nursery.start_soon(self._copy, client, server, False)
                        await self._copy(server, client, True)
                        nursery.cancel_scope.cancel()
            except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # One of the two ended it.
            finally:
                self._connections.discard(scope)

    async def _copy(self, source: trio.SocketStream, target: trio.SocketStream, is_answer: bool) -> None:
        while data := await source.receive_some(CHUNK_BYTES):
            if is_answer and self._is_muted:
                self.lost_bytes += len(data)
                self._lost.set()
            else:
                await target.send_all(data)
        if not is_answer:
            await target.send_eof()

    def _end_all(self) -> None:
        for scope in self._connections:
            scope.cancel()


@asynccontextmanager
async def open_proxy(server: str) -> AsyncIterator[Proxy]:
    """Run a proxy to `server`, HOST:PORT, on its own port."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        proxy = Proxy(server, listener.socket.getsockname()[1])
        nursery.start_soon(trio.serve_listeners, proxy.handle, [listener])
        yield proxy
        nursery.cancel_scope.cancel()
