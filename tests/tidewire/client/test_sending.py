from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.backends import on_both_backends
from tidewire.client.errors import Closed
from tidewire.client.sending import Outgoing, Receipt, SendFrame, Tally, size_of
from tidewire.client.transactions import Transaction
from tidewire.protocol.errors import ConnectionLost
from tidewire.protocol.positions import MessageId
from tidewire.wire.pulsar.checksums import verify_payload
from tidewire.wire.pulsar.frames import MAX_FRAME_SIZE, MAX_MESSAGE_SIZE, FrameDecoder
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import split_messages

text = st.text(st.characters(codec="utf-8"), max_size=10)


def tally() -> Tally:
    return Tally(messages_max=10**9, bytes_max=10**12, failures_max=2)


def outgoing(
    value: bytes,
    key: str | None = None,
    properties: dict[str, str] | None = None,
    event_time_ms: int | None = None,
    txn: Transaction | None = None,
    counts: Tally | None = None,
) -> Outgoing:
    counts = counts or tally()
    size = size_of(value, key, properties)
    counts.room._messages += 1
    counts.room._bytes += size
    return Outgoing(value, key, None, properties, event_time_ms, txn, size, counts)


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=50),
            st.none() | text,
            st.dictionaries(text, text, max_size=3),
            st.none() | st.integers(1, 2**63 - 1),
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([pb.CompressionType.NONE, pb.CompressionType.LZ4, pb.CompressionType.ZSTD]),
)
def test_a_frame_carries_its_messages(
    drawn: list[tuple[bytes, str | None, dict[str, str], int | None]], codec: pb.CompressionType
) -> None:
    frame = SendFrame(7, [outgoing(*one) for one in drawn], None)
    decoder = FrameDecoder()
    decoder.feed(*frame.encode(3, "me", codec))
    sent = decoder.next_frame()
    assert sent is not None
    assert sent.payload is not None
    send = sent.command.send
    assert (send.producer_id, send.sequence_id, send.num_messages) == (3, 7, len(drawn))
    assert not send.HasField("txnid_least_bits")
    verify_payload(sent.payload)
    singles = split_messages(sent.payload)
    assert [(one.value, one.key, one.properties, one.event_time_ms) for one in singles] == drawn
    assert [one.sequence_id for one in singles] == list(range(7, 7 + len(drawn)))
    assert {one.producer_name for one in singles} == {"me"}


class Txn:
    transaction_id = (3, 2**62 + 5)

    def send_ends(self, message: Outgoing) -> None: ...


@pytest.mark.parametrize("count", [1, 2])
def test_a_transactions_frame_says_so_twice(count: int) -> None:
    """FACTS: the id is in the command and in the metadata."""
    txn = cast("Transaction", Txn())
    decoder = FrameDecoder()
    decoder.feed(*SendFrame(0, [outgoing(b"x", txn=txn)] * count, txn).encode(1, "me", pb.CompressionType.NONE))
    sent = decoder.next_frame()
    assert sent is not None
    assert sent.payload is not None
    assert (sent.command.send.txnid_most_bits, sent.command.send.txnid_least_bits) == Txn.transaction_id
    assert {one.txn for one in split_messages(sent.payload)} == {Txn.transaction_id}


@given(st.integers(0, 400), st.integers(0, 400))
def test_the_largest_message_allowed_fits_into_a_frame(properties: int, key: int) -> None:
    described = {f"{number}": "" for number in range(properties)}
    value = bytes(MAX_MESSAGE_SIZE - size_of(b"", "k" * key, described))
    (encoded,) = SendFrame(2**40, [outgoing(value, "k" * key, described, 2**60)], None).encode(
        2**30, "a producer's name", pb.CompressionType.NONE
    )
    assert len(encoded) - 4 <= MAX_FRAME_SIZE


@on_both_backends
async def test_each_message_of_a_frame_gets_its_own_id() -> None:
    messages = [outgoing(b"x") for _ in range(3)]
    receipts = [Receipt(one) for one in messages]
    assert not receipts[0].is_answered
    SendFrame(0, messages, None).succeed(4, 5, 6)
    assert [await receipt for receipt in receipts] == [MessageId(4, 5, 6, index) for index in range(3)]
    assert (await receipts[2]).batch_size == 3
    alone = outgoing(b"x")
    SendFrame(0, [alone], None).succeed(4, 5, 7)
    assert await Receipt(alone).wait() == MessageId(4, 5, 7)


@on_both_backends
async def test_a_message_is_answered_once_and_gives_its_room_back_once() -> None:
    counts = tally()
    message = outgoing(b"12345", counts=counts)
    assert counts.room.bytes == 5
    message.finish(Closed("x"))
    message.finish(MessageId(1, 2, 3))
    assert (counts.room.messages, counts.room.bytes) == (0, 0)
    for _ in range(2):
        with pytest.raises(Closed):
            await Receipt(message)


@on_both_backends
async def test_a_failure_nobody_awaited_is_kept_and_told_once() -> None:
    counts = tally()
    seen, unseen, later = (outgoing(b"%d" % number, counts=counts) for number in range(3))
    seen.finish(Closed("seen"))
    with pytest.raises(Closed):
        await Receipt(seen)
    unseen.finish(ConnectionLost("unseen"))
    assert isinstance(counts.take_failure(), ConnectionLost)
    assert counts.take_failure() is None
    later.finish(MessageId(1, 2, 3))
    assert counts.take_failure() is None


def test_sizes_count_bytes_and_not_characters() -> None:
    assert size_of(b"abc", None, None) == 3
    assert size_of(b"abc", "é", None) == 5
    assert size_of(b"", None, {"a": "é"}) == 3 + 8
    with pytest.raises(UnicodeEncodeError):
        size_of(b"", "\ud800", None)
