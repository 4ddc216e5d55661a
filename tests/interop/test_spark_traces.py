"""A message's trace goes through Spark's source and sink, and a micro-batch has a span in the driver."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import inject
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import set_span_in_context
from pyspark.sql import SparkSession

import tidewire
from tests.support.admin import Admin
from tests.support.collector import Collector, running_collector
from tests.support.processes import RunningBroker, running_broker
from tests.tidewire.spark.conftest import spark as spark
from tidewire.spark import MicroBatchSpans

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Run a collector, and name it in the environment of the broker to come."""
    with running_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        yield collector


@pytest.fixture
def broker(collector: Collector, tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def provider(collector: Collector) -> Iterator[TracerProvider]:
    """Set up OpenTelemetry as a driver program does, but for one test and not for the whole process."""
    provider = TracerProvider(resource=Resource({"service.name": "driver"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    yield provider
    provider.shutdown()


def test_a_rows_trace_goes_through_source_and_sink(
    spark: SparkSession, broker: RunningBroker, collector: Collector, provider: TracerProvider, tmp_path: Path
) -> None:
    admin = Admin(broker.http_url)
    source, target = admin.new_topic(2), admin.new_topic(1)
    tracer = provider.get_tracer("driver")
    order = tracer.start_span("order")
    context: dict[str, str] = {"shop": "1"}
    inject(context, set_span_in_context(order))
    order.end()

    async def send() -> None:
        with trio.fail_after(60):
            async with tidewire.connect(broker.service_url) as client, client.producer(source) as producer:
                await producer.send(b"not traced", key="a")
                await producer.send(b"paid", key="b", properties=context)

    async def received() -> dict[bytes, dict[str, str]]:
        with trio.fail_after(60):
            async with tidewire.connect(broker.service_url) as client, client.reader(target) as reader:
                messages = [await reader.receive() for _ in range(2)]
                return {message.value: dict(message.properties) for message in messages}

    trio.run(send)
    listener = MicroBatchSpans(tracer)
    spark.streams.addListener(listener)
    try:
        options = {"service_url": broker.service_url, "topic": source, "starting_position": "earliest"}
        rows = spark.readStream.format("tidewire").options(**options).load()
        query = (
            rows.select("value", "key", "properties")
            .writeStream.format("tidewire")
            .options(service_url=broker.service_url, topic=target, checkpointLocation=str(tmp_path / "checkpoint"))
            .queryName("copy")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        assert trio.run(received) == {b"not traced": {}, b"paid": context}
        wanted = {"order", f"append {source}", f"deliver {source}", f"append {target}", "commit", f"deliver {target}"}
        spans = collector.wait_for(
            lambda spans: {*wanted, "micro-batch copy"} <= {span.name for span in spans},
        )
    finally:
        spark.streams.removeListener(listener)
    trace = f"{order.get_span_context().trace_id:032x}"
    assert {span.name for span in spans if span.trace_id == trace} == wanted
    assert {span.parent_id for span in spans if span.trace_id == trace and span.name != "order"} == {
        f"{order.get_span_context().span_id:016x}"
    }
    (batch,) = [span for span in spans if span.name == "micro-batch copy"]
    assert batch.trace_id != trace
    assert (batch.attributes["spark.batch.id"], batch.attributes["spark.batch.input_rows"]) == (0, 2)
    assert batch.end_ns - batch.start_ns == int(batch.attributes["spark.duration_ms.triggerExecution"]) * 1_000_000
    (stored,) = [span for span in spans if span.name == f"append {target}"]
    # Spark counts in milliseconds.
    assert batch.start_ns <= stored.start_ns <= stored.end_ns <= batch.end_ns + 1_000_000
