"""Entries that a subscription may not send although they are not acknowledged, because open transactions reserve them.

Dispatch does not know transactions (docs/design.md#layers). The broker gives each subscription one of these.
"""

from typing import Protocol

from storage.position import Position


class Withheld(Protocol):
    """The entries withheld from the consumers of one subscription."""

    @property
    def damage(self) -> str | None:
        """Why nothing may be sent: a damaged record hides what is withheld. None if nothing is damaged."""

    def unreserved(self, position: Position) -> int | None:
        """Bit i is 1 if message i of the entry may be sent, so 0 if none may; None if no message is withheld."""

    def forget(self) -> None:
        """Release everything, because the cursor was moved in this very step. It is durable when the move is."""

    async def clear(self) -> None:
        """Release everything and remove its records, because the cursor is durably gone."""


class NothingWithheld:
    """For subscriptions that withhold nothing."""

    damage: str | None = None
    """See `Withheld`."""

    def unreserved(self, position: Position) -> int | None:
        """See `Withheld`."""
        return None

    def forget(self) -> None:
        """See `Withheld`."""

    async def clear(self) -> None:
        """See `Withheld`."""
