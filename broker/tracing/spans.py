"""The broker's spans of traced messages: their append, their transaction's commit, and their delivery.

| span              | begins                           | ends                        | parent            |
|-------------------|----------------------------------|-----------------------------|-------------------|
| `append <topic>`  | the send arrives                 | it is durable and answered  | the message's     |
| `commit`, `abort` | the coordinator decides          | this broker has heard of it | one of the writes |
| `deliver <topic>` | a consumer's connection takes it | it is handed over           | the message's     |

The message's context is what its producer put into it. The broker stores it with the message and changes nothing, so
consumers get the same. A transaction gets one span for each trace that wrote in it, with links to that trace's writes.
Names and attributes follow OpenTelemetry's conventions for messaging, as far as they know of brokers.

Nothing here imports OpenTelemetry. Without traces there is no object of these classes.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from time import time_ns
from typing import Final, NamedTuple, Protocol

from broker.tracing.contexts import CONTEXTS_MAX, TraceContext

TRANSACTIONS_MAX: Final = 1_000
"""Open transactions whose traces are remembered. Beyond that the oldest get no span of their end."""

_NS: Final = 1_000_000_000


class Kind(Enum):
    """What a span is to the others, by OpenTelemetry's names."""

    SERVER = "SERVER"
    """It serves a request of a client."""
    INTERNAL = "INTERNAL"


class Span(Protocol):
    """A span that has begun."""

    def end(self, end_time: int | None = None) -> None:
        """End it, now or at this time. Never blocks."""


class StartSpan(Protocol):
    """Begins spans. OpenTelemetry's sampler may decide that one is not recorded."""

    def __call__(
        self,
        name: str,
        parent: TraceContext,
        *,
        kind: Kind,
        attributes: Mapping[str, str | int],
        links: Sequence[TraceContext],
        start_ns: int,
    ) -> Span:
        """Begin a span at `start_ns`, nanoseconds since the epoch."""


class Counts(NamedTuple):
    """What became of the spans since the start."""

    exported: int
    """Taken by the collector."""
    failed: int
    """Lost because the collector was away, too slow, or refused them."""
    dropped: int
    """Lost because too many waited for the collector."""


class Place(NamedTuple):
    """The log of a message."""

    topic: str
    """By the name that users know."""
    part: str
    """Its segment or partition; empty if the topic has none."""
    system: str
    """The messaging system whose client wrote it."""


class Tracing:
    """Makes the spans of one broker."""

    def __init__(self, start: StartSpan, counts: Callable[[], Counts]) -> None:
        """Set up. `start` begins spans, and `counts` tells what became of them."""
        self._start = start
        self.counts = counts
        self._writes: dict[object, dict[int, list[TraceContext]]] = {}
        """By transaction and trace, the messages written on this broker. Oldest transaction first."""

    def appended(
        self, place: Place, contexts: Sequence[TraceContext], *, transaction: object | None, waited_seconds: float
    ) -> list[Span]:
        """Begin the span of each message of an entry that was appended. End them when it is durable.

        Its send has `waited_seconds` since it arrived.
        """
        if transaction is not None:
            self._note(transaction, contexts)
        attributes = _attributes(place, "append", "send", len(contexts))
        if transaction is not None:
            attributes["tidewire.transaction.id"] = str(transaction)
        start_ns = time_ns() - int(waited_seconds * _NS)
        return [
            self._start(
                f"append {place.topic}",
                context,
                kind=Kind.SERVER,
                attributes=attributes,
                links=(),
                start_ns=start_ns,
            )
            for context in contexts
        ]

    def delivered(self, place: Place, contexts: Sequence[TraceContext], *, subscription: str, stored_ms: int) -> None:
        """Note that an entry was handed to a consumer's connection. The broker took it at `stored_ms`."""
        attributes = _attributes(place, "deliver", "receive", len(contexts))
        if subscription:
            attributes["messaging.destination.subscription.name"] = subscription
        start_ns = time_ns()
        attributes["tidewire.stored_for_ms"] = max(0, start_ns // 1_000_000 - stored_ms)
        for context in contexts:
            self._start(
                f"deliver {place.topic}",
                context,
                kind=Kind.SERVER,
                attributes=attributes,
                links=(context,),
                start_ns=start_ns,
            ).end()

    def is_traced(self, transaction: object) -> bool:
        """Whether traced messages were written in this transaction, and its end is not known yet."""
        return transaction in self._writes

    def ended(self, transaction: object, outcome: str, *, decided_ms: int) -> None:
        """Note that this broker has heard of a transaction's end: `commit` or `abort`, decided at `decided_ms`."""
        for contexts in self._writes.pop(transaction, {}).values():
            self._start(
                outcome,
                contexts[0],
                kind=Kind.INTERNAL,
                attributes={
                    "messaging.operation.name": outcome,
                    "tidewire.transaction.id": str(transaction),
                },
                links=contexts,
                start_ns=decided_ms * 1_000_000,
            ).end()

    def forget(self, transaction: object) -> None:
        """Note that nothing more will be heard of a transaction."""
        self._writes.pop(transaction, None)

    def _note(self, transaction: object, contexts: Sequence[TraceContext]) -> None:
        writes = self._writes.setdefault(transaction, {})
        for context in contexts:
            if context.trace_id in writes or len(writes) < CONTEXTS_MAX:
                of_trace = writes.setdefault(context.trace_id, [])
                if len(of_trace) < CONTEXTS_MAX:
                    of_trace.append(context)
        if len(self._writes) > TRANSACTIONS_MAX:
            del self._writes[next(iter(self._writes))]


def _attributes(place: Place, operation: str, kind: str, traced: int) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": place.system,
        "messaging.destination.name": place.topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
    if place.part:
        attributes["messaging.destination.partition.id"] = place.part
    if traced > 1:
        attributes["messaging.batch.message_count"] = traced
    return attributes
