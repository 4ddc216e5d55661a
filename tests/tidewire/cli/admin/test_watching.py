"""`--watch` of the administrative commands, as processes against a broker in another one."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.processes import RunningBroker, running_broker
from tests.tidewire.cli.conftest import CommandLine

SECONDS_MAX: Final = 60.0


@contextmanager
def watching(broker: RunningBroker, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command with --watch. It is killed if it does not end in time."""
    command = [sys.executable, "-m", "tidewire.cli", *arguments, "--watch", "--http", str(broker.http)]
    # Such as most users have: where Python buffers what goes into a pipe.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    guard = threading.Timer(SECONDS_MAX, process.kill)
    guard.start()
    try:
        with process:
            yield process
            process.kill()
    finally:
        guard.cancel()


def until(process: subprocess.Popen[bytes], is_wanted: Callable[[Any], bool]) -> Any:
    """Return the first document that is wanted. Documents that differ from the one before come at any time."""
    assert process.stdout is not None
    for line in process.stdout:
        document = json.loads(line)
        if is_wanted(document):
            return document
    raise AssertionError("the command ended without it")


def test_statistics_are_pushed_in_the_form_of_those_that_are_asked(tidewire: CommandLine, each_kind: str) -> None:
    topic = each_kind
    tidewire.well("subscriptions", "create", topic, "board")
    with watching(tidewire.broker, "topics", "stats", topic, "--json") as process:
        before = until(process, lambda view: view["messagesIn"] in {0, None})
        tidewire.well("produce", topic, "--key", "k", "v")
        after = until(process, lambda view: view["messagesIn"] == 1 and view["subscriptions"][0]["backlog"] == 1)
    asked = json.loads(tidewire.well("topics", "stats", topic, "--json"))
    assert [part["part"] for part in before["parts"]] == [part["part"] for part in asked["parts"]]
    assert sum(part["messagesIn"] or 0 for part in after["parts"]) == 1
    assert after.keys() == asked.keys()
    assert after["subscriptions"][0].keys() == asked["subscriptions"][0].keys()
    for pushed, other in zip(after["parts"], asked["parts"], strict=True):
        assert other.keys() <= pushed.keys()
        if pushed["subscriptions"]:
            assert pushed["subscriptions"]["board"].keys() == other["subscriptions"]["board"].keys()


def test_the_lag_of_subscriptions_is_pushed(tidewire: CommandLine, each_kind: str) -> None:
    topic = each_kind
    tidewire.well("subscriptions", "create", topic, "board")
    with watching(tidewire.broker, "subscriptions", "list", topic, "--json") as process:
        until(process, lambda rows: [row["subscription"] for row in rows] == ["board"])
        tidewire.well("produce", topic, "--key", "k", "v")
        until(process, lambda rows: rows[0]["backlog"] == 1)
        tidewire.well("consume", topic, "--subscription", "board", "--count", "1")
        until(process, lambda rows: rows[0]["backlog"] == 0)


def test_a_split_is_seen_as_it_happens_and_a_deletion_ends_the_watch(tidewire: CommandLine, topic: str) -> None:
    with watching(tidewire.broker, "segments", "list", topic, "--active", "--json") as process:
        until(process, lambda rows: [row["segment"] for row in rows] == [0, 1])
        tidewire.well("segments", "split", topic, "1")
        last = until(process, lambda rows: [row["segment"] for row in rows] == [0, 2, 3])
        asked = json.loads(tidewire.well("segments", "list", topic, "--active", "--json"))
        assert [row["part"] for row in last] == [row["part"] for row in asked]
        assert last[0].keys() == asked[0].keys()
        tidewire.well("topics", "delete", topic, "--yes")
        _, stderr = process.communicate()
    assert process.returncode == 1
    assert f"tidewire segments: {topic} does not exist." in stderr.decode()


@pytest.mark.parametrize("command", ["topics stats", "subscriptions list"])
def test_a_name_that_is_no_topic_is_refused(tidewire: CommandLine, command: str, each_kind: str) -> None:
    """Part 9: a mistyped name does not look like an idle topic. One that is deleted ends the watch."""
    for wrong in (f"{each_kind}x", each_kind[:-1]):
        complaint = tidewire.complaint(*command.split(), wrong, "--watch")
        assert complaint == (
            f"tidewire {command.split()[0]}: {wrong} does not exist. Create it with `tidewire topics create {wrong}`.\n"
        )
    with watching(tidewire.broker, *command.split(), each_kind, "--json") as process:
        until(process, lambda _: True)
        tidewire.well("topics", "delete", each_kind, "--yes")
        _, stderr = process.communicate()
    assert process.returncode == 1
    assert f"{each_kind} does not exist." in stderr.decode()


def test_transactions_are_seen_to_begin_write_and_end(tidewire: CommandLine, topic: str) -> None:
    def one(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
        return next((row for row in rows if row["transaction"] == begun), None)

    begun = ""
    with watching(tidewire.broker, "transactions", "list", "--json") as process:
        begun = tidewire.well("transactions", "begin").strip()
        tidewire.well("produce", topic, "--key", "k", "v", "--in-transaction", begun)
        pushed = one(until(process, lambda rows: bool((row := one(rows)) and row["writes"])))
        assert pushed == json.loads(tidewire.well("transactions", "show", begun, "--json"))
        tidewire.well("transactions", "commit", begun)
        until(process, lambda rows: one(rows) is None)


def test_tables_follow_each_other_in_a_pipe_until_ctrl_c(tidewire: CommandLine, topic: str) -> None:
    with watching(tidewire.broker, "segments", "list", topic) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"segment  hash range")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    assert (process.returncode, stderr) == (130, b"")


def test_a_lost_broker_is_said_at_once(tmp_path: Path) -> None:
    """Part 9: whoever watches hears it, instead of looking at old numbers."""
    with running_broker(tmp_path / "data") as broker, watching(broker, "transactions", "list", "--json") as process:
        assert until(process, lambda rows: rows == []) == []
        broker.kill()
        _, stderr = process.communicate()
    assert process.returncode == 1
    assert stderr.decode().startswith(f"tidewire transactions: The broker at {broker.http_url} ")
    assert stderr.count(b"\n") == 1


def test_a_watch_has_no_filters_that_time_alone_changes(tidewire: CommandLine) -> None:
    complaint = tidewire.complaint("transactions", "list", "--watch", "--older-than", "5", status=2)
    assert "--older-than" in complaint
