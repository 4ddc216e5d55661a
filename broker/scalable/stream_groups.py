"""Ordered consumers of a scalable topic: who reads which segment, pushed at every change.

A group is the consumers of one subscription. Whenever the layout changes, a segment is drained, or a consumer comes or
goes, the assignment is computed anew (`broker.scalable.assignment`, pure) and pushed to those for whom it changed. A
child is handed out only when its parents are drained, that is when the subscription's durable mark-delete stands at
their sealed end; the group learns that from the cursor's record, which any broker may own.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog
import trio

from broker.cluster.ownership import OwnedElsewhere
from broker.errors import BrokerError, TopicNotFound
from broker.names import TopicName
from broker.scalable.assignment import assign, eligible
from broker.scalable.feeds import LayoutFeeds
from broker.scalable.layout import Layout
from broker.scalable.layout_parts import Segment
from broker.scalable.legacy import is_synthetic, segment_topic, synthetic_layout
from broker.topic import Topic
from broker.topics import Topics
from storage.cursor import CursorError, cursor_key
from storage.cursor_record import decode
from storage.errors import CursorCorrupt, StorageError
from storage.metadata.store import MetadataStore, Record
from storage.position import Position
from txn.errors import OwnershipLost

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
    """One subscription's consumers, and what is known of the segments."""

    topic: TopicName
    subscription: str
    members: dict[str, Member] = field(default_factory=dict)
    layout: Layout | None = None
    regular: TopicName | None = None
    """The `persistent://` topic that it is as long as there is no layout, if a consumer asked for it as that."""
    drained: set[int] = field(default_factory=set)
    watched: dict[int, trio.CancelScope] = field(default_factory=dict)
    unseen: set[int] = field(default_factory=set)
    """Sealed segments of the first layout at whose cursor nobody has looked yet: nothing is assigned before. Else the
    first assignment after a restart would take the children from whoever reads them, and the next give them back."""
    assignment: dict[str, frozenset[int]] = field(default_factory=dict)
    pushed: dict[str, tuple[int, frozenset[int]]] = field(default_factory=dict)
    """What each member was told last: the layout's epoch and its segments."""
    follower: Callable[[Layout | None], None] | None = None
    known: trio.Event = field(default_factory=trio.Event)


class StreamGroups:
    """The groups that this broker coordinates."""

    def __init__(self, topics: Topics, feeds: LayoutFeeds, *, metadata: MetadataStore, nursery: trio.Nursery) -> None:
        self._topics = topics
        self._feeds = feeds
        self._metadata = metadata
        self._nursery = nursery
        self._groups: dict[tuple[TopicName, str], _Group] = {}
        self._listeners: list[Callable[[TopicName], None]] = []

    def attach(self, listener: Callable[[TopicName], None]) -> None:
        """Call `listener` with a topic whenever consumers of it have come or gone. It must not block."""
        self._listeners.append(listener)

    def detach(self, listener: Callable[[TopicName], None]) -> None:
        """Undo one `attach`."""
        self._listeners.remove(listener)

    def consumers_of(self, topic: TopicName) -> dict[str, int]:
        """How many consumers each ordered subscription of the topic has here; those without any are left out."""
        return {name: len(group.members) for (of, name), group in self._groups.items() if of == topic}

    def _members_changed(self, topic: TopicName) -> None:
        for listener in tuple(self._listeners):
            listener(topic)

    async def join(
        self, topic: TopicName, subscription: str, member: Member, *, regular: TopicName | None = None
    ) -> None:
        """Add a consumer; its assignment was handed to it when this returns, and is again whenever it changes.

        Without a layout the topic is the `regular` one, if the consumer asked for that.

        Raises:
            TopicNotFound: there is no such topic.
        """
        key = (topic, subscription)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(topic, subscription)
            group.follower = lambda layout, group=group: self._layout_changed(group, layout)
            self._feeds.follow(topic, group.follower)
        group.members[member.name] = member
        group.pushed.pop(member.name, None)
        group.regular = group.regular or regular
        if group.layout is None and group.known.is_set():
            self._layout_changed(group, None)
        self._reassign(group)
        self._members_changed(topic)
        await group.known.wait()
        if group.layout is None:
            self.leave(topic, subscription, member)
            raise TopicNotFound(f"{topic} does not exist")

    def member_count(self, topic: TopicName, subscription: str) -> int:
        """How many ordered consumers the subscription has here; each may read several segments, or none."""
        group = self._groups.get((topic, subscription))
        return 0 if group is None else len(group.members)

    def leave(self, topic: TopicName, subscription: str, member: Member) -> None:
        """Remove a consumer; its segments go to the others at once. Harmless if another has taken its name."""
        group = self._groups.get((topic, subscription))
        if group is None or group.members.get(member.name) is not member:
            return
        del group.members[member.name]
        group.pushed.pop(member.name, None)
        self._members_changed(topic)
        if group.members:
            self._reassign(group)
            return
        del self._groups[topic, subscription]
        for scope in group.watched.values():
            scope.cancel()
        assert group.follower is not None, "a group follows its topic from its first member to its last"
        self._feeds.unfollow(topic, group.follower)

    def _layout_changed(self, group: _Group, layout: Layout | None) -> None:
        before = group.layout
        if layout is None and group.regular is not None and (before is None or is_synthetic(before)):
            layout = synthetic_layout(group.regular)
        group.layout = layout
        is_new = before is None or layout is None or before.creation_id != layout.creation_id
        if is_new:
            # What is drained of a deleted topic says nothing of one made again under its name.
            for scope in group.watched.values():
                scope.cancel()
            group.watched.clear()
            group.drained.clear()
            group.unseen.clear()
        if layout is None:
            group.known.set()
            return
        for pruned in group.watched.keys() - layout.segments.keys():
            group.watched.pop(pruned).cancel()
            group.drained.discard(pruned)
            group.unseen.discard(pruned)
        for segment in layout.segments.values():
            if not segment.is_active and segment.id not in group.watched:
                scope = group.watched[segment.id] = trio.CancelScope()
                self._nursery.start_soon(self._watch_drained, group, segment, scope)
                if is_new:
                    group.unseen.add(segment.id)
        self._reassign(group)

    def _reassign(self, group: _Group) -> None:
        if group.layout is None or group.unseen:
            return
        group.known.set()
        segments = eligible(group.layout, group.drained)
        group.assignment = assign(segments, group.members, group.assignment)
        for name, member in group.members.items():
            told = (group.layout.epoch, group.assignment[name])
            if group.pushed.get(name) != told:
                group.pushed[name] = told
                member.assigned(group.layout, group.assignment[name])

    async def _watch_drained(self, group: _Group, segment: Segment, scope: trio.CancelScope) -> None:
        """Tell whether the subscription's durable mark-delete stands at the sealed segment's end, at each change."""
        name = segment_topic(group.topic, segment)
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
            async with self._metadata.watch_key(cursor_key(str(name), group.subscription)) as watch:
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
        log.debug("segment drained or sought", topic=str(group.topic), segment=segment.id, drained=is_drained)
        self._reassign(group)


def _stands_behind(end: Position, cursor: Record, topic: Topic) -> bool:
    """Whether a cursor's record says that everything up to `end` is acknowledged."""
    try:
        _identity, acknowledged = decode(cursor.value, topic.next_after)
    except CursorCorrupt as corrupt:
        # Its segment's children stay back, and everything else goes on.
        log.warning("a cursor cannot be read", topic=str(topic.name), key=cursor.key, reason=str(corrupt))
        return False
    return topic.next_after(acknowledged.mark_delete) > end
