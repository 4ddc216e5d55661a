"""Op records: what a transaction did, one record per (transaction, segment) for writes.

`/txn/op/<tc>_<n>-<20 digits>`, in the transaction's partition. A write's record is durable before the segment's first
entry of that transaction is appended and carries a true lower bound of that entry's position; so whoever owns the
segment next finds every unresolved entry by its record (DESIGN section 7). It names the segment's creation id, so that
a segment deleted and made again under the same name is another (D16).

Pure.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import orjson

from storage.entry import TxnId
from storage.metadata.store import IndexEntry, PutSequential, Record, exactly, starting_with
from storage.position import Position
from txn.headers import txn_from_name, txn_name

KEY_PREFIX: Final = "/txn/op/"
WRITES_BY_SEGMENT: Final = "writes-by-segment"


@dataclass(frozen=True, slots=True)
class WriteOp:
    """A transaction writes to a segment."""

    txn: TxnId
    segment: str
    creation_id: str
    lower_bound: Position
    """No entry of the transaction on this segment stands below it."""

    def to_put(self) -> PutSequential:
        """The record to add, with its index entry."""
        fields = {
            "kind": "write",
            "segment": self.segment,
            "creation_id": self.creation_id,
            "ledger": self.lower_bound.ledger,
            "entry": self.lower_bound.entry,
        }
        name = txn_name(self.txn)
        index = IndexEntry(WRITES_BY_SEGMENT, segment_index_key(self.segment))
        return PutSequential(KEY_PREFIX + name, orjson.dumps(fields), name, (index,))

    @classmethod
    def from_record(cls, record: Record) -> "WriteOp":
        """The op that `to_put` wrote."""
        fields = orjson.loads(record.value)
        name, _, _ = record.key.removeprefix(KEY_PREFIX).rpartition("-")
        position = Position(fields["ledger"], fields["entry"])
        return cls(txn_from_name(name), fields["segment"], fields["creation_id"], position)


def segment_index_key(segment: str) -> str:
    """A segment's name as it stands in index keys and record keys: percent-encoded, so that no name meets another."""
    return quote(segment, safe="")


def writes_of_segment(segment: str) -> tuple[str, str]:
    """The part of `writes-by-segment` that one segment has."""
    return exactly(segment_index_key(segment))


def ops_of(txn: TxnId) -> tuple[str, str]:
    """The key range of every op record of one transaction."""
    return starting_with(f"{KEY_PREFIX}{txn_name(txn)}-")
