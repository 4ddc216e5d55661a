"""Tells whether one Avro definition can read another's data, and what to do if it cannot. Pure.

Apache Avro's own library decides. Its words name rules of Avro and places in a definition. Most mistakes are a new
field without a default, a dropped field, or a renamed class. So this module finds these and says what to change.

A comparison is slow for definitions of many kilobytes. The caller decides in which thread it runs.
"""

from typing import Final, NamedTuple

import avro.schema
from avro.compatibility import (
    ReaderWriterCompatibilityChecker,
    SchemaCompatibilityResult,
    SchemaCompatibilityType,
    lookup_writer_field,
    schema_name_equals,
)

from broker.schemas.avro_schema import AvroSchema, shortened

PAIRS_MAX: Final = 20_000
"""Most pairs of parts that one comparison examines: a second or two, if all of them differ."""

FIELDS_NAMED_MAX: Final = 5
"""Fields that one error names."""


def why_unreadable(
    *, reader: AvroSchema, writer: AvroSchema, earlier: str = "the earlier one", reads_earlier: bool = True
) -> str | None:
    """Say why `reader` cannot read everything that `writer` may write, and what to do; None if it can.

    Args:
        reader: the definition that reads.
        writer: the definition that was written with.
        earlier: what to call the definition that is there already.
        reads_earlier: whether that is the writer's. The user can change only the other one.
    """
    checker = _BoundedChecker()
    try:
        result = checker.get_compatibility(reader.parsed, writer.parsed)
    except RecursionError:
        return "they are nested too deeply to be compared. Flatten them."
    except _TooManyPairs:
        return f"comparing them would take more than {PAIRS_MAX} steps. Give their unions fewer branches."
    if result.compatibility is SchemaCompatibilityType.compatible:
        return None
    causes = checker.causes(reader.parsed, writer.parsed)
    if causes:
        return " Then ".join(_advice(cause, earlier, reads_earlier=reads_earlier) for cause in causes)
    kinds = sorted({kind.value.replace("_", " ") for kind in result.incompatibilities})
    places = sorted({_place(location, reader.parsed) for location in result.locations})
    problem = shortened(f"{', '.join(kinds)} at {', '.join(places)}: {', '.join(sorted(result.messages))}")
    return f"{problem}. Keep the types of fields, and give a field of another type another name."


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


class _Renamed(NamedTuple):
    """A record, enum or fixed type has one name in the writer's definition and another one in the reader's."""

    kind: str
    written: str
    read: str


class _Unfilled(NamedTuple):
    """The writer's record lacks these fields, and the reader has no default for them."""

    record: str
    fields: tuple[str, ...]


def _advice(cause: _Renamed | _Unfilled, earlier: str, *, reads_earlier: bool) -> str:
    if isinstance(cause, _Renamed):
        old, new = (cause.written, cause.read) if reads_earlier else (cause.read, cause.written)
        return f"the {cause.kind} {old} of {earlier} is named {new} here. Give it its earlier name, {old}."
    named = ", ".join(f"{cause.record}.{field}" for field in cause.fields[:FIELDS_NAMED_MAX])
    more = len(cause.fields) - FIELDS_NAMED_MAX
    which = f"{named} and {more} more" if more > 0 else named
    if reads_earlier:
        return (
            f"{earlier} lacks {which}, which has no default. Give each new field a default: `= None` in a Python"
            ' class, `required_default=True` in a Record of pulsar-client, "default" in an Avro definition.'
        )
    return f"{which} is missing, and {earlier} has no default for it. Keep each field that has no default there."


class _TooManyPairs(Exception):
    """The comparison would take too long."""


class _BoundedChecker(ReaderWriterCompatibilityChecker):
    """The library's checker, which compares all branches of two unions with each other, with a bound on its work."""

    def __init__(self) -> None:
        # The library's constructor has no annotations.
        super().__init__()  # type: ignore[no-untyped-call]
        self._pairs = 0
        # Sets in the order of discovery.
        self._renamed: dict[_Renamed, None] = {}
        self._unfilled: dict[_Unfilled, None] = {}

    def causes(self, reader: avro.schema.Schema, writer: avro.schema.Schema) -> list[_Renamed | _Unfilled]:
        """Return what people can mend, the first of each kind. The library's own words hide it, most of all in unions.

        A union's branch is compared with each of the other side, so a name counts as changed only if the other side
        has it nowhere.
        """
        read, written = _names_in(reader), _names_in(writer)
        renamed = [one for one in self._renamed if one.written not in read and one.read not in written]
        return [*renamed[:1], *list(self._unfilled)[:1]]

    def _note(self, reader: avro.schema.Schema, writer: avro.schema.Schema) -> None:
        if not isinstance(reader, avro.schema.NamedSchema) or not isinstance(writer, avro.schema.NamedSchema):
            return
        if reader.type != writer.type:
            return
        if not schema_name_equals(reader, writer):
            self._renamed[_Renamed(reader.type, writer.name, reader.name)] = None
        elif isinstance(reader, avro.schema.RecordSchema) and isinstance(writer, avro.schema.RecordSchema):
            unfilled = tuple(
                field.name
                for field in reader.fields
                if not field.has_default and lookup_writer_field(writer, field) is None
            )
            if unfilled:
                self._unfilled[_Unfilled(reader.name, unfilled)] = None

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
        result = super().get_compatibility(reader, writer, reference_token, location)
        if result.compatibility is SchemaCompatibilityType.incompatible:
            self._note(reader, writer)
        return result


def _names_in(schema: avro.schema.Schema) -> set[str]:
    """Return the names of all records, enums and fixed types in a definition, without their namespaces."""
    names: set[str] = set()
    found = [schema]
    while found:
        one = found.pop()
        if isinstance(one, avro.schema.NamedSchema):
            if one.name in names:
                continue
            names.add(one.name)
        if isinstance(one, avro.schema.RecordSchema):
            found.extend(field.type for field in one.fields)
        elif isinstance(one, avro.schema.UnionSchema):
            found.extend(one.schemas)
        elif isinstance(one, avro.schema.ArraySchema):
            found.append(one.items)
        elif isinstance(one, avro.schema.MapSchema):
            found.append(one.values)
    return names
