"""A `LedgerStore` in a directory, for one machine. Several brokers may share the folder.

    <data>/ledgers/                          see `ledger_folder`
    <data>/brokers/<broker id>/lock          held while the broker runs; a free one proves that it has ended
    <data>/brokers/<broker id>/journal/      see `journal_files` and `fence`

There is one durability policy, `fsync`: an entry is confirmed after a sync of the journal. A policy that leaves the
sync to the operating system is left out. It would be a second path to the disk, with torn tails of its own, and the
journal's shared sync costs little.
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog
import trio

from storage.aborted_index import AbortedSpan
from storage.broker_home import BrokerHome
from storage.damages import Damages
from storage.errors import JournalMissing, LedgerFailed, LedgerNotMade, LedgerOutOfReach, NoSpace, fresh
from storage.fence import Fence
from storage.files import DiskFull
from storage.hidden_entries import Hidden, HiddenEntries
from storage.journal import JOURNAL_FILE_BYTES, Journal, JournalStatistics
from storage.journal_records import JournalRecords
from storage.journal_recovery import JournalRecovery, RequireGone, claim_own_journal
from storage.ledger import DirectoryOpenLedger, DirectorySealedLedger
from storage.ledger_folder import LedgerFolder
from storage.ledger_store import OpenLedger
from storage.position import Position
from storage.replay import Takeover, finish, take_over
from storage.watermark import Watermark
from storage.write_behind import TAIL_BYTES_MAX, WriteBehind, WriteBehindStatistics
from storage.writer import Writer

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LedgerStoreConfig:
    """Sizes, in bytes."""

    journal_file_bytes: int = JOURNAL_FILE_BYTES
    """Size of a journal file. Four full files are kept before a checkpoint frees them."""
    tail_bytes_max: int = TAIL_BYTES_MAX
    """The newest entries kept in memory for readers, over all ledgers."""


@dataclass(frozen=True, slots=True)
class LedgerStoreStatistics:
    """A snapshot for metrics."""

    open_ledgers: int
    journal: JournalStatistics
    write_behind: WriteBehindStatistics


class DirectoryLedgerStore:
    """A `LedgerStore` in a directory, and the one writer of this broker's journal.

    store = await DirectoryLedgerStore.open(await BrokerHome.enter(files, data_dir, folder_id, broker_id))
    await nursery.start(store.run)
    """

    def __init__(
        self,
        home: BrokerHome,
        folder: LedgerFolder,
        journal: Journal,
        write_behind: WriteBehind,
        takeover: Takeover,
        damages: Damages,
        recovery: JournalRecovery,
    ) -> None:
        self._files = home.files
        self._home = home
        self._folder = folder
        self._journal = journal
        self._write_behind = write_behind
        self._damages = damages
        self._recovery = recovery
        self._wanted: set[int] = set()
        """Ledgers without a file whose creators wait for `_making`."""
        self._making = trio.Lock()
        self._open: dict[int, DirectoryOpenLedger] = {}
        self._newest_id = -1
        """The greatest id of a ledger made here. The ids of one process rise (`LedgerIds`)."""
        self._closed_below = 0
        """Ledgers with lower ids accept no more entries."""
        self._noted_below = 0
        """Ledgers with lower ids are closed, and the fence says so."""
        self.takeover = takeover
        """What the start found: replayed blocks, lost batches, foreign files."""

    @classmethod
    async def open(
        cls,
        home: BrokerHome,
        config: LedgerStoreConfig | None = None,
        *,
        journals: JournalRecords,
        damages: Damages,
        require_gone: RequireGone,
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> "DirectoryLedgerStore":
        """Take over the broker's journal, bring its entries into the ledgers, and be ready to `run`.

        Holds `home` until `run` ends or `close` is called. If this raises, it closes `home`.

        Args:
            home: the broker's place. No other process holds it.
            config: sizes.
            journals: the metadata store's records of the brokers' journals.
            damages: the metadata store's records of ledgers that lost entries.
            require_gone: asked before another broker's journal is fenced.
            random_bits: makes the stream.

        Raises:
            IdentityMismatch: this journal is not the newest state of the one that the metadata store knows.
            JournalContended: another process takes it over at the same time.
            JournalDamaged: the damage does not show which ledgers lost entries.
        """
        folder = LedgerFolder(home.files, home.data_dir / "ledgers")
        try:
            fence, under = await claim_own_journal(home, journals, random_bits)
            takeover = await home.files.run(_replay, home, folder, fence)
            await damages.note(takeover.damages, broker_id=home.broker_id, under=under)
            config = config or LedgerStoreConfig()
            write_behind = WriteBehind(folder, tail_bytes_max=config.tail_bytes_max)
            journal = await home.files.run(_begin, home, takeover, write_behind, config.journal_file_bytes)
        except BaseException:
            folder.open_files.close()
            home.close()
            raise
        recovery = JournalRecovery(home, folder, journals, damages, require_gone, random_bits)
        return cls(home, folder, journal, write_behind, takeover, damages, recovery)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until cancelled. Then every waiter gets `LedgerFailed`, and the store is closed.

        Started once the journal file behind the first one exists. On a full disk, that is when space is freed.

        Raises:
            LedgerFailed: the disk failed, or another process took over (`Fenced`). No entry is confirmed any more.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._journal.run)
                nursery.start_soon(self._journal.make_files)
                nursery.start_soon(self._write_files)
                # Not earlier, because the first entry would be refused.
                await self._journal.wait_next_file()
                task_status.started()
                await self._journal.wait_failed()
                nursery.cancel_scope.cancel()
        finally:
            self.close()
        # A cancellation from outside raises in the nursery. Here, the writer ended by itself.
        failure = self._journal.failure
        assert failure is not None, "the journal said that it failed"
        raise fresh(failure)

    def close(self) -> None:
        """Release everything.

        For a store that was opened and not run. Syncs nothing, because recovery needs no clean end.
        """
        self._fail(LedgerFailed("the store was closed"))
        self._journal.close()
        self._folder.open_files.close()
        self._home.close()

    @property
    def writer(self) -> Writer:
        """See `LedgerStore`."""
        return _writer_of(self._home, self.takeover.fence)

    @property
    def failure(self) -> LedgerFailed | None:
        """Why nothing more is confirmed, or None."""
        return self._journal.failure

    @property
    def shortage(self) -> str | None:
        """See `LedgerStore`."""
        return self._journal.shortage or self._journal.next_file_shortage

    def require_space(self) -> None:
        """See `LedgerStore`."""
        self._journal.require_space()

    @property
    def room_bytes(self) -> int:
        """Bytes that may be appended, over all ledgers, before `OpenLedger.wait_room` waits. May be negative."""
        return self._journal.room_bytes

    async def create(self, ledger: int, *, confirmed: Watermark | None = None) -> DirectoryOpenLedger:
        """See `LedgerStore`."""
        assert ledger >= self._closed_below, "others may take it for closed"
        await self._make_file(ledger)
        made = DirectoryOpenLedger(ledger, self._folder, self._journal, confirmed)
        self._journal.register(made)
        self._open[ledger] = made
        self._newest_id = max(self._newest_id, ledger)
        return made

    async def _make_file(self, ledger: int) -> None:
        """Make the ledger's file. Files that are wanted at the same time share one sync."""
        self._wanted.add(ledger)
        async with self._making:
            if ledger not in self._wanted:
                return
            batch, self._wanted = self._wanted, set()
            try:
                await self._files.run(self._folder.make, tuple(batch))
            except BaseException as error:
                # The other creators try again themselves.
                self._wanted |= batch - {ledger}
                if isinstance(error, DiskFull):
                    raise NoSpace(f"the disk is full: the file of ledger {ledger} cannot be made") from error
                if isinstance(error, OSError):
                    raise LedgerNotMade(f"ledger {ledger} could not be made: {error}") from error
                raise

    def abandon(self, ledger: OpenLedger) -> None:
        """See `LedgerStore`."""
        assert isinstance(ledger, DirectoryOpenLedger), "this store made it"
        assert not ledger.next_entry, "entries are appended only once the record is written"
        ledger.close()
        self._journal.unregister(ledger)
        self._open.pop(ledger.id, None)

    def require_within_reach(self, writer: Writer) -> None:
        """See `LedgerStore`."""
        if writer.folder != self._home.folder_id:
            raise LedgerOutOfReach(writer, self._home.folder_id, self._home.data_dir)

    async def close_all(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Close every open ledger, and note that in the fence for later owners. Durable on return.

        For a broker that lost its claims but runs on. Others may then take over its topics without fencing its journal.
        Started once these ledgers accept no more entries. While the disk is full, the rest waits for space.

        Raises:
            LedgerFailed: the writer has ended.
        """
        left = tuple(self._open.values())
        for ledger in left:
            ledger.close()
        # Ledgers made meanwhile have greater ids and are not closed.
        self._closed_below = below = self._newest_id + 1
        task_status.started()
        for ledger in left:
            await self.seal(ledger)
        if self._noted_below < below:
            await self._files.run(self.takeover.fence.note_closed, below)
            self._noted_below = below

    async def fence(self, writer: Writer, ledger: int) -> None:
        """See `LedgerStore`.

        In a directory, the fence is that of the journal, so all ledgers of that journal are recovered at once.
        """
        self.require_within_reach(writer)
        if writer.broker == self._home.broker_id:
            if writer.epoch > self.writer.epoch:
                raise JournalMissing(writer, self._home.journal)
            return  # The start replayed earlier epochs, and `recover` seals the open ledgers of this one.
        await self._recovery.fence(writer, ledger)

    async def seal(self, ledger: OpenLedger) -> DirectorySealedLedger:
        """See `LedgerStore`."""
        assert isinstance(ledger, DirectoryOpenLedger), "this store made it"
        last_entry = await _end(ledger)
        await self._write_behind.flush(ledger.log)
        ledger.log.is_growing = False
        self._journal.unregister(ledger)
        self._open.pop(ledger.id, None)
        return DirectorySealedLedger(ledger.id, last_entry, self._folder, ledger.log)

    async def left_open(self, ledger: int) -> DirectoryOpenLedger | None:
        """See `LedgerStore`."""
        mine = self._open.get(ledger)
        if mine is not None:
            await _end(mine)
        return mine

    async def recover(self, ledger: int) -> DirectorySealedLedger:
        """See `LedgerStore`."""
        mine = self._open.get(ledger)
        if mine is not None:
            return await self.seal(mine)
        found = DirectorySealedLedger(ledger, -1, self._folder, lost=await self._damages.of(ledger))
        log = await found.log()
        if log.damage is not None:
            raise fresh(log.damage)
        found.last_entry = log.index.last_entry
        return found

    async def open_sealed(self, ledger: int, last_entry: int) -> DirectorySealedLedger:
        """See `LedgerStore`."""
        return DirectorySealedLedger(ledger, last_entry, self._folder)

    async def delete(self, ledger: int) -> None:
        """See `LedgerStore`."""
        mine = self._open.pop(ledger, None)
        if mine is not None:
            await _end(mine)
            self._journal.unregister(mine)
        await self._journal.note_deleted(ledger)
        await self._write_behind.remove(ledger)
        await self._damages.forget(ledger)

    async def remove_empty(self, ledger: int) -> None:
        """See `LedgerStore`. Not synced: a file that returns after a loss of power is empty and has no record."""
        mine = self._open.pop(ledger, None)
        if mine is not None:
            self._journal.unregister(mine)
        try:
            await self._files.run(self._folder.remove_empty, ledger)
        except OSError as error:
            log.warning("the file of an empty ledger stays", ledger=ledger, reason=str(error))

    async def missing(self, ledgers: Sequence[int]) -> list[int]:
        """See `LedgerStore`."""
        return await self._files.run(self._folder.missing, tuple(ledgers))

    async def store_aborted(self, ledger: int, spans: Iterable[AbortedSpan], *, owner: int) -> None:
        """See `LedgerStore`."""
        try:
            await self._files.run(self._folder.store_aborted, ledger, tuple(spans), owner)
        except DiskFull as full:
            raise NoSpace(f"the disk is full: {full.filename} cannot be made") from full

    async def load_aborted(self, ledger: int, *, owner: int, spans_min: int) -> tuple[AbortedSpan, ...]:
        """See `LedgerStore`."""
        return await self._files.run(self._folder.load_aborted, ledger, owner, spans_min)

    async def store_hidden(self, ledger: int, hidden: HiddenEntries) -> None:
        """See `LedgerStore`."""
        try:
            await self._files.run(self._folder.store_hidden, ledger, hidden.encode(ledger))
        except DiskFull as full:
            raise NoSpace(f"the disk is full: {full.filename} cannot be made") from full

    async def load_hidden_total(self, ledger: int) -> Hidden | None:
        """See `LedgerStore`."""
        return await self._files.run(self._folder.load_hidden_total, ledger)

    async def load_hidden(self, ledger: int) -> HiddenEntries | None:
        """See `LedgerStore`."""
        return await self._files.run(self._folder.load_hidden, ledger)

    def statistics(self) -> LedgerStoreStatistics:
        """Counters at this moment."""
        return LedgerStoreStatistics(len(self._open), self._journal.statistics(), self._write_behind.statistics())

    async def _write_files(self) -> None:
        try:
            await self._write_behind.run()
        except LedgerFailed as failed:
            self._fail(failed)
        except OSError as error:
            failure = LedgerFailed(f"a ledger file could not be written: {error}")
            failure.__cause__ = error
            self._fail(failure)

    def _fail(self, cause: LedgerFailed) -> None:
        self._journal.fail(cause)
        self._write_behind.fail(self._journal.failure or cause)


async def _end(ledger: DirectoryOpenLedger) -> int:
    """Accept no more entries, and wait for the accepted ones. The number of the last one, -1 if there is none."""
    ledger.close()
    last_entry = ledger.next_entry - 1
    if last_entry >= 0:
        # Nothing is ever confirmed at the place before the first entry.
        await ledger.confirmed.wait_for(Position(ledger.id, last_entry))
    return last_entry


def _replay(home: BrokerHome, folder: LedgerFolder, fence: Fence) -> Takeover:
    home.files.make_dir(folder.path)
    return take_over(home.files, home.journal, folder, fence)


def _begin(home: BrokerHome, takeover: Takeover, write_behind: WriteBehind, file_bytes: int) -> Journal:
    journal = Journal(home.files, home.journal, fence=takeover.fence, write_behind=write_behind, file_bytes=file_bytes)
    journal.begin()
    finish(home.files, home.journal, takeover)
    return journal


def _writer_of(home: BrokerHome, fence: Fence) -> Writer:
    return Writer(home.folder_id, home.broker_id, fence.epoch, fence.stream)
