"""`tidewire subscriptions` on both kinds of topic, against a broker in a separate process."""

import json
import uuid
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.to_thread

from tests.tidewire.cli.conftest import CommandLine
from tidewire import connect


def one(tidewire: CommandLine, topic: str, name: str) -> dict[str, Any]:
    """The row of a subscription."""
    (row,) = [
        row
        for row in json.loads(tidewire.well("subscriptions", "list", topic, "--json"))
        if row["subscription"] == name
    ]
    return dict(row)


def produce(tidewire: CommandLine, topic: str, *values: str) -> None:
    """Send the values one by one, so that they do not travel as a batch."""
    for value in values:
        tidewire.well("produce", topic, "--key", value, value)


def consume(tidewire: CommandLine, topic: str, name: str, count: int) -> list[str]:
    return sorted(tidewire.well("consume", topic, "--subscription", name, "--count", str(count)).split())


def test_a_subscription_is_created_listed_moved_and_deleted(tidewire: CommandLine, each_kind: str) -> None:
    """Part 9: the same commands on a scalable topic, a regular one and one with partitions."""
    topic = each_kind
    produce(tidewire, topic, "a", "b")
    assert tidewire.well("subscriptions", "create", topic, "board") == f"created board on {topic}\n"
    for begin in ("earliest", "latest"):
        complaint = tidewire.complaint("subscriptions", "create", topic, "board", "--from", begin)
        assert "has a subscription board already" in complaint
    row = one(tidewire, topic, "board")
    assert (row["backlog"], row["consumers"], row["unackedMessages"]) == (2, 0, 0)
    assert row["backlogBytes"] > 0
    assert row["oldestBacklogAtMs"] > 0
    assert consume(tidewire, topic, "board", 2) == ["a", "b"]
    assert one(tidewire, topic, "board")["backlog"] == 0

    moved = tidewire.well("subscriptions", "seek", topic, "board", "--to", "earliest", "--yes")
    assert moved == f"moved board on {topic} to earliest\n"
    assert consume(tidewire, topic, "board", 2) == ["a", "b"]
    between = datetime.now(UTC).isoformat()
    produce(tidewire, topic, "c")
    tidewire.well("subscriptions", "seek", topic, "board", "--to", between, "--yes")
    assert one(tidewire, topic, "board")["backlog"] == 1
    tidewire.well("subscriptions", "seek", topic, "board", "--to", "latest", "--yes")
    assert one(tidewire, topic, "board")["backlog"] == 0

    tidewire.well("subscriptions", "seek", topic, "board", "--to", "earliest", "--yes")
    assert tidewire.well("subscriptions", "skip", topic, "board", "--yes") == f"board on {topic} skipped its backlog\n"
    assert one(tidewire, topic, "board")["backlog"] == 0

    assert tidewire.well("subscriptions", "unsubscribe", topic, "board", "--yes") == f"deleted board on {topic}\n"
    empty = tidewire("subscriptions", "list", topic)
    assert (empty.exit_code, empty.stdout.split()[0], empty.stdout.count("\n")) == (0, "subscription", 1)
    assert empty.stderr.startswith(f"tidewire subscriptions: {topic} has no subscriptions. Create one with ")
    assert json.loads(tidewire.well("subscriptions", "list", topic, "--json")) == []


def test_a_subscription_that_begins_at_the_end_gets_what_comes(tidewire: CommandLine, each_kind: str) -> None:
    topic = each_kind
    produce(tidewire, topic, "before")
    tidewire.well("subscriptions", "create", topic, "late", "--from", "latest")
    produce(tidewire, topic, "after")
    assert consume(tidewire, topic, "late", 1) == ["after"]


def test_a_subscription_is_shown_with_its_parts_and_consumers(tidewire: CommandLine, each_kind: str) -> None:
    topic = each_kind
    produce(tidewire, topic, *"abcdef")
    name = "a/b c+d%é"
    tidewire.well("subscriptions", "create", topic, name)
    told = json.loads(tidewire.well("subscriptions", "show", topic, name, "--json"))
    assert (told["topic"], told["subscription"], told["backlog"], told["consumersConnected"]) == (topic, name, 6, [])
    assert sum(part["backlog"] for part in told["parts"]) == 6
    heading, *rows = tidewire.well("subscriptions", "list", topic).splitlines()
    assert heading.startswith("subscription  type")
    assert rows[0].startswith(name)

    async def story() -> None:
        async with connect(tidewire.broker.service_url) as client:
            scalable = topic.startswith("topic://")
            consumer = client.stream_consumer(topic, name) if scalable else client.consumer(topic, name)
            async with consumer as consuming:
                await consuming.receive()
                arguments = ("subscriptions", "stats", topic, name, "--json")
                shown = json.loads(await anyio.to_thread.run_sync(tidewire.well, *arguments))
                assert shown["consumers"] == 1
                assert {one["part"] for one in shown["consumersConnected"]} <= {one["part"] for one in shown["parts"]}
                assert sum(one["messagesOut"] for one in shown["consumersConnected"]) >= 1
                text = await anyio.to_thread.run_sync(tidewire.well, "subscriptions", "show", topic, name)
                assert shown["consumersConnected"][0]["consumer"] in text

    anyio.run(story)
    tidewire.well("subscriptions", "delete", topic, name, "--yes", "--force")
    assert "no subscription" in tidewire.complaint("subscriptions", "show", topic, name)


def test_a_part_of_a_regular_topics_backlog_is_skipped(tidewire: CommandLine) -> None:
    topic = f"persistent://public/default/{uuid.uuid4().hex}"
    produce(tidewire, topic, *"abc")
    tidewire.well("subscriptions", "create", topic, "board")
    skipped = tidewire.well("subscriptions", "skip", topic, "board", "--count", "2", "--yes")
    assert skipped == f"board on {topic} skipped 2 entries\n"
    assert consume(tidewire, topic, "board", 1) == ["c"]
    tidewire.well("subscriptions", "seek", topic, "board", "--to", "earliest", "--yes")
    tidewire.well("subscriptions", "skip", topic, "board", "--older-than", "3600", "--yes")
    assert one(tidewire, topic, "board")["backlog"] == 3


def test_a_batch_is_skipped_as_one_entry(tidewire: CommandLine) -> None:
    topic = f"persistent://public/default/{uuid.uuid4().hex}"
    tidewire.well("produce", topic, "a", "b", "c")
    tidewire.well("subscriptions", "create", topic, "board")
    assert one(tidewire, topic, "board")["backlog"] == 1
    skipped = tidewire.well("subscriptions", "skip", topic, "board", "--count", "1", "--yes")
    assert skipped == f"board on {topic} skipped 1 entry\n"
    assert one(tidewire, topic, "board")["backlog"] == 0


def test_a_subscription_is_moved_behind_a_message_of_a_regular_topic(tidewire: CommandLine, topic: str) -> None:
    """The id is the text that `tidewire consume --json` prints. A scalable topic has a position on each segment."""
    regular = f"persistent://public/default/{uuid.uuid4().hex}"
    produce(tidewire, regular, *"abc")
    tidewire.well("subscriptions", "create", regular, "board")
    second = tidewire.well("consume", regular, "--count", "2", "--format", "%i\\n").splitlines()[1]
    tidewire.well("subscriptions", "seek", regular, "board", "--to", second, "--yes")
    assert consume(tidewire, regular, "board", 1) == ["c"]
    tidewire.well("subscriptions", "seek", regular, "board", "--to", "1h", "--yes")
    assert one(tidewire, regular, "board")["backlog"] == 3
    assert "--to" in tidewire.complaint("subscriptions", "seek", topic, "board", "--to", "soon", status=2)
    assert "Give a time" in tidewire.complaint("subscriptions", "seek", topic, "board", "--to", second, status=2)


def test_mistakes_are_told_in_one_sentence(tidewire: CommandLine) -> None:
    scalable, regular = "topic://public/default/none", "persistent://public/default/none"
    for mistake in (
        ("list", "none"),
        ("list", "segment://public/default/none/0000-ffff-0"),
        ("create", regular, "s", "--type", "queue"),
        ("seek", scalable, "s", "--to", "yesterday"),
        ("seek", scalable, "s", "--to", "earliest"),
        ("skip", scalable, "s", "--count", "1", "--yes"),
        ("skip", regular, "s", "--count", "1", "--older-than", "1", "--yes"),
        ("skip", scalable, "s"),
        ("unsubscribe", regular, "s"),
    ):
        complaint = tidewire.complaint("subscriptions", *mistake, status=2)
        assert complaint.startswith("tidewire subscriptions: ")
        assert complaint.count("\n") == 1
    for topic in (scalable, regular):
        for command in (("list", topic), ("show", topic, "s"), ("skip", topic, "s", "--yes")):
            assert "does not exist" in tidewire.complaint("subscriptions", *command)
