"""How values that one version of a schema wrote become values of another version: Avro's schema resolution, for JSON.

`resolved` compares two definitions once. Its tree says for each part of the column where its values come from.

    the reader has                 the writer has                    then
    a field                        the field, or one of its aliases  it is read from there
    a field                        nothing of the name               it has the reader's default; null without one
    nothing of the name            a field                           it is skipped
    a number, text or bytes        one that may become it            it is converted
    a logical type                 another one                       the writer's says what the stored number means
    a logical type                 none                              the reader's does
    anything else                  another type                      the versions do not fit: `Unresolvable`

A branch `null` beside a type means nothing here, because every column may be null. Pure.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from tidewire.spark.avro_evolution import PROMOTIONS, kind_of, named_in, notes_of, short, unwrapped

_COMPLEX: Final = ("record", "error", "array", "map")
_ALIKE: Final[Mapping[str, str]] = {"error": "record", "enum": "string", "fixed": "bytes"}
"""JSON writes the first like the second."""


class Unresolvable(Exception):
    """A field has two types of which the first cannot become the second."""

    def __init__(self, path: tuple[str, ...], written: str, read: str) -> None:
        super().__init__(path, written, read)
        self.field: Final = ".".join(path)
        """The path from the record to the field; empty for the value itself."""
        self.written: Final = written
        self.read: Final = read


class Leaf(NamedTuple):
    """A number, text, bytes or a truth value."""

    kind: str
    """The type in which it was written, in Avro's words; `enum` counts as string and `fixed` as bytes."""
    notes: Mapping[str, Any]
    """The logical type that says what it means, with precision and scale; empty for none."""


class Default(NamedTuple):
    """A part that is not written. All rows have the same value."""

    value: Any
    """As a definition has defaults; None is null."""
    definition: Any
    """The part's definition, for the meaning of `value`."""
    named: Mapping[str, Any]
    """The definitions to which that one refers by name."""


class Field(NamedTuple):
    """A field of a record."""

    written_as: str | None
    """Its name in the writer's record; None if it is not there."""
    tree: "Tree"


class Record(NamedTuple):
    """A record: the reader's fields, in their order."""

    fields: Mapping[str, Field]


class Items(NamedTuple):
    """An array."""

    item: "Tree"


class Entries(NamedTuple):
    """A map from text."""

    value: "Tree"


Tree: TypeAlias = Leaf | Default | Record | Items | Entries


def resolved(writer: object, reader: object) -> Tree:
    """Compare the definition that values were written with to the one of the column. Both are parsed JSON.

    The reader's definition has a column type (`topic_schemas.spark_type`), so it does not contain itself.

    Raises:
        Unresolvable: the writer's values have no meaning for the reader.
    """
    return _Resolution(dict(named_in(writer)), dict(named_in(reader))).of(writer, reader, ())


class _Resolution(NamedTuple):
    written: Mapping[str, Any]
    read: Mapping[str, Any]

    def of(self, writer: Any, reader: Any, path: tuple[str, ...]) -> Tree:  # noqa: ANN401 - JSON
        reader, writer = single(reader, self.read), single(writer, self.written)
        wanted, kind = _kind(reader), _kind(writer)
        if kind == "null":
            return Default(None, reader, self.read)
        if kind != wanted and (wanted in _COMPLEX or wanted not in PROMOTIONS.get(kind, ())):
            raise Unresolvable(path, kind, wanted)
        if kind == "record":
            return self._record(writer, reader, path)
        if kind == "array":
            return Items(self.of(writer["items"], reader["items"], path))
        if kind == "map":
            return Entries(self.of(writer["values"], reader["values"], path))
        wanted_notes = notes_of(reader)
        return Leaf(kind, (notes_of(writer) or wanted_notes) if wanted_notes else {})

    def _record(self, writer: Any, reader: Any, path: tuple[str, ...]) -> Record:  # noqa: ANN401 - JSON
        types = {field["name"]: field["type"] for field in writer["fields"]}
        free = types.keys() - {field["name"] for field in reader["fields"]}
        fields: dict[str, Field] = {}
        for field in reader["fields"]:
            name = field["name"]
            source = name if name in types else next((one for one in field.get("aliases", ()) if one in free), None)
            if source is None:
                fields[name] = Field(None, Default(field.get("default"), field["type"], self.read))
            else:
                free.discard(source)
                fields[name] = Field(source, self.of(types[source], field["type"], (*path, name)))
        return Record(fields)


def single(definition: Any, named: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """The definition itself, without braces, names and `null` around it. A union of several types stays as it is."""
    definition = unwrapped(definition)
    if isinstance(definition, list):
        branches = [branch for branch in definition if branch != "null"]
        return single(branches[0], named) if len(branches) == 1 else (definition if branches else "null")
    if isinstance(definition, str):
        return named.get(short(definition), definition)
    return definition


def _kind(definition: Any) -> str:  # noqa: ANN401 - JSON
    if isinstance(definition, list):
        return "union"
    kind = kind_of(definition)
    return _ALIKE.get(kind, kind)
