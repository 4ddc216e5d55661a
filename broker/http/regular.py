"""Administration of regular topics over HTTP, for Pulsar's tools: /admin/v2/persistent.

A topic with partitions is asked about as a whole. A call that concerns one log, such as a seek to a message, is
answered with 405 there. A successful change answers 204. A refusal carries a reason (see `refusals`).

Message ids are in the body as Pulsar's tools write them: `{"ledgerId": L, "entryId": E, "batchIndex": -1,
"excluded": false}`. L and E are -1 for the beginning of a log, and 2^63 - 1 for its end.
Topics and subscriptions are in the path as those tools write them (`parameters.form_topic_of`, `form_subscription_of`).
"""

from collections.abc import Mapping
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from broker.administration_contract import TopicService
from broker.errors import NotSupported, TopicNotFound
from broker.http.parameters import (
    form_subscription_of,
    form_topic_of,
    json_map_of,
    json_of,
    namespace_of,
    numbers_of,
    part_number_of,
    switch_of,
)
from broker.http.refusals import done, json_response
from broker.http.regular_views import message_id_view, partitioned_view, topic_view
from broker.http.resources import Call, Parameter
from broker.http.segments import INDEX, log_view
from broker.names import TopicName
from broker.regular_contract import MessagePlace
from storage.position import EARLIEST, LATEST, Position

PREFIX: Final = "/admin/v2/persistent"
_NAMESPACE: Final = PREFIX + "/{tenant}/{namespace}"
_TOPIC: Final = _NAMESPACE + "/{topic}"
_SUBSCRIPTION: Final = _TOPIC + "/subscription/{subscription}"
_NON_PERSISTENT: Final = "/admin/v2/non-persistent/{tenant}/{namespace}"
_IN_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}/topics"

_FORCE: Final = Parameter("force", "Disconnect the clients that stand in the way.", "boolean")
_MESSAGE: Final = '{"ledgerId": L, "entryId": E, "batchIndex": -1, "excluded": false}'
_COUNT: Final = 'The number of partitions, from 1 to 10,000; or {"partitions": N, "properties": {}}.'
_NO_PROPERTIES: Final = "Regular topics have no properties here. Leave them out."


def calls(service: TopicService) -> list[Call]:
    """The calls, served by `service`."""
    return [*_topic_calls(service), *_subscription_calls(service)]


def _topic_calls(service: TopicService) -> list[Call]:
    admin = _TopicAdmin(service)
    partitions = _TOPIC + "/partitions"
    names, none = "A list of names.", "An empty list: there are none here."
    return [
        Call("GET", _NAMESPACE, admin.names, "List a namespace's regular topics and partitions.", names),
        Call("GET", _NAMESPACE + "/partitioned", admin.partitioned, "List a namespace's partitioned topics.", names),
        Call("GET", _IN_NAMESPACE, admin.names, "List a namespace's regular topics and partitions.", names),
        Call("GET", _NON_PERSISTENT, admin.none, "List a namespace's non-persistent topics.", none),
        Call("GET", _NON_PERSISTENT + "/partitioned", admin.none, "List the partitioned ones of these.", none),
        Call(
            *("PUT", _TOPIC, admin.create),
            "Create a regular topic without partitions.",
            body="A map of properties; it must be empty or missing.",
            errors=(400, 404, 409, 501),
        ),
        Call(
            *("DELETE", _TOPIC, admin.delete),
            "Delete a regular topic with all its partitions.",
            parameters=(_FORCE,),
            errors=(404,),
        ),
        Call("PUT", partitions, admin.create_partitioned, "Create a partitioned topic.", body=_COUNT, errors=(409,)),
        Call("POST", partitions, admin.extend, "Give a topic more partitions.", body=_COUNT, errors=(404, 409)),
        Call("GET", partitions, admin.partitions, "Show how many partitions a topic has.", '{"partitions": N}'),
        Call(
            *("DELETE", partitions, admin.delete_partitioned),
            "Delete a partitioned topic.",
            parameters=(_FORCE,),
            errors=(404,),
        ),
        Call(
            *("GET", _TOPIC + "/stats", admin.statistics),
            "Show a topic's traffic, and each subscription's and Kafka group's consumers and backlog.",
            "The statistics, over all partitions.",
            errors=(404,),
        ),
        Call(
            *("GET", _TOPIC + "/partitioned-stats", admin.partitioned_statistics),
            "Show the same of a partitioned topic and of each partition.",
            "The statistics.",
            (Parameter("perPartition", "Whether to show each partition; true without it.", "boolean"),),
            errors=(404,),
        ),
        Call(
            *("GET", _TOPIC + "/internalStats", admin.inside),
            "Show a topic's ledgers and cursors.",
            "What is inside the topic.",
            errors=(404, 405),
        ),
        Call(
            *("GET", _TOPIC + "/partitioned-internalStats", admin.partitions_inside),
            "Show the same of each partition. Partitions that nobody has used are left out.",
            "What is inside each partition.",
            errors=(404,),
        ),
        Call(
            *("GET", _TOPIC + "/log", admin.log),
            "Show one topic or partition. Brokers ask each other.",
            "Its ends, and each subscription's backlog and consumers.",
            parameters=(INDEX,),
            errors=(404,),
        ),
        Call(
            *("GET", _TOPIC + "/lastMessageId", admin.last_message),
            "Show the id of the last message that a consumer can get.",
            "The id; ledger and entry are -1 if there is no message.",
            errors=(404, 405),
        ),
        Call(
            *("PUT", _TOPIC + "/backlogSize", admin.backlog_size),
            "Count the stored bytes from a message to the end of the topic.",
            "The number of bytes, to within 64 KiB.",
            body=_MESSAGE,
            errors=(400, 404, 405),
        ),
        Call(
            *("GET", _TOPIC + "/subscriptions", admin.subscriptions),
            "List a topic's subscriptions.",
            "A list of names.",
            errors=(404,),
        ),
    ]


def _subscription_calls(service: TopicService) -> list[Call]:
    admin = _SubscriptionAdmin(service)
    expire = _SUBSCRIPTION + "/expireMessages"
    cursor = _SUBSCRIPTION + "/resetcursor"
    return [
        Call(
            *("PUT", _SUBSCRIPTION, admin.create),
            "Create a subscription that begins with a message.",
            body=f"{_MESSAGE}; without it, the subscription begins at the end",
            errors=(400, 404, 405, 409, 501),
        ),
        Call(
            *("DELETE", _SUBSCRIPTION, admin.delete),
            "Delete a subscription.",
            parameters=(_FORCE,),
            errors=(404,),
        ),
        Call(
            *("POST", _SUBSCRIPTION + "/skip/{count}", admin.skip),
            "Let a subscription pass its next messages. A batch counts as one, as in msgBacklog.",
            errors=(404, 405),
        ),
        Call(
            *("POST", _SUBSCRIPTION + "/skip_all", admin.skip_all),
            "Let a subscription pass everything that is readable now.",
            errors=(404,),
        ),
        Call(
            *("POST", expire + "/{seconds}", admin.expire),
            "Let a subscription pass messages that were published longer ago than that.",
            errors=(404,),
        ),
        Call(
            *("POST", expire, admin.expire_to),
            "Let a subscription pass everything up to a message.",
            body=_MESSAGE,
            errors=(400, 404, 405),
        ),
        Call(
            *("POST", _TOPIC + "/all_subscription/expireMessages/{seconds}", admin.expire_all),
            "Let all subscriptions pass messages that were published longer ago than that.",
            errors=(404,),
        ),
        Call(
            *("POST", cursor + "/{timestamp}", admin.seek_to_time),
            "Move a subscription to the first message published at this time or later, in milliseconds since 1970.",
            errors=(404,),
        ),
        Call(
            *("POST", cursor, admin.seek_to_message),
            "Move a subscription to a message. If it is excluded, the next one comes first.",
            body=_MESSAGE,
            errors=(400, 404, 405),
        ),
    ]


class _TopicAdmin:
    def __init__(self, service: TopicService) -> None:
        self._service = service

    async def names(self, request: Request) -> Response:
        return json_response(await self._service.regular.names(*namespace_of(request)))

    async def partitioned(self, request: Request) -> Response:
        return json_response(await self._service.regular.partitioned_names(*namespace_of(request)))

    async def none(self, request: Request) -> Response:
        namespace_of(request)
        return json_response([])

    async def create(self, request: Request) -> Response:
        name = _name_of(request)
        if await json_map_of(request):
            raise NotSupported(_NO_PROPERTIES)
        await self._service.regular.create(name)
        return done()

    async def delete(self, request: Request) -> Response:
        await self._service.regular.delete(_name_of(request), force=switch_of(request, "force"))
        return done()

    async def create_partitioned(self, request: Request) -> Response:
        name = _name_of(request)
        await self._service.regular.create_partitioned(name, _count_in(await json_of(request)))
        return done()

    async def extend(self, request: Request) -> Response:
        name = _name_of(request)
        await self._service.regular.extend(name, _count_in(await json_of(request)))
        return done()

    async def partitions(self, request: Request) -> Response:
        return json_response(
            {"partitions": await self._service.regular.partitions(_name_of(request)), "deleted": False}
        )

    async def delete_partitioned(self, request: Request) -> Response:
        await self._service.regular.delete_partitioned(_name_of(request), force=switch_of(request, "force"))
        return done()

    async def statistics(self, request: Request) -> Response:
        return json_response(topic_view(await self._service.regular.statistics(_name_of(request))))

    async def partitioned_statistics(self, request: Request) -> Response:
        name = _name_of(request)
        names_each = switch_of(request, "perPartition", default=True)
        if not await self._service.regular.partitions(name):
            raise TopicNotFound(f"{name} is not partitioned. Ask for its stats instead.")
        return json_response(
            partitioned_view(name, await self._service.regular.statistics(name), names_each=names_each)
        )

    async def inside(self, request: Request) -> Response:
        return json_response(await self._service.regular.internal_statistics(_name_of(request)))

    async def partitions_inside(self, request: Request) -> Response:
        name = _name_of(request)
        inside = await self._service.regular.partitions_inside(name)
        count = await self._service.regular.partitions(name)
        parts = {str(part): shown for part, shown in inside.items()}
        return json_response({"metadata": {"partitions": count, "deleted": False}, "partitions": parts})

    async def log(self, request: Request) -> Response:
        return json_response(
            log_view(await self._service.log_statistics(_name_of(request), numbers_of(request, "index")))
        )

    async def last_message(self, request: Request) -> Response:
        name = _name_of(request)
        return json_response(message_id_view(await self._service.regular.last_message(name), name.partition_index))

    async def backlog_size(self, request: Request) -> Response:
        name = _name_of(request)
        return json_response(await self._service.regular.backlog_bytes(name, await _required_place_of(request)))

    async def subscriptions(self, request: Request) -> Response:
        return json_response(await self._service.regular.subscriptions(_name_of(request)))


class _SubscriptionAdmin:
    def __init__(self, service: TopicService) -> None:
        self._service = service

    async def create(self, request: Request) -> Response:
        name, subscription = _name_of(request), form_subscription_of(request)
        content = await json_map_of(request)
        if switch_of(request, "replicated"):
            raise NotSupported("This broker does not replicate subscriptions. Leave the parameter replicated out.")
        if content is not None and content.get("properties"):
            raise NotSupported("Subscriptions have no properties here. Leave them out.")
        start = MessagePlace(LATEST) if content is None else _place_in(content)
        await self._service.regular.create_subscription(name, subscription, start)
        return done()

    async def delete(self, request: Request) -> Response:
        name, subscription = _name_of(request), form_subscription_of(request)
        await self._service.regular.delete_subscription(name, subscription, force=switch_of(request, "force"))
        return done()

    async def skip(self, request: Request) -> Response:
        name, subscription = _name_of(request), form_subscription_of(request)
        await self._service.regular.skip(name, subscription, part_number_of(request, "count"))
        return done()

    async def skip_all(self, request: Request) -> Response:
        await self._service.regular.skip_all(_name_of(request), form_subscription_of(request))
        return done()

    async def expire(self, request: Request) -> Response:
        name, subscription = _name_of(request), form_subscription_of(request)
        await self._service.regular.skip_older(name, subscription, part_number_of(request, "seconds"))
        return done()

    async def expire_to(self, request: Request) -> Response:
        name, subscription = _name_of(request), form_subscription_of(request)
        await self._service.regular.skip_to(name, subscription, await _required_place_of(request))
        return done()

    async def expire_all(self, request: Request) -> Response:
        await self._service.regular.skip_older_on_all(_name_of(request), part_number_of(request, "seconds"))
        return done()

    async def seek_to_time(self, request: Request) -> Response:
        name, subscription = _name_of(request), form_subscription_of(request)
        await self._service.regular.seek_to_time(name, subscription, part_number_of(request, "timestamp"))
        return done()

    async def seek_to_message(self, request: Request) -> Response:
        name, subscription = _name_of(request), form_subscription_of(request)
        await self._service.regular.seek_to_message(name, subscription, await _required_place_of(request))
        return done()


def _name_of(request: Request) -> TopicName:
    return form_topic_of(request).as_regular


def _count_in(content: object) -> int:
    """A number of partitions, alone or in a map with the topic's properties. Pulsar's tools send either."""
    if isinstance(content, dict):
        if content.get("properties"):
            raise NotSupported(_NO_PROPERTIES)
        content = content.get("partitions")
    if not isinstance(content, int) or isinstance(content, bool) or content < 0:
        raise HTTPException(400, "The body must be a whole number.")
    return content


async def _required_place_of(request: Request) -> MessagePlace:
    content = await json_map_of(request)
    if content is None:
        raise HTTPException(400, f"The body must be the id of a message: {_MESSAGE}.")
    return _place_in(content)


def _place_in(content: Mapping[str, object]) -> MessagePlace:
    ledger, entry, batch_index = (content.get(name) for name in ("ledgerId", "entryId", "batchIndex"))
    # Pulsar's tools have written the last field under both names.
    is_excluded = bool(content.get("excluded", content.get("isExcluded", False)))
    batch_index = -1 if batch_index is None else batch_index
    numbers = (ledger, entry, batch_index)
    if not all(type(number) is int and -1 <= number <= LATEST.entry for number in numbers):
        raise HTTPException(400, f"The body must be the id of a message: {_MESSAGE}.")
    position = Position(*map(int, (str(ledger), str(entry))))
    return MessagePlace(EARLIEST if position.ledger < 0 else position, int(str(batch_index)), is_excluded=is_excluded)
