"""Op records: what a transaction did.

One for each (transaction, segment) with writes, one for each acknowledgement command.

They are at `/txn/op/<tc>_<n>-<20 digits>`, in the transaction's partition. The record of a write is durable before the
transaction's first entry on the segment is appended. It holds a true lower bound of that entry's position. So the next
owner of the segment finds every unresolved entry by its record (docs/design.md#transactions). The record names the
segment's creation id, so that a segment that was deleted and made again under the same name is another one (D16).

The record of an acknowledgement is durable before the command is answered, and holds the whole command. The cursor
changes when the transaction is committed (T22, T23). The record names the cursor's creation id, for the same reason. It
also names the command, by its consumer and request id. So the next owner can tell the repeat of a command whose answer
was lost from a second acknowledgement of the same messages (`txn.pending_transaction.CommandId`).

The key of a damaged record still names the transaction, and its index entry still names the segment and subscription.

Pure.
"""

from dataclasses import dataclass
from functools import lru_cache
from operator import index as whole
from typing import Final
from urllib.parse import quote, unquote

import orjson

from storage.entry import TxnId
from storage.metadata.store import IndexEntry, PutSequential, Record, exactly, starting_with
from storage.position import Position
from storage.ranges import EntryAck, bits_from_words, words_from_bits
from txn.errors import UNREADABLE, RecordUnreadable
from txn.headers import txn_from_name, txn_name
from txn.pending_transaction import CommandId

KEY_PREFIX: Final = "/txn/op/"
WRITES_BY_SEGMENT: Final = "writes-by-segment"
ACKS_BY_SUBSCRIPTION: Final = "acks-by-segment-subscription"


@dataclass(frozen=True, slots=True)
class WriteOp:
    """A transaction writes to a segment."""

    txn: TxnId
    segment: str
    creation_id: str
    lower_bound: Position
    """No entry of the transaction on this segment is below it."""
    owner: int | None = None
    """The version of the claim under which the segment's owner wrote this record."""

    def to_put(self) -> PutSequential:
        """The record to write, with its index entry."""
        fields = {
            "kind": "write",
            "segment": self.segment,
            "creation_id": self.creation_id,
            "ledger": self.lower_bound.ledger,
            "entry": self.lower_bound.entry,
            "owner": self.owner,
        }
        name = txn_name(self.txn)
        index = IndexEntry(WRITES_BY_SEGMENT, segment_index_key(self.segment))
        return PutSequential(KEY_PREFIX + name, orjson.dumps(fields), name, (index,))

    @classmethod
    def from_record(cls, record: Record) -> "WriteOp":
        """The op that `to_put` wrote.

        Raises:
            RecordUnreadable: it is damaged.
        """
        try:
            fields = orjson.loads(record.value)
            position = Position(whole(fields["ledger"]), whole(fields["entry"]))
            names = fields["segment"], _text(fields["creation_id"])
            return cls(txn_of_op(record.key), *names, position, fields.get("owner"))
        except UNREADABLE as damaged:
            raise RecordUnreadable(f"an op record cannot be read: {damaged!r}") from damaged


@dataclass(frozen=True, slots=True)
class AckOp:
    """A transaction acknowledges on a subscription of a segment: one command."""

    txn: TxnId
    segment: str
    subscription: str
    creation_id: str
    """The cursor's creation id."""
    cumulative: bool
    acks: tuple[EntryAck, ...]
    command: CommandId | None = None
    owner: int | None = None
    """The version of the claim under which the segment's owner wrote this record."""

    def to_put(self) -> PutSequential:
        """The record to write, with its index entry."""
        fields = {
            "kind": "ack",
            "segment": self.segment,
            "subscription": self.subscription,
            "creation_id": self.creation_id,
            "cumulative": self.cumulative,
            "acks": [
                (
                    ack.position.ledger,
                    ack.position.entry,
                    words_from_bits(ack.remaining) if ack.remaining else (),
                    ack.batch_size,
                )
                for ack in self.acks
            ],
            "command": None if self.command is None else (self.command.consumer, self.command.request),
            "owner": self.owner,
        }
        name = txn_name(self.txn)
        index = IndexEntry(ACKS_BY_SUBSCRIPTION, _subscription_index_key(self.segment, self.subscription))
        return PutSequential(KEY_PREFIX + name, orjson.dumps(fields), name, (index,))

    @classmethod
    def from_record(cls, record: Record) -> "AckOp":
        """The op that `to_put` wrote.

        Raises:
            RecordUnreadable: it is damaged.
        """
        try:
            fields = orjson.loads(record.value)
            acks = tuple(
                EntryAck(Position(whole(ledger), whole(entry)), bits_from_words(words), whole(batch_size))
                for ledger, entry, words, batch_size in fields["acks"]
            )
            return cls(
                txn_of_op(record.key),
                fields["segment"],
                fields["subscription"],
                _text(fields["creation_id"]),
                fields["cumulative"],
                acks,
                None if fields["command"] is None else CommandId(*fields["command"][:2]),
                fields.get("owner"),
            )
        except UNREADABLE as damaged:
            raise RecordUnreadable(f"an op record cannot be read: {damaged!r}") from damaged


def kind_of(record: Record) -> str:
    """What an op record is of: `write` or `ack`.

    Raises:
        RecordUnreadable: it does not say.
    """
    try:
        return str(orjson.loads(record.value)["kind"])
    except UNREADABLE as damaged:
        raise RecordUnreadable(f"an op record cannot be read: {damaged!r}") from damaged


def segment_of(record: Record) -> str:
    """The segment of an op record of either kind.

    Raises:
        RecordUnreadable: it names none.
    """
    try:
        return str(orjson.loads(record.value)["segment"])
    except UNREADABLE as damaged:
        raise RecordUnreadable(f"an op record cannot be read: {damaged!r}") from damaged


@lru_cache(maxsize=1024)
def segment_index_key(segment: str) -> str:
    """A segment's name in index keys and record keys: percent-encoded, so that no two names collide."""
    return quote(segment, safe="")


def writes_of_segment(segment: str) -> tuple[str, str]:
    """The part of `writes-by-segment` for one segment."""
    return exactly(segment_index_key(segment))


def acks_of_subscription(segment: str, subscription: str) -> tuple[str, str]:
    """The part of `acks-by-segment-subscription` for one subscription of a segment."""
    return exactly(_subscription_index_key(segment, subscription))


def acks_of_segment(segment: str) -> tuple[str, str]:
    """The part of `acks-by-segment-subscription` for all subscriptions of a segment."""
    return starting_with(_subscription_index_key(segment, ""))


def subscription_of(index_key: str) -> str:
    """The subscription in an index key of `acks-by-segment-subscription`."""
    return unquote(index_key.rpartition(":")[2])


def txn_of_op(key: str) -> TxnId:
    """The transaction of the op record at `key`.

    Raises:
        RecordUnreadable: this program writes no such key.
    """
    name, _, _ = key.removeprefix(KEY_PREFIX).rpartition("-")
    return txn_from_name(name)


def ops_of(txn: TxnId) -> tuple[str, str]:
    """The key range of all op records of one transaction."""
    return starting_with(f"{KEY_PREFIX}{txn_name(txn)}-")


def _subscription_index_key(segment: str, subscription: str) -> str:
    # Percent-encoded names hold no colon, so no two pairs of names share a key (T32).
    return f"{segment_index_key(segment)}:{quote(subscription, safe='')}"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
