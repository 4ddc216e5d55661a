"""`tidewire bench` against a broker in a process of its own. No verdict depends on how fast it is."""

import json

from tests.tidewire.cli.conftest import CommandLine

SHORT = ("--seconds", "0.5", "--warm-up", "0.2", "--json")


def test_each_bench_measures_a_broker_as_any_client_could(tidewire: CommandLine, topic: str) -> None:
    sent = json.loads(tidewire.well("bench", "produce", topic, *SHORT, "--compression", "lz4"))
    assert sent["latency_ms"]["send"]["count"] > 0
    assert 0 < sent["latency_ms"]["send"]["p50"] <= sent["latency_ms"]["send"]["max"]
    assert sent["messages_per_second"] * sent["seconds"] * sent["size_bytes"] > 0
    delivered = json.loads(tidewire.well("bench", "consume", topic, *SHORT, "--rate", "200"))
    # All that was due within the time was read, however long it took.
    assert 99 <= delivered["latency_ms"]["delivery"]["count"] <= 101
    ended = json.loads(tidewire.well("bench", "transactions", topic, *SHORT, "--messages", "3", "--rate", "20"))
    latencies = ended["latency_ms"]
    assert 9 <= latencies["commit"]["count"] == latencies["transaction"]["count"] <= 11
    assert latencies["transaction"]["p50"] >= latencies["commit"]["p50"]


def test_what_is_stored_is_read_and_a_table_is_the_default(tidewire: CommandLine, topic: str) -> None:
    tidewire.well("produce", topic, stdin=b"x\n" * 200_000)
    shown = tidewire.well("bench", "consume", topic, "--stored", "--seconds", "1", "--warm-up", "0")
    assert "reading what is stored" in shown
    assert "messages/s" in shown
    assert "max" in tidewire.well("bench", "produce", topic, "--seconds", "0.3", "--warm-up", "0", "--rate", "100")


def test_a_topic_that_is_not_there_is_said_in_one_sentence(tidewire: CommandLine) -> None:
    missing = "topic://public/default/nowhere"
    for name in ("produce", "consume", "transactions"):
        complaint = tidewire.complaint("bench", name, missing, *SHORT)
        assert complaint.startswith(f"tidewire bench: {missing} does not exist")
        assert complaint.count("\n") == 1
