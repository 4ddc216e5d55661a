"""The daemon: one process, its stores and front ends, and one broker after another, in one tree of tasks.

    front ends (listening sockets), metadata store
      └ ledger store (journal)
          └ the broker (`broker.py`), for as long as one metadata session lasts (`metadata_sessions.py`)
              └ connections, by the front ends

What is inside may use what is outside it, and ending goes from the inside out: connections end, topics write what
their cursors still hold, then the journal and the metadata log close.
"""

from contextlib import AsyncExitStack
from typing import Final

import trio

from broker.broker import Broker, Foundation
from broker.budgets import Budgets
from broker.config import BrokerSettings
from broker.descriptors import connections_possible
from broker.front_ends import Ready, open_front_ends
from broker.loop_monitor import LoopMonitor
from broker.metadata_place import open_metadata
from broker.metadata_sessions import serve_sessions
from broker.registration import register_broker
from storage.clock import SteadyClock
from storage.directory_ledger_store import DirectoryLedgerStore, LedgerStoreConfig
from storage.files import DiskFiles
from storage.journal_records import JournalRecords
from storage.metadata.store import Session

SESSION_TIMEOUT_SECONDS: Final = 10.0
"""How long after its broker fell silent a claim is released, where the metadata store outlives the broker."""

CURSORS_SECONDS_MAX: Final = 2.5
"""How long cursors may take to write what they hold, once the broker is to stop. What is not written then is left as by
a kill: it is delivered again."""

FAREWELL_SECONDS_MAX: Final = 1.0
"""How long the end of the broker's session may take then. A stop takes at most 5 s in all; the command sees to that."""


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
    async with AsyncExitStack() as stack:
        front_ends = await stack.enter_async_context(open_front_ends(settings))
        files = DiskFiles()
        metadata = await stack.enter_async_context(open_metadata(settings, files))
        registration = await register_broker(
            settings, files, metadata, front_ends.service_url, timeout_seconds=SESSION_TIMEOUT_SECONDS
        )
        stack.callback(registration.home.close)
        ledgers = await DirectoryLedgerStore.open(
            registration.home,
            config=LedgerStoreConfig(journal_file_bytes=int(settings.journal_file_bytes_max)),
            journals=JournalRecords(metadata, settings.data_dir),
            is_alive=registration.membership.is_alive,
        )
        nursery = await stack.enter_async_context(trio.open_nursery())
        await nursery.start(ledgers.run)
        foundation = Foundation(
            settings=settings,
            version=version,
            service_url=front_ends.service_url,
            metadata=metadata,
            ledgers=ledgers,
            now_ms=SteadyClock(),
            budgets=Budgets.of(int(settings.client_memory_bytes_max), connections_max),
            loop=loop or LoopMonitor(),
        )
        is_ready = trio.Event()

        async def serve_session(session: Session) -> None:
            async with trio.open_nursery() as tasks:
                # Ledgers of an earlier session. Whoever took over its topics need not fence the journal of all of them.
                # On a full disk that waits for space, and meanwhile the broker serves what can be read.
                await tasks.start(ledgers.close_all)
                await registration.membership.register(session, timeout_seconds=SESSION_TIMEOUT_SECONDS)
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
                # Gives up every claim in one write, while the tasks end. Without an answer it ends by its timeout.
                with trio.move_on_after(FAREWELL_SECONDS_MAX, shield=True):
                    await session.close()

        await serve_sessions(
            metadata,
            registration.session,
            serve_session,
            front_ends.turn_away,
            stop,
            timeout_seconds=SESSION_TIMEOUT_SECONDS,
        )
        nursery.cancel_scope.cancel()
