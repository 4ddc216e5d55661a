"""How a snapshot divides the producers of a topic among records, so that none grows too large. Pure.

A record has the producers whose hash has one remainder modulo the number of records. That number is a power of two and
follows the size of the memory. The hash is keyed with the topic's creation id, which clients do not know. So nobody can
choose names that crowd one record.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

from broker.deduplication.producer import Producer

SHARDS_MAX: Final = 256
"""Most records for the producers of a topic. A power of two."""

SHARD_WEIGHT: Final = 64
"""The producers in a record, on average at most. Some transactions or gaps weigh as much as one producer."""

OPEN_PER_WEIGHT: Final = 4
"""Open transactions that weigh as much as a producer."""

GAPS_PER_WEIGHT: Final = 64
"""Gaps between ranges of ids that weigh as much as a producer."""

SHRINK_AT: Final = 4
"""There are fewer records once they are so many times too many."""


def digest_of(name: str, creation: str) -> int:
    """Return the hash of a producer's name on the topic with this creation id. It never changes."""
    return int.from_bytes(blake2b(name.encode(), key=creation.encode()[:64], digest_size=8).digest())


def shards_for(weight: int, current: int) -> int:
    """Return how many records a snapshot has: a power of two, `current` if that still fits."""
    needed = min(1 << max((weight - 1) // SHARD_WEIGHT, 0).bit_length(), SHARDS_MAX)
    return needed if needed > current or needed * SHRINK_AT <= current else current


class Shards:
    """All producers of a topic, divided.

    They are in SHARDS_MAX buckets, or fewer if some are empty. A shard is every so many-th bucket. So another number of
    shards moves no producer, and takes no longer if there are many (E7).
    """

    def __init__(self) -> None:
        self._buckets: dict[int, dict[str, Producer]] = {}
        self._changed: set[int] = set()
        """The buckets whose records do not show them as they are."""
        self._gaps: dict[int, int] = {}
        """The gaps between ranges of ids in each bucket."""
        self._gaps_of_shards = [0]

    def __len__(self) -> int:
        """Return the number of shards."""
        return len(self._gaps_of_shards)

    def add(self, name: str, producer: Producer) -> None:
        """Add a producer."""
        self._buckets.setdefault(_bucket_of(producer), {})[name] = producer
        self.count_gaps(producer, producer.gaps)

    def remove(self, name: str, producer: Producer) -> None:
        """Remove a producer."""
        bucket = _bucket_of(producer)
        del self._buckets[bucket][name]
        if not self._buckets[bucket]:
            del self._buckets[bucket]
        self.count_gaps(producer, -producer.gaps)
        self._changed.add(bucket)

    def change(self, producer: Producer) -> None:
        """Note that a producer is not as its record shows it."""
        self._changed.add(_bucket_of(producer))

    def count_gaps(self, producer: Producer, more: int) -> None:
        """Note that a producer has so many more gaps."""
        bucket = _bucket_of(producer)
        self._gaps[bucket] = self._gaps.get(bucket, 0) + more
        self._gaps_of_shards[bucket % len(self)] += more

    def gaps_beside(self, producer: Producer) -> int:
        """Return the gaps of all producers in a producer's shard."""
        return self._gaps_of_shards[_bucket_of(producer) % len(self)]

    def divide(self, count: int, *, is_written: bool = False) -> None:
        """Have so many shards. `is_written` says whether their records show them as they are."""
        self._gaps_of_shards = [0] * count
        for bucket, gaps in self._gaps.items():
            self._gaps_of_shards[bucket % count] += gaps
        self._changed = set() if is_written else set(range(SHARDS_MAX))

    def changed(self) -> list[int]:
        """Return the numbers of changed shards, highest first.

        In this order, a record that gives half of its producers to a new one is written after the new one.
        """
        return sorted({bucket % len(self) for bucket in self._changed}, reverse=True)

    def take(self, number: int) -> Iterator[tuple[str, Producer]]:
        """Yield the producers of a shard, with their names. It counts as written."""
        for bucket in range(number, SHARDS_MAX, len(self)):
            self._changed.discard(bucket)
            yield from self._buckets.get(bucket, {}).items()

    def not_written(self, number: int) -> None:
        """Undo that a shard counts as written."""
        self._changed.update(range(number, SHARDS_MAX, len(self)))


def _bucket_of(producer: Producer) -> int:
    return producer.digest % SHARDS_MAX
