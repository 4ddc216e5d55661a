"""What the record of a managed ledger says: its ledgers, where they end, and what was trimmed.

`managed_ledger_record` reads and writes it, and `ledger_list` calculates with it. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, NamedTuple

import orjson

from storage.errors import LedgerListCorrupt
from storage.position import EARLIEST, Position
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
