"""`tidewire produce`, `consume` and `transactions` against a broker in a separate process."""

import json
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.tidewire.cli.conftest import CommandLine


@pytest.fixture
def plain() -> str:
    return f"persistent://public/default/{uuid.uuid4().hex}"


def test_arguments_are_messages_in_order(tidewire: CommandLine, plain: str) -> None:
    assert tidewire.well("produce", plain, "one", "two", "zwölf") == f"sent 3 messages to {plain}\n"
    assert tidewire.well("consume", plain, "--count", "3") == "one\ntwo\nzwölf\n"
    assert json.loads(tidewire.well("produce", plain, "four", "--json")) == {"topic": plain, "sent": 1}


def test_lines_of_standard_input_are_messages_whatever_they_hold(tidewire: CommandLine, plain: str) -> None:
    assert tidewire.well("produce", plain, stdin=b"a\r\n\n\xff\xfe\nlast") == f"sent 4 messages to {plain}\n"
    lines = [json.loads(line) for line in tidewire.well("consume", plain, "--json", "--count", "4").splitlines()]
    assert [line.get("value", line.get("value_base64")) for line in lines] == ["a", "", "//4=", "last"]


def test_each_line_of_a_file_is_a_message_at_a_steady_rate(tidewire: CommandLine, plain: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\nb\nc\n")
    begun = time.monotonic()
    assert tidewire.well("produce", plain, "--file", str(path), "--rate", "20") == f"sent 3 messages to {plain}\n"
    assert time.monotonic() - begun >= 2 / 20
    assert tidewire.well("produce", plain, "--file", "-", stdin=b"d") == f"sent 1 message to {plain}\n"
    assert tidewire.well("consume", plain, "--count", "4") == "a\nb\nc\nd\n"
    assert "nowhere cannot be read" in tidewire.complaint("produce", plain, "--file", "nowhere", status=2)
    assert "either" in tidewire.complaint("produce", plain, "m", "--file", str(path), status=2)


DEFINITION = """{"type": "record", "name": "Flight", "fields": [
    {"name": "carrier", "type": "string"}, {"name": "delay", "type": ["null", "double"], "default": null}]}"""


def test_lines_are_checked_by_a_schema_which_the_topic_gets(
    tidewire: CommandLine, topic: str, plain: str, tmp_path: Path
) -> None:
    (tmp_path / "flight.avsc").write_text(DEFINITION)
    (tmp_path / "other.avsc").write_text(DEFINITION.replace('"string"', '"long"'))
    for kind, name in (("json", topic), ("avro", plain)):
        option = ("--schema", f"{kind}:{tmp_path / 'flight.avsc'}")
        lines = b'{"carrier": "UA"}\n{"carrier": "DL", "delay": 5}\n'
        assert tidewire.well("produce", name, "--key", "k", *option, stdin=lines) == f"sent 2 messages to {name}\n"
        result = tidewire("produce", name, "--key", "k", *option, stdin=b'{"carrier": "AA"}\n{"carrier": 5}\n')
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == (
            "tidewire produce: Line 2: field carrier is 5, not a text. The 1 before it were sent.\n"
        )
        complaint = tidewire.complaint("produce", name, "x", *option, status=2)
        assert "Message 1: it is not JSON" in complaint
        assert complaint.endswith(" None was sent.\n")
        other = ("--schema", f"{kind}:{tmp_path / 'other.avsc'}")
        assert "IncompatibleSchema" in tidewire.complaint("produce", name, '{"carrier": 5}', *other)
    shown = tidewire.well("consume", topic, "--count", "3").splitlines()
    assert [json.loads(line)["carrier"] for line in shown] == ["UA", "DL", "AA"]
    for wrong in ("protobuf", "json", "json:nowhere", f"json:{__file__}"):
        assert "--schema" in tidewire.complaint("produce", topic, "x", "--schema", wrong, status=2)


def test_a_decimal_and_a_time_are_what_the_line_says_to_every_reader(
    tidewire: CommandLine, topic: str, tmp_path: Path
) -> None:
    """The broker reads the bytes by itself, as Spark and Avro's other readers do."""
    money = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
    micros = {"type": "long", "logicalType": "timestamp-micros"}
    fields = [{"name": "amount", "type": money}, {"name": "at", "type": micros}]
    (tmp_path / "order.avsc").write_text(json.dumps({"type": "record", "name": "Order", "fields": fields}))
    line = '{"amount": "12.30", "at": 1716550000123456}'
    option = ("--schema", f"avro:{tmp_path / 'order.avsc'}")
    tidewire.well("produce", topic, line, *option)
    (shown,) = json.loads(tidewire.well("topics", "peek", topic, "--json"))["messages"]
    assert shown["value"] == {"amount": "12.30", "at": "2024-05-24T11:26:40.123456Z"}
    assert tidewire.well("consume", topic, "--until-end") == f"{line}\n"
    refused = tidewire.complaint("produce", topic, line.replace("12.30", "12.345"), *option, status=2)
    assert "field amount is '12.345', not a decimal of at most 10 digits, 2 of them behind the point" in refused


def test_text_that_is_not_utf8_does_not_fit_the_schema_of_texts(tidewire: CommandLine, plain: str) -> None:
    result = tidewire("produce", plain, "--schema", "string", stdin=b"a\n\xff\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "tidewire produce: Line 2: byte 1 is not UTF-8 text. The 1 before it were sent.\n"
    assert tidewire.well("consume", plain, "--count", "1") == "a\n"


def test_a_line_that_is_too_large_is_named(tidewire: CommandLine, plain: str) -> None:
    result = tidewire("produce", plain, stdin=b"a\n" + bytes(6_000_000) + b"\nb\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "tidewire produce: Line 2: the message has 6000000 bytes; the limit is 5242880. The 1 before it were sent.\n"
    )


def test_everything_about_a_message_is_sent_and_shown(tidewire: CommandLine, topic: str) -> None:
    about = ("--property", "from=here", "--event-time", "2013-01-31T06:15:00+01:00", "--key-separator", ":")
    tidewire.well("produce", topic, "JFK:departed", *about)
    (shown,) = [json.loads(line) for line in tidewire.well("consume", topic, "--json", "--count", "1").splitlines()]
    assert (shown["key"], shown["value"], shown["properties"]) == ("JFK", "departed", {"from": "here"})
    assert shown["event_time"] == "2013-01-31T05:15:00.000+00:00"
    assert shown["topic"].startswith(topic.replace("topic://", "segment://"))
    assert {"ledger", "entry", "publish_time"} <= shown.keys()


def test_keys_decide_the_segment_and_keep_their_order(tidewire: CommandLine, topic: str) -> None:
    sent = [f"{key}:{number}" for number in range(10) for key in ("a", "b", "c", "d")]
    tidewire.well("produce", topic, *sent, "--key-separator", ":")
    got = [json.loads(line) for line in tidewire.well("consume", topic, "--json", "--count", "40").splitlines()]
    assert len({line["topic"] for line in got}) == 2
    for key in "abcd":
        own = [line for line in got if line["key"] == key]
        assert [line["value"] for line in own] == [str(number) for number in range(10)]
        assert len({line["topic"] for line in own}) == 1


def test_a_subscription_goes_on_where_it_stood(tidewire: CommandLine, topic: str, plain: str) -> None:
    for name, kinds in ((topic, [()]), (plain, [("--type", "exclusive"), ("--type", "shared")])):
        for number, kind in enumerate(kinds):
            if not number:
                tidewire.well("produce", name, "--key", "k", "1", "2", "3")
            consume = ("consume", name, "--subscription", f"s{number}", *kind)
            assert tidewire.well(*consume, "--count", "2") == "1\n2\n"
            assert tidewire.well(*consume, "--count", "1") == "3\n"
            assert tidewire.well(*consume, "--idle", "0.2") == ""


def test_a_queue_is_divided_message_by_message(tidewire: CommandLine, topic: str, plain: str) -> None:
    tidewire.well("produce", topic, *(f"{number}" for number in range(6)))
    consume = ("consume", topic, "--subscription", "q", "--queue")
    got = [tidewire.well(*consume, "--count", count).split() for count in ("2", "4")]
    assert sorted(got[0] + got[1]) == [f"{number}" for number in range(6)]
    assert tidewire.well(*consume, "--idle", "0.2") == ""
    assert "--subscription" in tidewire.complaint("consume", topic, "--queue", status=2)
    assert "--type shared" in tidewire.complaint("consume", plain, "-s", "q", "--queue", status=2)


def test_reading_stops_at_the_end_of_the_topic(tidewire: CommandLine, topic: str, plain: str) -> None:
    """Part 9: it does not wait for silence, on either kind of topic, nor through a split."""
    tidewire.well("topics", "create", plain, "--partitions", "2")
    for name in (topic, plain):
        read = ("consume", name, "--until-end")
        assert tidewire.well(*read) == ""
        sent = ("produce", name, "--key-separator", ":", *(f"{key}:{key}" for key in "abcdefgh"))
        tidewire.well(*sent)
        if name == topic:
            tidewire.well("segments", "split", topic, "0")
        tidewire.well(*sent)
        assert sorted(tidewire.well(*read).split()) == sorted("abcdefgh" * 2)
        last = tidewire.well("consume", name, "-e", "--format", "%i\n").split()[-1]
        for place, count in ((last, 0), ("latest", 0), ("1h", 16)):
            assert len(tidewire.well(*read, "--from", place).split()) == count
        assert len(tidewire.well(*read, "--count", "3").split()) == 3


def test_the_end_is_before_what_is_undecided(tidewire: CommandLine, topic: str) -> None:
    """T7: a last message that nobody may see, now or ever, is not waited for."""
    read = ("consume", topic, "--until-end")
    tidewire.well("produce", topic, "--key", "k", "first")
    aborted = tidewire.well("transactions", "begin").strip()
    tidewire.well("produce", topic, "--key", "k", "never", "--in-transaction", aborted)
    tidewire.well("transactions", "abort", aborted, "--yes")
    assert tidewire.well(*read) == "first\n"
    undecided = tidewire.well("transactions", "begin").strip()
    tidewire.well("produce", topic, "--key", "k", "undecided", "--in-transaction", undecided)
    tidewire.well("produce", topic, "--key", "k", "behind")
    assert tidewire.well(*read) == "first\n"
    # Children are read when their parents were, so what is in them is behind the end, too.
    for segment in ("0", "1"):
        tidewire.well("segments", "split", topic, segment)
    assert tidewire.well(*read) == "first\n"
    tidewire.well("transactions", "commit", undecided)
    assert tidewire.well(*read) == "first\nundecided\nbehind\n"


def test_latest_begins_behind_what_is_there(tidewire: CommandLine, plain: str) -> None:
    tidewire.well("produce", plain, "before")
    assert tidewire.well("consume", plain, "--subscription", "s", "--from", "latest", "--idle", "0.1") == ""
    tidewire.well("produce", plain, "after")
    assert tidewire.well("consume", plain, "--subscription", "s", "--count", "1") == "after\n"


def test_reading_goes_on_behind_an_id_that_was_printed(tidewire: CommandLine, topic: str, plain: str) -> None:
    for name in (topic, plain):
        tidewire.well("produce", name, "--key-separator", ":", *(f"{key}:{key}" for key in "abcdefgh"))
        shown = [json.loads(line) for line in tidewire.well("consume", name, "--json", "--count", "8").splitlines()]
        first, rest = shown[2], [line["value"] for line in shown[3:]]
        # The segments of a topic have no order among them.
        assert set(tidewire.well("consume", name, "--from", first["id"], "--count", "5").split()) == set(rest)
        assert tidewire.well("consume", name, "--from", shown[-1]["id"], "--idle", "0.2") == ""


def test_reading_begins_at_a_time(tidewire: CommandLine, topic: str) -> None:
    tidewire.well("produce", topic, "before")
    (shown,) = tidewire.well("consume", topic, "--format", "%T\\n", "--count", "1").split()
    behind = datetime.fromtimestamp((int(shown) + 1) / 1000, UTC).isoformat()
    tidewire.well("produce", topic, "after")
    assert tidewire.well("consume", topic, "--from", behind, "--count", "1") == "after\n"
    assert tidewire.well("consume", topic, "--from", "1h", "--until-end").split() == ["before", "after"]


def test_a_template_decides_what_is_printed_and_values_are_decoded(
    tidewire: CommandLine, plain: str, tmp_path: Path
) -> None:
    (tmp_path / "flight.avsc").write_text(DEFINITION)
    option = ("--schema", f"avro:{tmp_path / 'flight.avsc'}")
    tidewire.well("produce", plain, '{"carrier": "UA"}', *option, "--key", "k", "--property", "a=b")
    assert tidewire.well("consume", plain, "--count", "1") == '{"carrier": "UA", "delay": null}\n'
    assert tidewire.well("consume", plain, "--format", "%k %h|%s;", "--count", "1") == (
        'k a=b|{"carrier": "UA", "delay": null};'
    )
    assert json.loads(tidewire.well("consume", plain, "--format", "json", "--count", "1"))["value"]["carrier"] == "UA"
    assert tidewire.well("consume", plain, "--raw", "--count", "1") == "\x04UA\x00\n"


def test_a_transaction_of_several_calls_is_seen_when_it_is_committed(tidewire: CommandLine, topic: str) -> None:
    """T7, T33: messages of one transaction on two topics appear at the commit, which may be repeated."""
    other = f"{topic}-other"
    tidewire.well("topics", "create", other)
    transaction = tidewire.well("transactions", "begin").strip()
    tidewire.well("produce", topic, "--key", "k", "1", "2", "--in-transaction", transaction)
    tidewire.well("produce", other, "--key", "k", "3", "--in-transaction", transaction)
    for name in (topic, other):
        assert tidewire.well("consume", name, "--idle", "0.2") == ""
    assert tidewire.well("transactions", "commit", transaction) == f"committed {transaction}\n"
    assert tidewire.well("consume", topic, "--count", "2") == "1\n2\n"
    assert tidewire.well("consume", other, "--count", "1") == "3\n"
    # Asked again it is as true as before; the opposite is refused.
    assert tidewire.well("transactions", "commit", transaction) == f"committed {transaction}\n"
    assert "already COMMITTED" in tidewire.complaint("transactions", "abort", "--yes", transaction)
    assert "already COMMITTED" in tidewire.complaint("produce", topic, "late", "--in-transaction", transaction)


def test_an_aborted_transaction_is_never_seen(tidewire: CommandLine, topic: str) -> None:
    transaction = tidewire.well("transactions", "begin", "--timeout", "30").strip()
    tidewire.well("produce", topic, "--key", "k", "never", "--in-transaction", transaction)
    assert tidewire.well("transactions", "abort", "--yes", transaction) == f"aborted {transaction}\n"
    assert tidewire.well("produce", topic, "--key", "k", "a", "b", "--transaction") == f"sent 2 messages to {topic}\n"
    assert tidewire.well("consume", topic, "--count", "2") == "a\nb\n"


def test_a_transaction_of_one_call_is_aborted_if_the_call_fails(tidewire: CommandLine, topic: str) -> None:
    complaint = tidewire.complaint("produce", topic, "-t", "--key-separator", "=", "k=a", "k=b", "c", status=2)
    assert complaint == "tidewire produce: Message 3: 'c' has no '=' after its key.\n"
    tidewire.well("produce", topic, "--key", "k", "d")
    assert tidewire.well("consume", topic, "--count", "1") == "d\n"


def test_what_the_broker_refuses_is_told_in_its_words(tidewire: CommandLine) -> None:
    missing = "topic://public/default/nowhere"
    for command in (("produce", missing, "x"), ("consume", missing), ("consume", missing, "--subscription", "s")):
        assert f"{missing} does not exist" in tidewire.complaint(*command)
    assert "transactions: " in tidewire.complaint("transactions", "commit", f"3:{2**62 + 2**40}")


def test_a_broker_that_is_not_there_is_named(tidewire: CommandLine, topic: str) -> None:
    complaint = tidewire.complaint("produce", topic, "x", "--service-url", "pulsar://127.0.0.1:1")
    assert complaint.startswith("tidewire produce: cannot connect to pulsar://127.0.0.1:1: ")
    assert complaint.rstrip().endswith("name others with --service-url.")
    assert complaint.count("\n") == 1


def test_mistakes_are_told_in_one_sentence(tidewire: CommandLine, topic: str, plain: str) -> None:
    for mistake in (
        ("produce", "x", "m"),
        ("produce", topic, "m", "--key", "k", "--key-separator", ":"),
        ("produce", topic, "m", "--key-separator", ""),
        ("produce", topic, "m", "-t", "--in-transaction", "1:1"),
        ("produce", topic, "m", "--in-transaction", "one"),
        ("produce", topic, "m", "--property", "p"),
        ("produce", topic, "m", "--event-time", "yesterday"),
        ("produce", topic, "m", "--event-time", "1969-12-31"),
        ("consume", "x"),
        ("consume", topic, "--from", "yesterday"),
        ("consume", topic, "--from", "1h", "-s", "s"),
        ("consume", topic, "--format", "%x"),
        ("consume", topic, "--format", "json", "--json"),
        ("consume", topic, "--follow", "--count", "1"),
        ("consume", topic, "--follow", "--until-end"),
        ("consume", topic, "--until-end", "-s", "s"),
        ("consume", plain, "--type", "shared"),
        ("consume", topic, "-s", "s", "--type", "shared"),
        ("consume", topic, "--service-url", "http://127.0.0.1:1"),
        ("transactions", "commit", "1"),
        ("transactions", "abort", "--yes", f"1:{2**64}"),
    ):
        complaint = tidewire.complaint(*mistake, status=2)
        assert complaint.startswith(f"tidewire {mistake[0]}: "), complaint
        assert complaint.count("\n") == 1, complaint
