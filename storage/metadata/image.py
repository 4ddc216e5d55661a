"""The state of the store in memory: what the log adds up to.

An image changes only by the records of a change set that is decided, complete and durable. So readers, watches and
snapshots can see nothing else (R12, D13). A `Delta` beside the image works out what a change set *would* do.

One counter serves all sequential puts. So numbers under one prefix rise and are never reused (M5, M7), even after the
last trace of their prefix is gone. A counter for each prefix could never be forgotten, and a prefix lives only as long
as a transaction.

Keys are `str`. Python compares code points, and their order is the order of their UTF-8 bytes (M11).

Pure: no IO, no waiting.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from storage.metadata.outcomes import Outcomes
from storage.metadata.records import (
    Answered,
    DataRecord,
    Deletion,
    FeatureLevel,
    RangeDeletion,
    SequenceAdvance,
    SessionEnd,
    SessionStart,
    TakeOver,
)
from storage.metadata.store import IndexHit, Record
from storage.metadata.table import RecordTable, SortedSet


class Written(NamedTuple):
    """What a change set did to one key."""

    key: str
    old: Record | None
    """The record before the change set, None if there was none."""
    new: Record | None
    """The record after it, None if it is gone."""


class LiveSession(NamedTuple):
    """A session that has not ended."""

    timeout_ms: int
    keys: dict[str, None]
    """The keys of its ephemeral records. A dict, because its order is the same in every process without sorting."""
    owner: str = ""
    """The broker whose link it is; "" for other sessions."""
    nonce: int = 0
    """See `SessionStart`."""


class Image:
    """Records, secondary indexes, sessions, outcomes and the sequence counter, all at one revision."""

    __slots__ = (
        "_indexes",
        "_sorts_late",
        "feature_level",
        "outcomes",
        "records",
        "revision",
        "sequence",
        "sessions",
        "taken_over",
    )

    def __init__(self) -> None:
        self.records = RecordTable()
        """Every record by its key."""
        self.sessions: dict[int, LiveSession] = {}
        """Every session that has not ended, by its id."""
        self.outcomes = Outcomes()
        """The numbered writes of those sessions that may be repeated."""
        self.revision = 0
        """The revision of the last applied change set. Every record's version is at most this."""
        self.sequence = 0
        """The last number given to a sequential put; never goes back."""
        self.feature_level = 0
        """Decides what may be in the log. 0 before anything was written."""
        self.taken_over: TakeOver | None = None
        """How the newest epoch of the log began; None in a log without epochs."""
        self._indexes: dict[str, SortedSet[tuple[str, str]]] = {}
        self._sorts_late = True

    @property
    def epoch(self) -> int:
        """The newest epoch of the log; 0 in a log without epochs."""
        return 0 if self.taken_over is None else self.taken_over.epoch

    def settle(self) -> None:
        """End recovery: from now on, order is kept at once (see `SortedSet`)."""
        self._sorts_late = False
        self.records.settle()
        for entries in self._indexes.values():
            entries.settle()

    def adopt(self, other: "Image") -> None:
        """Take over all of another image's state, in one step. The other one must not be used any more."""
        for name in Image.__slots__:
            setattr(self, name, getattr(other, name))

    def scan(self, start: str, end: str, limit: int | None) -> list[Record]:
        """The records of [start, end) in key order, at most `limit`."""
        return self.records.scan(start, end, limit)

    def query(self, index: str, start: str, end: str, limit: int | None, after: str = "") -> list[IndexHit]:
        """The entries of an index with keys in [start, end), by (index key, primary key), at most `limit`.

        Those of `start` itself begin behind the primary key `after`.
        """
        entries = self._indexes.get(index)
        if entries is None:
            return []
        # No primary key is empty, so this is before every entry of that index key.
        first = (start, f"{after}\0" if after else "")
        found = islice(entries.between(first, (end, "")), limit)
        return [IndexHit(index_key, self.records[key]) for index_key, key in found]

    def keys_between(self, start: str, end: str) -> list[str]:
        """The keys of [start, end), in order."""
        return list(self.records.keys_between(start, end))

    def apply(self, change_set: Iterable[DataRecord]) -> list[Written]:
        """Apply a decided change set. Returns what it did to which keys.

        The change set must be complete, because readers look at the image as soon as this returns.
        """
        return list(self.apply_each(change_set))

    def apply_each(self, change_set: Iterable[DataRecord]) -> Iterator[Written]:
        """As `apply`, key by key. Until the end, the image shows a part of the change set, which nobody may see."""
        for record in change_set:
            if isinstance(record, Record):
                self.revision = record.version
                yield self._put(record)
                continue
            self.revision = record.revision
            if isinstance(record, Deletion):
                yield self._delete(record.key)
            elif isinstance(record, RangeDeletion):
                for key in self.keys_between(record.start, record.end):
                    yield self._delete(key)
            elif isinstance(record, SequenceAdvance):
                assert record.last > self.sequence, "the sequence counter only rises"
                self.sequence = record.last
            elif isinstance(record, SessionStart):
                self.sessions[record.revision] = LiveSession(record.timeout_ms, {}, record.owner, record.nonce)
            elif isinstance(record, SessionEnd):
                for key in list(self.sessions[record.session].keys):
                    yield self._delete(key)
                del self.sessions[record.session]
                self.outcomes.session_ended(record.session)
            elif isinstance(record, Answered):
                # Nobody repeats a write of an ended session, so its outcome would stay for ever.
                if record.write.session in self.sessions:
                    self.outcomes.note(record.write, record.made)
            elif isinstance(record, FeatureLevel):
                self.feature_level = record.level
            elif isinstance(record, TakeOver):
                self.taken_over = record

    def load(self, state: Iterable[DataRecord]) -> None:
        """Apply a snapshot's records one by one, without reporting what that does to which keys."""
        for record in state:
            if isinstance(record, Record):
                self._put(record)
            else:
                self.apply((record,))

    def _put(self, record: Record) -> Written:
        old = self.records.put(record)
        if old is None:
            if record.indexes:
                self._add_to_indexes(record)
            if record.session is not None:
                self.sessions[record.session].keys[record.key] = None
            return Written(record.key, None, record)
        if old.indexes != record.indexes:
            self._remove_from_indexes(old)
            self._add_to_indexes(record)
        if old.session != record.session:
            self._release(old)
            if record.session is not None:
                self.sessions[record.session].keys[record.key] = None
        return Written(record.key, old, record)

    def _delete(self, key: str) -> Written:
        old = self.records.pop(key)
        self._remove_from_indexes(old)
        self._release(old)
        return Written(key, old, None)

    def _release(self, record: Record) -> None:
        if record.session is not None:
            self.sessions[record.session].keys.pop(record.key, None)

    def _add_to_indexes(self, record: Record) -> None:
        for name, index_key in record.indexes:
            entries = self._indexes.get(name)
            if entries is None:
                entries = self._indexes[name] = SortedSet(sorts_late=self._sorts_late)
            entries.add((index_key, record.key))

    def _remove_from_indexes(self, record: Record) -> None:
        for name, index_key in record.indexes:
            entries = self._indexes[name]
            entries.remove((index_key, record.key))
            if not entries:
                del self._indexes[name]
