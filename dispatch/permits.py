"""Flow credit of one consumer, in messages.

A consumer grants permits as it makes room. Each sent message uses one. An entry is sent whole, so the entry that uses
the last permit may use more than are left, and the count goes below zero. Nothing more is sent until grants have made
up for it.

Pure.
"""

from typing import Final

PERMITS_MAX: Final = 2**31 - 1
"""The most permits at once. Grants above it are cut. Pulsar counts them in a signed 32-bit number."""

UNACKED_MESSAGES_PER_CONSUMER_MAX: Final = 50_000
"""Unacknowledged messages of one consumer of a shared subscription, above which it gets no more."""

UNACKED_MESSAGES_PER_SUBSCRIPTION_MAX: Final = 200_000
"""Unacknowledged messages of all consumers of a shared subscription together, above which none gets more."""


class Permits:
    """A count of messages that may still be sent."""

    __slots__ = ("_available",)

    def __init__(self) -> None:
        self._available = 0

    @property
    def available(self) -> int:
        """Messages that may be sent. Below zero after an entry with more messages than permits were left."""
        return self._available

    def grant(self, messages: int) -> None:
        """The consumer has room for this many more messages."""
        assert messages >= 0, "permits are not taken back"
        self._available = min(self._available + messages, PERMITS_MAX)

    def use(self, messages: int) -> None:
        """This many messages were sent."""
        assert self._available > 0, "nothing is sent without a permit"
        self._available -= messages
