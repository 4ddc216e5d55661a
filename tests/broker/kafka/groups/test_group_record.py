"""The record of a group: it is read as it was written, and nothing else is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.kafka.groups.group_record import (
    GroupRecordDamaged,
    StoredGroup,
    aged_before,
    from_value,
    group_key,
    group_of_key,
    moment_of,
    to_put,
)
from broker.kafka.groups.membership import Member, stored_bytes
from broker.kafka.groups.values import GroupRecord, MemberRecord, Protocol

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PROTOCOLS = st.lists(st.builds(Protocol, TEXT, st.binary(max_size=30)), max_size=3).map(tuple)
MEMBERS = st.lists(
    st.builds(
        MemberRecord,
        TEXT,
        st.none() | TEXT,
        TEXT,
        TEXT,
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**31 - 1),
        PROTOCOLS,
        st.binary(max_size=30),
    ),
    max_size=4,
).map(tuple)


@given(
    MEMBERS,
    st.integers(0, 2**31 - 1),
    st.none() | TEXT,
    TEXT,
    st.integers(0, 2**44),
    st.dictionaries(TEXT, st.integers(0, 9), max_size=3),
)
def test_a_record_is_read_as_it_was_written(
    members: tuple[MemberRecord, ...],
    generation: int,
    protocol: str | None,
    group: str,
    since_ms: int,
    seen: dict[str, int],
) -> None:
    """C22, E7: with fields of a later release. Its size is known before, so that it fits the store."""
    record = GroupRecord(generation, protocol, protocol, members[0].member_id if members else None, members, seen)
    stored = StoredGroup(record, since_ms, (("later", b"[1]"),))
    put = to_put(group, stored, 7, from_ms=since_ms + 5)
    assert from_value(put.key, put.value) == stored
    assert group_of_key(put.key) == group
    (entry,) = put.indexes
    assert moment_of(entry.key) == since_ms + 5
    assert aged_before(since_ms + 5) < entry.key < aged_before(since_ms + 6)
    without = to_put(group, stored._replace(record=record._replace(members=())), 7)
    bound = sum(stored_bytes(Member(*each[:7], expires_ms=0)) + 4 * (len(each.assignment) // 3 + 1) for each in members)
    assert len(put.value) <= len(without.value) + bound


GOOD = to_put("g", StoredGroup(GroupRecord(3, "consumer", None, None, ()), 5), 0).value


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"{}",
        GOOD.replace(b'"members":[]', b'"members":[{}]'),
        GOOD.replace(b'"members":[]', b'"members":[3]'),
        GOOD.replace(b'"leader":null', b'"leader":"who"'),
        GOOD.replace(b'"generation":3', b'"generation":"x"'),
        GOOD.replace(b'"since_ms":5', b'"later":5'),
        GOOD.replace(b'"since_ms":5', b'"since_ms":5,"seen":{"t":"x"}'),
        GOOD.replace(b'"since_ms":5', b'"since_ms":5,"seen":[]'),
    ],
)
def test_a_damaged_record_is_no_empty_group(value: bytes) -> None:
    """E11: the message names the group, and what to do."""
    assert value != GOOD
    with pytest.raises(GroupRecordDamaged, match=r"group a/b is damaged.*Delete the group"):
        from_value(group_key("a/b"), value)
