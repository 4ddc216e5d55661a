"""What administrators may ask about the schemas of topics. HTTP serves this contract."""

from collections.abc import Sequence
from typing import Final, Protocol

from broker.names import TopicName
from broker.schemas.schema import Schema, StoredSchema

STRATEGY: Final = "FULL_TRANSITIVE"
"""Pulsar's name for the rule that every topic has (`broker.schemas.compatibility`)."""


class SchemaService(Protocol):
    """Administration of schemas. Every `name` is the `persistent://` name, whichever kind the topic is of.

    A partition has the schemas of its partitioned topic. When a method returns, its change is durable.
    """

    async def find(self, name: TopicName, version: int | None) -> StoredSchema:
        """Return the version with this number, which may be a deleted one; without a number, the latest.

        Raises:
            SchemaNotFound
        """

    async def all(self, name: TopicName) -> Sequence[StoredSchema]:
        """Return the versions that were not deleted, in order."""

    async def add(self, name: TopicName, schema: Schema) -> int:
        """Return the version of a schema. If the topic has no equal one, add it as the next version.

        A missing topic is created as a regular topic.

        Raises:
            IncompatibleSchema: it is invalid, or incompatible with a version of the topic. Nothing was changed.
            OwnedElsewhere: another broker owns the topic, and has to do it.
        """

    async def delete(self, name: TopicName) -> int:
        """Delete all versions, and return the last one. Stored messages stay readable, as they name their versions.

        Raises:
            SchemaNotFound
        """

    async def problem(self, name: TopicName, schema: Schema) -> str | None:
        """Return why `add` would refuse a schema; None if it would not."""

    async def version_of(self, name: TopicName, schema: Schema) -> int | None:
        """Return the version that equals a schema; None if there is none.

        Raises:
            IncompatibleSchema: it is invalid.
        """
