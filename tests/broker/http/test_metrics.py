"""The metrics: names, types and values at the moment of the request."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker.addresses import Address
from broker.administration_contract import BrokerStatistics, LatencyCounts, PeerAnswer, TransactionStatistics
from broker.http.exposition import SAMPLES_AT_ONCE
from broker.loop_monitor import BOUNDS_SECONDS, LongStep, LoopStatistics
from broker.series import Labels, ReaderSums, Series, TopicSums
from broker.tracing.spans import Counts
from broker.traffic import SegmentTraffic
from storage.histogram import BOUNDS_SECONDS as LATENCY_BOUNDS_SECONDS
from tests.support.http import Answer, FakeCluster, FakeMonitor, request

LOCAL = "/metrics?local=true"


def values(answer: Answer) -> dict[str, float]:
    assert answer.status == 200
    families = text_string_to_metric_families(answer.body.decode())
    return {
        sample.name + "".join(f"{{{key}={value}}}" for key, value in sample.labels.items()): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.startswith("process_")
    }


async def test_transactions_are_counted_under_pulsars_names(server: Address, monitor: FakeMonitor) -> None:
    """T34: there are no snapshot or replay metrics, because there are no snapshots or replays."""
    monitor.now = BrokerStatistics(
        transactions=TransactionStatistics(
            op_writes=1,
            header_cas_ok=2,
            header_cas_conflict=3,
            header_cas_reject=4,
            index_queries=5,
            index_query_seconds=0.25,
            op_records_outstanding=6,
        )
    )
    answer = await request(server, "GET", LOCAL)
    prefix = "pulsar_txn_metadata_store_"
    shown = {name.removeprefix(prefix): value for name, value in values(answer).items() if name.startswith(prefix)}
    assert shown == {
        "op_writes_total": 1,
        "header_cas_total{result=ok}": 2,
        "header_cas_total{result=conflict}": 3,
        "header_cas_total{result=reject}": 4,
        "index_query_seconds_count": 5,
        "index_query_seconds_sum": 0.25,
        "outstanding_op_records": 6,
    }
    assert b"pulsar_txn_tb_" not in answer.body


async def test_spans_are_counted_if_the_broker_traces(server: Address, monitor: FakeMonitor) -> None:
    assert "tidewire_trace_spans" not in (await request(server, "GET", LOCAL)).body.decode()
    monitor.now = BrokerStatistics(spans=Counts(exported=1, failed=2, dropped=3))
    shown = values(await request(server, "GET", LOCAL))
    assert {name: value for name, value in shown.items() if "trace" in name} == {
        "tidewire_trace_spans_total{result=exported}": 1,
        "tidewire_trace_spans_total{result=failed}": 2,
        "tidewire_trace_spans_total{result=dropped}": 3,
    }


async def test_the_broker_is_counted(server: Address, monitor: FakeMonitor) -> None:
    monitor.now = BrokerStatistics(
        connections=1,
        topics=2,
        subscriptions=3,
        producers=4,
        consumers=5,
        messages_in=6,
        bytes_in=7,
        messages_out=8,
        bytes_out=9,
        unconvertible={"kafka": 22, "pulsar": 23},
        metadata_revision=10,
        metadata_writes_waiting=13,
        metadata_epoch=14,
        members=15,
        claims={"segments": 16, "topics": 17},
        received_bytes=11,
        unread_bytes=12,
        received_bytes_max=18,
        unread_bytes_max=19,
        memory_waiting=20,
        connections_max=21,
    )
    shown = values(await request(server, "GET", LOCAL))
    assert {name: value for name, value in shown.items() if "_txn_" not in name and "_loop_" not in name} == {
        "pulsar_active_connections": 1,
        "pulsar_broker_topics_count": 2,
        "pulsar_broker_subscriptions_count": 3,
        "pulsar_broker_producers_count": 4,
        "pulsar_broker_consumers_count": 5,
        "pulsar_in_messages_total": 6,
        "pulsar_in_bytes_total": 7,
        "pulsar_out_messages_total": 8,
        "pulsar_out_bytes_total": 9,
        "tidewire_unconvertible_entries_total{consumers=kafka}": 22,
        "tidewire_unconvertible_entries_total{consumers=pulsar}": 23,
        "tidewire_metadata_revision": 10,
        "tidewire_metadata_writes_waiting": 13,
        "tidewire_metadata_epoch": 14,
        "tidewire_members": 15,
        "tidewire_claims{kind=segments}": 16,
        "tidewire_claims{kind=topics}": 17,
        "tidewire_client_memory_bytes{direction=received}": 11,
        "tidewire_client_memory_bytes{direction=unread}": 12,
        "tidewire_client_memory_max_bytes{direction=received}": 18,
        "tidewire_client_memory_max_bytes{direction=unread}": 19,
        "tidewire_client_memory_waiting": 20,
        "tidewire_connections_max": 21,
        "tidewire_backlogs_unreadable": 0,
        "tidewire_serves": 1,
    }


async def test_latencies_are_histograms(server: Address, monitor: FakeMonitor) -> None:
    counts = (2, *(0,) * (len(LATENCY_BOUNDS_SECONDS) - 1), 1)
    monitor.now = BrokerStatistics(latencies={("commit", "kafka"): LatencyCounts(counts, 12.5)})
    shown = values(await request(server, "GET", LOCAL))
    name = "tidewire_commit_latency_seconds"
    assert shown[name + "_bucket{le=0.0005}{protocol=kafka}"] == 2
    assert shown[name + "_bucket{le=+Inf}{protocol=kafka}"] == 3
    assert shown[name + "_sum{protocol=kafka}"] == 12.5


async def test_topics_and_readers_have_labels(server: Address, monitor: FakeMonitor) -> None:
    """What is summed over a label lacks it. Names with any characters are legal."""
    odd = 'topic://t/n/a"b{c} \\'
    traffic = SegmentTraffic(messages_in=4, bytes_in=5)
    monitor.of_topics = Series(
        topics={Labels("t/n", odd): TopicSums(logs=2, traffic=traffic, held_seconds=1.5), Labels(): TopicSums()},
        subscriptions={Labels("t/n", odd, "s"): ReaderSums(3, 7, 2.5, 1, 9, 8)},
        groups={Labels("t/n", odd, "g"): ReaderSums(6, 5, 4.5)},
        left_out={"topics": 11},
        unreadable=12,
    )
    shown = values(await request(server, "GET", LOCAL))
    of_topic = f"{{namespace=t/n}}{{topic={odd}}}"
    assert {name: shown[f"tidewire_{name}{of_topic}"] for name in ("topic_logs", "topic_held_seconds")} == {
        "topic_logs": 2,
        "topic_held_seconds": 1.5,
    }
    assert shown["tidewire_topic_in_messages_total" + of_topic] == 4
    assert shown["tidewire_topic_logs"] == 0
    found = {
        name.removeprefix("tidewire_subscription_"): value
        for name, value in shown.items()
        if name.startswith("tidewire_subscription_")
    }
    labels = f"{{namespace=t/n}}{{subscription=s}}{{topic={odd}}}"
    assert found == {
        "backlog_messages" + labels: 3,
        "backlog_bytes" + labels: 7,
        "backlog_seconds" + labels: 2.5,
        "backlog_entries" + labels: 1,
        "consumers" + labels: 9,
        "unacked_messages" + labels: 8,
    }
    lags = [shown[f"tidewire_group_lag_{unit}{{group=g}}{of_topic}"] for unit in ("messages", "bytes", "seconds")]
    assert lags == [6, 5, 4.5]
    assert shown["tidewire_series_left_out{kind=topics}"] == 11
    assert shown["tidewire_backlogs_unreadable"] == 12


async def test_many_topics_are_written_in_small_steps(
    server: Address, monitor: FakeMonitor, ownership: FakeCluster
) -> None:
    """Every name stands once, and nothing is lost at the ends of the steps, also for several brokers."""
    topics = 2 * SAMPLES_AT_ONCE + 1
    monitor.of_topics = Series(
        topics={Labels("t/n", f"topic://t/n/{number}"): TopicSums(logs=number) for number in range(topics)}
    )
    own = await request(server, "GET", LOCAL)
    ownership.others = {"b-1": PeerAnswer(200, own.body)}
    for answer, brokers in ((own, 1), (await request(server, "GET", "/metrics"), 2)):
        logs = [value for name, value in values(answer).items() if name.startswith("tidewire_topic_logs")]
        assert sorted(logs) == sorted([*range(topics)] * brokers)
        types = re.findall(r"^# TYPE (\S+)", answer.body.decode(), re.MULTILINE)
        assert len(types) == len(set(types))


async def test_the_event_loops_steps_are_a_histogram(server: Address, monitor: FakeMonitor) -> None:
    """E7: the counts are cumulative, as Prometheus requires, and the longest step has its own metric."""
    counts = (5, 1, *(0,) * (len(BOUNDS_SECONDS) - 2), 2)
    longest = LongStep(0.25, 0.5, "a task", "its end")
    monitor.now = BrokerStatistics(loop=LoopStatistics(counts, 1.5, (longest,), 0.75))
    shown = values(await request(server, "GET", LOCAL))
    bucket = "tidewire_loop_step_seconds_bucket{le=%s}"
    assert [shown[bucket % bound] for bound in ("0.001", "0.002", "5.0", "+Inf")] == [5, 6, 6, 8]
    assert shown["tidewire_loop_step_seconds_sum"] == 1.5
    assert shown["tidewire_loop_step_seconds_count"] == 8
    assert shown["tidewire_loop_step_max_seconds"] == 0.25
    assert shown["tidewire_loop_step_wall_max_seconds"] == 0.75


async def test_a_scrape_shows_the_moment_and_what_prometheus_needs_to_read_it(
    server: Address, monitor: FakeMonitor
) -> None:
    first = await request(server, "GET", LOCAL)
    monitor.now = BrokerStatistics(messages_in=2**60)
    second = await request(server, "GET", LOCAL)
    assert values(first)["pulsar_in_messages_total"] == 0
    assert values(second)["pulsar_in_messages_total"] == 2**60
    assert first.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", first.body.decode(), re.MULTILINE))
    assert types["pulsar_in_messages_total"] == types["pulsar_txn_metadata_store_header_cas_total"] == "counter"
    assert types["pulsar_txn_metadata_store_index_query_seconds"] == "summary"
    assert types["pulsar_txn_metadata_store_outstanding_op_records"] == "gauge"


async def test_any_broker_answers_for_all(server: Address, monitor: FakeMonitor, ownership: FakeCluster) -> None:
    """C23: each value has its broker, and every name stands once. A silent broker hides no other one."""
    monitor.now = BrokerStatistics(connections=1, loop=LoopStatistics((1,) * (len(BOUNDS_SECONDS) + 1), 1.5, (), 0.5))
    own = await request(server, "GET", LOCAL)
    assert ownership.asked == []
    ownership.others = {
        "b-1": PeerAnswer(200, own.body.replace(b"pulsar_active_connections 1.0", b"pulsar_active_connections 5.0")),
        "b-2": None,
        "b-3": PeerAnswer(503, own.body),
        "b-4": PeerAnswer(200, b"what{"),
        "b-5": PeerAnswer(200, b"# TYPE pulsar_active_connections untyped\npulsar_active_connections 9\n"),
    }
    everywhere = await request(server, "GET", "/metrics")
    assert ownership.asked == [("ask others", LOCAL, "2.0")]
    shown = values(everywhere)
    connections = {name: value for name, value in shown.items() if name.startswith("pulsar_active_connections")}
    assert connections == {"pulsar_active_connections{broker=b-0}": 1, "pulsar_active_connections{broker=b-1}": 5}
    up = {name[-4:-1]: value for name, value in shown.items() if name.startswith("tidewire_broker_up")}
    assert up == {"b-0": 1, "b-1": 1, "b-2": 0, "b-3": 0, "b-4": 0, "b-5": 1}
    types = re.findall(r"^# TYPE (\S+)", everywhere.body.decode(), re.MULTILINE)
    assert len(types) == len(set(types))
    assert {name.replace("{broker=b-0}", ""): shown[name] for name in shown if "{broker=b-0}" in name} == {
        **values(own),
        "tidewire_broker_up": 1,
    }
    assert b'process_resident_memory_bytes{broker="b-0"}' in everywhere.body


async def test_the_documentation_has_every_metric(server: Address, monitor: FakeMonitor) -> None:
    monitor.now = BrokerStatistics(metadata_epoch=1)
    page = (Path(__file__).parents[3] / "docs/operations/metrics.md").read_text("utf-8")
    served = re.findall(r"^# TYPE (\S+)", (await request(server, "GET", "/metrics")).body.decode(), re.MULTILINE)
    assert [name for name in served if not name.startswith("process_") and f"`{name}" not in page] == []


async def test_the_process_reports_its_own_memory_and_cpu_time(server: Address) -> None:
    body = (await request(server, "GET", LOCAL)).body.decode()
    resident = re.search(r"^process_resident_memory_bytes (\S+)$", body, re.MULTILINE)
    assert resident is not None
    assert float(resident[1]) > 2**20
    assert "process_cpu_seconds_total" in body


@pytest.mark.parametrize("path", ["/admin/v2/brokers/health", "/admin/v2/brokers/ready"])
async def test_health_is_ok_while_the_broker_can_serve(server: Address, path: str) -> None:
    answer = await request(server, "GET", path)
    assert (answer.status, answer.body) == (200, b"ok")


@pytest.mark.parametrize("path", ["/admin/v2/brokers/health", "/admin/v2/brokers/ready"])
async def test_health_says_why_the_broker_cannot_serve(server: Address, monitor: FakeMonitor, path: str) -> None:
    monitor.trouble = "the disk is full: 7.journal cannot be made. Free space"
    answer = await request(server, "GET", path)
    assert (answer.status, answer.reason) == (503, "The disk is full: 7.journal cannot be made. Free space.")
    assert values(await request(server, "GET", LOCAL))["tidewire_serves"] == 0


@pytest.mark.parametrize("path", ["/metrics", LOCAL, "/admin/v2/brokers/health"])
async def test_heads_are_answered_too(server: Address, path: str) -> None:
    answer = await request(server, "HEAD", path)
    assert (answer.status, answer.body) == (200, b"")
