"""`tidewire topics peek` against a broker in a separate process."""

import json
import uuid
from typing import Any

import pytest

from tests.support.processes import RunningBroker
from tests.support.scalable_writer import scalable_writer
from tests.tidewire.cli.conftest import CommandLine


def cells(output: str) -> list[list[str]]:
    """The rows of the table, without its head and what stands behind it."""
    return [line.split() for line in output.splitlines() if line.strip()[:1].isdigit()]


@pytest.fixture
def plain() -> str:
    return f"persistent://public/default/{uuid.uuid4().hex}"


def test_messages_are_shown_newest_or_oldest(tidewire: CommandLine, plain: str) -> None:
    tidewire.well("produce", plain, *(f"v{number}" for number in range(30)), "--key", "k")
    shown = tidewire.well("topics", "peek", plain)
    assert [row[-1] for row in cells(shown)] == [f"v{number}" for number in range(10, 30)]
    assert all(row[1] == "committed" and row[-2] == "k" for row in cells(shown))
    (older,) = [line for line in shown.splitlines() if line.startswith("older: ")]
    words = older.removeprefix("older: tidewire ").split()
    assert [row[-1] for row in cells(tidewire.well(*words))] == [f"v{number}" for number in range(10)]
    first = tidewire.well("topics", "peek", plain, "--from", "earliest", "--count", "3")
    assert [row[-1] for row in cells(first)] == ["v0", "v1", "v2"]
    (newer,) = [line for line in first.splitlines() if line.startswith("newer: ")]
    following = tidewire.well(*newer.removeprefix("newer: tidewire ").split(), "--count", "2")
    assert [row[-1] for row in cells(following)] == ["v3", "v4"]
    assert len(cells(tidewire.well("topics", "peek", plain, "--from", "2020-01-01"))) == 20
    assert tidewire.well("topics", "peek", plain, "--from", "2100-01-01T00:00:00").startswith("There are no messages")


def test_json_has_all_fields(tidewire: CommandLine, plain: str) -> None:
    tidewire.well("produce", plain, stdin=b"a\x1b[2Jb\n\xff\n")
    document = json.loads(tidewire.well("topics", "peek", plain, "--json"))
    found: list[dict[str, Any]] = document["messages"]
    assert document["topic"] == plain
    (log,) = document["logs"]
    end, _, last = found[1]["position"].rpartition(":")
    assert (log["log"], log["confirmed"], log["readable"], last) == (plain, end, end, "1")
    oldest = json.loads(tidewire.well("topics", "peek", plain, "--json", "--from", "earliest", "--count", "1"))
    following = ("topics", "peek", plain, "--json", "--from", oldest["logs"][0]["newer"])
    assert oldest["logs"][0]["hasNewer"]
    assert json.loads(tidewire.well(*following))["messages"] == found[1:]
    empty = json.loads(tidewire.well("topics", "peek", plain, "--json", "--from", "2100-01-01T00:00:00"))
    assert empty["messages"] == []
    assert [row["payload"] for row in found] == ["YRtbMkpi", "/w=="]
    assert {row["log"] for row in found} == {plain}
    assert [row["index"] for row in found] == [0, 1]
    assert "\x1b" not in tidewire.well("topics", "peek", plain)
    tidewire.well("produce", plain, "[red]:bug:[/nope]", "--key", ":heart:")
    assert cells(tidewire.well("topics", "peek", plain))[-1][-2:] == [":heart:", "[red]:bug:[/nope]"]


def test_long_keys_and_values_leave_the_other_columns_as_they_are(
    tidewire: CommandLine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    tidewire.well("produce", topic, '{"sentence": "' + "word " * 100 + '"}', "--key", "k" * 100)
    shown = tidewire.well("topics", "peek", topic)
    assert shown.splitlines()[0].split() == ["segment", "position", "state", "stored", "(UTC)", "key", "value"]
    (row,) = cells(shown)
    assert row[2] == "committed"
    assert (row[5][:8], row[6][:8]) == ("k" * 8, '{"senten')
    monkeypatch.setenv("COLUMNS", "300")
    (row,) = cells(tidewire.well("topics", "peek", topic))
    assert len(row[5]) == 60
    assert row[6:9] == ['{"sentence":', '"word', "word"]


def test_open_messages_are_marked_and_segments_are_merged(
    tidewire: CommandLine, broker: RunningBroker, topic: str
) -> None:
    """T14: what a transaction has not decided is shown as open."""
    with scalable_writer(broker.service_url, topic) as writer:
        txn = writer.begin()
        for number in range(8):
            writer.send(b"m%d" % number, key=str(number), txn=txn if number == 3 else None)
        document = json.loads(tidewire.well("topics", "peek", topic, "--json"))
        assert [row["text"] for row in document["messages"]] == [f"m{number}" for number in range(8)]
        assert len(document["logs"]) == 2
        assert not any("older" in log for log in document["logs"])
        shown = cells(tidewire.well("topics", "peek", topic))
        assert [row[-1] for row in shown] == [f"m{number}" for number in range(8)]
        assert [row[2] for row in shown] == ["open" if number == 3 else "committed" for number in range(8)]
        segment = shown[3][0]
        assert {row[0] for row in shown} == {"0", "1"}
        one = tidewire.well("topics", "peek", topic, "--segment", segment)
        assert "An open transaction holds back the rest." in one
        assert {row[0] for row in cells(one)} == {segment}
        writer.abort(txn)
        assert cells(tidewire.well("topics", "peek", topic))[3][2] == "aborted"


def test_mistakes_are_refused(tidewire: CommandLine, topic: str, plain: str) -> None:
    assert "Give --segment too" in tidewire.complaint("topics", "peek", topic, "--from", "5:0", status=2)
    assert "has no segment or partition 7" in tidewire.complaint("topics", "peek", topic, "--segment", "7", status=2)
    assert "--from is 'x'" in tidewire.complaint("topics", "peek", topic, "--from", "x", status=2)
    both = ("--from", "earliest", "--before", "1:0")
    assert "either" in tidewire.complaint("topics", "peek", topic, *both, status=2)
    assert "does not exist" in tidewire.complaint("topics", "peek", plain)
    assert "must be a position" in tidewire.complaint("topics", "peek", topic, "--segment", "0", "--before", "x")
