"""The daemon: one process, its stores and front ends, and one broker after another, in one tree of tasks.

    front ends (listening sockets), metadata store
      └ ledger store (journal)
          └ the broker (`broker.py`), for as long as one metadata session lasts (`metadata_sessions.py`)
              └ connections, by the front ends

An inner part may use the parts around it. The process ends from the inside out: connections end, topics write their
cursors, then the journal and the metadata log close.
"""

import os
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import trio

from broker.beginning import begin
from broker.broker import Broker, Foundation
from broker.budgets import Budgets
from broker.config import BrokerSettings
from broker.descriptors import connections_possible
from broker.front_ends import ENTRY_CODECS, Ready, Shared, open_front_ends
from broker.kafka.group_subscriptions import groups_on, offsets_of_groups
from broker.kafka.groups.offsets import forget_offsets
from broker.kafka.markers import MARKERS
from broker.loop_monitor import LoopMonitor
from broker.metadata_place import internal_address, open_metadata
from broker.metadata_sessions import serve_sessions
from broker.pulsar.conversion import ToPulsar
from broker.pulsar.tool_view import tool_view
from broker.registration import register_broker, require_local_folders
from broker.tracing.opening import open_tracing
from broker.traffic import Traffic
from storage.clock import SteadyClock
from storage.files import DiskFiles
from storage.metadata.store import Session

CURSORS_SECONDS_MAX: Final = 2.5
"""How long cursors may take to be written when the broker stops. As after a kill, messages that a cursor does not cover
by then are redelivered."""

FAREWELL_SECONDS_MAX: Final = 1.0
"""How long the end of the broker's session may take at a stop. The command limits the whole stop to 5 s."""

TRACES_SECONDS_MAX: Final = 0.5
"""How long the last spans may take to reach their collector when the broker stops."""


async def serve(
    settings: BrokerSettings,
    version: str,
    stop: trio.Event,
    *,
    loop: LoopMonitor | None = None,
    shared: Shared | None = None,
    task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a broker until `stop` is set. It reports as started once it accepts connections.

    A stop writes the cursors. A cancellation is like a kill: nothing acknowledged to a client is lost, but messages
    that were acknowledged in the last moment may be redelivered.

    `loop` measures the event loop for `/metrics`. The caller starts it once only the broker uses the loop. `shared` are
    inherited sockets that the broker serves besides its own.

    Raises:
        TracesUnavailable: the environment asks for traces that this broker cannot send.
        TooFewDescriptors: the process may not open enough files.
        ListenerError: the broker cannot listen on an address.
        NetworkFileSystem: a folder is on a network file system; nothing was changed.
        AlreadyLocked, DataFolderInUse, BrokerRuns: another process uses the same data, or has the same broker id.
        IdentityMismatch: data folder and metadata do not belong together; nothing was changed.
        CorruptMetadata, JournalDamaged: a file is damaged; the message names it.
        MetadataPlaceError, StoreUnavailable: the metadata store cannot be opened.
    """
    tracing, exporter = open_tracing(os.environ, broker_id=settings.broker_id, version=version)
    connections_max = min(settings.connections_max, connections_possible())
    async with AsyncExitStack() as stack:
        front_ends = await stack.enter_async_context(open_front_ends(settings, shared))
        files = DiskFiles()
        await files.run(require_local_folders, settings)
        metadata = await stack.enter_async_context(open_metadata(settings, files, front_ends.internal))
        register = partial(
            register_broker,
            settings,
            files,
            metadata,
            service_url=front_ends.service_url,
            http_url=front_ends.http_url,
            internal_url=None if front_ends.internal is None else internal_address(settings, front_ends.internal),
            kafka_address=front_ends.kafka_address,
            release=version,
        )
        registration, absences, ledgers = await begin(register, settings, metadata)
        stack.callback(registration.home.close)
        nursery = await stack.enter_async_context(trio.open_nursery())
        await nursery.start(ledgers.run)
        if exporter is not None:
            nursery.start_soon(exporter.run)
        traffic = Traffic()
        foundation = Foundation(
            settings=settings,
            version=version,
            service_url=front_ends.service_url,
            http_url=front_ends.http_url,
            kafka=registration.kafka,
            metadata=metadata,
            files=files,
            ledgers=ledgers,
            now_ms=SteadyClock(),
            budgets=Budgets.of(int(settings.client_memory_bytes_max), connections_max),
            codecs=ENTRY_CODECS,
            markers=MARKERS,
            traffic=traffic,
            for_subscribers=ToPulsar(traffic),
            for_tools=tool_view,
            forget_topic=forget_offsets(settings.kafka_namespace),
            groups_on=groups_on(settings.kafka_namespace),
            group_offsets=offsets_of_groups(settings.kafka_namespace),
            loop=loop or LoopMonitor(),
            tracing=tracing,
            has_ended=absences.has_ended,
        )
        is_ready = trio.Event()

        async def serve_session(session: Session) -> None:
            async with trio.open_nursery() as tasks:
                await registration.membership.register(session, timeout_seconds=settings.session_timeout_seconds)
                broker = Broker(foundation, session, tasks)
                await broker.start()
                async with trio.open_nursery() as clients:
                    ready = await clients.start(front_ends.serve, broker)
                    if not is_ready.is_set():
                        is_ready.set()
                        task_status.started(ready)
                    await stop.wait()
                    clients.cancel_scope.cancel()
                with trio.move_on_after(CURSORS_SECONDS_MAX):
                    await broker.close()
                tasks.cancel_scope.cancel()
                # This releases all claims in one write. If the store does not answer, the session times out instead.
                with trio.move_on_after(FAREWELL_SECONDS_MAX, shield=True):
                    await session.close()

        async def leave_ledgers() -> None:
            # At once, and without the metadata store, so that the topics' new owners need not fence this journal. On a
            # full disk the rest waits for space. Meanwhile the broker may serve reads under its next session.
            await nursery.start(ledgers.close_all)

        await serve_sessions(
            metadata,
            registration.session,
            serve_session,
            leave_ledgers,
            front_ends.turn_away,
            stop,
            timeout_seconds=settings.session_timeout_seconds,
        )
        if exporter is not None:
            with trio.move_on_after(TRACES_SECONDS_MAX):
                await exporter.close()
        nursery.cancel_scope.cancel()
