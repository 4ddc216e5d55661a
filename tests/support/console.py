"""Serves the console of brokers that a test runs, and reads its streams.

async with served("one") as ((broker, address),), watching(address, "view=topics") as frames:
    assert (await frames.until(lambda parts: parts["total"] == 0))["matched"] == 0

The brokers follow each other, as in a cluster. Frames come without a pause between them.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from broker.addresses import Address
from broker.console.routes import EVENTS, ConsoleServices, routes
from broker.console.settings import settings_view
from broker.http.application import build_application
from broker.http.listener import serve_http
from storage.metadata.memory import MemoryStore
from tests.broker.test_handover import brokers
from tests.support.http import LineReader
from tests.support.rooms import Rooms

Parts = dict[str, Any]

QUIET_SECONDS = 0.1


class EventReader(LineReader):
    """Reads a stream of the console. `parts` is what all frames so far say together."""

    media_type = b"text/event-stream"

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        self.parts: Parts = {}

    async def next(self) -> Parts:
        """Return the parts of the next frame."""
        while not (line := await self.raw_line() or b"").startswith(b"data: "):
            assert line == b"", line
        frame: Parts = json.loads(line.removeprefix(b"data: "))
        self.parts |= frame
        return frame

    async def settle(self) -> None:
        """Read frames until the view has its last one about a cluster that rests.

        The other brokers' streams reach this one over real sockets, so rest is a time without a frame.
        """
        await self.next()
        while True:
            with trio.move_on_after(QUIET_SECONDS) as quiet:
                await self.next()
            if quiet.cancelled_caught:
                await wait_all_tasks_blocked()
                return

    async def until(self, holds: Callable[[Parts], bool]) -> Parts:
        """Read frames until this holds for all parts together, and return them."""
        while not self.parts or not holds(self.parts):
            await self.next()
        return self.parts


@asynccontextmanager
async def watching(server: Address, query: str) -> AsyncIterator[EventReader]:
    """Open a stream of the console, and leave it at the end."""
    async with await trio.open_tcp_stream(server.host, server.port) as stream:
        reader = EventReader(stream)
        await reader.ask(server, f"{EVENTS}?{query}")
        yield reader


def services_of(made: Rooms) -> ConsoleServices:
    """Return what the console of a broker shows."""
    settings = made.foundation.settings
    return ConsoleServices(
        store=made.metadata,
        monitor=made.monitor,
        cluster=made.cluster_administration,
        live=made.live,
        now_ms=made.foundation.now_ms,
        kafka_namespace=settings.kafka_namespace,
        settings=settings_view(settings, "test"),
        pause_seconds=0.0,
    )


@asynccontextmanager
async def served(*names: str) -> AsyncIterator[list[tuple[Rooms, Address]]]:
    """Run brokers that serve the console, to a page and to each other."""
    store = MemoryStore()
    async with brokers(store, *names) as made, trio.open_nursery() as nursery:
        addresses: list[Address] = []
        for each in made:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            application = build_application(
                each.administration,
                each.monitor,
                store,
                each.cluster_administration,
                console=routes(services_of(each)),
            )
            addresses.append(await nursery.start(serve_http, application, listener))
            await each.register(f"http://{addresses[-1]}")
        await wait_all_tasks_blocked()
        yield list(zip(made, addresses, strict=True))
        nursery.cancel_scope.cancel()
