"""Avro definitions: parses them, compares them, and tells whether one can read another's data.

Apache Avro's own library decides whether a reader can read a writer's data. Two things are done here. Names may contain
`$` and letters of any script, as in Pulsar, because Java's nested classes have such names. Equality is that of Java's
Avro, which the library does not offer: documentation and aliases do not count; defaults, order and other attributes do.

Logical types are removed before the library sees a definition. The library warns about unknown ones, and no rule of
compatibility uses them. They count for equality.

This module is pure, but slow for definitions of many kilobytes. The caller decides in which thread it runs.
"""

import hashlib
import json
import re
from functools import lru_cache
from typing import Final, NamedTuple

import avro.schema
import orjson
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityResult, SchemaCompatibilityType
from avro.constants import PRIMITIVE_TYPES
from avro.name import Names

from broker.errors import IncompatibleSchema

PARSED_MAX: Final = 64
LARGE_PARSED_MAX: Final = 4
"""Parsed definitions in the caches: small ones, and those above LARGE_BYTES. Clients declare the same definitions again
when they reconnect. A parsed definition takes about 25 times its bytes."""

LARGE_BYTES: Final = 16 * 1024

PAIRS_MAX: Final = 20_000
"""Most pairs of parts that one comparison examines: a second or two, if all of them differ."""

_NAME: Final = re.compile(r"[^\W\d][\w$]*|\$[\w$]*")
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_IGNORED: Final = frozenset({"doc", "aliases"})

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None


class AvroSchema(NamedTuple):
    """A parsed definition."""

    parsed: avro.schema.Schema
    fingerprint: str
    """Equal for two definitions exactly when Java's Avro considers them equal."""

    @property
    def is_union(self) -> bool:
        """Whether its top level is a union."""
        return bool(self.parsed.type == "union")


def parse(definition: bytes) -> AvroSchema:
    """Parse a definition.

    Raises:
        IncompatibleSchema: it is not a valid definition.
    """
    return _parse_large(definition) if len(definition) > LARGE_BYTES else _parse_usual(definition)


def _parse(definition: bytes) -> AvroSchema:
    try:
        content = orjson.loads(definition)
        parsed = avro.schema.make_avsc_object(_without_logical_types(content), Names(validate_names=False), True, False)
        form = _form(content, None)
    except IncompatibleSchema:
        raise
    except RecursionError:
        raise IncompatibleSchema("The schema is nested too deeply. Flatten it.") from None
    except Exception as error:
        # The library raises many kinds of errors for invalid definitions, so no list of them would be complete.
        raise IncompatibleSchema(f"The schema is not a valid Avro definition: {_shortened(str(error))}") from error
    canonical = json.dumps(form, sort_keys=True, separators=(",", ":")).encode()
    return AvroSchema(parsed, hashlib.sha256(canonical).hexdigest())


_parse_usual: Final = lru_cache(maxsize=PARSED_MAX)(_parse)
_parse_large: Final = lru_cache(maxsize=LARGE_PARSED_MAX)(_parse)


def why_unreadable(*, reader: AvroSchema, writer: AvroSchema) -> str | None:
    """Say why `reader` cannot read everything that `writer` may write; None if it can."""
    try:
        # The library's constructor has no annotations.
        checker = _BoundedChecker()  # type: ignore[no-untyped-call]
        result = checker.get_compatibility(reader.parsed, writer.parsed)
    except RecursionError:
        return "they are nested too deeply to be compared"
    except _TooManyPairs:
        return f"comparing them would take more than {PAIRS_MAX} steps"
    if result.compatibility is SchemaCompatibilityType.compatible:
        return None
    kinds = sorted({kind.value.replace("_", " ") for kind in result.incompatibilities})
    places = sorted({_place(location, reader.parsed) for location in result.locations})
    return _shortened(f"{', '.join(kinds)} at {', '.join(places)}: {', '.join(sorted(result.messages))}")


def _place(location: str, schema: avro.schema.Schema) -> str:
    """Say which field the library's location in a schema leads to; the location itself if it leads to none."""
    names: list[str] = []
    steps = iter(location.split("/"))
    for step in steps:
        branches = schema.schemas if isinstance(schema, avro.schema.UnionSchema) else (schema,)
        if step == "fields":
            index = int(next(steps))
            fields = next((one.fields for one in branches if isinstance(one, avro.schema.RecordSchema)), ())
            if index >= len(fields):
                break
            names.append(str(fields[index].name))
            schema = fields[index].type
        elif step == "items":
            schema = next((one.items for one in branches if isinstance(one, avro.schema.ArraySchema)), schema)
        elif step == "values":
            schema = next((one.values for one in branches if isinstance(one, avro.schema.MapSchema)), schema)
    return f"field {'.'.join(names)}" if names else location


class _TooManyPairs(Exception):
    """The comparison would take too long."""


class _BoundedChecker(ReaderWriterCompatibilityChecker):
    """The library's checker, which compares all branches of two unions with each other, with a bound on its work."""

    _pairs = 0

    def get_compatibility(
        self,
        reader: avro.schema.Schema,
        writer: avro.schema.Schema,
        reference_token: str = ReaderWriterCompatibilityChecker.ROOT_REFERENCE_TOKEN,
        location: list[str] | None = None,
    ) -> SchemaCompatibilityResult:
        self._pairs += 1
        if self._pairs > PAIRS_MAX:
            raise _TooManyPairs
        return super().get_compatibility(reader, writer, reference_token, location)


def _shortened(text: str) -> str:
    return text if len(text) <= 300 else text[:300] + "…"


def _without_logical_types(node: Json) -> Json:
    if isinstance(node, dict):
        return {key: _without_logical_types(value) for key, value in node.items() if key != "logicalType"}
    if isinstance(node, list):
        return [_without_logical_types(item) for item in node]
    return node


def _form(node: Json, namespace: str | None) -> Json:
    """Return the normal form of a valid definition: with full names, and without the parts that do not count."""
    if isinstance(node, str):
        return node if node in PRIMITIVE_TYPES else _full_name(node, namespace)
    if isinstance(node, list):
        return [_form(branch, namespace) for branch in node]
    assert isinstance(node, dict), "the library accepts only names, unions and objects"
    kind = node["type"]
    assert isinstance(kind, str), "the library accepts only the name of a type"
    form = {key: value for key, value in node.items() if key not in _IGNORED}
    if kind in _NAMED:
        own = node.get("namespace")
        name = _full_name(str(node["name"]), own if isinstance(own, str) else namespace)
        namespace = name.rpartition(".")[0] or None
        form.pop("namespace", None)
        form["name"] = name
        fields = node.get("fields")
        if isinstance(fields, list):
            form["fields"] = [_field(item, namespace) for item in fields]
    elif kind in {"array", "map"}:
        part = "items" if kind == "array" else "values"
        form[part] = _form(node[part], namespace)
    elif form == {"type": kind}:
        # An object without attributes is the same as the name of its type.
        return _form(kind, namespace)
    return form


def _field(node: Json, namespace: str | None) -> Json:
    assert isinstance(node, dict), "the library accepts only objects as fields"
    form: dict[str, Json] = {key: value for key, value in node.items() if key not in _IGNORED}
    _require_name(str(node["name"]))
    form["type"] = _form(node["type"], namespace)
    form.setdefault("order", "ascending")
    return form


def _full_name(name: str, namespace: str | None) -> str:
    full = name if "." in name or not namespace else f"{namespace}.{name}"
    for part in full.split("."):
        _require_name(part)
    return full


def _require_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise IncompatibleSchema(
            f"{_shortened(name)!r} is not a valid name in an Avro schema. Use letters, digits and underscores."
        )
