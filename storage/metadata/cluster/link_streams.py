"""One end of a link over any byte stream: frames in, frames out, and how the end of the link is reported.

A reader never waits for a writer and the reverse. So both ends may have much to send at the same time.
"""

from typing import Final

import trio

from storage.errors import ExpectedError
from storage.metadata.cluster.frames import Frame, Frames, encode_frame
from storage.metadata.cluster.messages import Message

RECEIVED_AT_ONCE: Final = 64 * 1024
"""The most bytes that are taken from the stream at once."""

FRAMES_AT_ONCE: Final = 64
"""Frames that are taken before other tasks have a turn. The largest part of a change set takes two milliseconds."""


class LinkLost(ExpectedError):
    """The connection of a link has ended, or its other side is silent. A new link may work."""

    retriable = True


class LinkStream:
    """Frames of one reign over a stream. One task receives, any number send."""

    def __init__(self, stream: trio.abc.Stream, epoch: int) -> None:
        self.epoch = epoch
        """The reign whose frames it sends."""
        self._stream = stream
        self._decoder = Frames()
        self._since_pause = 0
        # First come, first served: a sign of life waits for at most one part of each change set that is under way.
        self._sending = trio.StrictFIFOLock()

    async def receive(self) -> Frame:
        """The next frame.

        Raises:
            LinkLost: the stream has ended.
            LinkError: the bytes are no frame.
        """
        while (frame := self._decoder.next_frame()) is None:
            self._since_pause = 0
            try:
                data = await self._stream.receive_some(RECEIVED_AT_ONCE)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as broken:
                raise LinkLost("the connection broke off") from broken
            if not data:
                raise LinkLost("the other side closed the connection")
            self._decoder.feed(data)
        self._since_pause += 1
        if self._since_pause == FRAMES_AT_ONCE:
            self._since_pause = 0
            await trio.lowlevel.checkpoint()
        return frame

    async def send(self, message: Message) -> None:
        """Send one message behind those that wait already. See `send_bytes`."""
        await self.send_bytes(encode_frame(Frame(self.epoch, message)))

    async def send_bytes(self, frames: bytes) -> None:
        """Send whole frames. If it is cancelled, nothing more may be sent.

        Raises:
            LinkLost: the stream has ended.
        """
        async with self._sending:
            try:
                await self._stream.send_all(frames)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as broken:
                raise LinkLost("the connection broke off") from broken
