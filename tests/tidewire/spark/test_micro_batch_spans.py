"""Spans of micro-batches, from progress as Spark reports it. tests/interop/test_spark_traces.py has a real query."""

import uuid
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryProgress

from tidewire.spark import MicroBatchSpans

QUERY, RUN = uuid.uuid4(), uuid.uuid4()


def progress(name: str | None, **steps: int) -> QueryProgressEvent:
    told: dict[str, Any] = {
        "id": str(QUERY),
        "runId": str(RUN),
        "name": name,
        "timestamp": "2026-11-28T10:00:00.250Z",
        "batchId": 7,
        "batchDuration": 40,
        "durationMs": steps,
        "stateOperators": [],
        "sources": [],
        "sink": {"description": "tidewire", "numOutputRows": -1, "metrics": {}},
        "numInputRows": 3,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
        "observedMetrics": {},
    }
    return QueryProgressEvent(StreamingQueryProgress.fromJson(told))


def test_a_micro_batch_that_wrote_is_a_span_and_an_empty_trigger_is_none() -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    spans = MicroBatchSpans(provider.get_tracer("driver"))
    spans.onQueryProgress(progress("copy", triggerExecution=5, latestOffset=5))
    spans.onQueryProgress(progress(None, triggerExecution=40, latestOffset=10, addBatch=20))
    (span,) = kept.get_finished_spans()
    assert span.name == f"micro-batch {QUERY}"
    assert span.start_time == 1_795_860_000_250_000_000
    assert span.end_time == span.start_time + 40_000_000
    assert dict(span.attributes or {}) == {
        "spark.query.id": str(QUERY),
        "spark.query.run_id": str(RUN),
        "spark.batch.id": 7,
        "spark.batch.input_rows": 3,
        "spark.sink": "tidewire",
        "spark.duration_ms.triggerExecution": 40,
        "spark.duration_ms.latestOffset": 10,
        "spark.duration_ms.addBatch": 20,
    }


def test_a_driver_that_does_not_trace_makes_no_span() -> None:
    MicroBatchSpans().onQueryProgress(progress("copy", triggerExecution=40, addBatch=20))
