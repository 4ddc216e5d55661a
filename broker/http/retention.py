"""Retention policies of namespaces and topics over HTTP, in Pulsar's format.

A topic's policy applies to each of its partitions or segments. GET answers 204 if no policy is set. With `applied=true`
it answers what applies to the topic then: the policy of its namespace, or the broker's. -1 means no limit. If both
values are 0, acknowledged messages are not kept.
"""

from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from broker.http.parameters import form_topic_of, json_map_of, namespace_of, switch_of, topic_of
from broker.http.refusals import done, json_response
from broker.http.resources import Call, Endpoint, Parameter
from broker.names import TopicName
from broker.retention import Retention, retention_of
from broker.retention_policies import RetentionPolicies, namespace_key, topic_key

_FIELDS: Final = "{retentionTimeInMinutes, retentionSizeInMB}; -1 means no limit"
_APPLIED: Final = Parameter("applied", "Without a policy of the topic, show which one applies to it.", "boolean")


def calls(policies: RetentionPolicies) -> list[Call]:
    """The calls."""
    admin = _RetentionAdmin(policies)
    served = admin.calls(
        "/admin/v2/namespaces/{tenant}/{namespace}/retention", "a namespace", _namespace_key_of, admin.of_namespace
    )
    for kind, name_of in (("persistent", form_topic_of), ("scalable", topic_of)):
        served += admin.of_topics(f"/admin/v2/{kind}/{{tenant}}/{{namespace}}/{{topic}}/retention", name_of)
    return served


def _namespace_key_of(request: Request) -> str:
    return namespace_key(*namespace_of(request))


class _RetentionAdmin:
    def __init__(self, policies: RetentionPolicies) -> None:
        self._policies = policies

    async def of_namespace(self, request: Request) -> Response:
        return _answer(await self._policies.stored(_namespace_key_of(request)))

    def of_topics(self, path: str, name_of: Callable[[Request], TopicName]) -> list[Call]:
        async def show(request: Request) -> Response:
            if switch_of(request, "applied"):
                return _answer(await self._policies.applied(name_of(request)))
            return _answer(await self._policies.stored(topic_key(name_of(request))))

        return self.calls(path, "a topic", lambda request: topic_key(name_of(request)), show, _APPLIED)

    def calls(
        self, path: str, what: str, key_of: Callable[[Request], str], show: Endpoint, *parameters: Parameter
    ) -> list[Call]:
        async def replace(request: Request) -> Response:
            key = key_of(request)
            await self._policies.store(key, retention_of(await json_map_of(request)))
            return done()

        async def remove(request: Request) -> Response:
            await self._policies.store(key_of(request), None)
            return done()

        shown = f"Show the retention policy of {what}."
        return [
            Call("GET", path, show, shown, _FIELDS, parameters=parameters, is_empty_at_times=True),
            Call("POST", path, replace, f"Set the retention policy of {what}.", body=_FIELDS, errors=(400,)),
            Call("DELETE", path, remove, f"Remove the retention policy of {what}."),
        ]


def _answer(policy: Retention | None) -> Response:
    return done() if policy is None else json_response(policy.to_json())
