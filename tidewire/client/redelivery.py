"""What a queue consumer has handed out, and when it is to be asked for again. Pure: time comes as an argument.

The broker sends a message again when it is asked to; it keeps no time of its own for that. So the waiting is here: a
message that the application gave back waits out its back-off, one that it keeps too long is asked for when its time is
up. Nothing is kept of messages that need neither.

The broker sends entries, not messages: what is asked for is an entry, and what comes again is all of its batch that is
not acknowledged. So once an entry is asked for, everything known of it here is forgotten; it begins anew when it comes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from random import Random
from typing import Final, NamedTuple, Self

from tidewire.protocol.positions import MessageId

JITTER_PERCENT_DEFAULT: Final = 10.0

STALE_DEADLINES_MAX: Final = 64
"""Deadlines of settled messages that may lie about, beside as many as there are live ones."""


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """How long to wait before a message is asked for again; longer each time it failed."""

    initial_interval_seconds: float
    """The wait after the first failure."""
    max_interval_seconds: float
    """The longest wait."""
    multiplier: float = 2.0
    """Each wait is so many times the one before; 1 for a wait that stays as it is."""
    jitter_percent: float = JITTER_PERCENT_DEFAULT
    """Each wait is made longer or shorter by up to half of this: what failed together does not come back together."""

    def __post_init__(self) -> None:
        """Check that it makes sense."""
        if not 0 <= self.initial_interval_seconds <= self.max_interval_seconds:
            raise ValueError(
                f"the intervals cannot be {self.initial_interval_seconds} to {self.max_interval_seconds} s"
            )
        if self.multiplier < 1:
            raise ValueError(f"the multiplier must be at least 1, not {self.multiplier}")
        if not 0 <= self.jitter_percent <= 100:
            raise ValueError(f"the jitter cannot be {self.jitter_percent} percent")

    @classmethod
    def fixed(cls, interval_seconds: float) -> Self:
        """The same wait each time."""
        return cls(interval_seconds, interval_seconds, 1.0)

    @classmethod
    def exponential(cls, initial_interval_seconds: float, max_interval_seconds: float) -> Self:
        """Twice the wait each time, up to a bound."""
        return cls(initial_interval_seconds, max_interval_seconds)

    def delay_seconds(self, redelivery_count: int, random: Random) -> float:
        """The wait before a message is asked for again that came again so many times already."""
        delay = self.initial_interval_seconds
        if delay:
            # Not by a power, which overflows for a message that nobody ever takes.
            for _ in range(redelivery_count):
                if delay >= self.max_interval_seconds or self.multiplier == 1:
                    break
                delay *= self.multiplier
        delay = min(delay, self.max_interval_seconds)
        return delay * (1 + self.jitter_percent / 100 * (random.random() - 0.5))


class EntryKey(NamedTuple):
    """An entry of one of the topic's segments."""

    segment_id: int
    ledger_id: int
    entry_id: int

    @classmethod
    def of(cls, message_id: MessageId) -> Self:
        """The entry that the message came in."""
        return cls(message_id.segment_id, message_id.ledger_id, message_id.entry_id)


class Redeliveries:
    """The messages that will be asked for again unless they are settled before."""

    def __init__(self) -> None:
        """None."""
        # By entry and place in its batch: when, and which of the deadlines in the heap is the valid one.
        self._held: dict[EntryKey, dict[int, int]] = {}
        self._live = 0
        # Of messages that were sent in chunks, by the entry of the last one: the others.
        self._earlier: dict[EntryKey, tuple[tuple[int, int], ...]] = {}
        self._serial = 0
        # When, its serial number, and what; a settled message's deadline stays until it comes up or there are too many.
        self._deadlines: list[tuple[float, int, EntryKey, int]] = []

    def __len__(self) -> int:
        """How many messages there are."""
        return self._live

    def hold(self, message_id: MessageId, due: float) -> bool:
        """Ask for the message at the time `due`, whatever was said before. Whether that is now the next to come."""
        key = EntryKey.of(message_id)
        messages = self._held.setdefault(key, {})
        if message_id.chunks:
            self._earlier[key] = message_id.chunks
        self._live += message_id.batch_index not in messages
        self._serial += 1
        messages[message_id.batch_index] = self._serial
        deadline = (due, self._serial, key, message_id.batch_index)
        heappush(self._deadlines, deadline)
        self._sweep()
        return self._deadlines[0] == deadline

    def settle(self, message_id: MessageId) -> None:
        """The message is not to be asked for; of one that is a whole entry, nothing of the entry."""
        key = EntryKey.of(message_id)
        messages = self._held.get(key)
        if messages is None:
            return
        if message_id.batch_index < 0:
            self._forget(key)
        elif messages.pop(message_id.batch_index, None) is not None:
            self._live -= 1
            if not messages:
                self._forget(key)
        self._sweep()

    def forget_segment(self, segment_id: int) -> None:
        """What came from this segment will come again, or is not ours any more."""
        for key in [key for key in self._held if key.segment_id == segment_id]:
            self._forget(key)
        self._sweep()

    @property
    def next_due(self) -> float | None:
        """When something will be due; None while nothing will."""
        while self._deadlines and not self._is_valid(self._deadlines[0]):
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def take_due(self, now: float) -> Iterator[EntryKey]:
        """The entries whose time has come, each once; they are forgotten."""
        while (due := self.next_due) is not None and due <= now:
            _due, _serial, key, _batch_index = heappop(self._deadlines)
            earlier = self._earlier.get(key, ())
            self._forget(key)
            yield from (EntryKey(key.segment_id, *chunk) for chunk in earlier)
            yield key

    def _forget(self, key: EntryKey) -> None:
        self._live -= len(self._held.pop(key))
        self._earlier.pop(key, None)

    def _is_valid(self, deadline: tuple[float, int, EntryKey, int]) -> bool:
        _due, serial, key, batch_index = deadline
        return self._held.get(key, {}).get(batch_index) == serial

    def _sweep(self) -> None:
        if len(self._deadlines) > 2 * self._live + STALE_DEADLINES_MAX:
            self._deadlines = [deadline for deadline in self._deadlines if self._is_valid(deadline)]
            heapify(self._deadlines)
