"""The records of a snapshot, and what a new owner makes of those that it finds. Pure.

    /producers/<topic>             the head: everything in the log up to `upto` is in the snapshot
    /producers/<topic>/<5 digits>  a shard: some of the producers, as of its own `upto`

A small topic has no shards, and its head has all producers. The head of a larger one says how many shards there are.
The writer writes changed shards first, one after another, and then the head. A crash may come between any two writes,
also while the number of shards changes. Two rules make that harmless:

- Each record names its number and the count of shards when it was written. So it covers the producers with one
  remainder. Of all records that cover a producer, the newest one counts, and it counts whether or not it has the
  producer.
- An entry behind the head's `upto` may be in a shard that is newer than the head. The new owner skips an entry that is
  at or below the `upto` of its producer's record.

If the count grows, the writer writes the new shards before those that give producers to them. So each producer is
covered at any moment. A record of a deleted topic of the same name has another creation id, and covers nothing.

A damaged or missing record covers nothing either. Then the end of the log is read as if there were no snapshot.

Earlier releases do not know shards. They pass over a head whose `creation` is not the topic's, and read the end of the
log. So the head of a larger topic has its creation id in another field.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import orjson

from broker.deduplication.shards import SHARDS_MAX
from storage.metadata.store import Delete, DeleteRange, Op, Put, Record, starting_with
from storage.position import Position
from storage.unknown_fields import NOTHING_UNKNOWN, Unknown, restored, unknown_in

KEY_PREFIX: Final = "/producers/"

_FIELDS: Final = frozenset({"creation", "owner", "upto", "producers", "of", "shards"})

_NUMBER_DIGITS: Final = 5

DAMAGE: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What decoding a damaged record raises."""


class Damaged(NamedTuple):
    """A record of a snapshot that cannot be read."""

    key: str
    reason: str


def sequences_key(topic: str) -> str:
    """Return the key of the head of a topic's snapshot."""
    return KEY_PREFIX + quote(topic, safe="")


def shard_key(topic: str, number: int) -> str:
    """Return the key of a shard."""
    return f"{sequences_key(topic)}/{number:0{_NUMBER_DIGITS}d}"


def shard_keys(topic: str) -> tuple[str, str]:
    """Return the key range of all shards of a topic."""
    return starting_with(f"{sequences_key(topic)}/")


def removal_of_snapshot(topic: str) -> tuple[Op, ...]:
    """Return the operations that remove all records of a topic's snapshot."""
    return Delete(sequences_key(topic)), DeleteRange(*shard_keys(topic))


@dataclass(frozen=True, slots=True)
class Author:
    """Who writes a snapshot, and of what."""

    topic: str
    creation: str
    owner: int

    def head(self, upto: Position, shards: int, producers: Mapping[str, Any], unknown: Unknown) -> Put:
        """Return the head. `producers` are all of them if there is one shard; otherwise they are in the shards."""
        fields: dict[str, Any] = {"owner": self.owner, "upto": list(upto), "producers": producers, **restored(unknown)}
        if shards == 1:
            fields["creation"] = self.creation
        else:
            fields |= {"creation": None, "of": self.creation, "shards": shards}
        return Put(sequences_key(self.topic), orjson.dumps(fields))

    def shard(self, number: int, count: int, upto: Position, producers: Mapping[str, Any]) -> Put:
        """Return a shard."""
        fields = {
            "creation": self.creation,
            "owner": self.owner,
            "upto": list(upto),
            "count": count,
            "producers": producers,
        }
        return Put(shard_key(self.topic, number), orjson.dumps(fields))

    def removal_from(self, number: int) -> DeleteRange:
        """Return the removal of shards that are not needed: those from this number on."""
        return DeleteRange(shard_key(self.topic, number), shard_keys(self.topic)[1])


@dataclass(eq=False, slots=True)
class Part:
    """What one record says of the producers that it covers."""

    key: str
    version: int
    number: int
    count: int
    upto: Position
    producers: Mapping[str, Any]


@dataclass
class FoundSnapshot:
    """The records that a new owner finds. It takes one at a time, the head first, because each takes a moment (E7)."""

    topic: str
    creation: str
    """The topic's creation id."""
    upto: Position | None = None
    """Everything in the log up to here is in the snapshot. None: there is no head."""
    shards: int = 1
    parts: list[Part] = field(default_factory=list)
    unknown: Unknown = NOTHING_UNKNOWN
    """Fields that a later release has put into the head."""
    damaged: list[Damaged] = field(default_factory=list)
    strays: bool = False
    """Whether there are shards that do not belong to the snapshot."""
    _covering: dict[int, dict[int, Part]] = field(default_factory=dict)
    """The parts by their count and number."""

    def take_head(self, head: Record) -> None:
        """Decode the head."""
        try:
            fields = orjson.loads(head.value)
            count = _checked(fields.get("shards", 1))
            if fields["creation" if count == 1 else "of"] != self.creation:
                return
            upto = Position(*fields["upto"])
            if count == 1:
                self._add(Part(head.key, head.version, 0, 1, upto, dict(fields["producers"])))
            self.upto, self.shards, self.unknown = upto, count, unknown_in(fields, _FIELDS)
        except DAMAGE as damage:
            self.damaged.append(Damaged(head.key, repr(damage)))

    def take_shard(self, record: Record) -> None:
        """Decode a shard."""
        try:
            number = int(record.key.removeprefix(shard_keys(self.topic)[0]))
            fields = orjson.loads(record.value)
            if fields["creation"] != self.creation:
                self.strays = True
                return
            upto, count = Position(*fields["upto"]), _checked(fields["count"])
            self._add(Part(record.key, record.version, number % count, count, upto, dict(fields["producers"])))
            self.strays = self.strays or self.shards == 1 or number >= self.shards
        except DAMAGE as damage:
            self.damaged.append(Damaged(record.key, repr(damage)))

    def complete(self) -> None:
        """Note that all records were taken."""
        told = {damage.key for damage in self.damaged}
        for number in range(self.shards if self.upto is not None else 0):
            key = shard_key(self.topic, number)
            if key not in told and not self._is_covered(number):
                self.damaged.append(Damaged(key, "it is missing"))

    def part_of(self, digest: int) -> Part | None:
        """Return the part that counts for the producer with this hash; None if none covers it."""
        covering = (parts.get(digest % count) for count, parts in self._covering.items())
        return max((part for part in covering if part is not None), key=lambda part: part.version, default=None)

    def discard(self, part: Part, damage: Damaged) -> None:
        """A part's producers cannot be read, so it covers nothing."""
        self.damaged.append(damage)
        self.parts.remove(part)
        del self._covering[part.count][part.number]

    @property
    def is_settled(self) -> bool:
        """Whether the records are as the writer of a whole snapshot leaves them, each with all that it covers."""
        return not self.damaged and {part.count for part in self.parts} <= {self.shards}

    def _add(self, part: Part) -> None:
        self.parts.append(part)
        self._covering.setdefault(part.count, {})[part.number] = part

    def _is_covered(self, number: int) -> bool:
        """Whether every producer of one of the head's shards is covered, perhaps by shards of a higher count."""
        counts: Collection[int] = [count for count in self._covering if count > self.shards]
        finest = max(counts, default=self.shards)
        return all(self.part_of(digest) is not None for digest in range(number, finest, self.shards))


def _checked(count: int) -> int:
    if not 0 < count <= SHARDS_MAX:
        raise ValueError(f"there are never {count} shards")
    return count
