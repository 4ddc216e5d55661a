"""The spans of one topic's messages. It finds the messages that carry a trace context, and makes spans of those alone.

A broker that does not trace has no object of this class, and its topics look into no payload.
"""

from collections.abc import Sequence
from typing import Final

from broker.entry_codecs import EntryCodecs
from broker.names import TopicName
from broker.tracing.spans import Place, Span, Tracing
from storage.entry import Entry, EntryFormat

SYSTEMS: Final = {EntryFormat.PULSAR: "pulsar", EntryFormat.KAFKA: "kafka"}
"""The messaging system whose clients write entries of a format, by OpenTelemetry's names."""


class TopicSpans:
    """See the module's docstring."""

    def __init__(
        self, tracing: Tracing, name: TopicName, scalable_topic: TopicName | None, codecs: EntryCodecs
    ) -> None:
        """Set up for a topic, or for a segment of `scalable_topic`."""
        self._tracing = tracing
        self._codecs = codecs
        self._topic = str(scalable_topic or name.partitioned_topic)
        index = name.partition_index
        self._part = "" if index is None else str(index)
        if name.segment is not None:
            self._part = str(name.segment)

    def appended(
        self,
        payload: bytes,
        message_count: int,
        entry_format: EntryFormat,
        *,
        transaction: object | None,
        waited_seconds: float,
    ) -> Sequence[Span]:
        """Begin the spans of an entry that was appended. End them when it is durable and answered.

        Its send has `waited_seconds` since it arrived.
        """
        contexts = self._codecs[entry_format].trace_contexts_of(payload, message_count)
        if not contexts:
            return ()
        return self._tracing.appended(
            self._place(entry_format), contexts, transaction=transaction, waited_seconds=waited_seconds
        )

    def delivered(self, entry: Entry, subscription: str = "") -> None:
        """Note that an entry was handed to a connection, for a consumer of `subscription` if that is known."""
        contexts = self._codecs[entry.format].trace_contexts_of(entry.payload, entry.message_count)
        if contexts:
            self._tracing.delivered(
                self._place(entry.format), contexts, subscription=subscription, stored_ms=entry.timestamp_ms
            )

    def _place(self, entry_format: EntryFormat) -> Place:
        return Place(self._topic, self._part, SYSTEMS.get(entry_format, ""))
