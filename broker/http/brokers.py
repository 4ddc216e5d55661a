"""What Pulsar's tools ask of a broker before anything else: whether it serves, its version, the names of clusters."""

from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from broker.administration_contract import BrokerMonitor
from broker.errors import sentences
from broker.http.refusals import json_response, refusal
from broker.http.resources import TEXT, Call

CLUSTER: Final = "standalone"
"""The name by which Pulsar's tools know this cluster, as a Pulsar on one's own machine is called. So commands from
Pulsar's documentation work. There is no other cluster, because nothing is replicated."""


def calls(monitor: BrokerMonitor, *, version: str) -> list[Call]:
    """The calls."""

    async def health(_request: Request) -> Response:
        problem = monitor.problem()
        return PlainTextResponse("ok") if problem is None else refusal(503, sentences(problem))

    async def release(_request: Request) -> Response:
        return PlainTextResponse(version)

    async def clusters(_request: Request) -> Response:
        return json_response([CLUSTER])

    return [
        Call("GET", "/admin/v2/brokers/health", health, "Tell whether this broker serves.", "ok", media_type=TEXT),
        Call("GET", "/admin/v2/brokers/version", release, "Tell the version.", "The version.", media_type=TEXT),
        Call("GET", "/admin/v2/clusters", clusters, "List the names of clusters.", "A list with one name."),
    ]
