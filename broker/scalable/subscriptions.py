"""Subscriptions of scalable topics: one registration in the layout, one cursor on every segment.

Creating registers first, so that a split under way meets the changed layout and gives its children the cursors too. The
registration bears a mark until the other segments have theirs: whoever finds it makes those that are missing, so that
nobody is told of a subscription that would begin on some segments when it is opened there, and miss what came before.
Deleting marks the registration first, then removes the cursors, then the registration: whoever finds the mark goes on
from there, and no subscription of the same name begins on cursors of the one before (D16). In one process both, and
opening the subscription on a segment, hold the lock of its name, so that no cursor is made behind a deletion's back.
"""

import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

import trio

from broker.errors import SubscriptionEnding, SubscriptionInUse, SubscriptionNotFound, TopicNotFound
from broker.keyed_locks import KeyedLocks
from broker.layouts.layout import Layout
from broker.layouts.legacy import segment_of, segment_topic
from broker.layouts.parts import StartPosition, Subscription, SubscriptionKind
from broker.layouts.registrations import GroupId
from broker.layouts.store import Layouts
from broker.names import TopicName
from broker.scalable.consumer_groups import ConsumerGroups
from broker.topic import Topic
from broker.topics import Topics
from dispatch.subscription import Subscription as SegmentSubscription
from storage.clock import WallClock
from storage.position import EARLIEST, LATEST, Position

SEGMENTS_AT_ONCE: Final = 16
"""Segments of one topic that an operation over all of them works on at a time."""

_STARTS: Final = {StartPosition.EARLIEST: EARLIEST, StartPosition.LATEST: LATEST}


class ScalableSubscriptions:
    """Creates, opens, deletes and moves subscriptions of scalable topics. Durable on return, all of it."""

    def __init__(
        self,
        layouts: Layouts,
        topics: Topics,
        groups: ConsumerGroups,
        locks: KeyedLocks[TopicName],
        *,
        now_ms: WallClock,
    ) -> None:
        """Set up; `locks` are held by changes of a topic's segments."""
        self._groups = groups
        self._layouts = layouts
        self._topics = topics
        self._topic_locks = locks
        self._locks: KeyedLocks[tuple[TopicName, str]] = KeyedLocks()
        self._now_ms = now_ms

    async def add(self, topic: TopicName, name: str, kind: SubscriptionKind, start: StartPosition) -> None:
        """Make sure that the subscription exists, with a cursor on every segment.

        A new one starts on each segment at `start`; one that exists is left as it is.

        Raises:
            TopicNotFound, SubscriptionEnding
        """
        async with self._locks.hold((topic, name)):
            await self._add(topic, name, kind, start)

    async def open(
        self, segment: TopicName, name: str, kind: SubscriptionKind, start: StartPosition
    ) -> tuple[Topic, SegmentSubscription]:
        """The subscription on one segment, for a consumer; created on all of them if there is none.

        Raises:
            TopicNotFound: there is no such topic, or no such segment of it; nothing was created.
            SubscriptionEnding: one of the name is being deleted.
        """
        scalable, _segment_id = segment_of(segment)
        # First, so that a name which is no segment of the topic leaves no subscription there.
        topic = await self._topics.get(segment)
        async with self._locks.hold((scalable, name)):
            await self._add(scalable, name, kind, start)
            return topic, await topic.subscribe(name, _STARTS[start])

    async def delete(self, topic: TopicName, name: str, *, force: bool = False) -> None:
        """Delete the subscription with its cursors. May be repeated if it was interrupted.

        Raises:
            TopicNotFound, SubscriptionNotFound
            SubscriptionInUse: consumers are connected, and `force` was not given; nothing was changed.
        """
        # No split meanwhile: it would make cursors of the subscription on its children.
        async with self._topic_locks.hold(topic), self._locks.hold((topic, name)):
            layout = await self._layouts.get(topic)
            if name not in layout.subscriptions:
                raise SubscriptionNotFound(f"{topic} has no subscription {name}")
            if not force and self._has_consumers(topic, layout, name):
                raise SubscriptionInUse(f"subscription {name} has consumers; delete it with force=true to end them")
            layout = await self._layouts.change(topic, lambda layout: layout.begin_removing_subscription(name))
            await self.finish_deletion(topic, layout, name)

    async def finish_creation(self, topic: TopicName, layout: Layout, name: str) -> None:
        """Make the cursors that a subscription marked as being created lacks, and take the mark away."""
        where = _STARTS[layout.subscriptions[name].start]

        async def subscribe(segment: TopicName) -> None:
            await (await self._topics.get(segment)).subscribe(name, where)

        # The children of an open intent get theirs from whoever carries it out, at their beginning.
        segments = [segment_topic(topic, segment) for segment in layout.segments.values()]
        await self._on_segments(topic, segments, subscribe)
        await self._layouts.change(topic, lambda layout: layout.confirm_subscription(name))

    async def finish_deletion(self, topic: TopicName, layout: Layout, name: str) -> None:
        """Remove the cursors of a subscription marked for deletion, and its registration."""

        async def remove(segment: TopicName) -> None:
            await self._topics.unsubscribe(segment, name)

        await self._on_segments(topic, _every_segment(topic, layout), remove)
        await self._layouts.change(topic, lambda layout: _without(layout, name))

    async def skip_all(self, topic: TopicName, name: str) -> None:
        """Acknowledge everything that is readable now, on every segment. Connected consumers subscribe anew.

        Raises:
            TopicNotFound, SubscriptionNotFound
            OwnedElsewhere: the subscription is ordered, and another broker is the topic's controller.
        """
        await self._seek(topic, name, _behind_all)

    async def seek_to_time(self, topic: TopicName, name: str, timestamp_ms: int) -> None:
        """Go on, on every segment, with the first entry taken at this time or later. Consumers subscribe anew.

        Raises:
            TopicNotFound, SubscriptionNotFound, OwnedElsewhere: as `skip_all`.
        """

        async def before(segment: Topic) -> Position:
            return (await segment.ledger.position_at_time(timestamp_ms)).before()

        await self._seek(topic, name, before)

    async def _add(self, topic: TopicName, name: str, kind: SubscriptionKind, start: StartPosition) -> None:
        layout = await self._layouts.get(topic)
        if name not in layout.subscriptions:
            made = Subscription(kind, uuid.uuid4().hex, start, self._now_ms(), is_creating=True)
            layout = await self._layouts.change(topic, lambda layout: _with(layout, name, made))
        registered = layout.subscriptions[name]
        if registered.is_deleting:
            raise SubscriptionEnding(f"subscription {name} of {topic} is being deleted")
        if registered.is_creating:
            await self.finish_creation(topic, layout, name)

    async def _seek(self, topic: TopicName, name: str, target: Callable[[Topic], Awaitable[Position]]) -> None:
        async with self._locks.hold((topic, name)):
            layout = await self._layouts.get(topic)
            registered = layout.subscriptions.get(name)
            if registered is None or registered.is_deleting:
                raise SubscriptionNotFound(f"{topic} has no subscription {name}")
            where = _STARTS[registered.start]

            async def seek(segment_name: TopicName) -> None:
                segment = await self._topics.get(segment_name)
                subscription = await segment.subscribe(name, where)
                await segment.seek(subscription, await target(segment))

            async with AsyncExitStack() as stack:
                if registered.kind is SubscriptionKind.STREAM:
                    await stack.enter_async_context(self._groups.held(GroupId(topic, name)))
                await self._on_segments(topic, _every_segment(topic, layout), seek)

    async def _on_segments(
        self, topic: TopicName, segments: list[TopicName], act: Callable[[TopicName], Awaitable[None]]
    ) -> None:
        """Act on each segment; one that was pruned meanwhile is passed over."""
        places = trio.CapacityLimiter(SEGMENTS_AT_ONCE)

        async def act_on(name: TopicName) -> None:
            async with places:
                try:
                    await act(name)
                except TopicNotFound:
                    layout = await self._layouts.get(topic)
                    if name in _every_segment(topic, layout):
                        raise

        try:
            async with trio.open_nursery() as nursery:
                for name in segments:
                    nursery.start_soon(act_on, name)
        except* Exception as failed:
            error: BaseException = failed
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
        else:
            return
        # One says enough; raised out here, because in there it would come in a group.
        raise error

    def _has_consumers(self, topic: TopicName, layout: Layout, name: str) -> bool:
        segments = set(_every_segment(topic, layout))
        return any(
            name in segment.subscriptions and segment.subscriptions[name].consumers
            for segment in self._topics
            if segment.name in segments
        )


async def _behind_all(_segment: Topic) -> Position:
    await trio.lowlevel.checkpoint()
    return LATEST


def _every_segment(topic: TopicName, layout: Layout) -> list[TopicName]:
    """Those of the layout, and the children that an open intent has perhaps made."""
    children = [] if layout.intent is None else layout.intent.children
    segments = (segment_topic(topic, segment) for segment in layout.segments.values())
    return list(dict.fromkeys([*segments, *(topic.segment_name(child.descriptor) for child in children)]))


def _with(layout: Layout, name: str, subscription: Subscription) -> Layout:
    return layout if name in layout.subscriptions else layout.add_subscription(name, subscription)


def _without(layout: Layout, name: str) -> Layout:
    return layout.remove_subscription(name) if name in layout.subscriptions else layout
