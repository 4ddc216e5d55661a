"""Layout records in the metadata store: read, create, change by compare-and-set, list, remove."""

from collections.abc import Callable
from typing import Final
from urllib.parse import quote, unquote

from broker.errors import TopicExists, TopicNotFound
from broker.names import Domain, TopicName
from broker.scalable.layout import Layout
from broker.scalable.layout_record import from_json, to_json
from storage.metadata.store import ABSENT, Conflict, MetadataStore, starting_with

KEY_PREFIX: Final = "/topics/"


def layout_key(topic: TopicName) -> str:
    """Where the layout of a `topic://` name stands."""
    return f"{KEY_PREFIX}{topic.tenant}/{topic.namespace}/{quote(topic.local, safe='')}"


class Layouts:
    """The layouts of all scalable topics."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def get(self, topic: TopicName) -> Layout:
        """The topic's layout as it is decided now.

        Raises:
            TopicNotFound: there is no such topic.
        """
        return (await self._read(topic))[0]

    async def create(self, topic: TopicName, layout: Layout) -> None:
        """Write a new topic's first layout; durable on return.

        Raises:
            TopicExists: there is one.
        """
        try:
            await self._metadata.put(layout_key(topic), to_json(layout), expected=ABSENT)
        except Conflict as conflict:
            raise TopicExists(f"{topic} exists already") from conflict

    async def change(self, topic: TopicName, change: Callable[[Layout], Layout]) -> Layout:
        """Replace the layout by `change` of it, and again of a newer one when somebody else was faster.

        Returns the layout that is durable then. If `change` returns its argument, nothing is written.

        Raises:
            TopicNotFound: there is no such topic.
            LayoutError: raised by `change`; nothing was written.
        """
        while True:
            layout, version = await self._read(topic)
            changed = change(layout)
            if changed is layout:
                return layout
            try:
                await self._metadata.put(layout_key(topic), to_json(changed), expected=version)
            except Conflict:
                # Decided again on what won: the loop ends because each turn somebody makes progress.
                continue
            return changed

    async def remove(self, topic: TopicName) -> None:
        """Forget the topic; durable on return."""
        await self._metadata.delete(layout_key(topic))

    async def names(self, tenant_namespace: str | None = None) -> list[TopicName]:
        """Every scalable topic, or those of one namespace, by name."""
        prefix = KEY_PREFIX if tenant_namespace is None else namespace_prefix(tenant_namespace)
        records = await self._metadata.scan(*starting_with(prefix))
        return [topic_of(record.key) for record in records]

    async def _read(self, topic: TopicName) -> tuple[Layout, int]:
        record = await self._metadata.get(layout_key(topic))
        if record is None:
            raise TopicNotFound(f"{topic} does not exist")
        return from_json(record.value), record.version


def namespace_prefix(tenant_namespace: str) -> str:
    """What the keys of a namespace's layouts begin with, and no others."""
    return f"{KEY_PREFIX}{tenant_namespace}/"


def topic_of(key: str) -> TopicName:
    """The `topic://` name whose layout stands under this key."""
    tenant, namespace, local = key.removeprefix(KEY_PREFIX).split("/")
    return TopicName(Domain.TOPIC, tenant, namespace, unquote(local))
