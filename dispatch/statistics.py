"""How a subscription stands: snapshots for metrics and administration, and how much is behind its cursor."""

from dataclasses import dataclass

from dispatch.kinds import SubscriptionKind
from dispatch.source import Source
from storage.cursor import BaseCursor
from storage.position import Position


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """A snapshot of one consumer."""

    name: str
    permits: int
    unacked_messages: int
    """Sent and not acknowledged; of an exclusive subscription nobody counts, so 0."""
    messages_sent: int
    bytes_sent: int


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """A snapshot of one subscription."""

    kind: SubscriptionKind
    backlog_entries: int
    """Readable and not acknowledged, whether sent or not. Invisible entries count until they are skipped."""
    unacked_messages: int
    """Sent and not acknowledged (shared subscriptions)."""
    entries_to_send_again: int
    mark_delete: Position
    consumers: tuple[ConsumerStatistics, ...]


def backlog_entries(source: Source, cursor: BaseCursor) -> int:
    """Readable entries that are not acknowledged; without control entries, as far as the source knows these."""
    low, high = cursor.mark_delete, source.readable.value
    unread = source.entries_between(low, high) - cursor.entries_above
    controls = source.controls_between(low, high)
    if controls:
        # Those that were passed over above the mark-delete are among the acknowledged.
        controls -= sum(source.controls_between(first.before(), last) for first, last in cursor.acknowledged_above)
    return max(0, unread - controls)
