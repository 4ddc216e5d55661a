"""The calls as an OpenAPI 3.1 document. Pure."""

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

from broker.http.resources import JSON, Call, Parameter

_PART: Final = re.compile(r"\{(\w+)\}")
_EVERY_CALL_MAY: Final = (412, 500, 503)

REFUSALS: Final = {
    400: "The body cannot be read as JSON, or lacks something.",
    404: "There is no such thing.",
    405: "It concerns one log, and the topic has several partitions. Name a partition.",
    409: "It exists already, what exists does not allow it, or another change is in progress.",
    412: "A name or parameter is not valid, or the state does not allow the change.",
    500: "The broker failed. Its log says why.",
    501: "This broker does not do that.",
    503: "The broker cannot answer at this moment. Ask again.",
}
"""What a status of a refusal means."""

_PARTS: Final = {
    "tenant": "The tenant, such as public.",
    "namespace": "The namespace without its tenant, such as default.",
    "topic": "The topic's own name, percent-encoded.",
    "subscription": "The subscription, percent-encoded.",
    "segment": "The number of a segment.",
    "first": "The number of a segment.",
    "second": "The number of the segment to merge it with.",
    "descriptor": "The last part of a segment's name, such as 8000-ffff-1.",
    "broker": "The id of a broker.",
    "count": "How many messages, or which one from 1 on.",
    "timestamp": "Milliseconds since 1970.",
    "ledger": "The first part of a message id.",
    "entry": "The second part of a message id.",
    "most": "The first number of a transaction's id.",
    "least": "The second number of a transaction's id.",
    "age": "Milliseconds.",
    "seconds": "An age in seconds.",
    "coordinator": "The number of a coordinator.",
    "version": "The number of a version, from 0 on.",
    "cluster": "The name of the cluster.",
}
"""The variable parts of paths."""


def described(calls: Iterable[Call], *, version: str) -> dict[str, Any]:
    """Describe the calls that are served."""
    paths: dict[str, dict[str, Any]] = {}
    for call in calls:
        if call.is_served:
            paths.setdefault(call.path, {})[call.method.lower()] = _operation(call)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidewire",
            "version": version,
            "description": "The broker's HTTP interface. Paths that Pulsar has mean what they mean there.",
        },
        "paths": paths,
        "components": {
            "schemas": {
                "Refusal": {
                    "type": "object",
                    "required": ["reason"],
                    "properties": {"reason": {"type": "string", "description": "What happened, and what to do."}},
                }
            }
        },
    }


def _operation(call: Call) -> dict[str, Any]:
    parts = _PART.findall(call.path)
    operation: dict[str, Any] = {
        "operationId": _operation_id(call),
        "summary": call.summary,
        "tags": [tag_of(call.path)],
        "parameters": [*map(_part, parts), *map(_parameter, call.parameters)],
        "responses": _responses(call),
    }
    if call.body:
        operation["requestBody"] = {"description": call.body, "content": {JSON: {"schema": {}}}}
    return operation


def _operation_id(call: Call) -> str:
    words = re.findall(r"\w+", call.path.removeprefix("/admin"))
    return "-".join([call.method.lower(), *words])


def tag_of(path: str) -> str:
    """The group of a path: what it is about."""
    parts = path.strip("/").split("/")
    return parts[2] if parts[0] == "admin" else parts[0]


def _part(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "description": _PARTS[name], "schema": {"type": "string"}}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": parameter.type}
    return {
        "name": parameter.name,
        "in": "query",
        "required": parameter.is_required,
        "description": parameter.meaning,
        "schema": {"type": "array", "items": schema} if parameter.is_list else schema,
    }


def _responses(call: Call) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    if call.answer:
        responses["200"] = {"description": call.answer, "content": {call.media_type: {"schema": {}}}}
    if not call.answer or call.is_empty_at_times:
        responses["204"] = {"description": "Done." if not call.answer else "Nothing is set."}
    for status in sorted({*call.errors, *_EVERY_CALL_MAY}):
        responses[str(status)] = {
            "description": f"{HTTPStatus(status).phrase}. {REFUSALS[status]}",
            "content": {JSON: {"schema": {"$ref": "#/components/schemas/Refusal"}}},
        }
    return responses
