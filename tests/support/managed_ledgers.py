"""One managed ledger, opened as its owner does, filled and read by small steps."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
from trio.testing import wait_all_tasks_blocked

from storage.directory_ledger_store import DirectoryLedgerStore
from storage.ledger_chain import ManagedLedgerConfig
from storage.ledger_ids import LedgerIds
from storage.ledger_record import ManagedLedgerRecord
from storage.managed_ledger import ManagedLedger
from storage.managed_ledger_opening import open_managed_ledger
from storage.managed_ledger_record import record_key
from storage.metadata.store import Check, MetadataStore
from storage.position import EARLIEST, LATEST, Position

NAME = "segment://public/default/orders/0000-ffff-0"


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


async def open_managed(
    store: DirectoryLedgerStore,
    metadata: MetadataStore,
    *,
    name: str = NAME,
    claim: Check | None = None,
    config: ManagedLedgerConfig | None = None,
    now_ms: Callable[[], int] = lambda: 1_000,
    ids: LedgerIds | None = None,
) -> ManagedLedger:
    return await open_managed_ledger(
        name,
        metadata=metadata,
        ledgers=store,
        claim=claim,
        config=config or ManagedLedgerConfig(),
        now_ms=now_ms,
        ids=ids,
    )


@asynccontextmanager
async def rolling(ledger: ManagedLedger) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(ledger.run)
        yield
        nursery.cancel_scope.cancel()


async def publish(ledger: ManagedLedger, payloads: list[bytes], *, message_count: int = 1) -> list[Position]:
    positions = []
    for payload in payloads:
        position = ledger.append(payload, message_count=message_count)
        await ledger.confirmed.wait_for(position)
        await wait_all_tasks_blocked()
        positions.append(position)
    return positions


async def payloads(ledger: ManagedLedger, *, entries_max: int = 3, bytes_max: int = 1_000_000) -> list[bytes]:
    """Read everything in small reads, and check that positions and indexes rise without gaps."""
    found: list[bytes] = []
    at = EARLIEST
    index: int | None = None
    while entries := await ledger.read(at, upto=LATEST, entries_max=entries_max, bytes_max=bytes_max):
        assert len(entries) <= entries_max
        for entry in entries:
            assert entry.position >= at
            assert index in (None, entry.first_index)
            index = entry.first_index + entry.message_count
            at = ledger.next_after(entry.position)
        found.extend(entry.payload for entry in entries)
    return found


async def stored(metadata: MetadataStore) -> ManagedLedgerRecord:
    record = await metadata.get(record_key(NAME))
    assert record is not None
    return ManagedLedgerRecord.decode(record.value)
