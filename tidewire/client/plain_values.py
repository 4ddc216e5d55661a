r"""Checks plain values, as JSON has them, against an Avro definition, and fills in defaults. Pure.

    JSON                    Avro
    null, true, "text"      null, boolean, string and enum
    1                       int and long, if it fits; float and double
    "\u00ff"                 bytes and fixed: each character is a byte (Avro's specification, "JSON Encoding")
    "12.30" or 12.3         decimal of bytes or fixed
    [...], {...}            array, map and record

A value of a union is the plain value, without the type's name around it. The other logical types count as the types
below them: a `timestamp-micros` is its number of microseconds. An error names the field and what it lacks.
"""

from collections.abc import Callable, Container, Mapping
from typing import Any, Final, TypeAlias

from tidewire.client.decimals import Digits

Plain: TypeAlias = Any
"""What `json.loads` returns."""
Definition: TypeAlias = Any
"""An Avro definition, as `json.loads` returns it."""

DEPTH_MAX: Final = 64
"""How deep values may be nested. A definition that contains itself would allow any depth."""

_INTEGERS: Final = {"int": 2**31, "long": 2**63}
_WORDS: Final[Mapping[str, str]] = {
    "int": "an integer of 32 bits",
    "long": "an integer of 64 bits",
    "float": "a number",
    "double": "a number",
    "boolean": "true or false",
    "string": "a text",
    "null": "null",
    "bytes": "a text with one character for each byte",
    "array": "a list",
    "map": "an object",
    "record": "an object",
}


class Unfit(ValueError):
    """The value does not fit the definition. The text names the field."""


def without_logical_types(definition: Definition, *, but_decimals: bool = False) -> Definition:
    """The definition with each logical type replaced by the type below it. Values are encoded the same.

    With `but_decimals`, decimals stay.
    """
    if isinstance(definition, list):
        return [without_logical_types(one, but_decimals=but_decimals) for one in definition]
    if not isinstance(definition, dict):
        return definition
    left_out = () if but_decimals and digits_of(definition) else ("logicalType", "precision", "scale")
    kept = {name: part for name, part in definition.items() if name not in left_out}
    for name in ("type", "items", "values"):
        if name in kept:
            kept[name] = without_logical_types(kept[name], but_decimals=but_decimals)
    if "fields" in kept:
        kept["fields"] = [without_logical_types(field, but_decimals=but_decimals) for field in kept["fields"]]
    return kept


def digits_of(definition: Definition, kinds: Container[str] = ("bytes", "fixed")) -> Digits | None:
    """The digits of a decimal of these kinds; None for any other type. Avro ignores a decimal without proper digits."""
    match definition:
        case {"type": str(kind), "logicalType": "decimal", "precision": int(precision)} if kind in kinds:
            scale = definition.get("scale", 0)
            return Digits(precision, scale) if isinstance(scale, int) and 0 <= scale <= precision > 0 else None
    return None


class Fitter:
    """Fits values to one definition."""

    def __init__(self, definition: Definition, *, in_json: bool, of_defaults: bool = False) -> None:
        """With `in_json`, bytes stay texts, and a text of any kind will do for them.

        `of_defaults` is for the definition's own defaults: Avro writes those of decimals as the text of their bytes.
        """
        self._definition = definition
        self._in_json = in_json
        self._of_defaults = of_defaults
        self._defaults = self if of_defaults else Fitter(definition, in_json=in_json, of_defaults=True)
        self._named: dict[str, Definition] = {}
        self._learn(definition, "")

    def fit(self, value: Plain) -> Plain:
        """The value with the defaults of missing fields.

        Raises:
            Unfit: it does not fit.
        """
        return self._fit(self._definition, value, "", 0)

    def fit_default(self, field: Definition, where: str, depth: int) -> Plain:
        """The default of a record's field. The field is at `where`, at that depth.

        Raises:
            Unfit: the default does not fit the field.
        """
        return self._fit(field["type"], field["default"], where, depth)

    def _learn(self, definition: Definition, space: str) -> None:
        if isinstance(definition, list):
            for one in definition:
                self._learn(one, space)
        elif isinstance(definition, dict):
            if "name" in definition and definition.get("type") in {"record", "error", "enum", "fixed"}:
                name = definition["name"]
                space = name.rpartition(".")[0] or definition.get("namespace", space)
                short = name.rpartition(".")[2]
                self._named[short] = self._named[f"{space}.{short}" if space else short] = definition
                for field in definition.get("fields", ()):
                    self._learn(field["type"], space)
            else:
                for part in ("type", "items", "values"):
                    self._learn(definition.get(part), space)

    def _fit(self, definition: Definition, value: Plain, where: str, depth: int) -> Plain:
        if depth > DEPTH_MAX:
            raise Unfit(f"{_field(where)} is nested deeper than {DEPTH_MAX} levels")
        if isinstance(definition, list):
            return self._fit_union(definition, value, where, depth)
        if isinstance(definition, str) and definition in self._named:
            definition = self._named[definition]
        kind = definition["type"] if isinstance(definition, dict) else definition
        if not isinstance(kind, str) or kind in self._named:
            return self._fit(kind, value, where, depth + 1)
        if kind in {"record", "error"}:
            return self._fit_record(definition, value, where, depth)
        if kind == "enum":
            if value in definition["symbols"]:
                return value
            raise _unfit(where, value, f"one of {', '.join(definition['symbols'])}")
        if kind == "array" and isinstance(value, list):
            items = definition["items"]
            return [self._fit(items, item, f"{where}[{number}]", depth + 1) for number, item in enumerate(value)]
        if kind == "map" and isinstance(value, dict):
            values = definition["values"]
            return {key: self._fit(values, item, _below(where, key), depth + 1) for key, item in value.items()}
        if kind in {"bytes", "fixed"}:
            return self._fit_bytes(definition, value, where)
        if not _SIMPLE.get(kind, _never)(value, kind):
            raise _unfit(where, value, _WORDS.get(kind, f"a {kind}"))
        if kind == "string" and self._in_json:
            _require_decimal(definition, value, where)
        return float(value) if kind in {"float", "double"} else value

    def _fit_record(self, definition: Definition, value: Plain, where: str, depth: int) -> Plain:
        if not isinstance(value, dict):
            raise _unfit(where, value, _WORDS["record"])
        fields = {field["name"]: field for field in definition["fields"]}
        unknown = next((name for name in value if name not in fields), None)
        if unknown is not None:
            known = ", ".join(fields) or "none"
            raise Unfit(f"field {_below(where, unknown)} is not in the schema, whose fields are {known}")
        fitted = {}
        for name, field in fields.items():
            if name not in value and "default" not in field:
                raise Unfit(f"field {_below(where, name)} is missing and has no default")
            below = _below(where, name)
            if name in value:
                fitted[name] = self._fit(field["type"], value[name], below, depth + 1)
            else:
                fitted[name] = self._defaults.fit_default(field, below, depth + 1)
        return fitted

    def _fit_union(self, union: list[Definition], value: Plain, where: str, depth: int) -> Plain:
        told = []
        for one in union:
            try:
                return self._fit(one, value, where, depth + 1)
            except Unfit as unfit:
                if one != "null":
                    told.append(unfit)
        # Of a type that may also be null, say what is wrong with the value itself.
        if len(told) == 1:
            raise told[0]
        raise _unfit(where, value, "of any type of its union")

    def _fit_bytes(self, definition: Definition, value: Plain, where: str) -> Plain:
        digits = None if self._in_json or self._of_defaults else digits_of(definition)
        if digits is not None:
            return _decimal(digits, definition.get("size"), value, where)
        if not isinstance(value, str):
            raise _unfit(where, value, _WORDS["bytes"])
        if self._in_json:
            return value
        try:
            data = value.encode("latin-1")
        except UnicodeEncodeError:
            raise _unfit(where, value, _WORDS["bytes"]) from None
        if isinstance(definition, dict) and len(data) != definition.get("size", len(data)):
            raise _unfit(where, value, f"of {definition['size']} bytes")
        return data


def _decimal(digits: Digits, size: int | None, value: Plain, where: str) -> bytes:
    if not isinstance(value, bool) and isinstance(value, int | float | str):
        try:
            # The text of a JSON number has the digits that the line has: 0.1, not the binary fraction beside it.
            return digits.to_bytes(str(value), size)
        except ValueError:
            pass
    wanted = f"a decimal of at most {digits.precision} digits, {digits.scale} of them behind the point"
    raise _unfit(where, value, wanted)


def _require_decimal(definition: Definition, value: str, where: str) -> None:
    """Refuse a text that is no such decimal, if the definition says that the texts are decimals (docs/spark.md)."""
    digits = digits_of(definition, ("string",))
    if digits is not None:
        _decimal(digits, None, value, where)


def _is_integer(value: Plain, kind: str) -> bool:
    bound = _INTEGERS[kind]
    return isinstance(value, int) and not isinstance(value, bool) and -bound <= value < bound


def _is_number(value: Plain, _kind: str) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _never(_value: Plain, _kind: str) -> bool:
    return False


_SIMPLE: Final[Mapping[str, Callable[[Plain, str], bool]]] = {
    "int": _is_integer,
    "long": _is_integer,
    "float": _is_number,
    "double": _is_number,
    "null": lambda value, _kind: value is None,
    "boolean": lambda value, _kind: isinstance(value, bool),
    "string": lambda value, _kind: isinstance(value, str),
}


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _field(where: str) -> str:
    return f"field {where}" if where else "the value"


def _unfit(where: str, value: Plain, wanted: str) -> Unfit:
    shown = repr(value)
    return Unfit(f"{_field(where)} is {shown if len(shown) <= 40 else shown[:39] + '…'}, not {wanted}")
