"""Subscriptions of scalable topics: one registration in the layout, one cursor on every segment.

A creation registers the subscription first. So a split in progress meets the changed layout, and creates cursors on its
children too. The registration is marked until all segments have a cursor, and any controller that finds the mark
creates the missing ones. No client sees the subscription before that. Otherwise a cursor could be created later, when
the subscription is opened on a segment, and earlier messages of the segment would be skipped.

A deletion marks the registration, removes the cursors, then removes the registration. Any controller that finds the
mark continues. So no new subscription of the same name starts on old cursors (D16). Every cursor is created under the
condition that the layout has not changed since it was read. So no cursor is created during a deletion.

If a step fails with a retriable error, the caller gets the error and this broker goes on. The topic's controller may be
another broker, which looks for marks only when the members change. Consumers would be refused until then.

The segments may belong to other brokers (`broker.scalable.segment_work`).
"""

import uuid
from collections.abc import Awaitable, Callable, Iterator, Set
from contextlib import AsyncExitStack, contextmanager
from functools import partial

import structlog
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
from broker.scalable.segment_owner import STARTS
from broker.scalable.segment_work import SegmentWork, on_each
from broker.store_retry import RETRY_SECONDS
from broker.topic import Topic
from broker.topics import Topics
from dispatch.subscription import Subscription as SegmentSubscription
from storage.clock import WallClock
from storage.errors import ExpectedError
from storage.metadata.store import Check, Conflict

log = structlog.get_logger(__name__)


class ScalableSubscriptions:
    """Creates, opens, deletes and moves subscriptions of scalable topics. Every change is durable on return."""

    def __init__(
        self,
        layouts: Layouts,
        topics: Topics,
        segments: SegmentWork,
        groups: ConsumerGroups,
        locks: KeyedLocks[TopicName],
        *,
        now_ms: WallClock,
        nursery: trio.Nursery,
    ) -> None:
        """Set up. Changes of a topic's segments hold `locks`. The `nursery` runs what is tried again."""
        self._groups = groups
        self._layouts = layouts
        self._topics = topics
        self._segments = segments
        self._topic_locks = locks
        self._locks: KeyedLocks[tuple[TopicName, str]] = KeyedLocks()
        self._now_ms = now_ms
        self._nursery = nursery
        self._later: set[tuple[TopicName, str]] = set()
        """Subscriptions that a task finishes."""

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
            while True:
                unchanged = await self._add(scalable, name, kind, start)
                try:
                    return topic, await topic.subscribe(name, STARTS[start], [unchanged])
                except Conflict:
                    # The segment has no cursor, and the layout has changed: the subscription may have been deleted.
                    continue

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
            if not force:
                await self._require_unused(topic, layout, name)
            with self._finished(topic, name):
                layout = await self._layouts.change(topic, lambda layout: layout.begin_removing_subscription(name))
                await self.finish_deletion(topic, layout, name)

    @contextmanager
    def _finished(self, topic: TopicName, name: str) -> Iterator[None]:
        """Go on later if the block, which marks the subscription, fails with a retriable error."""
        try:
            yield
        except ExpectedError as error:
            if error.retriable and (topic, name) not in self._later:
                self._later.add((topic, name))
                self._nursery.start_soon(self._finish_later, topic, name)
            raise

    async def _finish_later(self, topic: TopicName, name: str) -> None:
        """Finish what a mark says, if there is one. Try again for as long as the errors are retriable."""
        is_done = False
        try:
            while not is_done:
                await trio.sleep(RETRY_SECONDS)
                try:
                    async with self._topic_locks.hold(topic), self._locks.hold((topic, name)):
                        layout = await self._layouts.get(topic)
                        registered = layout.subscriptions.get(name)
                        if registered is not None and registered.is_deleting:
                            await self.finish_deletion(topic, layout, name)
                        elif registered is not None and registered.is_creating:
                            await self.finish_creation(topic, layout, name)
                    is_done = True
                except TopicNotFound:
                    # Its deletion removes the rest.
                    is_done = True
                except ExpectedError as error:
                    log.warning(
                        "a subscription is half created or deleted",
                        topic=str(topic),
                        subscription=name,
                        reason=str(error),
                    )
                    is_done = not error.retriable
        finally:
            self._later.discard((topic, name))

    async def finish_creation(self, topic: TopicName, layout: Layout, name: str) -> None:
        """Create the missing cursors of a subscription that is marked as being created, and remove the mark."""
        creation_id = layout.subscriptions[name].creation_id

        def confirmed(layout: Layout) -> Layout:
            made = layout.subscriptions.get(name)
            is_same = made is not None and made.creation_id == creation_id
            return layout.confirm_subscription(name) if is_same else layout

        async def make(segment: TopicName) -> None:
            await self._segments.make_cursor(topic, segment, name)

        # The controller that carries out an open intent creates the cursors on its children.
        segments = [segment_topic(topic, segment) for segment in layout.segments.values()]
        await self._on_segments(topic, segments, make)
        await self._layouts.change(topic, confirmed)

    async def finish_deletion(self, topic: TopicName, layout: Layout, name: str) -> None:
        """Remove the cursors of a subscription marked for deletion, and its registration."""
        creation_id = layout.subscriptions[name].creation_id

        def removed(layout: Layout) -> Layout:
            marked = layout.subscriptions.get(name)
            is_same = marked is not None and marked.creation_id == creation_id
            return layout.remove_subscription(name) if is_same else layout

        async def remove(segment: TopicName) -> None:
            await self._segments.remove_cursor(topic, segment, name)

        await self._on_segments(topic, _every_segment(topic, layout), remove)
        await self._layouts.change(topic, removed)

    async def skip_all(self, topic: TopicName, name: str) -> None:
        """Acknowledge everything that is readable now, on every segment. Connected consumers must resubscribe.

        Raises:
            TopicNotFound, SubscriptionNotFound
            OwnedElsewhere: the subscription is ordered, and another broker is the topic's controller.
            PeerSilent, PeerRefused: another broker owns a segment and did not do it. Some segments may have moved.
        """
        await self._seek(topic, name, None)

    async def seek_to_time(self, topic: TopicName, name: str, timestamp_ms: int) -> None:
        """Move to the first entry published at this time or later, on every segment. Consumers must resubscribe.

        Raises:
            TopicNotFound, SubscriptionNotFound, OwnedElsewhere, PeerSilent, PeerRefused: see `skip_all`.
        """
        await self._seek(topic, name, timestamp_ms)

    async def _add(self, topic: TopicName, name: str, kind: SubscriptionKind, start: StartPosition) -> Check:
        """Return when the subscription exists on all segments, with the condition that the layout has not changed."""
        while True:
            layout, unchanged = await self._layouts.living_version(topic)
            registered = layout.subscriptions.get(name)
            if registered is None:
                made = LayoutSubscription(kind, uuid.uuid4().hex, start, self._now_ms(), is_creating=True)
                with self._finished(topic, name):
                    await self._layouts.change(topic, partial(_with, name=name, subscription=made))
            elif registered.is_deleting:
                raise SubscriptionEnding(f"Subscription {name} of {topic} is being deleted. Try again after that.")
            elif registered.is_creating:
                with self._finished(topic, name):
                    await self.finish_creation(topic, layout, name)
            else:
                return unchanged

    async def _seek(self, topic: TopicName, name: str, timestamp_ms: int | None) -> None:
        async with self._locks.hold((topic, name)):
            layout = await self._layouts.get(topic)
            registered = layout.subscriptions.get(name)
            if registered is None or registered.is_deleting:
                raise SubscriptionNotFound(f"{topic} has no subscription {name}.")
            if registered.is_creating:
                await self.finish_creation(topic, layout, name)

            # Children that an open intent will create are empty, so there is nothing to move on them.
            segments = {segment_topic(topic, segment): segment for segment in layout.segments.values()}

            async def seek(segment: TopicName) -> None:
                await self._segments.move_cursor(topic, segments[segment], name, timestamp_ms)

            async with AsyncExitStack() as stack:
                if registered.kind is SubscriptionKind.STREAM:
                    await stack.enter_async_context(self._groups.held(GroupId(topic, name)))
                await self._on_segments(topic, list(segments), seek)

    async def _on_segments(
        self, topic: TopicName, segments: list[TopicName], act: Callable[[TopicName], Awaitable[None]]
    ) -> None:
        """Call `act` for each segment. A segment that was pruned meanwhile is skipped."""

        async def act_on(name: TopicName) -> None:
            try:
                await act(name)
            except TopicNotFound:
                layout = await self._layouts.get(topic)
                if name in _every_segment(topic, layout):
                    raise

        await on_each(segments, act_on)

    async def _require_unused(self, topic: TopicName, layout: Layout, name: str) -> None:
        segments = _every_segment(topic, layout)
        elsewhere = await self._segments.users_elsewhere(topic, segments)
        if self._has_consumers(set(segments), name) or any(
            users is not None and name in users.subscriptions for users in elsewhere.values()
        ):
            raise SubscriptionInUse(
                f"Subscription {name} of {topic} has consumers. Delete it with force=true to disconnect them."
            )
        silent = [segment for segment, users in elsewhere.items() if users is None]
        if silent:
            raise SubscriptionInUse(
                f"Subscription {name} of {topic} may have consumers: other brokers serve {len(silent)} of its "
                f"segments, for example {silent[0]}, and do not say. Try again, or delete it with force=true to "
                "disconnect them."
            )

    def _has_consumers(self, segments: Set[TopicName], name: str) -> bool:
        return any(
            name in segment.subscriptions and segment.subscriptions[name].consumers
            for segment in self._topics
            if segment.name in segments
        )


def _every_segment(topic: TopicName, layout: Layout) -> list[TopicName]:
    """Return the segments of the layout, and the children that an open intent may have created."""
    children = [] if layout.intent is None else layout.intent.children
    segments = (segment_topic(topic, segment) for segment in layout.segments.values())
    return list(dict.fromkeys([*segments, *(topic.segment_name(child.descriptor) for child in children)]))


def _with(layout: Layout, name: str, subscription: LayoutSubscription) -> Layout:
    return layout if name in layout.subscriptions else layout.add_subscription(name, subscription)
