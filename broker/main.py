"""The broker put together: settings, stores, topics, front ends, in one tree of tasks.

    metadata store
      └ ledger store (journal)
          └ what lives as long as one metadata session (`metadata_sessions.py`)
              └ claims, headers, coordinator, sweeps, topics, controller
                  └ front ends: Pulsar, HTTP

What is inside may use what is outside it, and ending goes from the inside out: connections end, topics write what
their cursors still hold, then the journal and the metadata log close.
"""

from contextlib import AsyncExitStack
from typing import Final, NamedTuple

import structlog
import trio

from broker.addresses import Address, advertised_address
from broker.administration import Administration, Monitor
from broker.background import keep_running
from broker.cluster.elections import Elections
from broker.cluster.ownership import Claims
from broker.config import BrokerSettings
from broker.descriptors import connections_possible
from broker.http.application import build_application
from broker.http.listener import serve_http
from broker.listening import open_listener
from broker.loop_monitor import LoopMonitor
from broker.metadata_place import open_metadata
from broker.metadata_sessions import again, close_connections, refuse_http, serve_sessions
from broker.names import TopicName
from broker.pulsar.budgets import Budgets
from broker.pulsar.listener import PulsarServices, serve_pulsar
from broker.registration import register_broker
from broker.retention import Retention
from broker.retention_policies import RetentionPolicies
from broker.scalable.autoscale_policy import AutoScalePolicy
from broker.scalable.autoscaler import AutoScaler
from broker.scalable.consumer_groups import ConsumerGroups
from broker.scalable.controller import Controller
from broker.scalable.feeds import LayoutFeeds
from broker.scalable.layouts import Layouts
from broker.scalable.load_reports import LoadReporter
from broker.scalable.namespaces import NamespaceFeeds
from broker.scalable.pruning import Pruner
from broker.schemas.registry import Schemas
from broker.topic import Topic
from broker.topic_services import TopicServices
from broker.topics import Topics
from broker.traffic import Traffic
from storage.clock import SteadyClock, WallClock
from storage.files import DiskFiles
from storage.journal_records import JournalRecords
from storage.ledger_ids import LedgerIds
from storage.ledger_store import DirectoryLedgerStore, LedgerStore, LedgerStoreConfig
from storage.managed_ledger import ManagedLedgerConfig
from storage.metadata.store import Check, MetadataStore, Session
from txn.alarm import Alarm
from txn.coordinator import Coordinator
from txn.counters import OpCounters
from txn.group_sweep import GroupSweep
from txn.header_watch import HeaderWatch
from txn.sweeps import HeaderSweep, TimeoutSweep

SESSION_TIMEOUT_SECONDS: Final = 10.0
"""How long after its broker fell silent a claim is released, where the metadata store outlives the broker."""

CURSORS_SECONDS_MAX: Final = 2.5
"""How long cursors may take to write what they hold, once the broker is to stop. What is not written then is left as by
a kill: it is delivered again."""

FAREWELL_SECONDS_MAX: Final = 1.0
"""How long the end of the broker's session may take then. A stop takes at most 5 s in all; the command sees to that."""

log = structlog.get_logger(__name__)


class Ready(NamedTuple):
    """Where a broker that accepts connections is to be found."""

    pulsar: Address
    http: Address


async def serve(
    settings: BrokerSettings,
    version: str,
    stop: trio.Event,
    *,
    loop: LoopMonitor | None = None,
    task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a broker until `stop` is set; started once it accepts connections.

    Stopping writes what cursors still hold. Being cancelled instead is like being killed: nothing that was promised
    is lost, but acknowledgements of the last moment may be delivered again.

    `loop` is what `/metrics` shows of the event loop. The caller watches with it, from the moment when nobody but the
    broker uses the loop.

    Raises:
        TooFewDescriptors: the process may not open enough files.
        ListenerError: an address cannot be listened on.
        AlreadyLocked, DataFolderInUse, BrokerRuns: another process works on the same data, or has the same id.
        IdentityMismatch: data folder and metadata do not belong together; nothing was changed.
        CorruptMetadata, JournalDamaged: a file is damaged; the message names it.
        MetadataPlaceError, StoreUnavailable: the metadata store cannot be had.
    """
    connections_max = min(settings.connections_max, connections_possible())
    budgets = Budgets.of(int(settings.client_memory_bytes_max), connections_max)
    async with AsyncExitStack() as stack:
        # Listeners come first: that an address is taken is found out before any file is touched.
        pulsar = await open_listener(settings.pulsar)
        stack.push_async_callback(pulsar.aclose)
        http = await open_listener(settings.http)
        stack.push_async_callback(http.aclose)
        files = DiskFiles()
        metadata = await stack.enter_async_context(open_metadata(settings, files))
        bound = Address(*pulsar.socket.getsockname()[:2])
        registration = await register_broker(settings, files, metadata, bound, timeout_seconds=SESSION_TIMEOUT_SECONDS)
        stack.callback(registration.home.close)
        ledgers = await DirectoryLedgerStore.open(
            registration.home,
            config=LedgerStoreConfig(journal_file_bytes=int(settings.journal_file_bytes_max)),
            journals=JournalRecords(metadata, settings.data_dir),
            is_alive=registration.membership.is_alive,
        )
        nursery = await stack.enter_async_context(trio.open_nursery())
        await nursery.start(ledgers.run)
        now_ms = SteadyClock()
        traffic = Traffic()

        async def serve_session(session: Session) -> None:
            async with trio.open_nursery() as tasks:
                # Ledgers of an earlier session. Whoever took over its topics need not fence the journal of all of them.
                # On a full disk that waits for space, and meanwhile the broker serves what can be read.
                await tasks.start(ledgers.close_all)
                await registration.membership.register(session, timeout_seconds=SESSION_TIMEOUT_SECONDS)
                composed = await _compose(
                    settings,
                    version,
                    metadata,
                    ledgers,
                    session,
                    tasks,
                    bound,
                    loop or LoopMonitor(),
                    traffic,
                    budgets,
                    now_ms,
                )
                async with trio.open_nursery() as front_ends:
                    front_ends.start_soon(
                        serve_pulsar,
                        again(pulsar),
                        composed.pulsar,
                        lambda reached: advertised_address(settings.advertised_pulsar, bound=bound, reached=reached),
                    )
                    application = build_application(
                        composed.administration, composed.monitor, metadata, hosts=_hosts_of(settings)
                    )
                    http_bound = await front_ends.start(serve_http, application, again(http))
                    if not is_ready.is_set():
                        is_ready.set()
                        task_status.started(Ready(bound, http_bound))
                    await stop.wait()
                    front_ends.cancel_scope.cancel()
                with trio.move_on_after(CURSORS_SECONDS_MAX):
                    await composed.pulsar.topics.close()
                tasks.cancel_scope.cancel()
                # Gives up every claim in one write, while the tasks end. Without an answer it ends by its timeout.
                with trio.move_on_after(FAREWELL_SECONDS_MAX, shield=True):
                    await session.close()

        async def turn_away() -> None:
            async with trio.open_nursery() as front_ends:
                front_ends.start_soon(close_connections, again(pulsar))
                front_ends.start_soon(serve_http, refuse_http, again(http))

        is_ready = trio.Event()
        await serve_sessions(
            metadata, registration.session, serve_session, turn_away, stop, timeout_seconds=SESSION_TIMEOUT_SECONDS
        )
        nursery.cancel_scope.cancel()


class _Composed(NamedTuple):
    """What the front ends are given."""

    pulsar: PulsarServices
    administration: Administration
    monitor: Monitor


async def _compose(
    settings: BrokerSettings,
    version: str,
    metadata: MetadataStore,
    ledgers: LedgerStore,
    session: Session,
    nursery: trio.Nursery,
    bound: Address,
    loop: LoopMonitor,
    traffic: Traffic,
    budgets: Budgets,
    now_ms: WallClock,
) -> _Composed:
    """Everything between the stores and the front ends, running in `nursery` for as long as the session lasts."""
    timeouts = Alarm(now_ms)
    headers = HeaderWatch(metadata, deadlines=timeouts)
    await nursery.start(headers.run)
    retention_ms = round(settings.txn_retention_seconds * 1000)
    timeout_ms_max = round(settings.txn_timeout_seconds_max * 1000)
    # The attempts of a group are all over when it is this old.
    group_age_ms = max(timeout_ms_max, retention_ms)
    finals = Alarm(now_ms, delay_ms=retention_ms)
    forgotten = Alarm(now_ms, delay_ms=group_age_ms)
    buffers = OpCounters()
    coordinator = Coordinator(
        metadata,
        count=settings.transaction_coordinators,
        now_ms=now_ms,
        timeout_ms_max=timeout_ms_max,
        final_alarm=finals,
        once_alarm=forgotten,
        counters=buffers,
    )
    await nursery.start(coordinator.groups.run)

    advertised = advertised_address(settings.advertised_pulsar, bound=bound, reached=bound)
    claims = Claims(metadata, session, broker_id=settings.broker_id, service_url=f"pulsar://{advertised}")
    elections = Elections(claims, metadata)
    await nursery.start(elections.run)
    layouts = Layouts(metadata)
    feeds = LayoutFeeds(metadata, nursery)
    retention = RetentionPolicies(metadata, Retention(settings.retention_minutes, settings.retention_megabytes))
    await nursery.start(retention.run)
    services = TopicServices(
        metadata=metadata,
        ledgers=ledgers,
        ledger_ids=LedgerIds(metadata),
        headers=headers,
        buffers=buffers,
        ledger_config=ManagedLedgerConfig(
            ledger_bytes_max=int(settings.ledger_bytes_max),
            ledger_age_max_ms=round(settings.ledger_age_seconds_max * 1000),
        ),
        now_ms=now_ms,
        deduplicates_persistent=settings.deduplication,
        retention=retention,
    )

    async def open_topic(name: TopicName, claim: Check) -> Topic:
        return await Topic.open(name, services, claim)

    topics = Topics(claims, layouts, open_topic, services, nursery, session.id)
    groups = ConsumerGroups(
        topics,
        feeds,
        elections,
        metadata=metadata,
        nursery=nursery,
        grace_seconds=settings.consumer_session_grace_seconds,
    )
    controller = Controller(
        layouts,
        topics,
        feeds,
        groups,
        elections,
        now_ms=now_ms,
        nursery=nursery,
        metadata=metadata,
        auto_scale=AutoScalePolicy(enabled=settings.auto_scale),
    )
    await controller.recover()
    await groups.recover()
    pruner = Pruner(
        layouts,
        topics,
        feeds,
        controller.locks,
        elections,
        metadata=metadata,
        retention_ms=round(settings.segment_retention_seconds * 1000),
        now_ms=now_ms,
    )
    nursery.start_soon(keep_running, "pruning", pruner.run)

    timeout_sweep = TimeoutSweep(metadata, coordinator, now_ms=now_ms, alarm=timeouts, counters=buffers)
    nursery.start_soon(keep_running, "ending transactions at their deadline", timeout_sweep.run)
    header_sweep = HeaderSweep(
        metadata, retention_ms=retention_ms, now_ms=now_ms, alarm=finals, redrive=topics.redrive, counters=buffers
    )
    nursery.start_soon(keep_running, "forgetting finished transactions", header_sweep.run)
    group_sweep = GroupSweep(metadata, age_ms=group_age_ms, now_ms=now_ms, alarm=forgotten, counters=buffers)
    nursery.start_soon(keep_running, "forgetting transaction groups", group_sweep.run)
    reporter = LoadReporter(topics, services.activity, metadata=metadata, session=session, now_ms=now_ms)
    nursery.start_soon(keep_running, "reporting load", reporter.run)
    scaler = AutoScaler(controller, layouts, groups, metadata=metadata, now_ms=now_ms)
    nursery.start_soon(keep_running, "splitting and merging by load", scaler.run)
    pulsar = PulsarServices(
        topics=topics,
        controller=controller,
        layouts=layouts,
        feeds=feeds,
        namespaces=NamespaceFeeds(metadata, nursery),
        groups=groups,
        elections=elections,
        schemas=Schemas(metadata, now_ms),
        coordinator=coordinator,
        traffic=traffic,
        budgets=budgets,
        server_version=f"Tidewire {version}",
        message_bytes_max=int(settings.message_bytes_max),
    )
    administration = Administration(
        controller, layouts, topics, groups, initial_segments=settings.default_initial_segments
    )
    monitor = Monitor(
        topics,
        coordinator=coordinator,
        buffers=buffers,
        metadata=metadata,
        traffic=traffic,
        loop=loop,
        ledgers=ledgers,
        budgets=budgets,
    )
    return _Composed(pulsar, administration, monitor)


def _hosts_of(settings: BrokerSettings) -> set[str]:
    """The names under which HTTP clients know this broker, beside those of this machine alone."""
    addresses = {settings.http, settings.pulsar, settings.advertised_pulsar or settings.pulsar}
    return {address.host for address in addresses if not address.is_wildcard}.union(settings.http_hosts)
