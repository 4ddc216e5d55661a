"""Kafka's topics: which topics stand behind a name, and the names that clients may use (K43).

    a Kafka topic x          is                                                           it has
    a partitioned topic      the record of `persistent://<namespace>/x`                   as many partitions
    a scalable topic         `topic://<namespace>/x`, which can only be read              one for each segment
    any other regular topic  `persistent://<namespace>/x`, as Pulsar's clients make one   one partition

`partitioned_topics.py` has the records, and `scalable_topics.py` tells of segments.

A name that ends as a partition's does is no topic of its own. No scalable topic is created beside a regular one of its
name, nor the other way round. So different names are different topics. If both exist nevertheless, x is the regular
one. A topic that was migrated is the scalable one, whose segment 0 has the messages of the regular one.
"""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from broker.errors import TopicExists, TopicNotFound
from broker.kafka.errors import Refused, SegmentPruned
from broker.kafka.kafka_topic import NO_TOPIC_ID, WRITE_OTHERWISE, KafkaTopic, read_only
from broker.kafka.requests import take_turns
from broker.kafka.scalable_topics import was_migrated_from
from broker.kafka.topic_settings import ProduceRules, TopicSettings, retention_in, settings_of
from broker.layouts.layout import Layout
from broker.layouts.pruned_segments import end_of
from broker.layouts.store import Layouts, layout_key
from broker.names import Domain, TopicName
from broker.partitioned_topics import Alter, Configs, PartitionedTopics, read_record, record_key
from broker.retention_policies import RetentionPolicies, topic_key
from broker.topic import Topic
from broker.topics import Topics
from storage.managed_ledger_opening import creation_id_of
from storage.metadata.store import ABSENT, Check, Conflict, MetadataStore, Op
from tidewire.wire.kafka.error_codes import ErrorCode

NAME_LENGTH_MAX: Final = 249
KNOWN_MAX: Final = 10_000
"""Partitions whose topics are kept in mind."""

_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{NAME_LENGTH_MAX}}}")


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
        self._known: dict[tuple[str, int], TopicName] = {}
        """The topics behind partitions that were looked up. They count while they run here."""
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
            return KafkaTopic.of_record(record)
        scalable = await self._layouts.version_or_none(regular.as_scalable)
        if scalable is not None and await self._is_shown(scalable.layout, regular):
            return KafkaTopic.of_layout(regular, scalable.layout, scalable.check)
        if await self._layouts.is_made(regular):
            return KafkaTopic(name, NO_TOPIC_ID, regular)
        raise TopicNotFound(f"The topic {name} does not exist. Create it first.")

    async def newest_layout(self, name: str) -> Layout | None:
        """Return the layout of a scalable topic, with every change that was made before the call; None of others.

        Raises:
            Refused: it is no legal name.
            StoreUnavailable: the metadata store does not answer.
        """
        regular = self.regular(name)
        if await self._partitioned.find(regular) is not None:
            return None
        layout = await self._layouts.newest_or_none(regular.as_scalable)
        return layout if layout is not None and await self._is_shown(layout, regular) else None

    async def _is_shown(self, layout: Layout, regular: TopicName) -> bool:
        """Whether a name without a partitioned topic is that of the scalable topic with this layout."""
        if layout.is_deleting:
            return False
        return was_migrated_from(layout, regular) or not await self._layouts.is_made(regular)

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
            TopicExists: it exists, or is being deleted, or a scalable topic has the name.
        """
        regular = await self.require_free(name)
        partitions = partitions or self._partitions_default
        for index in range(partitions):
            if await self._layouts.is_made(regular.partition(index)):
                raise TopicExists(f"{regular.partition(index)} exists already. Choose another name.")
        policy = self._retention.to_put(topic_key(regular), retention_in(configs))
        no_other = Check(layout_key(regular.as_scalable), ABSENT)
        return KafkaTopic.of_record(await self._partitioned.create(regular, partitions, configs, [policy, no_other]))

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

    async def settings(self, name: str) -> tuple[Mapping[str, str], bool]:
        """Return the settings that a topic was given, and whether Kafka's clients may change them.

        Raises:
            Refused: it is no legal name.
            TopicNotFound: there is no such topic, or it has no settings of Kafka's.
        """
        topic = await self.find(name)
        if topic.layout is not None:
            return settings_of(self._retention.of(topic.regular.as_scalable)), False
        if topic.record is None:
            raise TopicNotFound(f"{name} is a topic of Pulsar's clients, without settings of Kafka's.")
        return topic.record.configs, True

    async def require_free(self, name: str) -> TopicName:
        """Return the regular topic of a Kafka name that is not in use. Raises as `create` does."""
        regular = self.regular(name)
        if (
            await self._layouts.is_made(regular)
            or await self._layouts.stored_or_none(regular.as_scalable) is not None
            or await self._partitioned.find(regular) is not None
        ):
            raise TopicExists(f"The topic {name} exists already. Choose another name, or delete it first.")
        return regular

    async def all(self, start: str = "") -> AsyncGenerator[KafkaTopic, None]:
        """Yield the partitioned and the scalable topics from this name on, by name. It reads them page by page."""
        async with (
            aclosing(self._scalable_from(start)) as scalable,
            aclosing(self._partitioned.all_in(self._tenant, self._namespace, start)) as records,
        ):
            ahead = await anext(scalable, None)
            async for record in records:
                name = record.name.local
                if _NAME.fullmatch(name):
                    while ahead is not None and ahead.name <= name:
                        if ahead.name < name:
                            yield ahead
                        ahead = await anext(scalable, None)
                    yield KafkaTopic.of_record(record)
            while ahead is not None:
                yield ahead
                ahead = await anext(scalable, None)

    async def _scalable_from(self, start: str) -> AsyncGenerator[KafkaTopic, None]:
        """The scalable topics from this name on, by name, except those beside a regular topic without partitions.

        The store has them by their quoted names. For legal names, that is the same order.
        """
        async with aclosing(self._layouts.each(f"{self._tenant}/{self._namespace}", start)) as layouts:
            async for topic, layout in layouts:
                await self._take_turns()
                regular = topic.as_regular
                if topic.local < start or not _NAME.fullmatch(topic.local) or regular.partition_index is not None:
                    continue
                if isinstance(layout, Layout) and await self._is_shown(layout, regular):
                    yield KafkaTopic.of_layout(regular, layout)

    async def _take_turns(self) -> None:
        self._look_ups += 1
        await take_turns(self._look_ups)

    async def made(self, name: str, index: int) -> tuple[TopicName, str]:
        """Return the regular topic behind a partition, and its creation id. It is made if there is none yet.

        Raises:
            Refused: it is no legal name, or a scalable topic.
            TopicNotFound: there is no such topic or partition.
            LedgerListCorrupt: its record is damaged.
        """
        while True:
            topic = await self.find(name)
            topic.require_regular(WRITE_OTHERWISE)
            regular = topic.partition(index)
            assert regular is not None, "only a scalable topic is without some"
            try:
                return regular, await self._make(topic, regular)
            except Conflict:
                continue

    async def _make(self, topic: KafkaTopic, regular: TopicName) -> str:
        """Return the creation id of a partition, which is made if there is none yet.

        Raises:
            Conflict: the topic has changed.
        """
        # None is made behind the deletion of the topic. Nobody would remove it.
        conditions = () if topic.record is None else (topic.record.unchanged,)
        return await creation_id_of(str(regular), self._metadata, conditions)

    async def partition(self, name: str, index: int) -> Topic:
        """Return a partition, loaded here.

        Raises:
            Refused: it is no legal name.
            TopicNotFound: there is no such topic or partition.
            SegmentPruned: its segment was pruned. Any broker may say so.
            OwnedElsewhere, TopicClosed, TopicDamaged: this broker does not serve it.
        """
        running = await self.running(name, index)
        if running is not None:
            running.clients.touch()
            return running
        found = await self._partition(name, index)
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[name, index] = found
        return await self._topics.get(found, creates=False)

    async def running(self, name: str, index: int) -> Topic | None:
        """Return a partition that was asked for before, if it is loaded here."""
        await self._take_turns()
        known = self._known.get((name, index))
        return None if known is None else self._topics.running(known)

    async def _partition(self, name: str, index: int) -> TopicName:
        """The topic behind a partition. Raises as `partition` does, unless it has to be loaded."""
        while True:
            topic = await self.find(name)
            found = topic.partition(index)
            if found is None:
                end = await end_of(self._metadata, topic.regular.as_scalable, index)
                raise SegmentPruned(f"Segment {index} of {name} was pruned, because its retention was over.", end)
            try:
                if topic.layout is None:
                    await self._make(topic, found)
            except Conflict:
                continue
            return found

    async def writable(self, name: str, index: int, instead: str = WRITE_OTHERWISE) -> Topic:
        """As `partition`, for a change. `instead` tells what to do if Kafka's clients may not make it.

        Raises:
            Refused: it is a partition of a scalable topic, or see `partition`.
        """
        try:
            topic = await self.partition(name, index)
        except SegmentPruned:
            raise read_only(name, instead) from None
        if topic.scalable_topic is not None:
            raise read_only(name, instead)
        return topic
