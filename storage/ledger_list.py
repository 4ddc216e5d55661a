"""The ledgers of a managed ledger, in order, and the arithmetic of positions across their ends.

    ... [ 3: 0..99 ] [ 5: 0..41 ] [ 9: 0.. open      the ids rise, with gaps; the last one may still grow

A position may name a ledger that is gone (trimmed, or without entries), or an entry behind a ledger's end. It is then a
place between its neighbours, like any other.

The module also has the record of the ledgers in the metadata store. Pure.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

import orjson

from storage.errors import LedgerListCorrupt
from storage.position import EARLIEST, LATEST, Position
from storage.unknown_fields import (
    NOTHING_UNKNOWN,
    Unknown,
    UnknownColumns,
    columns_after,
    restored,
    restored_columns,
    unknown_in,
)
from storage.writer import Writer

UNKNOWN_TIME: Final = -2
"""The latest record time of a ledger about which it is not known. Any record may be in it."""

NO_RECORDS: Final = -1
"""The latest record time of what has no records with times."""


def later_of(one: int, other: int) -> int:
    """The later of two latest record times; unknown if one is."""
    return UNKNOWN_TIME if UNKNOWN_TIME in {one, other} else max(one, other)


class LedgerInfo(NamedTuple):
    """One ledger in the record. Its contents are known once it is closed, and 0 before."""

    id: int
    first_index: int
    """Index of its first message."""
    entries: int = 0
    messages: int = 0
    size: int = 0
    """Bytes of its file."""
    last_timestamp_ms: int = 0
    """When its last entry was taken, milliseconds since the epoch."""
    closed: bool = False
    """Whether its end is decided. It is then complete and durable, and entries behind that end are never read."""
    aborted: int = 0
    """Transactions that its aborted-transaction index names; 0 while it needs no index."""
    aborted_owner: int = 0
    """The owner that wrote this index: the version of its claim, 0 if it had none. It is in the index's file name."""
    writer: Writer | None = None
    """Its writer. The entries of a ledger without an end are in this writer's journal (E2). Never None in a stored
    record."""
    epoch: int = 0
    """The leader epoch of the owner that made it (K44). It rises from ledger to ledger, or stays."""
    latest_record_ms: int = UNKNOWN_TIME
    """No record in it has a later time, as its producer says; UNKNOWN_TIME or NO_RECORDS. It saves a search by record
    time from reading the ledger (K39)."""
    unknown: UnknownColumns = ()
    """What a later release has put at the end of the ledger's row."""


LEDGERS_MAX: Final = 10_000
"""Closed ledgers of one managed ledger. At this number, size and age begin no further one. The last one grows, so that
the record stays below the limit of a metadata store. Each change of owner still adds one."""


class Trimmed(NamedTuple):
    """What was removed from the front."""

    position: Position = EARLIEST
    """The last entry removed."""
    next_index: int = 0
    """The index of the first message behind it."""


NOTHING_TRIMMED: Final = Trimmed()

NO_EPOCH: Final = -1
"""The leader epoch of a managed ledger that nobody has owned."""

_FIELDS: Final = frozenset(
    {
        "creation_id",
        "leader_epoch",
        "marked",
        "marked_from",
        "start_index",
        "sealed",
        "newest_id",
        "trimmed",
        "removing",
        "deleting",
        "writers",
        "ledgers",
        "aborted_owners",
    }
)
_CONTENTS: Final = LedgerInfo._fields.index("aborted_owner")
"""Columns of a ledger's row that tell its contents. Behind them come the writer's number, the epoch and the latest
record time. The owners of aborted indexes stand elsewhere."""
_COLUMNS: Final = _CONTENTS + 3
"""Columns of a ledger's row that this release knows. Earlier releases wrote no epoch and no record time."""


@dataclass(frozen=True, slots=True)
class ManagedLedgerRecord:
    """A managed ledger in the metadata store."""

    creation_id: str
    """Differs from that of every earlier or later managed ledger of the same name."""
    ledgers: tuple[LedgerInfo, ...]
    newest_id: int
    """The greatest ledger id that this managed ledger ever used. A later one is greater."""
    leader_epoch: int = NO_EPOCH
    """That of its present owner. Each owner takes the next one when it begins (K44)."""
    is_marked: bool = False
    """Whether its log may have markers, or entries of numbered producers (`txn/marked_log.py`)."""
    marked_from: int = 0
    """The first ledger that may have them. An earlier release did not record it, so that every ledger may."""
    start_index: int = 0
    """Messages below were deleted by request. Their entries may still be there (K38)."""
    sealed: bool = False
    trimmed: Trimmed = NOTHING_TRIMMED
    removing: tuple[int, ...] = ()
    """Trimmed ledgers whose files may still exist, because a crash interrupted the removal."""
    is_deleting: bool = False
    """Whether its deletion is decided: all of its files go, and then the record."""
    unknown_of_writers: Mapping[Writer, UnknownColumns] = field(default_factory=dict)
    """What a later release has put at the end of the rows of writers."""
    unknown: Unknown = NOTHING_UNKNOWN

    def keeping(self, before: "ManagedLedgerRecord | None") -> "ManagedLedgerRecord":
        """This record with the unknown columns of the ledgers that the record `before` it has, too."""
        rows = {} if before is None else {info.id: info.unknown for info in before.ledgers if info.unknown}
        if not rows:
            return self
        return replace(
            self, ledgers=tuple(info._replace(unknown=rows.get(info.id, info.unknown)) for info in self.ledgers)
        )

    def encode(self) -> bytes:
        """As JSON.

        A ledger is a row of its fields, and its writer an index into `writers`: about 70 bytes for each ledger.
        """
        writers = list(dict.fromkeys(ledger.writer for ledger in self.ledgers))
        numbers = {writer: number for number, writer in enumerate(writers)}
        indexed: dict[int, list[int]] = {}
        for ledger in self.ledgers:
            if ledger.aborted:
                indexed.setdefault(ledger.aborted_owner, []).append(ledger.id)
        return orjson.dumps(
            {
                "creation_id": self.creation_id,
                "leader_epoch": self.leader_epoch,
                "marked": self.is_marked,
                "marked_from": self.marked_from,
                "start_index": self.start_index,
                "sealed": self.sealed,
                "newest_id": self.newest_id,
                "trimmed": {"position": tuple(self.trimmed.position), "next_index": self.trimmed.next_index},
                "removing": self.removing,
                "deleting": self.is_deleting,
                "writers": [
                    None if writer is None else (*writer, *restored_columns(self.unknown_of_writers.get(writer, ())))
                    for writer in writers
                ],
                "ledgers": [
                    (
                        *ledger[:_CONTENTS],
                        numbers[ledger.writer],
                        ledger.epoch,
                        ledger.latest_record_ms,
                        *restored_columns(ledger.unknown),
                    )
                    for ledger in self.ledgers
                ],
                # Apart from the ledgers, because few have such an index, and few owners wrote them.
                "aborted_owners": [*indexed.items()],
                **restored(self.unknown),
            }
        )

    @classmethod
    def decode(cls, value: bytes) -> "ManagedLedgerRecord":
        """From JSON.

        Raises:
            LedgerListCorrupt: it is damaged.
        """
        try:
            return cls._decode(orjson.loads(value))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as damaged:
            raise LedgerListCorrupt(f"a list of ledgers cannot be read: {damaged!r}") from damaged

    @classmethod
    def _decode(cls, fields: Mapping[str, Any]) -> "ManagedLedgerRecord":
        width = len(Writer._fields)
        rows = fields["writers"]
        writers = [None if row is None else Writer(*row[:width]) for row in rows]
        unknown_of_writers = {
            writer: columns_after(row, width)
            for writer, row in zip(writers, rows, strict=True)
            if writer is not None and len(row) > width
        }
        owners = {ledger: owner for owner, ledgers in fields.get("aborted_owners", ()) for ledger in ledgers}
        record = cls(
            creation_id=fields["creation_id"],
            ledgers=tuple(
                LedgerInfo(*row[:_CONTENTS])._replace(
                    aborted_owner=owners.get(row[0], 0),
                    writer=writers[row[_CONTENTS]],
                    epoch=row[_CONTENTS + 1] if len(row) > _CONTENTS + 1 else 0,
                    latest_record_ms=row[_CONTENTS + 2] if len(row) > _CONTENTS + 2 else UNKNOWN_TIME,
                    unknown=columns_after(row, _COLUMNS),
                )
                for row in fields["ledgers"]
            ),
            newest_id=fields["newest_id"],
            leader_epoch=fields.get("leader_epoch", NO_EPOCH),
            is_marked=fields.get("marked", False),
            marked_from=fields.get("marked_from", 0),
            start_index=fields.get("start_index", 0),
            sealed=fields["sealed"],
            trimmed=Trimmed(Position(*fields["trimmed"]["position"]), fields["trimmed"]["next_index"]),
            removing=tuple(fields["removing"]),
            is_deleting=fields["deleting"],
            unknown_of_writers=unknown_of_writers,
            unknown=unknown_in(fields, _FIELDS),
        )
        record._require_types()
        return record

    def _require_types(self) -> None:
        writers = {ledger.writer for ledger in self.ledgers if ledger.writer is not None}
        texts = [self.creation_id, *(text for writer in writers for text in (writer.folder, writer.broker))]
        numbers = chain(
            (
                self.newest_id,
                self.leader_epoch,
                self.is_marked,
                self.marked_from,
                self.start_index,
                self.trimmed.position.ledger,
                self.trimmed.position.entry,
                self.trimmed.next_index,
            ),
            self.removing,
            (number for writer in writers for number in writer.life),
            chain.from_iterable(ledger[:_CONTENTS] for ledger in self.ledgers),
            chain.from_iterable((info.aborted_owner, info.epoch, info.latest_record_ms) for info in self.ledgers),
        )
        if not (set(map(type, texts)) <= {str} and set(map(type, numbers)) <= {int, bool}):
            raise TypeError("a field has another type")


class LeaderEpochs(NamedTuple):
    """The leader epochs of a managed ledger (K44)."""

    present: int
    """That of its present owner, or of its last one."""
    following: int
    """That of the next owner."""


UNOWNED: Final = LeaderEpochs(NO_EPOCH, NO_EPOCH + 1)
"""Of a managed ledger without a record."""


def leader_epochs(value: bytes) -> LeaderEpochs:
    """Read the epochs in a record, without its list of ledgers, which may be long.

    Raises:
        LedgerListCorrupt: the record is damaged.
    """
    try:
        fields = orjson.loads(value)
        present, is_sealed = fields.get("leader_epoch", NO_EPOCH), fields["sealed"]
        if type(present) is not int:
            raise TypeError("the leader epoch is no number")
    except (AttributeError, KeyError, TypeError, ValueError) as damaged:
        raise LedgerListCorrupt(f"a list of ledgers cannot be read: {damaged!r}") from damaged
    return LeaderEpochs(present, present if is_sealed else present + 1)


class LedgerList:
    """Position arithmetic. `closed` holds only ledgers with entries. The open one is kept beside them."""

    def __init__(self, closed: Sequence[LedgerInfo], trimmed: Trimmed = NOTHING_TRIMMED) -> None:
        self.trimmed = trimmed
        self.open_id: int | None = None
        """The ledger that accepts entries, or None."""
        self.open_entries = 0
        """How many entries it has, confirmed or not."""
        self._set(closed)

    @property
    def closed(self) -> Sequence[LedgerInfo]:
        """Ledgers that accept no more entries, in order. Their last entries may still be unconfirmed."""
        return self._closed

    def open(self, ledger: int) -> None:
        """Append to this ledger from now on."""
        assert self.open_id is None, "one ledger is open at a time"
        self.open_id = ledger
        self.open_entries = 0

    def close(self, info: LedgerInfo | None) -> None:
        """End the open ledger. Returns None, and forgets it, if it has no entries."""
        self.open_id = None
        if info is not None:
            self._set([*self._closed, info])

    def replace(self, info: LedgerInfo) -> None:
        """Replace what is known of a closed ledger by what is on the disk."""
        self._set([info if known.id == info.id else known for known in self._closed])

    def update(self, infos: Iterable[LedgerInfo]) -> None:
        """Replace what is known of several closed ledgers. Unknown ledgers are skipped."""
        better = {info.id: info for info in infos}
        self._set([better.get(known.id, known) for known in self._closed])

    def trim(self, upto: Position) -> list[LedgerInfo]:
        """Forget the closed ledgers that end at or below `upto`, and return them."""
        count = 0
        while count < len(self._closed) and _end(self._closed[count]) <= upto:
            count += 1
        gone = self._closed[:count]
        if gone:
            self.trimmed = Trimmed(_end(gone[-1]), gone[-1].first_index + gone[-1].messages)
            self._set(self._closed[count:])
        return gone

    @property
    def closed_end(self) -> int:
        """The index behind the last message of the closed ledgers, also of those that were trimmed."""
        return self._end_indexes[-1] if self._end_indexes else self.trimmed.next_index

    def last(self) -> Position:
        """The last entry, or the last one before it was trimmed; EARLIEST if there never was one."""
        if self.open_id is not None and self.open_entries:
            return Position(self.open_id, self.open_entries - 1)
        return _end(self._closed[-1]) if self._closed else self.trimmed.position

    def next_position(self) -> Position:
        """Where the next entry goes while this ledger stays open; the place behind the last one if none is open."""
        if self.open_id is not None:
            return Position(self.open_id, self.open_entries)
        last = self.last()
        return Position(last.ledger, last.entry + 1)

    def at_or_after(self, position: Position) -> Position | None:
        """The first existing entry at or above the position, or None."""
        number = bisect_left(self._ids, position.ledger)
        if number < len(self._ids):
            info = self._closed[number]
            if info.id > position.ledger:
                return Position(info.id, 0)
            if position.entry < info.entries:
                return Position(info.id, max(0, position.entry))
            if number + 1 < len(self._ids):
                return Position(self._ids[number + 1], 0)
        if self.open_id is None or not self.open_entries or position.ledger > self.open_id:
            return None
        if position.ledger < self.open_id:
            return Position(self.open_id, 0)
        return Position(self.open_id, max(0, position.entry)) if position.entry < self.open_entries else None

    def next_after(self, position: Position) -> Position:
        """The next place above: an entry, or where the next one goes.

        Behind all of that, the position plus one entry.
        """
        following = Position(position.ledger, position.entry + 1)
        found = self.at_or_after(following)
        if found is not None:
            return found
        if position >= LATEST:
            return LATEST
        return max(following, self.next_position())

    def previous(self, position: Position) -> Position:
        """The last existing entry below the position, or EARLIEST."""
        if self.open_id is not None and self.open_entries and position > Position(self.open_id, 0):
            entries = position.entry if position.ledger == self.open_id else self.open_entries
            return Position(self.open_id, min(entries, self.open_entries) - 1)
        number = bisect_left(self._ids, position.ledger)
        if number < len(self._ids) and self._ids[number] == position.ledger and position.entry > 0:
            return Position(position.ledger, min(position.entry, self._closed[number].entries) - 1)
        return _end(self._closed[number - 1]) if number else EARLIEST

    def entries_between(self, after: Position, upto: Position) -> int:
        """How many entries are above `after` and at or below `upto`."""
        return max(0, self._rank(upto) - self._rank(after))

    def cut(self, first: Position, last: Position) -> list[tuple[Position, Position]]:
        """The range from `first` to `last`, both included, cut at the ends of its ledgers, in order."""
        pieces = []
        while first < last:
            end = min(last, Position(first.ledger, self.last_entry(first.ledger)))
            if end >= first:
                pieces.append((first, end))
            following = self.next_after(max(end, first))
            if following > last:
                return pieces
            first = following
        return [*pieces, (first, last)]

    def last_entry(self, ledger: int) -> int:
        """Number of the ledger's last entry; -1 if it has none or is not in this list."""
        if ledger == self.open_id:
            return self.open_entries - 1
        info = self.info(ledger)
        return -1 if info is None else info.entries - 1

    def info(self, ledger: int) -> LedgerInfo | None:
        """What is known of a closed ledger, or None."""
        number = bisect_left(self._ids, ledger)
        return self._closed[number] if number < len(self._ids) and self._ids[number] == ledger else None

    def ledger_of_index(self, index: int) -> int | None:
        """The closed ledger with the message of this index, or the first one behind it; None if it is not closed."""
        number = bisect_right(self._end_indexes, index)
        return self._ids[number] if number < len(self._ids) else None

    def ledger_at_time(self, timestamp_ms: int) -> int | None:
        """The first closed ledger with an entry of this time or later; None if it is not closed."""
        number = bisect_left(self._end_times, timestamp_ms)
        return self._ids[number] if number < len(self._ids) else None

    def _set(self, closed: Sequence[LedgerInfo]) -> None:
        assert all(info.entries for info in closed), "an empty ledger is dropped when it is closed"
        self._closed = list(closed)
        self._ids = [info.id for info in closed]
        self._ranks = [0, *accumulate(info.entries for info in closed)]
        self._end_indexes = [info.first_index + info.messages for info in closed]
        self._end_times = [info.last_timestamp_ms for info in closed]

    def _rank(self, position: Position) -> int:
        number = bisect_left(self._ids, position.ledger)
        rank = self._ranks[number]
        if number < len(self._ids) and self._ids[number] == position.ledger:
            rank += min(max(0, position.entry + 1), self._closed[number].entries)
        if self.open_id is not None and position.ledger >= self.open_id:
            entries = position.entry + 1 if position.ledger == self.open_id else self.open_entries
            rank += min(max(0, entries), self.open_entries)
        return rank


def _end(info: LedgerInfo) -> Position:
    return Position(info.id, info.entries - 1)
