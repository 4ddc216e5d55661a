"""Exports spans over OTLP/HTTP. The only module that imports OpenTelemetry; `opening.py` imports it when traces are on.

Spans end on the event loop, and wait in a bounded queue. One task takes batches from it, and a thread of Trio's encodes
and posts each. So the event loop never waits for the collector. If the queue is full, further spans are dropped. What a
batch's retries do not bring to the collector is lost. Both are counted.

The environment's standard variables choose all of it: `OTEL_EXPORTER_OTLP_*` the collector, `OTEL_TRACES_SAMPLER` the
sampler, `OTEL_BSP_*` the queue, `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` what the broker is called.
"""

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import structlog
import trio
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from broker.tracing.contexts import TraceContext
from broker.tracing.spans import Counts, Kind, Span, Tracing
from storage.signal import Signal

QUEUE_MAX: Final = 2048
BATCH_MAX: Final = 512
DELAY_MS: Final = 5_000
"""OpenTelemetry's defaults: spans that wait at most, spans of one request, and how long a request waits for more."""

LINES_MAX: Final = 2
"""Lines of OpenTelemetry that the log repeats of a failed request: its last trouble, and that it was given up."""

THREAD_NAME: Final = "tidewire-traces"

_EXPORTERS: Final = "opentelemetry.exporter."
"""What the names of the loggers begin with that tell of requests."""

log = structlog.get_logger(__name__)


class Exporter(SpanProcessor):
    """The queue of ended spans, and the task that exports them."""

    def __init__(
        self,
        exporter: SpanExporter,
        *,
        queue_max: int = QUEUE_MAX,
        batch_max: int = BATCH_MAX,
        delay_seconds: float = DELAY_MS / 1000,
    ) -> None:
        """Set up. `run` does the work."""
        self._exporter = exporter
        self._queue: deque[ReadableSpan] = deque()
        self._queue_max = queue_max
        self._batch_max = min(batch_max, queue_max)
        self._delay_seconds = delay_seconds
        self._wake = Signal()
        self._full = Signal()
        self._is_closing = False
        self._closed = trio.Event()
        self._thread = trio.CapacityLimiter(1)
        self._exported = self._failed = self._dropped = 0
        self._is_failing = False

    def counts(self) -> Counts:
        """Return what became of the spans so far."""
        return Counts(self._exported, self._failed, self._dropped)

    def on_end(self, span: ReadableSpan) -> None:
        """See `SpanProcessor`. Called on the event loop; never blocks."""
        if len(self._queue) >= self._queue_max:
            self._dropped += 1
            return
        self._queue.append(span)
        self._wake.set()
        if len(self._queue) >= self._batch_max:
            self._full.set()

    async def run(self) -> None:
        """Export until cancelled. A request in flight then is left to its thread, which ends with its time limit."""
        try:
            with _words_of_opentelemetry() as words:
                while not (self._is_closing and not self._queue):
                    await self._wake.wait()
                    while self._queue:
                        await self._gather()
                        await self._export_batch(words)
        finally:
            self._exporter.shutdown()
            self._closed.set()

    async def close(self) -> None:
        """Export what waits, and let `run` return. Limit the time from outside."""
        self._is_closing = True
        self._wake.set()
        self._full.set()
        await self._closed.wait()

    async def _gather(self) -> None:
        """Wait until there is a whole batch, or the first span has waited long enough."""
        with trio.move_on_after(self._delay_seconds):
            while len(self._queue) < self._batch_max and not self._is_closing:
                await self._full.wait()

    async def _export_batch(self, words: "_LastWords") -> None:
        batch = [self._queue.popleft() for _ in range(min(self._batch_max, len(self._queue)))]
        export = partial(self._exporter.export, batch)
        words.lines.clear()
        result = await trio.to_thread.run_sync(
            export, thread_name=THREAD_NAME, abandon_on_cancel=True, limiter=self._thread
        )
        if result is SpanExportResult.SUCCESS:
            self._exported += len(batch)
            if self._is_failing:
                log.info("the collector takes traces again", lost_spans=self._failed + self._dropped)
        else:
            self._failed += len(batch)
            if not self._is_failing:
                log.warning("the collector takes no traces", reason=" ".join(words.lines), lost_spans=len(batch))
        self._is_failing = result is not SpanExportResult.SUCCESS


class _LastWords(logging.Handler):
    """Keeps the last warnings of OpenTelemetry, which logs why an export failed and does not return it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: deque[str] = deque(maxlen=LINES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`. Called in the exporting thread.

        On the event loop, OpenTelemetry also warns of odd contexts of messages. These say nothing of the collector.
        """
        if record.name.startswith(_EXPORTERS):
            self.lines.append(record.getMessage())


@contextmanager
def _words_of_opentelemetry() -> Iterator[_LastWords]:
    """Keep OpenTelemetry's warnings out of standard error, which has the broker's log. They come at each attempt."""
    words = _LastWords()
    logger = logging.getLogger("opentelemetry")
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(words)
    try:
        yield words
    finally:
        logger.removeHandler(words)
        logger.propagate = propagated


def open_exporter(environment: Mapping[str, str], *, broker_id: str, version: str) -> tuple[Tracing, Exporter]:
    """Return what makes a broker's spans, and what exports them. Nothing runs yet, and nothing is connected.

    Raises:
        ValueError: a number in the environment is none, or too low.
    """
    exporter = Exporter(
        OTLPSpanExporter(),
        queue_max=_number(environment, "OTEL_BSP_MAX_QUEUE_SIZE", QUEUE_MAX, low=1),
        batch_max=_number(environment, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH_MAX, low=1),
        delay_seconds=_number(environment, "OTEL_BSP_SCHEDULE_DELAY", DELAY_MS, low=0) / 1000,
    )
    own = Resource.create(
        {"service.name": "tidewire", "service.version": version, "service.instance.id": broker_id}
    ).merge(OTELResourceDetector().detect())
    # It reads the sampler from the environment. Its end is the broker's, not the process's.
    provider = TracerProvider(resource=own, shutdown_on_exit=False)
    provider.add_span_processor(exporter)
    tracer = provider.get_tracer("tidewire.broker", version)

    def start(
        name: str,
        parent: TraceContext,
        *,
        kind: Kind,
        attributes: Mapping[str, str | int],
        links: Sequence[TraceContext],
        start_ns: int,
    ) -> Span:
        return tracer.start_span(
            name,
            context=set_span_in_context(NonRecordingSpan(_span_context(parent)), Context()),
            kind=SpanKind[kind.value],
            attributes=attributes,
            links=[Link(_span_context(link)) for link in links],
            start_time=start_ns,
        )

    return Tracing(start, exporter.counts), exporter


def _number(environment: Mapping[str, str], name: str, default: int, *, low: int) -> int:
    """Return the number that a variable has. As OpenTelemetry says, an empty one counts as not set."""
    text = environment.get(name, "").strip()
    number = int(text) if text else default
    if number < low:
        raise ValueError(f"{name}={number} is below {low}")
    return number


def _span_context(context: TraceContext) -> SpanContext:
    return SpanContext(
        context.trace_id,
        context.span_id,
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
        trace_state=TraceState.from_header([context.state]) if context.state else None,
    )
