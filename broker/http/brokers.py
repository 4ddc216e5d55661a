"""What Pulsar's tools ask before anything else: whether a broker serves, its version, what clusters and brokers are."""

from collections.abc import Iterable
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from broker.administration_contract import BrokerMonitor
from broker.cluster.members import members_in
from broker.errors import sentences
from broker.http.refusals import json_response, refusal
from broker.http.resources import TEXT, Call
from storage.metadata.store import MetadataStore

CLUSTER: Final = "standalone"
"""The name by which Pulsar's tools know this cluster, as a Pulsar on one's own machine is called. So commands from
Pulsar's documentation work. There is no other cluster, because nothing is replicated."""


def calls(monitor: BrokerMonitor, store: MetadataStore, *, version: str) -> list[Call]:
    """The calls."""

    async def health(_request: Request) -> Response:
        problem = monitor.problem()
        return PlainTextResponse("ok") if problem is None else refusal(503, sentences(problem))

    async def release(_request: Request) -> Response:
        return PlainTextResponse(version)

    async def clusters(_request: Request) -> Response:
        return json_response([CLUSTER])

    async def cluster(request: Request) -> Response:
        name = request.path_params["cluster"]
        if name != CLUSTER:
            raise HTTPException(412, f"There is no cluster {name[:50]}. The only one is {CLUSTER}.")
        found = await members_in(store)
        return json_response(
            {
                "serviceUrl": _joined("http://", [member.http_url for member in found]),
                "brokerServiceUrl": _joined("pulsar://", [member.service_url for member in found]),
            }
        )

    async def brokers(_request: Request) -> Response:
        urls = [member.http_url for member in await members_in(store)]
        return json_response([url.removeprefix("http://") for url in urls if url is not None])

    listed = "List the brokers that run."
    addresses = "A list of HTTP addresses, as HOST:PORT."
    return [
        Call("GET", "/admin/v2/brokers/health", health, "Tell whether this broker serves.", "ok", media_type=TEXT),
        Call("GET", "/admin/v2/brokers/ready", health, "The same as health.", "ok", media_type=TEXT),
        Call("GET", "/admin/v2/brokers/version", release, "Tell the version.", "The version.", media_type=TEXT),
        Call("GET", "/admin/v2/brokers", brokers, listed, addresses),
        Call("GET", f"/admin/v2/brokers/{CLUSTER}", brokers, listed, addresses),
        Call("GET", "/admin/v2/clusters", clusters, "List the names of clusters.", "A list with one name."),
        Call(
            *("GET", "/admin/v2/clusters/{cluster}", cluster),
            "Show where clients reach the brokers of a cluster.",
            '{"serviceUrl": HTTP, "brokerServiceUrl": PULSAR}, with the addresses of all brokers.',
        ),
    ]


def _joined(scheme: str, urls: Iterable[str | None]) -> str:
    """One URL with several addresses, as clients take it."""
    return scheme + ",".join(url.removeprefix(scheme) for url in urls if url is not None)
