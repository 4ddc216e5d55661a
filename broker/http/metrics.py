"""`/metrics` for Prometheus: the values of all `statistics()` at the moment of the scrape.

This module counts nothing and pushes nothing, so metrics cost nothing unless they are scraped. A metric with Pulsar's
meaning has Pulsar's name, so that dashboards work. Metrics are per broker, not per topic, so their number does not grow
with use. The client library adds the process's memory, CPU time and descriptors.
"""

from collections.abc import Iterator

from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from broker.administration_contract import BrokerMonitor, BrokerStatistics, TransactionStatistics
from broker.loop_monitor import BOUNDS_SECONDS, LoopStatistics


def route(monitor: BrokerMonitor) -> Route:
    """`GET /metrics`, from `monitor`."""
    registry = CollectorRegistry()
    registry.register(_Collector(monitor))
    ProcessCollector(registry=registry)

    async def scrape(_request: Request) -> Response:
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    return Route("/metrics", scrape, methods=["GET"])


class _Collector(Collector):
    def __init__(self, monitor: BrokerMonitor) -> None:
        self._monitor = monitor

    def describe(self) -> Iterator[Metric]:
        # Registering must not query a broker that is still starting, so no names are given in advance.
        return iter(())

    def collect(self) -> Iterator[Metric]:
        statistics = self._monitor.statistics()
        yield from _broker(statistics)
        yield from _transactions(statistics.transactions)
        yield from _loop(statistics.loop)


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
    memory = GaugeMetricFamily(
        "tidewire_client_memory_bytes",
        "Memory held for clients, with its bound",
        labels=["direction"],
    )
    memory.add_metric(["received"], now.received_bytes)
    memory.add_metric(["unread"], now.unread_bytes)
    yield memory
    yield GaugeMetricFamily(
        "tidewire_metadata_revision", "Revision of the metadata this broker holds", now.metadata_revision
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


def _loop(now: LoopStatistics) -> Iterator[Metric]:
    steps = 0
    buckets = []
    for bound, count in zip([*map(str, BOUNDS_SECONDS), "+Inf"], now.bucket_counts, strict=True):
        steps += count
        buckets.append((bound, steps))
    yield HistogramMetricFamily(
        "tidewire_loop_step_seconds",
        "CPU time of the event loop's steps; all clients wait while one runs",
        buckets=buckets,
        sum_value=now.cpu_seconds,
    )
    longest = max((step.cpu_seconds for step in now.worst), default=0.0)
    yield GaugeMetricFamily("tidewire_loop_step_max_seconds", "CPU time of the longest step so far", longest)
    yield GaugeMetricFamily(
        "tidewire_loop_step_wall_max_seconds", "Wall time of the longest step so far", now.wall_seconds_max
    )
