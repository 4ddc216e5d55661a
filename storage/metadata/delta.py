"""What the change sets decided since the last durable moment will do to the image.

The store decides optimistically. It judges each proposal against the image and the earlier decisions of the same group,
long before any of them is durable. The image itself does not change. Once the group is durable, its change sets are
applied to the image. To roll the group back, the delta is dropped (R11, R15).

Work that may take long exists twice: as a call, and in steps for an event loop that serves others in between
(`steps.py`).

Pure: no IO, no waiting.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from storage.metadata.batches import Point
from storage.metadata.image import Image
from storage.metadata.outcomes import Made, WriteId
from storage.metadata.records import (
    KEY_BYTES_MAX,
    RECORD_BYTES_MAX,
    Answered,
    DataRecord,
    Deletion,
    FeatureLevel,
    RangeDeletion,
    SequenceAdvance,
    SessionEnd,
    SessionStart,
    SnapshotNamed,
)
from storage.metadata.steps import KEYS_AT_ONCE, Steps, finished
from storage.metadata.store import (
    ABSENT,
    SEQUENCE_DIGITS,
    ChangeSetTooLarge,
    Check,
    Committed,
    Conflict,
    Delete,
    DeleteRange,
    IndexEntry,
    InvalidOperation,
    Op,
    Put,
    PutSequential,
    Record,
    SessionLost,
)

_OVERHEAD_BYTES: Final = 64
"""More than the encoding of any operation adds to its texts and value."""
_TEXT_OVERHEAD_BYTES: Final = 8
"""More than the encoding adds to each further text."""


class Delta:
    """Pending change sets over an image. Proposals are decided one after another. A refused one leaves no trace."""

    __slots__ = ("_image", "_records", "_sequence", "_sessions", "change_sets", "revision")

    def __init__(self, image: Image) -> None:
        self._image = image
        self._records: dict[str, Record | None] = {}
        self._sessions: dict[int, bool] = {}
        self._sequence = image.sequence
        self.revision = image.revision
        """The revision after the change sets decided so far."""
        self.change_sets: list[list[DataRecord]] = []
        """The decided change sets, in order, for the log and then for the image."""

    def get(self, key: str) -> Record | None:
        """The record as it will be."""
        records = self._records
        return records[key] if key in records else self._image.records.get(key)

    def _version(self, key: str) -> int:
        if key not in self._records:
            return self._image.records.version(key)
        record = self._records[key]
        return ABSENT if record is None else record.version

    def commit(self, ops: Sequence[Op]) -> Committed:
        """Decide a change set that passed `measure`.

        Raises:
            Conflict: an expectation does not hold.
            SessionLost: an ephemeral write's session has ended.
        """
        return finished(self.commit_in_steps(ops))

    def commit_in_steps(self, ops: Sequence[Op]) -> Steps[Committed]:
        """As `commit`. All expectations are judged before the first write is decided, so a refusal leaves no trace."""
        named: set[str] = set()
        for number, op in enumerate(ops, 1):
            self._judge(op)
            if not isinstance(op, PutSequential | DeleteRange):
                named.add(op.key)
            if number % KEYS_AT_ONCE == 0:
                yield
        revision = self.revision + 1
        sequence = self._sequence
        decided: list[DataRecord] = []
        keys: list[str | None] = []
        for number, op in enumerate(ops, 1):
            key = None
            if isinstance(op, Put):
                key = op.key
                session = None if op.session is None else op.session.id
                record = Record(key, _trimmed(op.value), revision, _distinct(op.indexes), op.partition_key, session)
                self._records[key] = record
                decided.append(record)
            elif isinstance(op, PutSequential):
                key = self._next_key(op.prefix, named)
                record = Record(key, _trimmed(op.value), revision, _distinct(op.indexes), op.partition_key)
                self._records[key] = record
                decided.append(record)
            elif isinstance(op, Delete):
                if self.get(op.key) is not None:
                    self._records[op.key] = None
                    decided.append(Deletion(revision, op.key))
            elif isinstance(op, DeleteRange) and (yield from self._forget_range(op.start, op.end)):
                decided.append(RangeDeletion(revision, op.start, op.end))
            keys.append(key)
            if number % KEYS_AT_ONCE == 0:
                yield
        if self._sequence != sequence:
            decided.append(SequenceAdvance(revision, self._sequence))
        self._decide(decided)
        return Committed(self.revision, tuple(keys))

    def open_session(self, timeout_ms: int, owner: str = "", nonce: int = 0) -> int:
        """Decide a new session; its id. See `records.SessionStart`."""
        session = self.revision + 1
        self._sessions[session] = True
        self._decide([SessionStart(session, timeout_ms, owner, nonce)])
        return session

    def end_sessions(self, sessions: Iterable[int]) -> int:
        """Decide, as one change set, that these sessions and their records are gone. Returns the revision then.

        Sessions that have ended already are skipped.
        """
        return finished(self.end_sessions_in_steps(sessions))

    def end_sessions_in_steps(self, sessions: Iterable[int]) -> Steps[int]:
        """As `end_sessions`."""
        revision = self.revision + 1
        decided: list[DataRecord] = []
        for session in sessions:
            if self.is_open(session):
                yield from self._forget_session(session)
                self._sessions[session] = False
                decided.append(SessionEnd(revision, session))
        self._decide(decided)
        return self.revision

    def answer(self, write: WriteId, made: Made) -> None:
        """Add the outcome of a numbered write to its change set, the last one that was decided.

        A write that decided no change set has no outcome on record, because to repeat it changes nothing.
        """
        assert made.revision == self.revision, "the outcome is part of the change set"
        self.change_sets[-1].append(Answered(write, made))

    def name_snapshot(self, point: Point, epoch: int) -> None:
        """Decide that a snapshot is named. Readers see no change, so the revision stays."""
        self.change_sets.append([SnapshotNamed(self.revision, *point, epoch)])

    def set_feature_level(self, level: int) -> None:
        """Decide what may be in the log from here on. Readers see no change, so the revision stays."""
        self.change_sets.append([FeatureLevel(self.revision, level)])

    def _decide(self, records: list[DataRecord]) -> None:
        if records:
            self.revision += 1
            self.change_sets.append(records)

    def _judge(self, op: Op) -> None:
        if isinstance(op, Put):
            if op.session is not None and not self.is_open(op.session.id):
                raise SessionLost(f"{op.key}: session {op.session.id} has ended")
        elif not isinstance(op, Delete | Check):
            return
        if op.expected is not None:
            actual = self._version(op.key)
            if actual != op.expected:
                raise Conflict(op.key, op.expected, actual)

    def _next_key(self, prefix: str, named: AbstractSet[str]) -> str:
        # The loop skips keys that were written under their full name, and keys that this change set names.
        while True:
            self._sequence += 1
            key = f"{prefix}-{self._sequence:0{SEQUENCE_DIGITS}}"
            if key not in named and self.get(key) is None:
                return key

    def _forget_range(self, start: str, end: str) -> Steps[bool]:
        """Decide that the range is empty. Returns whether it had records."""
        pending = [key for key, record in self._records.items() if record is not None and start <= key < end]
        stored = yield from self._forget(self._image.keys_between(start, end))
        return (yield from self._forget(pending, again=True)) or stored

    def _forget_session(self, session: int) -> Steps[None]:
        opened = self._image.sessions.get(session)
        pending = [key for key, record in self._records.items() if record is not None and record.session == session]
        if opened is not None:
            yield from self._forget(list(opened.keys))
        yield from self._forget(pending, again=True)

    def _forget(self, keys: Sequence[str], *, again: bool = False) -> Steps[bool]:
        """Decide that these records are gone; records decided before only if `again`.

        Returns whether there were any.
        """
        found = False
        for number, key in enumerate(keys, 1):
            if again or key not in self._records:
                self._records[key] = None
                found = True
            if number % KEYS_AT_ONCE == 0:
                yield
        return found

    def is_open(self, session: int) -> bool:
        """Whether a session lives after the change sets decided so far."""
        return self._sessions.get(session, session in self._image.sessions)


def _trimmed(value: bytes) -> bytes:
    """The same bytes in an allocation of their own size.

    orjson builds a value in a buffer of some kilobytes and returns the beginning of that buffer. The rest would stay
    allocated for as long as the image keeps the record.
    """
    return bytes(memoryview(value))


def measure(ops: Sequence[Op]) -> int:
    """As `measure_in_steps`, without a pause."""
    return finished(measure_in_steps(ops))


def measure_in_steps(ops: Sequence[Op]) -> Steps[int]:
    """Check a change set against the contract. Returns an upper bound of its encoded size in bytes.

    Raises:
        InvalidOperation: a key is empty, too long, not text, or named twice; or a sequential put lacks its partition
            key.
        ChangeSetTooLarge: a single record is above RECORD_BYTES_MAX.
    """
    total = 0
    for number, op in enumerate(ops, 1):
        if isinstance(op, Put):
            size = _text_bytes(op.key, "key") + len(op.value) + _labels_bytes(op.indexes, op.partition_key)
        elif isinstance(op, PutSequential):
            if not op.partition_key:
                raise InvalidOperation(f"a sequential put under {op.prefix!r} needs a partition key")
            size = _text_bytes(op.prefix, "prefix") + SEQUENCE_DIGITS + 1 + len(op.value)
            size += _labels_bytes(op.indexes, op.partition_key)
        elif isinstance(op, DeleteRange):
            size = _text_bytes(op.start or "-", "start") + _text_bytes(op.end or "-", "end")
        else:
            size = _text_bytes(op.key, "key")
        if size > RECORD_BYTES_MAX - _OVERHEAD_BYTES:
            raise ChangeSetTooLarge(f"a record of about {size} bytes is above the limit of {RECORD_BYTES_MAX}")
        total += size + _OVERHEAD_BYTES
        if number % KEYS_AT_ONCE == 0:
            yield
    if len(ops) > 1:
        yield from _refuse_repeated_keys(ops)
    return total


def _refuse_repeated_keys(ops: Sequence[Op]) -> Steps[None]:
    keys: set[str] = set()
    ranges: list[tuple[str, str]] = []
    for number, op in enumerate(ops, 1):
        if isinstance(op, Put | Delete | Check):
            if op.key in keys:
                raise InvalidOperation(f"{op.key}: named twice in one change set")
            keys.add(op.key)
        elif isinstance(op, DeleteRange) and op.start < op.end:
            ranges.append((op.start, op.end))
        if number % KEYS_AT_ONCE == 0:
            yield
    if ranges:
        yield from _refuse_covered(ops, _merged(ranges))


def _refuse_covered(ops: Sequence[Op], ranges: Sequence[tuple[str, str]]) -> Steps[None]:
    """Refuse writes to keys in a range that the same change set deletes, because the result would be ambiguous."""
    starts = [start for start, _end in ranges]
    for number, op in enumerate(ops, 1):
        span = _written_span(op)
        if span is not None:
            first, last = span
            # The ranges are disjoint and in order, so the last one that begins at or below `last` reaches the furthest.
            place = bisect_right(starts, last) - 1
            if place >= 0 and first < ranges[place][1]:
                start, end = ranges[place]
                raise InvalidOperation(
                    f"{op}: lies in the range {start!r} to {end!r}, which the same change set deletes"
                )
        if number % KEYS_AT_ONCE == 0:
            yield


def _written_span(op: Op) -> tuple[str, str] | None:
    """The first and last key that it may write; None if it writes no record."""
    if isinstance(op, Put):
        return op.key, op.key
    if isinstance(op, PutSequential):
        return f"{op.prefix}-{'0' * SEQUENCE_DIGITS}", f"{op.prefix}-{'9' * SEQUENCE_DIGITS}"
    return None


def _merged(ranges: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The same keys as disjoint ranges, in order."""
    merged: list[tuple[str, str]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _labels_bytes(indexes: tuple[IndexEntry, ...], partition_key: str | None) -> int:
    size = 0
    for name, key in indexes:
        # An index key may be empty; its name may not.
        size += _text_bytes(name, "index name") + _text_bytes(key or "-", "index key") + _TEXT_OVERHEAD_BYTES
    if partition_key is not None:
        size += _text_bytes(partition_key, "partition key") + _TEXT_OVERHEAD_BYTES
    return size


def _text_bytes(text: str, what: str) -> int:
    if not text:
        raise InvalidOperation(f"an empty {what}")
    if text.isascii():
        size = len(text)
    else:
        try:
            size = len(text.encode())
        except UnicodeEncodeError as unencodable:
            raise InvalidOperation(f"the {what} {text!r} has no UTF-8 form") from unencodable
    if size > KEY_BYTES_MAX:
        raise InvalidOperation(f"a {what} of {size} bytes is above the limit of {KEY_BYTES_MAX}")
    return size


def _distinct(indexes: tuple[IndexEntry, ...]) -> tuple[IndexEntry, ...]:
    return indexes if len(indexes) < 2 else tuple(dict.fromkeys(indexes))
