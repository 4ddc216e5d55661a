"""JSON values to Arrow columns: read as they were written, then converted to the column's type.

    definition                                   in JSON                               column
    boolean, numbers, string, enum               as JSON has them                      the same
    long with timestamp-millis, timestamp-micros a number of them since 1970           timestamp
    int with date                                a number of days since 1970           date
    bytes, fixed                                 text in base64, as from Java's client binary
    decimal on string, bytes or fixed            text, or a number                     decimal
    record, array, map                           object, array, object                 struct, array, map

A member that is missing is null. Values are read by Arrow's own reader, or where there are maps, which it does not
have, by Python's. Both make the same array (`_raw`), which the rest converts column by column.
"""

import base64
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from tidewire.spark.avro_evolution import kind_of, notes_of
from tidewire.spark.resolution import Default, Entries, Items, Leaf, Record, Tree, single

_MOMENT: Final = pa.timestamp("us", "UTC")
_US_PER_MS: Final = 1000
_RAW: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    # Another type than that of text, so that an array of it never passes for a finished column.
    "bytes": pa.large_string(),
}


class JsonReading:
    """Reads values that were written with one version of a schema."""

    def __init__(self, tree: Tree, made: pa.DataType) -> None:
        """Prepare: `tree` leads from the version to the column, whose type is `made`."""
        self._tree: Final = tree
        self._made: Final = made
        self._raw: Final = _raw(tree)
        self._is_read_by_arrow: Final = isinstance(tree, Record) and len(self._raw) > 0 and not _has_maps(self._raw)
        self._object: Final = _object(tree)

    def column(self, values: Sequence[bytes | None]) -> pa.Array:
        """The column of these values; None is null.

        Raises:
            Exception: a value is not what the definition says; the libraries raise all kinds.
        """
        if self._is_read_by_arrow:
            raw = self._read_by_arrow(values)
        else:
            objects = [None if value is None else self._object(json.loads(value)) for value in values]
            try:
                raw = pa.array(objects, self._raw)
            except (pa.ArrowException, ValueError, TypeError) as error:
                # Arrow's own reader names the column, and this function does not.
                raise ValueError(_misfit(objects, pa.list_(self._raw), "") or str(error)) from error
        return _converted(self._tree, raw, self._made)

    def _read_by_arrow(self, values: Sequence[bytes | None]) -> pa.Array:
        lines = [b"{}" if value is None else value.strip().replace(b"\n", b" ") for value in values]
        # So no value can continue into the next line: after a closing brace no opening one can follow.
        if not all(line[:1] == b"{" and line[-1:] == b"}" for line in lines):
            raise ValueError("it is not a JSON object")
        text = b"\n".join(lines)
        table = pyarrow.json.read_json(
            io.BytesIO(text),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=pa.schema(list(self._raw)), unexpected_field_behavior="ignore"
            ),
        )
        if table.num_rows != len(values):
            raise ValueError("it is more than one JSON object")
        columns = [table.column(field.name).combine_chunks() for field in self._raw]
        absent = pa.array([value is None for value in values])
        return pa.StructArray.from_arrays(columns, fields=list(self._raw), mask=absent)


def _raw(tree: Tree) -> pa.DataType:
    """The type of an array of values as they are written."""
    if isinstance(tree, Record):
        written = {field.written_as: field.tree for field in tree.fields.values() if field.written_as is not None}
        return pa.struct([pa.field(name, _raw(part)) for name, part in written.items() if not _is_given(part)])
    if isinstance(tree, Items):
        return pa.list_(_raw(tree.item))
    if isinstance(tree, Entries):
        return pa.map_(pa.string(), _raw(tree.value))
    if isinstance(tree, Default):
        return pa.null()
    return _decimal(tree.notes) if _is_decimal(tree.notes) else _RAW[tree.kind]


def _is_given(tree: Tree) -> bool:
    """Whether nothing has to be read for it."""
    return isinstance(tree, Default)


def _has_maps(made: pa.DataType) -> bool:
    if pa.types.is_struct(made):
        return any(_has_maps(field.type) for field in made)
    return pa.types.is_map(made) or (pa.types.is_list(made) and _has_maps(made.value_type))


def _object(tree: Tree) -> Callable[[Any], Any]:
    """Converts what Python's JSON reader makes to what Arrow takes for `_raw`."""
    if isinstance(tree, Record):
        parts = [
            (field.written_as, _object(field.tree))
            for field in tree.fields.values()
            if field.written_as is not None and not _is_given(field.tree)
        ]

        def record(value: Any) -> Any:  # noqa: ANN401 - JSON
            if not isinstance(value, dict):
                raise ValueError("it is not a JSON object")
            return {name: part(value[name]) for name, part in parts if value.get(name) is not None}

        return record
    if isinstance(tree, Items):
        item = _object(tree.item)
        return lambda value: [None if one is None else item(one) for one in value]
    if isinstance(tree, Entries):
        entry = _object(tree.value)
        return lambda value: {name: None if one is None else entry(one) for name, one in value.items()}
    if isinstance(tree, Leaf) and _is_decimal(tree.notes):
        # A float's shortest text is what was written, as far as it has digits.
        return lambda value: Decimal(str(value))
    return _NUMBERS.get(tree.kind, _as_it_is) if isinstance(tree, Leaf) else _as_it_is


def _as_it_is(value: Any) -> Any:  # noqa: ANN401 - JSON
    return value


def _whole(value: Any) -> Any:  # noqa: ANN401 - JSON
    # Arrow would cut the fraction off. It takes no text for a number.
    return value if isinstance(value, int) else str(value)


def _number(value: Any) -> Any:  # noqa: ANN401 - JSON
    # Arrow would take true for 1.
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


_NUMBERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "int": _whole,
    "long": _whole,
    "float": _number,
    "double": _number,
}
"""Where Arrow's array is less strict with Python's numbers than its reader is with JSON's."""


def _misfit(value: Any, made: pa.DataType, where: str) -> str | None:  # noqa: ANN401 - JSON
    """Name the innermost field of `value` that has no place in this type; None if all of it has."""
    try:
        pa.array([value], made)
    except (pa.ArrowException, ValueError, TypeError):
        inner = (_misfit(part, kind, ".".join(filter(None, (where, name)))) for name, part, kind in _parts(value, made))
        return next(filter(None, inner), None) or f"field {where} is {str(value)[:40]}, not {made}"
    return None


def _parts(value: Any, made: pa.DataType) -> Iterator[tuple[str, Any, pa.DataType]]:  # noqa: ANN401 - JSON
    if pa.types.is_list(made) and isinstance(value, list):
        yield from (("", item, made.value_type) for item in value)
    elif pa.types.is_map(made) and isinstance(value, dict):
        yield from ((name, item, made.item_type) for name, item in value.items())
    elif pa.types.is_struct(made) and isinstance(value, dict):
        yield from ((field.name, value.get(field.name), field.type) for field in made)


def _converted(tree: Tree, raw: pa.Array, made: pa.DataType) -> pa.Array:
    """The column of one part. `raw` has the part's values as they are written."""
    if isinstance(tree, Default):
        return _repeated(tree, len(raw), made)
    if raw.type == made:
        return raw
    if isinstance(tree, Record):
        columns = [
            _repeated(part.tree, len(raw), field.type)
            if isinstance(part.tree, Default)
            else _converted(part.tree, raw.field(part.written_as), field.type)
            for part, field in zip(tree.fields.values(), made, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=list(made), mask=raw.is_null())
    if isinstance(tree, Items):
        items = _converted(tree.item, raw.values, made.value_type)
        return pa.ListArray.from_arrays(raw.offsets, items, type=made, mask=raw.is_null())
    if isinstance(tree, Entries):
        values = _converted(tree.value, raw.items, made.item_type)
        return pa.MapArray.from_arrays(raw.offsets, raw.keys, values, type=made, mask=raw.is_null())
    return _meant(tree, raw).cast(made)


def _meant(leaf: Leaf, raw: pa.Array) -> pa.Array:
    """What the written numbers or text mean."""
    logical = leaf.notes.get("logicalType")
    if logical == "date":
        return raw.cast(pa.int32()).view(pa.date32())
    if logical == "timestamp-millis":
        return pc.multiply_checked(raw.cast(pa.int64()), _US_PER_MS).view(_MOMENT)
    if logical == "timestamp-micros":
        return raw.cast(pa.int64()).view(_MOMENT)
    if leaf.kind == "bytes" and not _is_decimal(leaf.notes):
        return pa.array(
            [None if text is None else base64.b64decode(text, validate=True) for text in raw.to_pylist()], pa.binary()
        )
    return raw


def _repeated(default: Default, count: int, made: pa.DataType) -> pa.Array:
    value = pa.array([_default(default.definition, default.value, default.named)], made)
    return value.take(pa.repeat(pa.scalar(0, pa.int32()), count))


def _default(definition: Any, value: Any, named: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """A default, in Avro's JSON form, as Arrow takes it."""
    if value is None:
        return None
    definition = single(definition, named)
    kind, notes = kind_of(definition), notes_of(definition)
    if kind in ("record", "error"):
        return {
            field["name"]: _default(field["type"], value.get(field["name"], field.get("default")), named)
            for field in definition["fields"]
        }
    if kind == "array":
        return [_default(definition["items"], one, named) for one in value]
    if kind == "map":
        return {name: _default(definition["values"], one, named) for name, one in value.items()}
    if kind in ("bytes", "fixed"):
        data = value.encode("latin-1")
        if not _is_decimal(notes):
            return data
        return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-notes.get("scale", 0))
    if _is_decimal(notes):
        return Decimal(value)
    return value * _US_PER_MS if notes.get("logicalType") == "timestamp-millis" else value


def _is_decimal(notes: Mapping[str, Any]) -> bool:
    return notes.get("logicalType") == "decimal"


def _decimal(notes: Mapping[str, Any]) -> pa.DataType:
    return pa.decimal128(notes["precision"], notes.get("scale", 0))
