"""The types of a record's fields that hold no others: in Python, in Avro and in JSON. Pure.

    field                          definition for Avro      for JSON                 in JSON
    str, bool                      string, boolean          the same                 the same
    int, Annotated[int, "int"]     long, int                the same                 a number
    float, Annotated[float, ...]   double, float            the same                 a number
    bytes                          bytes                    the same                 text in base64
    datetime                       long, timestamp-micros   long, timestamp-millis   a number, rounded down
    date                           int, date                the same                 days since 1970
    Annotated[Decimal, P, S]       bytes, decimal           string, decimal          text; a number is read, too

Values are checked before they are sent: JSON would take any, and a reader of the topic would fail at it. JSON is
written as Pulsar's Java client and Tidewire's Spark sink write it. A decimal has P digits, S of them behind the point.
A datetime has a time zone; one that was received is in UTC.
"""

import base64
import typing
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeAlias

from tidewire.client.decimals import Digits, from_bytes

Value: TypeAlias = Any
"""A field's value, as the program has it or plain."""

Hint: TypeAlias = Any
"""A field's type annotation, or a part of one."""


class Form(NamedTuple):
    """A type: its definition, and how its values become plain ones (dict, list, str, ...) and programs' own again."""

    avro: Value
    to_plain: Callable[[Value], Value]
    from_plain: Callable[[Value], Value]
    to_default: Callable[[Value], Value]
    """Makes what a definition has as the default: JSON, and bytes as text of the characters 0 to 255."""


_FIRST_DAY: Final = date(1970, 1, 1)
_FIRST_MOMENT: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ANNOTATED: Final[Mapping[object, tuple[str, ...]]] = {int: ("int", "long"), float: ("float", "double")}


def leaf_of(hint: Hint, *, in_json: bool) -> Form | None:
    """The form of a field's type; None if there is none.

    Raises:
        TypeError: it is annotated with what is not Avro's name of such a type.
    """
    origin: Hint = typing.get_origin(hint)
    if origin is typing.Annotated:
        plain, *notes = typing.get_args(hint)
        if plain is Decimal:
            return _decimal(notes, in_json=in_json)
        (name, *_) = notes
        if name not in _ANNOTATED.get(plain, ()):
            raise TypeError(f"{name!r} is not an Avro type for {plain}")
        if plain is float:
            return Form(name, _FLOAT, float, _same)
        return Form(name, _INTEGERS[name], _same, _same)
    return (_IN_JSON if in_json else _IN_AVRO).get(hint)


def _same(value: Value) -> Value:
    return value


def kind(kinds: type | tuple[type, ...], words: str) -> Callable[[Value], Value]:
    """A check that a value has one of these types. A bool is no number, although Python has it as an int."""
    is_boolean = kinds is bool

    def checked(value: Value) -> Value:
        if not isinstance(value, kinds) or isinstance(value, bool) is not is_boolean:
            raise ValueError(f"{value!r} is not {words}")
        return value

    return checked


def _integer(bits: int) -> Callable[[Value], Value]:
    bound = 1 << (bits - 1)
    checked = kind(int, "an int")

    def bounded(value: Value) -> Value:
        if not -bound <= checked(value) < bound:
            raise ValueError(f"{value!r} is not an int of {bits} bits")
        return value

    return bounded


_STR: Final = kind(str, "a str")
_BOOL: Final = kind(bool, "a bool")
_LONG: Final = _integer(64)
_FLOAT: Final = kind((float, int), "a float")
_BYTES: Final = kind((bytes, bytearray), "bytes")
_INTEGERS: Final[Mapping[str, Callable[[Value], Value]]] = {"int": _integer(32), "long": _LONG}


def _text(value: Value) -> Value:
    return value.decode("latin-1")


def _bytes(plain: Value) -> Value:
    # Avro lets text become bytes.
    return plain.encode() if isinstance(plain, str) else plain


def _to_base64(value: Value) -> Value:
    return base64.b64encode(_BYTES(value)).decode()


def _from_base64(plain: Value) -> Value:
    return base64.b64decode(plain, validate=True)


def _since(moment: Value, unit: timedelta) -> int:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ValueError(f"{moment!r} is not a datetime with a time zone")
    return (moment - _FIRST_MOMENT) // unit


def _moment(plain: Value, unit: timedelta) -> Value:
    # Avro's library makes a datetime only of what was written with a logical type.
    return plain if isinstance(plain, datetime) else _FIRST_MOMENT + plain * unit


def _date(value: Value) -> Value:
    # A datetime is a date to Python, and has no number of days.
    if not isinstance(value, date) or isinstance(value, datetime):
        raise ValueError(f"{value!r} is not a date")
    return value


def _days(day: Value) -> int:
    return int((_date(day) - _FIRST_DAY).days)


def _day(plain: Value) -> Value:
    return plain if isinstance(plain, date) else _FIRST_DAY + timedelta(plain)


_MILLISECOND: Final = timedelta(milliseconds=1)
_MICROSECOND: Final = timedelta(microseconds=1)
_DATE: Final = {"type": "int", "logicalType": "date"}
_EVERYWHERE: Final[Mapping[object, Form]] = {
    str: Form("string", _STR, _same, _same),
    bool: Form("boolean", _BOOL, _same, _same),
    int: Form("long", _LONG, _same, _same),
    # JSON may hold 1 for 1.0.
    float: Form("double", _FLOAT, float, _same),
}
_IN_AVRO: Final[Mapping[object, Form]] = {
    **_EVERYWHERE,
    bytes: Form("bytes", _BYTES, _bytes, _text),
    datetime: Form(
        {"type": "long", "logicalType": "timestamp-micros"},
        # Checked here, because Avro's library takes a naive one for local time.
        lambda value: _moment(_since(value, _MICROSECOND), _MICROSECOND),
        lambda plain: _moment(plain, _MICROSECOND),
        lambda value: _since(value, _MICROSECOND),
    ),
    date: Form(_DATE, _date, _day, _days),
}
_IN_JSON: Final[Mapping[object, Form]] = {
    **_EVERYWHERE,
    bytes: Form("bytes", _to_base64, _from_base64, _text),
    datetime: Form(
        {"type": "long", "logicalType": "timestamp-millis"},
        lambda value: _since(value, _MILLISECOND),
        lambda plain: _moment(plain, _MILLISECOND),
        lambda value: _since(value, _MILLISECOND),
    ),
    date: Form(_DATE, _days, _day, _days),
}


def _decimal(notes: list[Value], *, in_json: bool) -> Form:
    match notes:
        case [int(precision), int(scale)] if 0 <= scale <= precision > 0:
            pass
        case _:
            raise TypeError(
                "a Decimal is annotated with its digits, and how many are behind the point: [Decimal, 10, 2]"
            )
    digits = Digits(precision, scale)
    definition = {"logicalType": "decimal", "precision": precision, "scale": scale}

    def from_avro(plain: Value) -> Decimal:
        return plain if isinstance(plain, Decimal) else from_bytes(plain, scale)

    def to_default(value: Value) -> str:
        return digits.to_bytes(value).decode("latin-1")

    def to_text(value: Value) -> str:
        return f"{digits.exact(value):f}"

    if in_json:
        return Form({"type": "string", **definition}, to_text, Decimal, to_text)
    return Form({"type": "bytes", **definition}, digits.exact, from_avro, to_default)
