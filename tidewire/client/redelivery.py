"""The messages that a queue consumer will request again, and when. Pure: the time is an argument.

The broker redelivers a message when the consumer requests it, and keeps no timer for that. So the waiting happens here:
for a negatively acknowledged message until its back-off has passed, and for an unacknowledged one until its processing
timeout. Other messages are not kept here.

The broker redelivers entries, not messages: the unacknowledged part of the entry's batch comes again. So once an entry
is requested, everything about it is forgotten here. It starts again when it comes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from random import Random
from typing import Final, NamedTuple, Self

from tidewire.protocol.positions import MessageId

JITTER_PERCENT_DEFAULT: Final = 10.0

STALE_DEADLINES_MAX: Final = 64
"""How many deadlines of settled messages may stay in the heap, besides one for each live deadline."""


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """The delay before a message is requested again, which grows with its redeliveries."""

    initial_interval_seconds: float
    """The delay after the first failure."""
    max_interval_seconds: float
    """The longest delay, before jitter."""
    multiplier: float = 2.0
    """Each delay is the last one times this; 1 for a constant delay."""
    jitter_percent: float = JITTER_PERCENT_DEFAULT
    """Each delay varies up or down by up to half of this, so that messages that failed together spread out."""

    def __post_init__(self) -> None:
        """Check the values."""
        if not 0 <= self.initial_interval_seconds <= self.max_interval_seconds:
            raise ValueError(
                "initial_interval_seconds must be at least 0 and at most max_interval_seconds, "
                f"not {self.initial_interval_seconds} and {self.max_interval_seconds}"
            )
        if self.multiplier < 1:
            raise ValueError(f"multiplier must be at least 1, not {self.multiplier}")
        if not 0 <= self.jitter_percent <= 100:
            raise ValueError(f"jitter_percent must be 0 to 100, not {self.jitter_percent}")

    @classmethod
    def fixed(cls, interval_seconds: float) -> Self:
        """The same delay each time."""
        return cls(interval_seconds, interval_seconds, 1.0)

    @classmethod
    def exponential(cls, initial_interval_seconds: float, max_interval_seconds: float) -> Self:
        """A delay that doubles each time, up to the maximum."""
        return cls(initial_interval_seconds, max_interval_seconds)

    def delay_seconds(self, redelivery_count: int, random: Random) -> float:
        """The delay before a message is requested again that was already redelivered `redelivery_count` times."""
        delay = self.initial_interval_seconds
        if delay:
            # A power would overflow for a message that is redelivered indefinitely.
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
    """The messages to request again, unless they are settled first."""

    def __init__(self) -> None:
        """Start empty."""
        # By entry and index in its batch: the serial number of the valid deadline.
        self._held: dict[EntryKey, dict[int, int]] = {}
        self._live = 0
        # For messages sent in chunks: the other entries, by that of the last chunk.
        self._earlier: dict[EntryKey, tuple[tuple[int, int], ...]] = {}
        self._serial = 0
        # Due time, serial number, entry, index. A settled message's deadline stays until it is due or a sweep.
        self._deadlines: list[tuple[float, int, EntryKey, int]] = []

    def __len__(self) -> int:
        """How many messages are held."""
        return self._live

    def hold(self, message_id: MessageId, due: float) -> bool:
        """Request the message at the time `due`, replacing an earlier deadline. Returns whether it is next."""
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
        """Do not request the message. An id of a whole entry settles all messages of the entry."""
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
        """Forget this segment's messages: the broker redelivers them, or the segment was left."""
        for key in [key for key in self._held if key.segment_id == segment_id]:
            self._forget(key)
        self._sweep()

    @property
    def next_due(self) -> float | None:
        """The next due time; None when nothing is held."""
        while self._deadlines and not self._is_valid(self._deadlines[0]):
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def take_due(self, now: float) -> Iterator[EntryKey]:
        """The due entries, each once. They are forgotten."""
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
