"""The groups of one broker, as Kafka's front end uses them: one method for each request, plain values in and out.

It refuses what it does not coordinate, and answers nothing that is not durable: an assignment and an offset are stored
before their requests are answered. A join and a sync may wait long, as Kafka means them to. Every other request waits
for the metadata store alone.
"""

from collections.abc import Collection, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import uuid4

import trio

from broker.kafka.groups.administration import GroupAdministration
from broker.kafka.groups.coordination import Coordination
from broker.kafka.groups.expiry import OffsetExpiry
from broker.kafka.groups.group_record import from_value, group_key
from broker.kafka.groups.loaded import Refused, refusal, require_name
from broker.kafka.groups.loaded_groups import LoadedGroups, now_ms
from broker.kafka.groups.offsets import FetchedOffset, Offset, OffsetStore, Slice, TopicPartition, slices
from broker.kafka.groups.values import (
    NO_GENERATION,
    GroupError,
    GroupSettings,
    JoinAnswer,
    JoinRequest,
    Leaver,
    SyncAnswer,
    SyncRequest,
)
from storage.clock import WallClock
from storage.metadata.store import ABSENT, Check, Conflict, MetadataError, MetadataStore, Put
from txn.deferred_puts import deferred

GROUPS_BYTES_MAX: Final = 64 * 1024 * 1024
"""What the members of all groups may say of themselves."""


NO_CONDITIONS: Final[Mapping[str, Check]] = MappingProxyType({})


class TopicsChanged(Exception):
    """A topic's record has changed, so the topic may be gone. What was not committed yet is not."""


class InTransaction(NamedTuple):
    """The transaction whose commit makes the offsets count."""

    transactional_id: str
    conditions: tuple[Check, ...]
    """They hold while the transaction is open and the group takes part in it."""


class CommitRequest(NamedTuple):
    """Who commits offsets, and which."""

    offsets: Mapping[TopicPartition, Offset]
    """`committed_ms` is filled in here."""
    member_id: str = ""
    instance_id: str | None = None
    generation: int = NO_GENERATION
    within: InTransaction | None = None
    topics: Mapping[str, Check] = NO_CONDITIONS
    """Conditions that hold while the topics exist as the caller knows them."""

    @property
    def is_anonymous(self) -> bool:
        """Whether it names no member. A transaction of an older client does not (KIP-447)."""
        return self.within is not None and self.generation < 0 and not self.member_id


class LeaveAnswer(NamedTuple):
    """The answer to a request to leave."""

    error: GroupError | None
    """Why nobody left."""
    members: tuple[GroupError | None, ...] = ()
    """For each member, why it did not leave."""


class Reading(NamedTuple):
    """What a group has read of a topic."""

    committed: Set[int]
    """The partitions on which it has offsets, or gets them when a transaction commits."""
    seen: int | None
    """How many partitions its members knew when they began to read the topic; None if they do not read it."""


class GroupStatistics(NamedTuple):
    """A snapshot for metrics and for people."""

    groups: int
    members_bytes: int
    waiting: int
    """Joins and syncs."""


class GroupCoordinator:
    """See the module's docstring. It serves while `run` runs."""

    def __init__(
        self, coordination: Coordination, metadata: MetadataStore, settings: GroupSettings, *, wall_ms: WallClock
    ) -> None:
        """Set up. `wall_ms` stamps offsets and records."""
        self._coordination = coordination
        self._metadata = metadata
        self._settings = settings
        self._wall_ms = wall_ms
        self._groups = LoadedGroups(coordination, metadata, settings, wall_ms)
        self._offsets = OffsetStore(metadata)
        self.administration: Final = GroupAdministration(self._groups, coordination, metadata, self._offsets)
        self.expiry: Final = OffsetExpiry(
            self._groups,
            coordination,
            metadata,
            self._offsets,
            retention_ms=settings.offsets_retention_ms,
            wall_ms=wall_ms,
        )
        """Removes old offsets. Its `run` is background work of its own."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. Then nobody waits any more."""
        await self._groups.run(task_status=task_status)

    async def hand_over(self) -> None:
        """Stop coordinating all groups, because this broker drains. Their members go on at other brokers."""
        await self._groups.resign_all()

    def statistics(self) -> GroupStatistics:
        """Return counters of this moment."""
        return GroupStatistics(len(self._groups), self._groups.members_bytes, self._groups.waiting)

    async def find(self, group: str) -> str | None:
        """Return the id of the broker that coordinates the group, or should; None if nobody can tell now.

        Raises:
            StoreUnavailable: the metadata store does not answer.
        """
        return await self._coordination.find(group)

    async def join(self, group: str, request: JoinRequest) -> JoinAnswer:
        """JoinGroup. It waits until the next generation begins."""
        try:
            require_name(group)
            loaded = await self._groups.open(group, create=not request.member_id)
        except Refused as refused:
            return JoinAnswer(refused.error, request.member_id)
        if loaded is None:
            return JoinAnswer(GroupError.UNKNOWN_MEMBER_ID, request.member_id)
        added = loaded.group.added_bytes(request)
        if added > 0 and self._groups.members_bytes + added > GROUPS_BYTES_MAX:
            return JoinAnswer(GroupError.GROUP_MAX_SIZE_REACHED, request.member_id)
        known, fresh_id = loaded.group, f"{request.instance_id or request.client_id}-{uuid4()}"
        return await self._groups.join(loaded, lambda ticket: known.join(request, fresh_id, ticket, now_ms()))

    async def sync(self, group: str, request: SyncRequest) -> SyncAnswer:
        """SyncGroup. It waits until the leader's assignment is durable."""
        try:
            require_name(group)
            loaded = await self._groups.open(group, create=False)
        except Refused as refused:
            return SyncAnswer(refused.error)
        if loaded is None:
            return SyncAnswer(GroupError.UNKNOWN_MEMBER_ID)
        known = loaded.group
        return await self._groups.sync(loaded, lambda ticket: known.sync(request, ticket, now_ms()))

    async def heartbeat(
        self, group: str, member_id: str, instance_id: str | None, generation: int
    ) -> GroupError | None:
        """Heartbeat. Return why the member must act, if it must."""
        try:
            require_name(group)
            loaded = await self._groups.open(group, create=False)
        except Refused as refused:
            return refused.error
        if loaded is None:
            return GroupError.UNKNOWN_MEMBER_ID
        return loaded.group.heartbeat(member_id, instance_id, generation, now_ms())

    async def known_to(self, group: str, member_id: str) -> Mapping[str, int]:
        """Return how many partitions of each scalable topic the group's leader knew when it assigned them.

        It is empty if this member does not lead, or if the group is not served here.
        """
        try:
            loaded = await self._groups.open(group, create=False)
        except Refused:
            return {}
        return {} if loaded is None else loaded.group.known_to(member_id)

    async def partitions_are(self, group: str, partitions: Mapping[str, int]) -> None:
        """Let the group's leader assign anew, if it knew fewer partitions of these topics.

        Raises:
            Refused: the group is not served here now.
        """
        loaded = await self._groups.open(group, create=False)
        if loaded is not None:
            self._groups.apply(loaded, loaded.group.partitions_are(partitions, now_ms()))

    async def leave(self, group: str, leavers: Sequence[Leaver]) -> LeaveAnswer:
        """LeaveGroup."""
        try:
            require_name(group)
            loaded = await self._groups.open(group, create=False)
        except Refused as refused:
            return LeaveAnswer(refused.error)
        if loaded is None:
            return LeaveAnswer(None, (GroupError.UNKNOWN_MEMBER_ID,) * len(leavers))
        errors, effects = loaded.group.leave(leavers, now_ms())
        self._groups.apply(loaded, effects)
        return LeaveAnswer(None, tuple(errors))

    async def commit(self, group: str, request: CommitRequest) -> dict[TopicPartition, GroupError | None]:
        """OffsetCommit. Return for each partition why its offset is not committed. The others are durable.

        The caller makes sure that the partitions exist, which bounds what a group may store.

        Raises:
            TopicsChanged: a condition on a topic does not hold. The caller looks again, and repeats the request.
        """
        errors: dict[TopicPartition, GroupError | None] = dict.fromkeys(request.offsets)
        taken: dict[TopicPartition, Offset] = {}
        committed_ms = self._wall_ms()
        for partition, offset in request.offsets.items():
            if len(offset.metadata.encode()) > self._settings.offset_metadata_bytes_max:
                errors[partition] = GroupError.OFFSET_METADATA_TOO_LARGE
            else:
                taken[partition] = offset._replace(committed_ms=committed_ms)
        error = None
        for slice_ in slices(group, taken):
            if error is None:
                error = await self._commit(group, request, slice_)
            errors.update(dict.fromkeys(slice_, error))
        return errors

    async def _commit(self, name: str, request: CommitRequest, slice_: Slice) -> GroupError | None:
        within = () if request.within is None else request.within.conditions
        topics = [request.topics[one] for one in {place.topic for place in slice_} if one in request.topics]
        conditions = [*within, *topics]
        try:
            require_name(name, may_be_empty=True)
            while True:
                loaded = await self._groups.open(name, create=request.generation < 0)
                if loaded is None:
                    return GroupError.ILLEGAL_GENERATION
                member = request.member_id, request.instance_id, request.generation
                error = None if request.is_anonymous else loaded.group.check_commit(*member, now_ms())
                if error is not None:
                    return error
                if loaded.version == ABSENT:
                    await self._groups.ensure_record(loaded)
                    continue
                seen = loaded.version
                loaded.commits += 1
                try:
                    async with self._groups.writes(loaded):
                        try:
                            await self._offsets.write(_written(slice_, request), [*loaded.conditions, *conditions])
                        except Conflict as conflict:
                            if conflict.key in {condition.key for condition in within}:
                                return GroupError.INVALID_TXN_STATE
                            if conflict.key in {condition.key for condition in topics}:
                                raise TopicsChanged from conflict
                            if conflict.key != group_key(name):
                                raise
                        else:
                            return None
                finally:
                    loaded.commit_ends()
                # The group was stored meanwhile, perhaps with another generation. So it is asked again.
                async with loaded.writing:
                    if loaded.version == seen:
                        raise Refused(GroupError.NOT_COORDINATOR, f"Somebody else has written the group {name}.")
        except Refused as refused:
            return refused.error

    async def fetch(
        self, group: str, partitions: Collection[TopicPartition] | None = None, *, requires_stable: bool = False
    ) -> dict[TopicPartition, FetchedOffset] | GroupError:
        """OffsetFetch: these offsets, or all of the group. Any broker may answer, as it asks the store.

        With `requires_stable`, an offset that a transaction may still change is UNSTABLE_OFFSET_COMMIT (KIP-447).
        """
        try:
            require_name(group, may_be_empty=True)
            # Asked first: a transaction that ends meanwhile has written its offsets when they are read.
            unstable = await self._offsets.deferred(group) if requires_stable else frozenset()
            found = await self._offsets.fetch(group, partitions)
            for partition in unstable & (found.keys() if partitions is None else set(partitions)):
                found[partition] = FetchedOffset(None, GroupError.UNSTABLE_OFFSET_COMMIT)
            return found
        except (Refused, MetadataError) as failed:
            return refusal(failed).error

    async def reading(self, group: str, topic: str) -> Reading:
        """Return what tells that a group reads a topic. Any broker may answer.

        Raises:
            Refused: no group can have that name.
            GroupRecordDamaged: the group cannot be read.
            StoreUnavailable: the store does not answer.
        """
        require_name(group, may_be_empty=True)
        committed = {stored.partition.partition for stored in await self._offsets.scan(group, topic)}
        deferred = await self._offsets.deferred(group)
        committed |= {place.partition for place in deferred if place.topic == topic}
        key = group_key(group)
        record = (await self._metadata.fresh({key})).records[key]
        seen = None if record is None else from_value(key, record.value).record.seen.get(topic)
        return Reading(committed, seen)


def _written(slice_: Slice, request: CommitRequest) -> list[Put]:
    if request.within is None:
        return list(slice_.values())
    return [deferred(request.within.transactional_id, put) for put in slice_.values()]
