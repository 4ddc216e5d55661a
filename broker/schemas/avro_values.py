"""Decodes values in Avro's binary form (Avro 1.12, Binary Encoding) into JSON, for people. Pure.

Clients choose both the bytes and the definition, and a few bytes can stand for any number of values. So the number of
values, their depth and the text that they make are bounded. Apache Avro's own library has no such bounds.

The writer's own definition decodes a value. It was checked when it was registered. Bytes become base64, a decimal its
digits, and the times of logical types text in UTC (ISO 8601).
"""

import struct
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import orjson

VALUES_MAX: Final = 5_000
"""The most values in one value: fields, items and entries. They take about 12 ms, in one step of the event loop."""

TEXT_MAX: Final = 256 * 1024
"""The most characters that names and values make."""

DEPTH_MAX: Final = 64

SCALE_MAX: Final = 1_000
"""Digits behind the point of a decimal. One with more is told in base64."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_VARINT_BYTES_MAX: Final = 10
_NAMED: Final = ("record", "error", "enum", "fixed")

Json = Any


def decoder(definition: bytes) -> Callable[[bytes], Json]:
    """Return what decodes bytes by this definition.

    It raises `ValueError` if the bytes are no such value, or the value is too large to be told. The message is a
    phrase.
    """
    schema = orjson.loads(definition)
    named = _named(schema)

    def decoded(data: bytes) -> Json:
        reader = _Reader(data, named)
        value = reader.read(schema, "", 0)
        reader.require_end()
        return value

    return decoded


def _named(schema: Json) -> dict[str, tuple[Json, str]]:
    """The named types in a definition by full name, each with its own namespace."""
    found: dict[str, tuple[Json, str]] = {}

    def look(part: Json, namespace: str) -> None:
        if isinstance(part, list):
            for branch in part:
                look(branch, namespace)
        elif isinstance(part, Mapping):
            kind = part.get("type")
            if kind in _NAMED:
                full = _full_name(part, namespace)
                namespace = full.rpartition(".")[0]
                found[full] = part, namespace
                for field in part.get("fields", ()):
                    look(field["type"], namespace)
            elif isinstance(kind, Mapping | list):
                look(kind, namespace)
            for inner in ("items", "values"):
                if inner in part:
                    look(part[inner], namespace)

    look(schema, "")
    return found


def _full_name(part: Mapping[str, Json], namespace: str) -> str:
    name = str(part["name"])
    space = part.get("namespace", namespace)
    return name if "." in name or not space else f"{space}.{name}"


class _Reader:
    def __init__(self, data: bytes, named: Mapping[str, tuple[Json, str]]) -> None:
        self._data = data
        self._at = 0
        self._named = named
        self._values = 0
        self._text = 0

    def require_end(self) -> None:
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes are left behind it")

    def read(self, schema: Json, namespace: str, depth: int) -> Json:
        self._values += 1
        if self._values > VALUES_MAX:
            raise ValueError(f"it has more than {VALUES_MAX:,} parts")
        if depth > DEPTH_MAX:
            raise ValueError(f"it is nested more than {DEPTH_MAX} deep")
        if isinstance(schema, list):
            return self.read(self._chosen(schema), namespace, depth + 1)
        if isinstance(schema, str):
            return self._by_name(schema, namespace, depth)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.read(kind, namespace, depth + 1)
        if kind in _NAMED:
            namespace = _full_name(schema, namespace).rpartition(".")[0]
        compound = _COMPOUND.get(kind)
        if compound is not None:
            return compound(self, schema, namespace, depth)
        logical = _LOGICAL.get((schema.get("logicalType"), kind))
        value = self._by_name(kind, namespace, depth)
        return value if logical is None else logical(value)

    def _by_name(self, name: str, namespace: str, depth: int) -> Json:
        primitive = _PRIMITIVE.get(name)
        if primitive is not None:
            return primitive(self)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self._named.get(full) or self._named.get(name)
        if found is None:
            raise ValueError(f"its schema does not say what {name[:50]!r} is")
        schema, own = found
        return _COMPOUND[schema["type"]](self, schema, own, depth + 1)

    def _chosen(self, branches: list[Json]) -> Json:
        number = self.long()
        if not 0 <= number < len(branches):
            raise ValueError(f"there is no branch {number} in a union of {len(branches)}")
        return branches[number]

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise ValueError(f"{size} bytes are missing behind byte {self._at}")
        self._at += size
        self.count(size)
        return self._data[self._at - size : self._at]

    def count(self, characters: int) -> None:
        self._text += characters
        if self._text > TEXT_MAX:
            raise ValueError(f"it would have more than {TEXT_MAX:,} characters")

    def long(self) -> int:
        number = 0
        for place in range(_VARINT_BYTES_MAX):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
        raise ValueError("a number has more than 64 bits")

    def boolean(self) -> bool:
        return self.take(1) != b"\0"

    def single(self) -> float:
        return float(struct.unpack("<f", self.take(4))[0])

    def double(self) -> float:
        return float(struct.unpack("<d", self.take(8))[0])

    def sized(self) -> bytes:
        return self.take(self.long())

    def text(self) -> str:
        return self.sized().decode()

    def record(self, schema: Json, namespace: str, depth: int) -> dict[str, Json]:
        made: dict[str, Json] = {}
        for field in schema["fields"]:
            self.count(len(field["name"]))
            made[field["name"]] = self.read(field["type"], namespace, depth + 1)
        return made

    def enum(self, schema: Json, _namespace: str, _depth: int) -> str:
        number = self.long()
        symbols = schema["symbols"]
        if not 0 <= number < len(symbols):
            raise ValueError(f"there is no symbol {number} in an enumeration of {len(symbols)}")
        self.count(len(symbols[number]))
        return str(symbols[number])

    def fixed(self, schema: Json, _namespace: str, _depth: int) -> Json:
        return _binary(self.take(schema["size"]), schema)

    def array(self, schema: Json, namespace: str, depth: int) -> list[Json]:
        made: list[Json] = []
        while number := self._block():
            for _ in range(number):
                made.append(self.read(schema["items"], namespace, depth + 1))  # noqa: PERF401 - bounded one by one
        return made

    def map(self, schema: Json, namespace: str, depth: int) -> dict[str, Json]:
        made: dict[str, Json] = {}
        while number := self._block():
            for _ in range(number):
                name = self.text()
                made[name] = self.read(schema["values"], namespace, depth + 1)
        return made

    def _block(self) -> int:
        number = self.long()
        if number < 0:
            self.long()  # The size of the block in bytes, for those who skip it.
        return abs(number)

    def binary(self, schema: Json, _namespace: str, _depth: int) -> Json:
        return _binary(self.sized(), schema)


def _binary(data: bytes, schema: Mapping[str, Json]) -> str:
    scale = schema.get("scale", 0)
    if schema.get("logicalType") == "decimal" and type(scale) is int and 0 <= scale <= SCALE_MAX:
        number = int.from_bytes(data, "big", signed=True)
        digits = tuple(map(int, str(abs(number))))
        return format(Decimal((int(number < 0), digits, -scale)), "f")
    return b64encode(data).decode()


def _elapsed(unit: str) -> Callable[[int], str]:
    return lambda value: (_EPOCH + timedelta(**{unit: value})).isoformat().replace("+00:00", "Z")


_PRIMITIVE: Final[dict[str, Callable[[_Reader], Json]]] = {
    "null": lambda reader: None,
    "boolean": _Reader.boolean,
    "int": _Reader.long,
    "long": _Reader.long,
    "float": _Reader.single,
    "double": _Reader.double,
    "bytes": lambda reader: _binary(reader.sized(), {}),
    "string": _Reader.text,
}

_COMPOUND: Final[dict[str, Callable[[_Reader, Json, str, int], Json]]] = {
    "record": _Reader.record,
    "error": _Reader.record,
    "enum": _Reader.enum,
    "fixed": _Reader.fixed,
    "array": _Reader.array,
    "map": _Reader.map,
    "bytes": _Reader.binary,
}

_LOGICAL: Final[dict[tuple[Json, str], Callable[[int], str]]] = {
    ("date", "int"): lambda value: (_EPOCH + timedelta(days=value)).date().isoformat(),
    ("timestamp-millis", "long"): _elapsed("milliseconds"),
    ("timestamp-micros", "long"): _elapsed("microseconds"),
}
