"""The span of one message that a producer sends, in an application that traces with OpenTelemetry.

The span begins when the message is given to the producer, and ends with its answer. Its context goes with the message
in the properties, by the application's propagator; by default these are W3C's `traceparent` and `tracestate`. A message
that already has a `traceparent` keeps it and gets no span: the application, or the message that is passed on, has
chosen its trace. Names and attributes are those of OpenTelemetry's conventions for messaging.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tidewire.client.transactions import Transaction
from tidewire.protocol.application_tracing import application_tracer
from tidewire.protocol.positions import MessageId

if TYPE_CHECKING:
    from opentelemetry.trace import Span

TRACEPARENT: Final = "traceparent"


class PublishSpan:
    """A span that has begun. It ends once, with the message's answer."""

    def __init__(self, span: "Span", properties: dict[str, str]) -> None:
        """For `publish_span`."""
        self._span = span
        self.properties = properties
        """The message's properties, with the span's context."""

    def end(self, answer: MessageId | BaseException) -> None:
        """End it with the message's id, or with the error that the application gets."""
        from opentelemetry.trace import StatusCode

        if isinstance(answer, BaseException):
            self._span.set_attribute("error.type", type(answer).__name__)
            self._span.set_status(StatusCode.ERROR, str(answer))
        else:
            self._span.set_attribute("messaging.message.id", str(answer))
        self._span.end()

    @contextmanager
    def ends_at_failure(self) -> Iterator[None]:
        """End it if the block raises, because there is no message then."""
        try:
            yield
        except BaseException as error:
            self.end(error)
            raise


def publish_span(
    topic: str, properties: Mapping[str, str] | None, size: int, txn: Transaction | None
) -> PublishSpan | None:
    """Begin the span of a message of `size` bytes, below the application's current span.

    None if the application does not trace, or the message brings a context.
    """
    tracer = application_tracer("tidewire.client")
    if tracer is None or (properties is not None and TRACEPARENT in properties):
        return None
    from opentelemetry.propagate import inject
    from opentelemetry.trace import SpanKind, set_span_in_context

    attributes: dict[str, str | int] = {
        "messaging.system": "pulsar",
        "messaging.destination.name": topic,
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.message.body.size": size,
    }
    if txn is not None:
        most, least = txn.transaction_id
        attributes["tidewire.transaction.id"] = f"{most}_{least}"
    span = tracer.start_span(f"publish {topic}", kind=SpanKind.PRODUCER, attributes=attributes)
    carrier = dict(properties or {})
    inject(carrier, set_span_in_context(span))
    return PublishSpan(span, carrier)
