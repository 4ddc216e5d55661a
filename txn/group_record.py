"""A group's record, `/txn/group/<application>`: one compare-and-set on it decides all transactions of a batch.

A Spark task writes in a transaction of its own, perhaps several times over: failed, tried again, tried twice at once.
All of them name the group, (application, batch), in their headers; the decision names the winners, and every other one
is aborted. An application has one record, which goes from batch to batch and keeps the last one, so that a batch which
is tried again after any pause is known to be there already (docs/design.md#groups).

Whoever aborts one transaction of an undecided group writes the group's record anew in the same change set. So a
decision, which is conditioned on the record's version, knows that no winner was aborted since it looked, however many
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
from txn.errors import UNREADABLE, AppliedOtherwise, RecordUnreadable
from txn.headers import TransactionGroup, fixed_width, txn_from_name, txn_name
from txn.states import TxnState

KEY_PREFIX: Final = "/txn/group/"
ONCE_BY_TIME: Final = "groups-once-by-time"


class GroupState(StrEnum):
    """What a record says of its batch. The values are what stands in the metadata store."""

    OPEN = "OPEN"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"
    """For good, so only where nobody tries the batch again: what is begun in it after that would be nobody's to end."""


class Standing(NamedTuple):
    """How a batch stands to the record of its application."""

    is_applied: bool
    """It, or a later one, is committed."""
    is_current: bool
    """The record is about it, and undecided: transactions may join."""


class Content(NamedTuple):
    """What a batch holds, in the words of whoever writes it, which are only compared. None is unknown."""

    plan: str | None = None
    """How it was planned: equal plans are the same batch, even if its rows cannot be computed twice alike."""
    rows: str | None = None
    """Its rows: with equal rows nothing is lost by not writing them."""

    def is_same(self, other: "Content") -> bool:
        """Whether one of the two is known to be the same."""
        return any(own is not None and own == others for own, others in zip(self, other, strict=True))


UNKNOWN: Final = Content()


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """An application's last batch."""

    batch: int
    state: GroupState
    since_ms: int
    """When the batch was begun or, once it is decided, decided; in milliseconds since the epoch."""
    once: bool = False
    """Nobody asks for the application again once the batch has ended, so the record is removed after a while."""
    applied: int | None = None
    """The last batch that was committed; this one, when the state says so."""
    winners: frozenset[TxnId] = frozenset()
    """Of a committed batch: the transactions that are."""
    origin: str | None = None
    """Who numbers the batches, if anybody ever said; another one's numbers mean other batches."""
    content: Content = UNKNOWN
    """Of the last batch that was committed."""

    def to_put(self, application: str, expected: int) -> Put:
        """The conditional write of this record with its index entry."""
        fields: dict[str, object] = {
            "batch": self.batch,
            "state": self.state,
            "since_ms": self.since_ms,
            "applied": self.applied,
            "winners": sorted(txn_name(txn) for txn in self.winners),
        }
        indexes: tuple[IndexEntry, ...] = ()
        if self.origin is not None:
            fields["origin"] = self.origin
        fields.update((name, value) for name, value in self.content._asdict().items() if value is not None)
        if self.once:
            fields["once"] = True
            indexes = (IndexEntry(ONCE_BY_TIME, fixed_width(self.since_ms)),)
        return Put(group_key(application), orjson.dumps(fields), expected, indexes, quote(application, safe=""))

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
            )
        except UNREADABLE as damaged:
            raise RecordUnreadable(f"a group's record cannot be read: {damaged!r}") from damaged


def group_key(application: str) -> str:
    """Where an application's record stands."""
    return KEY_PREFIX + quote(application, safe="")


def application_of(key: str) -> str:
    """The application whose record stands at `key`."""
    return unquote(key.removeprefix(KEY_PREFIX))


def unchanged_since(moment_ms: int) -> tuple[str, str]:
    """The part of `groups-once-by-time` that was begun or decided by then, that moment included, and not since."""
    return "", fixed_width(max(moment_ms + 1, 0))


def standing(record: GroupRecord | None, batch: int) -> Standing:
    """How a batch stands to its application's record, if there is one."""
    if record is None:
        return Standing(is_applied=False, is_current=False)
    is_applied = record.applied is not None and batch <= record.applied
    return Standing(is_applied, not is_applied and batch == record.batch)


def require_same(record: GroupRecord | None, group: TransactionGroup, content: Content | None) -> None:
    """Hold that a batch which is applied is the one that is meant. None goes by the number alone.

    Whoever writes batch after batch repeats the last one only. So an earlier number comes from somebody who went back,
    and what that batch held is not known any more.

    Raises:
        AppliedOtherwise: it is not, or nobody knows.
    """
    if record is None or record.applied is None or content is None:
        return
    if group.batch < record.applied or not content.is_same(record.content):
        raise AppliedOtherwise(group.application, group.batch, record.applied)


def state_in(record: GroupRecord | None, group: TransactionGroup, txn: TxnId) -> TxnState:
    """What the group says of one of its transactions whose header is open.

    A record that is about a later batch says that this one is over: it was begun when the winners of this one, if there
    were any, had been told.
    """
    if record is None or record.batch < group.batch:
        return TxnState.OPEN
    if record.batch > group.batch:
        return TxnState.ABORTED
    if record.state is GroupState.OPEN:
        return TxnState.OPEN
    return TxnState.COMMITTED if txn in record.winners else TxnState.ABORTED
