"""Decides which schemas are valid, which are equal, and which may follow another. Pure.

The rules are those of Pulsar's strategy FULL_TRANSITIVE. A new schema and each version of the topic must read data that
the other has written. Pulsar's default, FULL, compares with the latest version only. So it accepts a field that is
dropped and comes back with another type, and then no schema reads all messages of the topic.

A consumer's schema must read data that the latest version has written, as in Pulsar's FULL. It need not read all
versions, because a topic may have incompatible ones from an earlier release.

| type | definition | the same when | one follows another when |
|---|---|---|---|
| String | empty, or `null` from Python's client | always | always |
| numbers, times, boolean | empty | always | always |
| Avro, JSON, Protobuf | Avro; for type Avro not a union | equal in Java's Avro | each reads the other |
| ProtobufNative | JSON: descriptors and the root message's name | equal bytes | the root message has the same name |
| KeyValue | both parts | both parts are | key follows key, value follows value |
| External | anything | equal bytes | always |

A schema never follows one of another type. The types None and bytes mean that there is no schema, so they never get
here. AutoConsume is only a consumer's request to use the topic's schema.
"""

import base64
import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import orjson
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from broker.errors import IncompatibleSchema
from broker.schemas import avro_schema
from broker.schemas.avro_reading import why_unreadable
from broker.schemas.key_value import split
from broker.schemas.schema import (
    AVRO_LIKE,
    PRIMITIVE,
    PROPERTIES_BYTES_MAX,
    SCHEMA_BYTES_MAX,
    Schema,
    SchemaType,
    StoredSchema,
)

_NO_DEFINITION: Final = frozenset({b"", b"null"})


def fingerprint(schema: Schema) -> str:
    """Check the schema, and return its fingerprint. Two schemas of a type are equal exactly if their fingerprints are.

    Raises:
        IncompatibleSchema: the schema is invalid or too large.
    """
    if len(schema.data) > SCHEMA_BYTES_MAX:
        raise IncompatibleSchema(f"The schema has {len(schema.data)} bytes, but the limit is {SCHEMA_BYTES_MAX}.")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in schema.properties.items())
    if size > PROPERTIES_BYTES_MAX:
        raise IncompatibleSchema(f"The schema's properties have {size} bytes, but the limit is {PROPERTIES_BYTES_MAX}.")
    return f"{schema.type.name}:{_identity(schema)}"


def require_successor(topic: str, earlier: StoredSchema, new: Schema) -> None:
    """Check that a producer's schema may follow one of the topic's versions.

    Raises:
        IncompatibleSchema: it must not; the message names the version and says why.
    """
    _require_same_type(topic, earlier.schema, new)
    problem = _why_not_readable(new, earlier, reads_earlier=True) or _why_not_readable(
        new, earlier, reads_earlier=False
    )
    if problem is not None:
        raise IncompatibleSchema(
            f"The schema and version {earlier.version} of the schema of {topic} cannot read each other's messages:"
            f" {problem}"
        )


def require_reader(topic: str, latest: StoredSchema, consumer: Schema) -> None:
    """Check that a consumer's schema can read messages written with the topic's latest schema.

    Raises:
        IncompatibleSchema: it cannot; the message says why.
    """
    _require_same_type(topic, latest.schema, consumer)
    problem = _why_not_readable(consumer, latest, reads_earlier=True)
    if problem is not None:
        raise IncompatibleSchema(
            f"The schema cannot read messages of version {latest.version} of the schema of {topic}, its latest one:"
            f" {problem}"
        )


def _require_same_type(topic: str, latest: Schema, new: Schema) -> None:
    if latest.type is not new.type:
        raise IncompatibleSchema(
            f"The schema has type {new.type.name}, but the schema of {topic} has type {latest.type.name}. Use that"
            " type, or another topic."
        )


def _identity(schema: Schema) -> str:
    kind = schema.type
    if kind in AVRO_LIKE:
        parsed = avro_schema.parse(schema.data)
        if kind is SchemaType.AVRO and parsed.is_union:
            raise IncompatibleSchema("The broker does not support a union at the top level of an Avro schema.")
        return parsed.fingerprint
    if kind is SchemaType.KEY_VALUE:
        return "|".join(
            f"{part.type.name}:{'' if part.type is SchemaType.NONE else _identity(part)}" for part in split(schema)
        )
    if kind in PRIMITIVE or kind is SchemaType.STRING:
        if schema.data and (kind in PRIMITIVE or schema.data not in _NO_DEFINITION):
            raise IncompatibleSchema(
                f"The schema has type {kind.name}, so it must not have a definition. Leave it out."
            )
        return ""
    if kind is SchemaType.PROTOBUF_NATIVE:
        _root_message(schema)
    elif kind is not SchemaType.EXTERNAL:
        raise IncompatibleSchema(f"The schema has type {kind.name}, which a topic's schema cannot have.")
    return hashlib.sha256(schema.data).hexdigest()


def _why_not_readable(new: Schema, earlier: StoredSchema, *, reads_earlier: bool) -> str | None:
    """Say why one of two schemas of a type cannot read the other, and what to do; None if it can.

    Args:
        new: the one that the user can change.
        earlier: a version of the topic.
        reads_earlier: whether the new one reads, rather than the earlier one.
    """
    kind = new.type
    if kind in AVRO_LIKE:
        ours, theirs = avro_schema.parse(new.data), avro_schema.parse(earlier.schema.data)
        reader, writer = (ours, theirs) if reads_earlier else (theirs, ours)
        name = f"version {earlier.version}"
        return why_unreadable(reader=reader, writer=writer, earlier=name, reads_earlier=reads_earlier)
    if kind is SchemaType.KEY_VALUE:
        for name, ours_part, theirs_part in zip(("key", "value"), split(new), split(earlier.schema), strict=True):
            if ours_part.type is not theirs_part.type:
                return (
                    f"the {name}s have types {theirs_part.type.name} and {ours_part.type.name}. Keep the earlier type."
                )
            before = replace(earlier, schema=theirs_part)
            problem = _why_not_readable(ours_part, before, reads_earlier=reads_earlier)
            if problem is not None:
                return f"in the {name}s, {problem}"
    elif kind is SchemaType.PROTOBUF_NATIVE:
        roots = _root_message(earlier.schema), _root_message(new)
        if roots[0] != roots[1]:
            return f"the root messages are {roots[0]} and {roots[1]}. Keep the earlier name."
    return None


def _root_message(schema: Schema) -> str:
    """Return the full name of the message that a ProtobufNative definition describes."""
    try:
        content = orjson.loads(schema.data)
        root = str(content["rootMessageTypeName"])
        files = FileDescriptorSet.FromString(base64.b64decode(content["fileDescriptorSet"]))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, binascii.Error, DecodeError) as error:
        raise IncompatibleSchema("The schema is not a valid ProtobufNative definition.") from error
    for file in files.file:
        prefix = f"{file.package}." if file.package else ""
        if root.startswith(prefix) and _describes(file.message_type, root.removeprefix(prefix).split(".")):
            return root
    raise IncompatibleSchema(f"The schema does not describe its root message {root[:300]!r}.")


def _describes(messages: Sequence[DescriptorProto], path: list[str]) -> bool:
    for message in messages:
        if message.name == path[0]:
            return len(path) == 1 or _describes(message.nested_type, path[1:])
    return False
