"""What a log knows of its idempotent and transactional producers: their epochs and sequences (K23-K28).

A producer numbers its records from 0 on, per partition and epoch. The log takes a batch only if it continues that
numbering. A batch that it has already is a duplicate, whose client gets the first answer again. It knows the last
`BATCHES_KEPT` batches of each producer, because a client has at most five requests in flight.

    the batch's epoch       its first sequence             it is
    below the known one     -                              fenced
    the known one           that of a kept batch           a duplicate, if its last one is too
    the known one           behind the last one            the next
    the known one           any other                      out of order
    above the known one     0                              the next
    above the known one     any other                      out of order
    of an unknown producer  any                            the next, because its state may have expired;
                                                           refused if PRODUCERS_MAX are known

A new epoch begins after the transaction of the one before has its marker. A marker may begin an epoch, too; its first
batch then has the sequence 0.

Sequences begin again at 0 behind SEQUENCE_MAX. What is kept expires by idle time, never by number. It never expires
while a transaction of the producer is open (K26).

`check` decides, and `note` takes what was appended. Nothing may happen in between (K23). The callers know which
producers have an open transaction (`stable_offset.py`).

Pure.
"""

from collections.abc import Container, Iterable, Iterator
from typing import Any, Final, NamedTuple

from txn.errors import TxnError
from txn.producer_rows import NOWHERE, Head, Kept, ProducerRows
from txn.stable_offset import Place

PRODUCERS_MAX: Final = 100_000
"""Producers of one log. Further ones are refused until one has expired (K26)."""
SEQUENCE_MAX: Final = 2**31 - 1
NO_COORDINATOR: Final = -1


class OutOfOrderSequence(TxnError):
    """A batch does not continue the producer's numbering. Batches before it are missing (K24)."""


class TooManyProducers(TxnError):
    """A log knows as many producers as it may. Nothing was appended; a later try may succeed."""

    retriable = True


class ProducerEpochStale(TxnError):
    """A batch or marker comes from an earlier epoch of its producer, which was replaced."""


class CoordinatorStale(TxnError):
    """A marker comes from a coordinator that was replaced (D15)."""


class OutsideOfTransaction(TxnError):
    """A batch outside of transactions comes from a producer with an open transaction."""


class EarlierTransactionOpen(TxnError):
    """A batch of a new epoch comes before the marker of the transaction that an earlier epoch left. Try again."""

    retriable = True


class Batch(NamedTuple):
    """What a log must know of a batch to take it."""

    producer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int
    is_transactional: bool


class EndMarker(NamedTuple):
    """What a log must know of the marker that ends a transaction."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    bumps_epoch: bool
    """Whether its epoch is above that of the transaction (transaction.version 2, KIP-890). Such a marker says whether
    it comes again (K27)."""


class Duplicate(NamedTuple):
    """The log has the batch already, from this offset on."""

    base_offset: int
    timestamp_ms: int


class ProducerState(NamedTuple):
    """What is known of one producer."""

    epoch: int
    batches: tuple[Kept, ...]
    """The last batches of this epoch, oldest first."""
    coordinator_epoch: int
    """That of its last marker."""
    last_ms: int
    """When it was last heard of."""


class ProducerStates:
    """The producers of one log, by id."""

    def __init__(self, rows: ProducerRows | None = None) -> None:
        """Take what an earlier owner knew, if there was one."""
        self.rows: Final = ProducerRows() if rows is None else rows
        """What a snapshot has to have."""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[int, ProducerState]]:
        """Yield each producer's id, and what is known of it. Those that are forgotten meanwhile are left out."""
        for producer_id in tuple(self.rows):
            state = self.get(producer_id)
            if state is not None:
                yield producer_id, state

    def get(self, producer_id: int) -> ProducerState | None:
        """What is known of a producer."""
        head = self.rows.head(producer_id)
        if head is None:
            return None
        return ProducerState(head.epoch, tuple(self.rows.batches(head)), head.coordinator_epoch, head.last_ms)

    def check(self, batch: Batch, *, has_open: bool) -> Duplicate | None:
        """Decide on a batch of a producer that has an open transaction here or not. None: it may be appended now.

        Raises:
            ProducerEpochStale, OutOfOrderSequence, OutsideOfTransaction, EarlierTransactionOpen: it may not.
        """
        state = self.rows.head(batch.producer_id)
        if state is None:
            if len(self.rows) >= PRODUCERS_MAX:
                raise TooManyProducers(
                    f"{len(self.rows)} numbered producers have written here. One is forgotten when it has been idle "
                    "for a day. Use fewer producers, or turn their idempotence off"
                )
            return None
        if batch.epoch < state.epoch:
            raise ProducerEpochStale(
                f"Producer {batch.producer_id} has the epoch {state.epoch}, so a batch of its epoch {batch.epoch} is "
                "refused"
            )
        is_new_epoch = batch.epoch > state.epoch
        expected = 0 if is_new_epoch else self._next_sequence(state)
        if batch.first_sequence != expected:
            # The kept batches never go round all sequences, so the next batch is none of them.
            for kept in () if is_new_epoch else self.rows.batches(state):
                if (kept.first_sequence, kept.last_sequence) == (batch.first_sequence, batch.last_sequence):
                    return Duplicate(kept.base_offset, kept.timestamp_ms)
            raise OutOfOrderSequence(
                f"Producer {batch.producer_id} sent the sequence {batch.first_sequence} in its epoch {batch.epoch}, "
                f"but {expected} is next"
            )
        if has_open and is_new_epoch:
            raise EarlierTransactionOpen(
                f"Producer {batch.producer_id} has a transaction of its epoch {state.epoch} that has not ended here yet"
            )
        if has_open and not batch.is_transactional:
            raise OutsideOfTransaction(
                f"Producer {batch.producer_id} has an open transaction, so a batch outside of it is refused"
            )
        return None

    def note(self, batch: Batch, base_offset: int, timestamp_ms: int) -> None:
        """Take a batch that was appended."""
        head = self._heard(batch.producer_id, batch.epoch, timestamp_ms)
        self.rows.keep(head, Kept(batch.first_sequence, batch.last_sequence, base_offset, timestamp_ms))

    def begin(self, producer_id: int, first: Place) -> None:
        """Note where a transaction of a known producer began. Its marker ends it."""
        self.rows.open(producer_id, first.offset, *first.position)

    def check_marker(self, marker: EndMarker, *, has_open: bool) -> None:
        """Decide on the marker that ends a transaction of a producer, which is open here or not.

        Raises:
            ProducerEpochStale, CoordinatorStale: it may not be appended.
        """
        state = self.rows.head(marker.producer_id)
        if state is None:
            return
        is_repeat = marker.bumps_epoch and not has_open and marker.epoch == state.epoch
        if marker.epoch < state.epoch or is_repeat:
            raise ProducerEpochStale(
                f"Producer {marker.producer_id} has the epoch {state.epoch}, so a marker of its epoch {marker.epoch} "
                "is refused"
            )
        if marker.coordinator_epoch < state.coordinator_epoch:
            raise CoordinatorStale(
                f"A coordinator of epoch {state.coordinator_epoch} has ended a transaction of producer "
                f"{marker.producer_id}, so a marker of epoch {marker.coordinator_epoch} is refused"
            )

    def note_marker(self, marker: EndMarker, timestamp_ms: int) -> None:
        """Take a marker that was appended."""
        head = self._heard(marker.producer_id, marker.epoch, timestamp_ms)
        self.rows.put(head._replace(coordinator_epoch=marker.coordinator_epoch))
        self.rows.open(marker.producer_id, *NOWHERE)

    def expire(self, before_ms: int, *, besides: Container[int]) -> None:
        """Forget producers that were last heard of before this moment, except those with an open transaction (K26).

        If there are very many, some wait for the next call.
        """
        self.rows.remove(lambda producer_id: producer_id not in besides, before_ms)

    @classmethod
    def from_json(cls, rows: Iterable[list[Any]]) -> "ProducerStates":
        """What snapshots of format 0 have."""
        made = cls()
        for producer_id, epoch, coordinator_epoch, last_ms, batches in rows:
            made.rows.put(Head(producer_id, epoch, 0, coordinator_epoch, last_ms))
            for number, fields in enumerate(batches):
                made.rows.keep(Head(producer_id, epoch, number, coordinator_epoch, last_ms), Kept(*fields))
        return made

    def _next_sequence(self, head: Head) -> int:
        """The sequence that must come next in the known epoch."""
        last = self.rows.last_sequence(head) if head.batches else SEQUENCE_MAX
        return 0 if last == SEQUENCE_MAX else last + 1

    def _heard(self, producer_id: int, epoch: int, timestamp_ms: int) -> Head:
        """What to write of a producer that was just heard of. Another epoch numbers its batches anew."""
        head = self.rows.head(producer_id)
        if head is None:
            return Head(producer_id, epoch, 0, NO_COORDINATOR, max(0, timestamp_ms))
        batches = head.batches if epoch == head.epoch else 0
        return Head(producer_id, epoch, batches, head.coordinator_epoch, max(head.last_ms, timestamp_ms))


def last_sequence(first: int, count: int) -> int:
    """The sequence of the last of `count` records. Numbers begin again at 0 behind SEQUENCE_MAX (K24)."""
    return (first + count - 1) % (SEQUENCE_MAX + 1)
