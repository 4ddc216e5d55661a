"""Which sends of which producers a topic holds, by the outcomes of their transactions, in bounded memory. Pure.

A send is identified by its producer's name, its sequence ids and its transaction. Whether the topic holds it depends on
the transaction's outcome:

    an earlier send of the same ids            the send is
    in the same transaction, or both in none   a repeat: it gets the receipt of the first
    in none, or in a committed transaction     already stored: likewise
    in another transaction, which is open      in doubt: it is refused until that transaction has ended
    in an aborted transaction                  new: what an aborted transaction wrote does not count as stored

A producer's ids name its messages, whichever transaction they are in. A program that does not know whether its first
transaction was committed resends the messages in a second one. They must be in the topic once. While the first
transaction is open, both possible answers are wrong. If the send is stored and both transactions commit, it is a
duplicate. If it gets a receipt and the first transaction aborts, it is lost.

Ids are kept as ranges, not only as the highest one. A refused send or an aborted transaction leaves a gap, and later
sends were accepted before the producer knew of it. When the ids in the gap are resent, they are new.

The memory has these bounds:

    at most PRODUCERS_MAX producers; the one that sent least recently is forgotten first
    at most OPEN_MAX pairs of a producer and an open transaction; the oldest transaction is forgotten first
    at most RANGES_MAX ranges of one producer with one outcome, and about RANGES_TOTAL_MAX altogether. Beyond that, the
    two lowest ranges of a producer's stored ids are merged, as if the ids between them were stored; of its ids in an
    open transaction, the lowest range is forgotten
    the positions of the last POSITIONS_MAX sends
"""

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from broker.deduplication.id_ranges import IdRanges
from broker.entry_codecs import SendId
from broker.names import text_problem
from storage.entry import TxnId
from storage.position import EARLIEST, Position

PRODUCERS_MAX: Final = 500
"""Most producers that are remembered for a topic."""

OPEN_MAX: Final = 1_000
"""Most pairs of a producer and an open transaction that are remembered for a topic."""

RANGES_MAX: Final = 500
"""Most ranges of a producer's stored ids, and of its ids in each open transaction."""

RANGES_TOTAL_MAX: Final = 6_000
"""Most ranges of a topic, so that its snapshot fits in one metadata record. A producer keeps at least one range."""

POSITIONS_MAX: Final = 4_096
"""Most sends of a topic whose positions are remembered, for repeated receipts."""

NAME_BYTES_MAX: Final = 256
"""A producer with a longer name in UTF-8, or one that cannot be printed, is not remembered, because clients choose
names and the memory keeps them."""


class Stored(NamedTuple):
    """A send that the topic already holds."""

    position: Position
    """Its position; EARLIEST if that is not remembered."""
    durable_at: Position
    """The send is durable once this position is."""


class InDoubt(NamedTuple):
    """A send that another, open transaction holds."""

    txn: TxnId


@dataclass(slots=True)
class _Sends:
    """The sends of one producer that share one outcome."""

    ids: IdRanges = field(default_factory=IdRanges)
    partial: tuple[int, int] | None = None
    """The sequence id and the last stored chunk of an incomplete message."""
    newest: Position = EARLIEST
    """The position of the last entry."""
    positions: dict[tuple[int, int], Position] = field(default_factory=dict)
    """The remembered positions, by last id and chunk."""

    def has(self, send: SendId) -> bool:
        if self.ids.has_all(send.first, send.last):
            return True
        return self.partial is not None and self.partial[0] == send.last and send.chunk <= self.partial[1]

    def meets(self, send: SendId) -> bool:
        """Return whether it has any message or chunk of the send."""
        is_begun = self.partial is not None and self.partial[0] == send.last
        return is_begun or self.ids.has_any(send.first, send.last)

    def add(self, send: SendId, position: Position) -> None:
        self.newest = position
        self.positions[send.last, send.chunk] = position
        if send.chunk + 1 < send.chunks:
            self.partial = (send.last, send.chunk)
            return
        self.partial = None
        self.ids.add(send.first, max(send.first, send.last))


@dataclass(slots=True)
class _Producer:
    stored: _Sends = field(default_factory=_Sends)
    """Sends without a transaction, or in a committed one."""
    open: dict[TxnId, _Sends] = field(default_factory=dict)
    """Sends in open transactions."""
    newest: Position = EARLIEST
    """The position of its last entry, whatever its outcome."""
    highest: int = -1
    """The highest id that was ever sent."""

    @property
    def ranges(self) -> int:
        return len(self.stored.ids) + sum(len(sends.ids) for sends in self.open.values())


class Sequences:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._producers: OrderedDict[str, _Producer] = OrderedDict()
        self._open: OrderedDict[TxnId, dict[str, None]] = OrderedDict()
        """The producers of each open transaction; transactions in the order in which they were first seen."""
        self._open_pairs = 0
        self._ranges = 0
        self._noted: deque[tuple[str, TxnId | None, SendId]] = deque()
        """The sends whose positions are remembered, oldest first."""

    @property
    def open_transactions(self) -> Mapping[TxnId, Position]:
        """Return the open transactions, each with the position of one of its entries."""
        return {txn: max(self._producers[name].open[txn].newest for name in names) for txn, names in self._open.items()}

    def find(self, name: str, send: SendId, txn: TxnId | None) -> Stored | InDoubt | None:
        """Return what the topic holds of a send in `txn`, or without a transaction; None if the send is new."""
        producer = self._producers.get(name)
        if producer is None or send.first > producer.highest:
            return None
        own = producer.stored if txn is None else producer.open.get(txn)
        if own is None or not own.has(send):
            own = producer.stored if producer.stored.ids.has_all(send.first, send.last) else None
        if own is not None:
            position = own.positions.get((send.last, send.chunk), EARLIEST)
            return Stored(position, producer.newest if position == EARLIEST else position)
        for other, sends in producer.open.items():
            if other != txn and sends.meets(send):
                return InDoubt(other)
        return None

    def note(self, name: str, send: SendId, position: Position, txn: TxnId | None) -> None:
        """Note that the send was appended at `position`, which rises with each call. `txn` is open until `decide`."""
        producer = self._producers.get(name)
        if producer is None:
            if not _is_remembered(name):
                return
            producer = self._producers[name] = _Producer()
        self._producers.move_to_end(name)
        producer.newest = position
        producer.highest = max(producer.highest, send.first, send.last)
        sends = producer.stored if txn is None else self._begin(name, producer, txn)
        self._ranges -= len(sends.ids)
        sends.add(send, position)
        self._ranges += len(sends.ids)
        self._bound(producer, sends)
        self._noted.append((name, txn, send))
        if len(self._noted) > POSITIONS_MAX:
            self._forget_position(*self._noted.popleft())
        if len(self._producers) > PRODUCERS_MAX:
            self._forget(next(iter(self._producers)))
        while self._open_pairs > OPEN_MAX and len(self._open) > 1:
            self.decide(next(iter(self._open)), is_committed=False)

    def decide(self, txn: TxnId, *, is_committed: bool) -> None:
        """End the transaction: its sends are stored, or they count as never sent."""
        for name in self._open.pop(txn, ()):
            producer = self._producers[name]
            sends = producer.open.pop(txn)
            self._open_pairs -= 1
            self._ranges -= len(sends.ids)
            if not is_committed:
                continue
            # An incomplete message does not count as stored, because no reader can get it.
            self._ranges -= len(producer.stored.ids)
            for first, last in sends.ids:
                producer.stored.ids.add(first, last)
            producer.stored.positions |= sends.positions
            self._ranges += len(producer.stored.ids)
            self._bound(producer, producer.stored)

    def knows(self, name: str) -> bool:
        """Return whether the producer is remembered."""
        return name in self._producers

    def last_id(self, name: str) -> int:
        """Return the highest sequence id of a complete message of the producer; -1 if none is remembered.

        Ids in open transactions count. A producer that continues its numbering from here must not reuse them, because
        its next messages in the same transaction would count as repeats.
        """
        producer = self._producers.get(name)
        if producer is None:
            return -1
        return max(sends.ids.last for sends in (producer.stored, *producer.open.values()))

    def to_json(self) -> dict[str, Any]:
        """Return everything except the positions of sends."""
        return {
            name: {
                "ranges": list(producer.stored.ids),
                "partial": producer.stored.partial,
                "newest": list(producer.newest),
                "highest": producer.highest,
                "open": [
                    {
                        "txn": list(txn),
                        "ranges": list(sends.ids),
                        "partial": sends.partial,
                        "newest": list(sends.newest),
                    }
                    for txn, sends in producer.open.items()
                ],
            }
            for name, producer in self._producers.items()
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Sequences":
        """Undo `to_json`."""
        made = cls()
        for name, kept in content.items():
            stored = _sends(kept, EARLIEST)
            producer = _Producer(stored, {}, Position(*kept["newest"]), kept["highest"])
            made._producers[name] = producer
            for fields in kept["open"]:
                txn = TxnId(*fields["txn"])
                made._begin(name, producer, txn)
                producer.open[txn] = _sends(fields, Position(*fields["newest"]))
            made._ranges += producer.ranges
        return made

    def _begin(self, name: str, producer: _Producer, txn: TxnId) -> _Sends:
        """Return the producer's sends in an open transaction, so that the caller can add to them."""
        sends = producer.open.get(txn)
        if sends is None:
            sends = producer.open[txn] = _Sends()
            self._open.setdefault(txn, {})[name] = None
            self._open_pairs += 1
        return sends

    def _bound(self, producer: _Producer, sends: _Sends) -> None:
        """Enforce the bounds on ranges, after ranges were added to these sends."""
        ids = sends.ids
        while len(ids) > 1 and (len(ids) > RANGES_MAX or self._ranges > RANGES_TOTAL_MAX):
            if sends is producer.stored:
                ids.join_lowest()
            else:
                ids.drop_lowest()
            self._ranges -= 1

    def _forget_position(self, name: str, txn: TxnId | None, send: SendId) -> None:
        producer = self._producers.get(name)
        if producer is not None:
            sends = producer.stored if txn is None else producer.open.get(txn, producer.stored)
            sends.positions.pop((send.last, send.chunk), None)

    def _forget(self, name: str) -> None:
        producer = self._producers.pop(name)
        self._ranges -= producer.ranges
        self._open_pairs -= len(producer.open)
        for txn in producer.open:
            names = self._open[txn]
            del names[name]
            if not names:
                del self._open[txn]


def _is_remembered(name: str) -> bool:
    # The log holds any name that clients wrote. An unprintable character takes six bytes in a snapshot.
    return len(name) <= NAME_BYTES_MAX >= len(name.encode()) and text_problem(name) is None


def _sends(fields: Mapping[str, Any], newest: Position) -> _Sends:
    partial = fields["partial"]
    ids = IdRanges((first, last) for first, last in fields["ranges"])
    return _Sends(ids, None if partial is None else (partial[0], partial[1]), newest)
