"""A conversation with arbitrary input in slices of any size: events, and answers that reach their questions."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tidewire.wire.protobufs import commands as any_commands
from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.conversation import PING, PONG, Conversation, Event, Question
from tidewire.protocol.errors import ConnectionLost, MessageTooLarge, ProtocolViolation
from tidewire.protocol.refusals import BrokerBusy, Refused, TopicNotFound
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import (
    MAX_FRAME_SIZE,
    MAX_MESSAGE_SIZE,
    FrameDecoder,
    encode_command,
    encode_payload_command,
)
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.parsing import MEMBERS

T = pb.BaseCommand.Type
HERE = BrokerAddress("broker", 6650)
LOOKUP = partial(commands.lookup, "persistent://public/default/x")
Lookup = pb.CommandLookupTopicResponse


def welcomed() -> Conversation:
    conversation = Conversation(HERE, "test")
    conversation.feed(encode_command(commands.connected("peer")))
    assert conversation.welcomed()
    return conversation


def asked(conversation: Conversation) -> Question[Lookup]:
    question = conversation.question(LOOKUP, Lookup)
    conversation.ask(question)
    return question


def events(conversation: Conversation, *pieces: bytes) -> list[Event]:
    found: list[Event] = []
    for piece in pieces:
        conversation.feed(piece)
        while (event := conversation.next_event()) is not None:
            found.append(event)
    return found


def sliced(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


cuts = st.lists(st.integers(min_value=0), max_size=20)


def near(command: pb.BaseCommand, number: int) -> pb.BaseCommand:
    """Give the command this request id, if it has that field."""
    content = getattr(command, MEMBERS[command.type])
    if "request_id" in content.DESCRIPTOR.fields_by_name:
        content.request_id = number
    return command


near_commands = st.builds(near, any_commands(), st.integers(0, 7)).map(encode_command)
"""Commands, many of which answer a question that was asked, or one that was not."""

# ------------------------------------------------------------------------------------------------------ the handshake


def test_the_greeting_says_what_the_client_can_and_which_broker_a_proxy_is_to_reach() -> None:
    decoder = FrameDecoder()
    decoder.feed(Conversation(HERE, "client-1").greeting())
    decoder.feed(Conversation(HERE, "client-1", BrokerAddress("::1", 7)).greeting())
    direct, proxied = (frame.command.connect for frame in (decoder.next_frame(), decoder.next_frame()) if frame)
    assert direct.client_version == "client-1"
    assert direct.protocol_version == 21
    assert direct.feature_flags.supports_scalable_topics
    assert direct.feature_flags.supports_tc_metadata_discovery
    assert direct.feature_flags.supports_broker_entry_metadata
    assert not direct.HasField("proxy_to_broker_url")
    assert proxied.proxy_to_broker_url == "[::1]:7"


@pytest.mark.parametrize(
    ("said", "largest"), [(0, MAX_MESSAGE_SIZE), (1000, 1000), (2 * MAX_MESSAGE_SIZE, MAX_MESSAGE_SIZE)]
)
@given(cuts=cuts)
def test_the_welcome_tells_what_the_broker_can_and_what_comes_behind_it_is_kept(
    said: int, largest: int, cuts: list[int]
) -> None:
    conversation = Conversation(HERE, "test")
    connected = commands.connected("peer", max_message_size=said, features=commands.broker_features())
    data = encode_command(connected) + encode_command(commands.ping())
    was_welcomed = False
    found: list[Event] = []
    for piece in sliced(data, cuts):
        conversation.feed(piece)
        was_welcomed = was_welcomed or conversation.welcomed()
        while was_welcomed and (event := conversation.next_event()) is not None:
            found.append(event)
    assert found == [PING]
    assert conversation.features.supports_scalable_topics
    assert conversation.message_bytes_max == largest


def test_a_refused_greeting_says_who_refuses_and_why() -> None:
    conversation = Conversation(HERE, "test")
    conversation.feed(encode_command(commands.error(2**64 - 1, pb.ServerError.AuthenticationError, "who are you?")))
    with pytest.raises(Refused, match=r"^pulsar://broker:6650 refused the connection: who are you\? \[Authenticat"):
        conversation.welcomed()


@given(data=st.binary(max_size=300) | any_commands().map(encode_command), cuts=cuts)
def test_whatever_answers_the_greeting_only_documented_errors_are_raised(data: bytes, cuts: list[int]) -> None:
    conversation = Conversation(HERE, "test")
    refused = f"{HERE}"
    try:
        for piece in sliced(data, cuts):
            conversation.feed(piece)
            if conversation.welcomed():
                break
    except (ProtocolViolation, Refused) as error:
        refused = str(error)
    assert refused.startswith(str(HERE))


# --------------------------------------------------------------------------------------------- questions and answers


def test_a_ping_is_told_and_the_pong_to_send_is_one() -> None:
    decoder = FrameDecoder()
    decoder.feed(PONG)
    pong = decoder.next_frame()
    assert pong is not None
    assert pong.command.type == T.PONG
    assert events(welcomed(), encode_command(commands.ping())) == [PING]


def test_an_answer_is_taken_once_and_never_by_a_question_that_was_not_asked_yet() -> None:
    conversation = welcomed()
    early, question = conversation.question(LOOKUP, Lookup), asked(conversation)
    answers = [commands.lookup_connect(i, f"pulsar://{i}") for i in (early.request_id, *[question.request_id] * 2)]
    assert events(conversation, *map(encode_command, answers)) == [question]
    assert question.result().broker_service_url == f"pulsar://{question.request_id}"
    assert not early.is_answered
    assert conversation.questions == 0


def test_a_withdrawn_question_is_not_answered_and_its_id_is_not_used_again() -> None:
    conversation = welcomed()
    withdrawn = asked(conversation)
    conversation.withdraw(withdrawn)
    conversation.withdraw(withdrawn)
    after = asked(conversation)
    assert after.request_id != withdrawn.request_id
    assert events(conversation, encode_command(commands.lookup_connect(withdrawn.request_id, "pulsar://x"))) == []
    assert not withdrawn.is_answered
    assert conversation.questions == 1


def test_an_answer_of_another_type_fails_its_question_alone() -> None:
    conversation = welcomed()
    question, other = asked(conversation), asked(conversation)
    assert events(conversation, encode_command(commands.success(question.request_id))) == [question]
    with pytest.raises(ProtocolViolation, match="pulsar://broker:6650 answered LOOKUP with SUCCESS"):
        question.result()
    assert not other.is_answered


def failure(request_id: int, words: str = "") -> pb.BaseCommand:
    """Return a failed lookup without an error code."""
    answer = commands.lookup_connect(request_id, "")
    answer.lookup_topic_response.response = Lookup.Failed
    answer.lookup_topic_response.message = words
    return answer


@pytest.mark.parametrize(
    ("refuse", "expected", "words"),
    [
        (lambda i: commands.error(i, pb.TopicNotFound, "none"), TopicNotFound, r"none \[TopicNotFound\]"),
        (lambda i: commands.lookup_failed(i, pb.MetadataError, "away"), BrokerBusy, r"away \[MetadataError\]"),
        (lambda i: commands.get_schema_failed(i, pb.TopicNotFound, "none"), TopicNotFound, "none"),
        (lambda i: commands.lookup_failed(i, pb.UnknownError, ""), Refused, r"\[UnknownError\]"),
        (failure, Refused, r"the broker does not say why \[UnknownError\]"),
        (partial(failure, words="asleep"), Refused, r"^asleep \[UnknownError\]"),
    ],
)
def test_every_way_of_refusing_becomes_one_error(
    refuse: Callable[[int], pb.BaseCommand], expected: type[Refused], words: str
) -> None:
    conversation = welcomed()
    question = asked(conversation)
    assert events(conversation, encode_command(refuse(question.request_id))) == [question]
    for _ in range(2):
        with pytest.raises(expected, match=words) as raised:
            question.result()
        assert raised.value is not question.error


def test_an_error_about_a_consumer_answers_nothing() -> None:
    conversation = welcomed()
    question = asked(conversation)
    error = commands.consumer_error(question.request_id, pb.PersistenceError, "damaged")
    error.error.request_id = question.request_id
    (frame,) = events(conversation, encode_command(error))
    assert not isinstance(frame, Question)
    assert not question.is_answered


@pytest.mark.parametrize(("said", "largest"), [(0, MAX_FRAME_SIZE), (1000, 1000 + 10 * 1024)])
def test_a_frame_is_checked_by_what_the_broker_takes(said: int, largest: int) -> None:
    conversation = Conversation(HERE, "test")
    conversation.feed(encode_command(commands.connected("peer", max_message_size=said)))
    assert conversation.welcomed()
    conversation.check_frame(largest)
    with pytest.raises(MessageTooLarge, match=f"^the message and its metadata take {largest + 1} bytes, but"):
        conversation.check_frame(largest + 1)


def test_only_a_message_may_carry_a_payload() -> None:
    conversation = welcomed()
    (frame,) = events(conversation, encode_payload_command(commands.message(1, 2, 3), b"payload"))
    assert not isinstance(frame, Question)
    with pytest.raises(ProtocolViolation, match="broke the protocol: it sent SUCCESS with a payload of 7 bytes"):
        events(conversation, encode_payload_command(commands.success(1), b"payload"))


def test_the_end_fails_every_question_that_waits_and_no_other() -> None:
    conversation = welcomed()
    answered, waiting, withdrawn = (asked(conversation) for _ in range(3))
    events(conversation, encode_command(commands.lookup_connect(answered.request_id, "pulsar://x")))
    conversation.withdraw(withdrawn)
    lost = ConnectionLost("gone")
    assert conversation.end(lost) == [waiting]
    assert conversation.questions == 0
    assert events(conversation, encode_command(commands.lookup_connect(waiting.request_id, "pulsar://x"))) == []
    assert answered.result().broker_service_url == "pulsar://x"
    assert not withdrawn.is_answered
    for ask in (waiting.result, conversation.check_open):
        with pytest.raises(ConnectionLost, match="gone") as raised:
            ask()
        assert raised.value is not lost


# ------------------------------------------------------------------------------------------------------------ anything


@given(data=st.lists(st.binary(max_size=60) | near_commands, max_size=8).map(b"".join), cuts=cuts)
def test_whatever_comes_in_whatever_slices_only_a_violation_is_raised(data: bytes, cuts: list[int]) -> None:
    """The events before it are the same, too, however the bytes are sliced."""

    def told(pieces: list[bytes]) -> list[object]:
        conversation = welcomed()
        questions = [asked(conversation) for _ in range(5)]
        found: list[object] = []
        violation = f"{HERE} broke the protocol: "
        try:
            for piece in pieces:
                conversation.feed(piece)
                while (event := conversation.next_event()) is not None:
                    if isinstance(event, Question):
                        assert event in questions
                        assert event.is_answered
                        questions.remove(event)
                        found.append((event.request_id, str(event.error)))
                    else:
                        found.append(event)
        except ProtocolViolation as error:
            found.append(str(error))
        assert all(text.startswith(violation) for text in found if isinstance(text, str))
        assert conversation.questions == len(questions)
        assert not any(question.is_answered for question in questions)
        return found

    assert told(sliced(data, cuts)) == told([data])


step = st.tuples(st.sampled_from(["ask", "withdraw", "answer", "refuse", "other type", "ping"]), st.integers(0, 9))


@given(steps=st.lists(step, max_size=60), cuts=cuts)
def test_an_answer_reaches_its_question_and_no_other(steps: list[tuple[str, int]], cuts: list[int]) -> None:
    """The peer answers in any order: twice, late, without a question, and with a wrong type."""
    conversation = welcomed()
    made: list[Question[Any]] = []
    waiting: set[int] = set()
    for what, which in steps:
        if what == "ask":
            made.append(asked(conversation))
            waiting.add(len(made) - 1)
            continue
        request_id = made[which].request_id if which < len(made) else 1000 + which
        if what == "withdraw":
            if which < len(made):
                conversation.withdraw(made[which])
                waiting.discard(which)
            continue
        said = {
            "answer": commands.lookup_connect(request_id, f"pulsar://{request_id}"),
            "refuse": commands.error(request_id, pb.TopicNotFound, f"no {request_id}"),
            "other type": commands.success(request_id),
            "ping": commands.ping(),
        }[what]
        found = events(conversation, *sliced(encode_command(said), cuts))
        if what == "ping":
            assert found == [PING]
        elif which not in waiting:
            assert found == []
        else:
            waiting.discard(which)
            assert found == [made[which]]
            if what == "answer":
                assert made[which].result().broker_service_url == f"pulsar://{request_id}"
            else:
                expected = TopicNotFound if what == "refuse" else ProtocolViolation
                assert isinstance(made[which].error, expected)
        assert conversation.questions == len(waiting)
    assert {index for index, question in enumerate(made) if not question.is_answered} >= waiting
    assert conversation.end(ConnectionLost("gone")) == [made[index] for index in sorted(waiting)]
