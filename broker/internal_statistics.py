"""What is inside one log: ledgers and cursors, in JSON with the names of Pulsar's `PersistentTopicInternalStats`.

What this broker does not have is left out: when ledgers were made, ledgers of cursors, offloading and compaction.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from broker.topic import Topic
from dispatch.subscription import Subscription
from storage.managed_ledger import ManagedLedger
from storage.position import Position

JsonMap = Mapping[str, Any]


def internal_statistics(topic: Topic) -> JsonMap:
    """Return what is inside a topic that this broker owns, at once."""
    ledger = topic.ledger
    counted = ledger.statistics()
    ledgers = [_ledger_view(info.id, info.entries, info.size) for info in ledger.closed]
    place = ledger.next_position
    is_open = ledger.takes_entries(place.ledger)
    if is_open:
        ledgers.append(_ledger_view(place.ledger, place.entry, ledger.open_bytes))
    return {
        "numberOfEntries": counted.entries,
        "totalSize": counted.size_bytes,
        "currentLedgerEntries": place.entry if is_open else 0,
        "currentLedgerSize": ledger.open_bytes,
        "pendingAddEntriesCount": ledger.entries_between(ledger.confirmed.value, ledger.last_position),
        "lastConfirmedEntry": str(ledger.confirmed.value),
        "state": "Terminated" if ledger.is_sealed else "LedgerOpened" if is_open else "ClosedLedger",
        "ledgers": ledgers,
        "cursors": {name: _cursor_view(ledger, one) for name, one in sorted(topic.subscriptions.items())},
    }


def _ledger_view(ledger: int, entries: int, size_bytes: int) -> JsonMap:
    return {"ledgerId": ledger, "entries": entries, "size": size_bytes, "offloaded": False, "underReplicated": False}


def _cursor_view(ledger: ManagedLedger, subscription: Subscription) -> JsonMap:
    cursor = subscription.cursor
    handled_upto = max(subscription.handled_upto, cursor.mark_delete)
    ranges = list(cursor.acknowledged_above)
    return {
        "markDeletePosition": str(cursor.mark_delete),
        "readPosition": str(ledger.next_after(handled_upto)),
        "individuallyDeletedMessages": _ranges_view(ranges),
        "totalNonContiguousDeletedMessagesRange": len(ranges),
        "numberOfEntriesSinceFirstNotAckedMessage": ledger.entries_between(cursor.mark_delete, handled_upto),
        "state": "Open",
        "active": bool(subscription.consumers),
        "properties": {},
    }


def _ranges_view(ranges: Iterable[tuple[Position, Position]]) -> str:
    """Ranges without their first and with their last position, as Pulsar writes them."""
    return "[" + ",".join(f"({first.before()}..{last}]" for first, last in ranges) + "]"
