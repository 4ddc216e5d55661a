"""Pulsar's own calls to look at a message, as `pulsar-admin topics peek-messages` makes them.

The answer is a whole entry. The body is what the producer sent, without compression: a value, or a batch. The header
fields have the rest (`broker.pulsar.tool_view`). These calls count entries: a batch is one. Entries that no consumer
gets are among them. Fields say so, and Pulsar's tools leave them out unless they are told otherwise.
"""

from typing import Final

import trio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from broker.administration_contract import TopicService
from broker.contents import time_text
from broker.http import regular
from broker.http.parameters import form_subscription_of, number_of, part_number_of, required_number_of, topic_of
from broker.http.refusals import json_response
from broker.http.resources import BYTES, Call, Parameter
from broker.names import TopicName
from broker.peek_contract import State, StoredEntry
from storage.position import Position

_TOPIC: Final = regular.PREFIX + "/{tenant}/{namespace}/{topic}"
_ANSWER: Final = "What the entry holds, without compression. Fields named X-Pulsar-... say the rest."

ANSWERS_AT_ONCE: Final = 16
"""Whole entries that are read and sent at the same time. Each is in memory until its client has read it."""

_MARKER_TYPES: Final = {"commit": "21", "abort": "22"}
"""Pulsar's numbers of markers, by the first word of what a marker says."""


def calls(service: TopicService) -> list[Call]:
    """The calls, served by `service`."""
    admin = _ToolPeeks(service)
    places = trio.CapacityLimiter(ANSWERS_AT_ONCE)
    return [
        Call(
            *("GET", _TOPIC + "/subscription/{subscription}/position/{count}", admin.of_subscription),
            "Show an entry that a subscription has not acknowledged, by its number from 1 on. Nothing moves.",
            _ANSWER,
            errors=(404, 405),
            media_type=BYTES,
            places=places,
        ),
        Call(
            *("GET", _TOPIC + "/ledger/{ledger}/entry/{entry}", admin.by_id),
            "Show an entry by its id.",
            _ANSWER,
            errors=(404, 405),
            media_type=BYTES,
            places=places,
        ),
        Call(
            *("GET", _TOPIC + "/examinemessage", admin.by_number),
            "Show an entry by its number, counted from an end of the topic.",
            _ANSWER,
            (
                Parameter("initialPosition", "earliest or latest; latest without it."),
                Parameter("messagePosition", "The number, from 1 on; 1 without it.", "integer"),
            ),
            errors=(404, 405),
            media_type=BYTES,
            places=places,
        ),
        Call(
            *("GET", _TOPIC + "/messageid/{timestamp}", admin.id_at_time),
            "Show the id of the first entry that the broker took at this time or later.",
            "The id; that of the next entry, if there is none yet.",
            errors=(404, 405),
        ),
        Call(
            *("GET", _TOPIC + "/getMessageIdByIndex", admin.id_of_index),
            "Show the id of the entry with the message of an index, which is Kafka's offset.",
            "The id.",
            (Parameter("index", "The index.", "integer", is_required=True),),
            errors=(404, 405),
        ),
    ]


class _ToolPeeks:
    def __init__(self, service: TopicService) -> None:
        self._service = service

    async def of_subscription(self, request: Request) -> Response:
        name, subscription = _name_of(request), form_subscription_of(request)
        number = _from_one(part_number_of(request, "count"))
        return _response(await self._service.messages.entry_of_subscription(name, subscription, number))

    async def by_id(self, request: Request) -> Response:
        position = Position(part_number_of(request, "ledger"), part_number_of(request, "entry"))
        return _response(await self._service.messages.entry(_name_of(request), position))

    async def by_number(self, request: Request) -> Response:
        name, end = _name_of(request), request.query_params.get("initialPosition", "latest")
        if end not in ("earliest", "latest"):
            raise HTTPException(412, f"The parameter initialPosition must be earliest or latest, not {end[:50]!r}.")
        number = number_of(request, "messagePosition")
        number = 1 if number is None else _from_one(number)
        return _response(await self._service.messages.entry_by_number(name, number, from_end=end == "latest"))

    async def id_at_time(self, request: Request) -> Response:
        name = _name_of(request)
        return _id_response(
            name, await self._service.messages.place_at_time(name, part_number_of(request, "timestamp"))
        )

    async def id_of_index(self, request: Request) -> Response:
        name = _name_of(request)
        return _id_response(
            name, await self._service.messages.place_of_index(name, required_number_of(request, "index"))
        )


def _name_of(request: Request) -> TopicName:
    return topic_of(request).as_regular


def _id_response(name: TopicName, place: Position) -> Response:
    index = name.partition_index
    return json_response(
        {"ledgerId": place.ledger, "entryId": place.entry, "partitionIndex": -1 if index is None else index}
    )


def _from_one(number: int) -> int:
    if number < 1:
        raise HTTPException(412, "Messages are counted from 1 on. Give a higher number.")
    return number


def _response(stored: StoredEntry) -> Response:
    fields = [
        ("X-Pulsar-Message-ID", str(stored.position)),
        ("X-Pulsar-Broker-Entry-METADATA-timestamp", time_text(stored.stored_ms)),
        ("X-Pulsar-Broker-Entry-METADATA-index", str(stored.first_index + max(stored.messages, 1) - 1)),
        *stored.view.fields,
    ]
    if stored.state is State.MARKER:
        fields.append(("X-Pulsar-marker-type", _MARKER_TYPES.get(stored.says.partition(" ")[0], "0")))
    elif stored.state is State.ABORTED:
        fields.append(("X-Pulsar-txn-aborted", "true"))
    elif stored.state is State.OPEN or not stored.is_readable:
        fields.append(("X-Pulsar-txn-uncommitted", "true"))
    response = Response(stored.view.body, media_type=BYTES)
    # Starlette would write the names in small letters, and Pulsar's tools read them as they are.
    response.raw_headers += [(name.encode(), text.encode()) for name, text in fields]
    return response
