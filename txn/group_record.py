"""A group's record, `/txn/group/<application>`: one compare-and-set on it decides all transactions of a batch.

Each attempt of a Spark task writes in a transaction of its own. An attempt may fail, be retried, or run twice at once.
All of them name the group, (application, batch), in their headers. The decision names the winners, and every other
transaction is aborted. An application has one record, which goes from batch to batch and keeps the last one. So a batch
that is retried after any pause is recognised as applied (docs/design.md#groups).

An abort of one transaction of an undecided group writes the group's record again in the same change set. A decision
requires the record's version. So the decision knows that no winner was aborted since it looked, however many winners
there are.

Pure.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import orjson

from storage.entry import TxnId
from storage.metadata.store import IndexEntry, Put
from storage.unknown_fields import NOTHING_UNKNOWN, Unknown, restored, unknown_in
from txn.errors import UNREADABLE, AppliedByAnother, AppliedOtherwise, GroupAborted, RecordUnreadable
from txn.headers import TransactionGroup, fixed_width, txn_from_name, txn_name
from txn.states import TxnState

KEY_PREFIX: Final = "/txn/group/"
ONCE_BY_TIME: Final = "groups-once-by-time"

_FIELDS: Final = frozenset({"batch", "state", "since_ms", "once", "applied", "winners", "origin", "plan", "rows"})


class GroupState(StrEnum):
    """The state of the batch in a record. The values are those in the metadata store."""

    OPEN = "OPEN"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"
    """Final, so it is used only if nobody retries the batch. Nobody would end transactions that begin in it later."""


class Standing(NamedTuple):
    """A batch's relation to the record of its application."""

    is_applied: bool
    """This batch, or a later one, is committed."""
    is_current: bool
    """The record is about this batch, and undecided, so transactions may join."""


class Content(NamedTuple):
    """What a batch holds, in the writer's own words, which are only compared. None means unknown."""

    plan: str | None = None
    """How it was planned. Equal plans are the same batch, even if its rows differ each time they are computed."""
    rows: str | None = None
    """Its rows. With equal rows, not writing the batch loses nothing."""

    def is_same(self, other: "Content") -> bool:
        """Whether the plan or the rows are known to be equal."""
        return any(own is not None and own == others for own, others in zip(self, other, strict=True))


UNKNOWN: Final = Content()


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """An application's last batch."""

    batch: int
    state: GroupState
    since_ms: int
    """When the batch was begun, or decided once it is. Milliseconds since the epoch."""
    once: bool = False
    """Nobody asks for the application after the batch has ended, so the record is removed after a while."""
    applied: int | None = None
    """The last committed batch. It is this one if the state says so."""
    winners: frozenset[TxnId] = frozenset()
    """For a committed batch: its committed transactions."""
    origin: str | None = None
    """Who numbers the batches, if known. Equal numbers of another origin mean other batches."""
    content: Content = UNKNOWN
    """The content of the last committed batch."""
    unknown: Unknown = NOTHING_UNKNOWN
    """It stays with the application, from batch to batch."""

    def to_put(self, application: str, expected: int) -> Put:
        """The conditional write of this record with its index entry."""
        name = quote(application, safe="")
        fields: dict[str, object] = {
            "batch": self.batch,
            "state": self.state,
            "since_ms": self.since_ms,
            "applied": self.applied,
            "winners": sorted(txn_name(txn) for txn in self.winners),
            **restored(self.unknown),
        }
        indexes: tuple[IndexEntry, ...] = ()
        if self.origin is not None:
            fields["origin"] = self.origin
        fields.update((name, value) for name, value in self.content._asdict().items() if value is not None)
        if self.once:
            fields["once"] = True
            indexes = (IndexEntry(ONCE_BY_TIME, f"{fixed_width(self.since_ms)}:{name}"),)
        return Put(group_key(application), orjson.dumps(fields), expected, indexes, name)

    @classmethod
    def from_value(cls, value: bytes) -> "GroupRecord":
        """The record that `to_put` wrote.

        Raises:
            RecordUnreadable: it is damaged.
        """
        try:
            fields = orjson.loads(value)
            return cls(
                fields["batch"],
                GroupState(fields["state"]),
                fields["since_ms"],
                fields.get("once", False),
                fields["applied"],
                frozenset(txn_from_name(name) for name in fields["winners"]),
                fields.get("origin"),
                Content(fields.get("plan"), fields.get("rows")),
                unknown_in(fields, _FIELDS),
            )
        except UNREADABLE as damaged:
            raise RecordUnreadable(f"a group's record cannot be read: {damaged!r}") from damaged


def group_key(application: str) -> str:
    """The key of an application's record."""
    return KEY_PREFIX + quote(application, safe="")


def application_of(key: str) -> str:
    """The application of the record at `key`."""
    return unquote(key.removeprefix(KEY_PREFIX))


def standing(record: GroupRecord | None, batch: int) -> Standing:
    """A batch's relation to its application's record, if there is one."""
    if record is None:
        return Standing(is_applied=False, is_current=False)
    is_applied = record.applied is not None and batch <= record.applied
    return Standing(is_applied, not is_applied and batch == record.batch)


def require_going_on(record: GroupRecord | None, group: TransactionGroup) -> None:
    """Return if the application still accepts transactions and commits.

    Raises:
        GroupAborted: it was aborted for good.
    """
    if record is not None and record.state is GroupState.ABORTED:
        raise GroupAborted(group.application)


def require_origin(record: GroupRecord | None, group: TransactionGroup, origin: str | None) -> None:
    """Return if an applied batch has the given origin, or if one of the two origins is unknown.

    Raises:
        AppliedByAnother: the origins differ.
    """
    if record is None or record.applied is None or record.origin is None or origin is None:
        return
    if origin != record.origin:
        raise AppliedByAnother(group.application, group.batch, record.applied, record.origin)


def require_same(record: GroupRecord | None, group: TransactionGroup, content: Content | None) -> None:
    """Return if an applied batch is the given one. None as content compares by the number alone.

    A writer repeats only its last batch. So an earlier number means that it went back, and the content of that batch is
    no longer known.

    Raises:
        AppliedOtherwise: it is another batch, or unknown.
    """
    if record is None or record.applied is None or content is None:
        return
    if group.batch < record.applied or not content.is_same(record.content):
        raise AppliedOtherwise(group.application, group.batch, record.applied)


def state_in(record: GroupRecord | None, group: TransactionGroup, txn: TxnId) -> TxnState:
    """The group's decision about one of its transactions whose header is open.

    A record of a later batch means that this batch is over. The later one began only after the winners of this one, if
    any, had been written into their headers.
    """
    if record is None or record.batch < group.batch:
        return TxnState.OPEN
    if record.batch > group.batch:
        return TxnState.ABORTED
    if record.state is GroupState.OPEN:
        return TxnState.OPEN
    return TxnState.COMMITTED if txn in record.winners else TxnState.ABORTED
