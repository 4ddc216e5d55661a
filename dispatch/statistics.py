"""The state of a subscription: snapshots for metrics and administration, and its backlog."""

from dataclasses import dataclass

from dispatch.source import Source
from dispatch.subscription_types import SubscriptionType
from storage.cursor import BaseCursor
from storage.position import Position


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """A snapshot of one consumer."""

    name: str
    permits: int
    unacked_messages: int
    """Sent and not acknowledged. Exclusive subscriptions do not count them, so 0."""
    messages_sent: int
    bytes_sent: int


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """A snapshot of one subscription."""

    kind: SubscriptionType
    backlog_entries: int
    """Readable and unacknowledged entries, sent or not. Hidden entries count until they are skipped."""
    unacked_messages: int
    """Sent and not acknowledged (shared subscriptions)."""
    entries_to_send_again: int
    mark_delete: Position
    consumers: tuple[ConsumerStatistics, ...]


def backlog_entries(source: Source, cursor: BaseCursor, upto: Position | None = None) -> int:
    """Readable entries that are not acknowledged, without the control entries that the source knows.

    With `upto`, those behind that position do not count.
    """
    low, high = cursor.mark_delete, source.readable.value
    acknowledged = cursor.entries_above
    if upto is not None and upto < high:
        high = upto
        acknowledged = sum(
            source.entries_between(first.before(), min(last, high)) for first, last in cursor.acknowledged_above
        )
    unread = source.entries_between(low, high) - acknowledged
    controls = source.controls_between(low, high)
    if controls:
        # Skipped control entries above the mark-delete position are among the acknowledged ones.
        controls -= sum(
            source.controls_between(first.before(), min(last, high)) for first, last in cursor.acknowledged_above
        )
    return max(0, unread - controls)
