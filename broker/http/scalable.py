"""Administration of scalable topics over HTTP, as Pulsar's clients ask for it (PIP-460): /admin/v2/scalable.

    PUT    /{tenant}/{namespace}/{topic}?numInitialSegments=N     create; body: JSON map of properties, may be empty
    GET    /{tenant}/{namespace}?property=key=value               names of the topics with all these properties
    GET    /{tenant}/{namespace}/{topic}                          the layout
    GET    /{tenant}/{namespace}/{topic}/stats
    DELETE /{tenant}/{namespace}/{topic}?force=true
    POST   /{tenant}/{namespace}/{topic}/split/{segment}
    POST   /{tenant}/{namespace}/{topic}/merge/{segment}/{segment}

Changes answer 204. Refusals carry a reason (see `refusals`): 404 what is named is not there, 409 it is there already or
is being changed, 412 the name, a parameter or the layout does not allow it, 400 the body is not what it should be.
What Pulsar has below a topic and this broker has not answers 501, which no client takes for a missing topic.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Final
from urllib.parse import unquote_to_bytes

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from broker.errors import NotSupported, UnknownSegment
from broker.http.refusals import json_response
from broker.http.service import TopicService, TopicStatistics
from broker.names import SEGMENT_ID_MAX, Domain, InvalidTopicName, TopicName
from broker.scalable.layout_record import admin_view

PREFIX: Final = "/admin/v2/scalable"
_NAMESPACE: Final = PREFIX + "/{tenant}/{namespace}"
_TOPIC: Final = _NAMESPACE + "/{topic}"
BODY_BYTES_MAX: Final = 1024 * 1024
"""The largest request body that is read; beyond it the answer is 413."""
_EVERY_METHOD: Final = ["GET", "PUT", "POST", "DELETE"]


def routes(service: TopicService) -> list[BaseRoute]:
    """The routes above, served by `service`."""
    admin = _ScalableAdmin(service)
    served: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
        ("GET", _NAMESPACE, admin.names),
        ("PUT", _TOPIC, admin.create),
        ("GET", _TOPIC, admin.layout),
        ("DELETE", _TOPIC, admin.delete),
        ("GET", _TOPIC + "/stats", admin.statistics),
        ("POST", _TOPIC + "/split/{segment}", admin.split),
        ("POST", _TOPIC + "/merge/{first}/{second}", admin.merge),
    ]
    return [
        *(Route(path, endpoint, methods=[method]) for method, path, endpoint in served),
        Route(_TOPIC + "/{rest:path}", admin.unsupported, methods=_EVERY_METHOD),
    ]


class _ScalableAdmin:
    def __init__(self, service: TopicService) -> None:
        self._service = service

    async def names(self, request: Request) -> Response:
        _check_path(request)
        tenant, namespace = request.path_params["tenant"], request.path_params["namespace"]
        # Naming any topic checks the namespace's own name.
        TopicName(Domain.TOPIC, tenant, namespace, "any")
        filters = dict(_property(text) for text in request.query_params.getlist("property"))
        return json_response(sorted(str(name) for name in await self._service.topics(tenant, namespace, filters)))

    async def create(self, request: Request) -> Response:
        name = _topic(request)
        count = request.query_params.get("numInitialSegments")
        segments = None if count is None else _number(count, "numInitialSegments")
        await self._service.create_topic(name, segments=segments, properties=_properties(await _body(request)))
        return Response(status_code=204)

    async def layout(self, request: Request) -> Response:
        return json_response(admin_view(await self._service.layout(_topic(request))))

    async def delete(self, request: Request) -> Response:
        name = _topic(request)
        await self._service.delete_topic(name, force=_switch(request.query_params.get("force", "false"), "force"))
        return Response(status_code=204)

    async def statistics(self, request: Request) -> Response:
        name = _topic(request)
        return json_response(_statistics_view(name, await self._service.statistics(name)))

    async def split(self, request: Request) -> Response:
        await self._service.split(_topic(request), _segment_id(request.path_params["segment"]))
        return Response(status_code=204)

    async def merge(self, request: Request) -> Response:
        name = _topic(request)
        first, second = _segment_id(request.path_params["first"]), _segment_id(request.path_params["second"])
        await self._service.merge(name, first, second)
        return Response(status_code=204)

    async def unsupported(self, request: Request) -> Response:
        _topic(request)
        raise NotSupported(f"This broker does not offer {request.method} {request.path_params['rest']} of a topic.")


def _check_path(request: Request) -> None:
    """Refuse a path whose decoded form, by which the route was chosen, says something else than what was sent.

    An encoded slash would make `x%2Fsplit/1` a command for topic `x`, and bytes that are no UTF-8 would all decode to
    the same replacement character.
    """
    path = request.url.path
    for part in request.scope["raw_path"].split(b"/"):
        try:
            text = unquote_to_bytes(part).decode()
        except UnicodeDecodeError:
            raise InvalidTopicName(path, "a name is encoded as UTF-8") from None
        if "/" in text:
            raise InvalidTopicName(path, "a name holds no /, encoded or not")


def _topic(request: Request) -> TopicName:
    _check_path(request)
    params = request.path_params
    return TopicName(Domain.TOPIC, params["tenant"], params["namespace"], params["topic"])


def _number(text: str, what: str) -> int:
    # Bounded, as Python refuses to convert thousands of digits.
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(SEGMENT_ID_MAX))):
        raise HTTPException(412, f"{what} must be a whole number, not {text[:50]!r}.")
    return int(text)


def _segment_id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(SEGMENT_ID_MAX))):
        raise UnknownSegment(f"A segment is named by its number, not {text[:50]!r}.")
    return int(text)


def _switch(text: str, what: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise HTTPException(412, f"{what} must be true or false, not {text[:50]!r}.")
    return text.lower() == "true"


def _property(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not (key and separator and value):
        raise HTTPException(412, f"A property to look for is written as key=value, not {text[:50]!r}.")
    return key, value


async def _body(request: Request) -> bytes:
    body = bytearray()
    if int(request.headers.get("content-length", "0")) <= BODY_BYTES_MAX:
        async with aclosing(request.stream()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > BODY_BYTES_MAX:
                    break
            else:
                return bytes(body)
    raise HTTPException(413, f"The body may be {BODY_BYTES_MAX} bytes long, no longer.")


def _properties(body: bytes) -> Mapping[str, str]:
    if not body.strip():
        return {}
    try:
        properties = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise HTTPException(400, f"The body is not JSON: {error}.") from None
    if properties is None:
        return {}
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise HTTPException(400, "The body must be a JSON map of property names to texts.")
    return properties


def _statistics_view(name: TopicName, statistics: TopicStatistics) -> dict[str, object]:
    layout = statistics.layout
    active = len(layout.active())
    return {
        "epoch": layout.epoch,
        "totalSegments": len(layout.segments),
        "activeSegments": active,
        "sealedSegments": len(layout.segments) - active,
        "segments": {
            str(segment.id): {
                "name": segment.legacy_topic_name or str(name.segment_name(segment.descriptor)),
                "state": segment.state.value,
            }
            for segment in layout.segments.values()
        },
        "subscriptions": {
            subscription: {
                "type": counted.kind.value,
                "consumerCount": counted.consumers,
                "msgBacklog": counted.backlog_entries,
            }
            for subscription, counted in statistics.subscriptions.items()
        },
    }
