"""Dataclasses as Avro schemas, and their values as plain ones, for JSON and Avro messages. Pure.

    @dataclass
    class Flight:
        carrier: str
        number: Annotated[int, "int"]         # Avro's int, of 32 bits; a plain int is Avro's long
        delay_minutes: float | None = None

Fields may be str, bytes, bool, int, float, another dataclass, a list or a dict[str, ...] of them, and any of these or
None. A field's default is also its default in the schema, so that messages written before the field existed are
readable.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

_PRIMITIVES: Final[dict[object, str]] = {
    str: "string",
    bytes: "bytes",
    bool: "boolean",
    int: "long",
    float: "double",
}
_ANNOTATED: Final[dict[object, tuple[str, ...]]] = {int: ("int", "long"), float: ("float", "double")}

Value: TypeAlias = Any
"""A field's value, as the program has it or plain."""

Hint: TypeAlias = Any
"""A field's type annotation, or a part of one."""


class Form(NamedTuple):
    """A type: its Avro schema, and the conversions of its values to plain ones (dict, list, str, ...) and back."""

    avro: Value
    to_plain: Callable[[Value], Value]
    from_plain: Callable[[Value], Value]


def _same(value: Value) -> Value:
    return value


def _bytes(plain: Value) -> Value:
    return plain.encode("latin-1") if isinstance(plain, str) else plain


_FROM_PLAIN: Final[dict[object, Callable[[Value], Value]]] = {float: float, bytes: _bytes}
"""JSON may hold 1 for 1.0, and holds text for bytes."""


def form_of_record(record: type) -> Form:
    """The form of a dataclass.

    Raises:
        TypeError: it is not a dataclass, or a field's type is not supported.
    """
    return _record(record, {})


def _record(record: type, known: "dict[str, tuple[type, Form | None]]") -> Form:
    # `known`: the records described before, by name. The form is None while a record's description is incomplete.
    if not dataclasses.is_dataclass(record):
        raise TypeError(f"{record!r} is not a dataclass")
    if record.__name__ in known:
        record_before, form_before = known[record.__name__]
        if form_before is None or record_before is not record:
            raise TypeError(f"{record.__name__} contains itself, or another record of the same name")
        return form_before._replace(avro=record.__name__)
    known[record.__name__] = record, None
    hints = typing.get_type_hints(record, include_extras=True)
    forms: dict[str, Form] = {}
    described = []
    for field in dataclasses.fields(record):
        form = forms[field.name] = _form(hints[field.name], known, f"{record.__name__}.{field.name}")
        entry: dict[str, Any] = {"name": field.name, "type": form.avro}
        default = _default(field)
        if default is not dataclasses.MISSING:
            entry["default"] = form.to_plain(default)
            if isinstance(form.avro, list) and default is not None:
                # The default of an Avro union must be of the union's first type.
                entry["type"] = [form.avro[1], form.avro[0]]
            if isinstance(entry["default"], bytes):
                entry["default"] = entry["default"].decode("latin-1")
        described.append(entry)

    def to_plain(value: Value) -> Value:
        if not isinstance(value, record):
            raise TypeError(f"{value!r} is not a {record.__name__}")
        return {name: form.to_plain(getattr(value, name)) for name, form in forms.items()}

    def from_plain(plain: Value) -> Value:
        # Unknown fields are ignored; missing ones get their defaults.
        return record(**{name: form.from_plain(plain[name]) for name, form in forms.items() if name in plain})

    form = Form({"type": "record", "name": record.__name__, "fields": described}, to_plain, from_plain)
    known[record.__name__] = record, form
    return form


def _default(field: "dataclasses.Field[Value]") -> Value:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _form(hint: Hint, known: "dict[str, tuple[type, Form | None]]", where: str) -> Form:
    origin: Hint = typing.get_origin(hint)
    arguments: tuple[Hint, ...] = typing.get_args(hint)
    if hint in _PRIMITIVES:
        return Form(_PRIMITIVES[hint], _same, _FROM_PLAIN.get(hint, _same))
    if origin is typing.Annotated:
        plain, name = arguments[0], arguments[1]
        if name in _ANNOTATED.get(plain, ()):
            return Form(name, _same, _FROM_PLAIN.get(plain, _same))
        raise TypeError(f"{where}: {name!r} is not an Avro type for {plain}")
    if origin in (typing.Union, types.UnionType):
        return _optional([member for member in arguments if member is not type(None)], arguments, known, where)
    if origin is list:
        inner = _form(arguments[0], known, where)
        return Form(
            {"type": "array", "items": inner.avro},
            lambda value: [inner.to_plain(item) for item in value],
            lambda plain: [inner.from_plain(item) for item in plain],
        )
    if origin is dict and arguments[0] is str:
        inner = _form(arguments[1], known, where)
        return Form(
            {"type": "map", "values": inner.avro},
            lambda value: {key: inner.to_plain(item) for key, item in value.items()},
            lambda plain: {key: inner.from_plain(item) for key, item in plain.items()},
        )
    if dataclasses.is_dataclass(hint):
        return _record(typing.cast("type", hint), known)
    raise TypeError(f"{where}: the type {hint} is not supported")


def _optional(
    members: list[Hint], arguments: tuple[Hint, ...], known: "dict[str, tuple[type, Form | None]]", where: str
) -> Form:
    if len(members) != 1 or len(arguments) != 2:
        raise TypeError(f"{where}: a union must be of one type and None")
    inner = _form(members[0], known, where)
    return Form(
        ["null", inner.avro],
        lambda value: None if value is None else inner.to_plain(value),
        lambda plain: None if plain is None else inner.from_plain(plain),
    )


def plain_with_text(plain: Value) -> Value:
    """The same value with bytes as JSON has them: text of the characters 0 to 255."""
    if isinstance(plain, bytes):
        return plain.decode("latin-1")
    if isinstance(plain, Mapping):
        return {key: plain_with_text(item) for key, item in plain.items()}
    if isinstance(plain, list):
        return [plain_with_text(item) for item in plain]
    return plain
