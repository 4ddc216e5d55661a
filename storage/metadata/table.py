"""Records by key, in key order, and the sorted sets that such order comes from.

A record is held as a plain tuple of plain values, which Python's garbage collector stops looking at after a first
glance. A full collection visits all that it still looks at while everything stands still: with a million `Record`s
that is 0.3 s, at moments nobody chose. A `Record` is made when it is asked for, which takes less than a microsecond.

Pure: no IO, no waiting.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Generic, Protocol, Self, TypeVar

from sortedcontainers import SortedList

from storage.metadata.store import IndexEntry, Record


class Sortable(Protocol):
    """What can stand in order."""

    def __hash__(self) -> int: ...

    def __lt__(self, other: Self, /) -> bool: ...


T = TypeVar("T", bound=Sortable)

_State = tuple[str, bytes, int, tuple[str, ...], str | None, int | None]
"""A record's fields, its index entries as names and keys in turns."""


class _States(dict[str, _State]):
    """States by key, as a dict that the garbage collector never forgets.

    It lets go of a plain dict whose values it has let go of, and takes it up again as a young one with the next put: a
    million entries are then visited while somebody waits, though what stood when a broker was ready is out of its way.
    """

    __slots__ = ()


class SortedSet(Generic[T]):
    """Distinct values in order; at first it sorts late, only when order is asked for.

    Recovery adds a million values whose order nobody asks for, and removes many again: sorting once what is left takes
    a fifth of the time of finding a place for each. `settle` ends that, so that no reader pays for many writers.
    """

    __slots__ = ("_late", "_sorted", "_sorts_late")

    def __init__(self, *, sorts_late: bool) -> None:
        self._sorted: SortedList[T] = SortedList()
        # A dict, to keep the order of arrival, in which there is more order than in a set.
        self._late: dict[T, None] = {}
        self._sorts_late = sorts_late

    def __len__(self) -> int:
        return len(self._sorted) + len(self._late)

    def add(self, value: T) -> None:
        """Add a value that is not there."""
        if self._sorts_late:
            self._late[value] = None
        else:
            self._sorted.add(value)

    def remove(self, value: T) -> None:
        """Remove a value that is there."""
        if value in self._late:
            del self._late[value]
        else:
            self._sorted.remove(value)

    def between(self, start: T, end: T) -> Iterator[T]:
        """The values of [start, end) in order, to be used up before the next change."""
        self._sort()
        found: Iterator[T] = self._sorted.irange(start, end, (True, False))
        return found

    def settle(self) -> None:
        """Sort what is there, and from now on whatever comes at once."""
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

    def put(self, record: Record) -> Record | None:
        """Add a record; the one whose place it takes, or None."""
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
        """The keys of [start, end) in order, to be used up before the next change."""
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
        # What `Record._make` does, in half the time: a scan of many records is mostly this.
        return tuple.__new__(Record, state)
    key, value, version, texts, partition_key, session = state
    indexes = tuple([IndexEntry(*pair) for pair in zip(texts[::2], texts[1::2], strict=True)])
    return Record(key, value, version, indexes, partition_key, session)
