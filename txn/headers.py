"""Transaction headers: `/txn/id/<tc>_<n>`, the record whose compare-and-set decides a transaction.

An open header is in the index `txn-by-deadline` for the timeout sweep, a final one in `txn-by-final-state` for garbage
collection. The index entries change in the same step as the header (T32). Their keys end in the transaction's name. So
no two headers have the same key, and a sweep can continue behind any of them. Until it is final, a header that belongs
to a group is also in `txn-by-group`, under its application. While it is open, the group may have decided it
(group_record.py).

Ids: `most` is the coordinator's id. `least` is a number from a block that the coordinator reserved, with bit 62 set. No
v4 id has that bit, so the two kinds of id cannot collide (docs/design.md#transactions, T33). Keys show the plain
number.

Pure.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote

import orjson

from storage.entry import TxnId
from storage.metadata.store import IndexEntry, Put, exactly
from storage.unknown_fields import NOTHING_UNKNOWN, Unknown, restored, unknown_in
from txn.errors import UNREADABLE, RecordUnreadable
from txn.states import TxnState

V5_BIT: Final = 1 << 62

KEY_PREFIX: Final = "/txn/id/"
HEADERS_REMEMBERED: Final = 1024
"""Headers that are kept decoded."""

_FIELDS: Final = frozenset({"state", "timeout_ms", "created_ms", "finalized_ms", "group"})

BY_DEADLINE: Final = "txn-by-deadline"
BY_FINAL_STATE: Final = "txn-by-final-state"
BY_GROUP: Final = "txn-by-group"


class TransactionGroup(NamedTuple):
    """A batch of an application. All its transactions are decided at once."""

    application: str
    batch: int


def v5_id(tc_id: int, number: int) -> TxnId:
    """The id of the `number`-th transaction of coordinator `tc_id`."""
    return TxnId(tc_id, number | V5_BIT)


def is_v5(txn: TxnId) -> bool:
    """Whether a v5 coordinator made the id."""
    return txn.least & V5_BIT != 0


def txn_name(txn: TxnId) -> str:
    """`<tc>_<n>`: the transaction's partition key, and its part in the keys of its records."""
    return f"{txn.most}_{txn.least & ~V5_BIT}"


def txn_from_name(name: str) -> TxnId:
    """The inverse of `txn_name`.

    Raises:
        RecordUnreadable: the text is no such name.
    """
    tc_id, _, number = name.partition("_")
    try:
        return v5_id(int(tc_id), int(number))
    except UNREADABLE as damaged:
        raise RecordUnreadable(f"{name!r} names no transaction") from damaged


def header_key(txn: TxnId) -> str:
    """The key of the transaction's header."""
    return KEY_PREFIX + txn_name(txn)


def txn_of_key(key: str) -> TxnId:
    """The transaction of the header at `key`."""
    return txn_from_name(key.removeprefix(KEY_PREFIX))


def fixed_width(number: int) -> str:
    """A number for an index key: 20 digits, so that bytewise order is numeric order (M12)."""
    return f"{number:020d}"


def stamped_until(prefix: str, until_ms: int) -> tuple[str, str]:
    """The part of an index whose keys have this prefix and then a moment by `until_ms`, inclusive (T9)."""
    return prefix, prefix + fixed_width(max(until_ms + 1, 0))


def finalized_ms_of(index_key: str) -> int:
    """When the header under this key of `txn-by-final-state` was decided. Milliseconds since the epoch."""
    try:
        return int(index_key.split(":")[1])
    except UNREADABLE as damaged:
        raise RecordUnreadable(f"{index_key!r} has no moment") from damaged


def moment_of(index_key: str) -> int:
    """The moment with which a key of an index by time begins. Milliseconds since the epoch.

    Raises:
        RecordUnreadable: this program writes no such key.
    """
    try:
        return int(index_key.partition(":")[0])
    except UNREADABLE as damaged:
        raise RecordUnreadable(f"{index_key!r} has no moment") from damaged


def group_members(application: str) -> tuple[str, str]:
    """The part of `txn-by-group` for one application: its transactions that are not known to have ended."""
    return exactly(quote(application, safe=""))


@dataclass(frozen=True, slots=True)
class Header:
    """A transaction's decision and its times (T1). All times are milliseconds since the epoch."""

    state: TxnState
    timeout_ms: int
    """When the sweep may abort it, if it is still open."""
    created_ms: int
    finalized_ms: int | None = None
    """When it was decided. Set in the same compare-and-set as the state (T6)."""
    group: TransactionGroup | None = None
    """Its group, if it belongs to one."""
    unknown: Unknown = NOTHING_UNKNOWN

    def ended(self, state: TxnState, now_ms: int) -> "Header":
        """The header after its only move."""
        assert not self.state.is_final, "a final state never changes"
        assert state.is_final, "the only move ends the transaction"
        return replace(self, state=state, finalized_ms=now_ms)

    def to_put(self, txn: TxnId, expected: int) -> Put:
        """The conditional write of this header with its index entry."""
        fields: dict[str, object] = {
            "state": self.state,
            "timeout_ms": self.timeout_ms,
            "created_ms": self.created_ms,
            **restored(self.unknown),
        }
        if self.finalized_ms is None:
            indexes = [IndexEntry(BY_DEADLINE, f"{fixed_width(self.timeout_ms)}:{txn_name(txn)}")]
        else:
            fields["finalized_ms"] = self.finalized_ms
            moment = fixed_width(self.finalized_ms)
            indexes = [IndexEntry(BY_FINAL_STATE, f"{self.state}:{moment}:{txn_name(txn)}")]
        if self.group is not None:
            fields["group"] = self.group._asdict()
            if self.finalized_ms is None:
                indexes.append(IndexEntry(BY_GROUP, quote(self.group.application, safe="")))
        return Put(header_key(txn), orjson.dumps(fields), expected, tuple(indexes), txn_name(txn))

    @classmethod
    def from_value(cls, value: bytes) -> "Header":
        """The header that `to_put` wrote.

        Raises:
            RecordUnreadable: it is damaged.
        """
        return _header_of(value)


@lru_cache(maxsize=HEADERS_REMEMBERED)
def _header_of(value: bytes) -> Header:
    """Decode a header. Remembered, because each send of a transaction looks at its header twice."""
    try:
        fields = orjson.loads(value)
        group = fields.get("group")
        return Header(
            TxnState(fields["state"]),
            fields["timeout_ms"],
            fields["created_ms"],
            fields.get("finalized_ms"),
            None if group is None else TransactionGroup(group["application"], group["batch"]),
            unknown_in(fields, _FIELDS),
        )
    except UNREADABLE as damaged:
        raise RecordUnreadable(f"a transaction's header cannot be read: {damaged!r}") from damaged
