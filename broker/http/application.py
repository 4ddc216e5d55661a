"""The ASGI application with everything that the broker serves over HTTP."""

from collections.abc import Collection, Sequence

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from broker.administration_contract import BrokerMonitor, ClusterService, TopicService
from broker.cluster.ownership import OwnedElsewhere
from broker.http import (
    backup,
    brokers,
    cluster,
    description,
    messages,
    metadata,
    metrics,
    namespaces,
    regular,
    retention,
    scalable,
    schemas,
    segments,
    tool_peeks,
    transactions,
    unserved,
)
from broker.http.credentials import NoCredentials
from broker.http.forwarding import passes_on
from broker.http.origin import KnownHostsOnly, SameOriginOnly
from broker.http.refusals import exception_handlers
from broker.namespaces import Namespaces
from broker.retention import INFINITE_RETENTION, Retention
from broker.retention_policies import RetentionPolicies
from storage.backup.cut import BackupCuts
from storage.metadata.store import MetadataStore


def build_application(
    topics: TopicService,
    monitor: BrokerMonitor,
    store: MetadataStore,
    ownership: ClusterService,
    *,
    hosts: Collection[str] = (),
    version: str = "unknown",
    console: Sequence[BaseRoute] = (),
    cuts: BackupCuts | None = None,
    retention_default: Retention = INFINITE_RETENTION,
) -> Starlette:
    """Build the ASGI application for `serve_http`.

    `hosts` are the host names that clients may use. `console` are the routes of the console, if it is served.
    `cuts` makes the cuts of backups; None if there is no data folder. `retention_default` applies where no policy is
    stored.
    """
    policies = RetentionPolicies(store, retention_default)
    calls = [
        *brokers.calls(monitor, store, version=version),
        metrics.call(monitor, ownership),
        *namespaces.calls(Namespaces(store), policies),
        *retention.calls(policies),
        *cluster.calls(store, ownership),
        *scalable.calls(topics),
        *segments.calls(topics),
        *regular.calls(topics),
        *schemas.calls(topics),
        *messages.calls(topics),
        *tool_peeks.calls(topics),
        *transactions.calls(topics.transactions),
        *metadata.calls(store),
        *([] if cuts is None else [backup.call(cuts)]),
        *unserved.calls(),
    ]
    application = Starlette(
        routes=[*console, *description.routes(calls, version=version)],
        middleware=[Middleware(KnownHostsOnly, hosts), Middleware(SameOriginOnly), Middleware(NoCredentials)],
        exception_handlers={**exception_handlers(), OwnedElsewhere: passes_on(ownership)},
    )
    # An extra slash is a mistake in a name. A redirect would turn it into another name.
    application.router.redirect_slashes = False
    return application
