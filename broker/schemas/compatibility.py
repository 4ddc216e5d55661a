"""Which schema is one at all, which two are the same, and which may follow another: Pulsar's rules at its defaults.

The default strategy is FULL against the latest version: a new schema must read what was written by the latest, and the
latest what is written by the new. A consumer's must read what is written by the latest.

| type | definition | the same when | one follows another when |
|---|---|---|---|
| String | empty, or `null` as Python's client writes it | always | always |
| numbers, times, boolean | empty | always | always |
| Avro, JSON, Protobuf | Avro; of type Avro no union | equal as Java compares | each reads the other |
| ProtobufNative | JSON: descriptors and the root message's name | equal bytes | the root message has the same name |
| KeyValue | both parts | both parts are | key follows key, value follows value |
| External | anything | equal bytes | always |

Of two types neither ever follows the other. None and bytes are no schema and never get here, AutoConsume is only a
consumer's word for "whatever the topic has". Pure.
"""

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import Final

import orjson
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from broker.errors import IncompatibleSchema
from broker.schemas import avro_schema
from broker.schemas.key_value import split
from broker.schemas.schema import AVRO_LIKE, PRIMITIVE, PROPERTIES_BYTES_MAX, SCHEMA_BYTES_MAX, Schema, SchemaType

_NO_DEFINITION: Final = frozenset({b"", b"null"})


def fingerprint(schema: Schema) -> str:
    """Check that the schema makes sense; equal for two schemas of one type exactly when they mean the same.

    Raises:
        IncompatibleSchema: it does not, or is too large.
    """
    if len(schema.data) > SCHEMA_BYTES_MAX:
        raise IncompatibleSchema(f"a schema of {len(schema.data)} bytes is above the limit of {SCHEMA_BYTES_MAX}")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in schema.properties.items())
    if size > PROPERTIES_BYTES_MAX:
        raise IncompatibleSchema(f"{size} bytes of schema properties are above the limit of {PROPERTIES_BYTES_MAX}")
    return f"{schema.type.name}:{_identity(schema)}"


def require_successor(latest: Schema, new: Schema) -> None:
    """Check that a producer's schema may become the topic's next version.

    Raises:
        IncompatibleSchema: it may not; the message says why.
    """
    _require_same_type(latest, new)
    problem = _why_not_readable(reader=new, writer=latest) or _why_not_readable(reader=latest, writer=new)
    if problem is not None:
        raise IncompatibleSchema(f"the schema and the topic's latest do not read each other's messages: {problem}")


def require_reader(latest: Schema, consumer: Schema) -> None:
    """Check that a consumer's schema reads what is written by the topic's latest.

    Raises:
        IncompatibleSchema: it does not; the message says why.
    """
    _require_same_type(latest, consumer)
    problem = _why_not_readable(reader=consumer, writer=latest)
    if problem is not None:
        raise IncompatibleSchema(f"the schema does not read messages of the topic's latest: {problem}")


def _require_same_type(latest: Schema, new: Schema) -> None:
    if latest.type is not new.type:
        raise IncompatibleSchema(f"the topic's schema is of type {latest.type.name}, this one of {new.type.name}")


def _identity(schema: Schema) -> str:
    kind = schema.type
    if kind in AVRO_LIKE:
        parsed = avro_schema.parse(schema.data)
        if kind is SchemaType.AVRO and parsed.is_union:
            raise IncompatibleSchema("an Avro schema that is a union at its top is not supported")
        return parsed.fingerprint
    if kind is SchemaType.KEY_VALUE:
        return "|".join(
            f"{part.type.name}:{'' if part.type is SchemaType.NONE else _identity(part)}" for part in split(schema)
        )
    if kind in PRIMITIVE or kind is SchemaType.STRING:
        if schema.data and (kind in PRIMITIVE or schema.data not in _NO_DEFINITION):
            raise IncompatibleSchema(f"a schema of type {kind.name} has no definition, but one came with it")
        return ""
    if kind is SchemaType.PROTOBUF_NATIVE:
        _root_message(schema)
    elif kind is not SchemaType.EXTERNAL:
        raise IncompatibleSchema(f"{kind.name} is no type that a topic's schema can have")
    return hashlib.sha256(schema.data).hexdigest()


def _why_not_readable(*, reader: Schema, writer: Schema) -> str | None:
    """For two schemas of one type."""
    kind = reader.type
    if kind in AVRO_LIKE:
        return avro_schema.why_unreadable(reader=avro_schema.parse(reader.data), writer=avro_schema.parse(writer.data))
    if kind is SchemaType.KEY_VALUE:
        for name, reading, writing in zip(("key", "value"), split(reader), split(writer), strict=True):
            if reading.type is not writing.type:
                return f"the {name}s are of types {writing.type.name} and {reading.type.name}"
            problem = _why_not_readable(reader=reading, writer=writing)
            if problem is not None:
                return f"of the {name}s: {problem}"
    elif kind is SchemaType.PROTOBUF_NATIVE:
        roots = _root_message(writer), _root_message(reader)
        if roots[0] != roots[1]:
            return f"the root messages are {roots[0]} and {roots[1]}"
    return None


def _root_message(schema: Schema) -> str:
    """The full name of the message that a ProtobufNative definition describes."""
    try:
        content = orjson.loads(schema.data)
        root = str(content["rootMessageTypeName"])
        files = FileDescriptorSet.FromString(base64.b64decode(content["fileDescriptorSet"]))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, binascii.Error, DecodeError) as error:
        raise IncompatibleSchema("the schema is no definition of a ProtobufNative schema") from error
    for file in files.file:
        prefix = f"{file.package}." if file.package else ""
        if root.startswith(prefix) and _describes(file.message_type, root.removeprefix(prefix).split(".")):
            return root
    raise IncompatibleSchema(f"the schema describes no message {root[:300]!r}")


def _describes(messages: Sequence[DescriptorProto], path: list[str]) -> bool:
    for message in messages:
        if message.name == path[0]:
            return len(path) == 1 or _describes(message.nested_type, path[1:])
    return False
