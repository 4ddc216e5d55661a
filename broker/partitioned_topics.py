"""Partitioned topics: how many partitions a regular topic has, and when it was made.

    /partitioned-topics/<tenant>/<namespace>/<quoted local name>

A partition is a regular topic, `persistent://tenant/namespace/local-partition-3`, which its first use makes. The record
says that clients may use it. Both protocols read the record: Kafka's topics are partitioned topics.

A deletion first marks the record, then removes the partitions, and then the record. It may be repeated at any step.
Kafka's clients make a partition under the condition that the record is `unchanged`, so none comes behind the mark.
"""

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self
from urllib.parse import quote, unquote

import orjson
import structlog

from broker.errors import TooFewPartitions, TopicExists, TopicNotFound
from broker.names import Domain, TopicName
from storage.clock import WallClock
from storage.managed_ledger_opening import creation_id_of
from storage.metadata.store import ABSENT, Check, Conflict, MetadataStore, Op, Put, Record, starting_with
from storage.unknown_fields import NOTHING_UNKNOWN, Unknown, restored, unknown_in

PARTITIONED_TOPICS: Final = "/partitioned-topics/"
PARTITIONS_MAX: Final = 10_000
"""Partitions of one topic."""

TOPIC_ID_BYTES: Final = 16

_PAGE: Final = 500
_FIELDS: Final = frozenset({"partitions", "topic_id", "created_ms", "configs", "deleting"})

Configs = Mapping[str, str]
"""What a topic is configured with, by Kafka's names."""

Alter = Callable[[Configs], Configs]
"""From the settings before to those after."""

ForgetTopic = Callable[[MetadataStore, TopicName], Awaitable[None]]
"""Removes what a front end stores about a topic that is gone. It may be repeated; the removal is durable on return."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PartitionedTopic:
    """The record of one partitioned topic."""

    name: TopicName
    partitions: int
    topic_id: bytes
    """Differs from that of every earlier or later topic of this name."""
    created_ms: int
    configs: Mapping[str, str] = field(default_factory=dict)
    """What its creator set, by Kafka's names."""
    is_deleting: bool = False
    unknown: Unknown = NOTHING_UNKNOWN
    version: int = field(default=ABSENT, compare=False)
    """The version of its record, if it was read."""

    @property
    def unchanged(self) -> Check:
        """A condition that holds while its record is as it was read."""
        return Check(record_key(self.name), self.version)

    def encode(self) -> bytes:
        """As JSON."""
        return orjson.dumps(
            {
                "partitions": self.partitions,
                "topic_id": self.topic_id.hex(),
                "created_ms": self.created_ms,
                "configs": dict(self.configs),
                "deleting": self.is_deleting,
                **restored(self.unknown),
            }
        )

    @classmethod
    def decode(cls, name: TopicName, value: bytes) -> Self:
        """From JSON.

        Raises:
            ValueError: it is damaged.
        """
        try:
            fields: dict[str, Any] = orjson.loads(value)
            made = cls(
                name,
                fields["partitions"],
                bytes.fromhex(fields["topic_id"]),
                fields["created_ms"],
                {str(key): str(text) for key, text in fields["configs"].items()},
                fields["deleting"],
                unknown_in(fields, _FIELDS),
            )
        except (AttributeError, LookupError, TypeError) as damaged:
            raise ValueError(f"the record of a partitioned topic cannot be read: {damaged!r}") from damaged
        if type(made.partitions) is not int or not 0 < made.partitions <= PARTITIONS_MAX:
            raise ValueError(f"{made.partitions!r} is no number of partitions")
        return made


class PartitionedTopics:
    """The partitioned topics in the metadata store."""

    def __init__(self, metadata: MetadataStore, now_ms: WallClock) -> None:
        self._metadata = metadata
        self._now_ms = now_ms

    async def find(self, name: TopicName) -> PartitionedTopic | None:
        """Return the topic, unless there is none or it is being deleted."""
        stored = await self._metadata.get(record_key(name))
        topic = None if stored is None else read_record(stored)
        return None if topic is None or topic.is_deleting else topic

    async def create(
        self,
        name: TopicName,
        partitions: int,
        configs: Mapping[str, str] | None = None,
        beside: Sequence[Op] = (),
    ) -> PartitionedTopic:
        """Make a partitioned topic, in one change set with the operations `beside`; durable on return.

        Raises:
            TopicExists: it exists, or is being deleted.
        """
        assert 0 < partitions <= PARTITIONS_MAX, "the caller checks the number"
        topic_id = secrets.token_bytes(TOPIC_ID_BYTES)
        topic = PartitionedTopic(name, partitions, topic_id, self._now_ms(), configs or {})
        try:
            await self._metadata.commit([Put(record_key(name), topic.encode(), ABSENT), *beside])
        except Conflict:
            raise TopicExists(f"{name} exists already. Choose another name, or delete it first.") from None
        return topic

    async def make(self, partition: TopicName) -> None:
        """Make a partition that nobody has used, if there is a topic that has it. Durable on return.

        Raises:
            LedgerListCorrupt: its record is damaged.
        """
        index = partition.partition_index
        assert index is not None, "only a partition may be passed"
        while True:
            topic = await self.find(partition.partitioned_topic)
            if topic is None or index >= topic.partitions:
                return
            try:
                await creation_id_of(str(partition), self._metadata, [topic.unchanged])
            except Conflict:
                continue
            return

    async def configure(
        self, name: TopicName, alter: Alter, beside: Callable[[Configs], Sequence[Op]]
    ) -> PartitionedTopic:
        """Change what a topic is configured with, in one change set with the operations that `beside` returns.

        Durable on return. If another change comes between, `alter` is asked again. Raises what it raises, and:

        Raises:
            TopicNotFound: there is no such topic, or it is being deleted.
        """

        def altered(topic: PartitionedTopic) -> PartitionedTopic:
            if topic.is_deleting:
                raise TopicNotFound(f"{name} is being deleted. Create it again first.")
            return replace(topic, configs=alter(topic.configs))

        return await self._change(name, altered, lambda topic: beside(topic.configs))

    async def extend(self, name: TopicName, partitions: int) -> PartitionedTopic:
        """Give a topic more partitions; durable on return.

        Raises:
            TopicNotFound: there is no such topic, or it is being deleted.
            TooFewPartitions: it has as many partitions already, perhaps for a moment.
        """

        def extended(topic: PartitionedTopic) -> PartitionedTopic:
            if topic.is_deleting:
                raise TopicNotFound(f"{name} is being deleted. Create it again first.")
            if partitions <= topic.partitions:
                raise TooFewPartitions(f"{name} has {topic.partitions} partitions. Ask for more than that.")
            return replace(topic, partitions=partitions)

        return await self._change(name, extended)

    async def _change(
        self,
        name: TopicName,
        change: Callable[[PartitionedTopic], PartitionedTopic],
        beside: Callable[[PartitionedTopic], Sequence[Op]] = lambda _topic: (),
    ) -> PartitionedTopic:
        while True:
            stored = await self._metadata.get(record_key(name))
            topic = None if stored is None else read_record(stored)
            if stored is None or topic is None:
                raise TopicNotFound(f"{name} does not exist. Create it first.")
            changed = change(topic)
            try:
                await self._metadata.commit([Put(record_key(name), changed.encode(), stored.version), *beside(changed)])
            except Conflict:
                continue
            return changed

    async def delete(self, name: TopicName) -> PartitionedTopic:
        """Mark a topic, so that its partitions are removed and then its record; the mark is durable on return.

        Raises:
            TopicNotFound: there is no such topic.
        """
        return await self._change(name, lambda topic: replace(topic, is_deleting=True))

    async def renew_mark(self, topic: PartitionedTopic) -> None:
        """Write the record of a topic that is being deleted again, so that all brokers look at its partitions again.

        Nothing happens if the record is gone, or is that of a later topic.
        """

        def unchanged(known: PartitionedTopic) -> PartitionedTopic:
            if known.topic_id != topic.topic_id:
                raise TopicNotFound(f"{topic.name} was removed.")
            return known

        with suppress(TopicNotFound):
            await self._change(topic.name, unchanged)

    async def wait_gone(self, topic: PartitionedTopic) -> None:
        """Return once the record of a topic that is being deleted is gone."""
        async with self._metadata.watch_key(record_key(topic.name)) as watch:
            while True:
                record = await watch.next()
                known = None if record is None else read_record(record)
                if known is None or known.topic_id != topic.topic_id:
                    return

    async def forget(self, topic: PartitionedTopic) -> None:
        """Remove the record of a topic whose partitions were removed; durable on return."""
        stored = await self._metadata.get(record_key(topic.name))
        known = None if stored is None else read_record(stored)
        if stored is not None and known is not None and known.topic_id == topic.topic_id:
            try:
                await self._metadata.delete(stored.key, expected=stored.version)
            except Conflict:
                log.info("a partitioned topic was changed while it was being deleted", topic=str(topic.name))

    async def all_in(self, tenant: str, namespace: str, first: str = "") -> AsyncGenerator[PartitionedTopic, None]:
        """Yield the topics of a namespace that are not being deleted, from a local name on, by their quoted names."""
        start, end = starting_with(_prefix(tenant, namespace))
        start += quote(first, safe="")
        while page := await self._metadata.scan(start, end, limit=_PAGE):
            for record in page:
                topic = read_record(record)
                if topic is not None and not topic.is_deleting:
                    yield topic
            start = page[-1].key + "\0"


async def forget_nothing(_metadata: MetadataStore, _topic: TopicName) -> None:
    """Front ends store nothing about topics."""


def _prefix(tenant: str, namespace: str) -> str:
    return f"{PARTITIONED_TOPICS}{tenant}/{namespace}/"


def record_key(name: TopicName) -> str:
    """The key of the record of a partitioned topic."""
    assert name.domain is Domain.PERSISTENT, "only regular topics are partitioned"
    return _prefix(name.tenant, name.namespace) + quote(name.local, safe="")


def read_record(record: Record) -> PartitionedTopic | None:
    """Return the topic of a record; None if the record is damaged."""
    tenant, namespace, local = record.key.removeprefix(PARTITIONED_TOPICS).split("/")
    try:
        name = TopicName(Domain.PERSISTENT, tenant, namespace, unquote(local))
        return replace(PartitionedTopic.decode(name, record.value), version=record.version)
    except ValueError as damaged:
        log.error("a partitioned topic is damaged and is not served", key=record.key, reason=str(damaged))
        return None
