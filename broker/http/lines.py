"""Answers in JSON lines: long lists, and streams of changes that are pushed until the reader leaves.

If an answer fails after it has begun, its last line is `{"failed": REASON}`. A reader that reads nothing for
SEND_SECONDS_MAX (`connection`) is disconnected.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from broker.background import first_of
from storage.metadata.readable import failure_line, pieces
from storage.metadata.store import StoreUnavailable

NextLines = Callable[[], Awaitable[Iterable[bytes]]]
"""Waits for the next change and returns its lines. The first call returns what there is, and does not wait long."""


class Follower(Protocol):
    """Follows records of the metadata store for one stream."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow until cancelled. It reports as started once it knows all existing records."""


@asynccontextmanager
async def running(follower: Follower) -> AsyncIterator[None]:
    """Run a follower while the context is open.

    Raises:
        StoreUnavailable: the store failed before or during the block.
    """
    lost: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(follower.run)
            yield
            nursery.cancel_scope.cancel()
    except* StoreUnavailable as group:
        lost = first_of(group)
    if lost is not None:
        # It is raised outside the nursery, which would wrap it in an exception group.
        raise lost


class Lines(Response):
    """A response of JSON lines."""

    media_type = "application/x-ndjson"

    def __init__(self) -> None:
        super().__init__()
        # The length is not known in advance.
        del self.headers["content-length"]

    async def begin(self, send: Send) -> None:
        """Send the head."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})

    @staticmethod
    async def add(send: Send, lines: Iterable[bytes]) -> None:
        """Send lines, in small pieces so that other tasks can run."""
        for piece in pieces(lines):
            await send({"type": "http.response.body", "body": piece, "more_body": True})

    @staticmethod
    async def end(send: Send) -> None:
        """End the response."""
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class PushedLines(Lines):
    """A stream of changes. It lasts until its reader leaves, the broker stops or the store fails."""

    def __init__(self, source: AbstractAsyncContextManager[NextLines], streams: trio.CapacityLimiter) -> None:
        """Set up; `streams` bounds how many there are at a time. A full one makes the reader wait."""
        super().__init__()
        self._source = source
        self._streams = streams
        self._left = False
        self._waiting: trio.CancelScope | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything; see the class."""
        gone: OSError | None = None
        async with self._streams, trio.open_nursery() as nursery:
            nursery.start_soon(self._notice_leaving, receive)
            try:
                await self._follow(send)
            except OSError as refused:
                gone = refused
            nursery.cancel_scope.cancel()
        # This is raised outside the nursery, which would wrap it in an exception group.
        if gone is not None:
            raise gone

    async def _follow(self, send: Send) -> None:
        await self.begin(send)
        try:
            async with self._source as next_lines:
                lines: Iterable[bytes] | None = await next_lines()
                while lines is not None:
                    await self.add(send, lines)
                    lines = await self._next(next_lines)
        except StoreUnavailable as failure:
            await self.add(send, [self.failure(str(failure))])
        await self.end(send)

    @staticmethod
    def failure(reason: str) -> bytes:
        """Return the last line of a stream that fails."""
        return failure_line(reason)

    async def _next(self, next_lines: NextLines) -> Iterable[bytes] | None:
        if self._left:
            return None
        # When the reader leaves, only this wait is cancelled. A line that is being sent is sent whole, so the stream
        # stays readable.
        with trio.CancelScope() as self._waiting:
            return await next_lines()
        return None

    async def _notice_leaving(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._left = True
        if self._waiting is not None:
            self._waiting.cancel()
