"""Bounds on the broker's memory for clients, over all connections: bytes they sent, and bytes they have not read (E9).

One setting bounds both directions; each has half of it. At the bound, connections that hold much wait, and connections
that hold little continue. Every connection may hold SHARE_BYTES in each direction, whatever the others do. So the bound
is exceeded by at most SHARE_BYTES for each connection, and by one larger message for each that has nothing else to
read.

Received bytes count against the bound only if their connection holds more than its share. Otherwise many connections
that each hold little, and so never wait, could block a large frame indefinitely.

A large frame reserves its bytes before they are read, in the order of arrival. Otherwise many connections could each
hold a part of a frame, and none would ever get the rest. Some clients stop in the middle of a frame, or do not read
earlier responses. Such a client is disconnected once others wait for its bytes.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import trio

SHARE_BYTES: Final = 64 * 1024
"""What each connection may hold at any time. A larger frame reserves its bytes before it is read."""

FRAME_SECONDS_MAX: Final = 10
"""How long a client may take to send a large frame once others wait for room."""


@dataclass(eq=False, slots=True)
class _Waiter:
    share: "ReceiveShare"
    size: int
    is_granted: bool = False
    wake: trio.Event = field(default_factory=trio.Event)
    """Set when the bytes are granted, or when there is another frame to watch."""


class ReceiveBudget:
    """Bytes received and not yet handed to a ledger, over all connections."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        """The bound, which small shares may exceed."""
        self._waiting: deque[_Waiter] = deque()
        self.frames: dict[ReceiveShare, float] = {}
        """Shares that reserved a large frame and wait for their clients, with the time of the start; oldest first."""
        self.held_bytes = 0
        """Bytes granted and not released."""
        self._counted_bytes = 0
        """The part of `held_bytes` that connections with more than their share hold. This part is bounded."""

    @property
    def waiting(self) -> int:
        """How many connections wait for room."""
        return len(self._waiting)

    def share(self) -> "ReceiveShare":
        """Return a new connection's share."""
        return ReceiveShare(self)

    async def take(self, share: "ReceiveShare", size: int) -> None:
        """Grant `size` bytes to a connection, at once or when there is room."""
        if self.take_at_once(share, size):
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

    def take_at_once(self, share: "ReceiveShare", size: int) -> bool:
        """Grant `size` bytes to a connection if there is room now, and return whether there was."""
        is_small = share.held_bytes + size <= SHARE_BYTES
        if is_small or (not self._waiting and self._has_room(share, size)):
            self._hold(share, size)
            return True
        return False

    def begin_frame(self, share: "ReceiveShare") -> None:
        """Note that a connection starts to read a frame it has reserved. The first waiter watches that it ends."""
        self.frames[share] = trio.current_time()
        self._wake_first()

    def give(self, share: "ReceiveShare", size: int) -> None:
        """Release `size` bytes of a connection."""
        self._hold(share, -size)
        if self._waiting:
            self._grant_waiting()

    def _hold(self, share: "ReceiveShare", size: int) -> None:
        """Note that a connection holds `size` more bytes."""
        before = share.held_bytes
        held = before + size
        # Bytes within a connection's share do not count, and most sends stay within it.
        if before > SHARE_BYTES or held > SHARE_BYTES:
            self._counted_bytes += _counted(held) - _counted(before)
        self.held_bytes += size
        share.held_bytes = held

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
        # A frame larger than the whole budget is granted when no other connection holds more than its share.
        growth = _counted(share.held_bytes + size) - _counted(share.held_bytes)
        return self._counted_bytes + growth <= self.bytes_max or self._counted_bytes == 0

    def _next_deadline(self) -> float:
        for since in self.frames.values():
            return since + FRAME_SECONDS_MAX
        # No frame is being read, so all held bytes are on their way to the ledgers.
        return float("inf")

    def _disconnect_overdue(self) -> None:
        now = trio.current_time()
        for share, since in tuple(self.frames.items()):
            if since + FRAME_SECONDS_MAX > now:
                return
            del self.frames[share]
            share.disconnect()


class ReceiveShare:
    """The part of the budget that one connection holds."""

    def __init__(self, budget: ReceiveBudget) -> None:
        self._budget = budget
        self._reserved_bytes = 0
        self._is_closed = False
        self.held_bytes = 0
        """Bytes that this connection holds, including reserved bytes."""
        self.receiving = trio.CancelScope()
        """The scope in which the connection waits for its client; `disconnect` cancels it."""
        self.is_overdue = False
        """Whether the client stopped in the middle of a large frame while others wait for its bytes."""

    async def reserve(self, frame_bytes: int) -> None:
        """Reserve the bytes of a large frame whose beginning was read; waits for room. Does nothing for a small one."""
        if frame_bytes <= SHARE_BYTES or self._reserved_bytes:
            return
        await self._budget.take(self, frame_bytes)
        self._reserved_bytes = frame_bytes
        self._budget.begin_frame(self)

    async def take(self, size: int) -> None:
        """Hold `size` bytes. Waits for room, unless they were reserved."""
        if not self.take_at_once(size):
            await self._budget.take(self, size)

    def take_at_once(self, size: int) -> bool:
        """Hold `size` bytes if they were reserved or there is room now, and return whether that was so."""
        if size > self._reserved_bytes:
            return self._budget.take_at_once(self, size)
        self._reserved_bytes -= size
        return True

    def arrived(self) -> None:
        """Note that the frame has been read whole, so it no longer waits for its client."""
        self._budget.frames.pop(self, None)

    def complete(self) -> None:
        """Note that the frame has been handled. Releases the reserved bytes that `take` did not use."""
        if self._reserved_bytes:
            rest, self._reserved_bytes = self._reserved_bytes, 0
            self.give(rest)

    def disconnect(self) -> None:
        """Stop waiting for the client."""
        self.is_overdue = True
        self.receiving.cancel()

    def give(self, size: int) -> None:
        """Release `size` bytes."""
        if not self._is_closed:
            self._budget.give(self, size)

    def close(self) -> None:
        """Release everything, at the end of the connection. Later releases do nothing."""
        self._budget.frames.pop(self, None)
        self.give(self.held_bytes)
        self._is_closed = True


def _counted(held_bytes: int) -> int:
    """Return which part of the bytes that a connection holds is bounded."""
    return held_bytes if held_bytes > SHARE_BYTES else 0


class SendBudget:
    """Bytes that clients have not read yet, over all connections."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        """The bound, which small shares may exceed."""
        self.held_bytes = 0

    @property
    def is_short(self) -> bool:
        """Whether only connections that hold little may add more."""
        return self.held_bytes >= self.bytes_max


class Budgets(NamedTuple):
    """The two budgets of one broker."""

    receiving: ReceiveBudget
    sending: SendBudget
    connections_max: int

    @classmethod
    def of(cls, bytes_max: int, connections_max: int) -> "Budgets":
        """Make the budgets: half of the bytes for each direction."""
        return cls(ReceiveBudget(bytes_max // 2), SendBudget(bytes_max // 2), connections_max)
