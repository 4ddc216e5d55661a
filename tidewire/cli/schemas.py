"""`--schema` of `tidewire produce`: what the lines hold, and what the broker is told about it.

    string                  UTF-8 text
    json:FILE, avro:FILE    a JSON object a line, for the record that the Avro definition in FILE describes

The lines are JSON in both cases. With `avro`, the messages are in Avro's binary form.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidewire.cli.endings import UsageError

if TYPE_CHECKING:
    from tidewire.client.schema import Schema

SCHEMA_HELP: Final = (
    "string, json:FILE or avro:FILE, where FILE is an Avro definition. Lines for both are JSON objects."
)


class UnfitLine(UsageError):
    """A line is no value of the schema."""


def schema_named(text: str | None) -> "Schema[Any]":
    """The schema that `--schema` names; bytes without one.

    Raises:
        UsageError: there is no such schema, or its file cannot be used.
    """
    from tidewire.client.plain_schema import PlainSchema
    from tidewire.client.schema import BYTES, Schema
    from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

    if text is None:
        return BYTES
    if text == "string":
        return Schema.string()
    name, _, path = text.partition(":")
    kind = {"json": pb.Schema.Json, "avro": pb.Schema.Avro}.get(name)
    if kind is None or not path:
        raise UsageError(f"--schema {text!r} is not known. Give {SCHEMA_HELP}")
    try:
        return PlainSchema(kind, Path(path).read_bytes())
    except OSError as error:
        raise UsageError(f"--schema: {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(f"--schema: {path} is {error}.") from error


def encoder_of(schema: "Schema[Any]") -> Callable[[bytes], bytes]:
    """A function that checks a line and returns the bytes of its message.

    The function raises:
        UnfitLine: the line does not fit.
    """
    from tidewire.client.plain_schema import PlainSchema
    from tidewire.client.plain_values import Unfit
    from tidewire.client.schema import BYTES

    def of_text(line: bytes) -> bytes:
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise UnfitLine(f"byte {error.start + 1} is not UTF-8 text.") from error
        return line

    def of_record(line: bytes) -> bytes:
        try:
            return schema.encode(json.loads(line))
        except Unfit as error:
            raise UnfitLine(f"{error}.") from error
        except UnicodeDecodeError as error:
            raise UnfitLine(f"byte {error.start + 1} is not UTF-8 text.") from error
        except (ValueError, RecursionError) as error:
            raise UnfitLine(f"it is not JSON: {error}.") from error

    if schema is BYTES:
        return bytes
    return of_record if isinstance(schema, PlainSchema) else of_text
