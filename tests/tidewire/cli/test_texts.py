"""The text that commands read and write."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.cli.endings import CommandFailed, UsageError, one_sentence, pairs
from tidewire.cli.message_formats import described, format_of
from tidewire.cli.message_ids import beginning_of, message_id_of, text_of
from tidewire.cli.produce import keyed, milliseconds
from tidewire.cli.transaction_ids import format_transaction_id, parse_transaction_id
from tidewire.client.message import Message
from tidewire.protocol.positions import MessageId, Position

WORDS = st.integers(0, 2**64 - 1)


@given(st.tuples(WORDS, WORDS))
def test_a_transactions_id_is_read_as_it_was_written(transaction_id: tuple[int, int]) -> None:
    assert parse_transaction_id(format_transaction_id(transaction_id)) == transaction_id


@given(st.text())
def test_other_texts_are_no_transactions_id(text: str) -> None:
    try:
        transaction_id = parse_transaction_id(text)
    except UsageError:
        return
    coordinator, number = text.split(":")
    assert transaction_id == (int(coordinator), int(number))


@pytest.mark.parametrize(
    ("text", "since_epoch_ms"),
    [
        ("1970-01-01", 0),
        ("2013-01-31T06:15:00Z", 1_359_612_900_000),
        ("2013-01-31T06:15", 1_359_612_900_000),
        ("2013-01-31 07:15:00.250+01:00", 1_359_612_900_250),
    ],
)
def test_times_are_utc_unless_they_say_otherwise(text: str, since_epoch_ms: int) -> None:
    assert milliseconds(text) == since_epoch_ms


def test_a_key_stands_before_the_first_separator() -> None:
    assert keyed(b"a::b::c", None, "::") == ("a", b"b::c")
    assert keyed(b":x", None, ":") == ("", b"x")
    assert keyed(b"a:b", "k", None) == ("k", b"a:b")
    for line in (b"none", b"\xff:x"):
        with pytest.raises(UsageError):
            keyed(line, None, ":")


def test_pairs_are_divided_at_the_first_equals_sign() -> None:
    assert pairs(["a=b=c", "d="], "--property") == {"a": "b=c", "d": ""}


def test_a_message_without_value_or_with_an_impossible_time_is_described() -> None:
    message = Message(
        b"", None, {}, 2**62, 0, MessageId(-1, 3, 4), "persistent://public/default/x", "p", 0, 0, is_null=True
    )
    assert described(message) == (
        b'{"key": null, "value": null, "properties": {}, "event_time": 4611686018427387904, '
        b'"publish_time": "1970-01-01T00:00:00.000+00:00", "topic": "persistent://public/default/x", '
        b'"ledger": 3, "entry": 4, "id": "3:4"}'
    )


def sent(value: Any, data: bytes = b"", **other: Any) -> Message[Any]:
    fields: dict[str, Any] = {
        "key": "JFK",
        "properties": {"from": "here", "to": "there"},
        "event_time_ms": 7,
        "publish_time_ms": 5,
        "message_id": MessageId(2, 3, 4, 0, 10, others={1: Position(3, 9)}),
        "topic": "segment://public/default/x/0000-ffff-2",
        "producer_name": "p",
        "sequence_id": 0,
        "redelivery_count": 0,
    }
    return Message(value=value, data=data, **fields | other)


def test_a_template_has_the_letters_of_kcat() -> None:
    message = sent(b"departed", b"departed")
    template = r"%k (%K)\t%s (%S)\n%t %p %o %i %T %e %h 100%% \\"
    assert format_of(template)(message) == (
        b"JFK (3)\tdeparted (8)\nsegment://public/default/x/0000-ffff-2 2 3:4:0/10 2:3:4:0/10,1:3:9 5 7 "
        b"from=here,to=there 100% \\"
    )
    nothing = sent(None, key=None, event_time_ms=None, is_null=True)
    assert format_of("%k,%K,%s,%S,%e")(nothing) == b",-1,,-1,"
    for wrong in ("%x", "%", "\\q", "\\"):
        with pytest.raises(UsageError, match="not known"):
            format_of(wrong)


def test_decoded_values_are_printed_as_json_and_texts_as_they_are() -> None:
    assert format_of(None)(sent({"a": "ü", "b": b"\xff"}, b"...")) == '{"a": "ü", "b": "ÿ"}\n'.encode()
    assert format_of(None)(sent(5, b"\0\0\0\5")) == b"5\n"
    assert format_of(None)(sent("ü", "ü".encode())) == "ü\n".encode()
    shown = json.loads(format_of("json")(sent({"a": 1}, b"...")))
    assert (shown["value"], shown["segment"], shown["batch_index"]) == ({"a": 1}, 2, 0)
    assert shown["id"] == "2:3:4:0/10,1:3:9"
    assert json.loads(format_of("json")(sent(b"\xff", b"\xff")))["value_base64"] == "/w=="


NUMBERS = st.integers(0, 2**63 - 1)
PLACES = (st.tuples(NUMBERS, NUMBERS) | st.tuples(NUMBERS, NUMBERS, st.integers(0, 10**8), st.integers(1, 10**8))).map(
    lambda place: Position(*place)
)


@given(st.integers(-1, 2**40), PLACES, st.dictionaries(st.integers(0, 2**40), PLACES, max_size=3))
def test_a_message_id_is_read_as_it_was_written(segment: int, place: Position, others: dict[int, Position]) -> None:
    others.pop(segment, None)
    message_id = MessageId(segment, *place, others=others)
    read = message_id_of(text_of(message_id))
    assert read is not None
    assert (read, read.batch_size, read.others) == (message_id, place.batch_size, others)


def test_reading_begins_at_a_word_a_time_or_a_message() -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    assert [beginning_of(word, now) for word in ("earliest", "latest")] == ["earliest", "latest"]
    assert beginning_of("1000:5", now) == MessageId(-1, 1000, 5)
    assert beginning_of("2013-01-31T06:15", now) == datetime(2013, 1, 31, 6, 15, tzinfo=UTC)
    assert beginning_of("90s", now) == now - timedelta(seconds=90)
    assert beginning_of("1d", now) == now - timedelta(days=1)
    for wrong in ("yesterday", "5", "1:2:3:4", "999999999d", "1:2,", ""):
        with pytest.raises(UsageError, match="no place to begin"):
            beginning_of(wrong, now)
    for early in ("0001-01-01", "1969-12-31T23:59:59Z", "1970-01-01T00:00:00+01:00", "30000d"):
        with pytest.raises(UsageError, match="before 1970"):
            beginning_of(early, now)
    assert beginning_of("1970-01-01", now) == datetime(1970, 1, 1, tzinfo=UTC)


def test_failures_and_mistakes_differ_in_their_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    for failure, status in ((CommandFailed("No."), 1), (UsageError("Not so."), 2)):
        with pytest.raises(SystemExit) as ended, one_sentence("tidewire x"):
            raise failure
        assert ended.value.code == status
    assert capsys.readouterr().err == "tidewire x: No.\ntidewire x: Not so.\n"
