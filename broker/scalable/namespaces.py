"""Pushes which scalable topics a namespace has: one metadata watch per followed namespace, shared by its followers.

Each follower has a filter: it gets only topics that have all of some properties. The broker remembers the names that
have changed since the follower last asked, and looks them up when it asks again. So a slow follower gets the difference
between what it knows and the current state, and its memory is bounded by the number of topics.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from heapq import merge
from typing import Final, NamedTuple

import structlog
import trio

from broker.errors import LayoutUnreadable
from broker.layouts.record import from_json
from broker.layouts.store import namespace_prefix, topic_of
from storage.metadata.store import MetadataStore, starting_with
from storage.signal import Signal

RECORDS_AT_ONCE: Final = 128
"""Layouts that are read in one step of the event loop. At first there may be a hundred thousand of them."""

NAMES_AT_ONCE: Final = 2048
"""Names that are compared or sorted in one step of the event loop, which takes about 4 ms."""

log = structlog.get_logger(__name__)

_NO_PROPERTIES: Final[Mapping[str, str]] = {}


class Membership(NamedTuple):
    """The topics that a follower gains and loses: full names, sorted."""

    added: list[str]
    removed: list[str]


class NamespaceFollower:
    """What one follower knows of a namespace. `NamespaceFeeds.follow` makes it; only one task may use it."""

    def __init__(self, filters: Mapping[str, str], topics: Mapping[str, Mapping[str, str]]) -> None:
        self._filters = dict(filters)
        self._topics = topics
        self._told: set[str] = set()
        self._touched: set[str] = set()
        self._is_known = False
        self._is_listed = False
        self._wake = Signal()

    async def listing(self) -> list[str]:
        """Return all matching topics, once the namespace is known. Call it once, before `next`."""
        while not self._is_known:
            await self._wake.wait()
        self._is_listed = True
        return (await self._difference(tuple(self._topics))).added

    async def next(self) -> Membership:
        """Wait for the next difference from what was returned so far. It may combine several changes."""
        while True:
            await self._wake.wait()
            touched, self._touched = self._touched, set()
            try:
                difference = await self._difference(touched)
            except trio.Cancelled:
                self._touched |= touched
                self._wake.set()
                raise
            if difference.added or difference.removed:
                return difference

    def touched(self, names: Iterable[str]) -> None:
        """Note that these topics were written or deleted. The first call means that the namespace is known."""
        self._is_known = True
        if self._is_listed:
            self._touched.update(names)
        self._wake.set()

    async def _difference(self, touched: Collection[str]) -> Membership:
        """Compare these topics with what the follower was told. One that changes meanwhile is touched again."""
        added: list[str] = []
        removed: list[str] = []
        for number, name in enumerate(touched, 1):
            if self._matches(name) != (name in self._told):
                (removed if name in self._told else added).append(name)
            if number % NAMES_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        difference = Membership(await _in_order(added), await _in_order(removed))
        self._told.update(added)
        self._told.difference_update(removed)
        return difference

    def _matches(self, name: str) -> bool:
        properties = self._topics.get(name)
        return properties is not None and self._filters.items() <= properties.items()


async def _in_order(names: list[str]) -> list[str]:
    if len(names) <= NAMES_AT_ONCE:
        return sorted(names)
    parts: list[list[str]] = []
    for start in range(0, len(names), NAMES_AT_ONCE):
        parts.append(sorted(names[start : start + NAMES_AT_ONCE]))
        await trio.lowlevel.checkpoint()
    found: list[str] = []
    for number, name in enumerate(merge(*parts), 1):
        found.append(name)
        if number % NAMES_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
    return found


class _Feed:
    """One namespace: its topics with their properties, and its followers."""

    def __init__(self) -> None:
        self.topics: dict[str, Mapping[str, str]] = {}
        self.followers: set[NamespaceFollower] = set()
        self.is_known = False
        self.scope = trio.CancelScope()


class NamespaceFeeds:
    """The followed namespaces of one broker."""

    def __init__(self, metadata: MetadataStore, nursery: trio.Nursery) -> None:
        """Set up.

        Args:
            metadata: the store of the layouts.
            nursery: runs one watching task per followed namespace.
        """
        self._metadata = metadata
        self._nursery = nursery
        self._feeds: dict[str, _Feed] = {}

    @contextmanager
    def follow(self, tenant_namespace: str, filters: Mapping[str, str]) -> Iterator[NamespaceFollower]:
        """Follow the topics of `tenant/namespace` that have all these properties."""
        feed = self._feeds.get(tenant_namespace)
        if feed is None:
            feed = self._feeds[tenant_namespace] = _Feed()
            self._nursery.start_soon(self._watch, tenant_namespace, feed)
        follower = NamespaceFollower(filters, feed.topics)
        if feed.is_known:
            follower.touched(())
        feed.followers.add(follower)
        try:
            yield follower
        finally:
            feed.followers.discard(follower)
            if not feed.followers:
                feed.scope.cancel()
                del self._feeds[tenant_namespace]

    async def _watch(self, tenant_namespace: str, feed: _Feed) -> None:
        with feed.scope:
            async with self._metadata.watch_range(*starting_with(namespace_prefix(tenant_namespace))) as watch:
                while True:
                    change = await watch.next()
                    touched = [str(topic) for key in change.deleted if (topic := topic_of(key)) is not None]
                    for name in touched:
                        feed.topics.pop(name, None)
                    for number, record in enumerate(change.records, 1):
                        if number % RECORDS_AT_ONCE == 0:
                            await trio.lowlevel.checkpoint()
                        topic = topic_of(record.key)
                        if topic is None:
                            # The key does not name a topic.
                            continue
                        name = str(topic)
                        properties = _properties(name, record.value)
                        if properties is None:
                            feed.topics.pop(name, None)
                        else:
                            feed.topics[name] = properties
                        touched.append(name)
                    feed.is_known = True
                    # This is one step, so a new follower cannot get only a part of the changes.
                    for follower in tuple(feed.followers):
                        follower.touched(touched)


def _properties(name: str, value: bytes) -> Mapping[str, str] | None:
    """Return the topic's properties; None if it is being deleted."""
    try:
        layout = from_json(value)
    except LayoutUnreadable as error:
        # One damaged record must not hide the other topics. A client that opens this topic gets the error.
        log.warning("a topic's layout cannot be read", topic=name, reason=str(error))
        return _NO_PROPERTIES
    return None if layout.is_deleting else layout.properties
