"""Checkpoints as values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.client.checkpoint import Checkpoint
from tidewire.protocol.positions import Position

ids = st.integers(-1, 2**40)
places = st.builds(Position, st.integers(-1, 2**62), st.integers(-1, 2**62), st.integers(-1, 99), st.integers(0, 100))


@given(st.dictionaries(ids, places), st.sets(ids), st.none() | st.integers(0, 2**50), st.data())
def test_bytes_keep_all_of_it(
    where: dict[int, Position], finished: set[int], since_ms: int | None, data: st.DataObject
) -> None:
    waiting = data.draw(st.sets(st.sampled_from(sorted(where)))) if where else set()
    checkpoint = Checkpoint(where, frozenset(finished - where.keys()), since_ms, frozenset(waiting))
    again = Checkpoint.from_bytes(checkpoint.to_bytes())
    assert again == checkpoint
    assert again.to_bytes() == checkpoint.to_bytes()


EMPTY = Checkpoint().to_bytes()


@pytest.mark.parametrize("data", [b"", b"TWCP", bytes(60), EMPTY[:-1], EMPTY + b"x"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="checkpoint"):
        Checkpoint.from_bytes(data)


def test_a_later_format_is_refused_by_its_number() -> None:
    data = bytearray(Checkpoint().to_bytes())
    data[4] = 9
    with pytest.raises(ValueError, match="format 9; this client reads format 1"):
        Checkpoint.from_bytes(bytes(data))
