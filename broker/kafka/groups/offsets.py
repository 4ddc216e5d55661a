"""Committed offsets, in the metadata store.

    /kafka/offsets/<quoted group>/<quoted topic>/<10 digits of the partition>

Offsets may go backwards, and keep the text that clients store with them (K36). They move no cursor.

Who writes is the group's coordinator. Each change set has its claim as a condition, and the version of the group's
record. A generation's assignment is in that record before any member has it. So a commit of an earlier generation is
made before a member of the next one can ask for the offset, or it is not made at all (K34). Anybody may read.

A large commit takes several change sets (`slices`), so a part of it may be made.

A commit in a transaction defers the records (`txn/deferred_puts.py`). The end of the transaction writes or drops them.
Until then, a client that wants stable offsets gets UNSTABLE_OFFSET_COMMIT for them (K34).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import orjson
import structlog

from broker.kafka.groups.group_record import GROUPS, GROUPS_AT_ONCE, group_of_key
from broker.kafka.groups.values import GroupError
from broker.names import TopicName
from storage.metadata.paging import each_hit
from storage.metadata.store import (
    Check,
    Conflict,
    Delete,
    DeleteRange,
    MetadataStore,
    Op,
    Put,
    Record,
    RecordVersion,
    exactly,
    starting_with,
)
from txn.deferred_puts import BY_TARGET

KEY_PREFIX: Final = "/kafka/offsets/"

RECORDS_AT_ONCE: Final = 100
"""Offsets in one change set, and in one page of a scan. It stays below etcd's 124 operations."""

OPERATIONS_AT_ONCE: Final = RECORDS_AT_ONCE + 1
"""Offsets and conditions on their topics in one change set."""

CHANGE_SET_BYTES_MAX: Final = 512 * 1024
"""Bytes of offsets in one change set. It stays below etcd's 1.5 MiB."""

NO_EPOCH: Final = -1

log = structlog.get_logger(__name__)


class TopicPartition(NamedTuple):
    """What an offset is for."""

    topic: str
    partition: int


class Offset(NamedTuple):
    """A committed offset."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    committed_ms: int = 0
    """When, by the coordinator's clock."""
    expires_ms: int | None = None
    """When the client wants it to end; None: when the retention of the group says so."""


class FetchedOffset(NamedTuple):
    """An offset as it is read, or why it cannot be."""

    offset: Offset | None
    """None if there is none, or with an error."""
    error: GroupError | None = None


class StoredOffset(NamedTuple):
    """An offset with its record. One that is damaged has only the record."""

    partition: TopicPartition
    offset: Offset | None
    version: RecordVersion


Offsets = Mapping[TopicPartition, Offset]

Slice = Mapping[TopicPartition, Put]
"""Offsets that one change set commits."""


def offset_key(group: str, partition: TopicPartition) -> str:
    """The key of an offset."""
    assert partition.partition >= 0, "partitions are numbered from 0"
    return f"{_topic_prefix(group, partition.topic)}{partition.partition:010}"


class OffsetStore:
    """Reads and writes the records."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, FetchedOffset]:
        """Return these offsets of a group, or all that it has. As new as every commit that was answered before.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        if partitions is None:
            return {stored.partition: _fetched(stored) for stored in await self.scan(group)}
        found = dict.fromkeys(partitions, FetchedOffset(None))
        # No partition has a number below 0.
        wanted = [each for each in found if each.partition >= 0]
        for first in range(0, len(wanted), RECORDS_AT_ONCE):
            keys = {offset_key(group, each): each for each in wanted[first : first + RECORDS_AT_ONCE]}
            for key, record in (await self._metadata.fresh(keys)).records.items():
                if record is not None:
                    found[keys[key]] = _fetched(_stored(record))
        return found

    async def scan(self, group: str, topic: str | None = None) -> list[StoredOffset]:
        """Return all offsets of a group, or those on a topic, with their records.

        They are read in pages, and not at one revision.
        """
        start, end = starting_with(_group_prefix(group) if topic is None else _topic_prefix(group, topic))
        found: list[StoredOffset] = []
        while True:
            page = await self._metadata.scan(start, end, limit=RECORDS_AT_ONCE)
            found += map(_stored, page)
            if len(page) < RECORDS_AT_ONCE:
                return found
            start = page[-1].key + "\0"

    async def scan_all(self) -> AsyncIterator[tuple[str, StoredOffset]]:
        """Yield the offsets of all groups, each with its group. They are read in pages, and not at one revision."""
        start, end = starting_with(KEY_PREFIX)
        while page := await self._metadata.scan(start, end, limit=RECORDS_AT_ONCE):
            for record in page:
                yield unquote(record.key.removeprefix(KEY_PREFIX).partition("/")[0]), _stored(record)
            start = page[-1].key + "\0"

    async def deferred(self, group: str) -> frozenset[TopicPartition]:
        """Return the partitions whose offsets open or ending transactions may change.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        hits = each_hit(self._metadata.query, BY_TARGET, *starting_with(_group_prefix(group)))
        return frozenset([_partition_of(hit.index_key) async for hit in hits])

    async def write(self, puts: Sequence[Put], conditions: Sequence[Check]) -> None:
        """Commit offsets, all of them or none. Durable on return.

        Raises:
            Conflict: a condition does not hold.
            StoreUnavailable: unknown whether it was written.
        """
        await self._metadata.commit([*puts, *conditions])

    async def delete(self, found: Sequence[StoredOffset], conditions: Sequence[Check]) -> None:
        """Remove offsets that were read, unless they were committed again. Durable on return.

        Raises:
            Conflict: a condition does not hold, or an offset has changed.
        """
        await self._remove([stored.version.to_delete() for stored in found], conditions)

    async def delete_partitions(
        self, group: str, partitions: Collection[TopicPartition], conditions: Sequence[Check]
    ) -> None:
        """Remove these offsets, if they are there. Durable on return.

        Raises:
            Conflict: a condition does not hold.
        """
        await self._remove([Delete(offset_key(group, each)) for each in dict.fromkeys(partitions)], conditions)

    async def _remove(self, removals: Sequence[Op], conditions: Sequence[Check]) -> None:
        for first in range(0, len(removals), RECORDS_AT_ONCE):
            await self._metadata.commit([*removals[first : first + RECORDS_AT_ONCE], *conditions])

    async def delete_topic(self, topic: str) -> None:
        """Remove the offsets of a topic that is gone, of all groups. Durable on return. May be repeated.

        Those that open transactions have deferred are removed, too. It needs no claim, since nobody has a reason to
        read them.
        """
        start, end = starting_with(GROUPS)
        while True:
            page = await self._metadata.scan(start, end, limit=GROUPS_AT_ONCE)
            if page:
                ranges = [starting_with(_topic_prefix(group_of_key(record.key), topic)) for record in page]
                for start_of, end_of in ranges:
                    await self._drop_deferred(start_of, end_of)
                await self._metadata.commit([DeleteRange(*range_) for range_ in ranges])
            if len(page) < GROUPS_AT_ONCE:
                return
            start = page[-1].key + "\0"

    async def drop_deferred(self, group: str, partitions: Collection[TopicPartition] | None = None) -> None:
        """Drop what transactions would write for these partitions, or for all, before their offsets are deleted.

        Otherwise the end of such a transaction brings an offset back, perhaps of a group that does not exist any more.
        Durable on return. Nobody may commit for the group meanwhile.
        """
        if partitions is None:
            await self._drop_deferred(*starting_with(_group_prefix(group)))
        elif pending := (await self.deferred(group)).intersection(partitions):
            for each in pending:
                await self._drop_deferred(*exactly(offset_key(group, each)))

    async def _drop_deferred(self, start: str, end: str) -> None:
        """Drop what transactions would write to keys in a range. What has ended meanwhile is written already."""
        while hits := await self._metadata.query(BY_TARGET, start, end, limit=RECORDS_AT_ONCE):
            try:
                await self._metadata.commit([Delete(hit.record.key, hit.record.version) for hit in hits])
            except Conflict:
                continue


def forget_offsets(namespace: str) -> Callable[[MetadataStore, TopicName], Awaitable[None]]:
    """Return what removes all groups' offsets of a topic that is gone, if Kafka's clients see its namespace."""

    async def forget(metadata: MetadataStore, topic: TopicName) -> None:
        if f"{topic.tenant}/{topic.namespace}" == namespace:
            await OffsetStore(metadata).delete_topic(topic.local)

    return forget


def all_of(group: str) -> DeleteRange:
    """The removal of all offsets of a group."""
    return DeleteRange(*starting_with(_group_prefix(group)))


def _group_prefix(group: str) -> str:
    return f"{KEY_PREFIX}{quote(group, safe='')}/"


def _topic_prefix(group: str, topic: str) -> str:
    return f"{_group_prefix(group)}{quote(topic, safe='')}/"


def slices(group: str, offsets: Offsets) -> Iterator[Slice]:
    """Divide the offsets of a commit among change sets. Each has room for a condition on each of its topics."""
    slice_: dict[TopicPartition, Put] = {}
    topics: set[str] = set()
    size = 0
    for partition, offset in offsets.items():
        put = Put(offset_key(group, partition), _encode(offset))
        added = len(put.key) + len(put.value)
        operations = len(slice_) + 1 + len(topics | {partition.topic})
        if slice_ and (operations > OPERATIONS_AT_ONCE or size + added > CHANGE_SET_BYTES_MAX):
            yield slice_
            slice_, topics, size = {}, set(), 0
        slice_[partition] = put
        topics.add(partition.topic)
        size += added
    if slice_:
        yield slice_


def _encode(offset: Offset) -> bytes:
    fields: dict[str, int | str] = {
        "offset": offset.offset,
        "epoch": offset.leader_epoch,
        "committed_ms": offset.committed_ms,
    }
    if offset.metadata:
        fields["metadata"] = offset.metadata
    if offset.expires_ms is not None:
        fields["expires_ms"] = offset.expires_ms
    return orjson.dumps(fields)


def _partition_of(key: str) -> TopicPartition:
    topic, _, digits = key.removeprefix(KEY_PREFIX).partition("/")[2].partition("/")
    return TopicPartition(unquote(topic), int(digits))


def _stored(record: Record) -> StoredOffset:
    partition = _partition_of(record.key)
    try:
        fields = orjson.loads(record.value)
        expires_ms = fields.get("expires_ms")
        offset = Offset(
            int(fields["offset"]),
            int(fields["epoch"]),
            str(fields.get("metadata", "")),
            int(fields["committed_ms"]),
            None if expires_ms is None else int(expires_ms),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as damaged:
        log.error("a committed offset is damaged; commit it again", key=record.key, reason=repr(damaged))
        return StoredOffset(partition, None, RecordVersion.of(record))
    return StoredOffset(partition, offset, RecordVersion.of(record))


def _fetched(stored: StoredOffset) -> FetchedOffset:
    error = GroupError.UNKNOWN_SERVER_ERROR if stored.offset is None else None
    return FetchedOffset(stored.offset, error)
