"""The cluster over HTTP, for `tidewire cluster` and other tools: /admin/v2/cluster. Any broker answers for all of them.

    GET /admin/v2/cluster              the brokers, what each owns, and how many transactions are open, as one object
    GET /admin/v2/cluster?watch=true   the same, then again after every change, as JSON lines

Changes are pushed, and joined if they come faster than one every UPDATE_SECONDS_MIN. See `lines` for how a stream ends.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from broker.background import first_of
from broker.cluster.overview import ClusterView, Overview
from broker.http.lines import Lines, NextLines, PushedLines
from broker.http.parameters import switch_of
from broker.http.refusals import json_response, refusal
from broker.http.resources import resources
from storage.metadata.readable import line
from storage.metadata.store import MetadataStore, StoreUnavailable

PATH: Final = "/admin/v2/cluster"
WATCHES_MAX: Final = 16
"""Most streams at a time; further ones are refused. Each takes memory for every claim in the cluster."""
UPDATE_SECONDS_MIN: Final = 0.5
"""The time between two lines of a stream."""


def routes(store: MetadataStore) -> list[BaseRoute]:
    """The routes above, answered from `store`."""
    cluster = _ClusterRoutes(store)
    return resources([("GET", PATH, cluster.view)])


class _ClusterRoutes:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
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


@asynccontextmanager
async def _overview(store: MetadataStore) -> AsyncIterator[Overview]:
    overview = Overview(store)
    lost: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(overview.run)
            yield overview
            nursery.cancel_scope.cancel()
    except* StoreUnavailable as group:
        lost = first_of(group)
    if lost is not None:
        # It is raised outside the nursery, which would wrap it in an exception group.
        raise lost


@asynccontextmanager
async def views(store: MetadataStore) -> AsyncIterator[NextLines]:
    """Follow the cluster, for `PushedLines`: a line at first, and after each change."""
    async with _overview(store) as overview:
        shown: ClusterView | None = None

        async def next_lines() -> Iterable[bytes]:
            nonlocal shown
            if shown is not None:
                await trio.sleep(UPDATE_SECONDS_MIN)
            while (view := overview.view()) == shown:
                await overview.changed.wait()
            shown = view
            return [line(_as_json(view))]

        yield next_lines


def _as_json(view: ClusterView) -> dict[str, object]:
    return {
        "brokers": [
            {
                "broker": broker.broker,
                "state": broker.state,
                "serviceUrl": broker.service_url,
                "httpUrl": broker.http_url,
                "claims": broker.claims,
            }
            for broker in view.brokers
        ],
        "openTransactions": view.open_transactions,
    }
