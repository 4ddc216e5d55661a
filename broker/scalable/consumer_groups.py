"""Groups of consumers that share a scalable topic's segments. Each change of an assignment is pushed.

A group (`broker.scalable.consumer_group`) has the consumers of one ordered subscription, or the checkpoint consumers
with one group name. The assignment is recomputed (`broker.scalable.assignment`, pure) when the layout changes, a
segment is drained, or a consumer joins or leaves. It is pushed to the consumers for which it changed. In an ordered
subscription, a child is assigned only when its parents are drained: the subscription's durable mark-delete has reached
their sealed ends (`broker.scalable.draining`).

A consumer keeps its segments for a grace period after its connection is lost, so nothing moves if it returns. A
consumer that closes gives them up at once. Registrations outlive this process (`broker.layouts.registrations`). A new
controller gives every registered consumer a grace period in which to return.

A broker that is no longer the controller assigns nothing. It closes its consumers, which register at the new one (C15).
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog
import trio

from broker.cluster.elections import Elections
from broker.cluster.ownership import OwnedElsewhere
from broker.cluster.turns import Turns
from broker.errors import NotSupported, TopicNotFound
from broker.keyed_locks import KeyedLocks
from broker.layouts.registrations import GroupId, GroupKind, Registrations
from broker.names import NAME_BYTES_MAX, TopicName
from broker.scalable.consumer_group import ConsumerGroup, Member
from broker.scalable.feeds import LayoutFeeds
from broker.scalable.grace import GracePeriods
from storage.metadata.store import Check, Conflict, MetadataError, MetadataStore

MEMBERS_MAX: Final = 4096
"""Most consumers of one group, including those in their grace period. Further ones are refused."""

log = structlog.get_logger(__name__)


class ConsumerGroups:
    """The groups that this broker coordinates."""

    def __init__(
        self,
        feeds: LayoutFeeds,
        elections: Elections,
        turns: Turns,
        *,
        metadata: MetadataStore,
        nursery: trio.Nursery,
        grace_seconds: float = 60.0,
    ) -> None:
        """Set up.

        Args:
            feeds: the layouts.
            elections: only a topic's controller assigns its segments.
            turns: which broker becomes the controller if no consumer comes.
            metadata: the store of the cursors and registrations.
            nursery: runs the watches, the writes and the grace periods.
            grace_seconds: how long a consumer keeps its segments after its connection is lost.
        """
        self._feeds = feeds
        self._elections = elections
        self._turns = turns
        self._metadata = metadata
        self._nursery = nursery
        self._registrations = Registrations(metadata)
        self._graces: GracePeriods[tuple[GroupId, str]] = GracePeriods(grace_seconds, self._expired, nursery)
        self._groups: dict[TopicName, dict[GroupId, ConsumerGroup]] = {}
        """By topic, because there may be as many groups as consumers."""
        self._taken_over: dict[TopicName, Check] = {}
        """By topic, the election of this broker under which the earlier registrations were read."""
        self._locks: KeyedLocks[TopicName] = KeyedLocks()
        self._unwritten: dict[GroupId, None] = {}
        """Groups whose assignment may differ from the recorded one, oldest first."""
        self._is_writing = False
        self._listeners: list[Callable[[TopicName], None]] = []
        elections.attach(self._controller_changed)

    def attach(self, listener: Callable[[TopicName], None]) -> None:
        """Call `listener` with a topic whenever its consumers have changed. It must not block."""
        self._listeners.append(listener)

    def detach(self, listener: Callable[[TopicName], None]) -> None:
        """Undo one `attach`."""
        self._listeners.remove(listener)

    def consumers_of(self, topic: TopicName) -> dict[str, int]:
        """Count the consumers of each of the topic's groups, including those away. Empty groups are left out."""
        return {
            f"{id_.kind} {id_.name}": len(group.members)
            for id_, group in self._groups.get(topic, {}).items()
            if group.members
        }

    def connected_count(self, id_: GroupId) -> int:
        """Count the group's consumers that are connected to this broker, whatever segments they have."""
        group = self._found(id_)
        return 0 if group is None else sum(member is not None for member in group.members.values())

    def members_named(self, topic: TopicName, subscription: str | None, name: str) -> list[Member]:
        """Return the connected consumers of this name: of a subscription, or of all checkpoint consumers.

        Those that have left and may join again are among them.
        """
        if subscription is None:
            groups = [group for id_, group in self._groups.get(topic, {}).items() if id_.kind is GroupKind.CHECKPOINT]
        else:
            found = self._found(GroupId(topic, subscription))
            groups = [] if found is None else [found]
        return [member for group in groups if (member := group.members.get(name) or group.departed.get(name))]

    def _found(self, id_: GroupId) -> ConsumerGroup | None:
        return self._groups.get(id_.topic, {}).get(id_)

    def _group(self, id_: GroupId) -> ConsumerGroup:
        group = self._found(id_)
        if group is None:
            group = self._groups.setdefault(id_.topic, {})[id_] = ConsumerGroup(
                id_,
                self._note_unwritten,
                feeds=self._feeds,
                metadata=self._metadata,
                nursery=self._nursery,
            )
        return group

    async def recover(self) -> None:
        """Take over the groups of an earlier run, so that consumers which do not return are removed (C16).

        It takes over those of topics for which it is this broker's turn. The others wait for the next consumer.
        """
        for topic in {id_.topic for id_ in await self._registrations.load()}:
            if not self._turns.is_mine(topic):
                continue
            try:
                await self._take_over(topic)
            except OwnedElsewhere as elsewhere:
                log.info("another broker controls the topic's consumers", topic=str(topic), reason=str(elsewhere))

    async def _take_over(self, topic: TopicName) -> Check:
        """Become the topic's controller, and load the earlier registrations with a grace period from now."""
        async with self._locks.hold(topic):
            claim = await self._elections.elect(topic)
            if self._taken_over.get(topic) == claim:
                return claim
            registered = await self._registrations.load(topic)
            self._require_controller(topic, claim)
            for id_, shares in registered.items():
                group = self._group(id_)
                for name in sorted(shares.keys() - group.members.keys()):
                    group.members[name] = None
                    group.recorded[name] = group.assignment[name] = shares[name]
                    self._graces.begin((id_, name))
                log.info("waiting for consumers to return", topic=str(topic), group=id_.name, consumers=len(shares))
                group.follow()
            self._taken_over[topic] = claim
            return claim

    def _require_controller(self, topic: TopicName, claim: Check) -> None:
        if self._elections.holds(topic) != claim:
            raise OwnedElsewhere(f"Another broker has become the controller of {topic}. Look the topic up again.")

    def _controller_changed(self, topic: TopicName) -> None:
        taken_over = self._taken_over.get(topic)
        if taken_over is None or self._elections.holds(topic) == taken_over:
            return
        # Another broker may be the controller by now, or this one again, which then reads the registrations anew.
        del self._taken_over[topic]
        for group in tuple(self._groups.get(topic, {}).values()):
            self._send_away(group)
        self._members_changed(topic)

    def _send_away(self, group: ConsumerGroup) -> None:
        """Forget a group that this broker no longer coordinates, and tell its consumers to register again."""
        log.info("sending consumers to another controller", topic=str(group.id.topic), group=group.id.name)
        members = dict(group.members)
        group.forget_members()
        for name, member in members.items():
            self._graces.end((group.id, name))
            if member is not None:
                member.sent_away()
        self._note_unwritten(group)

    async def join(self, id_: GroupId, member: Member, *, regular: TopicName | None = None) -> None:
        """Add a consumer. On return it has its assignment; it gets every later change, too.

        Its registration is durable before it gets the assignment. A consumer that returns, or replaces another one,
        keeps the segments. If there is no layout, the `regular` topic is used, if the consumer asked for one.

        Raises:
            TopicNotFound: there is no such topic.
            OwnedElsewhere: another broker is its controller.
            NotSupported: the group is full, or the consumer's name is too long.
        """
        claim = await self._take_over(id_.topic)
        group = self._group(id_)
        name = member.name
        group.joining += 1
        try:
            if name not in group.members:
                await self._register(group, name, claim)
                self._require_controller(id_.topic, claim)
            group.members[name] = member
            group.departed.pop(name, None)
        finally:
            group.joining -= 1
            self._note_unwritten(group)
        self._graces.end((id_, name))
        group.pushed.pop(name, None)
        group.regular = group.regular or regular
        group.follow()
        group.reassign()
        self._members_changed(id_.topic)
        while group.members.get(name) is member and name not in group.pushed:
            if group.is_known and group.layout is None:
                self.leave(id_, member)
                raise TopicNotFound(f"{id_.topic} does not exist. It was deleted while the consumer registered.")
            await group.turned.wait()
        if name not in group.members:
            self._require_controller(id_.topic, claim)

    async def _register(self, group: ConsumerGroup, name: str, claim: Check) -> None:
        if len(group.members) >= MEMBERS_MAX:
            raise NotSupported(
                f"Subscription {group.id.name} of {group.id.topic} already has {MEMBERS_MAX} consumers, its maximum. "
                "Close some of them first."
            )
        if len(name.encode()) > NAME_BYTES_MAX:
            raise NotSupported(
                f"The consumer's name is too long. It must have at most {NAME_BYTES_MAX} bytes in UTF-8."
            )
        async with group.writing:
            group.recorded[name] = None
            try:
                await self._registrations.write(group.id, claim, {name: frozenset()})
            except Conflict as conflict:
                raise OwnedElsewhere(
                    f"Another broker has become the controller of {group.id.topic}. Look the topic up again."
                ) from conflict
            group.recorded[name] = frozenset()

    def lose(self, id_: GroupId, member: Member) -> None:
        """Start the grace period of a consumer that lost its connection. Does nothing if another has replaced it."""
        group = self._found(id_)
        if group is None:
            return
        self._forget_departed(group, member)
        if group.members.get(member.name) is not member:
            return
        if not self._graces.seconds:
            self._remove(group, member.name)
            return
        group.members[member.name] = None
        group.pushed.pop(member.name, None)
        self._graces.begin((id_, member.name))

    def leave(self, id_: GroupId, member: Member, *, may_return: bool = False) -> None:
        """Remove a consumer. The others get its segments at once. Does nothing if another has replaced it.

        With `may_return`, the group goes on telling it what is reported about it, until `leave` or `lose`.
        """
        group = self._found(id_)
        if group is None:
            return
        self._forget_departed(group, member)
        if group.members.get(member.name) is member:
            if may_return:
                group.departed[member.name] = member
            self._remove(group, member.name)

    def _forget_departed(self, group: ConsumerGroup, member: Member) -> None:
        if group.departed.get(member.name) is member:
            del group.departed[member.name]
            # The group may not be in use any more.
            self._note_unwritten(group)

    def _expired(self, key: tuple[GroupId, str]) -> None:
        id_, name = key
        log.info("a consumer did not return in its grace period", topic=str(id_.topic), group=id_.name, consumer=name)
        self._remove(self._groups[id_.topic][id_], name)

    def _remove(self, group: ConsumerGroup, name: str) -> None:
        del group.members[name]
        group.pushed.pop(name, None)
        self._note_unwritten(group)
        self._members_changed(group.id.topic)
        if group.members:
            group.reassign()
        else:
            group.unfollow()

    def _members_changed(self, topic: TopicName) -> None:
        for listener in tuple(self._listeners):
            listener(topic)

    @asynccontextmanager
    async def held(self, id_: GroupId) -> AsyncIterator[None]:
        """Stop all consumers for the block, which moves an ordered subscription. Then assign again, parents first.

        Otherwise a consumer could continue a child at its new position before the child's parent is read again.

        Raises:
            OwnedElsewhere: another broker is the topic's controller.
        """
        await self._take_over(id_.topic)
        group = self._group(id_)
        group.begin_move()
        try:
            yield
        finally:
            group.end_move()
            self._note_unwritten(group)

    # Registrations

    def _note_unwritten(self, group: ConsumerGroup) -> None:
        """Have the group's current registrations written soon."""
        self._unwritten[group.id] = None
        if not self._is_writing:
            self._is_writing = True
            self._nursery.start_soon(self._write_all)

    async def _write_all(self) -> None:
        try:
            while self._unwritten:
                id_ = next(iter(self._unwritten))
                del self._unwritten[id_]
                group = self._groups[id_.topic][id_]
                async with group.writing:
                    await self._write(group)
                if not group.is_in_use and id_ not in self._unwritten:
                    del self._groups[id_.topic][id_]
                    if not self._groups[id_.topic]:
                        del self._groups[id_.topic]
        finally:
            self._is_writing = False

    async def _write(self, group: ConsumerGroup) -> None:
        gone = group.recorded.keys() - group.members.keys()
        shares = {name: group.assignment.get(name, frozenset()) for name in group.members}
        changed = {name: share for name, share in shares.items() if group.recorded.get(name) != share}
        if group.layout is None:
            # A deleted topic keeps no registrations, and those of a topic that is not known yet do not change.
            changed = {}
        if not gone and not changed:
            return
        claim = self._taken_over.get(group.id.topic)
        if claim is None:
            return
        try:
            await self._registrations.write(group.id, claim, changed, gone)
        except MetadataError as error:
            # The next change retries it. A restart before that would move segments, or wait for consumers that left.
            log.warning("consumer registrations were not written", topic=str(group.id.topic), reason=str(error))
            return
        for name in gone:
            del group.recorded[name]
        group.recorded.update(changed)
