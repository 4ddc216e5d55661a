"""Kafka's groups as they read a topic: to administrators each of them is a subscription beside Pulsar's (K36).

A group reads a topic if it has an offset on it, or if its members say so. All of it is read from the metadata store, so
any broker may answer. A group that a coordinator is just rebalancing is shown as it was before.
"""

from collections.abc import AsyncIterator, Mapping

import structlog
import trio

from broker.kafka.groups.group_record import GROUPS, GROUPS_AT_ONCE, GroupRecordDamaged, from_value, group_of_key
from broker.kafka.groups.offsets import OffsetStore
from broker.kafka.groups.subscription import topics_in
from broker.kafka.groups.values import GroupRecord, GroupState
from broker.kafka.scalable_topics import read_from_start
from broker.layouts.layout import Layout
from broker.names import TopicName
from broker.series import GroupOffset, GroupOffsets
from broker.topic_statistics import GroupOnTopic, GroupsOn
from storage.metadata.store import MetadataStore, Record, starting_with

log = structlog.get_logger(__name__)


def groups_on(namespace: str) -> GroupsOn:
    """Return what finds the groups that read a topic, if Kafka's clients see its namespace."""

    async def found(store: MetadataStore, topic: TopicName, layout: Layout | None) -> Mapping[str, GroupOnTopic]:
        if topic.tenant_namespace != namespace:
            return {}
        groups: dict[str, GroupOnTopic] = {}
        start, end = starting_with(GROUPS)
        while page := await store.scan(start, end, limit=GROUPS_AT_ONCE):
            for record in page:
                await trio.lowlevel.checkpoint()
                group = await _group_on(store, record, topic.local, layout)
                if group is not None:
                    groups[group_of_key(record.key)] = group
            start = page[-1].key + "\0"
        return groups

    return found


def offsets_of_groups(namespace: str) -> GroupOffsets:
    """Return what yields all committed offsets of Kafka's clients, who see this namespace."""

    async def found(store: MetadataStore) -> AsyncIterator[GroupOffset]:
        async for group, stored in OffsetStore(store).scan_all():
            topic, partition = stored.partition
            if stored.offset is not None:
                yield GroupOffset(group, namespace, topic, partition, stored.offset.offset)

    return found


async def _group_on(store: MetadataStore, record: Record, topic: str, layout: Layout | None) -> GroupOnTopic | None:
    name = group_of_key(record.key)
    stored = await OffsetStore(store).scan(name, topic)
    offsets = {one.partition.partition: one.offset.offset for one in stored if one.offset is not None}
    try:
        group = from_value(record.key, record.value).record
    except GroupRecordDamaged as damaged:
        log.error("a consumer group cannot be read", group=name, reason=str(damaged))
        return GroupOnTopic(GroupState.DEAD, 0, offsets) if offsets else None
    consumers = sum(topic in read for read in _topics_of(group))
    if not offsets and not consumers:
        return None
    if layout is not None:
        missing = layout.segments.keys() - offsets.keys()
        begun = read_from_start(layout, missing, offsets.keys(), group.seen.get(topic))
        offsets |= dict.fromkeys(begun, 0)
    return GroupOnTopic(group.state, consumers, offsets)


def _topics_of(group: GroupRecord) -> list[frozenset[str]]:
    """What each member reads; nothing of a member that does not say so."""
    metadata = (
        known.metadata for member in group.members for known in member.protocols if known.name == group.protocol
    )
    return [topics_in(one) or frozenset() for one in metadata]
