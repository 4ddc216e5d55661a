"""The journals of the other brokers of a data folder. Each is fenced and replayed at most once, when it must be.

This module also claims a broker's own journal, because the step is the same: make a fence with a higher epoch, and tell
the metadata store.
"""

import secrets
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from storage.broker_home import BrokerHome, epochs_of, journal_dir
from storage.damages import Damages
from storage.errors import JournalMissing, WriterAlive
from storage.fence import Fence, Owner, claim, newest_begun
from storage.journal_records import JournalRecords, require_fit
from storage.ledger_folder import LedgerFolder
from storage.metadata.store import Check
from storage.replay import finish_abandoned, take_over
from storage.writer import Writer

_NO_EPOCH: Final = 1 << 62
"""Above every epoch."""

IsAlive = Callable[[Writer], Awaitable[bool]]
"""Whether another broker of this data folder runs with this epoch of its journal."""


class OtherJournals:
    """See the module's docstring."""

    def __init__(
        self, home: BrokerHome, folder: LedgerFolder, journals: JournalRecords | None, damages: Damages, is_alive: IsAlive | None
    ) -> None:
        self._files = home.files
        self._home = home
        self._folder = folder
        self._journals = journals
        self._damages = damages
        self._is_alive = is_alive
        self._fencing = trio.Lock()

    async def fence(self, writer: Writer, ledger: int) -> None:
        """See `LedgerStore.fence`. The writer is another broker of this folder."""
        async with self._fencing:
            if await self._files.run(self._is_complete, writer, ledger):
                return
            if self._is_alive is not None and await self._is_alive(writer):
                raise WriterAlive(writer)
            fence, under = await claim_journal(self._home, writer.broker, self._journals, secrets.randbits)
            directory = journal_dir(self._home.data_dir, writer.broker)
            takeover = await self._files.run(take_over, self._files, directory, self._folder, fence)
            await self._damages.note(takeover.damages, broker_id=writer.broker, under=under)
            await self._files.run(finish_abandoned, self._files, directory, takeover)

    def _is_complete(self, writer: Writer, ledger: int) -> bool:
        """Whether the journal has begun a later epoch, or the writer has closed this ledger.

        In both cases, everything that the writer confirmed there is in the ledger's file.
        """
        directory = journal_dir(self._home.data_dir, writer.broker)
        newest = None
        if self._files.exists(directory):
            newest = newest_begun(self._files, directory, below=_NO_EPOCH)
        if newest is None or newest[0] < writer.epoch:
            raise JournalMissing(writer, directory)
        if newest[0] == writer.epoch and newest[1].owner.stream != writer.stream:
            raise JournalMissing(writer, directory)
        return newest[0] > writer.epoch or ledger < newest[1].closed_below


async def claim_journal(
    home: BrokerHome, broker_id: str, journals: JournalRecords | None, random_bits: Callable[[int], int]
) -> tuple[Fence, Check | None]:
    """Fence the journal of a broker of this folder, and record the new epoch in the metadata store.

    Returns the fence, and a condition that holds until another process takes over the journal.
    """
    recorded = None
    if journals is not None:
        recorded = await journals.read(broker_id)
        epochs = await home.files.run(epochs_of, home.files, home.data_dir, broker_id)
        require_fit(broker_id, home.data_dir, home.folder_id, recorded, epochs)
    owner = Owner(home.folder_id, broker_id, random_bits(64), None if recorded is None else recorded.life)
    fence = await home.files.run(claim, home.files, journal_dir(home.data_dir, broker_id), owner)
    if journals is None:
        return fence, None
    return fence, await journals.advance(recorded, Writer(home.folder_id, broker_id, fence.epoch, fence.stream))
