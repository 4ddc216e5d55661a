"""What administrators ask about groups, and do to them: describe, list, and delete groups and offsets.

A group without members needs no coordinator to be told about: its record says everything. So monitoring that asks for
all groups again and again loads and claims none of them, however many there are.
"""

from collections.abc import Collection

from broker.kafka.groups.coordination import Coordination, group_claim_key
from broker.kafka.groups.group import Group
from broker.kafka.groups.group_record import (
    GROUPS,
    GROUPS_AT_ONCE,
    GroupRecordDamaged,
    from_value,
    group_key,
    group_of_key,
)
from broker.kafka.groups.loaded import DamagedGroup, Refused, refusal, require_name
from broker.kafka.groups.loaded_groups import LoadedGroups
from broker.kafka.groups.offsets import OffsetStore, TopicPartition, all_of
from broker.kafka.groups.subscription import CONSUMER, topics_in
from broker.kafka.groups.values import DescribedGroup, GroupError, GroupState, ListedGroup
from storage.errors import ExpectedError
from storage.metadata.store import Delete, MetadataStore, Record, starting_with


class GroupAdministration:
    """See the module's docstring."""

    def __init__(
        self, groups: LoadedGroups, coordination: Coordination, metadata: MetadataStore, offsets: OffsetStore
    ) -> None:
        self._groups = groups
        self._coordination = coordination
        self._metadata = metadata
        self._offsets = offsets

    async def describe(self, group: str) -> DescribedGroup:
        """DescribeGroups. A group that does not exist is DEAD, as Kafka says."""
        try:
            require_name(group, may_be_empty=True)
            at_rest = None if group in self._groups else await self._at_rest(group)
            if at_rest is not None:
                return at_rest
            loaded = await self._groups.open(group, create=False)
        except Refused as refused:
            return DescribedGroup(GroupState.DEAD, error=refused.error)
        return DescribedGroup(GroupState.DEAD) if loaded is None else loaded.group.described()

    async def _at_rest(self, group: str) -> DescribedGroup | None:
        """Describe a group from its record, if it has no members there; None if it has to be loaded.

        Raises:
            Refused: another broker coordinates it, or nobody can tell now.
        """
        key, claim_key = group_key(group), group_claim_key(group)
        try:
            seen = (await self._metadata.fresh({key, claim_key})).records
        except ExpectedError as failed:
            raise refusal(failed) from failed
        if self._coordination.is_elsewhere(seen[claim_key]):
            raise Refused(GroupError.NOT_COORDINATOR, f"Another broker coordinates the group {group}.")
        record = seen[key]
        if record is None:
            return DescribedGroup(GroupState.DEAD)
        protocol_type = _type_without_members(record)
        return None if protocol_type is None else DescribedGroup(GroupState.EMPTY, protocol_type)

    async def listed(self) -> list[ListedGroup]:
        """ListGroups: the groups that this broker coordinates, and should. All brokers together list each group once.

        Raises:
            StoreUnavailable: the metadata store does not answer.
        """
        found = {loaded.name: _listed(loaded.name, loaded.group) for loaded in self._groups.all()}
        at_rest: list[ListedGroup] = []
        loading: list[str] = []
        owned = await self._coordination.owned()
        start, end = starting_with(GROUPS)
        while True:
            page = await self._metadata.scan(start, end, limit=GROUPS_AT_ONCE)
            for record in page:
                name = group_of_key(record.key)
                if name in found or not self._coordination.is_mine(name, owned.get(name)):
                    continue
                protocol_type = _type_without_members(record)
                if protocol_type is None:
                    loading.append(name)
                else:
                    at_rest.append(ListedGroup(name, protocol_type, GroupState.EMPTY))
            if len(page) < GROUPS_AT_ONCE:
                break
            start = page[-1].key + "\0"
        loaded = [await self._load(name) for name in loading]
        return [*found.values(), *at_rest, *(group for group in loaded if group is not None)]

    async def _load(self, name: str) -> ListedGroup | None:
        """Load the group, so that the members that it still has on record come back or go."""
        try:
            loaded = await self._groups.open(name, create=False)
        except DamagedGroup:
            return ListedGroup(name, "", GroupState.DEAD)
        except Refused:
            # Another broker was faster, and lists it; or nobody can at the moment.
            return None
        return None if loaded is None else _listed(name, loaded.group)

    async def delete(self, group: str) -> GroupError | None:
        """DeleteGroups, for one group. Return why it is not deleted. Durable on return, with its offsets."""
        try:
            require_name(group, may_be_empty=True)
            async with self._groups.alone(group) as loaded:
                if loaded is None:
                    return GroupError.GROUP_ID_NOT_FOUND
                if not loaded.group.is_vacant:
                    return GroupError.NON_EMPTY_GROUP
                async with self._groups.writes(loaded):
                    await self._offsets.drop_deferred(group)
                    record = Delete(group_key(group), loaded.version)
                    await self._metadata.commit([all_of(group), record, loaded.claim])
                await self._groups.resign(loaded)
        except DamagedGroup:
            return await self._delete_damaged(group)
        except Refused as refused:
            return refused.error
        return None

    async def _delete_damaged(self, group: str) -> GroupError | None:
        try:
            # Nobody can commit for a group that cannot be loaded.
            await self._offsets.drop_deferred(group)
            await self._groups.remove_damaged(group)
        except ExpectedError as failed:
            return refusal(failed).error
        return None

    async def delete_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, GroupError | None] | GroupError:
        """OffsetDelete. Return for each partition why its offset stays. Consumers keep those of the topics they read.

        Durable on return.
        """
        try:
            require_name(group, may_be_empty=True)
            async with self._groups.alone(group) as loaded:
                if loaded is None:
                    return GroupError.GROUP_ID_NOT_FOUND
                read: frozenset[str] | None = frozenset()
                if not loaded.group.is_vacant:
                    if loaded.group.protocol_type != CONSUMER:
                        return GroupError.NON_EMPTY_GROUP
                    read = _topics_read(loaded.group)
                errors = {
                    each: GroupError.GROUP_SUBSCRIBED_TO_TOPIC if read is None or each.topic in read else None
                    for each in partitions
                }
                removed = [each for each, error in errors.items() if error is None]
                async with self._groups.writes(loaded):
                    await self._offsets.drop_deferred(group, removed)
                    await self._offsets.delete_partitions(group, removed, loaded.conditions)
        except Refused as refused:
            return refused.error
        return errors


def _listed(name: str, group: Group) -> ListedGroup:
    return ListedGroup(name, group.protocol_type or "", group.state)


def _type_without_members(record: Record) -> str | None:
    """Return the type of a group that has no members on record; None if it has some, or is damaged."""
    try:
        stored = from_value(record.key, record.value).record
    except GroupRecordDamaged:
        return None
    return None if stored.members else stored.protocol_type or ""


def _topics_read(group: Group) -> frozenset[str] | None:
    """Return the topics that members read; None if they do not say so."""
    read: set[str] = set()
    for metadata in group.subscriptions():
        topics = topics_in(metadata)
        if topics is None:
            return None
        read |= topics
    return frozenset(read)
