"""A partition's log and its owner's memory, for schedules of Kafka transactions (`tests.support.kafka_world`).

What is appended is durable after `sync`. `crash` keeps a part of what is not, and the next owner reads the log.
"""

from dataclasses import dataclass, field

from storage.position import Position
from txn.kafka_transaction import Producer
from txn.producer_states import Batch, Duplicate, EndMarker, ProducerStates
from txn.stable_offset import Place, StableOffset


@dataclass(eq=False)
class Attempt:
    """One transaction as its client sees it."""

    wants_commit: bool = False
    """Whether the client has ever asked for a commit."""
    told: bool | None = None
    """What it was told: committed, aborted or nothing."""
    added: set[str] = field(default_factory=set)
    """Version 1: creation ids of the partitions that it has added."""
    acked: list["Data"] = field(default_factory=list)


@dataclass(frozen=True)
class Data:
    """A batch of one record."""

    attempt: Attempt
    producer: Producer
    sequence: int
    creation_id: str


@dataclass(frozen=True)
class Appended:
    """A batch in the log."""

    data: Data
    serial: int
    """The transaction that it belongs to, as the world counts them."""


@dataclass(frozen=True)
class Marker:
    """The end of a transaction in the log."""

    end: EndMarker
    is_commit: bool


class Partition:
    """One partition. A position is an index of `entries`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.creations = 0
        self.owners = 0
        """How many owners it has had. A task of an earlier one does nothing more."""
        self.delete()

    @property
    def creation_id(self) -> str:
        return f"{self.name}-{self.creations}"

    def delete(self) -> None:
        """Remove the topic, and make it again."""
        self.creations += 1
        self.entries: list[Appended | Marker] = []
        self.durable = 0
        self._take_over()

    def crash(self, kept: int) -> None:
        """Lose all but `kept` of the entries that are not durable. The next owner reads the rest."""
        del self.entries[self.durable + kept :]
        self.sync()
        self._take_over()

    def sync(self) -> None:
        self.durable = len(self.entries)

    def take(self, data: Data, serial: int) -> int:
        """Append a batch, unless it is there. Return its offset. Raises what `ProducerStates.check` does."""
        batch = _batch(data)
        found = self.states.check(batch, has_open=self.has_data(data.producer.id))
        if isinstance(found, Duplicate):
            return found.base_offset
        self._note(Appended(data, serial))
        return len(self.entries) - 1

    def end(self, marker: Marker) -> int:
        """Append a marker. Return its offset."""
        self.states.check_marker(marker.end, has_open=self.has_data(marker.end.producer_id))
        self._note(marker)
        return len(self.entries) - 1

    def has_data(self, producer_id: int) -> bool:
        """Whether it has data of this producer without a marker."""
        return self.stable.first_of(producer_id) is not None

    def undecided(self, producer_id: int) -> list[Appended]:
        """Return the data of this producer without a marker."""
        first = self.stable.first_of(producer_id)
        found = [] if first is None else self.entries[first.offset :]
        return [each for each in found if isinstance(each, Appended) and each.data.producer.id == producer_id]

    def outcomes(self) -> dict[Data, bool | None]:
        """What the log says of each batch: committed, aborted, or without a marker."""
        said: dict[Data, bool | None] = {}
        for entry in self.entries:
            if isinstance(entry, Appended):
                assert entry.data not in said, "a batch is stored once"
                said[entry.data] = None
            else:
                for data in [data for data, known in said.items() if known is None]:
                    if data.producer.id == entry.end.producer_id:
                        said[data] = entry.is_commit
        return said

    def _take_over(self) -> None:
        self.owners += 1
        self.settled: set[int] = set()
        """Versions of the registrations that the owner has begun to settle. It takes no more data under them."""
        self.states = ProducerStates()
        self.stable = StableOffset()
        entries, self.entries = self.entries, []
        for entry in entries:
            self._note(entry)

    def _note(self, entry: Appended | Marker) -> None:
        offset = len(self.entries)
        self.entries.append(entry)
        if isinstance(entry, Marker):
            self.states.note_marker(entry.end, offset)
            self.stable.end(entry.end.producer_id, Place(offset, Position(0, offset)), is_commit=entry.is_commit)
            return
        self.states.note(_batch(entry.data), offset, offset)
        if not self.has_data(entry.data.producer.id):
            self.stable.begin(entry.data.producer.id, Place(offset, Position(0, offset)))


def _batch(data: Data) -> Batch:
    return Batch(*data.producer, data.sequence, data.sequence, is_transactional=True)
