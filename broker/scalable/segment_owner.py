"""Carries out a broker's duties for the segments that it owns (`broker.scalable.duties`).

One metadata watch per scalable topic with loaded segments shows the layout. A topic without an open change has no
duties, so its segments cost nothing. A duty that fails is tried again for as long as the segment is loaded here. If it
fails because the layout is unreadable, that is when the layout has changed.

The task that carries out a duty reads the layout again, holds a lock of the segment meanwhile, and makes a cursor only
if the layout has not changed. So a subscription that is deleted, and perhaps made again, gets no stale cursor and loses
no new one (D16), also if several brokers act at once.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum
from typing import Final

import structlog
import trio

from broker.background import is_environment
from broker.cluster.elections import Elections
from broker.cluster.ownership import OwnedElsewhere
from broker.errors import LayoutUnreadable, SubscriptionNotFound, TopicNotFound
from broker.keyed_locks import KeyedLocks
from broker.layouts.layout import Layout
from broker.layouts.legacy import segment_in
from broker.layouts.parts import StartPosition
from broker.layouts.record import from_json
from broker.layouts.store import Layouts, layout_key
from broker.names import TopicName
from broker.scalable.duties import duties_of
from broker.scalable.feeds import LayoutFeeds
from broker.store_retry import RETRY_SECONDS
from broker.topic import Topic
from broker.topics import Topics
from storage.cursor import cursor_key
from storage.metadata.store import Conflict, MetadataStore, Record
from storage.position import EARLIEST, LATEST

LEAVING_SECONDS_MAX: Final = 5.0
"""How long producers may take to leave a replaced segment. A client leaves as soon as it has the new layout and the
acknowledgements of its sends. After this time it is no longer waited for."""

STARTS: Final = {StartPosition.EARLIEST: EARLIEST, StartPosition.LATEST: LATEST}

SEGMENTS_AT_ONCE: Final = 64
"""Segments whose duties are found in one step of the event loop."""

log = structlog.get_logger(__name__)


class _Kind(Enum):
    """Duties that do not wait for each other. A seal takes seconds, and consumers wait for cursors."""

    CURSORS = "cursors"
    SEAL = "seal"
    LET_GO = "let go"


class _Feed:
    """One topic's layout, and its segments that are loaded here."""

    def __init__(self) -> None:
        self.segments: dict[TopicName, Topic] = {}
        self.layout: Layout | None = None
        self.is_known = False
        self.scope = trio.CancelScope()


class SegmentOwner:
    """See the module's docstring."""

    def __init__(
        self,
        topics: Topics,
        layouts: Layouts,
        feeds: LayoutFeeds,
        elections: Elections,
        *,
        metadata: MetadataStore,
        nursery: trio.Nursery,
    ) -> None:
        """Set up.

        Args:
            topics: the segments that this broker owns.
            layouts: the stored layouts.
            feeds: the clients that must get a layout before the segments that it replaces are sealed.
            elections: a controller removes its own segments, so it does not give them up.
            metadata: the store in which layouts are watched.
            nursery: runs the watches and the work.
        """
        self._topics = topics
        self._layouts = layouts
        self._feeds = feeds
        self._elections = elections
        self._metadata = metadata
        self._nursery = nursery
        self._followed: dict[TopicName, _Feed] = {}
        self._cursors: KeyedLocks[TopicName] = KeyedLocks()
        self._seals: KeyedLocks[TopicName] = KeyedLocks()
        self._working: dict[tuple[Topic, _Kind], bool] = {}
        """The duties that a task carries out; True if it has to look again."""
        topics.attach(self._loaded_or_unloaded)
        elections.attach(self._controller_changed)

    async def settle_cursors(self, segment: Topic) -> None:
        """Make, open and remove cursors of a segment that is loaded here, as the stored layout says; durable on return.

        Raises:
            TopicNotFound: the scalable topic does not exist.
            TopicClosed: the segment is being unloaded.
            CursorError: a cursor was not written.
        """
        async with self._cursors.hold(segment.name):
            while True:
                found = await self._layouts.version(_topic_of(segment))
                self._note_migration(segment, found.layout)
                due = duties_of(found.layout, segment.name, subscriptions=segment.subscriptions, is_replaced=True)
                for subscription in due.removes:
                    key = cursor_key(str(segment.name), subscription)
                    if subscription in segment.subscriptions or await self._metadata.get(key) is not None:
                        await segment.unsubscribe(subscription)
                for subscription in due.opens:
                    with suppress(SubscriptionNotFound):
                        await segment.subscribe(subscription, None)
                try:
                    for subscription, start in due.makes:
                        await segment.subscribe(subscription, STARTS[start], [found.check])
                except Conflict:
                    # The layout has changed.
                    continue
                return

    async def seal(self, segment: Topic) -> None:
        """Seal a replaced segment that is loaded here, once clients know its children; durable on return.

        Raises:
            TopicNotFound: the scalable topic does not exist.
            LedgerFailed, Fenced: this broker no longer owns the segment.
        """
        topic = _topic_of(segment)
        async with self._seals.hold(segment.name):
            if segment.replaced.is_set():
                return
            layout = await self._layouts.stored(topic)
            self._note_migration(segment, layout)
            await self._feeds.reached_everywhere(topic, layout)
            with trio.move_on_after(LEAVING_SECONDS_MAX):
                segment.clients.retire()
                await segment.clients.producers_left()
            await segment.seal()
            segment.mark_replaced()

    def _note_migration(self, segment: Topic, layout: Layout) -> None:
        """Whoever migrates a regular topic may not have heard yet that the layout is durable. Others act on it."""
        if segment.scalable_topic is None and segment_in(layout, segment.name) is not None:
            self._topics.migrated(segment)

    async def _let_go(self, segment: Topic) -> None:
        if segment.scalable_topic is None or self._elections.holds(segment.scalable_topic):
            return
        layout = await self._layouts.stored_or_none(segment.scalable_topic)
        if layout is not None and not layout.is_deleting:
            # Clients must learn that a segment is pruned before it refuses them.
            await self._feeds.reached_everywhere(segment.scalable_topic, layout)
        if self._elections.holds(segment.scalable_topic):
            return
        if layout is None:
            # Nothing says that its data may go.
            await self._topics.let_go(segment.name)
        elif duties_of(layout, segment.name, subscriptions=(), is_replaced=True).lets_go:
            # To close it could take space, which a full disk has only after the removal. The controller waits for the
            # claim, so the layout still says the same.
            log.info("removing a segment for its topic's controller", segment=str(segment.name))
            await self._topics.delete(segment.name)

    def _loaded_or_unloaded(self, segment: Topic) -> None:
        if segment.scalable_topic is None:
            return
        feed = self._followed.get(segment.scalable_topic)
        if self._topics.running(segment.name) is segment:
            if feed is None:
                feed = self._followed[segment.scalable_topic] = _Feed()
                self._nursery.start_soon(self._follow, segment.scalable_topic, feed)
            feed.segments[segment.name] = segment
            if feed.is_known:
                self._look_at(segment, feed.layout)
        elif feed is not None and feed.segments.get(segment.name) is segment:
            del feed.segments[segment.name]
            if not feed.segments:
                feed.scope.cancel()
                del self._followed[segment.scalable_topic]

    def _controller_changed(self, topic: TopicName) -> None:
        feed = self._followed.get(topic)
        if feed is not None and feed.is_known and _may_give_up(feed.layout):
            for segment in feed.segments.values():
                self._look_at(segment, feed.layout)

    async def _follow(self, topic: TopicName, feed: _Feed) -> None:
        with feed.scope:
            async with self._metadata.watch_key(layout_key(topic)) as watch:
                while True:
                    record = await watch.next()
                    try:
                        feed.layout = _layout_of(record)
                    except LayoutUnreadable:
                        # Whoever opens the topic reports it. Its segments stay as they are until it is repaired.
                        continue
                    feed.is_known = True
                    for number, segment in enumerate(tuple(feed.segments.values()), 1):
                        self._look_at(segment, feed.layout)
                        if number % SEGMENTS_AT_ONCE == 0:
                            await trio.lowlevel.checkpoint()

    def _look_at(self, segment: Topic, layout: Layout | None) -> None:
        due = duties_of(
            layout, segment.name, subscriptions=segment.subscriptions, is_replaced=segment.replaced.is_set()
        )
        if due.makes or due.opens or due.removes:
            self._do(segment, _Kind.CURSORS, self.settle_cursors)
        if due.seals:
            self._do(segment, _Kind.SEAL, self.seal)
        if due.lets_go:
            self._do(segment, _Kind.LET_GO, self._let_go)

    def _do(self, segment: Topic, kind: _Kind, work: Callable[[Topic], Awaitable[None]]) -> None:
        key = segment, kind
        if key in self._working:
            self._working[key] = True
        else:
            self._working[key] = False
            self._nursery.start_soon(self._work, segment, kind, work)

    async def _work(self, segment: Topic, kind: _Kind, work: Callable[[Topic], Awaitable[None]]) -> None:
        key = segment, kind
        try:
            # A removal that failed in the middle has closed the segment, and goes on.
            while self._topics.running(segment.name) is segment or kind is _Kind.LET_GO:
                self._working[key] = False
                try:
                    await work(segment)
                except (TopicNotFound, OwnedElsewhere):
                    # The whole topic has been removed meanwhile, or another broker goes on.
                    return
                except LayoutUnreadable as damaged:
                    self._say(log.warning, segment, kind, damaged)
                    if self._topics.running(segment.name) is not segment:
                        # Nobody follows the layout for it.
                        await self._readable(segment)
                    elif not self._working[key]:
                        # `_follow` brings the next layout.
                        return
                except Exception as error:
                    # The segment goes on, and so do the others. The controller waits for this one.
                    self._say(log.warning if is_environment(error) else log.exception, segment, kind, error)
                    # What failed is the store or the disk, whose recovery is no event.
                    await trio.sleep(RETRY_SECONDS)
                else:
                    if not self._working[key]:
                        return
        finally:
            del self._working[key]

    def _say(self, say: Callable[..., None], segment: Topic, kind: _Kind, error: Exception) -> None:
        say(
            "a change of a topic waits for a segment",
            segment=str(segment.name),
            duty=kind.value,
            reason=str(error) or repr(error),
        )

    async def _readable(self, segment: Topic) -> None:
        """Wait until the layout is readable, or removed."""
        assert segment.scalable_topic is not None, "only segments have duties"
        async with self._metadata.watch_key(layout_key(segment.scalable_topic)) as watch:
            while True:
                with suppress(LayoutUnreadable):
                    _layout_of(await watch.next())
                    return


def _topic_of(segment: Topic) -> TopicName:
    """Return the scalable topic of a segment, or of a regular topic that is being migrated."""
    return segment.scalable_topic or segment.name.as_scalable


def _layout_of(record: Record | None) -> Layout | None:
    return None if record is None else from_json(record.value)


def _may_give_up(layout: Layout | None) -> bool:
    return layout is None or layout.is_deleting or bool(layout.pruned)
