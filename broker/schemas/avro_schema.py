"""Avro definitions: parses them, and compares them.

Apache Avro's own library parses. Two things are done here. Names may contain `$` and letters of any script, as in
Pulsar, because Java's nested classes have such names. Equality is that of Java's Avro, which the library does not
offer: documentation and aliases do not count; defaults, order and other attributes do.

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
from avro.constants import PRIMITIVE_TYPES
from avro.name import Names

from broker.errors import IncompatibleSchema

PARSED_MAX: Final = 64
LARGE_PARSED_MAX: Final = 4
"""Parsed definitions in the caches: small ones, and those above LARGE_BYTES. Clients declare the same definitions again
when they reconnect. A parsed definition takes about 25 times its bytes."""

LARGE_BYTES: Final = 16 * 1024

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
        raise IncompatibleSchema(f"The schema is not a valid Avro definition: {shortened(str(error))}") from error
    canonical = json.dumps(form, sort_keys=True, separators=(",", ":")).encode()
    return AvroSchema(parsed, hashlib.sha256(canonical).hexdigest())


_parse_usual: Final = lru_cache(maxsize=PARSED_MAX)(_parse)
_parse_large: Final = lru_cache(maxsize=LARGE_PARSED_MAX)(_parse)


def shortened(text: str) -> str:
    """Return a text, cut if it is too long for an error."""
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
            f"{shortened(name)!r} is not a valid name in an Avro schema. Use letters, digits and underscores."
        )
