"""A connected consumer as its subscription sees it, and the outlet that delivers entries to it.

A session provides the outlet. The outlet accepts entries without blocking, and says whether it can accept more. The
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
    """How often it was requested again (shared subscriptions; otherwise 0)."""
    ack_bits: tuple[int, ...] | None
    """For a partly acknowledged batch, the `ack_set` of the remaining messages. None: all messages."""


class Outlet(Protocol):
    """The way to one consumer. Its session bounds the waiting bytes by not being writable."""

    @property
    def writable(self) -> bool:
        """Whether more may be sent now. After True, one more `send` of at most a chunk may follow."""

    def send(self, deliveries: Sequence[Delivery]) -> None:
        """Accept the entries, in order. Never blocks and never raises. A closed outlet drops them."""

    def end_of_topic(self) -> None:
        """Tell the consumer that no entry will ever follow. Never blocks and never raises."""

    def active_changed(self, *, is_active: bool) -> None:
        """Tell the consumer whether it is the one that gets everything. Never blocks and never raises."""

    def damaged(self, reason: str) -> None:
        """Tell the consumer that its next entries are damaged. Never blocks and never raises."""

    def disconnected(self) -> None:
        """Tell the consumer that it was disconnected and may subscribe again. Never blocks and never raises."""

    def attach(self, signal: Signal) -> None:
        """Set `signal` whenever `writable` becomes True, until it is detached."""

    def detach(self, signal: Signal) -> None:
        """Undo one `attach` of `signal`."""


class Consumer:
    """One consumer, from subscribing to leaving. Consumers compare by identity, not by id."""

    __slots__ = (
        "_was_told_of_damage",
        "_was_told_of_end",
        "bytes_sent",
        "id",
        "messages_sent",
        "name",
        "outlet",
        "permits",
        "priority",
        "was_disconnected",
    )

    def __init__(self, id: int, name: str, outlet: Outlet, *, priority: int = 0) -> None:  # noqa: A002 - its name in the protocol
        self.id = id
        """The connection's number for it. Other connections may use the same number."""
        self.name = name
        """The user's name for it. Several consumers of a shared subscription may have one name."""
        self.priority = priority
        """Lower numbers are served first (shared subscriptions)."""
        self.outlet = outlet
        self.permits = Permits()
        self._was_told_of_end = False
        self._was_told_of_damage = ""
        self.was_disconnected = False
        """Whether the subscription disconnected it. Its client may not know yet. Its late acknowledgements are stale:
        after a seek they would undo the seek, and after an abort they would cover messages that are about to be
        redelivered."""
        self.messages_sent = 0
        self.bytes_sent = 0

    def send(self, deliveries: Sequence[Delivery], messages: int) -> None:
        """Hand entries over. They have `messages` unacknowledged messages, which use as many permits."""
        self.permits.use(messages)
        self.messages_sent += messages
        self.bytes_sent += sum(len(delivery.entry.payload) for delivery in deliveries)
        self.outlet.send(deliveries)

    def tell_end(self) -> None:
        """Tell it that no entry will ever follow, unless it knows."""
        if not self._was_told_of_end:
            self._was_told_of_end = True
            self.outlet.end_of_topic()

    def tell_damage(self, reason: str) -> None:
        """Tell it that its next entries are damaged, unless it was told the same the last time."""
        if self._was_told_of_damage != reason:
            self._was_told_of_damage = reason
            self.outlet.damaged(reason)

    def __repr__(self) -> str:
        return f"<Consumer {self.name} ({self.id})>"
