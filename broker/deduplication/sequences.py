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

A producer is forgotten once it has sent nothing for IDLE_MS (K26). Time is the broker's timestamp of the topic's newest
entry. So it survives restarts, it is the same for every owner, and it stands still if the topic gets nothing. It never
goes back. If a clock steps forward between two owners, producers are forgotten early by that step at most. A connected
producer and one with sends in an open transaction are not forgotten.

The memory has these bounds:

    at most PRODUCERS_MAX producers. A further one takes the place of the one that is idle longest, or is refused
    at most OPEN_MAX pairs of a producer and an open transaction, OPEN_OF_PRODUCER_MAX of one producer and
    PRODUCERS_OF_TXN_MAX of one transaction. Further sends are refused
    at most RANGES_MAX ranges of one producer with one outcome. Gaps between ranges are bounded too, for all producers
    together, for those in one record of a snapshot, and for open transactions. Beyond that, the two lowest ranges of a
    producer's stored ids are merged, as if the ids between them were stored. Of its ids in an open transaction, the
    lowest range is forgotten
    the positions of the last POSITIONS_MAX sends
"""

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from broker.deduplication.producer import Producer, Sends
from broker.deduplication.shards import GAPS_PER_WEIGHT, OPEN_PER_WEIGHT, Shards, digest_of, shards_for
from broker.entry_codecs import SendId
from broker.names import text_problem
from storage.entry import TxnId
from storage.position import EARLIEST, Position

PRODUCERS_MAX: Final = 10_000
"""Most producers that are remembered for a topic."""

IDLE_MS: Final = 6 * 60 * 60 * 1000
"""A producer that has sent nothing for so long is forgotten. As long as Pulsar's brokers wait."""

CLOSED_SECONDS: Final = 300
"""A producer that its client closed for good is forgotten after so long. If the client timed out while it opened the
producer again, it closes it too, and then returns after a pause."""

OPEN_MAX: Final = 20_000
"""Most pairs of a producer and an open transaction that are remembered for a topic."""

OPEN_OF_PRODUCER_MAX: Final = 1_000
"""Most open transactions in which one producer has sends, so that they fit in one metadata record."""

PRODUCERS_OF_TXN_MAX: Final = 1_000
"""Most producers with sends in one open transaction, so that its decision is one short step (E7)."""

RANGES_MAX: Final = 500
"""Most ranges of a producer's stored ids, and of its ids in each open transaction."""

GAPS_TOTAL_MAX: Final = 60_000
"""Most gaps between the ranges of a topic's producers, which bounds memory."""

GAPS_OF_RECORD_MAX: Final = 6_000
"""Most gaps of the producers in one record of a snapshot, so that it fits in one metadata record."""

GAPS_OPEN_MAX: Final = 6_000
"""Most gaps in open transactions, so that a decision is one short step (E7)."""

AT_ONCE: Final = 1_000
"""Producers that are forgotten or put in order in one step of the event loop."""

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


class Sequences:
    """See the module's docstring."""

    def __init__(self, creation: str = "") -> None:
        """Set up for the topic with this creation id."""
        self._creation = creation
        self._producers: OrderedDict[str, Producer] = OrderedDict()
        """By name. The one that sent least recently comes first."""
        self._shards = Shards()
        self._open: dict[TxnId, dict[str, None]] = {}
        """The producers of each open transaction."""
        self._open_pairs = 0
        self._gaps = 0
        self._gaps_open = 0
        self._time_ms = 0
        """The timestamp of the newest entry."""
        self._noted: deque[tuple[str, TxnId | None, SendId]] = deque()
        """The sends whose positions are remembered, oldest first."""

    def __len__(self) -> int:
        """Return the number of producers that have a place."""
        return len(self._producers)

    @property
    def open_transactions(self) -> Sequence[TxnId]:
        """Return the open transactions."""
        return tuple(self._open)

    def place_of(self, txn: TxnId) -> Position:
        """Return the position of one entry of an open transaction."""
        return max(self._producers[name].open[txn].newest for name in self._open[txn])

    # Sends

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

    def takes(self, name: str, txn: TxnId | None) -> bool:
        """Return whether there is room for a new send of this producer. Ask it before each append."""
        producer = self._producers.get(name)
        if txn is None or (producer is not None and txn in producer.open):
            return True
        if producer is not None and len(producer.open) >= OPEN_OF_PRODUCER_MAX:
            return False
        return self._open_pairs < OPEN_MAX and len(self._open.get(txn, ())) < PRODUCERS_OF_TXN_MAX

    def note(self, name: str, send: SendId, position: Position, txn: TxnId | None, time_ms: int = 0) -> None:
        """Note that the send was appended at `position`, which rises with each call. `txn` is open until `decide`.

        `time_ms` is the entry's timestamp, which never goes back.
        """
        producer = self._producers.get(name)
        if producer is None:
            if not _is_remembered(name):
                return
            # The log may hold more producers than there are places. Beyond the bound, those of its tail stay.
            self._make_room()
            producer = self._add(name, Producer(self.digest(name)))
        self._producers.move_to_end(name)
        self._time_ms = max(self._time_ms, time_ms)
        producer.active_ms = self._time_ms
        producer.newest = position
        producer.highest = max(producer.highest, send.first, send.last)
        sends = producer.stored if txn is None else self._begin(name, producer, txn)
        gaps = sends.gaps
        sends.add(send, position)
        self._shards.change(producer)
        if sends.gaps != gaps:
            self._count_gaps(producer, sends, sends.gaps - gaps)
            self._bound(producer, sends)
        self._noted.append((name, txn, send))
        if len(self._noted) > POSITIONS_MAX:
            self._forget_position(*self._noted.popleft())

    def decide(self, txn: TxnId, *, is_committed: bool) -> None:
        """End the transaction: its sends are stored, or they count as never sent."""
        for name in self._open.pop(txn, ()):
            producer = self._producers[name]
            sends = producer.open[txn]
            self._count_gaps(producer, sends, -sends.gaps)
            del producer.open[txn]
            self._open_pairs -= 1
            self._shards.change(producer)
            if not is_committed:
                continue
            # An incomplete message does not count as stored, because no reader can get it.
            stored = producer.stored
            gaps = stored.gaps
            for first, last in sends.ids:
                stored.ids.add(first, last)
            stored.positions |= sends.positions
            self._count_gaps(producer, stored, stored.gaps - gaps)
            self._bound(producer, stored)

    def knows(self, name: str) -> bool:
        """Return whether sends of the producer are remembered."""
        producer = self._producers.get(name)
        return producer is not None and producer.newest > EARLIEST

    def last_id(self, name: str) -> int:
        """Return the highest sequence id of a complete message of the producer; -1 if none is remembered.

        Ids in open transactions count. A producer that continues its numbering from here must not reuse them, because
        its next messages in the same transaction would count as repeats.
        """
        producer = self._producers.get(name)
        if producer is None:
            return -1
        return max(sends.ids.last for sends in (producer.stored, *producer.open.values()))

    # Producers

    def connect(self, name: str) -> bool:
        """Give a connected producer its place, which it keeps until `disconnect`. False if there is none."""
        producer = self._producers.get(name)
        if producer is None:
            if not _is_remembered(name):
                return True
            if not self._make_room():
                return False
            producer = self._add(name, Producer(self.digest(name)))
        producer.is_connected, producer.closed_at = True, None
        return True

    def disconnect(self, name: str, closed_at: float | None = None) -> None:
        """Undo `connect`. `closed_at` is the moment if the client closed it for good, on a clock that never steps."""
        producer = self._producers.get(name)
        if producer is None:
            return
        producer.is_connected, producer.closed_at = False, closed_at
        if producer.newest == EARLIEST:
            self._forget(name)

    def forget_idle(self, now: float) -> bool:
        """Forget producers that are due, at the moment `now` of the clock that never steps.

        Returns whether there are more. Call it again then.
        """
        due: list[str] = []
        for name, producer in self._producers.items():
            idle_ms = self._time_ms - producer.active_ms
            if producer.is_connected:
                if idle_ms >= IDLE_MS // 2 and producer.newest > EARLIEST:
                    # So that it is still known when it connects to the next owner.
                    producer.active_ms = self._time_ms
                    self._shards.change(producer)
            elif producer.open:
                continue
            elif idle_ms >= IDLE_MS or (producer.closed_at is not None and now - producer.closed_at >= CLOSED_SECONDS):
                due.append(name)
        for name in due[:AT_ONCE]:
            self._forget(name)
        return len(due) > AT_ONCE

    # Snapshots

    @property
    def shard_count(self) -> int:
        """How many records a snapshot has for producers."""
        return len(self._shards)

    def fit_shards(self) -> int:
        """Divide the producers among as many shards as they need now, and return how many."""
        weight = len(self._producers) + self._open_pairs // OPEN_PER_WEIGHT + self._gaps // GAPS_PER_WEIGHT
        count = shards_for(weight, len(self._shards))
        if count != len(self._shards):
            self._shards.divide(count)
        return count

    def changed_shards(self) -> list[int]:
        """Return the numbers of the shards that differ from their records, in the order to write them."""
        return self._shards.changed()

    def shard_to_json(self, number: int) -> dict[str, Any]:
        """Return everything of a shard's producers except the positions of sends. The shard counts as written."""
        found = self._shards.take(number)
        return {name: producer.to_json() for name, producer in found if producer.newest > EARLIEST}

    def not_written(self, number: int) -> None:
        """Undo that a shard counts as written."""
        self._shards.not_written(number)

    def digest(self, name: str) -> int:
        """Return the hash by which producers are divided among shards."""
        producer = self._producers.get(name)
        return digest_of(name, self._creation) if producer is None else producer.digest

    def restore(self, producers: Mapping[str, Producer]) -> None:
        """Add producers of a snapshot, which are not known yet. Call `restored` after the last of them."""
        for name, producer in producers.items():
            self._add(name, producer)
            for txn in producer.open:
                self._open.setdefault(txn, {})[name] = None
            self._open_pairs += len(producer.open)
            self._gaps += producer.gaps
            self._gaps_open += producer.gaps - producer.stored.gaps
            self._time_ms = max(self._time_ms, producer.active_ms)

    def restored(self, count: int, *, is_written: bool) -> Iterator[None]:
        """Note that the snapshot was restored, in steps. It has `count` shards.

        `is_written` says whether its records show all producers, each in its shard.
        """
        self._shards.divide(count, is_written=is_written)
        order = sorted(self._producers, key=lambda name: self._producers[name].newest)
        for start in range(0, len(order), AT_ONCE):
            yield
            for name in order[start : start + AT_ONCE]:
                self._producers.move_to_end(name)

    def _add(self, name: str, producer: Producer) -> Producer:
        self._producers[name] = producer
        self._shards.add(name, producer)
        return producer

    def _make_room(self) -> bool:
        """Make room for one more producer. Return whether there is any."""
        if len(self._producers) < PRODUCERS_MAX:
            return True
        idle = (name for name, producer in self._producers.items() if not producer.is_connected and not producer.open)
        longest = next(idle, None)
        if longest is None:
            return False
        self._forget(longest)
        return True

    def _begin(self, name: str, producer: Producer, txn: TxnId) -> Sends:
        """Return the producer's sends in an open transaction, so that the caller can add to them."""
        sends = producer.open.get(txn)
        if sends is None:
            sends = producer.open[txn] = Sends()
            self._open.setdefault(txn, {})[name] = None
            self._open_pairs += 1
        return sends

    def _count_gaps(self, producer: Producer, sends: Sends, more: int) -> None:
        self._gaps += more
        self._shards.count_gaps(producer, more)
        if sends is not producer.stored:
            self._gaps_open += more

    def _bound(self, producer: Producer, sends: Sends) -> None:
        """Enforce the bounds on ranges, after ranges were added to these sends."""
        ids, is_stored = sends.ids, sends is producer.stored
        while len(ids) > 1 and (
            len(ids) > RANGES_MAX
            or self._gaps > GAPS_TOTAL_MAX
            or self._shards.gaps_beside(producer) > GAPS_OF_RECORD_MAX
            or (not is_stored and self._gaps_open > GAPS_OPEN_MAX)
        ):
            if is_stored:
                ids.join_lowest()
            else:
                ids.drop_lowest()
            self._count_gaps(producer, sends, -1)

    def _forget_position(self, name: str, txn: TxnId | None, send: SendId) -> None:
        producer = self._producers.get(name)
        if producer is not None:
            sends = producer.stored if txn is None else producer.open.get(txn, producer.stored)
            sends.positions.pop((send.last, send.chunk), None)

    def _forget(self, name: str) -> None:
        """Forget a producer without sends in open transactions."""
        producer = self._producers.pop(name)
        assert not producer.open, "its transactions are not decided"
        self._gaps -= producer.gaps
        self._shards.remove(name, producer)


def _is_remembered(name: str) -> bool:
    # The log holds any name that clients wrote. An unprintable character takes six bytes in a snapshot.
    return len(name) <= NAME_BYTES_MAX >= len(name.encode()) and text_problem(name) is None
