"""The console's routes: its files (`assets`), and the streams that keep it live.

    GET /console/events?view={view}...  server-sent events for the page, for one of the views below
    GET /console/local?of={what}...     JSON lines for other brokers: what only this broker knows (`local`)

    view            parameters
    overview
    topics          search, first (a number), sort (name or load)
    topic           name
    subscriptions   search, only (all, stuck or spark)
    transactions
    groups          search
    group           name
    cluster         broker, search
    metadata        prefix, key, first
    settings

The number of streams is bounded; further ones are refused with 503. A stream ends when its reader leaves, and leaves
nothing.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

import trio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from broker.administration_contract import BrokerMonitor, ClusterService
from broker.console.assets import Assets
from broker.console.cluster import ClusterFeed
from broker.console.everywhere import Everywhere
from broker.console.feed import PAUSE_SECONDS, Events, Feed, Parts, event, frames
from broker.console.groups import GroupFeed, GroupsFeed
from broker.console.local import Local, broker_parts, end_parts, log_parts, subscription_parts
from broker.console.metadata_tree import MetadataFeed
from broker.console.overview import OverviewFeed
from broker.console.settings import SettingsFeed
from broker.console.subscriptions import ONLY, SubscriptionsFeed, Wanted
from broker.console.topic import TopicFeed
from broker.console.topics import TopicsFeed, Wish
from broker.console.transactions import OpenTransactions
from broker.http.lines import Lines, PushedLines
from broker.http.parameters import number_of
from broker.http.refusals import refusal
from broker.live_contract import LiveService
from broker.names import TopicName
from storage.clock import WallClock
from storage.metadata.readable import line
from storage.metadata.store import MetadataStore
from storage.signal import Signal

EVENTS: Final = "/console/events"
LOCAL: Final = "/console/local"
STREAMS_MAX: Final = 32
"""Most streams of pages at a time."""
LOCAL_STREAMS_MAX: Final = 128
"""Most streams of other brokers at a time."""
SLOWER: Final = 4
"""How much longer the pause is between two frames about all subscriptions, because counting their backlogs takes long.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleServices:
    """What the console shows."""

    store: MetadataStore
    monitor: BrokerMonitor
    cluster: ClusterService
    live: LiveService
    now_ms: WallClock
    kafka_namespace: str
    """The namespace of Kafka's topics, as tenant/namespace."""
    settings: Mapping[str, object]
    """The broker's settings, as people read them."""
    pause_seconds: float = PAUSE_SECONDS
    """The least time between two frames of a stream. About all subscriptions it is SLOWER times as long."""


def routes(services: ConsoleServices) -> list[BaseRoute]:
    """The routes above."""
    assets = Assets()
    console = _Console(services, assets.version)
    return [
        *assets.routes(),
        Route(EVENTS, console.events, methods=["GET"]),
        Route(LOCAL, console.local, methods=["GET"]),
    ]


class _Console:
    def __init__(self, services: ConsoleServices, version: str) -> None:
        self._services = services
        self._version = version
        self._pages = trio.CapacityLimiter(STREAMS_MAX)
        self._brokers = trio.CapacityLimiter(LOCAL_STREAMS_MAX)
        self._views: Mapping[str, Callable[[Request], Feed]] = {
            "overview": self._overview,
            "topics": self._topics,
            "topic": self._topic,
            "subscriptions": self._subscriptions,
            "transactions": self._transactions,
            "groups": self._groups,
            "group": self._group,
            "cluster": self._cluster,
            "metadata": self._metadata,
            "settings": self._settings,
        }

    async def events(self, request: Request) -> Response:
        make = self._views.get(request.query_params.get("view", ""))
        if make is None:
            raise HTTPException(412, f"The parameter view must be one of {', '.join(self._views)}.")
        feed = make(request)
        if request.method == "HEAD":
            return Lines()
        if not self._pages.available_tokens:
            return refusal(503, f"{STREAMS_MAX} pages of the console are open at this broker. Close one of them.")
        is_slow = isinstance(feed, SubscriptionsFeed)
        about = {"broker": self._services.cluster.broker_id, "version": self._version}

        def frame(parts: Parts) -> bytes:
            return event({**about, **parts})

        pause = self._services.pause_seconds * (SLOWER if is_slow else 1)
        return Events(frames(feed, frame, pause), self._pages)

    async def local(self, request: Request) -> Response:
        feed, pause = self._own(request.query_params.get("of", ""), request.query_params.getlist("topic"))
        if request.method == "HEAD":
            return Lines()
        if not self._brokers.available_tokens:
            return refusal(503, f"{LOCAL_STREAMS_MAX} streams of other brokers are open at this broker.")
        return PushedLines(frames(feed, line, pause), self._brokers)

    def _own(self, what: str, topics: Collection[str]) -> tuple[Local, float]:
        live, monitor, pause = self._services.live, self._services.monitor, self._services.pause_seconds
        names = [TopicName.parse(topic) for topic in topics]
        if what == "broker":
            return Local(live, lambda: broker_parts(monitor, live)), pause
        if what == "subscriptions":
            return Local(live, lambda: subscription_parts(live)), SLOWER * pause
        if what == "logs" and len(names) == 1:
            return Local(live, lambda: log_parts(live, names[0])), pause
        if what == "ends":
            return Local(live, lambda: end_parts(live, names)), pause
        raise HTTPException(412, "The parameter of must be broker, subscriptions, logs (of one topic) or ends.")

    def _everywhere(self, what: str, *topics: str) -> Callable[[Signal], Everywhere]:
        own, _pause = self._own(what, topics)
        target = f"{LOCAL}?{urlencode([('of', what), *(('topic', topic) for topic in topics)])}"
        services = self._services
        return lambda changed: Everywhere(services.store, services.cluster, own, target, changed)

    def _overview(self, _request: Request) -> Feed:
        return OverviewFeed(self._services.store, self._everywhere("broker"))

    def _topics(self, request: Request) -> Feed:
        by_load = _chosen(request, "sort", "name", "load") == "load"
        wish = Wish(request.query_params.get("search", ""), number_of(request, "first") or 0, by_load)
        return TopicsFeed(self._services.store, wish)

    def _topic(self, request: Request) -> Feed:
        name = TopicName.parse(request.query_params.get("name", ""))
        if name.segment is not None:
            name = name.scalable_topic
        return TopicFeed(self._services.store, name, self._everywhere("logs", str(name)))

    def _subscriptions(self, request: Request) -> Feed:
        wanted = Wanted(request.query_params.get("search", ""), _chosen(request, "only", *ONLY))
        return SubscriptionsFeed(self._services.store, self._everywhere("subscriptions"), wanted)

    def _transactions(self, _request: Request) -> Feed:
        return OpenTransactions(self._services.store, with_details=True)

    def _groups(self, request: Request) -> Feed:
        return GroupsFeed(self._services.store, request.query_params.get("search", ""))

    def _group(self, request: Request) -> Feed:
        namespace = self._services.kafka_namespace

        def everywhere(topics: Collection[str], changed: Signal) -> Everywhere:
            names = sorted(f"{domain}://{namespace}/{topic}" for topic in topics for domain in ("persistent", "topic"))
            return self._everywhere("ends", *names)(changed)

        return GroupFeed(self._services.store, request.query_params.get("name", ""), everywhere)

    def _cluster(self, request: Request) -> Feed:
        return ClusterFeed(
            self._services.store,
            self._everywhere("broker"),
            self._services.now_ms,
            broker=request.query_params.get("broker"),
            search=request.query_params.get("search", ""),
        )

    def _metadata(self, request: Request) -> Feed:
        return MetadataFeed(
            self._services.store,
            self._services.now_ms,
            prefix=request.query_params.get("prefix", ""),
            key=request.query_params.get("key"),
            first=number_of(request, "first") or 0,
        )

    def _settings(self, _request: Request) -> Feed:
        return SettingsFeed(self._services.settings)


def _chosen(request: Request, name: str, *known: str) -> str:
    text = request.query_params.get(name, known[0])
    if text not in known:
        raise HTTPException(412, f"The parameter {name} must be {' or '.join(known)}, not {text[:50]!r}.")
    return text
