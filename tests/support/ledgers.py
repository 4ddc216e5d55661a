"""A ledger store on a simulated disk, run for the length of a context.

    async with ledger_store(SimulatedFiles(seed=1)) as store:
        ledger = await store.create(1)

The writer's own end (a failed disk, a fence) does not end the test: it looks at `store.failure`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio

from storage import broker_home
from storage.broker_home import BrokerHome
from storage.damages import Damages
from storage.directory_ledger_store import DirectoryLedgerStore, LedgerStoreConfig
from storage.entry import Entry, encode_batch, encode_entry
from storage.errors import LedgerFailed, WriterAlive
from storage.journal_block import Part, WrittenPart
from storage.journal_records import JournalRecords
from storage.journal_recovery import Absent, RequireGone
from storage.ledger_store import OpenLedger
from storage.metadata.memory import MemoryStore
from storage.metadata.store import MetadataStore
from storage.position import Position
from storage.writer import Writer
from tests.support.disk import SimulatedFiles

DATA = Path("/data")
LEDGERS = DATA / "ledgers"


FOLDER = "the-folder"
"""Identity of the data folder, unless a test names another."""


def journal_dir(broker_id: str = "broker-1") -> Path:
    """Return that broker's journal folder."""
    return broker_home.journal_dir(DATA, broker_id)


IsAlive = Callable[[Writer], Awaitable[bool]]
"""Whether the broker of this writer runs."""


def require_gone(is_alive: IsAlive | None) -> RequireGone:
    """The store's question to the registrations, answered by the test. None: nobody runs."""

    async def require(writer: Writer, _lock: str | None) -> Absent:
        if is_alive is not None and await is_alive(writer):
            raise WriterAlive(writer)
        return Absent()

    return require


@asynccontextmanager
async def ledger_store(
    files: SimulatedFiles,
    *,
    broker_id: str = "broker-1",
    folder: str = FOLDER,
    is_alive: IsAlive | None = None,
    metadata: MetadataStore | None = None,
    journal_file_bytes: int = 64 * 1024,
    tail_bytes_max: int = 64 * 1024 * 1024,
) -> AsyncIterator[DirectoryLedgerStore]:
    """Open a store, and run its writer. Stores that take over each other's journals share their metadata."""
    metadata = metadata or MemoryStore()
    config = LedgerStoreConfig(journal_file_bytes=journal_file_bytes, tail_bytes_max=tail_bytes_max)
    home = await BrokerHome.enter(files, DATA, folder, broker_id)
    store = await DirectoryLedgerStore.open(
        home,
        config,
        journals=JournalRecords(metadata, DATA),
        damages=Damages(metadata),
        require_gone=require_gone(is_alive),
        random_bits=files.random.getrandbits,
    )

    async def run(task_status: trio.TaskStatus[None]) -> None:
        with suppress(LedgerFailed):
            await store.run(task_status=task_status)

    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        yield store
        nursery.cancel_scope.cancel()


def part(ledger: int, payload: bytes, *, offset: int = 0) -> Part:
    """Make the first batch of a ledger, with one entry, and its offset in the ledger's file."""
    encoded = encode_entry(Entry(Position(ledger, 0), payload, 0, 1, 1_000))
    _, pieces = encode_batch(ledger, 0, [encoded], confirmed_before=-1, previous_crc=0)
    return Part(ledger, offset, b"".join(pieces))


def written(*parts: Part) -> list[WrittenPart]:
    """Return the parts in the form in which the journal's writer has them."""
    return [WrittenPart(each.ledger, each.offset, (each.batch,)) for each in parts]


def add(ledger: OpenLedger, payload: bytes) -> Position:
    """Append one message. Its index and time follow from its position."""
    number = ledger.next_entry
    return ledger.append(payload, first_index=number, message_count=1, timestamp_ms=1_000 + number)


async def add_all(ledger: OpenLedger, payloads: list[bytes]) -> None:
    """Append messages, each in its own block, and wait until they are durable."""
    for payload in payloads:
        await ledger.confirmed.wait_for(add(ledger, payload))


async def payloads_of(store: DirectoryLedgerStore, ledger: int) -> list[bytes]:
    """Return what the store recovers of a ledger from its file."""
    sealed = await store.recover(ledger)
    entries = await sealed.read(0, sealed.last_entry, entries_max=100_000, bytes_max=1 << 30)
    return [entry.payload for entry in entries]
