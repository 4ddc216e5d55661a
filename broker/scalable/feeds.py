"""Layout changes, pushed: one metadata watch per followed topic, shared by every session that wants to know.

Once a feed has reached an epoch, every connection of this broker has the update in its outbox, and whatever is put
there next reaches the client after it; a split relies on that when it closes producers (docs/design.md#topics). There
may be thousands of followers, so they are handed a layout some at a time, and the epoch counts as reached when all have
it.
"""

from collections.abc import Callable
from typing import Final

import structlog
import trio

from broker.errors import LayoutUnreadable
from broker.layouts.layout import Layout
from broker.layouts.record import from_json
from broker.layouts.store import layout_key
from broker.names import TopicName
from storage.metadata.store import MetadataStore, Record

Follower = Callable[[Layout | None], None]
"""Takes the topic's newest layout, None when it was deleted or cannot be read; must not block."""

FOLLOWERS_AT_ONCE: Final = 256
"""Followers that are handed a layout in one step of the event loop, some 3 ms."""

log = structlog.get_logger(__name__)


class _Feed:
    """One topic's layout as last seen, and who wants to hear of the next."""

    def __init__(self) -> None:
        self.followers: set[Follower] = set()
        self.layout: Layout | None = None
        self.handed: Layout | None = None
        """What every follower has been handed, or a later one."""
        self.was_handed = False
        """Whether every follower has been handed a layout at all."""
        self.known = trio.Event()
        self.changed = trio.Event()
        self.scope = trio.CancelScope()


class LayoutFeeds:
    """The feeds of one broker."""

    def __init__(self, metadata: MetadataStore, nursery: trio.Nursery) -> None:
        """Set up.

        Args:
            metadata: where the layouts stand.
            nursery: runs one watching task per followed topic.
        """
        self._metadata = metadata
        self._nursery = nursery
        self._feeds: dict[TopicName, _Feed] = {}

    def follow(self, topic: TopicName, follower: Follower) -> None:
        """Call `follower` with the topic's layout, as soon as it is known and at each change, until `unfollow`.

        Calls may repeat an epoch: the record also changes by intents and subscriptions.
        """
        feed = self._feeds.get(topic)
        if feed is None:
            feed = self._feeds[topic] = _Feed()
            self._nursery.start_soon(self._watch, topic, feed)
        feed.followers.add(follower)
        if feed.known.is_set():
            follower(feed.layout)

    def unfollow(self, topic: TopicName, follower: Follower) -> None:
        """Undo `follow`; the last follower's leaving ends the watch."""
        feed = self._feeds[topic]
        feed.followers.discard(follower)
        if not feed.followers:
            feed.scope.cancel()
            del self._feeds[topic]
            # Whoever waits for an epoch looks again and finds that nobody here needs it.
            feed.changed.set()

    async def reached(self, topic: TopicName, epoch: int) -> None:
        """Return once every follower here has been handed the topic's layout of `epoch`, a later one, or its end.

        Followers of a regular topic have been handed no layout; they are waited for until they have got its first.
        """
        while True:
            feed = self._feeds.get(topic)
            if feed is None:
                return
            if feed.was_handed if feed.handed is None else feed.handed.epoch >= epoch:
                return
            await feed.changed.wait()

    async def _watch(self, topic: TopicName, feed: _Feed) -> None:
        with feed.scope:
            async with self._metadata.watch_key(layout_key(topic)) as watch:
                while True:
                    record = await watch.next()
                    feed.layout = None if record is None else _layout_of(topic, record)
                    feed.known.set()
                    await _hand(feed)
                    feed.handed = feed.layout
                    feed.was_handed = feed.was_handed or feed.layout is not None
                    changed, feed.changed = feed.changed, trio.Event()
                    changed.set()


async def _hand(feed: _Feed) -> None:
    """Hand the layout to all who follow now; those who begin meanwhile are handed it as they begin."""
    for number, follower in enumerate(tuple(feed.followers), 1):
        if follower in feed.followers:
            follower(feed.layout)
        if number % FOLLOWERS_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()


def _layout_of(topic: TopicName, record: Record) -> Layout | None:
    """The layout to be pushed; None if there is none any more, or none that can be read."""
    try:
        layout = from_json(record.value)
    except LayoutUnreadable as unreadable:
        # This topic alone is not to be had; a record written over the damaged one is taken up again.
        log.error(
            "topic is unavailable, its layout is damaged", topic=str(topic), key=record.key, reason=str(unreadable)
        )
        return None
    return None if layout.is_deleting else layout
