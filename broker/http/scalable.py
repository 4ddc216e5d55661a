"""Administration of scalable topics over HTTP, for Pulsar's clients (PIP-460): /admin/v2/scalable.

    PUT    /{tenant}/{namespace}/{topic}?numInitialSegments=N     create; body: JSON map of properties, may be empty
    GET    /{tenant}/{namespace}?property=key=value               names of the topics with all these properties
    GET    /{tenant}/{namespace}/{topic}                          the layout
    GET    /{tenant}/{namespace}/{topic}/stats
    DELETE /{tenant}/{namespace}/{topic}?force=true
    POST   /{tenant}/{namespace}/{topic}/split/{segment}
    POST   /{tenant}/{namespace}/{topic}/merge/{segment}/{segment}
    POST   /{tenant}/{namespace}/{topic}/migrate?force=true       migrate the persistent:// topic (PIP-475)
    POST   /{tenant}/{namespace}/{topic}/begin-migration?force=true&claim=VERSION&creation=ID
                                                                  its first step, from controller to owner
    PUT    /{tenant}/{namespace}/{topic}/subscriptions/{subscription}?type=STREAM|QUEUE
    DELETE /{tenant}/{namespace}/{topic}/subscriptions/{subscription}
    POST   /{tenant}/{namespace}/{topic}/subscriptions/{subscription}/seek?timestamp=MS
    POST   /{tenant}/{namespace}/{topic}/subscriptions/{subscription}/skip-all
    GET    /{tenant}/{namespace}/{topic}/autoScalePolicy          the topic's own settings; 204 if it has none
    POST   /{tenant}/{namespace}/{topic}/autoScalePolicy          body: JSON map of the fields to set
    DELETE /{tenant}/{namespace}/{topic}/autoScalePolicy

A successful change answers 204. A refusal carries a reason (see `refusals`): 404 it does not exist; 409 it already
exists or is being changed; 412 the name, a parameter or the layout does not allow it; 400 the body is invalid. Another
method of a path answers 405. Paths that Pulsar has below a topic, but this broker has not, answer 501, so no client
takes it for a missing topic.
"""

from collections.abc import Mapping
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from broker.administration_contract import GroupStatistics, MigrationAsked, TopicService, TopicStatistics
from broker.errors import NotSupported
from broker.http.parameters import (
    check_path,
    filters_of,
    json_map_of,
    kind_of,
    number_of,
    properties_of,
    required_number_of,
    segment_id_of,
    subscription_of,
    switch_of,
    topic_of,
)
from broker.http.refusals import done, json_response
from broker.http.resources import Endpoint, resources
from broker.layouts.autoscale_policy import override_of
from broker.layouts.record import admin_view
from broker.names import Domain, TopicName
from broker.peers import FORWARDED

PREFIX: Final = "/admin/v2/scalable"
_NAMESPACE: Final = PREFIX + "/{tenant}/{namespace}"
_TOPIC: Final = _NAMESPACE + "/{topic}"
_SUBSCRIPTION: Final = _TOPIC + "/subscriptions/{subscription}"
_AUTO_SCALE: Final = _TOPIC + "/autoScalePolicy"
_EVERY_METHOD: Final = ["GET", "PUT", "POST", "DELETE"]


def routes(service: TopicService) -> list[BaseRoute]:
    """The routes above, served by `service`."""
    admin = _ScalableAdmin(service)
    served: list[tuple[str, str, Endpoint]] = [
        ("GET", _NAMESPACE, admin.names),
        ("PUT", _TOPIC, admin.create),
        ("GET", _TOPIC, admin.layout),
        ("DELETE", _TOPIC, admin.delete),
        ("GET", _TOPIC + "/stats", admin.statistics),
        ("POST", _TOPIC + "/split/{segment}", admin.split),
        ("POST", _TOPIC + "/merge/{first}/{second}", admin.merge),
        ("POST", _TOPIC + "/migrate", admin.migrate),
        ("POST", _TOPIC + "/begin-migration", admin.begin_migration),
        ("PUT", _SUBSCRIPTION, admin.create_subscription),
        ("DELETE", _SUBSCRIPTION, admin.delete_subscription),
        ("POST", _SUBSCRIPTION + "/seek", admin.seek),
        ("POST", _SUBSCRIPTION + "/skip-all", admin.skip_all),
        ("GET", _AUTO_SCALE, admin.auto_scale),
        ("POST", _AUTO_SCALE, admin.set_auto_scale),
        ("DELETE", _AUTO_SCALE, admin.remove_auto_scale),
    ]
    return [
        *resources(served),
        Route(_TOPIC + "/{rest:path}", admin.unsupported, methods=_EVERY_METHOD),
    ]


class _ScalableAdmin:
    def __init__(self, service: TopicService) -> None:
        self._service = service

    async def names(self, request: Request) -> Response:
        check_path(request)
        tenant, namespace = request.path_params["tenant"], request.path_params["namespace"]
        # Constructing the name of any topic checks the tenant and the namespace.
        TopicName(Domain.TOPIC, tenant, namespace, "any")
        names = await self._service.topics(tenant, namespace, filters_of(request))
        return json_response(sorted(str(name) for name in names))

    async def create(self, request: Request) -> Response:
        name = topic_of(request)
        segments = number_of(request, "numInitialSegments")
        await self._service.create_topic(name, segments=segments, properties=await properties_of(request))
        return done()

    async def layout(self, request: Request) -> Response:
        return json_response(admin_view(await self._service.layout(topic_of(request))))

    async def delete(self, request: Request) -> Response:
        await self._service.delete_topic(topic_of(request), force=switch_of(request, "force"))
        return done()

    async def statistics(self, request: Request) -> Response:
        name = topic_of(request)
        return json_response(_statistics_view(name, await self._service.statistics(name)))

    async def split(self, request: Request) -> Response:
        await self._service.split(topic_of(request), segment_id_of(request, "segment"))
        return done()

    async def merge(self, request: Request) -> Response:
        name = topic_of(request)
        await self._service.merge(name, segment_id_of(request, "first"), segment_id_of(request, "second"))
        return done()

    async def migrate(self, request: Request) -> Response:
        await self._service.migrate(topic_of(request), force=switch_of(request, "force"))
        return done()

    async def begin_migration(self, request: Request) -> Response:
        name, claim, creation_id = topic_of(request), number_of(request, "claim"), request.query_params.get("creation")
        if claim is None or creation_id is None or FORWARDED not in request.headers:
            raise HTTPException(
                412, f"Only the controller of {name} asks its owner to begin a migration. Ask for /migrate instead."
            )
        asked = MigrationAsked(claim, creation_id)
        await self._service.begin_migration(name, asked, force=switch_of(request, "force"))
        return done()

    async def create_subscription(self, request: Request) -> Response:
        name, subscription = topic_of(request), subscription_of(request)
        await self._service.create_subscription(name, subscription, kind_of(request))
        return done()

    async def delete_subscription(self, request: Request) -> Response:
        await self._service.delete_subscription(topic_of(request), subscription_of(request))
        return done()

    async def seek(self, request: Request) -> Response:
        name, subscription = topic_of(request), subscription_of(request)
        await self._service.seek(name, subscription, required_number_of(request, "timestamp"))
        return done()

    async def skip_all(self, request: Request) -> Response:
        await self._service.skip_all(topic_of(request), subscription_of(request))
        return done()

    async def auto_scale(self, request: Request) -> Response:
        override = await self._service.auto_scale(topic_of(request))
        return done() if override is None else json_response(override.as_map())

    async def set_auto_scale(self, request: Request) -> Response:
        name = topic_of(request)
        content = await json_map_of(request)
        if content is None:
            raise HTTPException(400, "The body must be a JSON map of the policy's fields.")
        await self._service.set_auto_scale(name, override_of(content))
        return done()

    async def remove_auto_scale(self, request: Request) -> Response:
        await self._service.set_auto_scale(topic_of(request), None)
        return done()

    async def unsupported(self, request: Request) -> Response:
        topic_of(request)
        raise NotSupported(f"This broker does not support {request.method} {request.path_params['rest']} for topics.")


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
        **groups_view(statistics.groups),
    }


def groups_view(groups: Mapping[str, GroupStatistics]) -> dict[str, object]:
    """The groups of Kafka's consumers on a topic in JSON; nothing if there are none."""
    if not groups:
        return {}
    return {
        "kafkaGroups": {
            name: {"state": group.state, "consumerCount": group.consumers, "msgBacklog": group.backlog}
            for name, group in groups.items()
        }
    }
