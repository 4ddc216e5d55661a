"""Implements the administration of schemas (`broker.schema_contract`).

The versions are in the metadata store, so any broker answers. A version is added under a condition that holds while the
topic exists: the owner's claim of a regular topic, or the record of a partitioned or scalable topic.
"""

from collections.abc import Sequence

from broker.errors import IncompatibleSchema, SchemaNotFound
from broker.layouts.store import Layouts
from broker.names import Domain, TopicName
from broker.partitioned_topics import PartitionedTopics
from broker.schemas.registry import Schemas, owner_of
from broker.schemas.schema import Schema, StoredSchema
from broker.topic_existence import TopicExistence
from broker.topics import Topics
from storage.metadata.store import Check
from txn.errors import OwnershipLost


class SchemaAdministration:
    """Implements `SchemaService`."""

    def __init__(self, schemas: Schemas, topics: Topics, layouts: Layouts, partitioned: PartitionedTopics) -> None:
        self._schemas = schemas
        self._topics = topics
        self._layouts = layouts
        self._existence = TopicExistence(layouts)
        self._partitioned = partitioned

    async def find(self, name: TopicName, version: int | None) -> StoredSchema:
        """See `SchemaService`."""
        owner = await self._owner(name)
        found = await (self._schemas.latest(owner) if version is None else self._schemas.version(owner, version))
        if found is None:
            which = "has no schema" if version is None else f"has no version {version} of a schema"
            raise SchemaNotFound(f"{owner} {which}, or does not exist.")
        return found

    async def all(self, name: TopicName) -> Sequence[StoredSchema]:
        """See `SchemaService`."""
        return await self._schemas.all(await self._owner(name))

    async def add(self, name: TopicName, schema: Schema) -> int:
        """See `SchemaService`."""
        while True:
            owner = await self._owner(name)
            condition = await self._condition(owner)
            if condition is None:
                return await self._schemas.add(owner, schema, (await self._topics.get(owner)).claim)
            try:
                return await self._schemas.add(owner, schema, condition)
            except OwnershipLost:
                # The record was changed meanwhile, or the topic deleted. The next round finds out.
                continue

    async def _condition(self, owner: TopicName) -> Check | None:
        """Return what holds while a topic with its own record exists; None for a topic without partitions."""
        if owner.domain is Domain.TOPIC:
            return (await self._layouts.living_version(owner)).check
        record = await self._partitioned.find(owner)
        return None if record is None else record.unchanged

    async def delete(self, name: TopicName) -> int:
        """See `SchemaService`."""
        return await self._schemas.delete(await self._owner(name))

    async def problem(self, name: TopicName, schema: Schema) -> str | None:
        """See `SchemaService`."""
        try:
            await self._schemas.require_next(await self._owner(name), schema)
        except IncompatibleSchema as refusal:
            return str(refusal)
        return None

    async def version_of(self, name: TopicName, schema: Schema) -> int | None:
        """See `SchemaService`."""
        return await self._schemas.version_of(await self._owner(name), schema)

    async def _owner(self, name: TopicName) -> TopicName:
        """Return the topic whose schemas are meant: the scalable one, unless a regular topic has the name."""
        regular = owner_of(name)
        scalable = regular.as_scalable
        if await self._layouts.stored_or_none(scalable) is None:
            return regular
        if not await self._existence.is_made(regular):
            return scalable
        return regular if await self._existence.migrated_to(regular) is None else scalable
