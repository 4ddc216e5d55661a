"""What a subscription has acknowledged: a mark-delete position, ranges of entries above it, and bits of batches.

Everything at or below the mark-delete position is acknowledged. Above it are the entries that were acknowledged out of
order, as disjoint ranges within one ledger each. For a partly acknowledged batch, bits name its unacknowledged
messages. When the first hole is filled, the mark-delete position moves over the ranges behind it, across the ends of
ledgers. Only the caller's `next_after` knows those ends.

Ranges are two plain sorted lists. Their number is bounded, so moving list items by one is cheaper than a tree.

Pure: no task, no disk.
"""

import struct
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from storage.position import EARLIEST, Position

NextAfter = Callable[[Position], Position]
"""The next position that exists or will exist above the given one."""

RANGES_MAX: Final = 50_000
"""Ranges, and 64-bit words of batch bits, kept at once. An acknowledgement that needs more is refused. So a client that
acknowledges every other entry of a topic costs a bounded amount of memory."""

_WORD_BITS: Final = 64


class EntryAck(NamedTuple):
    """The acknowledgement of one entry, or of some messages of a batch."""

    position: Position
    remaining: int = 0
    """Bit i is 1 if this does not acknowledge message i of the batch. 0: it acknowledges the whole entry."""
    batch_size: int = 0
    """Messages in the batch if the client gave the number, else 0."""


def bits_from_words(words: Sequence[int]) -> int:
    """The bits of an `ack_set`: 64-bit words, lowest first, signed or not. Bit i stands for message i of a batch."""
    # Packed at once, because adding word by word to a number takes quadratic time.
    return int.from_bytes(struct.pack(f"<{len(words)}Q", *(word & (2**_WORD_BITS - 1) for word in words)), "little")


def words_from_bits(bits: int) -> tuple[int, ...]:
    """The `ack_set` of some bits: signed 64-bit words, lowest first, without zero words at the end."""
    count = _words(bits)
    return struct.unpack(f"<{count}q", bits.to_bytes(8 * count, "little"))


def bits_within(bits: int, batch_size: int) -> int:
    """The bits of a batch with this many messages, without higher bits. 0 means that the size is not known."""
    # The client claims the size. An absurd size must not make an absurdly large mask.
    return bits & ((1 << batch_size) - 1) if 0 < batch_size < bits.bit_length() else bits


def _words(bits: int) -> int:
    return -(-bits.bit_length() // _WORD_BITS)


class EntryRanges:
    """A set of entries, kept as disjoint ranges. No two ranges of one ledger touch."""

    __slots__ = ("_ends", "_entries", "_starts")

    def __init__(self) -> None:
        self._starts: list[Position] = []
        """First entry of each range, in rising order."""
        self._ends: list[Position] = []
        """Last entry of each range, in the same ledger as its start and not below it."""
        self._entries = 0

    def __len__(self) -> int:
        """How many ranges there are."""
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[Position, Position]]:
        """The first and last entry of each range, in order."""
        return zip(self._starts, self._ends, strict=True)

    def __contains__(self, position: Position) -> bool:
        return self.end_of(position) is not None

    @property
    def entries(self) -> int:
        """How many entries are in the set."""
        return self._entries

    @property
    def last(self) -> Position | None:
        """The highest entry of the set."""
        return self._ends[-1] if self._ends else None

    def end_of(self, position: Position) -> Position | None:
        """The last entry of the range that holds `position`, or None if no range does."""
        index = bisect_right(self._starts, position) - 1
        return self._ends[index] if index >= 0 and position <= self._ends[index] else None

    def touches(self, position: Position) -> bool:
        """Whether adding `position` needs no new range, because it is in a range or next to one."""
        index = bisect_right(self._starts, position) - 1
        if index >= 0 and position.before() <= self._ends[index]:
            return True
        return index + 1 < len(self._starts) and self._starts[index + 1].before() == position

    def add(self, position: Position) -> bool:
        """Add one entry. False if it was in the set already."""
        index = bisect_right(self._starts, position) - 1
        if index >= 0 and position <= self._ends[index]:
            return False
        follows = index >= 0 and self._ends[index] == position.before()
        leads = index + 1 < len(self._starts) and self._starts[index + 1].before() == position
        if follows and leads:
            self._ends[index] = self._ends.pop(index + 1)
            del self._starts[index + 1]
        elif follows:
            self._ends[index] = position
        elif leads:
            self._starts[index + 1] = position
        else:
            self._starts.insert(index + 1, position)
            self._ends.insert(index + 1, position)
        self._entries += 1
        return True

    def copy(self) -> "EntryRanges":
        """A copy that later changes do not affect."""
        made = EntryRanges()
        made._starts, made._ends, made._entries = self._starts.copy(), self._ends.copy(), self._entries
        return made

    def append(self, first: Position, last: Position) -> None:
        """Add a range above all others, as when a stored state is read."""
        assert first.ledger == last.ledger, "a range lies within one ledger"
        assert 0 <= first.entry <= last.entry, "a range holds entries"
        assert not self._ends or self._ends[-1] < first.before(), "ranges are stored in order and do not touch"
        self._starts.append(first)
        self._ends.append(last)
        self._entries += last.entry - first.entry + 1

    def remove_through(self, position: Position) -> None:
        """Remove every entry at or below `position`."""
        whole = bisect_right(self._ends, position)
        for index in range(whole):
            self._entries -= self._ends[index].entry - self._starts[index].entry + 1
        del self._starts[:whole], self._ends[:whole]
        if self._starts and self._starts[0] <= position:
            self._entries -= position.entry - self._starts[0].entry + 1
            self._starts[0] = Position(position.ledger, position.entry + 1)

    def take_through_first_hole(self, mark_delete: Position, next_after: NextAfter) -> Position:
        """Remove the ranges that follow `mark_delete` without a hole. Returns their last entry, or `mark_delete`."""
        taken = 0
        while taken < len(self._starts) and self._starts[taken] <= next_after(mark_delete):
            # A range below the next existing entry is in a trimmed ledger, so there is no hole before it.
            mark_delete = max(mark_delete, self._ends[taken])
            taken += 1
        if taken:
            self.remove_through(mark_delete)
        return mark_delete


class Acknowledged:
    """The acknowledgements of one subscription. Changes are in memory only. A cursor makes them durable."""

    __slots__ = ("_batch_order", "_batch_words", "_batches", "_mark_delete", "_next_after", "_ranges")

    def __init__(
        self,
        mark_delete: Position,
        next_after: NextAfter,
        ranges: Iterable[tuple[Position, Position]] = (),
        batches: Mapping[Position, int] | None = None,
    ) -> None:
        self._mark_delete = mark_delete
        self._next_after = next_after
        self._ranges = EntryRanges()
        for first, last in ranges:
            self._ranges.append(first, last)
        self._batches: dict[Position, int] = dict(batches or {})
        """The bits of each partly acknowledged batch above the mark-delete position and outside the ranges. Never 0."""
        self._batch_order: list[Position] = sorted(self._batches)
        self._batch_words = sum(map(_words, self._batches.values()))
        self._settle()

    @property
    def mark_delete(self) -> Position:
        """Everything at or below it is acknowledged, and the entry after it is not. Only `reset` moves it back."""
        return self._mark_delete

    @property
    def ranges(self) -> EntryRanges:
        """The entries acknowledged above the mark-delete position. Read only."""
        return self._ranges

    @property
    def size(self) -> int:
        """Ranges plus 64-bit words of batch bits. The memory is proportional to it."""
        return len(self._ranges) + self._batch_words

    @property
    def highest(self) -> Position:
        """No entry above this position is acknowledged, not even in part. At least the mark-delete position."""
        last_batch = self._batch_order[-1] if self._batch_order else EARLIEST
        return max(self._mark_delete, self._ranges.last or EARLIEST, last_batch)

    def copy(self) -> "Acknowledged":
        """A copy that later changes do not affect. Takes a microsecond for ten ranges."""
        made = Acknowledged(self._mark_delete, self._next_after)
        made._ranges = self._ranges.copy()
        made._batches, made._batch_order = self._batches.copy(), self._batch_order.copy()
        made._batch_words = self._batch_words
        return made

    def batches(self) -> Iterator[tuple[Position, int]]:
        """Partly acknowledged batches and the bits of their unacknowledged messages, in order."""
        return ((position, self._batches[position]) for position in self._batch_order)

    def is_acknowledged(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        return position <= self._mark_delete or position in self._ranges

    def remaining_bits(self, position: Position) -> int | None:
        """For a partly acknowledged batch, bit i is 1 if message i is not acknowledged. None for other entries."""
        return self._batches.get(position)

    def next_unacknowledged(self, position: Position) -> Position:
        """The lowest position above `position` that is not wholly acknowledged. It exists or will exist."""
        following = self._next_after(max(position, self._mark_delete))
        while (end := self._ranges.end_of(following)) is not None:
            following = self._next_after(end)
        return following

    def acknowledge(self, position: Position) -> bool:
        """Acknowledge one entry. True if it is acknowledged now. False only if `RANGES_MAX` forbids it."""
        if self.is_acknowledged(position):
            return True
        if position == self._next_after(self._mark_delete):
            self._mark_delete = position
            self._settle()
            return True
        if self.size >= RANGES_MAX and position not in self._batches and not self._ranges.touches(position):
            return False
        self._forget_batch(position)
        self._ranges.add(position)
        return True

    def acknowledge_batch(self, position: Position, remaining_bits: int) -> bool:
        """Acknowledge the messages of a batch whose bit is 0.

        Bits that are 0 already stay 0. Returns as `acknowledge`.
        """
        if self.is_acknowledged(position):
            return True
        known = self._batches.get(position)
        left = remaining_bits if known is None else known & remaining_bits
        if left == 0:
            return self.acknowledge(position)
        if known is None:
            if self.size + _words(left) > RANGES_MAX:
                return False
            insort(self._batch_order, position)
        self._batches[position] = left
        self._batch_words += _words(left) - _words(known or 0)
        return True

    def acknowledge_cumulative(self, position: Position) -> None:
        """Acknowledge everything at or below `position`. Below the mark-delete position this has no effect."""
        if position > self._mark_delete:
            self._mark_delete = position
            self._settle()

    def reset(self, mark_delete: Position) -> None:
        """Forget everything and begin at `mark_delete`, which may be lower than before."""
        self._mark_delete = mark_delete
        self._ranges = EntryRanges()
        self._batches.clear()
        self._batch_order.clear()
        self._batch_words = 0

    def _settle(self) -> None:
        """Move the mark-delete position to the first hole, and drop what is at or below it."""
        self._ranges.remove_through(self._mark_delete)
        self._mark_delete = self._ranges.take_through_first_hole(self._mark_delete, self._next_after)
        passed = bisect_right(self._batch_order, self._mark_delete)
        for position in self._batch_order[:passed]:
            self._batch_words -= _words(self._batches.pop(position))
        del self._batch_order[:passed]

    def _forget_batch(self, position: Position) -> None:
        bits = self._batches.pop(position, None)
        if bits is not None:
            self._batch_words -= _words(bits)
            del self._batch_order[bisect_left(self._batch_order, position)]
