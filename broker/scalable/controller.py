"""The controller of scalable topics: create, delete, split and merge, each step resumable from the layout record alone.

A split or merge (docs/design.md#topics) is a sequence in which every step may be repeated, so that whoever finds its
intent in the layout can carry it on:

    1. CAS the intent: parents, children and their ranges          nothing has happened yet
    2. create the children                                         they exist, nobody sends to them
    3. create every subscription's cursor on the children          at their beginning: it all comes after the parents
    4. CAS the new layout                                          a subscription made meanwhile sends this back to 3
    5. push it to every follower                                   clients turn to the children; what they had sent to
                                                                   the parents is still taken, so it dooms nothing
    6. wait until the parents' producers have left, but not long
    7. seal the parents                                            those who did not leave are refused, and closed
    8. CAS: the intent is done

A child may hold messages before its parent is sealed, and key order does not suffer: nobody reads a child before its
parent is read to its sealed end.
"""

import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog
import trio

from broker.cluster.elections import Elections
from broker.errors import (
    IntentOpen,
    TopicClosed,
    TopicExists,
    TopicInUse,
)
from broker.keyed_locks import KeyedLocks
from broker.layouts.autoscale_policy import AutoScaleOverride, AutoScalePolicy
from broker.layouts.layout import Layout, create
from broker.layouts.legacy import segment_topic
from broker.layouts.parts import Intent
from broker.layouts.store import Layouts
from broker.names import TopicName
from broker.scalable.consumer_groups import ConsumerGroups
from broker.scalable.feeds import LayoutFeeds
from broker.scalable.migration import Migrations
from broker.scalable.subscriptions import ScalableSubscriptions
from broker.scalable.unfinished_changes import UnfinishedChanges, names_left
from broker.topics import Topics
from storage.clock import WallClock
from storage.metadata.store import Check, MetadataStore
from storage.position import EARLIEST

LEAVING_SECONDS_MAX: Final = 5.0
"""How long producers may take to leave a segment that was replaced. A client leaves as soon as it has heard of it and
what it had sent is answered; one that does not is not waited for."""

log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class _Change:
    """A split, merge or migration that somebody asked for."""

    topic: TopicName
    make: Callable[[], Awaitable[Layout]]
    """Does all of it."""
    layout: Layout | None = None
    error: Exception | None = None
    ended: trio.Event = field(default_factory=trio.Event)
    """Set when there is a layout or an error."""
    is_awaited: bool = True


class Controller:
    """Changes the layouts of scalable topics."""

    def __init__(
        self,
        layouts: Layouts,
        topics: Topics,
        feeds: LayoutFeeds,
        groups: ConsumerGroups,
        elections: Elections,
        *,
        now_ms: WallClock,
        nursery: trio.Nursery,
        metadata: MetadataStore,
        auto_scale: AutoScalePolicy,
    ) -> None:
        """Set up.

        Args:
            layouts: what is changed.
            topics: the segments.
            feeds: who has to know of a layout before producers are sent away.
            groups: the consumers that share a topic.
            elections: who may do all this for which topic.
            now_ms: the clock of the layouts' times.
            nursery: runs the splits and merges.
            metadata: where everything stands that a topic takes along when it becomes scalable.
            auto_scale: the policy of topics that do not say otherwise.
        """
        self.elections = elections
        self._groups = groups
        self._nursery = nursery
        self._layouts = layouts
        self._topics = topics
        self._feeds = feeds
        self._now_ms = now_ms
        self._auto_scale = auto_scale
        # This process runs one split, merge, deletion or pruning of a topic at a time.
        self.locks: KeyedLocks[TopicName] = KeyedLocks()
        self.subscriptions = ScalableSubscriptions(layouts, topics, groups, self.locks, now_ms=now_ms)
        self._migrations = Migrations(layouts, topics, metadata, now_ms=now_ms)
        self._unfinished = UnfinishedChanges(layouts, topics, elections, self.locks, self._finish_all, nursery)

    async def recover(self) -> None:
        """Finish everything that an earlier controller left half done (D10); see `UnfinishedChanges.recover`."""
        await self._unfinished.recover()

    async def _finish_all(self, topic: TopicName, layout: Layout) -> None:
        if layout.is_deleting:
            log.info("finishing the deletion of a topic", topic=str(topic))
            await self._finish_deletion(topic, layout)
            return
        for name, subscription in layout.subscriptions.items():
            if subscription.is_deleting:
                log.info("finishing the deletion of a subscription", topic=str(topic), subscription=name)
                await self.subscriptions.finish_deletion(topic, layout, name)
            elif subscription.is_creating:
                log.info("finishing the creation of a subscription", topic=str(topic), subscription=name)
                await self.subscriptions.finish_creation(topic, layout, name)
        if layout.intent is not None:
            log.info("finishing a split or merge", topic=str(topic))
            await self._finish_open(topic)

    async def create_topic(self, topic: TopicName, segments: int, properties: Mapping[str, str]) -> None:
        """Create a scalable topic with segments that divide the hash space evenly; durable on return.

        Raises:
            TopicExists, SegmentCountInvalid: nothing was changed. A regular topic has the name too: it is to be
                migrated, as else its clients would be sent away from its messages.
        """
        if await self._layouts.is_made(topic.as_regular):
            raise TopicExists(f"{topic.as_regular} exists; migrate it to have a scalable topic of its name")
        layout = create(segments, self._now_ms(), creation_id=uuid.uuid4().hex, properties=properties)
        await self._layouts.create(topic, layout)

    async def split(self, topic: TopicName, segment_id: int) -> Layout:
        """Divide an active segment into two; the new layout is durable and pushed on return.

        Raises:
            TopicNotFound, UnknownSegment, NotActive, TooNarrow: nothing was changed.
        """
        return await self._change_segments(topic, lambda layout: layout.begin_split(segment_id))

    async def merge(self, topic: TopicName, first_id: int, second_id: int) -> Layout:
        """Join two adjacent active segments; the new layout is durable and pushed on return.

        Raises:
            TopicNotFound, UnknownSegment, NotActive, NotAdjacent: nothing was changed.
        """
        return await self._change_segments(topic, lambda layout: layout.begin_merge(first_id, second_id))

    async def migrate(self, topic: TopicName, *, force: bool) -> Layout:
        """Make a scalable topic of the `persistent://` one of its name; durable and pushed on return.

        Its messages, subscriptions and their cursors are the new topic's. Clients that follow its layout go on; with
        `force`, others are not waited for: their producers are closed for good, their consumers read what is there.

        Raises:
            TopicNotFound, TopicExists, OldClientsConnected, TopicClosed: see `Migrations.make_scalable`.
        """
        return await self._in_background(topic, partial(self._migrate, topic, force=force))

    async def _migrate(self, topic: TopicName, *, force: bool) -> Layout:
        if self.elections.is_elsewhere(topic):
            await self.elections.elect(topic)
        await self._migrations.make_scalable(topic, force=force)
        return await self._finish_open(topic)

    async def auto_scale_override(self, topic: TopicName) -> AutoScaleOverride | None:
        """What the topic wants otherwise than the broker's settings for automatic splits and merges; None: nothing.

        Raises:
            TopicNotFound
        """
        return (await self._layouts.get(topic)).auto_scale

    async def set_auto_scale_override(self, topic: TopicName, override: AutoScaleOverride | None) -> None:
        """Replace it, or remove it by None; durable on return.

        Raises:
            TopicNotFound, LayoutTooLarge: nothing was changed.
            AutoScalePolicyInvalid: with the broker's settings it would make no policy; nothing was changed.
        """
        if override is not None:
            override.over(self._auto_scale)
        await self._layouts.change(topic, lambda layout: layout.with_auto_scale(override))

    def auto_scale_policy(self, layout: Layout) -> AutoScalePolicy:
        """What holds for a topic: the broker's settings with the topic's override.

        Raises:
            AutoScalePolicyInvalid: the settings have changed since it was set, and it does not go with them any more.
        """
        return self._auto_scale if layout.auto_scale is None else layout.auto_scale.over(self._auto_scale)

    async def delete_topic(self, topic: TopicName, *, force: bool) -> None:
        """Remove the topic with all its segments; durable on return.

        From the moment at which this cannot fail any more the topic does not exist, but its name is taken until
        everything of it is gone. If that is interrupted, calling this again goes on with it, as `recover` does, and
        this broker itself if what interrupted it passes.

        Raises:
            TopicNotFound: there is no such topic.
            TopicInUse: clients are connected, and `force` was not given; nothing was changed.
        """
        try:
            await self._delete(topic, force=force)
        except Exception as error:
            self._unfinished.failed(topic, error)
            raise

    async def _delete(self, topic: TopicName, *, force: bool) -> None:
        async with self.locks.hold(topic):
            layout = await self._layouts.stored(topic)
            names = names_left(topic, layout)
            in_use = not layout.is_deleting and any(self._topics.is_in_use(name) for name in names)
            if in_use and not force:
                raise TopicInUse(f"{topic} has connected producers or consumers; delete it with force=true to end them")
            claim = await self.elections.elect(topic)
            with self._topics.deleting(names):
                if not layout.is_deleting:
                    layout = await self._layouts.change(topic, Layout.begin_deletion, claim=claim)
                await self._finish_deletion(topic, layout)

    async def _finish_deletion(self, topic: TopicName, layout: Layout) -> None:
        names = names_left(topic, layout)
        with self._topics.deleting(names):
            for name in names:
                await self._topics.delete(name)
            await self._layouts.remove(topic, layout.creation_id)
            await self._resign(topic)

    async def _resign(self, topic: TopicName) -> None:
        """There is no such topic, so it needs no controller; unless consumers wait here for one of its name."""
        if not self._groups.consumers_of(topic):
            await self.elections.resign(topic)

    async def _change_segments(self, topic: TopicName, begin: Callable[[Layout], Layout]) -> Layout:
        return await self._in_background(topic, partial(self._begin_and_finish, topic, begin))

    async def _begin_and_finish(self, topic: TopicName, begin: Callable[[Layout], Layout]) -> Layout:
        with suppress(IntentOpen):
            # What is refused elects nobody.
            begin(await self._layouts.get(topic))
        claim = await self.elections.elect(topic)
        try:
            await self._layouts.change(topic, begin, claim=claim)
        except IntentOpen:
            # Left by a controller that is gone: in this process the lock admits one at a time.
            await self._finish_open(topic)
            await self._layouts.change(topic, begin, claim=claim)
        return await self._finish_open(topic)

    async def _in_background(self, topic: TopicName, make: Callable[[], Awaitable[Layout]]) -> Layout:
        # Whoever asked may hang up half-way; what is begun goes on here, because nobody else would finish it.
        change = _Change(topic, make)
        self._nursery.start_soon(self._run, change)
        try:
            await change.ended.wait()
        except trio.Cancelled:
            change.is_awaited = False
            raise
        if change.error is not None:
            raise change.error
        assert change.layout is not None, "a change that ended has a layout or an error"
        return change.layout

    async def _run(self, change: "_Change") -> None:
        topic = change.topic
        try:
            async with self.locks.hold(topic):
                change.layout = await change.make()
        except trio.Cancelled:
            change.error = TopicClosed(f"{topic}: the broker is ending")
            raise
        except Exception as error:
            change.error = error
            self._unfinished.failed(topic, error)
            if not change.is_awaited:
                log.warning("a split, merge or migration is not finished", topic=str(topic), reason=str(error))
        finally:
            change.ended.set()

    async def _finish_open(self, topic: TopicName) -> Layout:
        """Steps 2 to 8 of the open intent."""
        claim = await self.elections.elect(topic)
        layout = await self._layouts.get(topic)
        intent = layout.intent
        assert intent is not None, "the caller has just opened or found an intent"
        if not intent.sealing:
            layout = await self._replace_segments(topic, intent, claim)
        await self._feeds.reached(topic, layout.epoch)
        parents = [await self._topics.get(segment_topic(topic, layout.segment(parent))) for parent in intent.parents]
        with trio.move_on_after(LEAVING_SECONDS_MAX):
            for parent in parents:
                parent.retire()
            for parent in parents:
                await parent.producers_left()
        for parent in parents:
            await parent.seal()
            parent.mark_replaced()
        layout = await self._layouts.change(topic, Layout.finish, claim=claim)
        log.info("segments replaced", topic=str(topic), parents=intent.parents, epoch=layout.epoch)
        return layout

    async def _replace_segments(self, topic: TopicName, intent: Intent, claim: Check) -> Layout:
        children = [await self._topics.get(topic.segment_name(child.descriptor)) for child in intent.children]
        ready: set[str] = set()

        def replaced(layout: Layout) -> Layout:
            # Unchanged while a subscription lacks its cursors; then the loop below creates them and asks again.
            return layout.replace_segments(intent, self._now_ms()) if ready >= layout.living_subscriptions() else layout

        while True:
            layout = await self._layouts.change(topic, replaced, claim=claim)
            if layout.intent is not None and layout.intent.sealing:
                return layout
            for subscription in layout.living_subscriptions() - ready:
                for child in children:
                    await child.subscribe(subscription, EARLIEST)
                ready.add(subscription)
