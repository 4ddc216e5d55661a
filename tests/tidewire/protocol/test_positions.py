import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.protocol.positions import MessageId, Position

numbers = st.integers(-(2**63), 2**63 - 1)
small = st.integers(-1, 2**31 - 1)
positions = st.builds(Position, numbers, numbers, small, small)
ids = st.builds(MessageId, numbers, numbers, numbers, small, small, st.dictionaries(numbers, positions, max_size=5))


@given(ids)
def test_an_id_survives_its_bytes(message_id: MessageId) -> None:
    again = MessageId.from_bytes(message_id.to_bytes())
    assert again == message_id
    assert again.vector() == message_id.vector()
    assert again.batch_size == message_id.batch_size
    assert again.to_bytes() == message_id.to_bytes()


@given(st.binary(max_size=120))
def test_other_bytes_are_refused_or_are_an_id(data: bytes) -> None:
    try:
        message_id = MessageId.from_bytes(data)
    except ValueError:
        return
    assert MessageId.from_bytes(message_id.to_bytes()) == message_id


@pytest.mark.parametrize("cut", [0, 1, 10, 37, 38])
def test_cut_bytes_are_refused(cut: int) -> None:
    whole = MessageId(1, 2, 3, 4, 5, {7: Position(8, 9)}).to_bytes()
    with pytest.raises(ValueError, match="message id"):
        MessageId.from_bytes(whole[:cut])


def test_an_unknown_format_is_refused_by_number() -> None:
    whole = MessageId(1, 2, 3).to_bytes()
    with pytest.raises(ValueError, match="format 9"):
        MessageId.from_bytes(b"\x09" + whole[1:])


def test_ids_are_equal_by_place_and_can_be_kept_in_sets() -> None:
    one, same = MessageId(1, 2, 3, 0, 5), MessageId(1, 2, 3, 0, 5, {7: Position(8, 9)})
    assert one == same
    assert len({one, same, MessageId(2, 2, 3, 0, 5)}) == 2


def test_the_end_of_an_entry_comes_after_each_of_its_messages() -> None:
    places = [
        Position(1, 1),
        Position(1, 2, 0, 3),
        Position(1, 2, 1, 3),
        Position(1, 2, 2, 3),
        Position(1, 3),
        Position(2, 0),
    ]
    orders = [place.order for place in places]
    assert orders == sorted(orders)
    assert Position(1, 2).order == Position(1, 2, 2, 3).order
    assert Position(1, 2, 2, 3).is_whole_entry
    assert not Position(1, 2, 1, 3).is_whole_entry


def test_a_vector_holds_its_own_place_over_an_older_one() -> None:
    message_id = MessageId(1, 5, 6, others={1: Position(5, 5), 2: Position(3, 3)})
    assert message_id.vector() == {1: Position(5, 6), 2: Position(3, 3)}
