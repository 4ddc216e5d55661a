"""Spans of what a producer sends, by OpenTelemetry's own SDK, and their absence."""

import subprocess
import sys

import pytest
from opentelemetry.propagate import extract
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

import tidewire.client.publish_span
from tidewire.client.publish_span import PublishSpan, publish_span
from tidewire.client.sending import Outgoing, Tally
from tidewire.protocol.application_tracing import application_tracer
from tidewire.protocol.errors import ConnectionLost
from tidewire.protocol.positions import MessageId

TOPIC = "topic://public/default/x"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Let the client find an application that traces. The real place of a provider is one for the whole process."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(tidewire.client.publish_span, "application_tracer", provider.get_tracer)
    return kept


def begun(properties: dict[str, str] | None = None) -> PublishSpan:
    span = publish_span(TOPIC, properties, 3, None)
    assert span is not None
    return span


async def outgoing(span: PublishSpan) -> Outgoing:
    tally = Tally(messages_max=1, bytes_max=3, failures_max=1)
    await tally.room.take(3)
    return Outgoing(b"abc", None, None, span.properties, None, None, 3, tally, span)


async def test_a_message_carries_its_span_and_ends_it_once(spans: InMemorySpanExporter) -> None:
    given = {"a": "b"}
    span = begun(given)
    carried = get_current_span(extract(span.properties)).get_span_context()
    assert (given, span.properties["a"]) == ({"a": "b"}, "b")
    message = await outgoing(span)
    message.finish(MessageId(1, 2, 3))
    message.finish(ConnectionLost("too late"))
    (seen,) = spans.get_finished_spans()
    assert seen.context is not None
    assert (seen.context.trace_id, seen.context.span_id) == (carried.trace_id, carried.span_id)
    assert (seen.name, seen.kind, seen.status.status_code) == (f"publish {TOPIC}", SpanKind.PRODUCER, StatusCode.UNSET)
    assert dict(seen.attributes or {}) == {
        "messaging.system": "pulsar",
        "messaging.destination.name": TOPIC,
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.message.body.size": 3,
        "messaging.message.id": str(MessageId(1, 2, 3)),
    }


async def test_a_failed_message_has_a_failed_span(spans: InMemorySpanExporter) -> None:
    (await outgoing(begun())).finish(ConnectionLost("gone"))
    with pytest.raises(ValueError, match="too large"), begun().ends_at_failure():
        raise ValueError("too large")
    told = [(dict(span.attributes or {})["error.type"], span.status.description) for span in spans.get_finished_spans()]
    assert told == [("ConnectionLost", "gone"), ("ValueError", "too large")]


def test_a_message_that_brings_a_context_keeps_it(spans: InMemorySpanExporter) -> None:
    assert publish_span(TOPIC, {"traceparent": "of whoever sent it first"}, 3, None) is None
    assert not spans.get_finished_spans()


def test_an_application_that_sets_no_provider_does_not_trace() -> None:
    """This process has imported OpenTelemetry, and it has set nothing up."""
    assert application_tracer("x") is None
    assert publish_span(TOPIC, None, 3, None) is None


def test_without_tracing_nobody_imports_opentelemetry() -> None:
    code = """
import sys
import broker.main, tidewire, tidewire.spark
from broker.tracing.opening import open_tracing
from tidewire.client.publish_span import publish_span
assert open_tracing({}, broker_id="b", version="1") == (None, None)
assert publish_span("topic://public/default/x", None, 3, None) is None
print([name for name in sys.modules if name.partition(".")[0] == "opentelemetry"])
"""
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "[]"
