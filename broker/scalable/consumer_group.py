"""One group of consumers that share a topic's segments: the state of the segments, and what each consumer was told.

Everything here happens in one step of the event loop. What takes time (registrations, grace periods) is in
`broker.scalable.consumer_groups`.
"""

from collections.abc import Callable
from typing import Protocol

import structlog
import trio

from broker.layouts.layout import Layout
from broker.layouts.legacy import is_synthetic, segment_topic, synthetic_layout
from broker.layouts.parts import Segment
from broker.layouts.registrations import GroupId, GroupKind
from broker.names import TopicName
from broker.scalable.assignment import assign, assign_unordered, eligible
from broker.scalable.draining import follow_drained
from broker.scalable.feeds import LayoutFeeds
from storage.metadata.store import MetadataStore

log = structlog.get_logger(__name__)


class Member(Protocol):
    """One consumer of a group."""

    @property
    def name(self) -> str:
        """The consumer's name. A second consumer of the same name replaces the first one."""

    def assigned(self, layout: Layout, segments: frozenset[int]) -> None:
        """Tell the consumer its segments. This must not block."""

    def sent_away(self) -> None:
        """Close the consumer, because another broker coordinates the group now. This must not block."""

    def taken_up(self, segment_id: int, session: str) -> None:
        """Note that the client reads the segment, at another connection. This must not block.

        `session` is as in `broker.consumer_reports.Report`.
        """

    def closed(self, segment_id: int, session: str) -> None:
        """Note that the client has closed its consumer of the segment, at another connection. This must not block."""


class ConsumerGroup:
    """See the module's docstring."""

    def __init__(
        self,
        id_: GroupId,
        shares_changed: Callable[["ConsumerGroup"], None],
        *,
        feeds: LayoutFeeds,
        metadata: MetadataStore,
        nursery: trio.Nursery,
    ) -> None:
        """Set up.

        Args:
            id_: the group's identity.
            shares_changed: called when the assignment differs from the recorded one. It must not block.
            feeds: the layouts.
            metadata: the store in which cursors are watched.
            nursery: runs the watching tasks.
        """
        self.id = id_
        self.members: dict[str, Member | None] = {}
        """Members by name; None for one that is away."""
        self.departed: dict[str, Member] = {}
        """Consumers that have left and may join again, while their connections last."""
        self.joining = 0
        """Consumers whose registration is being written."""
        self.layout: Layout | None = None
        self.regular: TopicName | None = None
        """The `persistent://` topic to use while there is no layout, if a consumer asked for a regular topic."""
        self.is_known = False
        """Whether the feed has delivered the layout, or has said that there is none."""
        self.assignment: dict[str, frozenset[int]] = {}
        self.pushed: dict[str, tuple[int, frozenset[int]]] = {}
        """What each member was told last: the layout's epoch and the member's segments."""
        self.turned = trio.Event()
        """Set, and replaced, when something was pushed or the topic does not exist."""
        self.recorded: dict[str, frozenset[int] | None] = {}
        """The registrations in the metadata store; None where their content is unknown."""
        self.writing = trio.Lock()
        self._moving = 0
        self._drained: set[int] = set()
        self._watched: dict[int, trio.CancelScope] = {}
        # Sealed segments whose cursors were not checked yet. Nothing is assigned before they are. Otherwise the first
        # assignment after a restart would take children from their consumers, and the next one would return them.
        self._unseen: set[int] = set()
        self._is_following = False
        self._shares_changed = shares_changed
        self._feeds = feeds
        self._metadata = metadata
        self._nursery = nursery

    @property
    def is_in_use(self) -> bool:
        """Whether consumers are or may come here, or its subscription is being moved."""
        return bool(self.members or self.departed or self.joining or self._moving)

    def follow(self) -> None:
        """Follow the topic from now on. Does nothing if it is followed already."""
        if not self._is_following:
            self._is_following = True
            self._feeds.follow(self.id.topic, self._layout_changed)
        if self.layout is None and self.is_known:
            # Only now is it known whether a consumer asked for a regular topic.
            self._layout_changed(None)

    def unfollow(self) -> None:
        """Stop following the topic and forget its state, because the last member has left."""
        assert self._is_following, "a group follows its topic from its first member to its last"
        self._is_following = False
        self._feeds.unfollow(self.id.topic, self._layout_changed)
        self._forget_segments()
        self.layout, self.regular, self.is_known = None, None, False
        self.assignment.clear()

    def forget_members(self) -> None:
        """Forget everything but moves in progress, because another broker coordinates the group now."""
        self.members.clear()
        self.departed.clear()
        self.pushed.clear()
        self.recorded.clear()
        if self._is_following:
            self.unfollow()
        self._turn()

    def begin_move(self) -> None:
        """Begin to move the subscription: no consumer reads until the move is done."""
        self._moving += 1
        self.reassign()

    def end_move(self) -> None:
        """End the move of the subscription. All segments are assigned again, once every parent's cursor was checked."""
        self._moving -= 1
        if not self._moving and self.layout is not None:
            sealed = [segment for segment in self.layout.segments.values() if segment.id in self._watched]
            self._forget_segments()
            for segment in sealed:
                self._watch(segment, is_first=True)
            self.reassign()

    def reassign(self) -> None:
        """Divide the segments, and tell each member whose share has changed."""
        if self.layout is None:
            return
        if self._moving:
            for name, (_epoch, told) in tuple(self.pushed.items()):
                if told:
                    self._push(self.layout, name, frozenset())
            return
        if self._unseen:
            return
        away = {name for name, member in self.members.items() if member is None}
        if self.id.kind is GroupKind.STREAM:
            segments = eligible(self.layout, self._drained)
            self.assignment = assign(segments, self.members, self.assignment, away)
        else:
            self.assignment = assign_unordered(self.layout, self.members, self.assignment, away)
        if any(self.recorded.get(name) != share for name, share in self.assignment.items()):
            self._shares_changed(self)
        for name, share in self.assignment.items():
            self._push(self.layout, name, share)
        self._turn()

    def _push(self, layout: Layout, name: str, segments: frozenset[int]) -> None:
        """Tell a member its share, unless it already knows it or is away."""
        member, told = self.members[name], (layout.epoch, segments)
        if member is not None and self.pushed.get(name) != told:
            self.pushed[name] = told
            member.assigned(layout, segments)

    def _turn(self) -> None:
        """Wake the tasks that wait for a push."""
        turned, self.turned = self.turned, trio.Event()
        turned.set()

    def _layout_changed(self, layout: Layout | None) -> None:
        before = self.layout
        if layout is None and self.regular is not None and (before is None or is_synthetic(before)):
            layout = synthetic_layout(self.regular)
        self.layout, self.is_known = layout, True
        is_new = before is None or layout is None or before.creation_id != layout.creation_id
        if is_new:
            # A new topic with the name of a deleted one has nothing drained yet.
            self._forget_segments()
        if layout is None:
            if before is not None:
                # If the topic was deleted, its registrations were deleted too.
                self.recorded = dict.fromkeys(self.recorded)
            self._turn()
            return
        for pruned in self._watched.keys() - layout.segments.keys():
            self._watched.pop(pruned).cancel()
            self._drained.discard(pruned)
            self._unseen.discard(pruned)
        if self.id.kind is GroupKind.STREAM:
            for segment in layout.segments.values():
                if not segment.is_active and segment.id not in self._watched:
                    self._watch(segment, is_first=is_new)
        self.reassign()

    def _forget_segments(self) -> None:
        for scope in self._watched.values():
            scope.cancel()
        self._watched.clear()
        self._drained.clear()
        self._unseen.clear()

    def _watch(self, segment: Segment, *, is_first: bool) -> None:
        scope = self._watched[segment.id] = trio.CancelScope()
        self._nursery.start_soon(self._watch_drained, segment, scope)
        if is_first:
            self._unseen.add(segment.id)

    async def _watch_drained(self, segment: Segment, scope: trio.CancelScope) -> None:
        name = segment_topic(self.id.topic, segment)

        def tell(is_drained: bool) -> None:
            self._seen(segment, is_drained=is_drained)

        with scope:
            await follow_drained(name, self.id.name, tell, metadata=self._metadata)

    def _seen(self, segment: Segment, *, is_drained: bool) -> None:
        """Note the result of a check of the segment's cursor."""
        if segment.id not in self._unseen and is_drained == (segment.id in self._drained):
            return
        self._unseen.discard(segment.id)
        if is_drained:
            self._drained.add(segment.id)
        else:
            # A seek went back into the segment, so it must again be read before its children.
            self._drained.discard(segment.id)
        log.debug("segment drained or sought", topic=str(self.id.topic), segment=segment.id, drained=is_drained)
        self.reassign()
