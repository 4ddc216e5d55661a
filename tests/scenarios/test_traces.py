"""One trace from an application through a broker and back, as a collector of OpenTelemetry sees it."""

import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, cast

import confluent_kafka
import pytest
import trio
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract, inject
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind, set_span_in_context

import tidewire
from tests.support.admin import Admin
from tests.support.collector import Collector, SeenSpan, running_collector
from tests.support.http import request
from tests.support.processes import RunningBroker, running_broker
from tests.support.real_cluster import EMBEDDED, running_cluster

CHECKOUT: Final = Path(__file__).parents[2]
APPLICATION_SECONDS_MAX: Final = 90

Headers = list[tuple[str, bytes]]

SERVER, PRODUCER = 2, 4
"""Kinds of spans, by their numbers in OTLP."""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Run a collector, and name it in the environment of the processes to come."""
    with running_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        yield collector


@pytest.fixture
def broker(collector: Collector, tmp_path: Path) -> Iterator[RunningBroker]:
    """Run a broker that traces."""
    with running_broker(tmp_path / "data") as broker:
        yield broker


def run_application(broker: RunningBroker, topics: Sequence[str]) -> None:
    subprocess.run(
        [sys.executable, "-m", "tests.support.traced_application", broker.service_url, *topics],
        check=True,
        cwd=CHECKOUT,
        timeout=APPLICATION_SECONDS_MAX,
    )


def named(spans: Sequence[SeenSpan], name: str) -> list[SeenSpan]:
    return [span for span in spans if span.name.split(" ")[0] == name]


def test_one_trace_leads_from_an_application_through_a_transaction_over_two_topics_to_its_consumers(
    collector: Collector, broker: RunningBroker
) -> None:
    """One trace leads from a span of the application through two topics' transaction to the consumers' spans."""
    admin = Admin(broker.http_url)
    topics = [admin.new_topic(2), admin.new_topic(1)]
    run_application(broker, topics)
    spans = collector.wait_for(lambda spans: len(spans) >= 10)
    assert {span.trace_id for span in spans} == {named(spans, "order")[0].trace_id}
    (order,) = named(spans, "order")
    publishes = {str(span.attributes["messaging.destination.name"]): span for span in named(spans, "publish")}
    assert sorted(publishes) == sorted(topics)
    for topic, publish in publishes.items():
        assert (publish.service, publish.kind, publish.parent_id) == ("shop", PRODUCER, order.span_id)
        (append,) = [span for span in named(spans, "append") if span.name == f"append {topic}"]
        assert (append.service, append.kind, append.parent_id) == ("tidewire", SERVER, publish.span_id)
        assert append.attributes["messaging.operation.type"] == "send"
        assert publish.start_ns <= append.start_ns < append.end_ns
        (deliver,) = [span for span in named(spans, "deliver") if span.name == f"deliver {topic}"]
        assert (deliver.parent_id, deliver.links) == (publish.span_id, (publish.span_id,))
        assert deliver.attributes["messaging.destination.subscription.name"] == "billing"
        assert deliver.start_ns >= append.end_ns
    (commit,) = named(spans, "commit")
    assert set(commit.links) == {publish.span_id for publish in publishes.values()}
    assert commit.parent_id in commit.links
    assert commit.attributes["tidewire.transaction.id"] == publishes[topics[0]].attributes["tidewire.transaction.id"]
    processed = named(spans, "process")
    assert {span.parent_id for span in processed} == set(commit.links)
    assert min(span.start_ns for span in processed) > commit.start_ns


@pytest.fixture
def shop(collector: Collector) -> Iterator[TracerProvider]:
    """Set up OpenTelemetry as an application does, but for one test and not for the whole process."""
    provider = TracerProvider(resource=Resource({"service.name": "shop"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    yield provider
    provider.shutdown()


def test_one_trace_leads_through_the_headers_of_kafkas_records(
    collector: Collector, broker: RunningBroker, shop: TracerProvider
) -> None:
    """As over Pulsar's protocol: a transaction over two topics, whose records the application gives its context."""
    tracer = shop.get_tracer("shop")
    topics = ["orders", "payments"]
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "transactional.id": "till-1"})
    producer.init_transactions()
    producer.begin_transaction()
    with tracer.start_as_current_span("order") as order:
        for topic in topics:
            with tracer.start_as_current_span(f"publish {topic}", kind=SpanKind.PRODUCER):
                context: dict[str, str] = {}
                inject(context)
                producer.produce(topic, b"paid", headers=list(context.items()))
                producer.produce(topic, b"not traced")
        producer.commit_transaction()
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.kafka, "group.id": "billing", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(topics)
    received: list[confluent_kafka.Message] = []
    while len(received) < 4:
        received += consumer.consume(4, timeout=60)
    for record in received:
        headers = {name: value.decode() for name, value in cast("Headers", record.headers() or [])}
        if headers:
            with tracer.start_as_current_span("process", context=extract(headers)):
                pass
    consumer.close()
    spans = collector.wait_for(lambda spans: len(spans) >= 10)
    assert {span.trace_id for span in spans} == {f"{order.get_span_context().trace_id:032x}"}
    publishes = {span.span_id for span in named(spans, "publish")}
    for name in ("append", "deliver", "process"):
        assert {span.parent_id for span in named(spans, name)} == publishes, name
    for span in [*named(spans, "append"), *named(spans, "deliver")]:
        assert (span.service, span.attributes["messaging.system"]) == ("tidewire", "kafka")
    (commit,) = named(spans, "commit")
    assert set(commit.links) == publishes
    assert commit.attributes["tidewire.transaction.id"] == "till-1"


def test_an_aborted_transaction_ends_in_an_abort(
    collector: Collector, broker: RunningBroker, shop: TracerProvider
) -> None:
    """Over both protocols. Nobody gets what was aborted, so no span tells of a delivery."""
    context: dict[str, str] = {}
    inject(context, set_span_in_context(shop.get_tracer("shop").start_span("order")))

    async def abort() -> None:
        topic = Admin(broker.http_url).new_topic(1)
        async with tidewire.connect(broker.service_url) as client, client.producer(topic) as sender:
            txn = await client.new_transaction()
            await sender.send(b"never", properties=context, txn=txn)
            await txn.abort()

    trio.run(abort)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka, "transactional.id": "till-2"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("refunds", b"never", headers=list(context.items()))
    producer.flush()
    producer.abort_transaction()
    spans = collector.wait_for(lambda spans: len(spans) >= 4)
    assert sorted(span.name.split(" ")[0] for span in spans) == ["abort", "abort", "append", "append"]


async def test_every_broker_with_writes_of_a_transaction_ends_it_in_its_traces(
    collector: Collector, tmp_path: Path
) -> None:
    """The coordinator is one of the brokers, or another one. Each owner learns of the decision by itself."""
    traced = {"traceparent": f"00-{7:032x}-{5:016x}-01"}
    owners: dict[str, set[str]] = {}
    async with running_cluster(tmp_path, *EMBEDDED, brokers=("one", "two")) as cluster:
        # Which broker owns a segment follows from its name, so both always own some of these.
        topics = [Admin(cluster.any.http_url).create(f"topic://public/default/{number}") for number in range(6)]
        async with tidewire.connect(cluster.url()) as client, AsyncExitStack() as stack:
            producers = [await stack.enter_async_context(client.producer(topic)) for topic in topics]
            async with client.transaction() as txn:
                for producer in producers:
                    await producer.send(b"v", properties=traced, txn=txn)
            for name, broker in (await cluster.claims_now()).items():
                if name.startswith("segment://"):
                    owners.setdefault(broker, set()).add(f"topic{name.removeprefix('segment').rpartition('/')[0]}")
        spans = await trio.to_thread.run_sync(collector.wait_for, lambda spans: len(spans) >= len(topics) + len(owners))
    assert len(owners) == 2
    assert {broker: {f"append {topic}" for topic in topics} for broker, topics in owners.items()} == {
        broker: {span.name for span in named(spans, "append") if span.instance == broker} for broker in owners
    }
    assert sorted((span.instance, len(span.links)) for span in named(spans, "commit")) == sorted(
        (broker, len(topics)) for broker, topics in owners.items()
    )


async def test_a_transaction_whose_topic_has_moved_is_ended_by_the_former_owner(
    collector: Collector, tmp_path: Path
) -> None:
    """It is the one that remembers the write. The new owner adds no second span."""
    traced = {"traceparent": f"00-{7:032x}-{5:016x}-01"}
    async with running_cluster(tmp_path, *EMBEDDED, brokers=("one", "two")) as cluster:
        topic = Admin(cluster.any.http_url).new_topic(1)

        of_topic = f"segment{topic.removeprefix('topic')}/"
        async with (
            tidewire.connect(cluster.url()) as client,
            client.producer(topic) as producer,
            client.transaction() as txn,
        ):
            await producer.send(b"v", properties=traced, txn=txn)
            owners = (await cluster.claims_now()).items()
            segment, former = next((name, broker) for name, broker in owners if name.startswith(of_topic))
            other = "two" if former == "one" else "one"
            body = json.dumps({"topic": segment, "to": other}).encode()
            headers = {"content-type": "application/json"}
            moved = await request(cluster[former].http, "POST", "/admin/v2/cluster/move", body=body, headers=headers)
            assert moved.status == 204, moved.body
            await cluster.until(lambda claims: claims.get(segment) == other)
    spans = collector.wait_for(lambda spans: bool(named(spans, "commit")))
    assert [(span.instance, len(span.links)) for span in named(spans, "commit")] == [(former, 1)]


def lost(broker: RunningBroker) -> float:
    """How many spans the broker says it has lost."""
    with urllib.request.urlopen(f"{broker.http_url}/metrics?local=true", timeout=60) as answer:
        text = answer.read().decode()
    return sum(
        float(count) for count in re.findall(r'tidewire_trace_spans_total{result="(?:failed|dropped)"} (.+)', text)
    )


@pytest.mark.parametrize("trouble", ["away", "slow", "refuses"])
async def test_a_collector_in_trouble_holds_up_no_client(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trouble: str
) -> None:
    """Messages are published, committed and delivered, the broker stops in time, and what is lost is counted."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "20")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
    # It is bound and does not listen, so that nobody else gets its port.
    nobody = socket.socket()
    nobody.bind(("127.0.0.1", 0))
    if trouble == "away":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{nobody.getsockname()[1]}")
    elif trouble == "slow":
        collector.hold()
    else:
        collector.status = 503
    traced = {"traceparent": f"00-{7:032x}-{5:016x}-01"}
    with nobody, running_broker(tmp_path / "data") as broker:
        topic = Admin(broker.http_url).new_topic(1)
        async with tidewire.connect(broker.service_url) as client:
            for _ in range(3):
                async with client.transaction() as txn, client.producer(topic, batching=False) as producer:
                    for number in range(100):
                        await producer.enqueue(b"%d" % number, properties=traced, txn=txn)
                    await producer.flush()
            async with client.stream_consumer(topic, "s") as consumer:
                for _ in range(300):
                    message = await consumer.receive()
                    assert message.properties == traced
        # At most a full queue and the batch in flight are not lost yet.
        assert lost(broker) >= 600 - 20 - 10
    assert collector.wait_for(lambda _spans: True) == []
