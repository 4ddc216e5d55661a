"""The controller of scalable topics: create, delete, split and merge. Each can be resumed from the layout record alone.

Every step of a split or merge (docs/design.md#topics) may be repeated, so any controller that finds the intent in the
layout can continue it:

    1. CAS the intent: parents, children and their ranges          nothing has happened yet
    2. create the children                                         they exist, but nobody can load them
    3. create every subscription's cursor on the children          at their start: all of it comes after the parents
    4. CAS the new layout                                          a subscription created meanwhile goes back to 3
    5. push it to every follower                                   clients move to the children; the parents still take
                                                                   sends in flight, so no transaction fails
    6. wait for the parents' producers to leave, for a short time
    7. seal the parents                                            producers that stayed are refused and closed
    8. CAS: the intent is done

A child may take messages before its parent is sealed. The order of a key is kept, because no consumer reads a child
before its parent is read to its sealed end.

The controller owns no segment by itself (C14). It creates the children as records (`broker.scalable.children`). Steps 6
and 7 are the duty of each parent's owner, which waits for step 5 on all brokers (`broker.scalable.segment_owner`). The
controller waits until the parents' records say that they are sealed.
"""

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import structlog
import trio

from broker.administration_contract import MigrationAsked
from broker.cluster.elections import Elections
from broker.cluster.ownership import OwnedElsewhere
from broker.cluster.turns import Turns
from broker.errors import IntentGone, IntentOpen, TopicClosed, TopicExists, TopicInUse
from broker.keyed_locks import InterruptibleLocks
from broker.layouts.autoscale_policy import AutoScaleOverride, AutoScalePolicy
from broker.layouts.layout import Layout, create
from broker.layouts.legacy import segment_topic
from broker.layouts.parts import Intent
from broker.layouts.store import Layouts
from broker.names import TopicName
from broker.partitioned_topics import ForgetTopic, record_key
from broker.scalable.children import make_child
from broker.scalable.consumer_groups import ConsumerGroups
from broker.scalable.migration import Migrations
from broker.scalable.segment_work import SegmentWork, on_each
from broker.scalable.subscriptions import ScalableSubscriptions
from broker.scalable.unfinished_changes import UnfinishedChanges, names_left
from broker.topics import Topics
from storage.clock import WallClock
from storage.metadata.store import ABSENT, Check, Conflict, MetadataStore

log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class _Change:
    """A requested split, merge or migration."""

    topic: TopicName
    make: Callable[[], Awaitable[Layout]]
    """Carries out the whole change."""
    layout: Layout | None = None
    error: Exception | None = None
    ended: trio.Event = field(default_factory=trio.Event)
    """Set when the change has a layout or an error."""
    is_awaited: bool = True


class Controller:
    """Changes the layouts of scalable topics."""

    def __init__(
        self,
        layouts: Layouts,
        topics: Topics,
        segments: SegmentWork,
        groups: ConsumerGroups,
        elections: Elections,
        turns: Turns,
        *,
        now_ms: WallClock,
        nursery: trio.Nursery,
        metadata: MetadataStore,
        auto_scale: AutoScalePolicy,
        forget: ForgetTopic,
    ) -> None:
        """Set up.

        Args:
            layouts: the layouts to change.
            topics: the segments that this broker owns.
            segments: has steps done on segments, whoever owns them.
            groups: the consumers that share a topic.
            elections: they decide which broker may change which topic.
            turns: which broker finishes a change without a controller.
            now_ms: the clock of the times in layouts.
            nursery: runs the splits and merges.
            metadata: the store of the records that a migrated topic keeps.
            auto_scale: the policy of topics without their own settings.
            forget: removes what front ends store about a topic that is gone.
        """
        self.elections = elections
        self.turns = turns
        self._groups = groups
        self._nursery = nursery
        self._layouts = layouts
        self._topics = topics
        self._segments = segments
        self._metadata = metadata
        self._now_ms = now_ms
        self._auto_scale = auto_scale
        self._forget = forget
        # This process runs one split, merge, deletion or pruning of a topic at a time. A change may wait for others: an
        # owner whose disk is full seals nothing. A forced deletion does not wait for the change.
        self.locks: InterruptibleLocks[TopicName] = InterruptibleLocks(_interrupted)
        self.subscriptions = ScalableSubscriptions(
            layouts, topics, segments, groups, self.locks, now_ms=now_ms, nursery=nursery
        )
        self._migrations = Migrations(layouts, topics, metadata, now_ms=now_ms)
        self._unfinished = UnfinishedChanges(layouts, elections, turns, self.locks, self._finish_all, nursery)

    async def recover(self) -> None:
        """Finish all changes that an earlier controller left unfinished (D10); see `UnfinishedChanges.recover`."""
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
            await self._finish_open(topic, await self._layouts.get(topic))

    async def create_topic(self, topic: TopicName, segments: int, properties: Mapping[str, str]) -> None:
        """Create a scalable topic with segments that divide the hash space evenly; durable on return.

        Raises:
            TopicExists, SegmentCountInvalid: nothing was changed. `TopicExists` is also raised for a regular topic of
                this name. It must be migrated; otherwise its clients would lose access to its messages. The same holds
                for a partitioned topic, because Kafka's clients use both by one name.
        """
        if await self._layouts.is_made(topic.as_regular):
            raise TopicExists(f"{topic.as_regular} exists. Migrate it to get a scalable topic of this name.")
        layout = create(
            segments, self._now_ms(), creation_id=uuid.uuid4().hex, properties=properties, segments_min=segments
        )
        partitioned = Check(record_key(topic.as_regular), ABSENT)
        try:
            await self._layouts.create(topic, layout, partitioned)
        except Conflict as conflict:
            raise TopicExists(
                f"{topic.as_regular} is a partitioned topic. Choose another name, or delete it first."
            ) from conflict

    async def split(self, topic: TopicName, segment_id: int) -> Layout:
        """Divide an active segment into two; the new layout is durable and pushed on return.

        Raises:
            TopicNotFound, UnknownSegment, NotActive, TooNarrow: nothing was changed.
            OwnedElsewhere: another broker is the controller. It goes on if the split has begun.
        """
        return await self._change_segments(topic, lambda layout: layout.begin_split(segment_id))

    async def merge(self, topic: TopicName, first_id: int, second_id: int, *, allow_fewer: bool = True) -> Layout:
        """Join two adjacent active segments; the new layout is durable and pushed on return.

        Raises:
            TopicNotFound, UnknownSegment, NotActive, NotAdjacent: nothing was changed.
            FewerThanAsked: nothing was changed, because too few segments would be left. Not with `allow_fewer`.
            OwnedElsewhere: another broker is the controller. It goes on if the merge has begun.
        """
        return await self._change_segments(
            topic, lambda layout: layout.begin_merge(first_id, second_id, allow_fewer=allow_fewer)
        )

    async def migrate(self, topic: TopicName, *, force: bool) -> Layout:
        """Turn the `persistent://` topic of this name into a scalable one; durable and pushed on return.

        The new topic has its messages, subscriptions and cursors. Clients that follow its layout continue. With
        `force`, other clients do not prevent the migration. Their producers are closed and refused from then on. Their
        consumers can read the old messages.

        Raises:
            TopicNotFound, TopicExists, OldClientsConnected, TopicClosed: see `Migrations.make_scalable`.
            OwnedElsewhere: another broker is the controller. It goes on if the migration has begun.
        """
        return await self._in_background(topic, partial(self._migrate, topic, force=force))

    async def _migrate(self, topic: TopicName, *, force: bool) -> Layout:
        if self.elections.is_elsewhere(topic):
            await self.elections.elect(topic)
        try:
            opened = await self._migrations.make_scalable(topic, force=force)
        except OwnedElsewhere as elsewhere:
            # Without a controller, the owner becomes it: the caller asks there.
            claim = self.elections.holds(topic)
            if elsewhere.owner is None or claim is None:
                raise
            await self._segments.begin_migration(elsewhere.owner, topic, claim, force=force)
            opened = await self._layouts.get(topic)
        return await self._finish_open(topic, opened)

    async def begin_migration(self, topic: TopicName, asked: MigrationAsked, *, force: bool) -> None:
        """Write the first layout of a regular topic that this broker owns; durable on return.

        Its controller, another broker, asks for it and finishes the migration.

        Raises:
            OwnedElsewhere: this broker does not own the regular topic, or whoever asked is not the controller.
            TopicNotFound, TopicExists, OldClientsConnected, TopicClosed: see `Migrations.make_scalable`.
        """
        await self._in_background(topic, partial(self._migrations.make_scalable, topic, force=force, asked=asked))

    async def auto_scale_override(self, topic: TopicName) -> AutoScaleOverride | None:
        """Return the topic's own settings for automatic splits and merges; None if it has none.

        Raises:
            TopicNotFound
        """
        return (await self._layouts.get(topic)).auto_scale

    async def set_auto_scale_override(self, topic: TopicName, override: AutoScaleOverride | None) -> None:
        """Replace the topic's own settings, or remove them with None; durable on return.

        Raises:
            TopicNotFound, LayoutTooLarge: nothing was changed. AutoScalePolicyInvalid: together with the broker's
            settings they are not a valid policy; nothing was changed.
        """
        if override is not None:
            override.over(self._auto_scale)
        await self._layouts.change(topic, lambda layout: layout.with_auto_scale(override))

    def auto_scale_policy(self, layout: Layout) -> AutoScalePolicy:
        """Return the policy for a topic: the broker's settings, overridden by the topic's own.

        Raises:
            AutoScalePolicyInvalid: the broker's settings have changed, and the topic's own no longer fit them.
        """
        return self._auto_scale if layout.auto_scale is None else layout.auto_scale.over(self._auto_scale)

    async def delete_topic(self, topic: TopicName, *, force: bool) -> None:
        """Delete the topic with all its segments; durable on return.

        Once the layout is marked, the topic no longer exists, but its name is in use until everything is removed. If
        the removal is interrupted, another call continues it, and so does `recover`. After a retriable error this
        broker continues it by itself.

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
        async with self.locks.seize(topic) if force else self.locks.hold(topic):
            layout = await self._layouts.stored(topic)
            if not force and not layout.is_deleting:
                await self._require_unused(topic, names_left(topic, layout))
            claim = await self.elections.elect(topic)
            if not layout.is_deleting:
                layout = await self._layouts.change(topic, Layout.begin_deletion, claim=claim)
            await self._finish_deletion(topic, layout)

    async def _require_unused(self, topic: TopicName, names: Sequence[TopicName]) -> None:
        if any(self._topics.is_in_use(name) for name in names):
            raise _in_use(topic)
        elsewhere = await self._segments.users_elsewhere(topic, names)
        if any(users is not None and users.clients for users in elsewhere.values()):
            raise _in_use(topic)
        silent = [segment for segment, users in elsewhere.items() if users is None]
        if silent:
            raise TopicInUse(
                f"{topic} may have connected producers or consumers: other brokers serve {len(silent)} of its "
                f"segments, for example {silent[0]}, and do not say. Try again, or delete it with force=true to "
                "disconnect them."
            )

    async def _finish_deletion(self, topic: TopicName, layout: Layout) -> None:
        for name in names_left(topic, layout):
            await self._segments.remove(topic, layout.creation_id, name)
        await self._forget(self._metadata, topic)
        await self._layouts.remove(topic, layout.creation_id)
        await self._resign(topic)

    async def _resign(self, topic: TopicName) -> None:
        """Resign, because the topic does not exist; unless consumers wait here for a topic of this name."""
        if not self._groups.consumers_of(topic):
            await self.elections.resign(topic)

    async def _change_segments(self, topic: TopicName, begin: Callable[[Layout], Layout]) -> Layout:
        return await self._in_background(topic, partial(self._begin_and_finish, topic, begin))

    async def _begin_and_finish(self, topic: TopicName, begin: Callable[[Layout], Layout]) -> Layout:
        with suppress(IntentOpen):
            # Check first, so that a refused change elects no controller.
            begin(await self._layouts.get(topic))
        claim = await self.elections.elect(topic)
        try:
            opened = await self._layouts.change(topic, begin, claim=claim)
        except IntentOpen:
            # An open intent was left by an earlier controller: the lock admits one change at a time in this process.
            await self._finish_open(topic, await self._layouts.get(topic))
            opened = await self._layouts.change(topic, begin, claim=claim)
        return await self._finish_open(topic, opened)

    async def _in_background(self, topic: TopicName, make: Callable[[], Awaitable[Layout]]) -> Layout:
        # The caller may disconnect halfway. The change continues here, because nothing else would finish it.
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
        except Exception as error:
            change.error = error
            self._unfinished.failed(topic, error)
            if not change.is_awaited:
                log.warning("a split, merge or migration did not finish", topic=str(topic), reason=str(error))
        except BaseException:
            # A cancellation may come in a group, from work on several segments.
            change.error = TopicClosed(f"{topic}: the broker is stopping")
            raise
        finally:
            change.ended.set()

    async def _finish_open(self, topic: TopicName, opened: Layout) -> Layout:
        """Carry out steps 2 to 8 of the intent that is open in `opened`, unless another controller has done so.

        Raises:
            OwnedElsewhere: another broker is the controller, or will be, and has not finished yet.
        """
        try:
            return await self._finish(topic, opened)
        except (IntentGone, OwnedElsewhere) as lost:
            # This broker has been drained meanwhile, or drains and may not load a segment.
            layout = await self._layouts.get(topic)
            if layout.has_finished(opened):
                return layout
            # The owner is not named, so nobody sends it the request, which it would refuse for a sealed segment.
            raise OwnedElsewhere(
                f"This broker leaves the open change of {topic} to the topic's next controller. Look at the topic's "
                "segments before you send the request again."
            ) from lost

    async def _finish(self, topic: TopicName, opened: Layout) -> Layout:
        claim = await self.elections.elect(topic)
        layout = await self._layouts.get(topic)
        intent = layout.intent
        if intent is None or layout.has_finished(opened):
            raise IntentGone("Another controller has finished this change.")
        if not intent.sealing:
            layout = await self._replace_segments(topic, intent, claim)
        parents = [segment_topic(topic, layout.segment(parent)) for parent in intent.parents]
        await on_each(parents, partial(self._segments.seal, topic, layout.creation_id))
        layout = await self._layouts.change(topic, Layout.finish, claim=claim)
        log.info("segments replaced", topic=str(topic), parents=intent.parents, epoch=layout.epoch)
        return layout

    async def _replace_segments(self, topic: TopicName, intent: Intent, claim: Check) -> Layout:
        children = [topic.segment_name(child.descriptor) for child in intent.children]
        ready: frozenset[tuple[str, str]] | None = None
        """The subscriptions that have their cursors, by name and creation; None while there is no child."""

        def replaced(layout: Layout) -> Layout:
            # While a subscription lacks its cursors, nothing changes; the loop below creates them and tries again.
            is_ready = ready is not None and ready >= _living(layout)
            return layout.replace_segments(intent, self._now_ms()) if is_ready else layout

        while True:
            layout = await self._layouts.change(topic, replaced, claim=claim)
            if layout.intent is not None and layout.intent.sealing:
                return layout
            found = await self._layouts.version(topic)
            made = found.layout
            try:
                for child in children:
                    subscriptions, conditions = made.living_subscriptions(), (claim, found.check)
                    await make_child(child, made.creation_id, subscriptions, conditions, self._metadata)
            except Conflict as conflict:
                if conflict.key == found.check.key:
                    continue
                raise OwnedElsewhere(
                    f"Another broker has become the controller of {topic}. Send the request again."
                ) from conflict
            ready = _living(made)


def _living(layout: Layout) -> frozenset[tuple[str, str]]:
    """Return the subscriptions that need a cursor on every child. One that is made again is another one."""
    return frozenset((name, layout.subscriptions[name].creation_id) for name in layout.living_subscriptions())


def _interrupted(topic: TopicName) -> TopicClosed:
    return TopicClosed(f"{topic} is being deleted, which has interrupted this change of its segments.")


def _in_use(topic: TopicName) -> TopicInUse:
    return TopicInUse(f"{topic} has connected producers or consumers. Delete it with force=true to disconnect them.")
