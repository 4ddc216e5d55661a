"""Which topics and segments there are, for whoever loads them.

The layouts in the metadata store say it. Two exceptions are this broker's own: segments that it deletes are not there
any more, and segments that it prepares for a layout are there already.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from broker.errors import NotSupported, TopicNotFound
from broker.layouts.layout import Layout
from broker.layouts.store import Layouts
from broker.names import Domain, TopicName


class TopicExistence:
    """See the module's docstring."""

    def __init__(self, layouts: Layouts) -> None:
        self._layouts = layouts
        self._deleting: set[TopicName] = set()
        self._preparing: set[TopicName] = set()

    @contextmanager
    def deleting(self, names: Collection[TopicName]) -> Iterator[None]:
        """Only the deletion itself may load these topics."""
        fresh = set(names) - self._deleting
        self._deleting.update(fresh)
        try:
            yield
        finally:
            self._deleting.difference_update(fresh)

    @contextmanager
    def preparing(self, name: TopicName) -> Iterator[None]:
        """A segment may be loaded that no layout has yet."""
        self._preparing.add(name)
        try:
            yield
        finally:
            self._preparing.discard(name)

    def require_kept(self, name: TopicName) -> None:
        """Hold that this broker does not delete the topic.

        Raises:
            TopicNotFound: it does.
        """
        if name in self._deleting:
            raise TopicNotFound(f"{name} is being deleted")

    async def require_made(self, name: TopicName) -> None:
        """Hold that a persistent topic was created before. Other topics have layouts, which `require` asks.

        Raises:
            TopicNotFound: it was not.
        """
        if name.domain is Domain.PERSISTENT and not await self._layouts.is_made(name):
            raise TopicNotFound(f"{name} does not exist, and its creation was not asked for")

    async def require(self, name: TopicName) -> None:
        """Hold that the topic may be loaded: a persistent one always, a segment if its layout has it.

        Raises:
            TopicNotFound: there is no such segment, or it is being deleted.
            NotSupported: it is a scalable topic, of which only segments are loaded.
        """
        if name.domain is Domain.PERSISTENT or name in self._preparing:
            return
        if name.domain is Domain.TOPIC:
            raise NotSupported(f"{name} is a scalable topic: produce and consume on its segments, by a v5 client")
        layout = await self._layouts.stored(name.scalable_topic)
        is_listed = _has(layout, name)
        if name in self._deleting:
            # Loaded once more, so that what is left of it can be removed.
            is_listed = is_listed or name.segment in [segment.descriptor for segment in layout.pruned.values()]
        elif layout.is_deleting:
            raise TopicNotFound(f"{name.scalable_topic} is being deleted")
        if not is_listed:
            raise TopicNotFound(f"{name} does not exist")

    async def has_segment(self, name: TopicName) -> bool:
        """Whether the stored layout has the segment, and its deletion is not decided."""
        try:
            layout = await self._layouts.stored(name.scalable_topic)
        except TopicNotFound:
            return False
        return _has(layout, name) and not layout.is_deleting

    async def migrated_to(self, name: TopicName) -> TopicName | None:
        """The scalable topic that a regular topic was made a segment of. Asked when nobody else can make it one.

        Raises:
            TopicNotFound: it is no segment any more, or would be made beside a scalable topic of its name.
        """
        if name.domain is not Domain.PERSISTENT:
            return None
        scalable = name.as_scalable
        try:
            layout = await self._layouts.stored(scalable)
        except TopicNotFound:
            return None
        legacy_names = {segment.legacy_topic_name for segment in layout.segments.values()}
        pruned_names = {segment.legacy_topic_name for segment in layout.pruned.values()}
        if name in self._deleting:
            return scalable if str(name) in legacy_names | pruned_names else None
        if str(name) in legacy_names and not layout.is_deleting:
            return scalable
        if layout.is_deleting or str(name) in pruned_names or not await self._layouts.is_made(name):
            raise TopicNotFound(f"{name} does not exist; {scalable} does, and is for v5 clients")
        return None


def _has(layout: Layout, name: TopicName) -> bool:
    """Whether the segment is one of the layout's, or a child that an open intent may have made."""
    assert name.segment is not None, "asked of segments only"
    segment = layout.segments.get(name.segment.segment_id)
    if segment is not None and segment.descriptor == name.segment:
        return True
    return layout.intent is not None and name.segment in [child.descriptor for child in layout.intent.children]
