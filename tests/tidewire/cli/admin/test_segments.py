"""`tidewire segments` against a broker in a separate process."""

import json

from tests.tidewire.cli.conftest import CommandLine


def test_segments_are_split_merged_and_listed(tidewire: CommandLine, topic: str) -> None:
    assert tidewire.well("segments", "split", topic, "1") == f"split segment 1 of {topic} into 2 and 3\n"
    assert tidewire.well("segments", "merge", topic, "0", "2") == f"merged segments 0 and 2 of {topic} into 4\n"
    heading, *rows = tidewire.well("segments", "list", topic).splitlines()
    assert heading.split("  ")[0] == "segment"
    assert [row.split()[:5] for row in rows] == [
        ["0", "0000-7fff", "sealed", "-", "4"],
        ["1", "8000-ffff", "sealed", "-", "2,3"],
        ["2", "8000-bfff", "sealed", "1", "4"],
        ["3", "c000-ffff", "active", "1", "-"],
        ["4", "0000-bfff", "active", "0,2", "-"],
    ]
    active = json.loads(tidewire.well("segments", "list", topic, "--active", "--json"))
    assert [(one["segment"], one["state"], one["sealedAtMs"]) for one in active] == [
        (3, "active", None),
        (4, "active", None),
    ]


def test_fewer_segments_than_asked_for_are_left_only_if_told_so(tidewire: CommandLine, topic: str) -> None:
    """`--segments 2` is a floor."""
    assert "allow" in tidewire.complaint("segments", "merge", topic, "0", "1")
    merged = json.loads(tidewire.well("segments", "merge", topic, "0", "1", "--allow-fewer", "--json"))
    assert merged == {"topic": topic, "merged": [0, 1], "into": [2]}


def test_a_segment_is_shown_with_its_counters(tidewire: CommandLine, topic: str) -> None:
    for value in "abcd":
        tidewire.well("produce", topic, "--key", value, value)
    tidewire.well("consume", topic, "--subscription", "board", "--count", "1")
    views = json.loads(tidewire.well("segments", "list", topic, "--json"))
    assert sum(view["messagesIn"] for view in views) == 4
    assert sum(view["subscriptions"]["board"]["backlog"] for view in views) == 3
    for view in views:
        assert json.loads(tidewire.well("segments", "show", topic, str(view["segment"]), "--json")) == view
        shown = tidewire.well("segments", "stats", topic, str(view["segment"]))
        assert f"messages in   {view['messagesIn']}\n" in shown
        assert view["part"] in shown
        assert "board" in shown


def test_mistakes_are_told_in_one_sentence(tidewire: CommandLine, topic: str) -> None:
    assert f"{topic} has no segment 77" in tidewire.complaint("segments", "show", topic, "77")
    assert "77" in tidewire.complaint("segments", "split", topic, "77")
    assert "does not exist" in tidewire.complaint("segments", "list", "topic://public/default/none")
    regular = tidewire.complaint("segments", "list", "persistent://public/default/a", status=2)
    assert regular == (
        "tidewire segments: persistent://public/default/a is a regular topic. It has partitions instead of segments. "
        "`tidewire topics stats` shows them.\n"
    )
