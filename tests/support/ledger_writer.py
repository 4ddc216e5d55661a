"""A process that appends to ledger 1 until its writer ends: `python -m tests.support.ledger_writer DATA BROKER_ID`.

It prints the number of every entry once it is confirmed, and finally the name of the error that ended it.
"""

import sys
from pathlib import Path

import trio

from storage.broker_home import BrokerHome
from storage.damages import Damages
from storage.directory_ledger_store import DirectoryLedgerStore
from storage.errors import LedgerFailed
from storage.files import DiskFiles
from storage.journal_records import JournalRecords
from storage.metadata.memory import MemoryStore
from tests.support.ledgers import FOLDER, add, require_gone


async def main(data: Path, broker_id: str) -> None:
    home = await BrokerHome.enter(DiskFiles(), data, FOLDER, broker_id)
    metadata = MemoryStore()
    store = await DirectoryLedgerStore.open(
        home,
        journals=JournalRecords(metadata, data),
        damages=Damages(metadata),
        require_gone=require_gone(None),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, store)
        ledger = await store.create(1)
        try:
            while True:
                position = add(ledger, b"entry %d" % ledger.next_entry)
                await ledger.confirmed.wait_for(position)
                print(position.entry, flush=True)
        except LedgerFailed as failed:
            print(type(failed).__name__, flush=True)


async def run(store: DirectoryLedgerStore) -> None:
    try:
        await store.run()
    except LedgerFailed:
        return  # Whoever appends is told, and says so.


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), sys.argv[2])
