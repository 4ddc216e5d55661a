"""The producers, consumers and layout sessions that one connection is opening. Each may be closed before it is open.

A connection's requests run as tasks. So a CLOSE could overtake its own PRODUCER or SUBSCRIBE and find nothing to close.
The producer or consumer would then open without its client's knowledge. It would hold a name or an exclusive
subscription until the connection ends. So each opening is announced in the order of arrival, before its task runs, and
a CLOSE cancels it. The bound on the number of open objects is also checked in this order, before any work is done.

A request is identified by its command object, because a client may send equal commands twice.
"""

from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import Final, NamedTuple

import trio

from broker.errors import ClosedMeanwhile, NotSupported
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


class _Opening(NamedTuple):
    request: pb.BaseCommand
    scope: trio.CancelScope
    has_place: bool


class PendingOpens:
    """Objects that are being opened, by the client's number for them."""

    def __init__(self, kind: str, places: int, opened: Sized) -> None:
        """Start with nothing being opened.

        Args:
            kind: the kind of object, for error messages.
            places: the most objects that may be open or opening.
            opened: the currently open objects.
        """
        self._kind: Final = kind
        self._places: Final = places
        self._opened: Final = opened
        self._pending: dict[int, _Opening] = {}

    def announce(self, number: int, request: pb.BaseCommand) -> None:
        """Announce that a request to open the object has arrived. The caller must call `opening` once for it."""
        has_place = len(self._opened) + len(self._pending) < self._places
        self._pending.setdefault(number, _Opening(request, trio.CancelScope(), has_place))

    def call_off(self, number: int) -> None:
        """Cancel the opening, if one is in progress, because the client has closed the object."""
        opening = self._pending.pop(number, None)
        if opening is not None:
            opening.scope.cancel()

    @contextmanager
    def opening(self, number: int, request: pb.BaseCommand) -> Iterator[None]:
        """Run the block, which opens the object; `call_off` cancels the block.

        Raises:
            ClosedMeanwhile: it was called off, or another request opens the same object.
            NotSupported: the connection already has the most objects that it may have.
        """
        opening = self._pending.get(number)
        if opening is not None and opening.request is request:
            try:
                if not opening.has_place:
                    raise NotSupported(
                        f"This connection already has {self._places:,} {self._kind}s, its maximum. Close some of them, "
                        "or open another connection."
                    )
                with opening.scope:
                    yield
            finally:
                if self._pending.get(number) is opening:
                    del self._pending[number]
            if not opening.scope.cancelled_caught:
                return
        raise ClosedMeanwhile(f"The client closed {self._kind} {number}, or requested it again, before it was open.")
