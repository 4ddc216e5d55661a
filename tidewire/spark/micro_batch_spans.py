"""Spans of a stream's micro-batches, in a driver program that traces with OpenTelemetry.

    spark.streams.addListener(MicroBatchSpans())

Spark tells its listeners of each micro-batch when it has ended, with the time that each step took. The listener makes a
span of that in the driver's own Python process, where the application has set up OpenTelemetry. A micro-batch has rows
of any number of traces, so its span begins a trace of its own. A row's trace context is in its column `properties`, and
the sink writes it as it is.
"""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tidewire.protocol.application_tracing import application_tracer

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_WHOLE: Final = "triggerExecution"
_WRITTEN: Final = "addBatch"
"""Spark's names of the time that a trigger took, and of the step that writes the rows and commits them."""

_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_MICROSECOND: Final = timedelta(microseconds=1)


class MicroBatchSpans(StreamingQueryListener):
    """See the module's docstring. Without tracing in the application it does nothing."""

    def __init__(self, tracer: "Tracer | None" = None) -> None:
        """Make spans with `tracer`, by default with the application's at that moment."""
        self._tracer = tracer

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - these names are Spark's
        """Make the span of a micro-batch that has ended."""
        tracer = self._tracer or application_tracer("tidewire.spark")
        progress = event.progress
        steps = progress.durationMs
        # Without this step, the trigger found nothing to do.
        if tracer is None or _WRITTEN not in steps:
            return
        name = progress.name or str(progress.id)
        # Integers, because a float has no nanoseconds of today.
        start_ns = (datetime.fromisoformat(progress.timestamp) - _EPOCH) // _MICROSECOND * 1000
        attributes: dict[str, str | int] = {
            "spark.query.id": str(progress.id),
            "spark.query.run_id": str(progress.runId),
            "spark.batch.id": progress.batchId,
            "spark.batch.input_rows": progress.numInputRows,
            "spark.sink": progress.sink.description,
            **{f"spark.duration_ms.{step}": ms for step, ms in steps.items()},
        }
        span = tracer.start_span(f"micro-batch {name}", attributes=attributes, start_time=start_ns)
        span.end(start_ns + steps[_WHOLE] * 1_000_000)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing: the query has done nothing yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: there was nothing to do."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing: its micro-batches have their spans."""
