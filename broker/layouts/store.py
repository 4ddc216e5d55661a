"""Layout records in the metadata store: read, create, change by compare-and-set, list, remove."""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import structlog

from broker.cluster.ownership import OwnedElsewhere
from broker.errors import LayoutUnreadable, TopicExists, TopicNotFound
from broker.layouts import pruned_segments, registrations
from broker.layouts.layout import Layout
from broker.layouts.record import from_json, to_json
from broker.names import Domain, InvalidTopicName, TopicName
from broker.schemas.registry import removal_of
from storage.managed_ledger_record import is_there
from storage.metadata.paging import each_hit
from storage.metadata.store import ABSENT, Check, Conflict, Delete, IndexEntry, MetadataStore, Op, Put, starting_with

KEY_PREFIX: Final = "/topics/"

UNFINISHED_LAYOUTS: Final = "unfinished-layouts"
"""The index of the layouts that mark an unfinished change. Its keys are the keys of the layouts."""

PAGE_RECORDS: Final = 128
"""Layouts that are read in one step of the event loop, which takes 3 ms if they are small."""

log = structlog.get_logger(__name__)


def layout_key(topic: TopicName) -> str:
    """Return the key of a scalable topic's layout."""
    return f"{KEY_PREFIX}{topic.tenant}/{topic.namespace}/{quote(topic.local, safe='')}"


class LayoutVersion(NamedTuple):
    """A layout, and the version of its record."""

    layout: Layout
    check: Check
    """The condition that the record still has this version."""


class Layouts:
    """The layouts of all scalable topics."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def get(self, topic: TopicName) -> Layout:
        """Return the topic's current layout.

        Raises:
            TopicNotFound: there is no such topic, or it is being deleted.
            LayoutUnreadable: its record is damaged.
        """
        return (await self._read_living(topic))[0]

    async def stored(self, topic: TopicName) -> Layout:
        """Return the topic's current layout, even if the topic is being deleted.

        Raises:
            TopicNotFound: there is no such topic, and no remains of one.
            LayoutUnreadable: its record is damaged.
        """
        return (await self._read(topic))[0]

    async def stored_or_none(self, topic: TopicName) -> Layout | None:
        """As `stored`; None if there is no such topic."""
        found = await self.version_or_none(topic)
        return None if found is None else found.layout

    async def version_or_none(self, topic: TopicName) -> LayoutVersion | None:
        """As `version`; None if there is no such topic."""
        record = await self._metadata.get(layout_key(topic))
        if record is None:
            return None
        return LayoutVersion(from_json(record.value), Check(record.key, record.version))

    async def newest_or_none(self, topic: TopicName) -> Layout | None:
        """As `stored_or_none`, as new as every change that was made before the call.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        key = layout_key(topic)
        record = (await self._metadata.fresh([key])).records[key]
        return None if record is None else from_json(record.value)

    async def version(self, topic: TopicName) -> LayoutVersion:
        """Return the topic's current layout, even if the topic is being deleted, with the version of its record.

        Raises:
            TopicNotFound, LayoutUnreadable: see `stored`.
        """
        layout, version = await self._read(topic)
        return LayoutVersion(layout, Check(layout_key(topic), version))

    async def living_version(self, topic: TopicName) -> LayoutVersion:
        """As `version`, for a topic that exists.

        Raises:
            TopicNotFound, LayoutUnreadable: see `get`.
        """
        layout, version = await self._read_living(topic)
        return LayoutVersion(layout, Check(layout_key(topic), version))

    async def create(self, topic: TopicName, layout: Layout, *others: Op) -> None:
        """Write a new topic's first layout, in one change set with `others`; durable on return.

        Raises:
            TopicExists: the topic already exists.
            Conflict: a condition among the others does not hold.
        """
        put = _put(topic, layout, ABSENT)
        try:
            await self._metadata.commit([*others, put])
        except Conflict as conflict:
            if conflict.key != put.key:
                raise
            raise TopicExists(f"{topic} already exists. Choose another name.") from conflict

    async def is_made(self, name: TopicName) -> bool:
        """Return whether the regular topic or segment of this name exists. It exists once it was first loaded."""
        return await is_there(str(name), self._metadata)

    async def change(
        self,
        topic: TopicName,
        change: Callable[[Layout], Layout],
        *,
        claim: Check | None = None,
        conditions: Sequence[Check] = (),
        others: Sequence[Op] = (),
    ) -> Layout:
        """Replace the layout with `change(layout)`. Try again with the newer layout if another writer was faster.

        Returns the layout that is durable then. If `change` returns its argument, nothing is written. The write is
        conditioned on `claim`, if one is given, so that only the topic's controller can make it. `others` are written
        in the same change set.

        Raises:
            TopicNotFound: there is no such topic, or it is being deleted.
            OwnedElsewhere: the claim is lost, so another broker is the controller; nothing was written.
            Conflict: one of the `conditions` does not hold; nothing was written.
            LayoutError: `change` raised it, or the record is damaged; nothing was written.
        """
        while True:
            layout, version = await self._read_living(topic)
            changed = change(layout)
            if changed is layout:
                return layout
            ops: list[Op] = [_put(topic, changed, version), *conditions, *others]
            if claim is not None:
                ops.append(claim)
            try:
                await self._metadata.commit(ops)
            except Conflict as conflict:
                if claim is not None and conflict.key == claim.key:
                    raise OwnedElsewhere(
                        f"Another broker has become the controller of {topic}. Send the request again."
                    ) from conflict
                if conflict.key in [condition.key for condition in conditions]:
                    raise
                # Try again with the newer record. The loop ends, because in each turn some writer succeeds.
                continue
            return changed

    async def remove(self, topic: TopicName, creation_id: str) -> None:
        """Remove the records of the topic with this creation id, if they exist; durable on return."""
        while True:
            record = await self._metadata.get(layout_key(topic))
            if record is None or from_json(record.value).creation_id != creation_id:
                # Another controller has finished the deletion, and the topic may have been created again.
                return
            try:
                await self._metadata.commit(
                    [
                        Delete(record.key, record.version),
                        *removal_of(topic),
                        registrations.removal_of(topic),
                        pruned_segments.removal_of(topic),
                    ]
                )
            except Conflict:
                continue
            return

    async def names(self, tenant_namespace: str | None = None) -> list[TopicName]:
        """Return the names of all scalable topics, or those of one namespace, including those with damaged records."""
        found = await self.scan(tenant_namespace)
        return [topic for topic, layout in found.items() if not (isinstance(layout, Layout) and layout.is_deleting)]

    async def scan(self, tenant_namespace: str | None = None) -> dict[TopicName, Layout | LayoutUnreadable]:
        """Return all layouts, or those of one namespace, including topics being deleted. Unreadable ones are errors.

        They are read page by page, because there may be a hundred thousand. Each page is from one moment, but the whole
        result is not.
        """
        return {topic: layout async for topic, layout in self.each(tenant_namespace)}

    async def each(
        self, tenant_namespace: str | None = None, first: str = ""
    ) -> AsyncGenerator[tuple[TopicName, Layout | LayoutUnreadable], None]:
        """Yield what `scan` returns, in the order of the quoted names. In a namespace, begin at the local name `first`.

        It reads a page at a time, so whoever stops early pays for little.
        """
        start, end = starting_with(KEY_PREFIX if tenant_namespace is None else namespace_prefix(tenant_namespace))
        start += quote(first, safe="")
        while records := await self._metadata.scan(start, end, limit=PAGE_RECORDS):
            for record in records:
                topic = topic_of(record.key)
                if topic is None:
                    log.error("a layout record does not name a topic and is ignored", key=record.key)
                    continue
                try:
                    layout: Layout | LayoutUnreadable = from_json(record.value)
                except LayoutUnreadable as unreadable:
                    layout = unreadable
                yield topic, layout
            start = records[-1].key + "\0"

    async def unfinished(self) -> list[TopicName]:
        """Return the topics whose layouts mark an unfinished change. It costs nothing for the others."""
        hits = each_hit(self._metadata.query, UNFINISHED_LAYOUTS, *starting_with(KEY_PREFIX))
        return [topic async for hit in hits if (topic := topic_of(hit.record.key)) is not None]

    async def _read_living(self, topic: TopicName) -> tuple[Layout, int]:
        layout, version = await self._read(topic)
        if layout.is_deleting:
            raise TopicNotFound(f"{topic} is being deleted. It can be created again after that.")
        return layout, version

    async def _read(self, topic: TopicName) -> tuple[Layout, int]:
        record = await self._metadata.get(layout_key(topic))
        if record is None:
            raise TopicNotFound(f"{topic} does not exist. Create it with `tidewire topics create {topic}`.")
        return from_json(record.value), record.version


def _put(topic: TopicName, layout: Layout, expected: int) -> Put:
    key = layout_key(topic)
    indexes = (IndexEntry(UNFINISHED_LAYOUTS, key),) if layout.is_half_done else ()
    return Put(key, to_json(layout), expected, indexes)


def namespace_prefix(tenant_namespace: str) -> str:
    """Return the key prefix of a namespace's layouts."""
    return f"{KEY_PREFIX}{tenant_namespace}/"


def topic_of(key: str) -> TopicName | None:
    """Return the topic whose layout has this key; None if the key does not name a topic."""
    try:
        tenant, namespace, local = key.removeprefix(KEY_PREFIX).split("/")
        topic = TopicName(Domain.TOPIC, tenant, namespace, unquote(local))
    except (ValueError, InvalidTopicName):
        return None
    return topic if layout_key(topic) == key else None
