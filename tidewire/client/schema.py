"""Schemas turn the values of messages into bytes and back, and declare their type to the broker.

    async with client.producer(topic, schema=Schema.avro(Flight)) as producer:
        await producer.send(Flight("UA", 1545))

The broker keeps each topic's schemas in versions, and refuses one that is incompatible with the earlier ones. Every
message names the version that it was written with. Without a schema values are bytes, and the broker is told nothing.
"""

import io
import json
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias

from typing_extensions import TypeVar

from tidewire.client.records import form_of_record
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

if TYPE_CHECKING:
    from avro.schema import Schema as AvroDefinition

T = TypeVar("T", default=bytes)
"""The type of a message's value; bytes unless there is a schema."""
V = TypeVar("V")
N = TypeVar("N", bound=float)

# The names of the constructors below hide these in the class.
_Bytes: TypeAlias = bytes
_Bool: TypeAlias = bool

DEFINITIONS_KEPT_MAX: Final = 100
"""Parsed Avro definitions that are cached, for all topics together."""


class Schema(ABC, Generic[T]):
    """How values of one type are encoded. The methods that make one have the names of Pulsar's Java client."""

    needs_definition: _Bool = False
    """Whether decoding a message needs the definition that it was written with."""

    @property
    @abstractmethod
    def declared(self) -> pb.Schema | None:
        """The declaration for the broker; None for no declaration."""

    @abstractmethod
    def encode(self, value: T) -> _Bytes:
        """The bytes of a value.

        Raises:
            TypeError, ValueError: the value does not fit the schema.
        """

    @abstractmethod
    def decode(self, data: _Bytes, written_with: _Bytes | None = None) -> T:
        """The value of these bytes. `written_with` is the definition they were written with, if needed and known.

        Raises:
            Exception: the bytes are not such a value. The kind of exception depends on what is wrong.
        """

    def decode_written(self, data: _Bytes, written: pb.Schema | None) -> T:
        """As `decode`. `written` is the whole schema that they were written with, if needed and known."""
        return self.decode(data, None if written is None else written.schema_data)

    def encoded(self) -> "Schema[_Bytes]":
        """A schema that declares the same, for values that are already encoded."""
        return _Encoded(self)

    @staticmethod
    def bytes() -> "Schema[_Bytes]":
        """Bytes, with no declaration to the broker."""
        return BYTES

    @staticmethod
    def string() -> "Schema[str]":
        """Text, in UTF-8."""
        return _String()

    @staticmethod
    def bool() -> "Schema[_Bool]":
        """True or false, one byte."""
        return _Packed("Boolean", pb.Schema.Bool, ">?")

    @staticmethod
    def int8() -> "Schema[int]":
        """A signed number of one byte."""
        return _Packed("INT8", pb.Schema.Int8, ">b")

    @staticmethod
    def int16() -> "Schema[int]":
        """A signed number of two bytes."""
        return _Packed("INT16", pb.Schema.Int16, ">h")

    @staticmethod
    def int32() -> "Schema[int]":
        """A signed number of four bytes."""
        return _Packed("INT32", pb.Schema.Int32, ">i")

    @staticmethod
    def int64() -> "Schema[int]":
        """A signed number of eight bytes."""
        return _Packed("INT64", pb.Schema.Int64, ">q")

    @staticmethod
    def float32() -> "Schema[float]":
        """A floating-point number of four bytes."""
        return _Packed("Float", pb.Schema.Float, ">f")

    @staticmethod
    def float64() -> "Schema[float]":
        """A floating-point number of eight bytes."""
        return _Packed("Double", pb.Schema.Double, ">d")

    @staticmethod
    def json(record: type[V]) -> "Schema[V]":
        """A dataclass as JSON. Unknown fields are ignored.

        Fields have the types str, bool, int, float, bytes, datetime, date, `Annotated[Decimal, 12, 2]`, another
        dataclass, or a list or dict[str, ...] of them. Any of these may be `| None`.

        Raises:
            TypeError: it is not a dataclass, or a field's type is not supported.
        """
        return _Json(record)

    @staticmethod
    def avro(record: type[V]) -> "Schema[V]":
        """A dataclass in Avro's binary form, decoded by the definition that it was written with.

        Fields have the types that `json` names.

        Raises:
            TypeError: it is not a dataclass, or a field's type is not supported.
        """
        return _Avro(record)


class _BytesSchema(Schema[bytes]):
    @property
    def declared(self) -> None:
        return None

    def encode(self, value: bytes) -> bytes:
        if type(value) is bytes:
            return value
        try:
            # Copied, because the caller may change it.
            return bytes(memoryview(value))
        except TypeError as error:
            raise TypeError(
                f"{value!r:.40} is not bytes. Encode it, or open the producer with the schema of its values, such as "
                "schema=tidewire.Schema.string()"
            ) from error

    def decode(self, data: bytes, written_with: bytes | None = None) -> bytes:
        return data


BYTES: Final[Schema[bytes]] = _BytesSchema()


@dataclass(frozen=True)
class _Encoded(Schema[bytes]):
    schema: Schema[Any]

    @property
    def declared(self) -> pb.Schema | None:
        return self.schema.declared

    def encode(self, value: bytes) -> bytes:
        return BYTES.encode(value)

    def decode(self, data: bytes, written_with: bytes | None = None) -> bytes:
        return data


class _String(Schema[str]):
    @property
    def declared(self) -> pb.Schema:
        return pb.Schema(name="String", schema_data=b"", type=pb.Schema.String)

    def encode(self, value: str) -> bytes:
        return value.encode()

    def decode(self, data: bytes, written_with: bytes | None = None) -> str:
        return data.decode()


class _Packed(Schema[N]):
    def __init__(self, name: str, kind: pb.Schema.Type, form: str) -> None:
        self._declared = pb.Schema(name=name, schema_data=b"", type=kind)
        self._struct = struct.Struct(form)

    @property
    def declared(self) -> pb.Schema:
        return self._declared

    def encode(self, value: N) -> bytes:
        try:
            return self._struct.pack(value)
        except struct.error as error:
            raise ValueError(f"{value!r} is not a {self._declared.name}: {error}") from error

    def decode(self, data: bytes, written_with: bytes | None = None) -> N:
        (value,) = self._struct.unpack(data)
        unpacked: N = value
        return unpacked


class _Record(Schema[V]):
    kind: pb.Schema.Type

    def __init__(self, record: type[V]) -> None:
        self._form = form_of_record(record, in_json=self.kind == pb.Schema.Json)
        self._definition = json.dumps(self._form.avro).encode()
        self._name = record.__name__

    @property
    def declared(self) -> pb.Schema:
        return pb.Schema(name=self._name, schema_data=self._definition, type=self.kind)


class _Json(_Record[V]):
    kind = pb.Schema.Json

    def encode(self, value: V) -> bytes:
        return json.dumps(self._form.to_plain(value), ensure_ascii=False).encode()

    def decode(self, data: bytes, written_with: bytes | None = None) -> V:
        # Numbers stay exact, because a decimal may be one.
        decoded: V = self._form.from_plain(json.loads(data, parse_float=Decimal))
        return decoded


class _Avro(_Record[V]):
    kind = pb.Schema.Avro
    needs_definition = True

    def encode(self, value: V) -> bytes:
        from avro.io import BinaryEncoder, DatumWriter

        output = io.BytesIO()
        DatumWriter(_parsed(self._definition)).write(self._form.to_plain(value), BinaryEncoder(output))
        return output.getvalue()

    def decode(self, data: bytes, written_with: bytes | None = None) -> V:
        from tidewire.client.avro_reading import read

        mine = _parsed(self._definition)
        theirs = mine if written_with is None else _parsed(written_with)
        decoded: V = self._form.from_plain(read(data, writer=theirs, reader=mine))
        return decoded


@lru_cache(DEFINITIONS_KEPT_MAX)
def _parsed(definition: bytes) -> "AvroDefinition":
    # Imported here, because most programs send bytes and do not need it.
    from tidewire.client.avro_reading import parsed

    return parsed(definition)
