"""Single segments over HTTP: /admin/v2/segments. In Pulsar, brokers and operators use it.

    GET    /{tenant}/{namespace}/{topic}/{descriptor}/subscription/{subscription}/backlog        a number of entries
    GET    /{tenant}/{namespace}/{topic}/{descriptor}/stats      its ends; each subscription's backlog and consumers
    GET    /{tenant}/{namespace}/{topic}/{descriptor}/untouched  whether its topic may still get any schema
    GET    /{tenant}/{namespace}/{topic}/{descriptor}/users      how many clients, and which subscriptions have some
    POST   /{tenant}/{namespace}/{topic}/{descriptor}/subscription/{subscription}/seek?timestamp=MS
    POST   /{tenant}/{namespace}/{topic}/{descriptor}/subscription/{subscription}/skip-all

`descriptor` is the last part of a segment's name, such as `8000-ffff-1`. Creating, sealing and deleting a segment or
its cursors is left out on purpose. The topic's controller does that, in an order that loses no message. Single steps
from outside would leave a layout that does not match the data. Such a request answers 501.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from broker.administration_contract import LogStatistics, TopicService
from broker.errors import NotSupported
from broker.http.parameters import required_number_of, segment_of, subscription_of
from broker.http.refusals import done, json_response
from broker.http.resources import resources

PREFIX: Final = "/admin/v2/segments"
_SEGMENT: Final = PREFIX + "/{tenant}/{namespace}/{topic}/{descriptor}"
_SUBSCRIPTION: Final = _SEGMENT + "/subscription/{subscription}"
_EVERY_METHOD: Final = ["GET", "PUT", "POST", "DELETE"]


def routes(service: TopicService) -> list[BaseRoute]:
    """The routes above, served by `service`."""
    admin = _SegmentAdmin(service)
    return [
        *resources(
            [
                ("GET", _SUBSCRIPTION + "/backlog", admin.backlog),
                ("GET", _SEGMENT + "/stats", admin.statistics),
                ("GET", _SEGMENT + "/untouched", admin.untouched),
                ("GET", _SEGMENT + "/users", admin.users),
                ("POST", _SUBSCRIPTION + "/seek", admin.seek),
                ("POST", _SUBSCRIPTION + "/skip-all", admin.skip_all),
            ]
        ),
        Route(_SEGMENT, admin.unsupported, methods=_EVERY_METHOD),
        Route(_SEGMENT + "/{rest:path}", admin.unsupported, methods=_EVERY_METHOD),
    ]


class _SegmentAdmin:
    def __init__(self, service: TopicService) -> None:
        self._service = service

    async def backlog(self, request: Request) -> Response:
        return json_response(await self._service.segment_backlog(segment_of(request), subscription_of(request)))

    async def statistics(self, request: Request) -> Response:
        return json_response(log_view(await self._service.log_statistics(segment_of(request))))

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
    return {
        "firstIndex": statistics.first_index,
        "endIndex": statistics.end_index,
        "subscriptions": {
            name: {
                "msgBacklog": counted.backlog_entries,
                "consumers": sorted(counted.consumers),
                "type": counted.type,
            }
            for name, counted in statistics.subscriptions.items()
        },
    }
