"""Headers of Kafka's records as properties of Pulsar's messages, and back.

A header's value is bytes or null, and names may repeat. A property's value is text, and clients keep one for each name.
So most headers are properties as they are. The others are escaped in the name of their property:

    kafka:<marks>:<name>

| mark | meaning |
|---|---|
| a number from 2 on | the header is the second, third ... of its name |
| `name64` | the name is not UTF-8; the property has it in base64 |
| `base64` | the value is not UTF-8; the property has it in base64 |
| `null` | the value is null; the property's is empty |

Marks stand in this order, with commas between them. There may be none: `kafka::x` is a header whose own name, `x`, has
the form of an escape. For example, a third `sig` with the bytes 00 FF is the property `kafka:3,base64:sig`, `AP8=`. The
numbers keep repeated headers in order where clients do not keep the order of properties. Applications of Pulsar may use
these names to send such headers. A name with other marks, or a value that is not base64, is no escape.

Pulsar's ordering key is the header `pulsar:ordering_key`, the first one of this name.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tidewire.wire.kafka.records import Header

ORDERING_KEY: Final = b"pulsar:ordering_key"

HEADERS_MAX: Final = 2_000
"""The most headers or properties of a message that is converted. One step of an event loop converts so many (E7)."""

_PREFIX: Final = "kafka:"
_NEXT: Final = r"(?:,(?!\Z)|\Z)"
_MARKS: Final = re.compile(rf"(?:([2-9]|[1-9][0-9]{{1,4}}){_NEXT})?(?:(name64){_NEXT})?(base64|null)?")


class Described(NamedTuple):
    """What a Pulsar message has in place of headers."""

    properties: list[tuple[str, str]]
    ordering_key: bytes | None


class _Escape(NamedTuple):
    """What the name of an escaped property says."""

    number: int
    name: str
    is_name_base64: bool
    form: str | None
    """How the value is written: `base64`, `null`, or None for text."""


def properties_of(headers: Sequence[Header]) -> Described:
    """The properties that stand for these headers, and the ordering key if it is among them."""
    made: list[tuple[str, str]] = []
    ordering_key = None
    counts: dict[bytes, int] = {}
    for name, value in headers:
        number = counts[name] = counts.get(name, 0) + 1
        if number == 1 and value is not None:
            if name == ORDERING_KEY:
                ordering_key = value
                continue
            try:
                own, text = name.decode(), value.decode()
            except UnicodeDecodeError:
                pass
            else:
                if _escape_in(own) is None:
                    made.append((own, text))
                    continue
        made.append(_escaped(name, value, number))
    return Described(made, ordering_key)


def headers_of(properties: Iterable[tuple[str | bytes, str | bytes]], ordering_key: bytes | None) -> tuple[Header, ...]:
    """The headers for which these properties and this ordering key stand. Text that is not UTF-8 may be given as bytes.

    They keep the order of the properties. Headers of one name follow each other by their numbers.
    """
    made = [] if ordering_key is None else [(1, Header(ORDERING_KEY, ordering_key))]
    made += [_header(name, value) for name, value in properties]
    if any(number > 1 for number, _header in made):
        _order_by_number(made)
    return tuple([header for _number, header in made])


def _escaped(name: bytes, value: bytes | None, number: int) -> tuple[str, str]:
    marks = [str(number)] if number > 1 else []
    own, text = _text(name), _text(value or b"")
    if own is None:
        marks.append("name64")
        own = b64encode(name).decode()
    if value is None:
        marks.append("null")
    elif text is None:
        marks.append("base64")
        text = b64encode(value).decode()
    return f"{_PREFIX}{','.join(marks)}:{own}", text or ""


def _header(name: str | bytes, value: str | bytes) -> tuple[int, Header]:
    escape = None if isinstance(name, bytes) else _escape_in(name)
    if escape is not None:
        try:
            return escape.number, Header(_name_in(escape), _value_in(escape, value))
        except ValueError:
            # It is not base64, so it is no escape.
            pass
    return 1, Header(_raw(name), _raw(value))


def _name_in(escape: _Escape) -> bytes:
    return b64decode(escape.name, validate=True) if escape.is_name_base64 else escape.name.encode()


def _value_in(escape: _Escape, value: str | bytes) -> bytes | None:
    match escape.form:
        case "null":
            return None
        case "base64":
            return b64decode(value, validate=True)
        case _:
            return _raw(value)


def _escape_in(name: str) -> _Escape | None:
    if not name.startswith(_PREFIX):
        return None
    marks, colon, own = name[len(_PREFIX) :].partition(":")
    found = _MARKS.fullmatch(marks) if colon else None
    if found is None:
        return None
    number, name64, form = found.groups()
    return _Escape(int(number or 1), own, name64 is not None, form)


def _order_by_number(made: list[tuple[int, Header]]) -> None:
    """Sort the headers of each name among the places that they have together."""
    places: dict[bytes, list[int]] = {}
    for place, (_number, header) in enumerate(made):
        places.setdefault(header.key, []).append(place)
    for its in places.values():
        ordered = sorted([made[place] for place in its], key=lambda numbered: numbered[0])
        for place, numbered in zip(its, ordered, strict=True):
            made[place] = numbered


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _raw(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
