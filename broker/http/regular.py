"""Regular topics over HTTP: /admin/v2/persistent. A topic with partitions is asked about as a whole.

GET    /{tenant}/{namespace}/{topic}/stats      each subscription's and Kafka group's consumers and backlog
GET    /{tenant}/{namespace}/{topic}/log        of one topic or partition; brokers ask each other
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from broker.administration_contract import TopicService
from broker.http.parameters import topic_of
from broker.http.refusals import json_response
from broker.http.resources import resources
from broker.http.scalable import groups_view
from broker.http.segments import log_view

_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"


def routes(service: TopicService) -> list[BaseRoute]:
    """The routes above, served by `service`."""

    async def statistics(request: Request) -> Response:
        found = await service.regular_statistics(topic_of(request).as_regular)
        subscriptions = {
            name: {"type": one.type, "consumerCount": one.consumers, "msgBacklog": one.backlog_entries}
            for name, one in found.subscriptions.items()
        }
        view = {"partitions": found.partitions, "subscriptions": subscriptions, **groups_view(found.groups)}
        return json_response(view)

    async def log(request: Request) -> Response:
        return json_response(log_view(await service.log_statistics(topic_of(request).as_regular)))

    return resources([("GET", _TOPIC + "/stats", statistics), ("GET", _TOPIC + "/log", log)])
