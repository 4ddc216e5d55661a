"""`/metrics` for Prometheus: the values of all `statistics()` at the moment of the scrape.

    GET /metrics               all brokers of the cluster; each value has the label `broker`
    GET /metrics?local=true    this broker alone, without that label, for a Prometheus that scrapes each broker

Values are not added up: a sum over brokers is Prometheus's work, and a sum of counters would fall when a broker ends.
`tidewire_broker_up` is 0 for a broker that did not answer within OTHERS_SECONDS_MAX. It hides no other one.

This module counts nothing and pushes nothing, so metrics cost nothing unless they are scraped. A metric with Pulsar's
meaning has Pulsar's name, so that dashboards work. `topic_metrics.py` has those of topics and of their readers. The
client library adds the process's memory, CPU time and descriptors.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.process_collector import ProcessCollector
from starlette.requests import Request
from starlette.responses import Response

from broker.administration_contract import BrokerMonitor, BrokerStatistics, ClusterService, TransactionStatistics
from broker.http.exposition import exposed, joined
from broker.http.parameters import switch_of
from broker.http.resources import TEXT, Call, Parameter
from broker.http.topic_metrics import of_series
from broker.loop_monitor import BOUNDS_SECONDS, LoopStatistics
from broker.tracing.spans import Counts as SpanCounts
from storage.histogram import BOUNDS_SECONDS as LATENCY_BOUNDS_SECONDS

PATH: Final = "/metrics"
OTHERS_SECONDS_MAX: Final = 2.0
"""How long the other brokers may take. Prometheus waits 10 s."""

OTHERS_BYTES_MAX: Final = 64 * 1024 * 1024
"""The largest answer of another broker. A series takes about 100 bytes for each of its metrics."""

_OK: Final = 200


def call(monitor: BrokerMonitor, service: ClusterService) -> Call:
    """`GET /metrics`, from `monitor`, and from the other brokers that `service` asks."""
    process = ProcessCollector(registry=None)

    async def own() -> bytes:
        serves = GaugeMetricFamily(
            "tidewire_serves", "Whether the broker can serve; 0 if the disk is full", monitor.problem() is None
        )
        series = await monitor.series()
        return await exposed(chain([serves], _all_of(monitor.statistics()), of_series(series), process.collect()))

    async def scrape(request: Request) -> Response:
        if switch_of(request, "local"):
            return _shown(await own())
        others = await service.ask_others(
            PATH + "?local=true", seconds_max=OTHERS_SECONDS_MAX, bytes_max=OTHERS_BYTES_MAX
        )
        found: dict[str, bytes | None] = {service.broker_id: await own()}
        for broker, answer in others.items():
            found[broker] = None if answer is None or answer.status_code != _OK else answer.body
        return _shown(await joined(found))

    return Call(
        *("GET", PATH, scrape),
        "Show metrics for Prometheus.",
        "The metrics of all brokers of the cluster.",
        (Parameter("local", "This broker alone.", "boolean"),),
        media_type=TEXT,
    )


def _shown(text: bytes) -> Response:
    return Response(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})


def _all_of(statistics: BrokerStatistics) -> Iterator[Metric]:
    yield from _broker(statistics)
    yield from _latencies(statistics)
    yield from _transactions(statistics.transactions)
    yield from _loop(statistics.loop)
    if statistics.spans is not None:
        yield _spans(statistics.spans)


def _broker(now: BrokerStatistics) -> Iterator[Metric]:
    yield GaugeMetricFamily("pulsar_active_connections", "Connections of Pulsar clients", now.connections)
    yield GaugeMetricFamily("pulsar_broker_topics_count", "Topics and segments loaded", now.topics)
    yield GaugeMetricFamily("pulsar_broker_subscriptions_count", "Subscriptions of loaded topics", now.subscriptions)
    yield GaugeMetricFamily("pulsar_broker_producers_count", "Producers connected", now.producers)
    yield GaugeMetricFamily("pulsar_broker_consumers_count", "Consumers connected", now.consumers)
    yield CounterMetricFamily("pulsar_in_messages", "Messages published and durable", now.messages_in)
    yield CounterMetricFamily("pulsar_in_bytes", "Bytes published and durable", now.bytes_in)
    yield CounterMetricFamily("pulsar_out_messages", "Messages sent to consumers", now.messages_out)
    yield CounterMetricFamily("pulsar_out_bytes", "Bytes sent to consumers", now.bytes_out)
    unconvertible = CounterMetricFamily(
        "tidewire_unconvertible_entries",
        "Reads of entries that consumers of the other protocol cannot be given; the log names each",
        labels=["consumers"],
    )
    for protocol, count in now.unconvertible.items():
        unconvertible.add_metric([protocol], count)
    yield unconvertible
    memory = GaugeMetricFamily(
        "tidewire_client_memory_bytes",
        "Memory held for clients",
        labels=["direction"],
    )
    memory.add_metric(["received"], now.received_bytes)
    memory.add_metric(["unread"], now.unread_bytes)
    yield memory
    memory_max = GaugeMetricFamily(
        "tidewire_client_memory_max_bytes", "Bound of the memory held for clients", labels=["direction"]
    )
    memory_max.add_metric(["received"], now.received_bytes_max)
    memory_max.add_metric(["unread"], now.unread_bytes_max)
    yield memory_max
    yield GaugeMetricFamily(
        "tidewire_client_memory_waiting",
        "Connections that wait for room in memory for what their clients send",
        now.memory_waiting,
    )
    yield GaugeMetricFamily("tidewire_connections_max", "Most connections at a time", now.connections_max)
    claims = GaugeMetricFamily("tidewire_claims", "What this broker owns", labels=["kind"])
    for kind, count in sorted(now.claims.items()):
        claims.add_metric([kind], count)
    yield claims
    yield GaugeMetricFamily("tidewire_members", "Brokers that run, as this broker sees them", now.members)
    yield GaugeMetricFamily(
        "tidewire_metadata_revision", "Revision of the metadata this broker holds", now.metadata_revision
    )
    yield GaugeMetricFamily(
        "tidewire_metadata_writes_waiting",
        "Writes without an answer of the metadata store",
        now.metadata_writes_waiting,
    )
    if now.metadata_epoch is not None:
        yield GaugeMetricFamily(
            "tidewire_metadata_epoch", "Epoch of the metadata log that this broker follows", now.metadata_epoch
        )


def _transactions(now: TransactionStatistics) -> Iterator[Metric]:
    prefix = "pulsar_txn_metadata_store_"
    yield CounterMetricFamily(prefix + "op_writes", "Op records written", now.op_writes)
    cas = CounterMetricFamily(prefix + "header_cas", "Compare-and-sets of transaction headers", labels=["result"])
    cas.add_metric(["ok"], now.header_cas_ok)
    cas.add_metric(["conflict"], now.header_cas_conflict)
    cas.add_metric(["reject"], now.header_cas_reject)
    yield cas
    yield SummaryMetricFamily(
        prefix + "index_query_seconds",
        "Time spent in queries of the metadata's indexes",
        count_value=now.index_queries,
        sum_value=now.index_query_seconds,
    )
    yield GaugeMetricFamily(
        prefix + "outstanding_op_records", "Op records that are not applied yet", now.op_records_outstanding
    )


_LATENCIES: Final = {
    "publish": "Time from the arrival of a send to its answer, when it is durable",
    "commit": "Time from a request to commit a transaction to its answer, when it is durable",
    "delivery": "Time from when the newest message is readable to its hand-over to a consumer that waits for it",
}


def _latencies(now: BrokerStatistics) -> Iterator[Metric]:
    for what, help_text in _LATENCIES.items():
        family = HistogramMetricFamily(f"tidewire_{what}_latency_seconds", help_text, labels=["protocol"])
        for (timed, protocol), times in now.latencies.items():
            if timed == what:
                buckets = _cumulative(LATENCY_BOUNDS_SECONDS, times.counts)
                family.add_metric([protocol], buckets=buckets, sum_value=times.sum_seconds)
        yield family


def _cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return a histogram's buckets in Prometheus's form: each has all durations up to its bound."""
    return list(zip([*map(str, bounds), "+Inf"], accumulate(counts), strict=True))


def _spans(now: SpanCounts) -> Metric:
    family = CounterMetricFamily("tidewire_trace_spans", "Spans of traced messages that have ended", labels=["result"])
    for result, count in now._asdict().items():
        family.add_metric([result], count)
    return family


def _loop(now: LoopStatistics) -> Iterator[Metric]:
    yield HistogramMetricFamily(
        "tidewire_loop_step_seconds",
        "CPU time of the event loop's steps; all clients wait while one runs",
        buckets=_cumulative(BOUNDS_SECONDS, now.bucket_counts),
        sum_value=now.cpu_seconds,
    )
    longest = max((step.cpu_seconds for step in now.worst), default=0.0)
    yield GaugeMetricFamily("tidewire_loop_step_max_seconds", "CPU time of the longest step so far", longest)
    yield GaugeMetricFamily(
        "tidewire_loop_step_wall_max_seconds", "Wall time of the longest step so far", now.wall_seconds_max
    )
