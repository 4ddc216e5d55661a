"""A position that only rises: the hinge between the rooms.

A lower room raises a watermark, for example when the journal confirms entries or a transaction ends. An upper room
waits on the watermark, or attaches its `Signal`. Nothing calls upward and nothing polls
(docs/design.md#the-path-of-a-message). A heap keeps waiters by the position they wait for, so raising costs only for
those that wake.
"""

import heapq
from collections.abc import Callable
from itertools import count

import trio

from storage.errors import fresh
from storage.position import Position
from storage.signal import Bell, Signal


class Watermark:
    """Everything at or below `value` is durable, readable or acknowledged. The owner says which."""

    __slots__ = ("_attached", "_derived", "_failure", "_risen_at", "_tickets", "_value", "_waiting")

    def __init__(self, value: Position) -> None:
        self._value = value
        self._waiting: list[tuple[Position, int, trio.Event]] = []
        self._tickets = count()
        self._attached: list[Signal | Bell] = []
        self._derived: list[tuple[Watermark, Callable[[Position], Position]]] = []
        self._failure: BaseException | None = None
        self._risen_at: float | None = None

    @property
    def value(self) -> Position:
        """The highest position reached. It never goes back."""
        return self._value

    @property
    def risen_at(self) -> float | None:
        """When it last rose, on Trio's clock; None if it never did, or rose where Trio does not run."""
        return self._risen_at

    @property
    def failure(self) -> BaseException | None:
        """Why it never rises again, if its writer failed."""
        return self._failure

    def raise_to(self, position: Position) -> None:
        """Rise to `position` and wake the tasks that waited for it. A lower or equal position has no effect."""
        if position <= self._value:
            return
        self._value = position
        self._risen_at = trio.current_time() if trio.lowlevel.in_trio_run() else None
        while self._waiting and self._waiting[0][0] <= position:
            heapq.heappop(self._waiting)[2].set()
        for signal in self._attached:
            signal.set()
        for watermark, bound in self._derived:
            watermark.raise_to(bound(position))

    def fail(self, cause: BaseException) -> None:
        """Declare that the watermark never rises again. Every waiter, now and later, gets `cause`."""
        self._failure = cause
        for _position, _ticket, event in self._waiting:
            event.set()
        self._waiting.clear()
        for signal in self._attached:
            signal.set()
        for watermark, _bound in self._derived:
            watermark.fail(cause)

    async def wait_for(self, position: Position) -> None:
        """Return once `value >= position`. Raises the cause of the failure if that will never happen."""
        if self._value >= position:
            return
        if self._failure is None:
            event = trio.Event()
            ticket = (position, next(self._tickets), event)
            heapq.heappush(self._waiting, ticket)
            try:
                await event.wait()
            except trio.Cancelled:
                if ticket in self._waiting:
                    self._waiting.remove(ticket)
                    heapq.heapify(self._waiting)
                raise
        if self._value < position:
            assert self._failure is not None, "woken below the position without a failure"
            raise fresh(self._failure)

    def derive(self, bound: Callable[[Position], Position]) -> "Watermark":
        """A second watermark that rises with this one, in the same step, to `bound(this value)`.

        `bound` is a pure view of its owner's state, such as the positions that open transactions hold back. When that
        state changes, the owner also raises the derived watermark.
        """
        derived = Watermark(bound(self._value))
        self._derived.append((derived, bound))
        return derived

    def release(self, derived: "Watermark") -> None:
        """Let a derived watermark rise and fail no more. Its owner, which knows this one, is then freed at once."""
        self._derived = [each for each in self._derived if each[0] is not derived]

    def attach(self, signal: Signal | Bell) -> None:
        """Set `signal` at every rise and at a failure, until it is detached."""
        self._attached.append(signal)

    def detach(self, signal: Signal | Bell) -> None:
        """Undo one `attach` of `signal`."""
        self._attached.remove(signal)
