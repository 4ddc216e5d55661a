"""Schemas of topics over HTTP, for Pulsar's tools: /admin/v2/schemas. A path names a topic of either kind.

A definition is text in both directions. That of a key-value pair is `{"key": K, "value": V}`, where K and V are
definitions in JSON, or "" where a type has none.
"""

from collections.abc import Mapping
from typing import Final

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from broker.administration_contract import TopicService
from broker.errors import NotSupported
from broker.http.parameters import form_topic_of, json_map_of, part_number_of, switch_of
from broker.http.refusals import json_response
from broker.http.resources import Call, Parameter
from broker.names import TopicName
from broker.schema_contract import STRATEGY
from broker.schemas.key_value import joined, parts_of
from broker.schemas.schema import Schema, SchemaType, StoredSchema

_TOPIC: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
_PAYLOAD: Final = '{"type": TYPE, "schema": DEFINITION, "properties": {}}'
_NO_VERSION: Final = -1
"""What Pulsar answers for the version of a schema that is not there."""


def calls(service: TopicService) -> list[Call]:
    """The calls, served by `service`."""
    admin = _SchemaAdmin(service)
    schema = _TOPIC + "/schema"
    return [
        Call("GET", schema, admin.latest, "Show a topic's latest schema.", "The schema.", errors=(404,)),
        Call("GET", schema + "/{version}", admin.version, "Show one version.", "The schema.", errors=(404,)),
        Call(
            *("GET", _TOPIC + "/schemas", admin.all),
            "List the versions of a topic's schema.",
            "The schemas, in order. Deleted ones are left out.",
        ),
        Call(
            *("POST", schema, admin.add),
            "Add a schema as the topic's next version, unless the topic has it. A missing topic is created.",
            '{"version": {"version": N}}',
            body=_PAYLOAD,
            errors=(400, 404, 409),
        ),
        Call(
            *("DELETE", schema, admin.delete),
            "Delete all versions. Stored messages stay readable.",
            '{"version": N}, the last version.',
            (Parameter("force", "Refused, unless it is false.", "boolean"),),
            errors=(404, 501),
        ),
        Call(
            *("POST", _TOPIC + "/compatibility", admin.is_compatible),
            "Tell whether a schema may become the next version.",
            "Whether it may.",
            body=_PAYLOAD,
            errors=(400,),
        ),
        Call(
            *("POST", _TOPIC + "/version", admin.version_of),
            "Tell which version a schema is.",
            '{"version": N}; -1 if the topic does not have it.',
            body=_PAYLOAD,
            errors=(400, 409),
        ),
    ]


class _SchemaAdmin:
    def __init__(self, service: TopicService) -> None:
        self._service = service

    async def latest(self, request: Request) -> Response:
        return json_response(_view(await self._service.schemas.find(_name_of(request), None)))

    async def version(self, request: Request) -> Response:
        name = _name_of(request)
        return json_response(_view(await self._service.schemas.find(name, part_number_of(request, "version"))))

    async def all(self, request: Request) -> Response:
        found = await self._service.schemas.all(_name_of(request))
        return json_response({"getSchemaResponses": [_view(stored) for stored in found]})

    async def add(self, request: Request) -> Response:
        name = _name_of(request)
        version = await self._service.schemas.add(name, await _schema_of(request))
        return json_response({"version": {"version": version}})

    async def delete(self, request: Request) -> Response:
        name = _name_of(request)
        if switch_of(request, "force"):
            raise NotSupported("Stored messages need the versions of their schemas. Leave the parameter force out.")
        return json_response({"version": await self._service.schemas.delete(name)})

    async def is_compatible(self, request: Request) -> Response:
        name = _name_of(request)
        problem = await self._service.schemas.problem(name, await _schema_of(request))
        answer = {"compatibility": problem is None, "schemaCompatibilityStrategy": STRATEGY}
        return json_response(answer if problem is None else {**answer, "reason": problem})

    async def version_of(self, request: Request) -> Response:
        name = _name_of(request)
        version = await self._service.schemas.version_of(name, await _schema_of(request))
        return json_response({"version": _NO_VERSION if version is None else version})


def _name_of(request: Request) -> TopicName:
    return form_topic_of(request).as_regular


def _view(stored: StoredSchema) -> dict[str, object]:
    return {
        "version": stored.version,
        "type": stored.schema.type.name,
        "timestamp": stored.created_ms,
        "data": _text_of(stored.schema),
        "properties": dict(stored.schema.properties),
    }


def _text_of(schema: Schema) -> str:
    if schema.type is not SchemaType.KEY_VALUE:
        return schema.data.decode(errors="replace")
    key, value = map(_json_of, parts_of(schema.data))
    return orjson.dumps({"key": key, "value": value}).decode()


def _json_of(definition: bytes) -> object:
    """A definition as a JSON map, if it is one, or else as text."""
    try:
        content: object = orjson.loads(definition)
    except orjson.JSONDecodeError:
        content = None
    return content if isinstance(content, dict) else definition.decode(errors="replace")


async def _schema_of(request: Request) -> Schema:
    content = await json_map_of(request)
    if content is None:
        raise HTTPException(400, f"The body must be a schema: {_PAYLOAD}.")
    given, definition, properties = (content.get(name) for name in ("type", "schema", "properties"))
    definition = "" if definition is None else definition
    properties = {} if properties is None else properties
    kind = SchemaType.__members__.get(given) if isinstance(given, str) else None
    if kind is None:
        known = ", ".join(SchemaType.__members__)
        raise HTTPException(400, f"{str(given)[:50]!r} is no type of schemas. Choose one of {known}.")
    if not isinstance(definition, str) or not isinstance(properties, Mapping):
        raise HTTPException(400, f"The body must be a schema: {_PAYLOAD}.")
    if not all(isinstance(value, str) for value in properties.values()):
        raise HTTPException(400, "The properties of a schema must be a JSON map of names to texts.")
    return Schema(kind, _data_of(kind, definition), {str(key): str(value) for key, value in properties.items()})


def _data_of(kind: SchemaType, text: str) -> bytes:
    if kind is not SchemaType.KEY_VALUE:
        return text.encode()
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise HTTPException(400, f"The definition of a key-value schema is not valid JSON: {error}.") from None
    if not isinstance(content, dict) or not {"key", "value"} <= content.keys():
        raise HTTPException(400, 'The definition of a key-value schema must be {"key": K, "value": V}.')
    return joined(*(_definition_of(content[part]) for part in ("key", "value")))


def _definition_of(part: object) -> bytes:
    return part.encode() if isinstance(part, str) else orjson.dumps(part)
