"""The age of records that several brokers write, each with its own clock. Pure.

A record says when it was made, by the clock of the broker that wrote it. That clock may be wrong by an hour, and so may
this broker's. So there are two ways to know that a record has an age (C17):

    observed    this process has known the record for that long
    stamped     its stamp and this broker's clock say so, with SKEW_MAX_MS to spare; nothing to spare if no other broker
                ever used the store, unless the stamp is of the future

A record is due as soon as one of them says so. Neither is early while clocks differ by less than SKEW_MAX_MS. Both may
be late. A broker that starts, or that takes over the work of another one, has observed nothing yet. So a take-over
postpones what is due, by one span at most.

Observed times come from the broker's own clock too. It never steps (`storage.clock`). Only a restart takes a new time
at once. So if an own stamp is of the future, the machine's clock was set back. The age then counts from the start.
"""

from collections.abc import Sequence
from typing import Final

from sortedcontainers import SortedList

SKEW_MAX_MS: Final = 2 * 60 * 60 * 1000
"""By how much the clocks of two brokers may differ. A wrong time zone is usually wrong by one hour."""


def counted_from_ms(stamp_ms: int, seen_ms: int, *, is_own: bool) -> int:
    """Return the moment of this broker's clock from which a record's age counts, in milliseconds.

    Args:
        stamp_ms: the stamp in the record.
        seen_ms: when this process first saw it, by this broker's clock.
        is_own: whether the stamp is of this broker's clock too.
    """
    return min(seen_ms, stamp_ms if is_own else stamp_ms + SKEW_MAX_MS)


def due_ms(stamped_due_ms: int, span_ms: int, seen_ms: int, *, is_alone: bool) -> int:
    """Return the moment of this broker's clock at which a record is due, in milliseconds.

    Args:
        stamped_due_ms: when it is due by its stamp: the stamp plus the span.
        span_ms: the age at which it is due.
        seen_ms: when this process first saw it, by this broker's clock.
        is_alone: whether no other broker ever used the store.
    """
    return counted_from_ms(stamped_due_ms - span_ms, seen_ms, is_own=is_alone) + span_ms


class DueTimes:
    """Keys of records that a task waits for, in the order in which they are due."""

    def __init__(self) -> None:
        self._moments: dict[str, int] = {}
        self._order: SortedList[tuple[int, str]] = SortedList()

    def __len__(self) -> int:
        return len(self._moments)

    def __contains__(self, key: str) -> bool:
        return key in self._moments

    def keys(self) -> Sequence[str]:
        """Return all keys, as of now."""
        return tuple(self._moments)

    def put(self, key: str, moment_ms: int) -> None:
        """Set when the record is due."""
        self.forget(key)
        self._moments[key] = moment_ms
        self._order.add((moment_ms, key))

    def forget(self, key: str) -> None:
        """Leave the record out. No effect if it is not known."""
        moment_ms = self._moments.pop(key, None)
        if moment_ms is not None:
            self._order.remove((moment_ms, key))

    def is_due(self, key: str, now_ms: int) -> bool:
        """Return whether the record is known and due."""
        moment_ms = self._moments.get(key)
        return moment_ms is not None and moment_ms <= now_ms

    def due(self, now_ms: int, *, limit: int) -> Sequence[str]:
        """Return the first keys that are due, at most `limit`."""
        return [key for moment_ms, key in self._order[:limit] if moment_ms <= now_ms]

    @property
    def next_ms(self) -> int | None:
        """When the first record is due; None if there is none."""
        return self._order[0][0] if self._order else None
