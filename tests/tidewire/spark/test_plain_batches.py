from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.tidewire.wire.protobufs import field
from tidewire.spark.plain_batches import read_plain
from tidewire.wire.pulsar.building import encode_batch, message_metadata, single_message_metadata
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import split_body

Message = tuple[pb.SingleMessageMetadata, bytes]

# What looks like the beginning of a message within one.
HEAD = pb.SingleMessageMetadata(payload_size=3).SerializeToString()
DECOY = len(HEAD).to_bytes(4, "big") + HEAD + b"abc"

keys = st.none() | st.text(max_size=5) | st.just("k" * 200)
values = st.lists(st.sampled_from([b"\0", b"\0\0\0", b"\x18", b"\xff", b"v" * 200, DECOY]), max_size=4).map(b"".join)
plain_messages = st.builds(
    lambda number, key, time, value, is_b64, ordering: (
        pb.SingleMessageMetadata(
            sequence_id=number,
            partition_key=key,
            event_time=time,
            partition_key_b64_encoded=is_b64,
            ordering_key=ordering,
        ),
        value,
    ),
    st.none() | st.integers(0, 2**64 - 1),
    keys,
    st.none() | st.integers(0, 2**64 - 1),
    values,
    st.none() | st.booleans(),
    st.none() | st.binary(max_size=3),
)
messages = plain_messages | st.builds(
    lambda key, properties, null: (
        single_message_metadata(0, key=key, properties=properties, null_value=null),
        b"" if null else b"value",
    ),
    keys,
    st.just({}) | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    st.booleans(),
)


def of_two_fields(first: bytes, second: bytes) -> bytes:
    """Make a batch of one message, whose metadata are these bytes."""
    return len(first + second).to_bytes(4, "big") + first + second + b"v"


@given(
    st.lists(st.lists(messages, min_size=1, max_size=5), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0), st.integers(1, 255)), max_size=2),
    st.integers(-1, 1),
)
@example([[(pb.SingleMessageMetadata(), DECOY * 3)]], [], 0)
def test_it_reads_as_the_codec_does_or_leaves_it_to_it(
    batches: list[list[Message]], damages: list[tuple[int, int]], too_many: int
) -> None:
    """This includes damage: what it accepts, the codec accepts too, with the same result."""
    bodies = [bytearray(encode_batch(batch)) for batch in batches]
    counts = [len(batch) for batch in batches]
    counts[-1] += too_many
    for place, flipped in damages:
        body = bodies[place % len(bodies)]
        body[place % len(body)] ^= flipped
    columns = read_plain([bytes(body) for body in bodies], counts)
    if columns is None:
        return
    read = []
    for body, size in zip(bodies, counts, strict=True):
        metadata = message_metadata("p", 0, 1)
        metadata.num_messages_in_batch = size
        read += split_body(metadata, bytes(body))
    columns.keys.validate(full=True)
    columns.values.validate(full=True)
    assert columns.values.to_pylist() == [message.value for message in read]
    assert columns.keys.to_pylist() == [message.key for message in read]
    assert [time or None for time in columns.event_times_ms.tolist()] == [message.event_time_ms for message in read]
    assert not any(message.properties or message.null_value for message in read)


@given(st.lists(st.lists(plain_messages, min_size=1, max_size=5), min_size=1, max_size=3))
def test_it_takes_what_is_usual(batches: list[list[Message]]) -> None:
    columns = read_plain([encode_batch(batch) for batch in batches], [len(batch) for batch in batches])
    assert columns is not None
    assert columns.values.to_pylist() == [value for batch in batches for _, value in batch]


@pytest.mark.parametrize(
    "unusual",
    [
        pb.SingleMessageMetadata(payload_size=1, properties=[pb.KeyValue(key="a", value="b")]),
        pb.SingleMessageMetadata(payload_size=1, null_value=True),
        pb.SingleMessageMetadata(payload_size=1, null_partition_key=True),
        pb.SingleMessageMetadata(payload_size=1, compacted_out=True),
        pb.SingleMessageMetadata(payload_size=1, partition_key="k" * 256),
        pb.SingleMessageMetadata(payload_size=-1),
    ],
)
@pytest.mark.parametrize("before", [False, True])
def test_it_leaves_what_is_unusual(unusual: pb.SingleMessageMetadata, before: bool) -> None:
    usual = pb.SingleMessageMetadata(payload_size=1, partition_key="k", event_time=1)
    body = b""
    for described in [unusual, usual] if before else [usual, unusual]:
        encoded = described.SerializeToString()
        body += len(encoded).to_bytes(4, "big") + encoded + b"v" * max(0, described.payload_size)
    assert read_plain([body], [2]) is None


SIZE = pb.SingleMessageMetadata(payload_size=1).SerializeToString()
TIME = bytes([pb.SingleMessageMetadata.EVENT_TIME_FIELD_NUMBER << 3])


@pytest.mark.parametrize(
    ("bodies", "counts"),
    [
        ([b""], [1]),
        ([b"\0" * 40], [4]),
        ([DECOY + b"x"], [1]),
        ([b"x" + DECOY], [1]),
        ([DECOY[:-1], b"c" + DECOY], [1, 1]),
        ([DECOY + DECOY, DECOY], [1, 2]),
        ([of_two_fields(SIZE, TIME + b"\xff" * 9 + b"\x02")], [1]),
        ([of_two_fields(SIZE, TIME + b"\xff" * 10 + b"\x01")], [1]),
        ([of_two_fields(SIZE, TIME + b"\x80")], [1]),
        ([of_two_fields(SIZE, field(pb.SingleMessageMetadata.PARTITION_KEY_FIELD_NUMBER, b"key")[:-1])], [1]),
        ([of_two_fields(b"", TIME + b"\x01")], [1]),
    ],
)
def test_what_does_not_add_up_is_not_read(bodies: Sequence[bytes], counts: Sequence[int]) -> None:
    """Empty input, only zeros, extra bytes, messages beyond their batch, wrong counts, cut and endless fields."""
    assert read_plain(bodies, counts) is None


def test_a_field_that_comes_twice_counts_as_the_codec_counts_it() -> None:
    number = pb.SingleMessageMetadata.PARTITION_KEY_FIELD_NUMBER
    columns = read_plain([of_two_fields(SIZE, field(number, b"first") + field(number, b"second"))], [1])
    assert columns is not None
    assert columns.keys.to_pylist() == ["second"]
