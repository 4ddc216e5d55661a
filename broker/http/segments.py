"""Single segments over HTTP: /admin/v2/segments. In Pulsar, brokers and operators use it.

`descriptor` is the last part of a segment's name, such as `8000-ffff-1`. Creating, sealing and deleting a segment or
its cursors is left out on purpose. The topic's controller does that, in an order that loses no message. Single steps
from outside would leave a layout that does not match the data. Such a request answers 501.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from broker.administration_contract import TopicService
from broker.errors import NotSupported
from broker.http.parameters import numbers_of, required_number_of, segment_of, subscription_of
from broker.http.refusals import done, json_response
from broker.http.resources import Call, Parameter
from broker.log_statistics import ConnectedConsumer, LogStatistics, SegmentSubscription

PREFIX: Final = "/admin/v2/segments"
_SEGMENT: Final = PREFIX + "/{tenant}/{namespace}/{topic}/{descriptor}"
_SUBSCRIPTION: Final = _SEGMENT + "/subscription/{subscription}"
INDEX: Final = Parameter(
    "index", "Also tell how many messages a consumer has left that goes on at this index. May be repeated.", "integer"
)
_BY_CONTROLLER: Final = (
    "A segment is created, sealed and deleted by its topic's controller. Change the topic's layout instead."
)


def calls(service: TopicService) -> list[Call]:
    """The calls, served by `service`."""
    admin = _SegmentAdmin(service)
    time = Parameter("timestamp", "Milliseconds since 1970.", "integer", is_required=True)
    return [
        Call(
            *("GET", _SUBSCRIPTION + "/backlog", admin.backlog),
            "Count the entries of a segment that a subscription has not acknowledged.",
            "A number.",
            errors=(404,),
        ),
        Call(
            *("GET", _SEGMENT + "/stats", admin.statistics),
            "Show a segment's ends, and each subscription's backlog and consumers.",
            "The statistics.",
            parameters=(INDEX,),
            errors=(404,),
        ),
        Call(
            *("GET", _SEGMENT + "/untouched", admin.untouched),
            "Tell whether the segment's topic may still get any schema. Brokers ask each other.",
            "true or false.",
            errors=(404,),
        ),
        Call(
            *("GET", _SEGMENT + "/users", admin.users),
            "Show how many clients use a segment, and which subscriptions have consumers. Brokers ask each other.",
            "The users.",
            errors=(404,),
        ),
        Call(
            *("POST", _SUBSCRIPTION + "/seek", admin.seek),
            "Move a subscription on one segment to the first message published at this time or later.",
            parameters=(time,),
            errors=(404,),
        ),
        Call(
            *("POST", _SUBSCRIPTION + "/skip-all", admin.skip_all),
            "Move a subscription on one segment past everything that is readable now.",
            errors=(404,),
        ),
        *(
            Call(method, path, admin.unsupported, _BY_CONTROLLER, is_served=False)
            for method, path in (
                ("PUT", _SEGMENT),
                ("DELETE", _SEGMENT),
                ("POST", _SEGMENT + "/terminate"),
                ("PUT", _SUBSCRIPTION),
                ("DELETE", _SUBSCRIPTION),
            )
        ),
    ]


class _SegmentAdmin:
    def __init__(self, service: TopicService) -> None:
        self._service = service

    async def backlog(self, request: Request) -> Response:
        return json_response(await self._service.segment_backlog(segment_of(request), subscription_of(request)))

    async def statistics(self, request: Request) -> Response:
        return json_response(
            log_view(await self._service.log_statistics(segment_of(request), numbers_of(request, "index")))
        )

    async def untouched(self, request: Request) -> Response:
        return json_response(await self._service.segment_is_untouched(segment_of(request)))

    async def users(self, request: Request) -> Response:
        users = await self._service.segment_users(segment_of(request))
        return json_response({"clients": users.clients, "subscriptions": sorted(users.subscriptions)})

    async def seek(self, request: Request) -> Response:
        name, subscription = segment_of(request), subscription_of(request)
        await self._service.seek(name, subscription, required_number_of(request, "timestamp"))
        return done()

    async def skip_all(self, request: Request) -> Response:
        await self._service.skip_all(segment_of(request), subscription_of(request))
        return done()

    async def unsupported(self, request: Request) -> Response:
        name = segment_of(request)
        raise NotSupported(
            f"{name} is created, sealed and deleted by its topic's controller. Change the topic's layout instead."
        )


def log_view(statistics: LogStatistics) -> dict[str, object]:
    """The statistics of a segment or regular topic in JSON."""
    left_from = {str(index): left for index, left in statistics.left_from.items()}
    return {
        "firstIndex": statistics.first_index,
        "endIndex": statistics.end_index,
        "producers": sorted(statistics.producers),
        "msgInCounter": statistics.messages_in,
        "bytesInCounter": statistics.bytes_in,
        "msgOutCounter": statistics.messages_out,
        "bytesOutCounter": statistics.bytes_out,
        "storageSize": statistics.size_bytes,
        "clients": statistics.clients,
        "subscriptions": {name: subscription_view(counted) for name, counted in statistics.subscriptions.items()},
        **({"leftFrom": left_from} if left_from else {}),
    }


def subscription_view(counted: SegmentSubscription) -> dict[str, object]:
    """A subscription of a segment or regular topic in JSON."""
    return {
        "msgBacklog": counted.backlog_entries,
        "consumers": sorted(counted.consumers),
        "type": counted.type,
        "unackedMessages": counted.unacked_messages,
        "markDeletePosition": counted.mark_delete,
        "backlogSize": counted.backlog_bytes,
        "earliestMsgPublishTimeInBacklog": counted.oldest_ms,
        "connected": [consumer_view(one) for one in counted.connected],
    }


def consumer_view(consumer: ConnectedConsumer) -> dict[str, object]:
    """A connected consumer in JSON, as Pulsar's tools read it."""
    return {
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked_messages,
        "msgOutCounter": consumer.messages_out,
        "bytesOutCounter": consumer.bytes_out,
    }
