"""Administration of scalable topics over HTTP, for Pulsar's clients (PIP-460): /admin/v2/scalable.

A successful change answers 204. A refusal carries a reason (see `refusals`): 404 it does not exist; 409 it already
exists or is being changed; 412 the name, a parameter or the layout does not allow it; 400 the body is invalid.
"""

from collections.abc import Mapping
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from broker.administration_contract import MigrationAsked, TopicService, TopicStatistics
from broker.errors import SubscriptionNotFound
from broker.http.parameters import (
    filters_of,
    json_map_of,
    kind_of,
    namespace_of,
    number_of,
    properties_of,
    required_number_of,
    segment_id_of,
    subscription_of,
    switch_of,
    topic_of,
)
from broker.http.refusals import done, json_response
from broker.http.resources import Call, Parameter
from broker.http.segments import log_view, subscription_view
from broker.layouts.autoscale_policy import override_of
from broker.layouts.record import admin_view
from broker.log_statistics import GroupStatistics, LogStatistics
from broker.names import TopicName
from broker.peers import FORWARDED

PREFIX: Final = "/admin/v2/scalable"
_NAMESPACE: Final = PREFIX + "/{tenant}/{namespace}"
_TOPIC: Final = _NAMESPACE + "/{topic}"
_SUBSCRIPTION: Final = _TOPIC + "/subscriptions/{subscription}"
_AUTO_SCALE: Final = _TOPIC + "/autoScalePolicy"

_FORCE: Final = Parameter("force", "Disconnect the clients that stand in the way.", "boolean")
_TIME: Final = Parameter("timestamp", "Milliseconds since 1970.", "integer", is_required=True)


def calls(service: TopicService) -> list[Call]:
    """The calls, served by `service`."""
    admin = _ScalableAdmin(service)
    return [
        Call(
            *("GET", _NAMESPACE, admin.names),
            "List the names of a namespace's scalable topics.",
            "A list of names.",
            (Parameter("property", "Only topics with this property, as key=value.", is_list=True),),
        ),
        Call(
            *("PUT", _TOPIC, admin.create),
            "Create a scalable topic.",
            parameters=(
                Parameter("numInitialSegments", "How many segments it has. The broker's settings say.", "integer"),
            ),
            body="A map of properties to texts. It may be missing.",
            errors=(400, 409),
        ),
        Call("GET", _TOPIC, admin.layout, "Show the topic's layout.", "The layout: its segments.", errors=(404,)),
        Call("DELETE", _TOPIC, admin.delete, "Delete the topic.", parameters=(_FORCE,), errors=(404,)),
        Call(
            *("GET", _TOPIC + "/stats", admin.statistics),
            "Show the topic's segments, subscriptions, backlogs and Kafka groups.",
            "The statistics.",
            errors=(404,),
        ),
        Call("POST", _TOPIC + "/split/{segment}", admin.split, "Split an active segment.", errors=(404, 409)),
        Call(
            *("POST", _TOPIC + "/merge/{first}/{second}", admin.merge),
            "Merge two adjacent active segments.",
            parameters=(
                Parameter(
                    "allowFewer", "Whether fewer segments may be left than the topic was created with.", "boolean"
                ),
            ),
            errors=(404, 409),
        ),
        Call(
            *("POST", _TOPIC + "/migrate", admin.migrate),
            "Turn the `persistent://` topic of this name into a scalable one (PIP-475).",
            parameters=(_FORCE,),
            errors=(404, 409),
        ),
        Call(
            *("POST", _TOPIC + "/begin-migration", admin.begin_migration),
            "Begin a migration. Only the topic's controller asks its owner.",
            parameters=(
                _FORCE,
                Parameter("claim", "The version of the controller's claim.", "integer", is_required=True),
                Parameter("creation", "The creation id of the regular topic.", is_required=True),
            ),
            errors=(404, 409),
        ),
        Call(
            *("GET", _TOPIC + "/subscriptions", admin.subscriptions),
            "List the topic's subscriptions.",
            "A list of names.",
            errors=(404,),
        ),
        Call(
            *("GET", _SUBSCRIPTION, admin.subscription),
            "Show a subscription: its type, and its backlog and consumers on each segment.",
            "The subscription.",
            errors=(404,),
        ),
        Call(
            *("PUT", _SUBSCRIPTION, admin.create_subscription),
            "Create a subscription that begins with the earliest message.",
            parameters=(Parameter("type", "STREAM (in order, the default) or QUEUE."),),
            errors=(404, 409),
        ),
        Call(
            *("DELETE", _SUBSCRIPTION, admin.delete_subscription),
            "Delete a subscription and disconnect its consumers.",
            errors=(404, 409),
        ),
        Call(
            *("POST", _SUBSCRIPTION + "/seek", admin.seek),
            "Move a subscription to the first message published at this time or later.",
            parameters=(_TIME,),
            errors=(404,),
        ),
        Call(
            *("POST", _SUBSCRIPTION + "/skip-all", admin.skip_all),
            "Move a subscription past everything that is readable now.",
            errors=(404,),
        ),
        Call(
            *("GET", _AUTO_SCALE, admin.auto_scale),
            "Show the topic's own settings for automatic splits and merges.",
            "The fields that are set.",
            errors=(404,),
            is_empty_at_times=True,
        ),
        Call(
            *("POST", _AUTO_SCALE, admin.set_auto_scale),
            "Replace the topic's own settings for automatic splits and merges.",
            body="A map of the fields to set.",
            errors=(400, 404),
        ),
        Call(
            *("DELETE", _AUTO_SCALE, admin.remove_auto_scale),
            "Remove the topic's own settings for automatic splits and merges.",
            errors=(404,),
        ),
    ]


class _ScalableAdmin:
    def __init__(self, service: TopicService) -> None:
        self._service = service

    async def names(self, request: Request) -> Response:
        tenant, namespace = namespace_of(request)
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
        first, second = segment_id_of(request, "first"), segment_id_of(request, "second")
        # Pulsar's tools do not know the parameter. They merge because somebody told them to.
        await self._service.merge(name, first, second, allow_fewer=switch_of(request, "allowFewer", default=True))
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

    async def subscriptions(self, request: Request) -> Response:
        layout = await self._service.layout(topic_of(request))
        return json_response(sorted(layout.living_subscriptions()))

    async def subscription(self, request: Request) -> Response:
        name, subscription = topic_of(request), subscription_of(request)
        return json_response(_subscription_view(await self._service.statistics(name), name, subscription))

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
                **_segment_view(statistics.segments.get(segment.id)),
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


def _segment_view(log: LogStatistics | None) -> dict[str, object]:
    return {} if log is None else log_view(log)


def _subscription_view(statistics: TopicStatistics, name: TopicName, subscription: str) -> dict[str, object]:
    layout = statistics.layout
    registered, counted = layout.subscriptions.get(subscription), statistics.subscriptions.get(subscription)
    if registered is None or counted is None:
        raise SubscriptionNotFound(f"{name} has no subscription {subscription}.")
    on_segments = {
        segment: log.subscriptions[subscription]
        for segment, log in statistics.segments.items()
        if subscription in log.subscriptions
    }
    return {
        "name": subscription,
        "type": counted.kind.value,
        "start": registered.start.value,
        "createdAtMs": registered.created_at_ms,
        "consumerCount": counted.consumers,
        "msgBacklog": counted.backlog_entries,
        "segments": {str(segment): subscription_view(one) for segment, one in on_segments.items()},
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
