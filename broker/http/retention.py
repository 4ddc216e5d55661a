"""Retention policies of namespaces and topics over HTTP, in Pulsar's format.

A topic's policy applies to each of its partitions or segments. GET answers 204 if no policy is set. -1 means no limit.
If both values are 0, acknowledged messages are not kept.
"""

from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from broker.http.parameters import json_map_of, namespace_of, topic_of
from broker.http.refusals import done, json_response
from broker.http.resources import Call
from broker.retention import retention_of
from broker.retention_policies import RetentionPolicies, namespace_key, topic_key

_TOPICS: Final = ("/admin/v2/persistent", "/admin/v2/scalable")


def calls(policies: RetentionPolicies) -> list[Call]:
    """The calls."""
    admin = _RetentionAdmin(policies)
    served = admin.calls("/admin/v2/namespaces/{tenant}/{namespace}/retention", "a namespace", _namespace_key_of)
    for prefix in _TOPICS:
        served += admin.calls(prefix + "/{tenant}/{namespace}/{topic}/retention", "a topic", _topic_key_of)
    return served


def _topic_key_of(request: Request) -> str:
    return topic_key(topic_of(request))


def _namespace_key_of(request: Request) -> str:
    return namespace_key(*namespace_of(request))


class _RetentionAdmin:
    def __init__(self, policies: RetentionPolicies) -> None:
        self._policies = policies

    def calls(self, path: str, what: str, key_of: Callable[[Request], str]) -> list[Call]:
        async def show(request: Request) -> Response:
            policy = await self._policies.stored(key_of(request))
            return done() if policy is None else json_response(policy.to_json())

        async def replace(request: Request) -> Response:
            key = key_of(request)
            await self._policies.store(key, retention_of(await json_map_of(request)))
            return done()

        async def remove(request: Request) -> Response:
            await self._policies.store(key_of(request), None)
            return done()

        fields = "{retentionTimeInMinutes, retentionSizeInMB}; -1 means no limit"
        return [
            Call("GET", path, show, f"Show the retention policy of {what}.", fields, is_empty_at_times=True),
            Call("POST", path, replace, f"Set the retention policy of {what}.", body=fields, errors=(400,)),
            Call("DELETE", path, remove, f"Remove the retention policy of {what}."),
        ]
