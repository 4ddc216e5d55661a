"""Logical types of Avro values whose field had no logical type when they were written, or has none any more.

A logical type says what a stored number or bytes mean. A schema may add or remove it, and the stored bytes stay the
same. The Avro library uses the logical type in the schema that a value was written with. Another schema made the data
frame's column, and its logical type counts where the two differ. Otherwise a number of milliseconds would be read as
microseconds.

Pure.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

_NOTES: Final = ("logicalType", "precision", "scale")
_WITH_NAMES: Final = ("record", "fixed", "enum")
PROMOTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""What a type may become under the rules of Avro's schema resolution."""


def with_logical_types_of(reader: object, writer: object) -> object:
    """The writer's definition with the reader's logical types: added where it has none, removed where only it has one.

    Where both have one, the writer's stays, because it is right about what was written. Definitions are parsed JSON.

    Raises:
        ValueError: a logical type was added or removed together with a change of the type under it.
    """
    return _laid_over(writer, reader, dict(named_in(reader)))


def named_in(definition: object) -> Iterator[tuple[str, object]]:
    """All definitions that others can refer to by name."""
    if isinstance(definition, list):
        for item in definition:
            yield from named_in(item)
    elif isinstance(definition, dict):
        if definition.get("type") in _WITH_NAMES:
            yield short(definition["name"]), definition
        for part in ("type", "fields", "items", "values"):
            yield from named_in(definition.get(part))


def _laid_over(writer: Any, reader: Any, named: Mapping[str, object]) -> Any:  # noqa: ANN401 - JSON
    writer = unwrapped(writer)
    if isinstance(writer, list):
        return [_laid_over(branch, reader, named) for branch in writer]
    reader = _counterpart(writer, reader, named)
    if reader is None:
        return writer
    kind = kind_of(writer)
    if kind == "record":
        types = {
            name: field["type"] for field in reader["fields"] for name in (field["name"], *field.get("aliases", ()))
        }
        return {
            **writer,
            "fields": [
                {**field, "type": _laid_over(field["type"], types[field["name"]], named)}
                if field["name"] in types
                else field
                for field in writer["fields"]
            ],
        }
    if kind in ("array", "map"):
        part = "items" if kind == "array" else "values"
        return {**writer, part: _laid_over(writer[part], reader[part], named)}
    written, read = notes_of(writer), notes_of(reader)
    if bool(written) == bool(read):
        return writer
    if kind != kind_of(reader):
        note = (read or written)["logicalType"]
        raise ValueError(f"it was written as {kind} and is read as {kind_of(reader)}, but only one of them is a {note}")
    plain = {"type": kind} if isinstance(writer, str) else {name: writer[name] for name in writer if name not in _NOTES}
    return {**plain, **read}


def _counterpart(writer: Any, reader: Any, named: Mapping[str, object]) -> Any:  # noqa: ANN401 - JSON
    """The reader's type in the writer's place. Of a union, the branch of the same type, else one it can become."""
    reader = unwrapped(reader)
    branches = [
        named.get(short(one), one) if isinstance(one, str) else unwrapped(one)
        for one in (reader if isinstance(reader, list) else [reader])
    ]
    kind = kind_of(writer)
    alike = [one for one in branches if kind_of(one) == kind]
    if alike:
        return alike[0]
    wider = [one for one in branches if kind_of(one) in PROMOTIONS.get(kind, ())]
    return wider[0] if wider else None


def unwrapped(definition: Any) -> Any:  # noqa: ANN401 - JSON
    """The definition without nested braces, as in {"type": {"type": "long"}}."""
    while isinstance(definition, dict) and not isinstance(definition["type"], str):
        definition = definition["type"]
    return definition


def kind_of(definition: Any) -> str:  # noqa: ANN401 - JSON
    """The type's word, or the name that it refers to."""
    word: str = definition["type"] if isinstance(definition, dict) else definition
    return word


def short(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition(".")[2]


def notes_of(definition: object) -> dict[str, Any]:
    """A definition's logical type with what belongs to it; empty without one."""
    if not isinstance(definition, dict) or "logicalType" not in definition:
        return {}
    return {name: definition[name] for name in _NOTES if name in definition}
