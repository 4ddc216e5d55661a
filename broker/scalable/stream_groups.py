"""Consumers that share a scalable topic's segments: who reads which segment, pushed at every change.

A group is the consumers of one ordered subscription, or the checkpoint consumers of one name. Whenever the layout
changes, a segment is drained, or a consumer comes or goes, the assignment is computed anew
(`broker.scalable.assignment`, pure) and pushed to those for whom it changed. A child of an ordered subscription is
handed out only when its parents are drained, that is when the subscription's durable mark-delete stands at their sealed
end; the group learns that from the cursor's record, which any broker may own.

A consumer whose connection is lost keeps its segments for a grace period, so that nothing moves when it comes back; one
that closes leaves at once. Its registration outlives this process (`broker.scalable.registrations`): whoever takes the
topic over gives every consumer that was registered a grace period to come back in.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog
import trio

from broker.cluster.elections import Elections
from broker.cluster.ownership import OwnedElsewhere
from broker.errors import BrokerError, NotSupported, TopicNotFound
from broker.names import NAME_BYTES_MAX, TopicName
from broker.scalable.assignment import assign, assign_unordered, eligible
from broker.scalable.feeds import LayoutFeeds
from broker.scalable.grace import GracePeriods
from broker.scalable.layout import Layout
from broker.scalable.layout_parts import Segment
from broker.scalable.legacy import is_synthetic, segment_topic, synthetic_layout
from broker.scalable.registrations import GroupId, GroupKind, Registrations
from broker.scalable.turns import Turns
from broker.topic import Topic
from broker.topics import Topics
from storage.cursor import CursorError, cursor_key
from storage.cursor_record import decode
from storage.errors import CursorCorrupt, StorageError
from storage.metadata.store import Check, Conflict, MetadataError, MetadataStore, Record
from storage.position import Position
from txn.errors import OwnershipLost

MEMBERS_MAX: Final = 4096
"""Consumers of one group, those in their grace period counted too; one more is refused."""

log = structlog.get_logger(__name__)


class Member(Protocol):
    """One consumer of a group."""

    @property
    def name(self) -> str:
        """The consumer's name; a second consumer of the same name takes the first one's place."""

    def assigned(self, layout: Layout, segments: frozenset[int]) -> None:
        """These segments are the consumer's now. Must not block."""


@dataclass(eq=False, slots=True)
class _Group:
    """One group's consumers, and what is known of the segments."""

    id: GroupId
    members: dict[str, Member | None] = field(default_factory=dict)
    """By name; None for one that is away."""
    joining: int = 0
    """Consumers whose registration is being written."""
    layout: Layout | None = None
    regular: TopicName | None = None
    """The `persistent://` topic that it is as long as there is no layout, if a consumer asked for it as that."""
    is_known: bool = False
    """Whether the feed has said what the layout is, or that there is none."""
    drained: set[int] = field(default_factory=set)
    watched: dict[int, trio.CancelScope] = field(default_factory=dict)
    unseen: set[int] = field(default_factory=set)
    """Sealed segments of the first layout at whose cursor nobody has looked yet: nothing is assigned before. Else the
    first assignment after a restart would take the children from whoever reads them, and the next give them back."""
    assignment: dict[str, frozenset[int]] = field(default_factory=dict)
    pushed: dict[str, tuple[int, frozenset[int]]] = field(default_factory=dict)
    """What each member was told last: the layout's epoch and its segments."""
    follower: Callable[[Layout | None], None] | None = None
    """Set while the group has members."""
    turned: trio.Event = field(default_factory=trio.Event)
    """Set, and replaced, when something was pushed or there is no topic."""
    recorded: dict[str, frozenset[int] | None] = field(default_factory=dict)
    """The registrations in the metadata store, None where it is not known what they say."""
    writing: trio.Lock = field(default_factory=trio.Lock)


class StreamGroups:
    """The groups that this broker coordinates."""

    def __init__(
        self,
        topics: Topics,
        feeds: LayoutFeeds,
        elections: Elections,
        *,
        metadata: MetadataStore,
        nursery: trio.Nursery,
        grace_seconds: float = 60.0,
    ) -> None:
        """Set up.

        Args:
            topics: the segments.
            feeds: the layouts.
            elections: a topic's controller alone hands out its segments.
            metadata: where cursors are watched and registrations stand.
            nursery: runs the watching, the writing and the grace periods.
            grace_seconds: how long a consumer whose connection is lost keeps its segments.
        """
        self._topics = topics
        self._feeds = feeds
        self._elections = elections
        self._metadata = metadata
        self._nursery = nursery
        self._registrations = Registrations(metadata)
        self._graces: GracePeriods[tuple[GroupId, str]] = GracePeriods(grace_seconds, self._expired, nursery)
        self._groups: dict[GroupId, _Group] = {}
        self._taken_over: dict[TopicName, Check] = {}
        """The election of this broker after which the registrations of before were read, by topic."""
        self._turns: Turns[TopicName] = Turns()
        self._unwritten: dict[GroupId, None] = {}
        """Groups whose registrations may differ from what is recorded, longest first."""
        self._is_writing = False
        self._listeners: list[Callable[[TopicName], None]] = []
        elections.attach(self._controller_changed)

    def attach(self, listener: Callable[[TopicName], None]) -> None:
        """Call `listener` with a topic whenever consumers of it have come or gone. It must not block."""
        self._listeners.append(listener)

    def detach(self, listener: Callable[[TopicName], None]) -> None:
        """Undo one `attach`."""
        self._listeners.remove(listener)

    def consumers_of(self, topic: TopicName) -> dict[str, int]:
        """How many consumers share the topic in each group, those away counted too; empty groups are left out."""
        return {
            f"{id_.kind} {id_.name}": len(group.members)
            for id_, group in self._groups.items()
            if id_.topic == topic and group.members
        }

    def connected_count(self, id_: GroupId) -> int:
        """How many consumers of the group are connected here; each may read several segments, or none."""
        group = self._groups.get(id_)
        return 0 if group is None else sum(member is not None for member in group.members.values())

    async def recover(self) -> None:
        """Take over every group that an earlier run had, so that whoever does not come back is forgotten."""
        for topic in {id_.topic for id_ in await self._registrations.load()}:
            try:
                await self._take_over(topic)
            except OwnedElsewhere as elsewhere:
                log.info("consumers are left to their controller", topic=str(topic), reason=str(elsewhere))

    async def _take_over(self, topic: TopicName) -> Check:
        """Be the topic's controller, and take in what was registered before, with a grace period from now."""
        async with self._turns.of(topic):
            claim = await self._elections.elect(topic)
            if self._taken_over.get(topic) == claim:
                return claim
            for id_, shares in (await self._registrations.load(topic)).items():
                group = self._groups.setdefault(id_, _Group(id_))
                for name in sorted(shares.keys() - group.members.keys()):
                    group.members[name] = None
                    group.recorded[name] = group.assignment[name] = shares[name]
                    self._graces.begin((id_, name))
                log.info("ordered consumers may come back", topic=str(topic), group=id_.name, consumers=len(shares))
                self._follow(group)
            self._taken_over[topic] = claim
            return claim

    def _controller_changed(self, topic: TopicName) -> None:
        if self._elections.controller_of(topic) is None:
            # Given up with the topic, whose registrations are gone; or lost, and others see to them.
            self._taken_over.pop(topic, None)

    async def join(self, id_: GroupId, member: Member, *, regular: TopicName | None = None) -> None:
        """Add a consumer; its assignment was handed to it when this returns, and is again whenever it changes.

        Its registration is durable before. One that comes back, or takes another's place, goes on with its segments.
        Without a layout the topic is the `regular` one, if the consumer asked for that.

        Raises:
            TopicNotFound: there is no such topic.
            OwnedElsewhere: another broker is its controller.
            NotSupported: the group is full, or the name too long.
        """
        claim = await self._take_over(id_.topic)
        group = self._groups.setdefault(id_, _Group(id_))
        name = member.name
        group.joining += 1
        try:
            if name not in group.members:
                await self._register(group, name, claim)
            group.members[name] = member
        finally:
            group.joining -= 1
            self._note_unwritten(group)
        self._graces.end((id_, name))
        group.pushed.pop(name, None)
        group.regular = group.regular or regular
        self._follow(group)
        if group.layout is None and group.is_known:
            self._layout_changed(group, None)
        self._reassign(group)
        self._members_changed(id_.topic)
        while group.members.get(name) is member and name not in group.pushed:
            if group.is_known and group.layout is None:
                self.leave(id_, member)
                raise TopicNotFound(f"{id_.topic} does not exist")
            await group.turned.wait()

    async def _register(self, group: _Group, name: str, claim: Check) -> None:
        if len(group.members) >= MEMBERS_MAX:
            raise NotSupported(f"{group.id.name} has {MEMBERS_MAX} consumers, and no more may share it")
        if len(name.encode()) > NAME_BYTES_MAX:
            raise NotSupported(f"a consumer's name is at most {NAME_BYTES_MAX} bytes long")
        async with group.writing:
            group.recorded[name] = None
            try:
                await self._registrations.write(group.id, claim, {name: frozenset()})
            except Conflict as conflict:
                raise OwnedElsewhere(f"{group.id.topic} is controlled by another broker now") from conflict
            group.recorded[name] = frozenset()

    def lose(self, id_: GroupId, member: Member) -> None:
        """A consumer's connection is lost: it keeps its segments for a while. Harmless if another has its name."""
        group = self._groups.get(id_)
        if group is None or group.members.get(member.name) is not member:
            return
        if not self._graces.seconds:
            self._remove(group, member.name)
            return
        group.members[member.name] = None
        group.pushed.pop(member.name, None)
        self._graces.begin((id_, member.name))

    def leave(self, id_: GroupId, member: Member) -> None:
        """Remove a consumer; its segments go to the others at once. Harmless if another has taken its name."""
        group = self._groups.get(id_)
        if group is not None and group.members.get(member.name) is member:
            self._remove(group, member.name)

    def _expired(self, key: tuple[GroupId, str]) -> None:
        id_, name = key
        log.info("a consumer did not come back", topic=str(id_.topic), group=id_.name, consumer=name)
        self._remove(self._groups[id_], name)

    def _remove(self, group: _Group, name: str) -> None:
        del group.members[name]
        group.pushed.pop(name, None)
        self._note_unwritten(group)
        self._members_changed(group.id.topic)
        if group.members:
            self._reassign(group)
        else:
            self._unfollow(group)

    def _members_changed(self, topic: TopicName) -> None:
        for listener in tuple(self._listeners):
            listener(topic)

    # Registrations

    def _note_unwritten(self, group: _Group) -> None:
        """See to it that the registrations are written as they are, soon."""
        self._unwritten[group.id] = None
        if not self._is_writing:
            self._is_writing = True
            self._nursery.start_soon(self._write_all)

    async def _write_all(self) -> None:
        try:
            while self._unwritten:
                id_ = next(iter(self._unwritten))
                del self._unwritten[id_]
                group = self._groups[id_]
                async with group.writing:
                    await self._write(group)
                if not group.members and not group.joining and id_ not in self._unwritten:
                    del self._groups[id_]
        finally:
            self._is_writing = False

    async def _write(self, group: _Group) -> None:
        gone = group.recorded.keys() - group.members.keys()
        shares = {name: group.assignment.get(name, frozenset()) for name in group.members}
        changed = {name: share for name, share in shares.items() if group.recorded.get(name) != share}
        if group.layout is None:
            # Nothing is kept of a topic that is deleted, nor changed of one that is not known yet.
            changed = {}
        if not gone and not changed:
            return
        claim = self._taken_over.get(group.id.topic)
        if claim is None:
            return
        try:
            await self._registrations.write(group.id, claim, changed, gone)
        except MetadataError as error:
            # Tried again with the next change; until then a restart would move segments or wait for who is gone.
            log.warning("registrations were not written", topic=str(group.id.topic), reason=str(error))
            return
        for name in gone:
            del group.recorded[name]
        group.recorded.update(changed)

    # The layout

    def _follow(self, group: _Group) -> None:
        if group.follower is None:
            group.follower = lambda layout: self._layout_changed(group, layout)
            self._feeds.follow(group.id.topic, group.follower)

    def _unfollow(self, group: _Group) -> None:
        """Forget what is known of the topic: the last member has left."""
        assert group.follower is not None, "a group follows its topic from its first member to its last"
        self._feeds.unfollow(group.id.topic, group.follower)
        self._forget_segments(group)
        group.follower, group.layout, group.regular, group.is_known = None, None, None, False
        group.assignment.clear()

    def _forget_segments(self, group: _Group) -> None:
        for scope in group.watched.values():
            scope.cancel()
        group.watched.clear()
        group.drained.clear()
        group.unseen.clear()

    def _layout_changed(self, group: _Group, layout: Layout | None) -> None:
        before = group.layout
        if layout is None and group.regular is not None and (before is None or is_synthetic(before)):
            layout = synthetic_layout(group.regular)
        group.layout, group.is_known = layout, True
        is_new = before is None or layout is None or before.creation_id != layout.creation_id
        if is_new:
            # What is drained of a deleted topic says nothing of one made again under its name.
            self._forget_segments(group)
        if layout is None:
            if before is not None:
                # If it was deleted, its registrations went with it.
                group.recorded = dict.fromkeys(group.recorded)
            _turn(group)
            return
        for pruned in group.watched.keys() - layout.segments.keys():
            group.watched.pop(pruned).cancel()
            group.drained.discard(pruned)
            group.unseen.discard(pruned)
        if group.id.kind is GroupKind.STREAM:
            for segment in layout.segments.values():
                if not segment.is_active and segment.id not in group.watched:
                    self._watch(group, segment, is_first=is_new)
        self._reassign(group)

    def _watch(self, group: _Group, segment: Segment, *, is_first: bool) -> None:
        scope = group.watched[segment.id] = trio.CancelScope()
        self._nursery.start_soon(self._watch_drained, group, segment, scope)
        if is_first:
            group.unseen.add(segment.id)

    def _reassign(self, group: _Group) -> None:
        if group.layout is None or group.unseen:
            return
        away = {name for name, member in group.members.items() if member is None}
        if group.id.kind is GroupKind.STREAM:
            segments = eligible(group.layout, group.drained)
            group.assignment = assign(segments, group.members, group.assignment, away)
        else:
            group.assignment = assign_unordered(group.layout, group.members, group.assignment, away)
        if any(group.recorded.get(name) != share for name, share in group.assignment.items()):
            self._note_unwritten(group)
        for name, member in group.members.items():
            told = (group.layout.epoch, group.assignment[name])
            if member is not None and group.pushed.get(name) != told:
                group.pushed[name] = told
                member.assigned(group.layout, group.assignment[name])
        _turn(group)

    async def _watch_drained(self, group: _Group, segment: Segment, scope: trio.CancelScope) -> None:
        """Tell whether the subscription's durable mark-delete stands at the sealed segment's end, at each change."""
        name = segment_topic(group.id.topic, segment)
        with scope:
            try:
                topic = await self._topics.get(name)
            except (BrokerError, OwnedElsewhere, StorageError, CursorError, OwnershipLost) as error:
                # Deleted meanwhile, or damaged: its children stay back, and everything else goes on.
                log.warning("a sealed segment cannot be looked at", topic=str(name), reason=str(error))
                self._seen(group, segment)
                return
            if topic.sealed_end is None:
                # Its clients are turning to its children; so it is not drained, and what they do may take a moment.
                self._seen(group, segment)
                await topic.wait_sealed()
            async with self._metadata.watch_key(cursor_key(str(name), group.id.name)) as watch:
                while True:
                    record = await watch.next()
                    end = topic.sealed_end
                    assert end is not None, "it was sealed, and stays so"
                    is_drained = record is not None and _stands_behind(end, record, topic)
                    self._seen(group, segment, is_drained=is_drained)

    def _seen(self, group: _Group, segment: Segment, *, is_drained: bool = False) -> None:
        """Somebody has looked at its cursor, or cannot."""
        if segment.id not in group.unseen and is_drained == (segment.id in group.drained):
            return
        group.unseen.discard(segment.id)
        if is_drained:
            group.drained.add(segment.id)
        else:
            # A seek has gone back into it: it comes before its children once more.
            group.drained.discard(segment.id)
        log.debug("segment drained or sought", topic=str(group.id.topic), segment=segment.id, drained=is_drained)
        self._reassign(group)


def _turn(group: _Group) -> None:
    """Wake who waits for what is pushed."""
    turned, group.turned = group.turned, trio.Event()
    turned.set()


def _stands_behind(end: Position, cursor: Record, topic: Topic) -> bool:
    """Whether a cursor's record says that everything up to `end` is acknowledged."""
    try:
        _identity, acknowledged = decode(cursor.value, topic.next_after)
    except CursorCorrupt as corrupt:
        # Its segment's children stay back, and everything else goes on.
        log.warning("a cursor cannot be read", topic=str(topic.name), key=cursor.key, reason=str(corrupt))
        return False
    return topic.next_after(acknowledged.mark_delete) > end
