"""Managed ledgers that brokers leave open, and the survivors that recover them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from broker.cluster.recovery import DeadBrokers
from storage.directory_ledger_store import DirectoryLedgerStore
from storage.journal_records import JournalRecords
from storage.ledger_chain import ManagedLedgerConfig
from storage.ledger_record import ManagedLedgerRecord
from storage.managed_ledger import ManagedLedger
from storage.managed_ledger_opening import open_managed_ledger
from storage.managed_ledger_record import record_key
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Committed, Op, Record
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import DATA, IsAlive, ledger_store


async def opened(name: str, metadata: MemoryStore, store: DirectoryLedgerStore) -> ManagedLedger:
    """Open this managed ledger for appending."""
    config = ManagedLedgerConfig()
    return await open_managed_ledger(
        name, metadata=metadata, ledgers=store, claim=None, config=config, now_ms=lambda: 1_000
    )


async def publish(topic: ManagedLedger, payload: bytes) -> None:
    """Append an entry and wait until it is confirmed."""
    await topic.confirmed.wait_for(topic.append(payload))


async def stored(name: str, metadata: MemoryStore) -> ManagedLedgerRecord:
    """Return its list of ledgers."""
    record = await metadata.get(record_key(name))
    assert record is not None
    return ManagedLedgerRecord.decode(record.value)


class Counting(MemoryStore):
    """Counts what is read and written."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    async def get(self, key: str) -> Record | None:
        self.calls += 1
        return await super().get(key)

    async def commit(self, ops: Sequence[Op]) -> Committed:
        self.calls += 1
        return await super().commit(ops)


@asynccontextmanager
async def survivor(
    metadata: MemoryStore, files: SimulatedFiles, name: str = "two", *, is_alive: IsAlive | None = None
) -> AsyncIterator[DeadBrokers]:
    """The recoveries of the broker `name`, which has a session of 10 s. `run` is the caller's."""
    async with ledger_store(files, broker_id=name, metadata=metadata, is_alive=is_alive) as store:
        session = await metadata.open_session(10)
        yield DeadBrokers(metadata, store, JournalRecords(metadata, DATA), session, broker_id=name)
