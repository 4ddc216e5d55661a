"""What the bench prints."""

import json

from tidewire.cli.bench.report import Result, Series, as_json, as_text, sparkline


def result() -> Result:
    series = Series("send")
    for number in range(1000):
        series.timeline.add(number / 100, 0.001 if number % 10 else 0.05)
    series.timeline.add(9.99, 3)
    return Result("x: 16 bytes a message", {"topic": "x"}, "messages", 1001, 16016, 10.0, [series, Series("commit")])


def test_percentiles_and_plots_are_printed_for_people() -> None:
    assert as_text(result(), is_unicode=True).splitlines()[:5] == [
        "x: 16 bytes a message",
        "  throughput  100 messages/s, 0.00 MB/s, 1,001 in 10.0 s",
        "  send        p50 1.00 ms, p95 50.2 ms, p99 50.2 ms, p99.9 50.2 ms, max 3.00 s",
        "",
        "  p99 of send, every 0.2 s: 50.0 ms to 3.00 s",
    ]
    assert as_text(result(), is_unicode=False).splitlines()[5:] == [
        "  .................................................@",
        "",
        "  send: how many took at most",
        "    1.00 ms ######################################## 900",
        "    2.00 ms 0",
        "    5.00 ms 0",
        "    10.0 ms 0",
        "    20.0 ms 0",
        "    50.0 ms ##### 100",
        "     100 ms 0",
        "     200 ms 0",
        "     500 ms 0",
        "     1.00 s 0",
        "     2.00 s 0",
        "     5.00 s # 1",
    ]
    assert as_text(result(), is_unicode=False).isascii()


def test_a_stall_is_a_gap_in_the_line() -> None:
    assert sparkline([0.001, None, 0.1, 0.01]) == "▁ █▅"
    assert sparkline([0.001, 0.001]) == "▁▁"
    assert sparkline([]) == ""


def test_programs_get_the_same_as_json() -> None:
    shown = json.loads(as_json(result()))
    assert (shown["topic"], shown["messages"], shown["messages_per_second"]) == ("x", 1001, 100.1)
    assert shown["latency_ms"]["send"]["max"] == 3000
    assert shown["latency_ms"]["commit"]["count"] == 0
    slots = shown["over_time"]["send"]
    assert slots["slot_seconds"] * len(slots["slots"]) == 10
    assert sum(slot["count"] for slot in slots["slots"]) == 1001


def test_nothing_measured_is_no_plot() -> None:
    nothing = Result("x", {}, "messages", 0, 0, 0.0, [Series("send")])
    assert as_text(nothing) == "x\n  throughput  0 messages/s, 0.00 MB/s, 0 in 0.0 s"
    assert json.loads(as_json(nothing))["messages_per_second"] == 0
