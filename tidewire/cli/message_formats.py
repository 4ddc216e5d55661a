"""How `tidewire consume` prints a message: as its value, as JSON, or by a template with the letters of kcat. Pure.

Values are decoded by the schema that each message was written with. Text stays text, and bytes stay bytes. Everything
else is printed as JSON. Decimals within it become text such as "12.30", and bytes become text with one character for
each byte, as in Avro's JSON encoding.
"""

import base64
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tidewire.cli.endings import UsageError

if TYPE_CHECKING:
    import tidewire

Format: TypeAlias = "Callable[[tidewire.Message[Any]], bytes]"
"""Returns what is printed for a message, with the end of its line."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_ESCAPES: Final[Mapping[str, bytes]] = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


def format_of(text: str | None) -> Format:
    """The format that `--format` names: a line for each value without one, `json`, or a template.

    Raises:
        UsageError: the template has a letter that is not known.
    """
    if text is None:
        return lambda message: value_of(message) + b"\n"
    if text == "json":
        return lambda message: described(message) + b"\n"
    parts = _parts_of(text)
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts)


def value_of(message: "tidewire.Message[Any]") -> bytes:
    """The value as it is printed; nothing for a null message."""
    if message.is_null:
        return b""
    value = message.value
    if isinstance(value, bytes | str):
        return message.data
    return _json(value)


def described(message: "tidewire.Message[Any]") -> bytes:
    """A message as one line of JSON. Bytes that are not UTF-8 are in base64, as `value_base64`."""
    from tidewire.cli.message_ids import NO_SEGMENT, text_of

    message_id = message.message_id
    value: Mapping[str, Any] = {"value": None if message.is_null else message.value}
    if isinstance(value["value"], bytes):
        try:
            value = {"value": message.value.decode()}
        except UnicodeDecodeError:
            value = {"value_base64": base64.b64encode(message.value).decode("ascii")}
    place: dict[str, Any] = {"topic": message.topic, "ledger": message_id.ledger_id, "entry": message_id.entry_id}
    if message_id.batch_index >= 0:
        place["batch_index"] = message_id.batch_index
    if message_id.segment_id != NO_SEGMENT:
        place["segment"] = message_id.segment_id
    return _json(
        {
            "key": message.key,
            **value,
            "properties": dict(message.properties),
            "event_time": None if message.event_time_ms is None else _moment(message.event_time_ms),
            "publish_time": _moment(message.publish_time_ms),
            **place,
            "id": text_of(message_id),
        }
    )


def _json(value: Any) -> bytes:  # noqa: ANN401 - of any schema
    return json.dumps(value, ensure_ascii=False, default=_as_text).encode(errors="replace")


def _as_text(value: bytes | Decimal) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else f"{value:f}"


def _moment(since_epoch_ms: int) -> str | int:
    try:
        return (_EPOCH + timedelta(milliseconds=since_epoch_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        # Some producers send numbers beyond the calendar's range.
        return since_epoch_ms


def _id_text(message: "tidewire.Message[Any]") -> bytes:
    from tidewire.cli.message_ids import text_of

    return text_of(message.message_id).encode()


def _position_text(message: "tidewire.Message[Any]") -> bytes:
    from tidewire.cli.message_ids import position_text

    return position_text(message.message_id.position).encode()


def _properties(message: "tidewire.Message[Any]") -> bytes:
    return ",".join(f"{name}={text}" for name, text in message.properties.items()).encode()


_LETTERS: Final[Mapping[str, Format]] = {
    "s": value_of,
    "S": lambda message: b"-1" if message.is_null else b"%d" % len(message.data),
    "k": lambda message: (message.key or "").encode(),
    "K": lambda message: b"-1" if message.key is None else b"%d" % len(message.key.encode()),
    "t": lambda message: message.topic.encode(),
    "p": lambda message: b"%d" % message.message_id.segment_id,
    "o": _position_text,
    "i": _id_text,
    "T": lambda message: b"%d" % message.publish_time_ms,
    "e": lambda message: b"" if message.event_time_ms is None else b"%d" % message.event_time_ms,
    "h": _properties,
    "%": lambda _message: b"%",
}
"""The letters after %, as kcat has them where it has them. A length of -1 means null, as in kcat."""


def _parts_of(template: str) -> "list[bytes | Format]":
    parts: list[bytes | Format] = []
    letters = iter(template)
    for letter in letters:
        if letter == "%":
            named = next(letters, "")
            if named not in _LETTERS:
                raise UsageError(f"--format has %{named}, which is not known. Known are %{', %'.join(_LETTERS)}.")
            parts.append(_LETTERS[named])
        elif letter == "\\":
            named = next(letters, "")
            if named not in _ESCAPES:
                raise UsageError(f"--format has \\{named}, which is not known. Known are \\n, \\r, \\t, \\0 and \\\\.")
            parts.append(_ESCAPES[named])
        else:
            parts.append(letter.encode(errors="surrogateescape"))
    return parts
