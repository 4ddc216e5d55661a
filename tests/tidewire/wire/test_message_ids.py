import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import (
    NO_REQUEST,
    ack_set_of_bits,
    bits_of_ack_set,
    message_id,
    position,
    signed,
    unsigned,
)


@pytest.mark.parametrize(
    ("inside", "wire"), [(0, 0), (1, 1), (2**63 - 1, 2**63 - 1), (-1, 2**64 - 1), (-(2**63), 2**63)]
)
def test_a_number_and_its_two_s_complement(inside: int, wire: int) -> None:
    assert unsigned(inside) == wire
    assert signed(wire) == inside
    assert unsigned(wire) == wire
    assert signed(inside) == inside


def test_no_request_is_minus_one() -> None:
    assert unsigned(-1) == NO_REQUEST


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_a_position_survives_the_wire(ledger: int, entry: int) -> None:
    sent = pb.MessageIdData.FromString(message_id(ledger, entry).SerializeToString())
    assert position(sent) == (ledger, entry)
    assert sent.partition == -1


def test_the_earliest_id_is_all_ones_on_the_wire() -> None:
    earliest = message_id(-1, -1)
    assert (earliest.ledger_id, earliest.entry_id) == (2**64 - 1, 2**64 - 1)


def test_parts_that_say_nothing_are_not_sent() -> None:
    plain = message_id(1, 2)
    assert [field.name for field, _ in plain.ListFields()] == ["ledger_id", "entry_id", "partition"]
    whole = message_id(1, 2, partition=3, batch_index=0, batch_size=2, ack_set=[-1, 5])
    assert (whole.partition, whole.batch_index, whole.batch_size, list(whole.ack_set)) == (3, 0, 2, [-1, 5])


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0b101, (5,)),
        (0, (0,)),
        (2**64 - 1, (-1,)),
        (2**63, (-(2**63),)),
        (2**64, (0, 1)),
        (2**128 - 1, (-1, -1)),
    ],
)
def test_bits_are_words_of_64_the_lowest_first(bits: int, words: tuple[int, ...]) -> None:
    assert ack_set_of_bits(bits) == words
    assert bits_of_ack_set(words) == bits


@given(st.integers(0, 2**300))
def test_bits_survive_the_wire(bits: int) -> None:
    sent = pb.MessageIdData.FromString(message_id(1, 1, ack_set=ack_set_of_bits(bits)).SerializeToString())
    assert len(sent.ack_set) >= 1, "an empty one would say that nothing is acknowledged"
    assert bits_of_ack_set(sent.ack_set) == bits
