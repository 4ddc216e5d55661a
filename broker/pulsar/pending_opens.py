"""What one connection is opening, producers, consumers and layout sessions: it takes a while, and may be closed.

Requests of a connection run as tasks, so a CLOSE that follows its own PRODUCER or SUBSCRIBE could overtake it: it would
find nothing to close, and what was opened a moment later would stay, unknown to its client, holding a name or an
exclusive subscription for as long as the connection lives. So an opening is announced in the order of arrival, before
its task runs, and closing calls it off. Also in that order, one has a place among as many as a connection may have, or
is refused before anything is done for it.

A request is known by its command, the very object: a client may send the same one twice.
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
    """What is being opened, by the client's number for it."""

    def __init__(self, kind: str, places: int, opened: Sized) -> None:
        """Nothing.

        Args:
            kind: says in errors what it would have been.
            places: how many may be open or on their way.
            opened: those that are open, as they come and go.
        """
        self._kind: Final = kind
        self._places: Final = places
        self._opened: Final = opened
        self._pending: dict[int, _Opening] = {}

    def announce(self, number: int, request: pb.BaseCommand) -> None:
        """A request to open it has arrived; `opening` follows, once for each announcement."""
        has_place = len(self._opened) + len(self._pending) < self._places
        self._pending.setdefault(number, _Opening(request, trio.CancelScope(), has_place))

    def call_off(self, number: int) -> None:
        """Its client has closed it: if it is being opened, that ends."""
        opening = self._pending.pop(number, None)
        if opening is not None:
            opening.scope.cancel()

    @contextmanager
    def opening(self, number: int, request: pb.BaseCommand) -> Iterator[None]:
        """Open it inside; cancelled there when it is called off.

        Raises:
            ClosedMeanwhile: it was called off, or another request opens the same.
            NotSupported: there is no place for it.
        """
        opening = self._pending.get(number)
        if opening is not None and opening.request is request:
            try:
                if not opening.has_place:
                    raise NotSupported(f"a connection may have {self._places:,} {self._kind}s")
                with opening.scope:
                    yield
            finally:
                if self._pending.get(number) is opening:
                    del self._pending[number]
            if not opening.scope.cancelled_caught:
                return
        raise ClosedMeanwhile(f"{self._kind} {number} was closed, or asked for again, before it was open")
