"""Flow credit of one consumer, in messages.

A consumer grants permits as it makes room; each message sent uses one. An entry is sent whole, so the entry that uses
the last permit may take more than there are and leave the count below zero; nothing more is sent until grants have
made up for it.

Pure.
"""

from typing import Final

PERMITS_MAX: Final = 2**31 - 1
"""Permits at once; grants above it are cut. The reference counts them in a signed 32-bit number."""

UNACKED_MESSAGES_PER_CONSUMER_MAX: Final = 50_000
"""Messages one consumer of a shared subscription may hold unacknowledged; then it gets no more until it has fewer."""

UNACKED_MESSAGES_PER_SUBSCRIPTION_MAX: Final = 200_000
"""Messages all consumers of a shared subscription may hold unacknowledged together."""


class Permits:
    """A count of messages that may still be sent."""

    __slots__ = ("_available",)

    def __init__(self) -> None:
        self._available = 0

    @property
    def available(self) -> int:
        """Messages that may be sent; below zero after an entry of more messages than were left."""
        return self._available

    def grant(self, messages: int) -> None:
        """The consumer has room for so many more."""
        assert messages >= 0, "permits are not taken back"
        self._available = min(self._available + messages, PERMITS_MAX)

    def use(self, messages: int) -> None:
        """So many were sent."""
        assert self._available > 0, "nothing is sent without a permit"
        self._available -= messages
