"""A connected consumer as its subscription sees it, and the outlet through which it is sent entries.

The outlet is what a session gives: it takes entries without ever blocking and says whether it wants more. The
subscription knows nothing of sockets, and a session nothing of cursors.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dispatch.permits import Permits
from storage.entry import Entry
from storage.signal import Signal


class Delivery(NamedTuple):
    """One entry on its way to a consumer."""

    entry: Entry
    redelivery_count: int
    """How often it was asked for again before (shared subscriptions; else 0)."""
    ack_bits: tuple[int, ...] | None
    """Of a part-acknowledged batch, the `ack_set` of the messages still to be consumed; None: all of them."""


class Outlet(Protocol):
    """The way to one consumer. Its session bounds what waits in it, in bytes, by not being writable."""

    @property
    def writable(self) -> bool:
        """Whether more may be sent now. One more `send` of at most a chunk may follow after it was read as True."""

    def send(self, deliveries: Sequence[Delivery]) -> None:
        """Take the entries, in order. Never blocks and never raises; a closed outlet drops them."""

    def end_of_topic(self) -> None:
        """Tell the consumer that nothing will ever follow. Never blocks and never raises."""

    def active_changed(self, *, is_active: bool) -> None:
        """Tell the consumer whether it is the one that is sent everything. Never blocks and never raises."""

    def damaged(self, reason: str) -> None:
        """Tell the consumer that what it should be sent next is damaged. Never blocks and never raises."""

    def disconnected(self) -> None:
        """Tell the consumer that it was disconnected and may come again. Never blocks and never raises."""

    def attach(self, signal: Signal) -> None:
        """Set `signal` whenever `writable` becomes True, until detached."""

    def detach(self, signal: Signal) -> None:
        """Undo one `attach` of `signal`."""


class Consumer:
    """One consumer, from its subscribing to its leaving. Told from others by identity, not by its id."""

    __slots__ = (
        "bytes_sent",
        "id",
        "messages_sent",
        "name",
        "outlet",
        "permits",
        "priority",
        "was_disconnected",
        "was_told_of_damage",
        "was_told_of_end",
    )

    def __init__(self, id: int, name: str, outlet: Outlet, *, priority: int = 0) -> None:  # noqa: A002 - its name in the protocol
        self.id = id
        """What its connection calls it; other connections may use the same number."""
        self.name = name
        """What its user calls it; several consumers of a shared subscription may have one name."""
        self.priority = priority
        """Lower is served first (shared subscriptions)."""
        self.outlet = outlet
        self.permits = Permits()
        self.was_told_of_end = False
        """Whether `end_of_topic` was called; it is called once."""
        self.was_told_of_damage = ""
        """The damage that `damaged` told of last; it is told once."""
        self.was_disconnected = False
        """Whether the subscription disconnected it. Its client may not know yet, and what it acknowledges is of before:
        after a seek it would undo the seek, after an abort it would take what is about to be sent again."""
        self.messages_sent = 0
        self.bytes_sent = 0

    def send(self, deliveries: Sequence[Delivery], messages: int) -> None:
        """Hand entries over; `messages` of them are to be consumed, which uses as many permits."""
        self.permits.use(messages)
        self.messages_sent += messages
        self.bytes_sent += sum(len(delivery.entry.payload) for delivery in deliveries)
        self.outlet.send(deliveries)

    def __repr__(self) -> str:
        return f"<Consumer {self.name} ({self.id})>"
