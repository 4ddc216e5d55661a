"""What a log with markers says of its producers and transactions, learned entry by entry.

An owner takes each entry when it appends it. The next owner takes the same entries again when it reads them. So both
know the same (K12, K17):

    of a batch     the epoch and the sequences of its producer; the first batch of a transaction begins it
    of a marker    it ends its producer's transaction; an abort adds to the index of the ledger with the marker

A snapshot spares the next owner most of the reading. It is a control entry that takes no offset:

    snapshot = [u32 size of the index][index][u8 SNAPSHOT_VERSION][u32 size of the rows][rows]
               [JSON: ledger, last stable offset]

Version 0 had all of it behind the index in the JSON, which is read still. The rows are those of the producers and their
open transactions (`producer_rows.py`).

The first entry of a ledger is a snapshot, unless there was nothing to tell. Its index is that of the ledger before,
which is complete. Further ones come after each `SNAPSHOT_BYTES` of log, so that the reading stays bounded (K26). Their
index is that of their own ledger, so far.

Pure.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from storage.aborted_offsets import ENTRY_SIZE, AbortedOffsets, UnknownIndexVersion, decode_at, encode, is_well_formed
from storage.position import Position
from txn.producer_rows import ProducerRows
from txn.producer_states import Batch, EndMarker, ProducerStates
from txn.stable_offset import Place, StableOffset

SNAPSHOT_BYTES: Final = 16 * 1024 * 1024
"""Bytes of entries between two snapshots, at least. A large snapshot comes less often."""

SNAPSHOT_SHARE: Final = 8
"""A snapshot comes after at least so many times its own size."""

_SIZE: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">BI")
"""The version, and the size of the rows."""


SNAPSHOT_VERSION: Final = 1

_JSON_BEGINS: Final = ord("{")
"""The byte behind the index in version 0."""


class SnapshotDamaged(ValueError):
    """The bytes are no snapshot."""


class UnknownSnapshotVersion(UnknownIndexVersion):
    """The snapshot is of a later version."""


class Ended(NamedTuple):
    """A marker, as it stands in the log."""

    marker: EndMarker
    is_commit: bool


Described = Batch | Ended
"""What an entry says. An entry without a producer says nothing."""


class AbortedIndex:
    """The index of one ledger, in the bytes of its format. An entry takes 34 bytes instead of several objects."""

    __slots__ = ("data",)

    def __init__(self, data: bytes | bytearray = b"") -> None:
        self.data = bytearray(data)

    def append(self, entry: AbortedOffsets) -> None:
        """Add an abort behind all others."""
        self.data += encode(entry)

    def __len__(self) -> int:
        return len(self.data) // ENTRY_SIZE

    def __getitem__(self, number: int) -> AbortedOffsets:
        return decode_at(self.data, range(len(self))[number])

    def from_offset(self, start: int) -> Iterator[AbortedOffsets]:
        """Yield the transactions whose marker is at or behind this offset, in the order of their markers."""
        for number in range(bisect_left(self, start, key=lambda entry: entry.last), len(self)):
            yield self[number]


@dataclass(slots=True)
class LedgerAborts:
    """The aborted transactions whose marker stands in one ledger."""

    index: AbortedIndex = field(default_factory=AbortedIndex)
    last_stable: int | None = None
    """The last stable offset at the end of the ledger. Every abort behind it began there or later. None while the
    ledger grows."""


class MarkedLog:
    """See the module's docstring. `take` gets the entries in order."""

    def __init__(self) -> None:
        self.producers = ProducerStates()
        self.stable = StableOffset()
        self.ledger = -1
        """The ledger of the last entry."""
        self.aborts = LedgerAborts()
        """Those of that ledger."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell a next owner."""
        return not (len(self.producers) or self.aborts.index or self.stable.open_transactions)

    def enter(self, ledger: int) -> None:
        """The next entries stand in this ledger."""
        if ledger != self.ledger:
            self.ledger = ledger
            self.aborts = LedgerAborts()

    def take(self, described: Described, place: Place, timestamp_ms: int) -> None:
        """Take an entry of a producer. Call `enter` for its ledger before."""
        if isinstance(described, Ended):
            producer_id = described.marker.producer_id
            self.producers.note_marker(described.marker, timestamp_ms)
            aborted = self.stable.end(producer_id, place, is_commit=described.is_commit)
            if aborted is not None:
                self.aborts.index.append(aborted)
            return
        self.producers.note(described, place.offset, timestamp_ms)
        if described.is_transactional and self.stable.first_of(described.producer_id) is None:
            self.stable.begin(described.producer_id, place)
            self.producers.begin(described.producer_id, place)

    def snapshot(self, end: int) -> bytes:
        """What is known of the log up to the offset `end`, exclusive."""
        index, rows = self.aborts.index.data, self.producers.rows.data
        rest = orjson.dumps({"ledger": self.ledger, "last_stable": self.stable.stable_at(end)})
        return b"".join((_SIZE.pack(len(index)), index, _HEAD.pack(SNAPSHOT_VERSION, len(rows)), rows, rest))

    @classmethod
    def from_snapshot(cls, payload: bytes, ledger: int) -> "MarkedLog":
        """The state at a snapshot in this ledger, as if every entry before it had been taken.

        Raises:
            SnapshotDamaged: it cannot be read.
            UnknownIndexVersion: a later release wrote it, or its index.
        """
        made = cls()
        made.ledger, made.aborts, rest, rows = _parsed(payload)
        try:
            if rows is None:
                made.producers = ProducerStates.from_json(rest["producers"])
                for producer_id, offset, *position in rest["open"]:
                    made.producers.begin(producer_id, Place(offset, Position(*position)))
            else:
                made.producers = ProducerStates(ProducerRows(rows))
            for producer_id, offset, *position in made.producers.rows.opened():
                made.stable.begin(producer_id, Place(offset, Position(*position)))
        except (AssertionError, LookupError, TypeError, ValueError) as damaged:
            raise SnapshotDamaged(f"a snapshot of producers cannot be read: {damaged!r}") from damaged
        if made.ledger == ledger:
            made.aborts.last_stable = None
        made.enter(ledger)
        return made


def aborts_before(payload: bytes) -> LedgerAborts:
    """The aborts of the ledger before the one that begins with this snapshot. Raises as `from_snapshot` does."""
    return _parsed(payload)[1]


def _parsed(payload: bytes) -> tuple[int, LedgerAborts, dict[str, Any], bytes | None]:
    """The ledger, its aborts, the JSON, and the rows; None if the JSON has the producers."""
    try:
        (size,) = _SIZE.unpack_from(payload)
        at = _SIZE.size + size
        index = payload[_SIZE.size : at]
        is_whole = is_well_formed(index)
        rows = None
        if payload[at] != _JSON_BEGINS:
            version, rows_size = _HEAD.unpack_from(payload, at)
            if version > SNAPSHOT_VERSION:
                raise UnknownSnapshotVersion(
                    f"a snapshot of producers has version {version}; this release reads version {SNAPSHOT_VERSION}"
                )
            at += _HEAD.size + rows_size
            rows = payload[at - rows_size : at]
        rest = orjson.loads(payload[at:])
        ledger, last_stable = rest["ledger"], rest["last_stable"]
    except UnknownIndexVersion:
        raise
    except (LookupError, TypeError, ValueError, struct.error) as damaged:
        raise SnapshotDamaged(f"a snapshot of producers cannot be read: {damaged!r}") from damaged
    if not is_whole or len(index) != size:
        raise SnapshotDamaged("a snapshot of producers has a damaged index of aborted transactions")
    return ledger, LedgerAborts(AbortedIndex(index), last_stable), rest, rows
