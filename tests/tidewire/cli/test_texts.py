"""The text that commands read and write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.cli.consume import described
from tidewire.cli.endings import CommandFailed, UsageError, one_sentence, pairs
from tidewire.cli.produce import keyed, milliseconds
from tidewire.cli.transaction_ids import format_transaction_id, parse_transaction_id
from tidewire.client.message import Message
from tidewire.protocol.positions import MessageId

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
        b'"ledger": 3, "entry": 4}'
    )


def test_failures_and_mistakes_differ_in_their_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    for failure, status in ((CommandFailed("No."), 1), (UsageError("Not so."), 2)):
        with pytest.raises(SystemExit) as ended, one_sentence("tidewire x"):
            raise failure
        assert ended.value.code == status
    assert capsys.readouterr().err == "tidewire x: No.\ntidewire x: Not so.\n"
