"""What goes out over one link: in order, bounded, and without anybody waiting for it.

The committer hands over each durable batch in the step that makes it visible, and goes on. One task of the link sends.
A follower that reads too slowly loses its link, and nobody else notices (M17). It comes back with its place, and gets
what it lacks from the controller's ring, or an image.

    WELCOME, first token | the start: the log behind the follower's place, or an image | batches, answers, tokens

While the start goes out, batches and answers queue behind it. Tokens do not: they go between its parts. So a broker
that is being brought up to date keeps its sessions for as long as it makes progress, and one that makes none loses
them. Behind the start, a token stands behind everything that was pushed before it (C13).

The queue refers to the batches of the controller's ring. So what many links have to send takes the memory once.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from storage.metadata.batches import link_at
from storage.metadata.cluster.frames import Frame, encode_frame
from storage.metadata.cluster.link_streams import LinkStream
from storage.metadata.cluster.messages import Message, PushedBatch, Token
from storage.metadata.log import Appended
from storage.signal import Signal

QUEUED_BYTES_MAX: Final = 8 * 1024 * 1024
"""The most that waits to be sent over a link. Above it, the link ends."""

BEHIND_START_BYTES_MAX: Final = 64 * 1024 * 1024
"""The same while a large image goes out. Otherwise a busy store could never bring another broker up to date."""

SENT_AT_ONCE: Final = 64 * 1024
"""Frames are joined up to this size."""


class Outbox:
    """The frames of one link. Feeds itself from the committer as a `LinkFeed`."""

    def __init__(self, stream: LinkStream, token: Callable[[], int], overflow: Callable[[], None]) -> None:
        self._stream = stream
        self._token = token
        """Notes that a token goes out now, and returns it."""
        self._overflow = overflow
        """Ends the link."""
        self._queue: deque[Appended | bytes] = deque()
        self._bytes = 0
        """What waits in the queue."""
        self._is_catching_up = True
        """Until the start has gone out, and what queued up behind it."""
        self._is_token_due = True
        """A token goes out between two parts of that."""
        self._wake = Signal()

    def batches(self, appended: Appended) -> None:
        """See `LinkFeed.batches`."""
        self._put(appended, len(appended.data))

    def put(self, message: Message) -> None:
        """Queue a message behind everything that was pushed before."""
        frame = encode_frame(Frame(self._stream.epoch, message))
        self._put(frame, len(frame))

    def put_token(self) -> None:
        """Send the next token: behind everything that was pushed before, or between two parts of the start."""
        if self._is_catching_up:
            self._is_token_due = True
        else:
            self.put(Token(self._token()))

    def _put(self, item: Appended | bytes, size: int) -> None:
        self._queue.append(item)
        self._bytes += size
        if self._bytes > (BEHIND_START_BYTES_MAX if self._is_catching_up else QUEUED_BYTES_MAX):
            self._queue.clear()
            self._overflow()
        self._wake.set()

    async def send(self, welcome: Message, start: Iterator[Message]) -> None:
        """Send what is there and what comes, until cancelled.

        Raises:
            LinkLost: the stream has ended.
        """
        await self._stream.send(welcome)
        for message in start:
            await self._send_due_token()
            await self._stream.send(message)
        while self._bytes > QUEUED_BYTES_MAX:
            await self._send_due_token()
            await self._send_next()
        self._is_catching_up = False
        if self._is_token_due:
            self.put_token()
        while True:
            while self._queue:
                await self._send_next()
            await self._wake.wait()

    async def _send_due_token(self) -> None:
        if self._is_token_due:
            self._is_token_due = False
            await self._stream.send(Token(self._token()))

    async def _send_next(self) -> None:
        """Send the front of the queue, as much as is sent at once."""
        frames: list[bytes] = []
        size = taken = 0
        while self._queue and size < SENT_AT_ONCE:
            item = self._queue.popleft()
            if isinstance(item, bytes):
                frames.append(item)
                taken += len(item)
            else:
                frames += (encode_frame(Frame(self._stream.epoch, message)) for message in pushed((item,)))
                taken += len(item.data)
            size = sum(map(len, frames))
        await self._stream.send_bytes(b"".join(frames))
        self._bytes -= taken


def pushed(log: Sequence[Appended]) -> Iterator[PushedBatch]:
    """The batches of the log one by one, each cut when it is asked for."""
    for appended in log:
        data = appended.data
        place = 0
        while place < len(data):
            header = link_at(data, place)
            assert header is not None, "whole batches were appended"
            yield PushedBatch(appended.offset + place, data[place : place + header.size])
            place += header.size
