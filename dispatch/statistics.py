"""The state of a subscription: snapshots for metrics and administration, and its backlog."""

from dataclasses import dataclass

from dispatch.source import Source
from dispatch.subscription_types import SubscriptionType
from storage.cursor import BaseCursor
from storage.errors import LedgerNotFound
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
    """Readable and unacknowledged entries, sent or not, without those that are known to be hidden."""
    unacked_messages: int
    """Sent and not acknowledged (shared subscriptions)."""
    entries_to_send_again: int
    mark_delete: Position
    consumers: tuple[ConsumerStatistics, ...]


def backlog_entries(source: Source, cursor: BaseCursor) -> int:
    """Readable entries that are not acknowledged, without those that are known to be hidden."""
    low, high = cursor.mark_delete, source.readable.value
    if not source.hidden_between(low, high):
        return max(0, source.entries_between(low, high) - cursor.entries_above)
    unread = _unread(cursor, high)
    return sum(source.entries_between(low, high) - source.hidden_between(low, high) for low, high in unread)


async def visible_backlog(source: Source, cursor: BaseCursor, upto: Position) -> int:
    """Readable entries up to this position that consumers get and that are not acknowledged (K35).

    Raises:
        LedgerCorrupt: it cannot be found out.
    """
    while True:
        unread = _unread(cursor, min(upto, source.readable.value))
        entries = sum(source.entries_between(low, high) for low, high in unread)
        try:
            hidden = await source.count_hidden(unread)
        except LedgerNotFound:
            continue  # It was trimmed, so it is no longer among them.
        if entries == sum(source.entries_between(low, high) for low, high in unread):
            return entries - hidden


def _unread(cursor: BaseCursor, upto: Position) -> list[tuple[Position, Position]]:
    """The ranges that are not acknowledged: above the first position, up to the second."""
    unread, low = [], cursor.mark_delete
    for first, last in cursor.acknowledged_above:
        if first > upto:
            break
        unread.append((low, first.before()))
        low = last
    if low < upto:
        unread.append((low, upto))
    return unread
