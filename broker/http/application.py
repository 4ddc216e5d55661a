"""The ASGI application with everything that the broker serves over HTTP."""

from collections.abc import Collection

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from broker.administration_contract import BrokerMonitor, ClusterService, TopicService
from broker.cluster.ownership import OwnedElsewhere
from broker.errors import sentences
from broker.http import cluster, metadata, metrics, regular, retention, scalable, segments
from broker.http.credentials import NoCredentials
from broker.http.forwarding import passes_on
from broker.http.origin import KnownHostsOnly, SameOriginOnly
from broker.http.refusals import exception_handlers, refusal
from broker.retention_policies import RetentionPolicies
from storage.metadata.store import MetadataStore


def build_application(
    topics: TopicService,
    monitor: BrokerMonitor,
    store: MetadataStore,
    ownership: ClusterService,
    *,
    hosts: Collection[str] = (),
) -> Starlette:
    """Build the ASGI application for `serve_http`; `hosts` are the host names that clients may use."""

    async def health(_request: Request) -> Response:
        problem = monitor.problem()
        return PlainTextResponse("ok") if problem is None else refusal(503, sentences(problem))

    application = Starlette(
        routes=[
            Route("/admin/v2/brokers/health", health, methods=["GET"]),
            metrics.route(monitor, ownership),
            # These routes must precede the one that answers all other paths below a topic.
            *retention.routes(RetentionPolicies(store)),
            *cluster.routes(store, ownership),
            *scalable.routes(topics),
            *segments.routes(topics),
            *regular.routes(topics),
            *metadata.routes(store),
        ],
        middleware=[Middleware(KnownHostsOnly, hosts), Middleware(SameOriginOnly), Middleware(NoCredentials)],
        exception_handlers={**exception_handlers(), OwnedElsewhere: passes_on(ownership)},
    )
    # An extra slash is a mistake in a name. A redirect would turn it into another name.
    application.router.redirect_slashes = False
    return application
