"""Recovers what dead brokers left open: their journals are replayed, and the ends of their ledgers go on record.

A new owner of a topic would do the same for that topic. This work does it for all topics of a dead broker, also for
those that nobody asks for, and begins as soon as the broker is known to be gone. An index finds the ledgers, so the
cost is what that broker had open (C11). Several brokers may begin at once. One of them announces itself, and the others
wait for it.

    refused because                                | tried again
    another broker has announced itself            | when its announcement ends, or its session
    another process was first to take the journal  | at once: that process has moved on meanwhile
    the broker is in its grace (`absences`)        | at the end of the grace
    of disk, store, or anything else retriable     | after a pause, because no event says that it is over
    it is not retriable, or a record is damaged    | by whoever opens one of the topics
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

import structlog
import trio

from broker.cluster.membership import BROKERS
from broker.cluster.ownership import claim_key
from broker.errors import UNEXPECTED
from broker.store_retry import RETRY_SECONDS
from storage.errors import (
    Fenced,
    JournalContended,
    LedgerCorrupt,
    LedgerListCorrupt,
    LedgerOutOfReach,
    RecoveryElsewhere,
    StorageError,
    WriterAlive,
)
from storage.journal_records import JournalRecords
from storage.ledger_store import LedgerStore
from storage.managed_ledger_opening import record_ends
from storage.managed_ledger_record import left_open_by, writers_of_open_ledgers
from storage.metadata.store import ABSENT, Check, MetadataStore, Session, starting_with
from storage.writer import Writer

AT_ONCE_MAX: Final = 32
"""Ends recorded at the same time."""

log = structlog.get_logger(__name__)


class DeadBrokers:
    """See the module's docstring."""

    def __init__(
        self,
        metadata: MetadataStore,
        ledgers: LedgerStore,
        journals: JournalRecords,
        session: Session,
        *,
        broker_id: str,
    ) -> None:
        self._metadata = metadata
        self._ledgers = ledgers
        self._journals = journals
        self._session = session
        self._broker_id = broker_id
        self._recovering: dict[str, bool] = {}
        """Brokers that a task recovers. Whether it looks again behind that, because registrations have changed since.

        A broker may return meanwhile, open ledgers, and die again."""

    async def run(self) -> None:
        """Follow the registrations, and recover what absent brokers left open, until cancelled."""
        self._recovering.clear()
        registered = {self._broker_id}
        async with self._metadata.watch_range(*starting_with(BROKERS)) as watch, trio.open_nursery() as nursery:
            while True:
                change = await watch.next()
                registered -= {key.removeprefix(BROKERS) for key in change.deleted} - {self._broker_id}
                registered |= {record.key.removeprefix(BROKERS) for record in change.records}
                for broker_id in await writers_of_open_ledgers(self._metadata):
                    if broker_id in registered:
                        continue
                    if broker_id in self._recovering:
                        self._recovering[broker_id] = True
                        continue
                    nursery.start_soon(self._recover_while_absent, broker_id)
                    self._recovering[broker_id] = True

    async def _recover_while_absent(self, broker_id: str) -> None:
        try:
            while self._recovering[broker_id]:
                self._recovering[broker_id] = False
                await self._recover(broker_id)
        finally:
            del self._recovering[broker_id]

    async def _recover(self, broker_id: str) -> None:
        while await self._metadata.get(BROKERS + broker_id) is None:
            try:
                async with self._journals.announced(broker_id, self._broker_id, self._session):
                    await self._record_ends(broker_id)
            except StorageError as refused:
                if not refused.retriable:
                    # The others go on. Whoever opens one of its topics is told, and tries again.
                    log.error("a dead broker cannot be recovered", broker=broker_id, reason=str(refused))
                    return
                log.info("the recovery of a broker waits", broker=broker_id, reason=str(refused))
                await self._wait_behind(refused, broker_id)
            except UNEXPECTED as failed:
                log.error("what a dead broker left cannot be read", broker=broker_id, reason=repr(failed))
                return
            else:
                return

    async def _wait_behind(self, refused: StorageError, broker_id: str) -> None:
        """Wait for what refused the recovery. See the module's table."""
        match refused:
            case RecoveryElsewhere():
                await self._journals.wait_unannounced(broker_id)
            case JournalContended():
                return
            case WriterAlive(gone_at=float(gone_at)):
                # Its lock may be free earlier. No event says that.
                await trio.sleep_until(min(gone_at, trio.current_time() + RETRY_SECONDS))
            case _:
                await trio.sleep(RETRY_SECONDS)

    async def _record_ends(self, broker_id: str) -> None:
        """Record the ends of everything that this broker left open.

        Raises:
            StorageError: some could not be recorded. If it is retriable, another try may succeed.
            Exception: one of `UNEXPECTED`.
        """
        names = await left_open_by(broker_id, self._metadata)
        refused: list[Exception] = []
        left = iter(names)
        async with trio.open_nursery() as nursery:
            for _ in range(min(AT_ONCE_MAX, len(names))):
                nursery.start_soon(self._record_some, broker_id, left, refused)
        if refused:
            raise refused[0]
        if names:
            log.info("what a dead broker left open is recovered", broker=broker_id, topics=len(names))

    async def _record_some(self, broker_id: str, names: Iterator[str], refused: list[Exception]) -> None:
        for name in names:
            if refused:
                return
            try:
                await record_ends(
                    name,
                    metadata=self._metadata,
                    ledgers=self._ledgers,
                    claim=Check(claim_key(name), ABSENT),
                    is_left=partial(_is_of, broker_id),
                )
            except Fenced:
                continue  # A new owner has claimed it, and finds the end itself.
            except (LedgerCorrupt, LedgerListCorrupt, LedgerOutOfReach) as lost:
                log.error("the end of a topic cannot be recovered", topic=name, broker=broker_id, reason=str(lost))
            except (StorageError, *UNEXPECTED) as error:
                # It concerns the whole journal. Each further try would replay it again.
                refused.append(error)


def _is_of(broker_id: str, writer: Writer) -> bool:
    return writer.broker == broker_id
