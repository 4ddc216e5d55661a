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

from collections import deque
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from txn.errors import TxnError

BATCHES_KEPT: Final = 5
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


class Kept(NamedTuple):
    """A batch that was appended."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp_ms: int
    """When the broker took it."""


class Duplicate(NamedTuple):
    """The log has the batch already, from this offset on."""

    base_offset: int
    timestamp_ms: int


@dataclass(slots=True)
class ProducerState:
    """What is known of one producer."""

    epoch: int
    batches: deque[Kept] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    """The last batches of this epoch, oldest first."""
    coordinator_epoch: int = NO_COORDINATOR
    """That of its last marker."""
    last_ms: int = 0
    """When it was last heard of."""

    @property
    def next_sequence(self) -> int:
        """The sequence that must come next in this epoch."""
        last = self.batches[-1].last_sequence if self.batches else SEQUENCE_MAX
        return 0 if last == SEQUENCE_MAX else last + 1


class ProducerStates:
    """The producers of one log, by id."""

    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[tuple[int, ProducerState]]:
        return iter(self._states.items())

    def get(self, producer_id: int) -> ProducerState | None:
        """What is known of a producer."""
        return self._states.get(producer_id)

    def check(self, batch: Batch, *, has_open: bool) -> Duplicate | None:
        """Decide on a batch of a producer that has an open transaction here or not. None: it may be appended now.

        Raises:
            ProducerEpochStale, OutOfOrderSequence, OutsideOfTransaction, EarlierTransactionOpen: it may not.
        """
        state = self._states.get(batch.producer_id)
        if state is None:
            if len(self._states) >= PRODUCERS_MAX:
                raise TooManyProducers(
                    f"{len(self._states)} numbered producers have written here. One is forgotten when it has been idle "
                    "for a day. Use fewer producers, or turn their idempotence off"
                )
            return None
        if batch.epoch < state.epoch:
            raise ProducerEpochStale(
                f"Producer {batch.producer_id} has the epoch {state.epoch}, so a batch of its epoch {batch.epoch} is "
                "refused"
            )
        is_new_epoch = batch.epoch > state.epoch
        if not is_new_epoch:
            for kept in state.batches:
                if (kept.first_sequence, kept.last_sequence) == (batch.first_sequence, batch.last_sequence):
                    return Duplicate(kept.base_offset, kept.timestamp_ms)
        expected = 0 if is_new_epoch else state.next_sequence
        if batch.first_sequence != expected:
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
        state = self._heard(batch.producer_id, batch.epoch, timestamp_ms)
        state.batches.append(Kept(batch.first_sequence, batch.last_sequence, base_offset, timestamp_ms))

    def check_marker(self, marker: EndMarker, *, has_open: bool) -> None:
        """Decide on the marker that ends a transaction of a producer, which is open here or not.

        Raises:
            ProducerEpochStale, CoordinatorStale: it may not be appended.
        """
        state = self._states.get(marker.producer_id)
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
        state = self._heard(marker.producer_id, marker.epoch, timestamp_ms)
        state.coordinator_epoch = marker.coordinator_epoch

    def expire(self, before_ms: int, *, besides: Container[int]) -> None:
        """Forget producers that were last heard of before this moment, except those with an open transaction (K26)."""
        idle = [
            producer_id
            for producer_id, state in self._states.items()
            if state.last_ms < before_ms and producer_id not in besides
        ]
        for producer_id in idle:
            del self._states[producer_id]

    def to_rows(self) -> Iterator[list[Any]]:
        """Yield one row for each producer, for a snapshot."""
        for producer_id, state in self._states.items():
            batches = [list(kept) for kept in state.batches]
            yield [producer_id, state.epoch, state.coordinator_epoch, state.last_ms, batches]

    @classmethod
    def from_rows(cls, rows: Iterable[list[Any]]) -> "ProducerStates":
        """Undo `to_rows`."""
        made = cls()
        for producer_id, epoch, coordinator_epoch, last_ms, batches in rows:
            kept = deque((Kept(*fields) for fields in batches), maxlen=BATCHES_KEPT)
            made._states[producer_id] = ProducerState(epoch, kept, coordinator_epoch, last_ms)
        return made

    def _heard(self, producer_id: int, epoch: int, timestamp_ms: int) -> ProducerState:
        """The state of a producer that was just heard of in this epoch. Another epoch numbers its batches anew."""
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState(epoch)
        if epoch != state.epoch:
            state.epoch = epoch
            state.batches.clear()
        state.last_ms = max(state.last_ms, timestamp_ms)
        return state


def last_sequence(first: int, count: int) -> int:
    """The sequence of the last of `count` records. Numbers begin again at 0 behind SEQUENCE_MAX (K24)."""
    return (first + count - 1) % (SEQUENCE_MAX + 1)
