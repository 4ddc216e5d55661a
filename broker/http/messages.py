"""Peeking at messages over HTTP: a page of one log, as people ask for it.

    GET /admin/v2/persistent/{tenant}/{namespace}/{topic}/messages?from=latest&count=20
    GET /admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}/messages?from=5:0

Pulsar has no such path. A peek moves nothing (`broker.peek_contract`).
"""

import re
from base64 import b64encode
from collections.abc import Callable
from typing import Final

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from broker.administration_contract import TopicService
from broker.http import regular, segments
from broker.http.parameters import number_of, segment_of, topic_of
from broker.http.refusals import json_response
from broker.http.resources import Call, Parameter
from broker.names import TopicName
from broker.peek_contract import (
    COUNT_MAX,
    COUNT_USUAL,
    TEXT_MAX,
    VALUE_BYTES_MAX,
    VALUE_BYTES_USUAL,
    Asked,
    Page,
    Place,
    Row,
)
from storage.entry import EntryFormat
from storage.position import EARLIEST, Position

_LOG: Final = "/{tenant}/{namespace}/{topic}"
_PLACE: Final = re.compile(r"(\d{1,18}):(\d{1,18})(?::(\d{1,9}))?", re.ASCII)
_TIME: Final = re.compile(r"\d{1,16}", re.ASCII)
_FROM: Final = "earliest, latest, a position such as 5:0 or 5:0:3, or a time in milliseconds since 1970"

PARAMETERS: Final = (
    Parameter("from", f"Where the page begins: {_FROM}. Without it, the page has the newest messages."),
    Parameter("before", "In place of from: the position behind the last message of the page."),
    Parameter("count", f"At most so many messages, from 1 to {COUNT_MAX}; {COUNT_USUAL} without it.", "integer"),
    Parameter(
        "bytes",
        f"At most so many bytes of each value, up to {VALUE_BYTES_MAX}; {VALUE_BYTES_USUAL} without it.",
        "integer",
    ),
)


def calls(service: TopicService) -> list[Call]:
    """The calls, served by `service`."""
    answer = "A page of messages, oldest first, and where the pages before and behind it are."
    admin = _MessageAdmin(service)
    return [
        Call(
            *("GET", regular.PREFIX + _LOG + "/messages", admin.regular),
            "Look at the messages of a regular topic or partition. Nothing moves.",
            answer,
            PARAMETERS,
            errors=(404, 405),
        ),
        Call(
            *("GET", segments.PREFIX + _LOG + "/{descriptor}/messages", admin.segment),
            "Look at the messages of a segment. Nothing moves.",
            answer,
            PARAMETERS,
            errors=(404,),
        ),
    ]


class _MessageAdmin:
    def __init__(self, service: TopicService) -> None:
        self._service = service

    async def regular(self, request: Request) -> Response:
        return await self._page(request, lambda request: topic_of(request).as_regular)

    async def segment(self, request: Request) -> Response:
        return await self._page(request, segment_of)

    async def _page(self, request: Request, name_of: Callable[[Request], TopicName]) -> Response:
        name, asked = name_of(request), asked_of(request)
        return json_response(page_view(name, await self._service.messages.page(name, asked)))


def asked_of(request: Request) -> Asked:
    """Return what the parameters ask for."""
    start, before = request.query_params.get("from"), request.query_params.get("before")
    if start is not None and before is not None:
        raise HTTPException(412, "Give one of the parameters from and before.")
    count = _between(request, "count", 1, COUNT_MAX, COUNT_USUAL)
    value_bytes = _between(request, "bytes", 0, VALUE_BYTES_MAX, VALUE_BYTES_USUAL)
    if before is not None:
        return Asked(before=_place_of("before", before), count=count, value_bytes=value_bytes)
    if start is None or start == "latest":
        return Asked(count=count, value_bytes=value_bytes)
    if start == "earliest":
        return Asked(start=Place(EARLIEST), count=count, value_bytes=value_bytes)
    if _TIME.fullmatch(start):
        return Asked(time_ms=int(start), count=count, value_bytes=value_bytes)
    return Asked(start=_place_of("from", start), count=count, value_bytes=value_bytes)


def _between(request: Request, name: str, low: int, high: int, default: int) -> int:
    number = number_of(request, name)
    if number is None:
        return default
    if not low <= number <= high:
        raise HTTPException(412, f"The parameter {name} must be from {low} to {high}, not {number}.")
    return number


def _place_of(name: str, text: str) -> Place:
    found = _PLACE.fullmatch(text)
    if found is None:
        known = _FROM if name == "from" else "a position such as 5:0 or 5:0:3"
        raise HTTPException(412, f"The parameter {name} must be {known}. It is not {text[:50]!r}.")
    ledger, entry, number = found.groups()
    return Place(Position(int(ledger), int(entry)), int(number or 0))


def page_view(name: TopicName, page: Page) -> dict[str, object]:
    """A page in JSON."""
    return {
        "topic": str(name),
        "messages": [row_view(row) for row in page.rows],
        "older": str(page.start) if page.has_older else None,
        "newer": str(page.end),
        "hasNewer": page.has_newer,
        "first": str(page.first),
        "confirmed": str(page.confirmed),
        "readable": str(page.readable),
        "sealed": page.is_sealed,
    }


def row_view(row: Row) -> dict[str, object]:
    """A message in JSON. What it has not is left out."""
    found: dict[str, object] = {
        "position": str(row.position) if row.number is None else f"{row.position}:{row.number}",
        "state": row.state,
        "messages": row.messages,
        "index": row.index,
        "storedTime": row.stored_ms,
        "format": row.format.name.lower(),
        "transaction": None if row.txn is None else _transaction(row),
        "compression": row.compression,
        "problem": row.problem,
        "until": None if row.last is None else str(row.last),
    }
    if row.part is not None:
        found["part"] = {
            "message": row.part.message,
            "number": row.part.number,
            "parts": row.part.parts,
            "size": row.part.size_bytes,
        }
    found.update(_content_view(row))
    return {name: value for name, value in found.items() if value is not None}


def _transaction(row: Row) -> str:
    assert row.txn is not None, "the caller checks it"
    if row.format is EntryFormat.KAFKA:
        return f"producer {row.txn.most}, epoch {row.txn.least}"
    return row.txn.shown


def _content_view(row: Row) -> dict[str, object]:
    content = row.content
    if content is None:
        return {}
    found: dict[str, object] = {
        "producer": content.producer,
        "sequenceId": content.sequence_id,
        "publishTime": content.publish_ms,
        "eventTime": content.event_ms,
        "properties": dict(content.properties),
        "propertiesLeftOut": row.properties - len(content.properties) or None,
        "size": row.size_bytes,
        **_bytes_view("key", content.key),
        **_bytes_view("orderingKey", content.ordering_key),
    }
    value = content.value
    if value is None:
        found["isNull"] = True
    else:
        found["payload"] = b64encode(value).decode()
        found["cut"] = len(value) < row.size_bytes or None
        found["text"] = _text(value, is_cut=len(value) < row.size_bytes)
    if row.schema is not None:
        by = row.schema
        schema = {"version": by.version, "type": by.type, "named": by.is_named, "problem": by.problem}
        found["schema"] = {name: value for name, value in schema.items() if value is not None}
        if row.value is not None:
            # It is not encoded again: inside the page, a value could be nested too deep for that.
            found["value"] = orjson.Fragment(row.value)
    return found


def _bytes_view(name: str, data: bytes | None) -> dict[str, object]:
    if data is None:
        return {}
    text = _text(data, is_cut=len(data) >= TEXT_MAX)
    return {name: text} if text is not None else {name + "Base64": b64encode(data).decode()}


_CUT_MAX: Final = 3
"""Bytes that the last character may lack where a text was cut."""


def _text(data: bytes, *, is_cut: bool) -> str | None:
    """The bytes as text; None if they are none. A character that was cut at the end is left out."""
    for lacking in range(_CUT_MAX + 1 if is_cut else 1):
        try:
            text = data[: len(data) - lacking].decode()
        except UnicodeDecodeError:
            continue
        return text if text.isprintable() or all(c.isprintable() or c in "\t\r\n" for c in text) else None
    return None
