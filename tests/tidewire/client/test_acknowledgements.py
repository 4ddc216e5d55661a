from hypothesis import given
from hypothesis import strategies as st

from tidewire.client.acknowledgements import IDS_PER_COMMAND_MAX, Acknowledgements, together
from tidewire.protocol.positions import Position
from tidewire.wire.pulsar.message_ids import bits_of_ack_set, position


def test_nothing_is_told_when_nothing_is_new() -> None:
    acknowledgements = Acknowledgements()
    assert not acknowledgements
    assert acknowledgements.take() == []


def test_of_cumulative_ones_only_the_furthest_is_told_and_only_once() -> None:
    acknowledgements = Acknowledgements()
    assert acknowledgements.add_upto(Position(1, 5))
    assert acknowledgements.add_upto(Position(2, 0))
    assert not acknowledgements.add_upto(Position(1, 9))
    assert not acknowledgements.add_upto(Position(2, 0))
    ((ids, cumulative),) = acknowledgements.take()
    assert cumulative
    assert [position(told) for told in ids] == [(2, 0)]
    assert acknowledgements.take() == []
    assert not acknowledgements.add_upto(Position(2, 0))


def test_after_a_rewind_what_comes_again_can_be_acknowledged_again() -> None:
    acknowledgements = Acknowledgements()
    acknowledgements.add_upto(Position(2, 0))
    acknowledgements.take()
    acknowledgements.rewind()
    assert acknowledgements.add_upto(Position(1, 0))


def test_a_rewind_keeps_what_was_not_told() -> None:
    acknowledgements = Acknowledgements()
    acknowledgements.add_upto(Position(2, 0))
    acknowledgements.rewind()
    ((ids, _),) = acknowledgements.take()
    assert position(ids[0]) == (2, 0)


def test_after_a_rewind_a_message_of_a_batch_does_not_speak_for_those_told_before() -> None:
    """E21: the subscription may have been moved back, and then the whole batch comes again."""
    acknowledgements = Acknowledgements()
    acknowledgements.add(Position(1, 5, 0, 4))
    acknowledgements.take()
    acknowledgements.rewind()
    acknowledgements.add(Position(1, 5, 1, 4))
    ((ids, _),) = acknowledgements.take()
    assert bits_of_ack_set(ids[0].ack_set) == 0b1101


def test_a_rewind_keeps_the_messages_of_a_batch_that_were_not_told() -> None:
    acknowledgements = Acknowledgements()
    acknowledgements.add(Position(1, 5, 0, 4))
    acknowledgements.rewind()
    acknowledgements.add(Position(1, 5, 1, 4))
    ((ids, _),) = acknowledgements.take()
    assert bits_of_ack_set(ids[0].ack_set) == 0b1100


def test_upto_a_place_inside_a_batch_leaves_the_bits_behind_it() -> None:
    acknowledgements = Acknowledgements()
    acknowledgements.add_upto(Position(1, 5, 1, 4))
    ((ids, _),) = acknowledgements.take()
    assert ids[0].batch_size == 4
    assert bits_of_ack_set(ids[0].ack_set) == 0b1100
    acknowledgements.add_upto(Position(1, 5, 3, 4))
    ((ids, _),) = acknowledgements.take()
    assert list(ids[0].ack_set) == []


@given(st.integers(1, 200).flatmap(lambda size: st.tuples(st.just(size), st.permutations(range(size)))))
def test_a_batch_is_told_as_a_whole_once_all_its_messages_are_done(drawn: tuple[int, list[int]]) -> None:
    size, order = drawn
    acknowledgements = Acknowledgements()
    left = set(range(size))
    for index in order:
        acknowledgements.add(Position(1, 5, index, size))
        left.discard(index)
        ((ids, cumulative),) = acknowledgements.take()
        assert not cumulative
        assert position(ids[0]) == (1, 5)
        told = bits_of_ack_set(ids[0].ack_set) if ids[0].ack_set else 0
        assert told == sum(1 << index for index in left)


def test_individual_ones_share_commands_of_bounded_size() -> None:
    acknowledgements = Acknowledgements()
    for entry in range(2 * IDS_PER_COMMAND_MAX + 1):
        acknowledgements.add(Position(1, entry))
    assert [len(command.message_ids) for command in acknowledgements.take()] == [
        IDS_PER_COMMAND_MAX,
        IDS_PER_COMMAND_MAX,
        1,
    ]
    assert not acknowledgements


def test_a_cumulative_one_forgets_the_bits_of_batches_before_it() -> None:
    acknowledgements = Acknowledgements()
    acknowledgements.add(Position(1, 5, 0, 2))
    acknowledgements.take()
    acknowledgements.add_upto(Position(1, 6))
    acknowledgements.take()
    # Should the entry come again, it is begun anew.
    acknowledgements.add(Position(1, 5, 1, 2))
    ((ids, _),) = acknowledgements.take()
    assert bits_of_ack_set(ids[0].ack_set) == 0b01


def test_a_message_acknowledged_twice_takes_nothing_back() -> None:
    acknowledgements = Acknowledgements()
    for index in (0, 1, 1, 0):
        acknowledgements.add(Position(1, 2, index, 2))
    (command,) = acknowledgements.take()
    assert [list(told.ack_set) for told in command.message_ids] == [[]]


def test_a_transaction_is_told_its_own_messages_and_how_large_their_batches_are() -> None:
    command = together([Position(1, 2, 0, 3), Position(1, 3), Position(1, 2, 2, 3), Position(1, 4, 0, 2)])
    assert not command.cumulative
    assert [
        (told.entry_id, told.batch_size, bits_of_ack_set(told.ack_set) if told.ack_set else None)
        for told in command.message_ids
    ] == [(2, 3, 0b010), (3, 0, None), (4, 2, 0b10)]
    (whole,) = together([Position(1, 2, 1, 2), Position(1, 2, 0, 2)]).message_ids
    assert (whole.batch_size, list(whole.ack_set)) == (2, []), "all of them, not what is left"
