"""Which topics and segments exist, so that they may be loaded or removed. All brokers read it from the layouts.

| the segment is                            | it can be loaded | its remains can be removed |
|-------------------------------------------|------------------|----------------------------|
| in the layout                             | yes              | no                         |
| a child of a split that is not in effect  | no               | yes                        |
| pruned                                    | no               | yes                        |
| any of these, and its topic is deleted    | no               | yes                        |
| none of these                             | no               | no                         |
"""

from broker.errors import NotSupported, TopicNotFound
from broker.layouts.layout import Layout
from broker.layouts.store import Layouts
from broker.names import Domain, TopicName


class TopicExistence:
    """See the module's docstring."""

    def __init__(self, layouts: Layouts) -> None:
        self._layouts = layouts

    async def is_made(self, name: TopicName) -> bool:
        """Return whether a regular topic was created before."""
        return await self._layouts.is_made(name)

    async def require_made(self, name: TopicName) -> None:
        """Check that a `persistent://` topic was created before. For other topics, `require` checks their layouts.

        Raises:
            TopicNotFound: it was not.
        """
        if name.domain is Domain.PERSISTENT and not await self._layouts.is_made(name):
            raise TopicNotFound(
                f"{name} does not exist. A producer creates it, and so does a consumer that asks for it."
            )

    async def require(self, name: TopicName) -> None:
        """Check that the topic may be loaded: a `persistent://` topic always, a segment if its layout has it.

        Raises:
            TopicNotFound: the segment does not exist, or it is being deleted.
            NotSupported: it is a scalable topic; only its segments can be loaded.
        """
        if name.domain is Domain.PERSISTENT:
            return
        if name.domain is Domain.TOPIC:
            raise NotSupported(
                f"{name} is a scalable topic. Use a v5 client, which produces and consumes on its segments."
            )
        layout = await self._layouts.stored(name.scalable_topic)
        if layout.is_deleting:
            raise TopicNotFound(f"{name.scalable_topic} is being deleted. It can be created again after that.")
        if not _has(layout, name):
            raise TopicNotFound(f"{name} does not exist. Look up the layout of {name.scalable_topic} again.")

    async def require_remains(self, name: TopicName) -> None:
        """Check that the topic may be removed. A `persistent://` topic always may.

        While the caller has the segment's claim, the answer stays the same: the layout names a segment that is to be
        removed until nobody owns it.

        Raises:
            TopicNotFound: by its topic's layout it is not to be removed, or it has no remains.
        """
        if name.domain is Domain.PERSISTENT:
            return
        layout = await self._layouts.stored(name.scalable_topic)
        remains = [one.descriptor for one in layout.pruned.values()] + [child.descriptor for child in layout.unborn]
        if name.segment not in remains and not (layout.is_deleting and _has(layout, name)):
            raise TopicNotFound(f"The layout of {name.scalable_topic} has nothing to remove of {name}.")

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
        if str(name) in legacy_names and not layout.is_deleting:
            return scalable
        if layout.is_deleting or str(name) in pruned_names or not await self._layouts.is_made(name):
            raise TopicNotFound(f"{name} does not exist. Use {scalable} with a v5 client instead.")
        return None


def _has(layout: Layout, name: TopicName) -> bool:
    """Return whether the layout has the segment."""
    assert name.segment is not None, "only a segment's name may be passed"
    segment = layout.segments.get(name.segment.segment_id)
    return segment is not None and segment.descriptor == name.segment
