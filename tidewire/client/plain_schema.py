"""Schemas without a class of values: values are what `json.loads` returns, and an Avro definition says what fits.

Programs that know their topics use dataclasses (schema.py). Tools use these: a definition comes from a file, or each
message's own from the broker.
"""

import io
import json
import warnings
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import avro.errors
import avro.schema
from avro.io import BinaryDecoder, BinaryEncoder, DatumReader, DatumWriter

from tidewire.client.avro_reading import require_end
from tidewire.client.decimals import from_bytes
from tidewire.client.plain_values import Fitter, Plain, without_logical_types
from tidewire.client.schema import DEFINITIONS_KEPT_MAX, Schema
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

_RECORDS: Final = (pb.Schema.Json, pb.Schema.Avro)


class PlainSchema(Schema[Plain]):
    """JSON or Avro messages of a definition, with plain values (plain_values.py)."""

    needs_definition = True

    def __init__(self, kind: pb.Schema.Type, definition: bytes) -> None:
        """A schema of the type Json or Avro; `definition` is Avro's JSON text of a record.

        Raises:
            ValueError: it is not such a definition.
        """
        assert kind in _RECORDS
        try:
            parsed = json.loads(definition)
            with warnings.catch_warnings():
                # Avro's library does not know that a decimal in JSON is a text (plain_values.py).
                warnings.simplefilter("ignore", avro.errors.IgnoredLogicalType)
                avro.schema.parse(definition.decode())
        except (ValueError, avro.errors.AvroException) as error:
            raise ValueError(f"not an Avro definition: {error}") from error
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise ValueError("not an Avro definition of a record")
        self._declared = pb.Schema(name=parsed["name"], schema_data=definition, type=kind)
        self._definition = definition
        self._fitter = Fitter(parsed, in_json=kind == pb.Schema.Json)

    @property
    def declared(self) -> pb.Schema:
        """See `Schema`."""
        return self._declared

    def encode(self, value: Plain) -> bytes:
        """See `Schema`.

        Raises:
            Unfit: the value does not fit the definition.
        """
        fitted = self._fitter.fit(value)
        if self._declared.type == pb.Schema.Json:
            return json.dumps(fitted, ensure_ascii=False).encode()
        output = io.BytesIO()
        DatumWriter(_parsed(self._definition)).write(fitted, BinaryEncoder(output))
        return output.getvalue()

    def decode(self, data: bytes, written_with: bytes | None = None) -> Plain:
        """See `Schema`. The value is as it was written, whatever this schema's own definition is."""
        return decoded(self._declared.type, data, self._definition if written_with is None else written_with)


class AnySchema(Schema[Any]):
    """Decodes each message by the schema that it was written with. Without one, the value is its bytes."""

    needs_definition = True

    @property
    def declared(self) -> None:
        """Nothing: the topic's schema stays."""
        return None

    def encode(self, value: bytes) -> bytes:
        """The bytes themselves."""
        return value

    def decode(self, data: bytes, written_with: bytes | None = None) -> bytes:
        """The bytes themselves: the type is unknown here."""
        return data

    def decode_written(self, data: bytes, written: pb.Schema | None) -> Any:  # noqa: ANN401 - of any schema
        """See `Schema`."""
        return data if written is None else decoded(written.type, data, written.schema_data)


def decoded(kind: pb.Schema.Type, data: bytes, definition: bytes) -> Any:  # noqa: ANN401 - of any schema
    """The plain value of a message of that type; its bytes, if the type has no plain form.

    Raises:
        Exception: the bytes are not such a value. The kind of exception depends on what is wrong.
    """
    if kind == pb.Schema.Json:
        return json.loads(data)
    if kind == pb.Schema.Avro:
        written = _parsed(definition, but_decimals=True)
        stream = io.BytesIO(data)
        value = DatumReader(written, written).read(_Decoder(stream))
        require_end(stream)
        return value
    simple = _SIMPLE.get(kind)
    return data if simple is None else simple.decode(data)


_SIMPLE: Final[dict[pb.Schema.Type, Schema[Any]]] = {
    pb.Schema.String: Schema.string(),
    pb.Schema.Bool: Schema.bool(),
    pb.Schema.Int8: Schema.int8(),
    pb.Schema.Int16: Schema.int16(),
    pb.Schema.Int32: Schema.int32(),
    pb.Schema.Int64: Schema.int64(),
    pb.Schema.Float: Schema.float32(),
    pb.Schema.Double: Schema.float64(),
}


class _Decoder(BinaryDecoder):
    """Reads decimals exactly. Avro's library rounds one that has more digits than its definition says."""

    def read_decimal_from_bytes(self, precision: int, scale: int) -> Decimal:
        return from_bytes(self.read_bytes(), scale)

    def read_decimal_from_fixed(self, precision: int, scale: int, size: int) -> Decimal:
        return from_bytes(self.read(size), scale)


@lru_cache(DEFINITIONS_KEPT_MAX)
def _parsed(definition: bytes, *, but_decimals: bool = False) -> avro.schema.Schema:
    return avro.schema.parse(json.dumps(without_logical_types(json.loads(definition), but_decimals=but_decimals)))
