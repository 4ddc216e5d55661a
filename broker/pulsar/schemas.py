"""Schemas on the wire: declarations of producers and consumers, GET_SCHEMA and GET_OR_CREATE_SCHEMA.

As in Pulsar's default settings, schemas are optional: a producer without a schema may publish to a topic that has one.
A consumer's schema becomes the first schema of an unused topic. If the topic is already in use without a schema, the
consumer is refused, because the format of the existing messages is unknown.
"""

import struct
from collections.abc import Iterator
from typing import Final

from broker.errors import IncompatibleSchema, SchemaNotFound
from broker.layouts.store import Layouts
from broker.names import TopicName
from broker.pulsar.connection import Connection
from broker.pulsar.requests import Inline, Request
from broker.scalable.segment_work import SegmentWork
from broker.schemas.registry import Schemas, owner_of
from broker.schemas.schema import Schema, SchemaType, StoredSchema
from broker.topic import Topic
from broker.topics import Topics
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

NO_VERSION: Final = b""
"""The version of messages without a schema."""

_VERSION: Final = struct.Struct(">q")
_UNDECLARED: Final = frozenset({pb.Schema.NoSchema})


class SchemaGate:
    """Checks and registers the schemas that clients declare for topics."""

    def __init__(self, schemas: Schemas, topics: Topics, layouts: Layouts, segments: SegmentWork) -> None:
        self._schemas = schemas
        self._topics = topics
        self._layouts = layouts
        self._segments = segments

    async def producer_version(self, topic: Topic, declared: pb.Schema | None) -> bytes:
        """Return the schema version for a producer's messages. If its schema is new, add it; durable on return.

        Raises:
            IncompatibleSchema: nothing was changed.
        """
        if declared is None or declared.type in _UNDECLARED:
            return NO_VERSION
        return _VERSION.pack(await self._schemas.add(owner_of(topic.name), _schema(declared), topic.claim))

    async def admit_consumer(self, topic: Topic, declared: pb.Schema) -> None:
        """Check that the schema can read the topic's messages. It becomes the first schema of an unused topic.

        Raises:
            IncompatibleSchema: nothing was changed.
        """
        if declared.type in _UNDECLARED or declared.type == pb.Schema.AutoConsume:
            return
        schema = _schema(declared)
        owner = owner_of(topic.name)
        if await self._schemas.require_reader(owner, schema):
            return
        if not await self._is_untouched(topic):
            # A consumer of another segment may have added the schema meanwhile, and so have put the topic to use.
            if await self._schemas.require_reader(owner, schema):
                return
            raise IncompatibleSchema(f"{owner} is in use without a schema. Consume it without a schema.")
        await self._schemas.add(owner, schema, topic.claim)

    async def find(self, name: TopicName, version: bytes | None) -> StoredSchema:
        """Return the schema with this version, or the latest one.

        Raises:
            IncompatibleSchema: the version does not have this broker's format.
            SchemaNotFound: the topic does not exist, or has no schema of this version.
        """
        owner = owner_of(name)
        if version is None:
            found = await self._schemas.latest(owner)
        elif len(version) == _VERSION.size:
            (number,) = _VERSION.unpack(version)
            found = await self._schemas.version(owner, number) if number >= 0 else None
        else:
            raise IncompatibleSchema(
                f"The schema version has {len(version)} bytes, but this broker's versions have {_VERSION.size}."
            )
        if found is None:
            raise SchemaNotFound(f"{owner} does not exist, or has no schema of this version.")
        return found

    async def find_or_add(self, name: TopicName, declared: pb.Schema) -> bytes:
        """Return the version of a schema. If it is new, add it to the topic; durable on return.

        Raises:
            TopicNotFound, IncompatibleSchema: nothing was changed.
        """
        return await self.producer_version(await self._topics.get(name), declared)

    async def _is_untouched(self, topic: Topic) -> bool:
        scalable = topic.scalable_topic
        if scalable is None:
            return topic.is_untouched
        layout = await self._layouts.get(scalable)
        for segment in layout.segments.values():
            if not await self._segments.is_untouched(scalable, segment):
                return False
        return True


class SchemaHandler:
    """Serves the requests about schemas of one connection."""

    def __init__(self, connection: Connection, gate: SchemaGate) -> None:
        self._outbox = connection.outbox
        self._gate = gate

    @property
    def inline(self) -> dict[int, Inline]:
        """See `CommandHandler`."""
        return {}

    @property
    def requests(self) -> dict[int, Request]:
        """See `CommandHandler`."""
        return {
            pb.BaseCommand.GET_SCHEMA: Request(
                self._get,
                lambda command, fault: commands.get_schema_failed(
                    command.get_schema.request_id, fault.code, fault.message
                ),
            ),
            pb.BaseCommand.GET_OR_CREATE_SCHEMA: Request(
                self._get_or_create,
                lambda command, fault: commands.get_or_create_schema_failed(
                    command.get_or_create_schema.request_id, fault.code, fault.message
                ),
            ),
        }

    def close(self) -> Iterator[None]:
        """See `CommandHandler`. There is nothing to close."""
        return iter(())

    async def _get(self, command: pb.BaseCommand) -> None:
        request = command.get_schema
        name = TopicName.parse(request.topic)
        found = await self._gate.find(name, request.schema_version if request.HasField("schema_version") else None)
        answer = commands.get_schema_response(request.request_id, _declared(name, found), _VERSION.pack(found.version))
        self._outbox.put(encode_command(answer))

    async def _get_or_create(self, command: pb.BaseCommand) -> None:
        request = command.get_or_create_schema
        version = await self._gate.find_or_add(TopicName.parse(request.topic), request.schema)
        self._outbox.put(encode_command(commands.get_or_create_schema_response(request.request_id, version)))


def _schema(declared: pb.Schema) -> Schema:
    properties = {given.key: given.value for given in declared.properties}
    return Schema(SchemaType(declared.type), declared.schema_data, properties)


def _declared(name: TopicName, stored: StoredSchema) -> pb.Schema:
    owner = owner_of(name)
    return pb.Schema(
        name=f"{owner.tenant_namespace}/{owner.local}",
        type=pb.Schema.Type.Name(stored.schema.type),
        schema_data=stored.schema.data,
        properties=[pb.KeyValue(key=key, value=value) for key, value in stored.schema.properties.items()],
    )
