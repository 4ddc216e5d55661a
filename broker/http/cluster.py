"""The cluster over HTTP, for `tidewire cluster` and other tools: /admin/v2/cluster. Any broker answers for all of them.

A change answers 204 when it is done. It may be about another broker, which is then asked (`broker.peers`).
Changes are pushed, and joined if they come faster than one every UPDATE_SECONDS_MIN. After ALIVE_SECONDS without a
change the line is repeated, because a reader cannot tell a quiet cluster from a broker that stands still. See `lines`
for how a stream ends.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import trio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from broker.administration_contract import ClusterService
from broker.cluster.overview import ClusterView, Overview
from broker.errors import NotSupported
from broker.http.lines import Lines, NextLines, PushedLines, running
from broker.http.parameters import form_topic_of, json_map_of, switch_of, topic_of
from broker.http.refusals import done, json_response, refusal
from broker.http.resources import Call, Parameter
from broker.names import TopicName
from broker.peers import FORWARDED
from storage.metadata.readable import line
from storage.metadata.store import MetadataStore
from txn.duty import SHARDS

PATH: Final = "/admin/v2/cluster"
WATCHES_MAX: Final = 16
"""Most streams at a time; further ones are refused. Each takes memory for every claim in the cluster."""
UPDATE_SECONDS_MIN: Final = 0.5
"""The time between two lines of a stream."""
ALIVE_SECONDS: Final = 3.0
"""The most time between two lines, besides that."""


def calls(store: MetadataStore, service: ClusterService) -> list[Call]:
    """The calls, answered from `store` and by `service`."""
    cluster = _ClusterCalls(store, service)
    drain = PATH + "/brokers/{broker}/drain"
    return [
        Call(
            *("GET", PATH, cluster.view),
            "Show the brokers, what each owns, how many transactions are open, and the metadata controller.",
            "The cluster. With `watch`, JSON lines: one now and one after each change.",
            (Parameter("watch", "Stream every change.", "boolean"),),
        ),
        Call(
            *("GET", PATH + "/doctor", cluster.examine),
            "Say who owns what, what nobody owns and why, and what is wrong.",
            "The report.",
        ),
        Call(
            *("GET", PATH + "/doctor/self", cluster.tell),
            "Show what this broker says of itself. Brokers ask each other.",
            "The facts.",
        ),
        Call(
            *("POST", PATH + "/move", cluster.move),
            "Hand a topic over to a broker.",
            body='{"topic": NAME, "to": BROKER}',
            errors=(400, 404, 409),
        ),
        Call(
            *("POST", PATH + "/unload", cluster.unload),
            "Let the owner of a topic release it.",
            body='{"topic": NAME}',
            errors=(400, 404),
        ),
        Call(
            *("POST", PATH + "/consumers", cluster.consumers),
            "Take what another broker reports about consumers of segments. Brokers tell each other.",
            body="The reports.",
            errors=(400, 409),
        ),
        Call("POST", drain, cluster.drain, "Let a broker hand over everything, and take nothing new."),
        Call("DELETE", drain, cluster.undrain, "Let a broker take topics again."),
        Call(
            *("POST", PATH + "/brokers/{broker}/balance", cluster.balance),
            "Let a broker hand over the topics that belong to others.",
            '{"moved": N}',
        ),
        *(
            Call(
                *("PUT", f"/admin/v2/{kind}/{{tenant}}/{{namespace}}/{{topic}}/unload", endpoint),
                f"Let the owner release the {what}.",
                errors=(404,),
            )
            for kind, what, endpoint in (
                ("persistent", "topic or partition", cluster.unload_regular),
                ("scalable", "topic's segments", cluster.unload_scalable),
            )
        ),
    ]


class _ClusterCalls:
    def __init__(self, store: MetadataStore, service: ClusterService) -> None:
        self._store = store
        self._service = service
        self._watching = trio.CapacityLimiter(WATCHES_MAX)

    async def view(self, request: Request) -> Response:
        if not switch_of(request, "watch"):
            async with _overview(self._store) as overview:
                return json_response(_as_json(overview.view()))
        if request.method == "HEAD":
            return Lines()
        if not self._watching.available_tokens:
            return refusal(503, f"{WATCHES_MAX} programs already watch the cluster here. Try another broker.")
        return PushedLines(views(self._store), self._watching)

    async def examine(self, _request: Request) -> Response:
        return json_response(await self._service.examine())

    async def tell(self, _request: Request) -> Response:
        return json_response(self._service.tell())

    async def move(self, request: Request) -> Response:
        given = await _fields(request, "topic", "to")
        await self._service.move(_part_of(given["topic"]), given["to"], forwarded=_is_forwarded(request))
        return done()

    async def unload(self, request: Request) -> Response:
        given = await _fields(request, "topic")
        await self._service.unload(_part_of(given["topic"]), forwarded=_is_forwarded(request))
        return done()

    async def unload_regular(self, request: Request) -> Response:
        await self._service.unload(form_topic_of(request).as_regular)
        return done()

    async def unload_scalable(self, request: Request) -> Response:
        await self._service.unload(topic_of(request))
        return done()

    async def consumers(self, request: Request) -> Response:
        if not _is_forwarded(request):
            raise HTTPException(412, "Only brokers report consumers to each other. Register a consumer at its broker.")
        self._service.take_reports(await json_map_of(request) or {})
        return done()

    async def drain(self, request: Request) -> Response:
        await self._service.drain(request.path_params["broker"], forwarded=_is_forwarded(request))
        return done()

    async def undrain(self, request: Request) -> Response:
        await self._service.undrain(request.path_params["broker"], forwarded=_is_forwarded(request))
        return done()

    async def balance(self, request: Request) -> Response:
        broker = request.path_params["broker"]
        return json_response({"moved": await self._service.balance(broker, forwarded=_is_forwarded(request))})


def _is_forwarded(request: Request) -> bool:
    return FORWARDED in request.headers


def _part_of(text: str) -> TopicName:
    if text.startswith(SHARDS):
        raise NotSupported(
            f"{text} cannot be moved: coordinators are spread evenly over the brokers that take topics. Drain a broker "
            "to relieve it of its coordinators."
        )
    return TopicName.parse(text)


async def _fields(request: Request, *names: str) -> Mapping[str, str]:
    content = await json_map_of(request) or {}
    given = {name: content.get(name) for name in names}
    if content.keys() != set(names) or not all(isinstance(value, str) and value for value in given.values()):
        raise HTTPException(400, f"The body must be a JSON map of texts with exactly these keys: {', '.join(names)}.")
    return {name: str(value) for name, value in given.items()}


@asynccontextmanager
async def _overview(store: MetadataStore) -> AsyncIterator[Overview]:
    overview = Overview(store)
    async with running(overview):
        yield overview


@asynccontextmanager
async def views(store: MetadataStore) -> AsyncIterator[NextLines]:
    """Follow the cluster, for `PushedLines`: a line at first, after each change, and as a sign of life."""
    async with _overview(store) as overview:
        shown: ClusterView | None = None

        async def next_lines() -> Iterable[bytes]:
            nonlocal shown
            if shown is not None:
                await trio.sleep(UPDATE_SECONDS_MIN)
            with trio.move_on_after(ALIVE_SECONDS):
                while overview.view() == shown:
                    await overview.changed.wait()
            shown = overview.view()
            return [line(_as_json(shown))]

        yield next_lines


def _as_json(view: ClusterView) -> dict[str, object]:
    return {
        "brokers": [
            {
                "broker": broker.broker,
                "state": broker.state,
                "serviceUrl": broker.service_url,
                "httpUrl": broker.http_url,
                "kafka": None if broker.kafka is None else str(broker.kafka),
                "claims": broker.claims,
            }
            for broker in view.brokers
        ],
        "openTransactions": view.open_transactions,
        "metadataController": view.metadata_controller,
    }
