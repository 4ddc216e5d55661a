"""Pushes layout changes: one metadata watch per followed topic, shared by all sessions that follow it.

Once a feed has reached an epoch, every connection of this broker has the update in its outbox. Whatever is sent later
reaches the client after the update. A split relies on this order when it closes producers (docs/design.md#topics). A
topic may have thousands of followers, so they get a layout in batches. The epoch counts as reached when all have it.
"""

from collections.abc import Callable

import structlog
import trio

from broker.errors import LayoutUnreadable
from broker.followers import tell_all
from broker.layouts.layout import Layout
from broker.layouts.record import from_json
from broker.layouts.store import layout_key
from broker.names import TopicName
from broker.scalable.layout_followers import LayoutFollowers
from storage.metadata.store import MetadataStore, Record

Follower = Callable[[Layout | None], None]
"""Called with the topic's newest layout; None if the topic was deleted or its layout cannot be read. It must not
block."""

log = structlog.get_logger(__name__)


class _Feed:
    """One topic's last known layout, and its followers."""

    def __init__(self) -> None:
        self.followers: set[Follower] = set()
        self.layout: Layout | None = None
        self.handed: Layout | None = None
        """The layout that every follower has; some may have a later one."""
        self.was_handed = False
        """Whether every follower has been given a layout, or its absence, at all."""
        self.known = trio.Event()
        self.changed = trio.Event()
        self.scope = trio.CancelScope()


class LayoutFeeds:
    """The feeds of one broker."""

    def __init__(self, metadata: MetadataStore, followers: LayoutFollowers, nursery: trio.Nursery) -> None:
        """Set up.

        Args:
            metadata: the store of the layouts.
            followers: it tells the other brokers what followers here have.
            nursery: runs one watching task per followed topic.
        """
        self._metadata = metadata
        self._everywhere = followers
        self._nursery = nursery
        self._feeds: dict[TopicName, _Feed] = {}

    def follow(self, topic: TopicName, follower: Follower) -> None:
        """Call `follower` with the topic's layout, as soon as it is known and at each change, until `unfollow`.

        Calls may repeat an epoch, because intents and subscriptions also change the record.
        """
        feed = self._feeds.get(topic)
        if feed is None:
            feed = self._feeds[topic] = _Feed()
            self._nursery.start_soon(self._watch, topic, feed)
        feed.followers.add(follower)
        if feed.known.is_set():
            follower(feed.layout)

    def unfollow(self, topic: TopicName, follower: Follower) -> None:
        """Undo `follow`. When the last follower leaves, the watch ends."""
        feed = self._feeds[topic]
        feed.followers.discard(follower)
        if not feed.followers:
            feed.scope.cancel()
            del self._feeds[topic]
            self._everywhere.end(topic)
            # A task that waits for an epoch checks again, and finds that no follower is left.
            feed.changed.set()

    async def reached(self, topic: TopicName, layout: Layout) -> None:
        """Wait until every follower here has the topic's `layout` or a later one, or knows of its deletion.

        Followers of a regular topic have no layout yet. This waits until they have its first one. If they have a
        layout of another topic of this name, one of the two topics is deleted, and nothing is waited for.
        """
        while True:
            feed = self._feeds.get(topic)
            if feed is None:
                return
            if feed.was_handed if feed.handed is None else _is_of_or_behind(feed.handed, layout):
                return
            await feed.changed.wait()

    async def reached_everywhere(self, topic: TopicName, layout: Layout) -> None:
        """As `reached`, and then wait for the followers at other brokers, for a bounded time."""
        await self.reached(topic, layout)
        await self._everywhere.reached(topic, layout)

    async def _watch(self, topic: TopicName, feed: _Feed) -> None:
        with feed.scope:
            await self._everywhere.begin(topic)
            async with self._metadata.watch_key(layout_key(topic)) as watch:
                while True:
                    record = await watch.next()
                    feed.layout = None if record is None else _layout_of(topic, record)
                    feed.known.set()
                    await tell_all(feed.followers, lambda follower: follower(feed.layout))
                    feed.handed = feed.layout
                    if feed.followers:
                        # Otherwise the last one has just left.
                        self._everywhere.pushed(topic, feed.layout)
                    feed.was_handed = feed.was_handed or feed.layout is not None
                    changed, feed.changed = feed.changed, trio.Event()
                    changed.set()


def _is_of_or_behind(handed: Layout, layout: Layout) -> bool:
    return handed.creation_id != layout.creation_id or handed.epoch >= layout.epoch


def _layout_of(topic: TopicName, record: Record) -> Layout | None:
    """Return the layout to push; None if it was deleted or cannot be read."""
    try:
        layout = from_json(record.value)
    except LayoutUnreadable as unreadable:
        # Only this topic is unavailable. If the damaged record is replaced, the new layout is pushed.
        log.error(
            "a topic is unavailable: its layout is damaged", topic=str(topic), key=record.key, reason=str(unreadable)
        )
        return None
    return None if layout.is_deleting else layout
