"""Makes this process the broker of its id: registered, and the writer of its journal.

The metadata store may not answer meanwhile: its controller has just died, or this process stood still for so long that
its session has ended. Or another broker is recovering the journal that an earlier run left. Then the broker begins
again, for a bounded time.
"""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import structlog
import trio

from broker.cluster.absences import Absences
from broker.config import BrokerSettings
from broker.registration import BrokerRegistration
from broker.store_retry import RETRY_SECONDS
from storage.damages import Damages
from storage.directory_ledger_store import DirectoryLedgerStore, LedgerStoreConfig
from storage.errors import JournalContended
from storage.journal_records import JournalRecords
from storage.metadata.store import MetadataStore, SessionLost, StoreEnded, StoreFull, StoreUnavailable

AGAIN_SECONDS_MAX: Final = 60.0
"""How long after its first try a broker begins again."""

Register = Callable[[], Awaitable[BrokerRegistration]]
"""`register_broker` with its arguments."""

log = structlog.get_logger(__name__)


class Begun(NamedTuple):
    """What the broker holds then. The caller must run `ledgers`, and close `registration.home`."""

    registration: BrokerRegistration
    absences: Absences
    ledgers: DirectoryLedgerStore


async def begin(register: Register, settings: BrokerSettings, metadata: MetadataStore) -> Begun:
    """Register the broker that the settings name, and take over its journal.

    Raises:
        SessionLost, StoreUnavailable: the metadata store did not answer, for AGAIN_SECONDS_MAX and longer.
        JournalContended: other processes took the journal over at the same moment, for as long.
        Exception: see `register_broker` and `DirectoryLedgerStore.open`.
    """
    deadline = trio.current_time() + AGAIN_SECONDS_MAX
    while True:
        try:
            return await _take_journal(await register(), settings, metadata)
        except (StoreEnded, StoreFull):
            raise
        except (SessionLost, StoreUnavailable, JournalContended) as failed:
            if trio.current_time() >= deadline:
                raise
            log.warning("the broker cannot start yet, and tries again", reason=str(failed))
        await trio.sleep(RETRY_SECONDS)


async def _take_journal(registration: BrokerRegistration, settings: BrokerSettings, metadata: MetadataStore) -> Begun:
    home = registration.home
    absences = Absences(metadata, registration.membership, home, grace_seconds=settings.session_timeout_seconds / 2)
    ledgers = await DirectoryLedgerStore.open(
        home,
        config=LedgerStoreConfig(journal_file_bytes=int(settings.journal_file_bytes_max)),
        journals=JournalRecords(metadata, settings.data_dir),
        damages=Damages(metadata),
        require_gone=absences.require_gone,
    )
    return Begun(registration, absences, ledgers)
