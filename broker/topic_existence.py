"""Which topics and segments exist, so that they may be loaded.

The layouts in the metadata store say which segments exist. This broker makes two exceptions. Segments that it is
deleting no longer exist, and segments that it prepares for a layout already do.
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
        """During the block, only the deletion itself may load these topics."""
        fresh = set(names) - self._deleting
        self._deleting.update(fresh)
        try:
            yield
        finally:
            self._deleting.difference_update(fresh)

    @contextmanager
    def preparing(self, name: TopicName) -> Iterator[None]:
        """During the block, the segment may be loaded, although no layout has it yet."""
        self._preparing.add(name)
        try:
            yield
        finally:
            self._preparing.discard(name)

    def require_kept(self, name: TopicName) -> None:
        """Check that this broker is not deleting the topic.

        Raises:
            TopicNotFound: it is.
        """
        if name in self._deleting:
            raise TopicNotFound(f"{name} is being deleted. It can be created again after that.")

    async def require_made(self, name: TopicName) -> None:
        """Check that a `persistent://` topic was created before. For other topics, `require` checks their layouts.

        Raises:
            TopicNotFound: it was not.
        """
        if name.domain is Domain.PERSISTENT and not await self._layouts.is_made(name):
            raise TopicNotFound(
                f"{name} does not exist, and the client did not ask to create it. A producer creates the topic."
            )

    async def require(self, name: TopicName) -> None:
        """Check that the topic may be loaded: a `persistent://` topic always, a segment if its layout has it.

        Raises:
            TopicNotFound: the segment does not exist, or it is being deleted.
            NotSupported: it is a scalable topic; only its segments can be loaded.
        """
        if name.domain is Domain.PERSISTENT or name in self._preparing:
            return
        if name.domain is Domain.TOPIC:
            raise NotSupported(
                f"{name} is a scalable topic. Use a v5 client, which produces and consumes on its segments."
            )
        layout = await self._layouts.stored(name.scalable_topic)
        is_listed = _has(layout, name)
        if name in self._deleting:
            # A pruned segment is loaded once more, so that its data can be removed.
            is_listed = is_listed or name.segment in [segment.descriptor for segment in layout.pruned.values()]
        elif layout.is_deleting:
            raise TopicNotFound(f"{name.scalable_topic} is being deleted. It can be created again after that.")
        if not is_listed:
            raise TopicNotFound(f"{name} does not exist. Look up the layout of {name.scalable_topic} again.")

    async def has_segment(self, name: TopicName) -> bool:
        """Return whether the stored layout has the segment and is not being deleted."""
        try:
            layout = await self._layouts.stored(name.scalable_topic)
        except TopicNotFound:
            return False
        return _has(layout, name) and not layout.is_deleting

    async def migrated_to(self, name: TopicName) -> TopicName | None:
        """Return the scalable topic that a regular topic was migrated to, if any. The caller must own the old topic.

        Raises:
            TopicNotFound: it no longer exists, or a scalable topic of its name exists that was not migrated from it.
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
            raise TopicNotFound(f"{name} does not exist. Use {scalable} with a v5 client instead.")
        return None


def _has(layout: Layout, name: TopicName) -> bool:
    """Return whether the layout has the segment, or an open intent may have created it."""
    assert name.segment is not None, "only a segment's name may be passed"
    segment = layout.segments.get(name.segment.segment_id)
    if segment is not None and segment.descriptor == name.segment:
        return True
    return layout.intent is not None and name.segment in [child.descriptor for child in layout.intent.children]
