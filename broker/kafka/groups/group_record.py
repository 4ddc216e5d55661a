"""The record of a group: what a coordinator stores, so that another one can go on.

    /kafka/groups/<quoted group>    generation, protocol, leader, and members with their protocols and assignments

Every group that has offsets has a record, even if nobody ever joined it. So the records are the list of all groups. A
record is in the index `kafka-groups-by-age`, under the moment from which the retention of its offsets counts at the
earliest (`expiry.py`). Bytes are base64, as what clients say of themselves is no text. Pure.
"""

from base64 import b64decode, b64encode
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import orjson

from broker.kafka.groups.values import GroupRecord, MemberRecord, Protocol
from storage.errors import ExpectedError
from storage.metadata.store import IndexEntry, Put
from storage.unknown_fields import NOTHING_UNKNOWN, Unknown, restored, unknown_in

GROUPS: Final = "/kafka/groups/"
"""What the keys of all groups begin with."""

GROUPS_AT_ONCE: Final = 16
"""Groups that are read together. A record may be large."""

BY_AGE: Final = "kafka-groups-by-age"

_DIGITS: Final = 20

_FIELDS: Final = frozenset({"generation", "protocol_type", "protocol", "leader", "members", "seen", "since_ms"})


class GroupRecordDamaged(ExpectedError):
    """The record of a group cannot be read. Its members and generation are unknown, so it is not served."""


class StoredGroup(NamedTuple):
    """A group, and when it was stored."""

    record: GroupRecord
    since_ms: int
    """When it was stored in this state, by its coordinator's clock."""
    unknown: Unknown = NOTHING_UNKNOWN
    """Fields of a later release."""


def group_key(group: str) -> str:
    """The key of a group's record."""
    return GROUPS + quote(group, safe="")


def group_of_key(key: str) -> str:
    """The group whose record has this key."""
    return unquote(key.removeprefix(GROUPS))


def aged_before(moment_ms: int) -> str:
    """The first index key of a record whose retention counts from this moment."""
    return f"{max(moment_ms, 0):0{_DIGITS}}"


def moment_of(index_key: str) -> int:
    """The moment in an index key."""
    return int(index_key[:_DIGITS])


def to_put(group: str, stored: StoredGroup, expected: int, *, from_ms: int | None = None) -> Put:
    """Write the record. `from_ms` is the moment from which the retention of its offsets counts at the earliest."""
    record = stored.record
    value = orjson.dumps(
        {
            "generation": record.generation,
            "protocol_type": record.protocol_type,
            "protocol": record.protocol,
            "leader": record.leader,
            "members": [_encode_member(member) for member in record.members],
            **({"seen": dict(record.seen)} if record.seen else {}),
            "since_ms": stored.since_ms,
            **restored(stored.unknown),
        }
    )
    moment_ms = stored.since_ms if from_ms is None else from_ms
    key = group_key(group)
    # No two groups have the same index key, so a sweep can go on behind any of them.
    return Put(key, value, expected, (IndexEntry(BY_AGE, aged_before(moment_ms) + key),))


def from_value(key: str, value: bytes) -> StoredGroup:
    """Read a record.

    Raises:
        GroupRecordDamaged: this program does not write such a record.
    """
    try:
        fields = orjson.loads(value)
        members = tuple(_decode_member(member) for member in fields["members"])
        record = GroupRecord(
            int(fields["generation"]),
            fields["protocol_type"],
            fields["protocol"],
            fields["leader"],
            members,
            {str(topic): int(count) for topic, count in fields.get("seen", {}).items()},
        )
        if record.leader not in (None, *(member.member_id for member in members)):
            raise ValueError("the leader is no member")
        return StoredGroup(record, int(fields["since_ms"]), unknown_in(fields, _FIELDS))
    except (AttributeError, KeyError, TypeError, ValueError) as damaged:
        raise GroupRecordDamaged(
            f"The record {key} of the group {group_of_key(key)} is damaged ({damaged!r}). Delete the group to use its "
            "name again. Its offsets are deleted with it."
        ) from damaged


def _encode_member(member: MemberRecord) -> dict[str, Any]:
    return {
        **member._asdict(),
        "protocols": [[protocol.name, _text(protocol.metadata)] for protocol in member.protocols],
        "assignment": _text(member.assignment),
    }


def _decode_member(fields: dict[str, Any]) -> MemberRecord:
    return MemberRecord(
        fields["member_id"],
        fields["instance_id"],
        fields["client_id"],
        fields["client_host"],
        int(fields["session_timeout_ms"]),
        int(fields["rebalance_timeout_ms"]),
        tuple(Protocol(str(name), b64decode(metadata)) for name, metadata in fields["protocols"]),
        b64decode(fields["assignment"]),
    )


def _text(value: bytes) -> str:
    return b64encode(value).decode()
