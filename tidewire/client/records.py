"""Dataclasses as Avro schemas, and their values as plain ones, for JSON and Avro messages. Pure.

    @dataclass
    class Flight:
        carrier: str
        number: Annotated[int, "int"]         # Avro's int, of 32 bits; a plain int is Avro's long
        delay_minutes: float | None = None

Fields may be those of `record_leaves.py`, another dataclass, a list or a dict[str, ...] of them, and any of these or
None. A field's default is also its default in the schema, so that messages written before the field existed are
readable.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

from tidewire.client.record_leaves import Form, Hint, Value, kind, leaf_of

SUPPORTED: Final = (
    "a field is a str, bool, int, float, bytes, datetime, date, Annotated[Decimal, DIGITS, BEHIND_THE_POINT], a "
    "dataclass, or a list or dict[str, ...] of them, or one of these | None"
)
"""For who names another type."""


class UnfitField(ValueError):
    """A value that does not fit the type of its field. The text names the class and the field."""


def form_of_record(record: type, *, in_json: bool) -> Form:
    """The form of a dataclass, in JSON or in Avro's binary encoding.

    Raises:
        TypeError: it is not a dataclass, or a field's type is not supported.
    """
    return _Forms({}, in_json).of_record(record)


class _Forms(NamedTuple):
    known: dict[str, tuple[type, Form | None]]
    """The records described before, by name. The form is None while a record's description is incomplete."""
    in_json: bool

    def of_record(self, record: type) -> Form:
        if not dataclasses.is_dataclass(record):
            raise TypeError(f"{record!r} is not a dataclass")
        if record.__name__ in self.known:
            record_before, form_before = self.known[record.__name__]
            if form_before is None or record_before is not record:
                raise TypeError(f"{record.__name__} contains itself, or another record of the same name")
            return form_before._replace(avro=record.__name__)
        self.known[record.__name__] = record, None
        hints = typing.get_type_hints(record, include_extras=True)
        forms: dict[str, Form] = {}
        described = []
        required = []
        for field in dataclasses.fields(record):
            form = forms[field.name] = self._of(hints[field.name], f"{record.__name__}.{field.name}")
            entry: dict[str, Any] = {"name": field.name, "type": form.avro}
            default = _default(field)
            if default is dataclasses.MISSING:
                required.append(field.name)
            else:
                entry["default"] = form.to_default(default)
                if isinstance(form.avro, list) and default is not None:
                    # The default of an Avro union must be of the union's first type.
                    entry["type"] = [form.avro[1], form.avro[0]]
            described.append(entry)

        def to_plain(value: Value) -> Value:
            if not isinstance(value, record):
                raise TypeError(f"{value!r} is not a {record.__name__}")
            plain = {}
            for name, form in forms.items():
                try:
                    plain[name] = form.to_plain(getattr(value, name))
                except UnfitField:
                    raise
                except (TypeError, ValueError) as error:
                    raise UnfitField(f"{record.__name__}.{name}: {error}") from error
            return plain

        def from_plain(plain: Value) -> Value:
            # Unknown fields are ignored; missing ones get their defaults.
            given = {name: form.from_plain(plain[name]) for name, form in forms.items() if name in plain}
            try:
                return record(**given)
            except TypeError as error:
                missing = [name for name in required if name not in given]
                if not missing:
                    raise
                fields = ", ".join(f"{record.__name__}.{name}" for name in missing)
                raise ValueError(
                    f"it was written without {fields}, which has no default. Give each field a default in the class,"
                    " such as `= None`"
                ) from error

        form = Form(
            {"type": "record", "name": record.__name__, "fields": described},
            to_plain,
            from_plain,
            lambda value: {name: form.to_default(getattr(value, name)) for name, form in forms.items()},
        )
        self.known[record.__name__] = record, form
        return form

    def _of(self, hint: Hint, where: str) -> Form:
        try:
            leaf = leaf_of(hint, in_json=self.in_json)
        except TypeError as error:
            raise TypeError(f"{where}: {error}") from error
        if leaf is not None:
            return leaf
        origin: Hint = typing.get_origin(hint)
        arguments: tuple[Hint, ...] = typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return self._optional(arguments, where)
        if origin is list:
            inner = self._of(arguments[0], where)
            return Form(
                {"type": "array", "items": inner.avro},
                lambda value: [inner.to_plain(item) for item in _LIST(value)],
                lambda plain: [inner.from_plain(item) for item in plain],
                lambda value: [inner.to_default(item) for item in value],
            )
        if origin is dict and arguments[0] is str:
            inner = self._of(arguments[1], where)
            return Form(
                {"type": "map", "values": inner.avro},
                lambda value: {_key(key): inner.to_plain(item) for key, item in _DICT(value).items()},
                lambda plain: {key: inner.from_plain(item) for key, item in plain.items()},
                lambda value: {key: inner.to_default(item) for key, item in value.items()},
            )
        if dataclasses.is_dataclass(hint):
            return self.of_record(typing.cast("type", hint))
        if hint is Decimal:
            raise TypeError(
                f"{where}: a Decimal needs its number of digits, and how many of them stand behind the point: "
                "Annotated[Decimal, 12, 2]"
            )
        raise TypeError(f"{where}: the type {hint} is not supported; {SUPPORTED}")

    def _optional(self, arguments: tuple[Hint, ...], where: str) -> Form:
        members = [member for member in arguments if member is not type(None)]
        if len(members) != 1 or len(arguments) != 2:
            raise TypeError(f"{where}: a union must be of one type and None")
        inner = self._of(members[0], where)
        return Form(
            ["null", inner.avro],
            lambda value: None if value is None else inner.to_plain(value),
            lambda plain: None if plain is None else inner.from_plain(plain),
            lambda value: None if value is None else inner.to_default(value),
        )


_LIST: Final = kind((list, tuple), "a list")
_DICT: Final = kind(Mapping, "a dict")


def _key(key: Value) -> Value:
    if not isinstance(key, str):
        raise ValueError(f"the key {key!r} is not a str")
    return key


def _default(field: "dataclasses.Field[Value]") -> Value:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
