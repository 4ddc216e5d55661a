"""What clients may make the broker hold, over all connections: bytes they sent, and bytes that wait for them (E9).

One setting bounds both, each direction has half of it. At the bound those who hold much wait, and those who hold little
go on: every connection may hold SHARE_BYTES in each direction, whatever the others do. So the bound is exceeded by at
most that for every connection, and by one larger message for each that has nothing else to read.

Of what clients sent, only that of connections which hold more than their share counts against the bound. Otherwise many
connections that each hold little, and so never wait, could keep a large frame waiting without end.

A large frame reserves its bytes before they are read, in the order of arrival. Otherwise many connections could each
hold a part of one, and none of them would ever get the rest. A client that stops in the middle of its frame, or does
not read the answers before it, is disconnected once others wait for its bytes.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import trio

SHARE_BYTES: Final = 64 * 1024
"""What each connection may hold at any time. A frame that is larger reserves its bytes before it is read."""

FRAME_SECONDS_MAX: Final = 10
"""How long a client may take over a large frame once others wait for room."""


@dataclass(eq=False, slots=True)
class _Waiter:
    share: "ReceiveShare"
    size: int
    is_granted: bool = False
    wake: trio.Event = field(default_factory=trio.Event)
    """Set when it is granted, or when there is another frame to watch."""


class ReceiveBudget:
    """Bytes received and not handed to a ledger yet, over all connections."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: deque[_Waiter] = deque()
        self.frames: dict[ReceiveShare, float] = {}
        """Who reserved a large frame and waits for its client, and since when; the earliest first."""
        self.held_bytes = 0
        """Granted and not given back."""
        self._counted_bytes = 0
        """What of that is held by connections with more than their share. This is bounded."""

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._waiting)

    def share(self) -> "ReceiveShare":
        """A connection's part."""
        return ReceiveShare(self)

    async def take(self, share: "ReceiveShare", size: int) -> None:
        """Grant a connection so many bytes, at once or when there is room."""
        is_small = share.held_bytes + size <= SHARE_BYTES
        if is_small or (not self._waiting and self._has_room(share, size)):
            self._hold(share, size)
            return
        waiter = _Waiter(share, size)
        self._waiting.append(waiter)
        try:
            while not waiter.is_granted:
                waiter.wake = trio.Event()
                with trio.move_on_at(self._next_deadline()):
                    await waiter.wake.wait()
                if not waiter.is_granted:
                    self._disconnect_overdue()
        except trio.Cancelled:
            if waiter.is_granted:
                share.give(size)
            else:
                self._waiting.remove(waiter)
                self._grant_waiting()
            raise

    def begin_frame(self, share: "ReceiveShare") -> None:
        """A connection reads a frame that it has reserved; whoever waits first watches that it ends."""
        self.frames[share] = trio.current_time()
        self._wake_first()

    def give(self, share: "ReceiveShare", size: int) -> None:
        """Take so many bytes back."""
        self._hold(share, -size)
        self._grant_waiting()

    def _hold(self, share: "ReceiveShare", size: int) -> None:
        """Note that a connection holds so many bytes more."""
        self._counted_bytes += _counted_growth(share, size)
        self.held_bytes += size
        share.held_bytes += size

    def _grant_waiting(self) -> None:
        while self._waiting and self._has_room(self._waiting[0].share, self._waiting[0].size):
            waiter = self._waiting.popleft()
            self._hold(waiter.share, waiter.size)
            waiter.is_granted = True
            waiter.wake.set()
        self._wake_first()

    def _wake_first(self) -> None:
        if self._waiting:
            self._waiting[0].wake.set()

    def _has_room(self, share: "ReceiveShare", size: int) -> bool:
        # What is larger than the whole budget goes when nobody else holds more than a share.
        return self._counted_bytes + _counted_growth(share, size) <= self._bytes_max or self._counted_bytes == 0

    def _next_deadline(self) -> float:
        for since in self.frames.values():
            return since + FRAME_SECONDS_MAX
        # Nobody is in the middle of a frame: what is held is on its way to the ledgers.
        return float("inf")

    def _disconnect_overdue(self) -> None:
        now = trio.current_time()
        for share, since in tuple(self.frames.items()):
            if since + FRAME_SECONDS_MAX > now:
                return
            del self.frames[share]
            share.disconnect()


class ReceiveShare:
    """What one connection holds of the budget."""

    def __init__(self, budget: ReceiveBudget) -> None:
        self._budget = budget
        self._reserved_bytes = 0
        self._is_closed = False
        self.held_bytes = 0
        """What this connection holds, the reserved bytes too."""
        self.receiving = trio.CancelScope()
        """The scope in which the connection waits for its client now; `disconnect` cancels it."""
        self.is_overdue = False
        """Whether the client stopped in the middle of a large frame while others wait for its bytes."""

    async def reserve(self, frame_bytes: int) -> None:
        """Wait for the bytes of a large frame, of which the beginning was read; nothing to do for a small one."""
        if frame_bytes <= SHARE_BYTES or self._reserved_bytes:
            return
        await self._budget.take(self, frame_bytes)
        self._reserved_bytes = frame_bytes
        self._budget.begin_frame(self)

    async def take(self, size: int) -> None:
        """Hold so many bytes; waits for room, unless they were reserved."""
        if size > self._reserved_bytes:
            await self._budget.take(self, size)
        else:
            self._reserved_bytes -= size

    def arrived(self) -> None:
        """The frame is complete, and what it waits for from now on is not its client."""
        self._budget.frames.pop(self, None)

    def complete(self) -> None:
        """The frame has been handled: what `take` left of the bytes that were reserved for it is given back."""
        if self._reserved_bytes:
            rest, self._reserved_bytes = self._reserved_bytes, 0
            self.give(rest)

    def disconnect(self) -> None:
        """Wait for the client no more."""
        self.is_overdue = True
        self.receiving.cancel()

    def give(self, size: int) -> None:
        """Hold so many bytes no more."""
        if not self._is_closed:
            self._budget.give(self, size)

    def close(self) -> None:
        """The connection has ended: give everything back, and nothing after that."""
        self._budget.frames.pop(self, None)
        self.give(self.held_bytes)
        self._is_closed = True


def _counted_growth(share: ReceiveShare, size: int) -> int:
    """By how much what counts grows if the connection holds so many bytes more."""
    return _counted(share.held_bytes + size) - _counted(share.held_bytes)


def _counted(held_bytes: int) -> int:
    return held_bytes if held_bytes > SHARE_BYTES else 0


class SendBudget:
    """Bytes that wait for their clients to read them, over all connections."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.held_bytes = 0

    @property
    def is_short(self) -> bool:
        """Whether only those may add something who hold little."""
        return self.held_bytes >= self._bytes_max


class Budgets(NamedTuple):
    """Those of one broker."""

    receiving: ReceiveBudget
    sending: SendBudget
    connections_max: int

    @classmethod
    def of(cls, bytes_max: int, connections_max: int) -> "Budgets":
        """Half of the bytes for each direction."""
        return cls(ReceiveBudget(bytes_max // 2), SendBudget(bytes_max // 2), connections_max)
