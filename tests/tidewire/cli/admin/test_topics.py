"""`tidewire topics` on both kinds of topic, against a broker in a separate process."""

import json

import pytest

from tests.tidewire.cli.conftest import CommandLine
from tidewire.cli.admin.retention import policy_of, sentence
from tidewire.cli.endings import UsageError


def test_topics_of_each_kind_are_listed_and_deleted(tidewire: CommandLine, each_kind: str) -> None:
    """Part 9: a partitioned topic is one topic in the list, used or not."""
    topic = each_kind
    kind = topic.rpartition("/")[2].partition("-")[0]
    tidewire.well("produce", topic, "--key", "k", "v")
    listed = json.loads(tidewire.well("topics", "list", "--json"))
    assert [one for one in listed if one["topic"].startswith(topic)] == [{"topic": topic, "kind": kind}]
    assert topic in tidewire.well("topics", "list").splitlines()
    assert "already" in tidewire.complaint("topics", "create", topic)
    asked = tidewire.complaint("topics", "delete", topic, status=2)
    assert asked == (
        f"tidewire topics: All messages and subscriptions of {topic} will be lost. Confirm it with --yes.\n"
    )
    assert tidewire.well("topics", "delete", topic, "--yes") == f"deleted {topic}\n"
    assert topic not in tidewire("topics", "list").stdout
    assert "does not exist" in tidewire.complaint("topics", "show", topic)


def test_a_namespace_without_topics_is_said_to_have_none(tidewire: CommandLine, topic: str) -> None:
    """Part 9: nothing at all would look like a failure. Programs get the empty list alone."""
    for arguments, told in (
        (("public/nothing",), "The namespace public/nothing has no topic. "),
        (("public/default", "--property", "no=such"), "The namespace public/default has no topic that has no=such. "),
    ):
        empty = tidewire("topics", "list", *arguments)
        assert (empty.exit_code, empty.stdout) == (0, "")
        assert empty.stderr == (
            f"tidewire topics: {told}Create one with `tidewire topics create topic://{arguments[0]}/NAME`.\n"
        )
        assert tidewire.well("topics", "list", *arguments, "--json") == "[]\n"
    assert topic in tidewire.well("topics", "list").splitlines()


def test_statistics_count_all_parts(tidewire: CommandLine, each_kind: str) -> None:
    topic = each_kind
    for value in "abcd":
        tidewire.well("produce", topic, "--key", value, value)
    tidewire.well("consume", topic, "--subscription", "board", "--count", "1")
    view = json.loads(tidewire.well("topics", "stats", topic, "--json"))
    assert len(view["parts"]) == (1 if "/regular-" in topic else 2)
    assert view["messagesIn"] == sum(part["messagesIn"] for part in view["parts"]) == 4
    assert view["bytesIn"] > 0
    assert [(one["subscription"], one["backlog"]) for one in view["subscriptions"]] == [("board", 3)]
    lines = tidewire.well("topics", "stats", topic).splitlines()
    assert lines[0] == topic
    last = next(line for line in reversed(lines) if "total" in line or topic.rpartition("/")[2] in line)
    assert "4" in last.split()
    assert json.loads(tidewire.well("topics", "show", topic, "--json"))["subscriptions"]["board"]["msgBacklog"] == 3


def test_an_unloaded_topic_keeps_its_messages(tidewire: CommandLine, each_kind: str) -> None:
    """Its counters begin anew, which shows that it was unloaded."""
    topic = each_kind
    tidewire.well("produce", topic, "--key", "k", "v")
    assert tidewire.well("topics", "unload", topic) == f"unloaded {topic}\n"
    assert json.loads(tidewire.well("topics", "stats", topic, "--json"))["messagesIn"] == 0
    assert tidewire.well("consume", topic, "--count", "1") == "v\n"


def test_retention_is_set_shown_and_removed(tidewire: CommandLine, each_kind: str) -> None:
    topic = each_kind
    assert tidewire.well("topics", "retention", topic) == f"{topic} keeps everything (not its own policy)\n"
    changed = tidewire.well("topics", "retention", topic, "--time", "7d", "--size", "10G")
    assert changed == f"{topic} keeps what is acknowledged for 10,080 minutes and up to 10,240 MiB\n"
    told = json.loads(tidewire.well("topics", "retention", topic, "--json"))
    assert told == {"topic": topic, "minutes": 10080, "megabytes": 10240, "isOwn": True}
    assert "(not its own policy)" in tidewire.well("topics", "retention", topic, "--remove")
    assert "--time" in tidewire.complaint("topics", "retention", topic, "--time", "7 days", status=2)
    assert "either" in tidewire.complaint("topics", "retention", topic, "--time", "7d", "--remove", status=2)


@pytest.mark.parametrize(
    ("time", "size", "policy", "said"),
    [
        ("90m", None, (90, -1), "keeps what is acknowledged for 90 minutes"),
        (None, "500M", (-1, 500), "keeps what is acknowledged up to 500 MiB"),
        ("1w", "1T", (10080, 1048576), "keeps what is acknowledged for 10,080 minutes and up to 1,048,576 MiB"),
        ("infinite", None, (-1, -1), "keeps everything"),
        ("0", None, (0, 0), "keeps nothing that is acknowledged"),
        (None, "0", (0, 0), "keeps nothing that is acknowledged"),
    ],
)
def test_amounts_have_units(time: str | None, size: str | None, policy: tuple[int, int], said: str) -> None:
    made = policy_of(time, size)
    assert made == {"retentionTimeInMinutes": policy[0], "retentionSizeInMB": policy[1]}
    assert sentence(made) == said


@pytest.mark.parametrize(("time", "size"), [("7", None), ("d", None), ("-1d", None), (None, "10g"), (None, "7d")])
def test_other_texts_are_no_amounts(time: str | None, size: str | None) -> None:
    with pytest.raises(UsageError):
        policy_of(time, size)


def test_a_partitioned_topic_grows(tidewire: CommandLine, topic: str) -> None:
    """Part 9: its messages stay, and the new partitions take some."""
    name = f"persistent://public/default/{topic.rpartition('/')[2]}-partitioned"
    tidewire.well("topics", "create", name, "--partitions", "2")
    sent = ("produce", name, "--key-separator", ":", *(f"{key}:{key}" for key in "abcdefghijklmnop"))
    tidewire.well(*sent)
    assert "Ask for more" in tidewire.complaint("topics", "extend", name, "--partitions", "2")
    assert tidewire.well("topics", "extend", name, "--partitions", "4") == f"extended {name} to 4 partitions\n"
    tidewire.well(*sent)
    parts = json.loads(tidewire.well("topics", "stats", name, "--json"))["parts"]
    assert len(parts) == 4
    assert all(part["messagesIn"] for part in parts)
    assert sorted(tidewire.well("consume", name, "--until-end").split()) == sorted("abcdefghijklmnop" * 2)
    told = json.loads(tidewire.well("topics", "extend", name, "--partitions", "5", "--json"))
    assert told == {"topic": name, "partitions": 5}
    assert "does not exist" in tidewire.complaint("topics", "extend", f"{name}x", "--partitions", "5")
    assert "tidewire topics split" in tidewire.complaint("topics", "extend", topic, "--partitions", "5", status=2)


def test_options_of_the_other_kind_are_refused(tidewire: CommandLine) -> None:
    scalable, regular = "topic://public/default/none", "persistent://public/default/none"
    for mistake in (
        ("create", scalable, "--partitions", "2"),
        ("create", regular, "--segments", "2"),
        ("create", regular, "--property", "a=b"),
        ("split", regular, "0"),
        ("migrate", scalable),
        ("stats", "segment://public/default/none"),
    ):
        complaint = tidewire.complaint("topics", *mistake, status=2)
        assert complaint.startswith("tidewire topics: ")
        assert complaint.count("\n") == 1
