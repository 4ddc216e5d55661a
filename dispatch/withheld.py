"""What a subscription may not send although it is not acknowledged: it is spoken for, until somebody decides.

Who speaks for it is not dispatch's to know (docs/design.md#layers): the broker hands each subscription one of these.
"""

from typing import Protocol

from storage.position import Position


class Withheld(Protocol):
    """The entries withheld from the consumers of one subscription."""

    def unreserved(self, position: Position) -> int | None:
        """Bit i is 1 if message i of the entry may be sent, so 0 if none may; None if nothing of it is withheld."""

    def forget(self) -> None:
        """Forget all of it: the cursor has been moved in this very step. Once that is durable so is this."""

    async def clear(self) -> None:
        """Forget all of it, and remove what is on record of it: the cursor is gone, durably."""


class NothingWithheld:
    """For subscriptions that withhold nothing."""

    def unreserved(self, position: Position) -> int | None:
        """See `Withheld`."""
        return None

    def forget(self) -> None:
        """See `Withheld`."""

    async def clear(self) -> None:
        """See `Withheld`."""
