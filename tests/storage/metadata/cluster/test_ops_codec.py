"""The operations of a change set on a link."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.metadata.cluster.fields import LinkError
from storage.metadata.cluster.messages import Write
from storage.metadata.cluster.ops_codec import (
    CHANGE_SET_BYTES_MAX,
    OPS_MAX,
    PART_BYTES_MAX,
    Assembly,
    SessionNamed,
    decode_part,
    parts,
    require_sendable,
)
from storage.metadata.delta import Delta, measure
from storage.metadata.image import Image
from storage.metadata.steps import KEYS_AT_ONCE
from storage.metadata.store import (
    ChangeSetTooLarge,
    Check,
    Delete,
    DeleteRange,
    IndexEntry,
    Op,
    Put,
    PutSequential,
    SessionLost,
)

U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
DATA = st.binary(max_size=50)
INDEXES = st.lists(st.builds(IndexEntry, TEXT, TEXT), max_size=3).map(tuple)
OPS: st.SearchStrategy[Op] = st.one_of(
    st.builds(Put, TEXT, DATA, st.none() | U64, INDEXES, st.none() | TEXT, st.none() | st.builds(SessionNamed, U64)),
    st.builds(PutSequential, TEXT, DATA, TEXT, INDEXES),
    st.builds(Delete, TEXT, st.none() | U64),
    st.builds(DeleteRange, TEXT, TEXT),
    st.builds(Check, TEXT, U64),
)
SAMPLES: list[Op] = [
    Put("/plain", b"value"),
    Put("/é", b"", 0, (IndexEntry("by-é", ""), IndexEntry("by-b", "2")), "partition", SessionNamed(2**64 - 1)),
    Put("/some", b"value", None, (), "", None),
    PutSequential("/queue", b"value", "partition"),
    PutSequential("/queue", b"", "partition", (IndexEntry("by-a", "1"),)),
    Delete("/gone"),
    Delete("/gone", 7),
    DeleteRange("/a", "/b"),
    Check("/there", 0),
]


def _writes(ops: list[Op], number: int = 1) -> list[Write]:
    encoded = list(parts(ops))
    return [Write(number, 1, False, place == len(encoded), part) for place, part in enumerate(encoded, 1)]


@given(st.lists(OPS, max_size=8))
def test_operations_survive_their_encoding(ops: list[Op]) -> None:
    assert [op for part in parts(ops) for op in decode_part(part)] == ops


@given(OPS)
def test_what_goes_on_the_link_is_at_most_what_measure_counts(op: Op) -> None:
    """E8: so a change set that its writer may send is never above the limit of the controller."""
    assert sum(map(len, parts([op]))) <= measure([op])


@pytest.mark.parametrize("op", SAMPLES, ids=repr)
def test_an_operation_cut_at_any_byte_is_refused(op: Op) -> None:
    (whole,) = parts([op])
    for size in range(1, len(whole)):
        with pytest.raises(LinkError):
            decode_part(whole[:size])
        with pytest.raises(LinkError):
            decode_part(whole + whole[:size])


@given(st.binary(max_size=60))
def test_any_bytes_are_operations_or_refused(data: bytes) -> None:
    """E11: nothing but a LinkError comes out."""
    try:
        ops = decode_part(data)
    except LinkError:
        return
    assert [op for part in parts(ops) for op in decode_part(part)] == ops


@pytest.mark.parametrize("kind", [0, 6, 255])
def test_an_unknown_operation_is_refused(kind: int) -> None:
    with pytest.raises(LinkError, match=f"unknown kind {kind}"):
        decode_part(bytes([kind]) + bytes(40))


@pytest.mark.parametrize(("kind", "flags"), [(1, 16), (1, 255), (2, 1), (2, 2), (2, 4), (3, 2), (3, 8)])
def test_an_unknown_flag_is_refused_because_it_may_be_a_condition(kind: int, flags: int) -> None:
    with pytest.raises(LinkError, match="unknown flags"):
        decode_part(bytes([kind, flags]) + bytes(40))


def test_a_part_is_what_one_step_of_the_event_loop_handles() -> None:
    """E7: in operations and in bytes. Larger operations are alone."""
    counts = [len(decode_part(part)) for part in parts([Delete("/a")] * (2 * KEYS_AT_ONCE + 1))]
    assert counts == [KEYS_AT_ONCE, KEYS_AT_ONCE, 1]
    half = Put("/half", bytes(PART_BYTES_MAX // 2 - 14))
    large = Put("/large", bytes(PART_BYTES_MAX - 10))
    mixed: list[Op] = [half, half, Delete("/a"), large, Delete("/b")]
    assert [len(decode_part(part)) for part in parts(mixed)] == [2, 1, 1, 1]
    (part,) = parts([Delete("/a")] * KEYS_AT_ONCE)
    with pytest.raises(LinkError, match=f"more than {KEYS_AT_ONCE} operations"):
        decode_part(part + part[: len(part) // KEYS_AT_ONCE])


def test_index_names_are_shared() -> None:
    """E16: every record of an index would keep a copy of its name."""
    entry = IndexEntry("".join(["by", "-name"]), "1")
    (part,) = parts([Put("/a", b"", indexes=(entry,)), PutSequential("/b", b"", "p", (entry,))])
    first, second = decode_part(part)
    assert isinstance(first, Put)
    assert isinstance(second, PutSequential)
    assert first.indexes[0].name is second.indexes[0].name


@given(st.lists(OPS, max_size=6), st.integers(1, 2))
def test_parts_become_the_change_set_again(ops: list[Op], times: int) -> None:
    assembly = Assembly()
    encoded = [part for op in ops for part in parts([op])] or [b""]
    for number in range(times):
        *before, last = (Write(number, 1, False, False, part) for part in encoded)
        assert [assembly.add(part) for part in before] == [None] * len(before)
        assert assembly.add(last._replace(is_last=True)) == tuple(ops)


def test_a_part_of_another_write_in_between_ends_the_link() -> None:
    first, *_rest = _writes([Delete("/a")] * (KEYS_AT_ONCE + 1))
    assembly = Assembly()
    assert assembly.add(first) is None
    with pytest.raises(LinkError, match="write 2 begins before the last part of write 1"):
        assembly.add(first._replace(number=2))


def test_a_change_set_with_too_many_operations_is_refused_at_both_ends() -> None:
    """E8, M25: by its writer before anything is sent."""
    ops: list[Op] = [Delete("/a")] * (OPS_MAX + 1)
    require_sendable(ops[1:], 1)
    with pytest.raises(ChangeSetTooLarge, match=f"{OPS_MAX + 1} operations"):
        require_sendable(ops, 1)
    assembly = Assembly()
    assert len(list(filter(None, map(assembly.add, _writes(ops[1:]))))) == 1
    with pytest.raises(LinkError, match="above the limits"):
        list(map(assembly.add, _writes(ops)))


def test_a_change_set_with_too_many_bytes_is_refused_at_both_ends() -> None:
    """E8, M25: by its writer before anything is sent."""
    require_sendable([], CHANGE_SET_BYTES_MAX)
    with pytest.raises(ChangeSetTooLarge, match=f"{CHANGE_SET_BYTES_MAX + 1} bytes"):
        require_sendable([], CHANGE_SET_BYTES_MAX + 1)
    (part,) = parts([Put("/a", bytes(PART_BYTES_MAX - 100))])
    count = CHANGE_SET_BYTES_MAX // len(part)
    assembly = Assembly()
    for _ in range(count):
        assert assembly.add(Write(1, 1, False, False, part)) is None
    with pytest.raises(LinkError, match="above the limits"):
        assembly.add(Write(1, 1, False, False, part))


def test_every_change_set_has_the_whole_limit() -> None:
    (part,) = parts([Put("/a", bytes(PART_BYTES_MAX - 100))])
    assembly = Assembly()
    for number in range(CHANGE_SET_BYTES_MAX // PART_BYTES_MAX + 1):
        assert assembly.add(Write(number, 1, False, True, part)) is not None


def test_the_session_of_another_process_is_known_by_its_id() -> None:
    """M19: a decoded change set is decided as if its writer were here."""
    delta = Delta(Image())
    session = delta.open_session(5000)
    (part,) = parts([Put("/eph", b"", session=SessionNamed(session))])
    delta.commit(decode_part(part))
    record = delta.get("/eph")
    assert record is not None
    assert record.session == session
    delta.end_sessions([session])
    with pytest.raises(SessionLost):
        delta.commit(decode_part(part))
