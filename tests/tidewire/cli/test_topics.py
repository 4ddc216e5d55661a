"""`tidewire topics` against a broker in a separate process."""

import re
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from tests.tidewire.cli.conftest import CommandLine
from tidewire import connect
from tidewire.cli.administration import Administration
from tidewire.cli.asking import NotAnswered
from tidewire.cli.cluster.addresses import NoClusterStarted, addresses
from tidewire.cli.cluster.folder import Addresses, Cluster, ClusterFolder


def test_a_topic_is_created_listed_split_shown_and_deleted(tidewire: CommandLine) -> None:
    name = "topic://public/flights/departures"
    assert tidewire.well("topics", "create", name, "--segments", "2", "--property", "owner=jfk") == f"created {name}\n"
    assert tidewire.well("topics", "list", "public/flights") == f"{name}\n"
    assert tidewire.well("topics", "list", "public/flights", "--property", "owner=jfk") == f"{name}\n"
    assert tidewire("topics", "list", "public/flights", "--property", "owner=lga").stdout == ""
    assert tidewire.well("topics", "split", name, "1") == f"split segment 1 of {name} into 2 and 3\n"
    shown = tidewire.well("topics", "show", name)
    assert "epoch 1" in shown
    assert "owner=jfk" in shown
    rows = [line.strip("│").split("│") for line in shown.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["0", "0000-7fff", "active", "", ""],
        ["1", "8000-ffff", "sealed", "", "2 3"],
        ["2", "8000-bfff", "active", "1", ""],
        ["3", "c000-ffff", "active", "1", ""],
    ]
    assert tidewire.well("topics", "merge", name, "2", "3") == f"merged segments 2 and 3 of {name} into 4\n"
    assert tidewire.well("topics", "delete", "--yes", name) == f"deleted {name}\n"
    assert tidewire("topics", "list", "public/flights").stdout == ""


def test_a_name_that_looks_like_markup_is_shown_as_it_is(tidewire: CommandLine, topic: str) -> None:
    name = "[/red]:bug:"
    tidewire.well("subscriptions", "create", topic, name)
    assert name in tidewire.well("topics", "show", topic)


def test_subscriptions_are_shown_with_their_backlog(tidewire: CommandLine, topic: str) -> None:
    for value in "abc":
        # One by one, since messages sent together may travel as one batch, which counts as one.
        tidewire.well("produce", topic, value)
    tidewire.well("consume", topic, "--subscription", "board", "--count", "1")
    (row,) = [line for line in tidewire.well("topics", "show", topic).splitlines() if "board" in line]
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["board", "stream", "0", "2"]


def test_a_regular_topic_is_shown(tidewire: CommandLine) -> None:
    name = "persistent://public/flights/gates"
    assert "does not exist" in tidewire.complaint("topics", "show", name)
    tidewire.well("produce", name, "a")
    tidewire.well("consume", name, "--subscription", "board", "--count", "1")
    tidewire.well("produce", name, "b")
    first, *rest = tidewire.well("topics", "show", name).splitlines()
    assert first == f"{name}  1 partition"
    (row,) = [line for line in rest if "board" in line]
    assert [cell.strip() for cell in row.strip("│").split("│")][2:] == ["0", "1"]


def test_a_regular_topic_is_migrated(tidewire: CommandLine) -> None:
    """Its messages are read once, before those produced since."""
    regular, scalable = "persistent://public/flights/old", "topic://public/flights/old"
    assert "does not exist" in tidewire.complaint("topics", "migrate", regular)
    tidewire.well("produce", regular, "before")
    assert tidewire.well("topics", "migrate", regular) == f"migrated {regular} to {scalable}\n"
    tidewire.well("produce", scalable, "after")
    read = tidewire.well("consume", scalable, "--subscription", "board", "--count", "2")
    assert read.split() == ["before", "after"]
    assert "already" in tidewire.complaint("topics", "migrate", regular, "--force")
    assert tidewire.complaint("topics", "migrate", scalable, status=2).count("\n") == 1
    tidewire.well("topics", "delete", "--yes", scalable)


def test_names_may_hold_what_addresses_do_not(tidewire: CommandLine) -> None:
    name = "topic://public/odd/wörld cup #1?"
    tidewire.well("topics", "create", name)
    assert tidewire.well("topics", "list", "public/odd") == f"{name}\n"
    tidewire.well("topics", "delete", "--yes", name)


def test_what_the_broker_refuses_is_told_in_its_words(tidewire: CommandLine, topic: str) -> None:
    refused = f"tidewire topics: {topic} already exists. Choose another name.\n"
    assert tidewire.complaint("topics", "create", topic) == refused
    missing = "topic://public/default/nowhere"
    for command in (("show",), ("delete", "--yes")):
        assert f"{missing} does not exist" in tidewire.complaint("topics", *command, missing)
    assert "segment" in tidewire.complaint("topics", "split", topic, "77").lower()
    tidewire.well("topics", "split", topic, "0")
    assert "SEALED" in tidewire.complaint("topics", "split", topic, "0")


def test_mistakes_are_told_without_a_broker(tidewire: CommandLine, topic: str) -> None:
    for mistake in (
        ("show", "persistent://public/default"),
        ("show", "x"),
        ("show", "topic://public/default"),
        ("list", "public"),
        ("list", "--property", "no-equals-sign"),
        ("create", topic, "--property", "=x"),
        ("show", topic, "--http", "pulsar://127.0.0.1:6650"),
        ("show", topic, "--http", "http://"),
    ):
        complaint = tidewire.complaint("topics", *mistake, status=2)
        assert complaint.startswith("tidewire topics: ")
        assert complaint.count("\n") == 1, "one sentence"


def test_a_broker_that_is_not_there_is_named(tidewire: CommandLine) -> None:
    complaint = tidewire.complaint("topics", "list", "--http", "http://127.0.0.1:1")
    assert complaint.startswith("tidewire topics: No broker answered at http://127.0.0.1:1: ")
    assert "TIDEWIRE_HTTP_URL" in complaint


def test_the_brokers_of_a_folder_are_asked_in_turn(
    tidewire: CommandLine, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C21: commands about topics find the brokers as `tidewire cluster` does, and pass over one that has ended."""
    monkeypatch.delenv("TIDEWIRE_HTTP_URL", raising=False)
    monkeypatch.delenv("TIDEWIRE_DATA_DIR", raising=False)
    assert addresses(Path("data"), None) == ["127.0.0.1:8080"]
    # The broker at the default address may be another cluster's, so it does not stand for a named folder.
    with pytest.raises(NoClusterStarted, match=re.escape(f"No cluster was started in {tmp_path}, so")):
        addresses(tmp_path, None)
    monkeypatch.setenv("TIDEWIRE_DATA_DIR", str(tmp_path))
    assert addresses(tmp_path, None) == ["127.0.0.1:8080"], "a single broker reads the same variable"
    monkeypatch.delenv("TIDEWIRE_DATA_DIR")
    folder = ClusterFolder(tmp_path)
    folder.path.mkdir()
    running = tidewire.broker.http_url.removeprefix("http://")
    ended, one = Addresses("127.0.0.1:2", "127.0.0.1:1"), Addresses("127.0.0.1:2", running)
    folder.write(Cluster("embedded", "127.0.0.1:0", "127.0.0.1:0", brokers={"ended": ended, "one": one}))
    assert addresses(tmp_path, None) == ["127.0.0.1:1", running]
    assert addresses(tmp_path, "127.0.0.1:3") == ["127.0.0.1:3"]
    assert topic in Administration(*addresses(tmp_path, None)).names("public/default")
    with pytest.raises(NotAnswered, match=re.escape("127.0.0.1:2")):
        Administration("127.0.0.1:1", "127.0.0.1:2").names("public/default")
    with pytest.raises(NotAnswered, match=re.escape(str(tidewire.broker.pulsar))):
        Administration(str(tidewire.broker.pulsar), running).names("public/default")


def test_an_answer_that_is_no_tidewires_is_told(tidewire: CommandLine) -> None:
    # The Pulsar listener answers HTTP with a frame of its own protocol.
    complaint = tidewire.complaint("topics", "list", "--http", f"http://{tidewire.broker.pulsar}")
    assert f"What listens at http://{tidewire.broker.pulsar} does not speak HTTP." in complaint
    assert complaint.rstrip("\n").isprintable()


def test_a_topic_in_use_is_deleted_by_force_only(tidewire: CommandLine, topic: str) -> None:
    async def story() -> None:
        async with connect(tidewire.broker.service_url) as client, client.stream_consumer(topic, "s"):
            refused = await anyio.to_thread.run_sync(tidewire.complaint, "topics", "delete", "--yes", topic)
            assert f"{topic} has connected producers or consumers. Delete it with --force to disconnect" in refused
            assert await anyio.to_thread.run_sync(tidewire.well, "topics", "delete", "--yes", topic, "--force")

    anyio.run(story)
    assert topic not in tidewire("topics", "list").stdout
