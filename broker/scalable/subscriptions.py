"""Subscriptions of scalable topics: one registration in the layout, one cursor on every segment.

A creation registers the subscription first. So a split in progress meets the changed layout, and creates cursors on its
children too. The registration is marked until all segments have a cursor, and any controller that finds the mark
creates the missing ones. No client sees the subscription before that. Otherwise a cursor could be created later, when
the subscription is opened on a segment, and earlier messages of the segment would be skipped.

A deletion marks the registration, removes the cursors, then removes the registration. Any controller that finds the
mark continues. So no new subscription of the same name starts on old cursors (D16). Within one process, creations,
deletions and opening on a segment hold the lock of the subscription's name. So no cursor is created during a deletion.
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
from broker.layouts.parts import LayoutSubscription, StartPosition, SubscriptionKind
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
"""How many segments of a topic an operation on all of them handles concurrently."""

_STARTS: Final = {StartPosition.EARLIEST: EARLIEST, StartPosition.LATEST: LATEST}


class ScalableSubscriptions:
    """Creates, opens, deletes and moves subscriptions of scalable topics. Every change is durable on return."""

    def __init__(
        self,
        layouts: Layouts,
        topics: Topics,
        groups: ConsumerGroups,
        locks: KeyedLocks[TopicName],
        *,
        now_ms: WallClock,
    ) -> None:
        """Set up. Changes of a topic's segments hold `locks`."""
        self._groups = groups
        self._layouts = layouts
        self._topics = topics
        self._topic_locks = locks
        self._locks: KeyedLocks[tuple[TopicName, str]] = KeyedLocks()
        self._now_ms = now_ms

    async def add(self, topic: TopicName, name: str, kind: SubscriptionKind, start: StartPosition) -> None:
        """Create the subscription if it does not exist, with a cursor on every segment.

        A new one starts on each segment at `start`. An existing one is not changed.

        Raises:
            TopicNotFound, SubscriptionEnding
        """
        async with self._locks.hold((topic, name)):
            await self._add(topic, name, kind, start)

    async def open(
        self, segment: TopicName, name: str, kind: SubscriptionKind, start: StartPosition
    ) -> tuple[Topic, SegmentSubscription]:
        """Open the subscription on one segment, for a consumer. If it does not exist, create it on all segments.

        Raises:
            TopicNotFound: the topic or its segment does not exist; nothing was created.
            SubscriptionEnding: a subscription of this name is being deleted.
        """
        scalable, _segment_id = segment_of(segment)
        # The segment is opened first, so that the name of a missing segment creates no subscription.
        topic = await self._topics.get(segment)
        async with self._locks.hold((scalable, name)):
            await self._add(scalable, name, kind, start)
            return topic, await topic.subscribe(name, _STARTS[start])

    async def delete(self, topic: TopicName, name: str, *, force: bool = False) -> None:
        """Delete the subscription with its cursors. An interrupted deletion may be repeated.

        Raises:
            TopicNotFound, SubscriptionNotFound
            SubscriptionInUse: consumers are connected, and `force` was not given; nothing was changed.
        """
        # The topic's lock excludes a split, which would create cursors of the subscription on its children.
        async with self._topic_locks.hold(topic), self._locks.hold((topic, name)):
            layout = await self._layouts.get(topic)
            if name not in layout.subscriptions:
                raise SubscriptionNotFound(f"{topic} has no subscription {name}.")
            if not force and self._has_consumers(topic, layout, name):
                raise SubscriptionInUse(
                    f"Subscription {name} of {topic} has consumers. Delete it with force=true to disconnect them."
                )
            layout = await self._layouts.change(topic, lambda layout: layout.begin_removing_subscription(name))
            await self.finish_deletion(topic, layout, name)

    async def finish_creation(self, topic: TopicName, layout: Layout, name: str) -> None:
        """Create the missing cursors of a subscription that is marked as being created, and remove the mark."""
        where = _STARTS[layout.subscriptions[name].start]

        async def subscribe(segment: TopicName) -> None:
            await (await self._topics.get(segment)).subscribe(name, where)

        # The controller that carries out an open intent creates the cursors on its children.
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
        """Acknowledge everything that is readable now, on every segment. Connected consumers must resubscribe.

        Raises:
            TopicNotFound, SubscriptionNotFound
            OwnedElsewhere: the subscription is ordered, and another broker is the topic's controller.
        """
        await self._seek(topic, name, _behind_all)

    async def seek_to_time(self, topic: TopicName, name: str, timestamp_ms: int) -> None:
        """Move to the first entry published at this time or later, on every segment. Consumers must resubscribe.

        Raises:
            TopicNotFound, SubscriptionNotFound, OwnedElsewhere: see `skip_all`.
        """

        async def before(segment: Topic) -> Position:
            return (await segment.ledger.position_at_time(timestamp_ms)).before()

        await self._seek(topic, name, before)

    async def _add(self, topic: TopicName, name: str, kind: SubscriptionKind, start: StartPosition) -> None:
        layout = await self._layouts.get(topic)
        if name not in layout.subscriptions:
            made = LayoutSubscription(kind, uuid.uuid4().hex, start, self._now_ms(), is_creating=True)
            layout = await self._layouts.change(topic, lambda layout: _with(layout, name, made))
        registered = layout.subscriptions[name]
        if registered.is_deleting:
            raise SubscriptionEnding(f"Subscription {name} of {topic} is being deleted. Try again after that.")
        if registered.is_creating:
            await self.finish_creation(topic, layout, name)

    async def _seek(self, topic: TopicName, name: str, target: Callable[[Topic], Awaitable[Position]]) -> None:
        async with self._locks.hold((topic, name)):
            layout = await self._layouts.get(topic)
            registered = layout.subscriptions.get(name)
            if registered is None or registered.is_deleting:
                raise SubscriptionNotFound(f"{topic} has no subscription {name}.")
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
        """Call `act` for each segment. A segment that was pruned meanwhile is skipped."""
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
        # One error is enough. It is raised outside the nursery, which would wrap it in a group.
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
    """Return the segments of the layout, and the children that an open intent may have created."""
    children = [] if layout.intent is None else layout.intent.children
    segments = (segment_topic(topic, segment) for segment in layout.segments.values())
    return list(dict.fromkeys([*segments, *(topic.segment_name(child.descriptor) for child in children)]))


def _with(layout: Layout, name: str, subscription: LayoutSubscription) -> Layout:
    return layout if name in layout.subscriptions else layout.add_subscription(name, subscription)


def _without(layout: Layout, name: str) -> Layout:
    return layout.remove_subscription(name) if name in layout.subscriptions else layout
