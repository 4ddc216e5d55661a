"""Recovery of a dead broker's journal by another broker of its folder: once for each life of the journal, exactly.

    X is the dead broker, n the epoch of its last writer, S the broker that recovers it.

    step                                          | what a crash or a stall of S behind it leaves
    J1  X is not registered, and shown to be gone | nothing
    J2  ephemeral record /recovering/X            | it ends with S's session, and the next broker goes on
    J3  CAS /journals/X: epoch k is pending, if X | the next broker reserves k+1. X, when it comes back, takes a
        is still not registered; k is above every |   number above every fence and every pending epoch
        fence and every pending epoch             |
    J4  make fence-k, exactly. If it exists, or a | X's old writer confirms nothing more. If S wakes up late, k is
        later one does, give up                   |   below the living writer's epoch, which does not look there
    J5  replay the journal into the ledger files  | anybody repeats it: the same bytes at the same offsets
    J6  record the damage, if /journals/X has not | a stale recoverer fails here, and its findings count nothing
        changed since J3                          |
    J7  the first journal file of epoch k; the    | epoch k has begun, so every new owner reads and serves. A stale
        old files go                              |   recoverer finds that its fence is gone
    J8  CAS /journals/X: the epoch is k           | whoever asks next does this step

Then the ends of X's ledgers can be recorded (`managed_ledger_opening.record_ends`). A broker's own start does J4 to J7
in the same order. It writes `/journals/X` right behind J4, so a recovery that is under way fails at J6 or J8.

The brokers of one folder share one journal for all ledgers of each. So a living broker is never fenced: it is asked to
close its ledgers, and its fence file says when it has done so.
"""

import secrets
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import trio

from storage.broker_home import BrokerHome, epochs_of, journal_dir
from storage.damages import Damages
from storage.epoch_files import EpochTaken
from storage.errors import Fenced, JournalContended, JournalDamaged, JournalMissing, NoSpace
from storage.fence import Fence, Owner, claim, claim_exactly, newest_begun
from storage.files import DiskFull
from storage.journal_records import JournalRecords, Pending, Recorded, require_fit
from storage.ledger_folder import LedgerFolder
from storage.metadata.store import Check, Session
from storage.replay import Takeover, finish_abandoned, take_over
from storage.writer import Epoch, Writer

READ_AGAIN_SECONDS: Final = 0.1
"""The time between two readings of a damaged journal. Its fenced writer may be inside its last write."""

_NO_EPOCH: Final = 1 << 62
"""Above every epoch."""


class Absent(NamedTuple):
    """Shows that a broker is gone, and under which session this broker recovers its journal."""

    condition: Check | None = None
    """Holds until that broker registers again. None: brokers are not registered."""
    session: Session | None = None
    """The session for the ephemeral record. None: no other broker recovers journals."""


RequireGone = Callable[[Writer, str | None], Awaitable[Absent]]
"""Shows that the broker of this writer is gone. The text is the name of the lock that it held, if it is known.

Raises:
    WriterAlive: it runs, or may still run.
"""


class JournalRecovery:
    """See the module's docstring. Recovers on behalf of one broker."""

    def __init__(
        self,
        home: BrokerHome,
        folder: LedgerFolder,
        journals: JournalRecords,
        damages: Damages,
        require_gone: RequireGone,
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self._files = home.files
        self._home = home
        self._folder = folder
        self._journals = journals
        self._damages = damages
        self._require_gone = require_gone
        self._random_bits = random_bits
        self._recovering = trio.Lock()

    async def fence(self, writer: Writer, ledger: int) -> None:
        """See `LedgerStore.fence`. The writer is another broker of this folder."""
        async with self._recovering:
            begun = await self._files.run(self._begun_behind, writer, ledger)
            if begun is not None:
                if begun != writer.life:
                    await self._catch_up(writer.broker, begun)
                return
            await self._recover(writer)

    def _begun_behind(self, writer: Writer, ledger: int) -> Epoch | None:
        """The newest epoch that the journal has begun, if everything that the writer confirmed is in the ledger's file.

        That is so if this epoch is a later one, or if the writer has closed the ledger.
        """
        directory = journal_dir(self._home.data_dir, writer.broker)
        newest = None
        if self._files.exists(directory):
            newest = newest_begun(self._files, directory, below=_NO_EPOCH)
        if newest is None or newest[0] < writer.epoch:
            raise JournalMissing(writer, directory)
        epoch, record = newest
        if epoch == writer.epoch and record.owner.stream != writer.stream:
            raise JournalMissing(writer, directory)
        is_complete = epoch > writer.epoch or ledger < record.closed_below
        return Epoch(epoch, record.owner.stream) if is_complete else None

    async def _recover(self, writer: Writer) -> None:
        broker_id = writer.broker
        data_dir = self._home.data_dir
        known = await self._journals.read(broker_id)
        if known is None:
            raise JournalMissing(writer, journal_dir(data_dir, broker_id))
        gone = await self._require_gone(writer, known.lock)
        async with self._journals.announced(broker_id, self._home.broker_id, gone.session):
            epochs = await self._files.run(epochs_of, self._files, data_dir, broker_id)
            require_fit(broker_id, data_dir, self._home.folder_id, known, epochs)
            highest = max([known.highest, *epochs])
            pending = Pending(highest + 1, self._random_bits(64), self._home.broker_id)
            owner = Owner(self._home.folder_id, broker_id, pending.stream, known.life)
            reserved = await self._journals.reserve(broker_id, known, pending, gone.condition)
            try:
                await self._take_over(broker_id, owner, reserved)
            except (EpochTaken, Fenced) as taken:
                raise JournalContended(broker_id) from taken
            except DiskFull as full:
                raise NoSpace(f"the disk is full: the journal of broker {broker_id} cannot be recovered") from full

    async def _take_over(self, broker_id: str, owner: Owner, reserved: Recorded) -> None:
        """J4 to J8."""
        assert reserved.pending is not None, "the epoch is reserved"
        epoch = reserved.pending.epoch
        directory = journal_dir(self._home.data_dir, broker_id)
        fence = await self._files.run(claim_exactly, self._files, directory, owner, epoch)
        takeover = await self._replay(broker_id, fence)
        under = self._journals.unchanged(broker_id, reserved)
        await self._damages.note(takeover.damages, broker_id=broker_id, under=under)
        await self._files.run(finish_abandoned, self._files, directory, takeover)
        await self._journals.advance(reserved, Writer(owner.folder, broker_id, epoch, owner.stream), reserved.lock)

    async def _replay(self, broker_id: str, fence: Fence) -> Takeover:
        """Replay. Damage counts once two readings in a row find the same."""
        seen: object = None
        while True:
            found = await self._files.run(self._read, broker_id, fence)
            finding: object = str(found) if isinstance(found, JournalDamaged) else found.quarantined
            if not finding or finding == seen:
                break
            seen = finding
            await trio.sleep(READ_AGAIN_SECONDS)
        if isinstance(found, JournalDamaged):
            raise found
        return found

    def _read(self, broker_id: str, fence: Fence) -> Takeover | JournalDamaged:
        try:
            return take_over(self._files, journal_dir(self._home.data_dir, broker_id), self._folder, fence)
        except JournalDamaged as damaged:
            return damaged

    async def _catch_up(self, broker_id: str, begun: Epoch) -> None:
        """J8, if the recoverer that began this epoch did not get there."""
        known = await self._journals.read(broker_id)
        if known is not None and known.pending is not None and known.pending.life == begun:
            await self._journals.advance(known, Writer(known.folder, broker_id, *begun), known.lock)


async def claim_own_journal(
    home: BrokerHome, journals: JournalRecords, random_bits: Callable[[int], int]
) -> tuple[Fence, Check]:
    """Fence the earlier writers of this broker's own journal, and record the new epoch.

    Returns the fence, and a condition that holds until another process takes over the journal.
    """
    recorded = await journals.read(home.broker_id)
    epochs = await home.files.run(epochs_of, home.files, home.data_dir, home.broker_id)
    require_fit(home.broker_id, home.data_dir, home.folder_id, recorded, epochs)
    owner = Owner(home.folder_id, home.broker_id, random_bits(64), None if recorded is None else recorded.life)
    above = 0 if recorded is None else recorded.highest
    fence = await home.files.run(claim, home.files, home.journal, owner, above)
    writer = Writer(home.folder_id, home.broker_id, fence.epoch, fence.stream)
    return fence, await journals.advance(recorded, writer, home.lock_name)
