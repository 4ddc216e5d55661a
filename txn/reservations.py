"""The reservations of open transactions on one subscription: who reserved which messages, and what conflicts.

An acknowledgement in a transaction changes nothing yet, but its messages belong to that transaction until it ends. No
other transaction may acknowledge them, and no consumer gets them (T22, T24). Single entries are kept by position, with
the bits of the batch's remaining messages. At most one transaction holds a cumulative acknowledgement, because two
would overlap.

    asked, of messages that are reserved    by the same transaction    by another one
    a single acknowledgement                conflict                   conflict
    a cumulative acknowledgement            none                       conflict

A single acknowledgement means that its consumer has done the work. A second one means that the work was done twice,
perhaps for two copies of the message, and possibly within one transaction. A cumulative acknowledgement says how far
its consumer has come. It covers what the same transaction acknowledged below, and may be repeated.

Pure.
"""

from collections.abc import Sequence
from functools import reduce

from storage.entry import TxnId
from storage.position import Position
from storage.ranges import EntryAck, bits_within


class _Held:
    """The positions at which one transaction has reserved messages of single entries."""

    __slots__ = ("_lowest", "positions")

    def __init__(self) -> None:
        self.positions: set[Position] = set()
        self._lowest: Position | None = None

    def add(self, position: Position) -> None:
        self.positions.add(position)
        if self._lowest is not None and position < self._lowest:
            self._lowest = position

    def discard(self, position: Position) -> None:
        self.positions.discard(position)
        if position == self._lowest:
            self._lowest = None

    @property
    def lowest(self) -> Position:
        """The lowest of them. Only cumulative acknowledgements need it, so it is computed on demand."""
        if self._lowest is None:
            self._lowest = min(self.positions)
        return self._lowest


class Reservations:
    """The reservations of one subscription."""

    def __init__(self) -> None:
        self._entries: dict[Position, dict[TxnId, tuple[EntryAck, ...]]] = {}
        """Who reserved messages of single entries, and by which acknowledgements."""
        self._held: dict[TxnId, _Held] = {}
        """The positions of each transaction in `_entries`."""
        self._cumulative: tuple[TxnId, EntryAck] | None = None
        """Everything at or below it is reserved, except the remaining messages of the entry itself."""

    @property
    def entries(self) -> int:
        """How many entries are reserved one by one. The memory is proportional to it."""
        return len(self._entries)

    def unreserved(self, position: Position) -> int | None:
        """Bit i is 1 if message i of the entry is not reserved, so 0 if all are; None if no message of it is."""
        left: int | None = None
        if self._cumulative is not None:
            _, upto = self._cumulative
            if position < upto.position:
                return 0
            if position == upto.position:
                left = upto.remaining
        for acks in self._entries.get(position, {}).values():
            for ack in acks:
                left = ack.remaining if left is None else left & ack.remaining
        return left

    def conflict(self, txn: TxnId, acks: Sequence[EntryAck], *, cumulative: bool) -> Position | None:
        """The first entry with messages that are reserved, or named twice here, and may not be acknowledged again."""
        if cumulative:
            return next((met for ack in acks if (met := self._met_by_cumulative(txn, ack)) is not None), None)
        upto = None if self._cumulative is None else self._cumulative[1]
        named: dict[Position, EntryAck] = {}
        for ack in acks:
            if upto is not None and (ack.position < upto.position or _overlap_at(upto, ack)):
                return ack.position
            holders = self._entries.get(ack.position)
            if holders is not None and any(overlap(_joined(theirs), ack) for theirs in holders.values()):
                return ack.position
            before = named.get(ack.position)
            if before is not None and overlap(before, ack):
                return ack.position
            named[ack.position] = ack if before is None else _both(before, ack)
        return None

    def reserve(self, txn: TxnId, acks: Sequence[EntryAck], *, cumulative: bool) -> None:
        """Reserve more messages for `txn`. No other transaction has any of them."""
        if cumulative:
            for ack in acks:
                assert self._cumulative is None or self._cumulative[0] == txn, "two cumulative ones meet"
                self._cumulative = (txn, ack if self._cumulative is None else _further(self._cumulative[1], ack))
            return
        if not acks:
            return
        held = self._held.get(txn)
        if held is None:
            held = self._held[txn] = _Held()
        for ack in acks:
            holders = self._entries.get(ack.position)
            if holders is None:
                self._entries[ack.position] = {txn: (ack,)}
            else:
                holders[txn] = (*holders.get(txn, ()), ack)
            held.add(ack.position)

    def unreserve(self, txn: TxnId, acks: Sequence[EntryAck]) -> None:
        """Undo `reserve` for these single acknowledgements. Those that are not reserved are skipped."""
        held = self._held.get(txn)
        if held is None:
            return
        for ack in acks:
            holders = self._entries.get(ack.position, {})
            rest = list(holders.get(txn, ()))
            if ack not in rest:
                continue
            rest.remove(ack)
            if rest:
                holders[txn] = tuple(rest)
                continue
            held.discard(ack.position)
            del holders[txn]
            if not holders:
                del self._entries[ack.position]
        if not held.positions:
            del self._held[txn]

    def unreserve_cumulative(self, txn: TxnId) -> None:
        """Undo `reserve` for the transaction's cumulative acknowledgements."""
        if self._cumulative is not None and self._cumulative[0] == txn:
            self._cumulative = None

    def release(self, txn: TxnId) -> None:
        """Release all reservations of `txn`."""
        held = self._held.pop(txn, None)
        for position in () if held is None else held.positions:
            holders = self._entries[position]
            del holders[txn]
            if not holders:
                del self._entries[position]
        self.unreserve_cumulative(txn)

    def clear(self) -> None:
        """Release all reservations."""
        self._entries, self._held, self._cumulative = {}, {}, None

    def _met_by_cumulative(self, txn: TxnId, ack: EntryAck) -> Position | None:
        if self._cumulative is not None and self._cumulative[0] != txn:
            return min(ack.position, self._cumulative[1].position)
        first = min((held.lowest for other, held in self._held.items() if other != txn), default=None)
        if first is None or first > ack.position:
            return None
        if first < ack.position:
            return first
        theirs = (acks for other, acks in self._entries[first].items() if other != txn)
        return first if any(overlap(_joined(acks), ack) for acks in theirs) else None


def _joined(acks: Sequence[EntryAck]) -> EntryAck:
    """The combined acknowledgement of an entry by one transaction."""
    return acks[0] if len(acks) == 1 else reduce(_both, acks)


def _overlap_at(upto: EntryAck, ack: EntryAck) -> bool:
    return ack.position == upto.position and overlap(upto, ack)


def furthest(acks: Sequence[EntryAck]) -> list[EntryAck]:
    """One cumulative acknowledgement with the effect of all of them; empty for none."""
    return [reduce(_further, acks)] if acks else []


def overlap(one: EntryAck, other: EntryAck) -> bool:
    """Whether two acknowledgements of the same entry share a message."""
    if not one.remaining or not other.remaining:
        return True
    # Both acknowledge a message that neither leaves over. Bits above the batch stand for no message.
    size = max(one.batch_size, other.batch_size)
    left = bits_within(one.remaining | other.remaining, size)
    return left.bit_count() < (size or left.bit_length())


def _both(one: EntryAck, other: EntryAck) -> EntryAck:
    return EntryAck(one.position, one.remaining & other.remaining, max(one.batch_size, other.batch_size))


def _further(one: EntryAck, other: EntryAck) -> EntryAck:
    """The cumulative acknowledgement with the effect of both."""
    if one.position == other.position:
        return _both(one, other)
    return max(one, other, key=lambda ack: ack.position)
