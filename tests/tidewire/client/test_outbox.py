from collections.abc import Iterable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.client.errors import SendUnanswered
from tidewire.client.outbox import FRAMES_IN_FLIGHT_MAX, Outbox
from tidewire.client.sending import Batching, Outgoing, SendFrame, Tally
from tidewire.client.transactions import Transaction


class Txn:
    """Stands in for a transaction: only its identity matters here."""

    def send_begins(self, message: Outgoing) -> None: ...

    def send_waits(self) -> None: ...

    def send_ends(self, message: Outgoing) -> None: ...


A, B = cast("Transaction", Txn()), cast("Transaction", Txn())
ROOM = 10**9


def message(value: bytes, txn: Transaction | None = None, *, size: int = 10) -> Outgoing:
    tally = Tally(messages_max=ROOM, bytes_max=ROOM, failures_max=10)
    tally.room._messages, tally.room._bytes = 1, size
    return Outgoing(value, None, None, None, None, txn, size, tally)


def outbox_of(messages: Iterable[Outgoing], **batching: int) -> Outbox:
    outbox = Outbox(Batching(**batching))
    for one in messages:
        outbox.append(one)
    return outbox


def values(frame: SendFrame) -> list[bytes]:
    return [one.value for one in frame.messages]


def drain(outbox: Outbox) -> list[SendFrame]:
    """Return all frames that may be sent now."""
    frames = []
    while outbox.next_txn() is not None:
        frames.append(outbox.next_frame())
    return frames


@pytest.mark.parametrize("named", [1, 2, 3])
def test_a_batch_is_refused_by_the_id_of_any_of_its_messages(named: int) -> None:
    outbox = outbox_of([message(b"0")])
    (alone,) = drain(outbox)
    for value in (b"1", b"2", b"3"):
        outbox.append(message(value))
    outbox.append(message(b"4", A))
    outbox.answered(alone.sequence_id)
    batch, last = drain(outbox)
    assert outbox.with_message(99) is None
    assert outbox.with_message(named) is batch
    assert outbox.answered(batch.sequence_id) is batch
    assert outbox.with_message(named) is None
    assert outbox.with_message(4) is last
    outbox.answered(last.sequence_id)
    assert outbox.is_empty


def test_a_lone_message_leaves_at_once_and_the_next_ones_wait_for_each_other() -> None:
    outbox = outbox_of([message(b"1")])
    (first,) = drain(outbox)
    outbox.append(message(b"2"))
    outbox.append(message(b"3"))
    assert drain(outbox) == []
    outbox.answered(first.sequence_id)
    (second,) = drain(outbox)
    assert values(second) == [b"2", b"3"]
    assert (first.sequence_id, second.sequence_id) == (0, 1)
    outbox.append(message(b"4"))
    outbox.answered(second.sequence_id)
    assert drain(outbox)[0].sequence_id == 3


def test_a_full_frame_does_not_wait() -> None:
    outbox = outbox_of([message(b"%d" % number) for number in range(8)], messages_max=3)
    frames = drain(outbox)
    assert [len(frame.messages) for frame in frames] == [3, 3]
    assert not outbox.is_empty


def test_a_frame_holds_so_many_bytes_or_one_message() -> None:
    outbox = outbox_of([message(b"%d" % number, size=40) for number in range(4)], bytes_max=100)
    assert [len(frame.messages) for frame in drain(outbox)] == [2]
    outbox.append(message(b"5", size=1000))
    assert [len(frame.messages) for frame in drain(outbox)] == [2, 1]


def test_a_frame_holds_one_transaction_and_none_waits_for_another() -> None:
    outbox = outbox_of([message(b"1", A), message(b"2", A), message(b"3", B), message(b"4"), message(b"5", A)])
    frames = drain(outbox)
    assert [(values(frame), frame.txn) for frame in frames] == [([b"1", b"2"], A), ([b"3"], B), ([b"4"], None)]
    # One of A is on its way, and nothing comes behind this one.
    assert not outbox.is_empty
    outbox.append(message(b"6", B))
    assert [values(frame) for frame in drain(outbox)] == [[b"5"]]


def test_the_transaction_of_the_next_frame_is_told_before_it_is_taken() -> None:
    outbox = outbox_of([message(b"1", A)])
    assert outbox.next_txn() == (A,)
    assert not outbox.is_in_doubt
    assert Outbox(Batching()).next_txn() is None


def test_no_more_frames_are_on_their_way_than_allowed() -> None:
    outbox = outbox_of([message(b"x") for _ in range(2 * FRAMES_IN_FLIGHT_MAX)], messages_max=1)
    frames = drain(outbox)
    assert len(frames) == FRAMES_IN_FLIGHT_MAX
    outbox.answered(frames[0].sequence_id)
    assert len(drain(outbox)) == 1


def test_after_a_lost_connection_the_same_frames_leave_again_before_anything_else() -> None:
    outbox = outbox_of([message(b"%d" % number) for number in range(5)], messages_max=2)
    before = drain(outbox)
    outbox.append(message(b"late"))
    assert outbox.take_back() == []
    again = drain(outbox)
    assert [frame.sequence_id for frame in again[: len(before)]] == [frame.sequence_id for frame in before]
    assert [value for frame in again for value in values(frame)] == [b"0", b"1", b"2", b"3", b"4", b"late"]


def test_frames_of_transactions_are_in_doubt_after_a_lost_connection() -> None:
    outbox = outbox_of([message(b"1", A), message(b"2"), message(b"3", B)])
    drain(outbox)
    outbox.append(message(b"4", A))
    in_doubt = outbox.take_back()
    assert [values(frame) for frame in in_doubt] == [[b"1"], [b"3"]]
    assert [values(frame) for frame in drain(outbox)] == [[b"2"], [b"4"]]


@pytest.mark.parametrize(("remembered_upto", "is_sent_again"), [(-1, False), (1, False), (2, True), (3, True)])
def test_a_broker_that_knows_the_last_answered_send_is_sent_transactions_again(
    remembered_upto: int, is_sent_again: bool
) -> None:
    """E13: it answered the whole previous batch, so it would also recognise repeats of later sends."""
    outbox = outbox_of([message(b"%d" % number, A) for number in range(4)], messages_max=3)
    (stored,) = drain(outbox)
    assert outbox.stored(stored.sequence_id, 1, 1) is stored
    assert len(drain(outbox)) == 1
    in_doubt = outbox.take_back(remembered_upto=remembered_upto)
    assert [values(frame) for frame in drain(outbox) or in_doubt] == [[b"3"]]
    assert (in_doubt == []) == is_sent_again


def test_of_a_producer_that_was_never_answered_nothing_is_known() -> None:
    """The broker may remember an earlier producer of this name."""
    outbox = outbox_of([message(b"1", A)])
    drain(outbox)
    assert len(outbox.take_back(remembered_upto=9)) == 1


def test_all_that_is_unanswered_can_be_taken_in_order() -> None:
    outbox = outbox_of([message(b"%d" % number) for number in range(5)], messages_max=2)
    first, _ = drain(outbox)
    outbox.answered(first.sequence_id)
    first.succeed(1, 2, 3)
    assert [one.value for one in outbox.take_all()] == [b"2", b"3", b"4"]
    assert outbox.is_empty


def test_what_failed_while_it_waited_is_not_sent() -> None:
    messages = [message(b"%d" % number, A) for number in range(4)]
    outbox = outbox_of(messages)
    messages[0].finish(SendUnanswered("x"))
    messages[2].finish(SendUnanswered("x"))
    (frame,) = drain(outbox)
    assert values(frame) == [b"1", b"3"]
    assert frame.sequence_id == 0


def test_what_failed_after_it_was_taken_back_is_not_sent_again() -> None:
    messages = [message(b"0"), message(b"1", A), message(b"2")]
    outbox = outbox_of(messages)
    stored, *_ = drain(outbox)
    outbox.stored(stored.sequence_id, 1, 2)
    assert outbox.take_back(remembered_upto=2) == []
    messages[1].finish(SendUnanswered("x"))
    (frame,) = drain(outbox)
    assert values(frame) == [b"2"]


def test_an_answer_to_what_is_not_on_its_way_is_nobodys() -> None:
    outbox = outbox_of([message(b"1")])
    assert outbox.answered(0) is None
    (frame,) = drain(outbox)
    assert outbox.answered(frame.sequence_id) is frame
    assert outbox.answered(frame.sequence_id) is None


@pytest.mark.parametrize(
    "batching", [{"messages_max": 0}, {"bytes_max": 0}, {"bytes_max": 10**7}, {"messages_max": 10**6}]
)
def test_batches_are_bounded_on_both_sides(batching: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a batch must hold"):
        Batching(**batching)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from([None, A, B]), st.integers(1, 60)),
        st.tuples(st.just("prepend"), st.sampled_from([None, A]), st.integers(1, 60)),
        st.tuples(st.just("send"), st.none(), st.just(0)),
        st.tuples(st.just("answer"), st.none(), st.just(0)),
        st.tuples(st.just("lose"), st.none(), st.sampled_from([-1, 1_000])),
        st.tuples(st.just("fail"), st.sampled_from([A, B]), st.just(0)),
    ),
    max_size=60,
)


@given(steps, st.integers(1, 4), st.integers(20, 120))
def test_every_message_leaves_in_order_or_is_in_doubt(
    script: list[tuple[str, Transaction | None, int]], messages_max: int, bytes_max: int
) -> None:
    """In any case, frames belong to one transaction, keep the bounds, and leave in order."""
    outbox = Outbox(Batching(messages_max, bytes_max))
    model: list[Outgoing] = []
    flying: list[SendFrame] = []
    for number, (step, txn, size) in enumerate(script):
        match step:
            case "append":
                model.append(message(b"%d" % number, txn, size=size))
                outbox.append(model[-1])
            case "prepend" if not flying and not outbox._returned:
                model.insert(0, message(b"%d" % number, txn, size=size))
                outbox.prepend([model[0]])
            case "send":
                for frame in drain(outbox):
                    assert len({one.txn for one in frame.messages}) == 1
                    assert len(frame.messages) == 1 or (
                        len(frame.messages) <= messages_max and sum(one.size for one in frame.messages) <= bytes_max
                    )
                    flying.append(frame)
                sent = [one for frame in flying for one in frame.messages]
                assert sent == [one for one in model if one.answer is None][: len(sent)]
            case "answer" if flying:
                frame = flying.pop(0)
                assert outbox.answered(frame.sequence_id) is frame
                frame.succeed(0, 0, 0)
            case "lose":
                for frame in outbox.take_back(remembered_upto=size):
                    frame.fail(SendUnanswered("x"))
                flying = []
            case "fail":
                # What an aborted transaction does with what was not sent.
                for one in model:
                    if one.txn is txn and not one.is_sent:
                        one.finish(SendUnanswered("x"))
        model = [one for one in model if one.answer is None]
        assert [one for one in outbox.outstanding() if one.answer is None] == model
    assert outbox.take_all() == model
