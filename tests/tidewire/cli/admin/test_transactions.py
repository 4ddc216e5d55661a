"""`tidewire transactions` against a broker in a separate process."""

import json
import time

import pytest

from tests.tidewire.cli.conftest import CommandLine


def test_an_open_transaction_is_listed_shown_and_aborted(tidewire: CommandLine, topic: str) -> None:
    """T33: an administrator sees what holds readers back, and ends it."""
    before_ms = time.time_ns() // 1_000_000
    begun = tidewire.well("transactions", "begin", "--timeout", "300").strip()
    tidewire.well("produce", topic, "--key", "k", "hidden", "--in-transaction", begun)

    listed = json.loads(tidewire.well("transactions", "list", "--json"))
    (one,) = [one for one in listed if one["transaction"] == begun]
    (written,) = one["writes"]
    assert written.startswith(topic.replace("topic://", "segment://"))
    assert (one["state"], one["endedAtMs"], one["acknowledgements"]) == ("OPEN", None, [])
    assert one["openedAtMs"] >= before_ms
    assert one["timesOutAtMs"] == one["openedAtMs"] + 300_000
    assert json.loads(tidewire.well("transactions", "show", begun, "--json")) == one

    heading, *rows = tidewire.well("transactions", "list").splitlines()
    assert heading.split("  ")[0].strip() == "transaction"
    (row,) = [row.split() for row in rows if row.startswith(begun)]
    assert row[-2:] == ["1", "0"]
    assert f"writes to    {written}" in tidewire.well("transactions", "show", begun)

    assert tidewire.well("transactions", "abort", begun, "--yes") == f"aborted {begun}\n"
    assert begun not in tidewire.well("transactions", "list", "--json")
    assert "state        aborted" in tidewire.well("transactions", "show", begun)
    assert "already ABORTED" in tidewire.complaint("transactions", "commit", begun)


def test_transactions_are_listed_by_age_and_coordinator(tidewire: CommandLine) -> None:
    begun = json.loads(tidewire.well("transactions", "begin", "--json"))["transaction"]
    coordinator = begun.split(":")[0]
    assert begun in tidewire.well("transactions", "list", "--coordinator", coordinator, "--json")
    other = str((int(coordinator) + 1) % 2)
    assert begun not in tidewire("transactions", "list", "--coordinator", other, "--json").stdout
    assert json.loads(tidewire.well("transactions", "list", "--older-than", "3600", "--json")) == []
    nothing = tidewire("transactions", "list", "--older-than", "3600")
    assert (nothing.exit_code, nothing.stdout) == (0, "transaction  opened  times out  writes  acknowledgements\n")
    assert nothing.stderr == (
        "tidewire transactions: No transaction has been open for 3600 s. `tidewire transactions begin` opens one.\n"
    )
    few = tidewire("transactions", "list", "--coordinator", other, "--older-than", "3600", "--log-format", "json")
    assert json.loads(few.stderr)["event"].startswith(f"No transaction of coordinator {other} has been open for 3600 s")
    ended = json.loads(tidewire.well("transactions", "commit", begun, "--json"))
    assert ended == {"transaction": begun, "state": "COMMITTED"}


def test_an_abort_is_confirmed(tidewire: CommandLine) -> None:
    """Without a terminal nobody can be asked."""
    begun = tidewire.well("transactions", "begin").strip()
    complaint = tidewire.complaint("transactions", "abort", begun, status=2)
    assert complaint == (
        f"tidewire transactions: Nothing that was sent or acknowledged in transaction {begun} will count. "
        "Confirm it with --yes.\n"
    )
    assert tidewire.well("transactions", "commit", begun) == f"committed {begun}\n"


@pytest.mark.parametrize("command", [("show",), ("abort", "--yes")])
def test_a_transaction_that_is_not_there_is_named(tidewire: CommandLine, command: tuple[str, ...]) -> None:
    complaint = tidewire.complaint("transactions", *command, f"0:{2**62 + 2**40}")
    assert complaint.startswith("tidewire transactions: ")
    assert str(2**62 + 2**40) in complaint
    assert complaint.count("\n") == 1
    assert "COORDINATOR:NUMBER" in tidewire.complaint("transactions", *command, "7", status=2)
