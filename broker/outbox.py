"""The send queue of one connection: bytes, with one writer task.

`put` never blocks, so a slow consumer does not delay a dispatcher that serves many. The queue is bounded nevertheless.
Dispatch sends nothing while the outbox is not `writable`. The session reads no commands while it is above the bound
(`wait_writable`), so responses cannot pile up either. All outboxes share a budget. While the budget is short, each has
a smaller bound.
"""

from typing import Final

import trio

from broker.budgets import SHARE_BYTES, SendBudget
from storage.signal import Signal

BYTES_HIGH: Final = 4 * 1024 * 1024
"""Above this, the connection gets no further deliveries, and its commands are not read."""

BYTES_LOW: Final = 1024 * 1024
"""Below this, both continue. The gap avoids waking dispatchers for every frame that is sent."""

WRITE_BYTES_MAX: Final = 256 * 1024
"""Queued frames are joined up to about this size, so small frames share a system call. Larger pieces are not copied."""


class Outbox:
    """Frames on their way to one peer."""

    def __init__(self, budget: SendBudget | None = None) -> None:
        """Make an empty outbox. Its bytes count against `budget`, if one is given."""
        self._budget = SendBudget(BYTES_HIGH) if budget is None else budget
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._wake = Signal()
        self._attached: list[Signal] = []
        self._drained = trio.Event()
        self._above = False
        self._finished = False
        self._is_closed = False

    @property
    def writable(self) -> bool:
        """Whether it takes further deliveries."""
        return not self._above

    def put(self, *pieces: bytes) -> None:
        """Queue a frame, which may be in pieces. Never blocks."""
        if self._is_closed:
            return
        size = sum(map(len, pieces))
        self._pieces += pieces
        self._bytes += size
        self._budget.held_bytes += size
        if not self._above and self._bytes >= (SHARE_BYTES if self._budget.is_short else BYTES_HIGH):
            self._above = True
            self._drained = trio.Event()
        self._wake.set()

    def finish(self) -> None:
        """Let `run` return once everything put so far is sent."""
        self._finished = True
        self._wake.set()

    def close(self) -> None:
        """Drop everything queued, because the connection has ended."""
        self._is_closed = True
        self._budget.held_bytes -= self._bytes
        self._bytes = 0
        self._pieces.clear()

    async def wait_writable(self) -> None:
        """Wait until the peer has read enough of the queue."""
        while self._above:
            await self._drained.wait()

    def attach(self, signal: Signal) -> None:
        """Set `signal` whenever the outbox becomes writable again."""
        self._attached.append(signal)

    def detach(self, signal: Signal) -> None:
        """Undo one `attach`."""
        self._attached.remove(signal)

    async def run(self, stream: trio.abc.SendStream) -> None:
        """Write until cancelled, or until finished and empty.

        Raises:
            trio.BrokenResourceError: the peer is gone.
        """
        while True:
            while self._pieces:
                data = self._take()
                await stream.send_all(data)
                # Only now has the system taken the bytes.
                self._bytes -= len(data)
                self._budget.held_bytes -= len(data)
                self._note_drained()
                # Free the data before waiting for more: it may be a large message, and there may be many clients.
                del data
            if self._finished:
                return
            await self._wake.wait()

    def _take(self) -> bytes:
        size = 0
        count = 0
        for piece in self._pieces:
            if count and len(piece) >= WRITE_BYTES_MAX:
                break
            size += len(piece)
            count += 1
            if size >= WRITE_BYTES_MAX:
                break
        data = self._pieces[0] if count == 1 else b"".join(self._pieces[:count])
        del self._pieces[:count]
        return data

    def _note_drained(self) -> None:
        if self._above and self._bytes <= (SHARE_BYTES if self._budget.is_short else BYTES_LOW):
            self._above = False
            self._drained.set()
            for signal in self._attached:
                signal.set()
