"""Records by key, in key order, and the sorted sets behind that order.

A record is kept as a plain tuple of plain values, which Python's garbage collector stops tracking after a first visit.
A full collection visits every tracked object while everything stands still. With a million `Record` objects that takes
0.3 s, at unpredictable moments. A `Record` is made on request, which takes less than a microsecond.

Pure: no IO, no waiting.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Generic, Protocol, Self, TypeVar

from sortedcontainers import SortedList

from storage.metadata.store import ABSENT, IndexEntry, Record


class Sortable(Protocol):
    """A value that has an order."""

    def __hash__(self) -> int: ...

    def __lt__(self, other: Self, /) -> bool: ...


T = TypeVar("T", bound=Sortable)

_State = tuple[str, bytes, int, tuple[str, ...], str | None, int | None]
"""A record's fields, with its index entries as alternating names and keys."""


class _States(dict[str, _State]):
    """States by key, as a dict that the garbage collector never untracks.

    The collector untracks a plain dict if it has untracked the dict's values, and tracks it again as a young object at
    the next put. It would then visit a million entries while a client waits, although they were set aside when the
    broker was ready.
    """

    __slots__ = ()


class SortedSet(Generic[T]):
    """Distinct values in order. At first, it sorts only when the order is needed.

    Recovery adds a million values without needing their order, and removes many again. Sorting the rest once takes a
    fifth of the time of finding a place for each. `settle` ends that, so that no reader pays for many writers.
    """

    __slots__ = ("_late", "_sorted", "_sorts_late")

    def __init__(self, *, sorts_late: bool) -> None:
        self._sorted: SortedList[T] = SortedList()
        # A dict keeps the order of arrival, which is closer to sorted than the order of a set.
        self._late: dict[T, None] = {}
        self._sorts_late = sorts_late

    def __len__(self) -> int:
        return len(self._sorted) + len(self._late)

    def add(self, value: T) -> None:
        """Add a value that is not in the set."""
        if self._sorts_late:
            self._late[value] = None
        else:
            self._sorted.add(value)

    def remove(self, value: T) -> None:
        """Remove a value that is in the set."""
        if value in self._late:
            del self._late[value]
        else:
            self._sorted.remove(value)

    def between(self, start: T, end: T) -> Iterator[T]:
        """The values of [start, end) in order. Use them up before the next change."""
        self._sort()
        found: Iterator[T] = self._sorted.irange(start, end, (True, False))
        return found

    def settle(self) -> None:
        """Sort the values, and from now on keep the order at each change."""
        self._sort()
        self._sorts_late = False

    def _sort(self) -> None:
        if self._late:
            self._sorted.update(self._late)
            self._late = {}


class RecordTable:
    """Records by their key."""

    __slots__ = ("_keys", "_states")

    def __init__(self) -> None:
        self._states = _States()
        self._keys: SortedSet[str] = SortedSet(sorts_late=True)

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[str]:
        """The keys, in no particular order."""
        return iter(self._states)

    def __contains__(self, key: str) -> bool:
        return key in self._states

    def __getitem__(self, key: str) -> Record:
        return _record(self._states[key])

    def get(self, key: str) -> Record | None:
        """The record of this key, or None."""
        state = self._states.get(key)
        return None if state is None else _record(state)

    def version(self, key: str) -> int:
        """The version of this key's record, or `ABSENT`."""
        state = self._states.get(key)
        return ABSENT if state is None else state[2]

    def put(self, record: Record) -> Record | None:
        """Add a record. Returns the one that it replaces, or None."""
        key = record.key
        old = self._states.get(key)
        self._states[key] = _state(record)
        if old is None:
            self._keys.add(key)
            return None
        return _record(old)

    def pop(self, key: str) -> Record:
        """Remove a record and return it.

        Raises:
            KeyError: there is none.
        """
        state = self._states.pop(key)
        self._keys.remove(key)
        return _record(state)

    def scan(self, start: str, end: str, limit: int | None) -> list[Record]:
        """The records of [start, end) in key order, at most `limit`."""
        states = self._states
        return [_record(states[key]) for key in islice(self._keys.between(start, end), limit)]

    def keys_between(self, start: str, end: str) -> Iterator[str]:
        """The keys of [start, end) in order. Use them up before the next change."""
        return self._keys.between(start, end)

    def settle(self) -> None:
        """See `SortedSet.settle`."""
        self._keys.settle()


def _state(record: Record) -> _State:
    key, value, version, indexes, partition_key, session = record
    texts = tuple([text for entry in indexes for text in entry]) if indexes else ()
    return key, value, version, texts, partition_key, session


def _record(state: _State) -> Record:
    if not state[3]:
        # As `Record._make`, in half the time. A scan of many records is mostly this.
        return tuple.__new__(Record, state)
    key, value, version, texts, partition_key, session = state
    indexes = tuple([IndexEntry(*pair) for pair in zip(texts[::2], texts[1::2], strict=True)])
    return Record(key, value, version, indexes, partition_key, session)
