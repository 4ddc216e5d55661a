"""Kafka's topics: which regular topics stand behind a name, and the names that clients may use (K43).

    a Kafka topic x          is                                                             it has
    a partitioned topic      the record of `persistent://<namespace>/x` (`partitioned_topics.py`)   as many partitions
    any other regular topic  `persistent://<namespace>/x`, as Pulsar's clients make one             one partition

A name that ends as a partition's does is no topic of its own, so different names are different topics.
"""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from broker.errors import TopicExists, TopicNotFound
from broker.kafka.errors import Refused
from broker.kafka.requests import take_turns
from broker.kafka.topic_settings import ProduceRules, TopicSettings, retention_in
from broker.layouts.store import Layouts
from broker.names import Domain, TopicName
from broker.partitioned_topics import (
    TOPIC_ID_BYTES,
    Alter,
    Configs,
    PartitionedTopic,
    PartitionedTopics,
    read_record,
    record_key,
)
from broker.retention_policies import RetentionPolicies, topic_key
from broker.topic import Topic
from broker.topics import Topics
from storage.managed_ledger_opening import creation_id_of
from storage.metadata.store import ABSENT, Conflict, MetadataStore, Op
from tidewire.wire.kafka.error_codes import ErrorCode

NAME_LENGTH_MAX: Final = 249
KNOWN_MAX: Final = 10_000
"""Partitions whose names are kept checked."""
NO_TOPIC_ID: Final = bytes(TOPIC_ID_BYTES)

_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{NAME_LENGTH_MAX}}}")


class KafkaTopic(NamedTuple):
    """A topic as Kafka's clients see it."""

    name: str
    topic_id: bytes
    regular: TopicName
    """The regular topic of this name. Its partitions stand behind this topic, or it does itself."""
    record: PartitionedTopic | None
    """Its record; None if it is one regular topic."""

    @property
    def partition_count(self) -> int:
        """How many partitions it has."""
        return 1 if self.record is None else self.record.partitions

    @property
    def partitions(self) -> tuple[TopicName, ...]:
        """The regular topic behind each partition. There may be many; `partition` makes one name."""
        return tuple(self.partition(index) for index in range(self.partition_count))

    def partition(self, index: int) -> TopicName:
        """The regular topic behind a partition.

        Raises:
            TopicNotFound: the topic has no such partition.
        """
        if not 0 <= index < self.partition_count:
            raise TopicNotFound(f"The topic {self.name} has no partition {index}; it has {self.partition_count}.")
        return self.regular if self.record is None else self.regular.partition(index)


class _KnownRules(NamedTuple):
    """The rules in one version of a topic's record."""

    key: str
    version: int
    rules: ProduceRules


class KafkaTopics:
    """The topics of the namespace that Kafka's clients see."""

    def __init__(
        self,
        topics: Topics,
        partitioned: PartitionedTopics,
        layouts: Layouts,
        retention: RetentionPolicies,
        metadata: MetadataStore,
        settings: TopicSettings,
        *,
        namespace: str,
        partitions_default: int,
    ) -> None:
        self._topics = topics
        self._partitioned = partitioned
        self._layouts = layouts
        self._retention = retention
        self._metadata = metadata
        self._settings = settings
        self._rules: dict[str, _KnownRules] = {}
        self._tenant, self._namespace = namespace.split("/")
        self._partitions_default = partitions_default
        self._known: dict[tuple[str, int], tuple[TopicName, ...]] = {}
        """Names that were checked before."""
        self._look_ups = 0
        """Of all clients. Others have a turn after some of them."""

    def regular(self, name: str) -> TopicName:
        """Return the regular topic of a Kafka name.

        Raises:
            Refused: it is no legal name.
        """
        if not _NAME.fullmatch(name) or name in {".", ".."}:
            raise Refused(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{name[:NAME_LENGTH_MAX]!r} is no legal topic. A name has 1 to {NAME_LENGTH_MAX} letters, digits, and "
                "the characters . _ and -, and is not . or ..",
            )
        regular = TopicName(Domain.PERSISTENT, self._tenant, self._namespace, name)
        if regular.partition_index is not None:
            raise Refused(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{name} is the name of a partition of {regular.partitioned_topic.local}. Use that topic.",
            )
        return regular

    async def find(self, name: str) -> KafkaTopic:
        """Return the topic.

        Raises:
            Refused: it is no legal name.
            TopicNotFound: there is no such topic.
        """
        await self._take_turns()
        regular = self.regular(name)
        record = await self._partitioned.find(regular)
        if record is not None:
            return _seen(record)
        if await self._layouts.is_made(regular):
            return KafkaTopic(name, NO_TOPIC_ID, regular, None)
        raise TopicNotFound(f"The topic {name} does not exist. Create it first.")

    async def find_or_create(self, name: str) -> KafkaTopic:
        """Return the topic. A missing one is created with the default number of partitions. Raises as `find` does."""
        try:
            return await self.find(name)
        except TopicNotFound:
            try:
                return await self.create(name, self._partitions_default, {})
            except TopicExists:
                return await self.find(name)

    async def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> KafkaTopic:
        """Make a topic; durable on return.

        Raises:
            Refused: it is no legal name.
            TopicExists: it exists, or is being deleted.
        """
        regular = await self.require_free(name)
        partitions = partitions or self._partitions_default
        for index in range(partitions):
            if await self._layouts.is_made(regular.partition(index)):
                raise TopicExists(f"{regular.partition(index)} exists already. Choose another name.")
        policy = self._retention.to_put(topic_key(regular), retention_in(configs))
        return _seen(await self._partitioned.create(regular, partitions, configs, [policy]))

    async def configure(self, name: str, alter: Alter) -> None:
        """Change the settings of a topic; durable on return. `alter` is asked again if they change meanwhile.

        Raises:
            Refused: it is no legal name.
            TopicNotFound: there is no such topic.
        """
        regular = self.regular(name)

        def policy(configs: Configs) -> Sequence[Op]:
            return [self._retention.to_put(topic_key(regular), retention_in(configs))]

        await self._partitioned.configure(regular, alter, policy)

    def rules(self, name: str) -> ProduceRules:
        """What the settings of a topic say about batches, as this broker knows them.

        A change takes effect at once on the broker that made it, and on others when they hear of it.
        """
        known = self._rules.get(name)
        key = known.key if known is not None else record_key(self.regular(name))
        stored = self._metadata.peek(key)
        version = ABSENT if stored is None else stored.version
        if known is None or known.version != version:
            record = None if stored is None else read_record(stored)
            rules = self._settings.rules_in({} if record is None else record.configs)
            if len(self._rules) >= KNOWN_MAX:
                self._rules.clear()
            known = self._rules[name] = _KnownRules(key, version, rules)
        return known.rules

    async def require_free(self, name: str) -> TopicName:
        """Return the regular topic of a Kafka name that is not in use. Raises as `create` does."""
        regular = self.regular(name)
        if await self._layouts.is_made(regular) or await self._partitioned.find(regular) is not None:
            raise TopicExists(f"The topic {name} exists already. Choose another name, or delete it first.")
        return regular

    async def all(self, start: str = "") -> AsyncGenerator[KafkaTopic, None]:
        """Yield the partitioned topics from this name on, by name."""
        async with aclosing(self._partitioned.all_in(self._tenant, self._namespace, start)) as records:
            async for record in records:
                if _NAME.fullmatch(record.name.local):
                    yield _seen(record)

    async def _take_turns(self) -> None:
        self._look_ups += 1
        await take_turns(self._look_ups)

    def _candidates(self, name: str, index: int) -> tuple[TopicName, ...]:
        """The regular topics that may stand behind a partition."""
        known = self._known.get((name, index))
        if known is None:
            regular = self.regular(name)
            if index < 0:
                raise TopicNotFound(f"The topic {name} has no partition {index}.")
            known = (regular.partition(index), regular) if index == 0 else (regular.partition(index),)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[name, index] = known
        return known

    async def made(self, name: str, index: int) -> tuple[TopicName, str]:
        """Return the regular topic behind a partition, and its creation id. It is made if there is none yet.

        Raises:
            Refused: it is no legal name.
            TopicNotFound: there is no such topic or partition.
            LedgerListCorrupt: its record is damaged.
        """
        while True:
            topic = await self.find(name)
            regular = topic.partition(index)
            # None is made behind the deletion of the topic. Nobody would remove it.
            conditions = () if topic.record is None else (topic.record.unchanged,)
            try:
                return regular, await creation_id_of(str(regular), self._metadata, conditions)
            except Conflict:
                continue

    async def partition(self, name: str, index: int) -> Topic:
        """Return a partition, loaded here.

        Raises:
            Refused: it is no legal name.
            TopicNotFound: there is no such topic or partition.
            OwnedElsewhere, TopicClosed, TopicDamaged: this broker does not serve it.
        """
        await self._take_turns()
        for candidate in self._candidates(name, index):
            running = self._topics.running(candidate)
            if running is not None:
                running.clients.touch()
                return running
        regular, _creation_id = await self.made(name, index)
        return await self._topics.get(regular, creates=False)


def _seen(record: PartitionedTopic) -> KafkaTopic:
    return KafkaTopic(record.name.local, record.topic_id, record.name, record)
