"""What every cursor does: acknowledge in memory, say how far that is durable, and end with a reason.

`storage.cursor` has the two kinds of cursor. They share this class because a subscription uses either kind in the same
way.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Protocol

from storage.cursor_record import STORED_MAX
from storage.errors import ExpectedError
from storage.position import EARLIEST, LATEST, Position
from storage.ranges import Acknowledged, bits_within
from storage.watermark import Watermark


class CursorError(ExpectedError):
    """The cursor has ended. The class says whether an unconfirmed last write may have been made."""


class CursorLost(CursorError):
    """Another owner has the claim or the record. Reopen the cursor at the owner of the claim."""

    retriable = True


class CursorFailed(CursorError):
    """The metadata store did not confirm the last write, which may have been made."""

    retriable = True
    definite = False


class CursorRefused(CursorError):
    """The metadata store refuses the cursor's record, for example because it is too large."""


class CursorClosed(CursorError):
    """The cursor was closed, or its writer task was cancelled, perhaps during a write."""

    retriable = True
    definite = False


class CursorDeleted(CursorError):
    """The cursor was deleted. A cursor of the same name that is opened later is another one."""


class CursorMoved(Exception):
    """`seek` moved the cursor, so the watermark that was waited on has ended. Wait on the new watermark."""


class CursorLedger(Protocol):
    """The part of its managed ledger that a cursor needs."""

    @property
    def name(self) -> str:
        """The ledger's name, part of the record's key."""

    @property
    def last_position(self) -> Position:
        """The last entry appended, or the place before the first."""

    def next_after(self, position: Position) -> Position:
        """The next position above `position` that exists or will exist.

        Above the end of a sealed ledger, any higher position.
        """


def placed(start: Position, ledger: CursorLedger) -> Position:
    """A mark-delete position at `start`, but not above the last entry appended.

    An entry that does not exist yet is not acknowledged.
    """
    return min(start, ledger.last_position)


class BaseCursor(ABC):
    """What durable and non-durable cursors share: acknowledgements in memory, and how far they are durable."""

    is_durable: ClassVar[bool]
    """Whether its progress outlives the process."""

    def __init__(self, name: str, ledger: CursorLedger, acknowledged: Acknowledged) -> None:
        self.name = name
        self._ledger = ledger
        self._acknowledged = acknowledged
        self._durable = Watermark(acknowledged.mark_delete)

    @property
    def mark_delete(self) -> Position:
        """Everything at or below it is acknowledged, in memory. It only goes back by `seek`."""
        return self._acknowledged.mark_delete

    @property
    def durable(self) -> Watermark:
        """The mark-delete position that is on disk. For a non-durable cursor, the same as `mark_delete`.

        `seek` begins a new watermark, because a watermark never goes back. The old one then fails with `CursorMoved`.
        When the cursor ends, the watermark fails with a `CursorError`.
        """
        return self._durable

    @property
    def is_deleted(self) -> bool:
        """Whether it was deleted. The deletion is durable."""
        return isinstance(self._durable.failure, CursorDeleted)

    @property
    def highest(self) -> Position:
        """No entry above this position is acknowledged, not even in part."""
        return self._acknowledged.highest

    @property
    def is_full(self) -> bool:
        """Whether so much is acknowledged out of order that no more would fit the record. Fill holes first."""
        return self._acknowledged.size >= STORED_MAX

    @property
    def entries_above(self) -> int:
        """How many entries above the mark-delete position are acknowledged."""
        return self._acknowledged.ranges.entries

    @property
    def acknowledged_above(self) -> Iterable[tuple[Position, Position]]:
        """The acknowledged ranges above the mark-delete position, in order: first and last position of each."""
        return self._acknowledged.ranges

    def is_acknowledged(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged, in memory."""
        return self._acknowledged.is_acknowledged(position)

    def remaining_bits(self, position: Position) -> int | None:
        """For a partly acknowledged batch, bit i is 1 if message i is not acknowledged. None for other entries."""
        return self._acknowledged.remaining_bits(position)

    def first_unacknowledged(self) -> Position:
        """The lowest position that is not wholly acknowledged. It exists or will exist."""
        return self.next_unacknowledged(EARLIEST)

    def next_unacknowledged(self, position: Position) -> Position:
        """The lowest position above `position` that is not wholly acknowledged. It exists or will exist."""
        return self._acknowledged.next_unacknowledged(position)

    def acknowledge(self, position: Position) -> bool:
        """Acknowledge one entry.

        Returns False only if too much is acknowledged out of order to remember it (`RANGES_MAX`).
        """
        if self._acknowledged.is_acknowledged(position):
            return True
        taken = self._acknowledged.acknowledge(position)
        self._changed()
        return taken

    def acknowledge_batch(self, position: Position, remaining_bits: int, batch_size: int = 0) -> bool:
        """Acknowledge the messages of a batch whose bit is 0. If `batch_size` is known, bits above it do not count."""
        remaining_bits = bits_within(remaining_bits, batch_size)
        if self._acknowledged.is_acknowledged(position):
            return True
        taken = self._acknowledged.acknowledge_batch(position, remaining_bits)
        self._changed()
        return taken

    def acknowledge_cumulative(self, position: Position) -> None:
        """Acknowledge everything at or below `position`."""
        if position > self.mark_delete:
            self._acknowledged.acknowledge_cumulative(position)
            self._changed()

    @abstractmethod
    async def run(self) -> None:
        """Write what is to be written until the cursor is closed or deleted."""

    @abstractmethod
    async def synced(self, upto: Position = LATEST) -> None:
        """Return once every acknowledgement made before this call, at or below `upto`, is durable."""

    @abstractmethod
    async def written(self) -> Position:
        """Return once the cursor was written after this call began, even if not everything fits its record.

        Every acknowledgement made before the call, at or below the returned position, is durable. LATEST means all of
        them.
        """

    def move(self, mark_delete: Position) -> None:
        """Forget all acknowledgements and go to `mark_delete`. The entry behind it is delivered next.

        The move is in memory. `synced` returns when it is durable.

        Raises:
            CursorError: the cursor has ended.
        """
        before = self._durable
        mark_delete = placed(mark_delete, self._ledger)
        self._acknowledged.reset(mark_delete)
        # Until the move is written, the disk may hold either position. Only the lower one is certain.
        self._durable = Watermark(min(before.value, mark_delete))
        before.fail(CursorMoved(f"cursor {self.name} was moved to {mark_delete}"))
        self._changed()

    async def seek(self, mark_delete: Position) -> None:
        """As `move`, and durable on return. The move is made even if the caller is cancelled."""
        self.move(mark_delete)
        await self.synced()

    @abstractmethod
    async def delete(self) -> None:
        """End the cursor and remove its record. Durable on return. Continues if the caller is cancelled."""

    @abstractmethod
    async def close(self) -> None:
        """Write what is not written yet, and end the cursor."""

    @abstractmethod
    def _changed(self) -> None:
        """Something was acknowledged, or the cursor was moved."""
