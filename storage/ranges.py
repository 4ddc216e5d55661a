"""What a subscription has acknowledged: a mark-delete position, ranges of entries above it, bits of batches.

Everything at or below the mark-delete position is acknowledged. Above it stand the entries that were acknowledged out
of order, as disjoint ranges, each within one ledger, and per batch entry the messages of it that are still to be
acknowledged. Filling the first hole lets the mark-delete position run over the ranges behind it, across the ends of
ledgers, which only the caller's `next_after` knows.

Ranges are two plain sorted lists: their number is bounded, so moving list items by one is cheaper than any tree.

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
"""Ranges, and 64-bit words of batch bits, kept at once. An acknowledgement that would need more is not taken, so a
client that acknowledges every other entry of a topic costs a bounded amount of memory."""

_WORD_BITS: Final = 64


class EntryAck(NamedTuple):
    """The acknowledgement of one entry, or of some messages of a batch."""

    position: Position
    remaining: int = 0
    """Bit i is 1 if message i of the batch is not acknowledged by this; 0: the whole entry is."""
    batch_size: int = 0
    """Messages in the batch if the client said so, else 0."""


def bits_from_words(words: Sequence[int]) -> int:
    """The bits of an `ack_set`: 64-bit words, lowest first, signed or not; bit i stands for message i of a batch."""
    # Packed in one go: adding word by word to a number would take quadratic time.
    return int.from_bytes(struct.pack(f"<{len(words)}Q", *(word & (2**_WORD_BITS - 1) for word in words)), "little")


def words_from_bits(bits: int) -> tuple[int, ...]:
    """The `ack_set` of some bits: signed 64-bit words, lowest first, without zero words at the end."""
    count = _words(bits)
    return struct.unpack(f"<{count}q", bits.to_bytes(8 * count, "little"))


def bits_within(bits: int, batch_size: int) -> int:
    """The bits of a batch of so many messages, without those above it; 0 says that the size is not known."""
    # The size is a client's word; an absurd one must not make an absurdly large mask.
    return bits & ((1 << batch_size) - 1) if 0 < batch_size < bits.bit_length() else bits


def _words(bits: int) -> int:
    return -(-bits.bit_length() // _WORD_BITS)


class EntryRanges:
    """A set of entries, kept as disjoint ranges. No two ranges of one ledger touch."""

    __slots__ = ("_ends", "_entries", "_starts")

    def __init__(self) -> None:
        self._starts: list[Position] = []
        """First entry of each range, rising."""
        self._ends: list[Position] = []
        """Last entry of each range, in the ledger of its start and not below it."""
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
        """Whether `position` can be added without one more range: it is in a range or next to one."""
        index = bisect_right(self._starts, position) - 1
        if index >= 0 and position.before() <= self._ends[index]:
            return True
        return index + 1 < len(self._starts) and self._starts[index + 1].before() == position

    def add(self, position: Position) -> bool:
        """Put one entry in; False if it was in already."""
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
        """The same ranges, which change no more with these."""
        made = EntryRanges()
        made._starts, made._ends, made._entries = self._starts.copy(), self._ends.copy(), self._entries
        return made

    def append(self, first: Position, last: Position) -> None:
        """Put a range above all others in, as when a stored state is read back."""
        assert first.ledger == last.ledger, "a range lies within one ledger"
        assert 0 <= first.entry <= last.entry, "a range holds entries"
        assert not self._ends or self._ends[-1] < first.before(), "ranges are stored in order and do not touch"
        self._starts.append(first)
        self._ends.append(last)
        self._entries += last.entry - first.entry + 1

    def remove_through(self, position: Position) -> None:
        """Take every entry at or below `position` out."""
        whole = bisect_right(self._ends, position)
        for index in range(whole):
            self._entries -= self._ends[index].entry - self._starts[index].entry + 1
        del self._starts[:whole], self._ends[:whole]
        if self._starts and self._starts[0] <= position:
            self._entries -= position.entry - self._starts[0].entry + 1
            self._starts[0] = Position(position.ledger, position.entry + 1)

    def take_through_first_hole(self, mark_delete: Position, next_after: NextAfter) -> Position:
        """Take out the ranges that follow `mark_delete` without a hole; the last entry of them, or `mark_delete`."""
        taken = 0
        while taken < len(self._starts) and self._starts[taken] <= next_after(mark_delete):
            # A range below the next existing entry lies in a ledger that was trimmed away: there is no hole before it.
            mark_delete = max(mark_delete, self._ends[taken])
            taken += 1
        if taken:
            self.remove_through(mark_delete)
        return mark_delete


class Acknowledged:
    """The acknowledgements of one subscription. Every change is in memory only; a cursor makes them durable."""

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
        """Per part-acknowledged batch above the mark-delete and outside the ranges, its bits; never 0."""
        self._batch_order: list[Position] = sorted(self._batches)
        self._batch_words = sum(map(_words, self._batches.values()))
        self._settle()

    @property
    def mark_delete(self) -> Position:
        """Everything at or below is acknowledged, and the entry after it is not. Never goes back but by `reset`."""
        return self._mark_delete

    @property
    def ranges(self) -> EntryRanges:
        """The entries acknowledged above the mark-delete. Read only."""
        return self._ranges

    @property
    def size(self) -> int:
        """Ranges, and 64-bit words of batch bits: what the memory is proportional to."""
        return len(self._ranges) + self._batch_words

    @property
    def highest(self) -> Position:
        """No entry above this position is acknowledged, not even in part; at least the mark-delete."""
        last_batch = self._batch_order[-1] if self._batch_order else EARLIEST
        return max(self._mark_delete, self._ranges.last or EARLIEST, last_batch)

    def copy(self) -> "Acknowledged":
        """The same acknowledgements, which change no more with these. Takes a microsecond for ten ranges, no more."""
        made = Acknowledged(self._mark_delete, self._next_after)
        made._ranges = self._ranges.copy()
        made._batches, made._batch_order = self._batches.copy(), self._batch_order.copy()
        made._batch_words = self._batch_words
        return made

    def batches(self) -> Iterator[tuple[Position, int]]:
        """Part-acknowledged batches and the bits of the messages still to be acknowledged, in order."""
        return ((position, self._batches[position]) for position in self._batch_order)

    def is_acknowledged(self, position: Position) -> bool:
        """Whether the whole entry is."""
        return position <= self._mark_delete or position in self._ranges

    def remaining_bits(self, position: Position) -> int | None:
        """Of a part-acknowledged batch: bit i is 1 if message i is still to be acknowledged. None for other entries."""
        return self._batches.get(position)

    def next_unacknowledged(self, position: Position) -> Position:
        """The lowest position above `position` that is not wholly acknowledged; it exists or will."""
        following = self._next_after(max(position, self._mark_delete))
        while (end := self._ranges.end_of(following)) is not None:
            following = self._next_after(end)
        return following

    def acknowledge(self, position: Position) -> bool:
        """Acknowledge one entry. True if it is acknowledged now; False only when `RANGES_MAX` forbids it."""
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
        """Acknowledge the messages of a batch whose bit is 0; bits already 0 stay so. True if taken, as above."""
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
        """Acknowledge everything at or below `position`; below the mark-delete this changes nothing."""
        if position > self._mark_delete:
            self._mark_delete = position
            self._settle()

    def reset(self, mark_delete: Position) -> None:
        """Forget everything and stand at `mark_delete`, which may be lower than before."""
        self._mark_delete = mark_delete
        self._ranges = EntryRanges()
        self._batches.clear()
        self._batch_order.clear()
        self._batch_words = 0

    def _settle(self) -> None:
        """Let the mark-delete run to the first hole and drop what is at or below it."""
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
