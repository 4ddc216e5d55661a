"""Regular topics over HTTP: /admin/v2/persistent. A topic with partitions is asked about as a whole."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from broker.administration_contract import TopicService
from broker.http.parameters import topic_of
from broker.http.refusals import json_response
from broker.http.resources import Call
from broker.http.scalable import groups_view
from broker.http.segments import log_view

_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"


def calls(service: TopicService) -> list[Call]:
    """The calls, served by `service`."""

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

    return [
        Call(
            *("GET", _TOPIC + "/stats", statistics),
            "Show each subscription's and Kafka group's consumers and backlog.",
            "The statistics, over all partitions.",
            errors=(404,),
        ),
        Call(
            *("GET", _TOPIC + "/log", log),
            "Show one topic or partition. Brokers ask each other.",
            "Its ends, and each subscription's backlog and consumers.",
            errors=(404,),
        ),
    ]
