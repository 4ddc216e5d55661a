"""What open transactions have acknowledged on one subscription: who reserved which messages, and what meets what.

An acknowledgement in a transaction changes nothing yet, but its messages belong to that transaction until it ends: no
other may acknowledge them, and nobody is sent them (T22, T24). Single entries stand per position, with the bits of the
batch's messages that are left over. At most one transaction holds a cumulative acknowledgement, since two would meet.

    asked, of messages that are reserved    by the same transaction    by another one
    a single acknowledgement                conflict                   conflict
    a cumulative acknowledgement            none                       conflict

Whoever acknowledges a single message has done its work. A second time means that the work was done twice, of two copies
of the message perhaps, also within one transaction. A cumulative acknowledgement says how far its consumer has come; it
covers what the same transaction acknowledged below, and may be said again.

Pure.
"""

from collections.abc import MutableMapping, Sequence

from sortedcontainers import SortedDict

from storage.entry import TxnId
from storage.position import Position
from storage.ranges import EntryAck, bits_within


class Reservations:
    """The reservations of one subscription."""

    def __init__(self) -> None:
        self._entries: MutableMapping[Position, dict[TxnId, EntryAck]] = SortedDict()
        """Who reserved messages of single entries; in order of position."""
        self._positions: dict[TxnId, set[Position]] = {}
        """Where a transaction stands in `_entries`."""
        self._cumulative: tuple[TxnId, EntryAck] | None = None
        """Everything at or below is reserved, but for the messages that are left over of the entry itself."""

    @property
    def entries(self) -> int:
        """How many entries are reserved one by one: what the memory is proportional to."""
        return len(self._entries)

    def unreserved(self, position: Position) -> int | None:
        """Bit i is 1 if message i of the entry is not reserved, so 0 if all are; None if nothing of it is."""
        left: int | None = None
        if self._cumulative is not None:
            _, upto = self._cumulative
            if position < upto.position:
                return 0
            if position == upto.position:
                left = upto.remaining
        for ack in self._entries.get(position, {}).values():
            left = ack.remaining if left is None else left & ack.remaining
        return left

    def conflict(self, txn: TxnId, acks: Sequence[EntryAck], *, cumulative: bool) -> Position | None:
        """The first entry with messages that are reserved, or named twice here, and may not be acknowledged again."""
        named: dict[Position, EntryAck] = {}
        for ack in acks:
            met = self._conflict(txn, ack, cumulative=cumulative)
            if met is not None:
                return met
            if not cumulative:
                before = named.get(ack.position)
                if before is not None and overlap(before, ack):
                    return ack.position
                named[ack.position] = ack if before is None else _both(before, ack)
        return None

    def reserve(self, txn: TxnId, acks: Sequence[EntryAck], *, cumulative: bool) -> None:
        """Reserve messages for `txn`, beside what it has; no other transaction has any of them."""
        for ack in acks:
            if cumulative:
                assert self._cumulative is None or self._cumulative[0] == txn, "two cumulative ones meet"
                self._cumulative = (txn, ack if self._cumulative is None else _further(self._cumulative[1], ack))
                continue
            holders = self._entries.setdefault(ack.position, {})
            known = holders.get(txn)
            holders[txn] = ack if known is None else _both(known, ack)
            self._positions.setdefault(txn, set()).add(ack.position)

    def release(self, txn: TxnId) -> None:
        """Nothing is reserved for `txn` any more."""
        for position in self._positions.pop(txn, ()):
            holders = self._entries[position]
            del holders[txn]
            if not holders:
                del self._entries[position]
        if self._cumulative is not None and self._cumulative[0] == txn:
            self._cumulative = None

    def _conflict(self, txn: TxnId, ack: EntryAck, *, cumulative: bool) -> Position | None:
        if self._cumulative is not None:
            holder, upto = self._cumulative
            if cumulative and holder != txn:
                return min(ack.position, upto.position)
            if not cumulative and (ack.position < upto.position or _overlap_at(upto, ack)):
                return ack.position
        if not cumulative:
            holders = self._entries.get(ack.position, {})
            return ack.position if any(overlap(theirs, ack) for theirs in holders.values()) else None
        for position, holders in self._entries.items():
            if position > ack.position:
                break
            for other, theirs in holders.items():
                if other != txn and (position < ack.position or overlap(theirs, ack)):
                    return position
        return None


def _overlap_at(upto: EntryAck, ack: EntryAck) -> bool:
    return ack.position == upto.position and overlap(upto, ack)


def overlap(one: EntryAck, other: EntryAck) -> bool:
    """Whether two acknowledgements of the same entry share a message."""
    if not one.remaining or not other.remaining:
        return True
    # A message that neither leaves over is acknowledged by both; bits above the batch stand for no message.
    size = max(one.batch_size, other.batch_size)
    left = bits_within(one.remaining | other.remaining, size)
    return left.bit_count() < (size or left.bit_length())


def _both(one: EntryAck, other: EntryAck) -> EntryAck:
    return EntryAck(one.position, one.remaining & other.remaining, max(one.batch_size, other.batch_size))


def _further(one: EntryAck, other: EntryAck) -> EntryAck:
    """The cumulative acknowledgement that says what two say."""
    if one.position == other.position:
        return _both(one, other)
    return max(one, other, key=lambda ack: ack.position)
