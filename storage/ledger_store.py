"""Where ledgers are kept: the contract with fencing, and its first implementation, a directory.

`LedgerStore` is what managed ledgers use; a store on objects with conditional writes would keep the same promises:

- What an `OpenLedger` confirmed is there after any crash, at the position it was given, and nothing else is.
- `recover` first makes sure that no earlier writer gets anything confirmed, and only then reads. The caller records the
  end it got by a compare-and-set; nothing behind that is ever read, and writing goes on in a new ledger.
- Ledgers that were given the same `confirmed` watermark confirm in the order of their appends, across them.

`DirectoryLedgerStore`, for one machine; several brokers may share the folder:

    <data>/ledgers/                          see `ledger_folder`
    <data>/brokers/<broker id>/lock          held while the broker runs: for a good error message, not for safety
    <data>/brokers/<broker id>/journal/      see `journal_files` and `fence`

There is one durability policy, `fsync`: an entry is confirmed after a sync of the journal. A policy that leaves the
sync to the operating system is left out: it would be a second way to the disk with torn tails of its own, and the
journal's shared sync costs little.
"""

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import trio

from storage.aborted_index import AbortedSpan
from storage.errors import DataFolderInUse, LedgerFailed
from storage.files import AlreadyLocked, Files, Lock
from storage.journal import JOURNAL_FILE_BYTES, Journal, JournalStatistics
from storage.ledger import OpenLedger, SealedLedger
from storage.ledger_folder import LedgerFolder
from storage.position import Position
from storage.replay import Takeover, finish, recover_abandoned, take_over
from storage.watermark import Watermark
from storage.write_behind import TAIL_BYTES_MAX, WriteBehind, WriteBehindStatistics


class LedgerStore(Protocol):
    """See the module's docstring."""

    async def create(self, ledger: int, *, confirmed: Watermark | None = None) -> OpenLedger:
        """A new, empty ledger. Its id must never have been used; nothing is durable before its first entry is.

        Entries raise `confirmed`, or a watermark of the ledger's own.
        """
        ...

    async def seal(self, ledger: OpenLedger) -> SealedLedger:
        """Take no more entries, wait for those taken, and return the ledger with its end, complete and durable.

        Raises:
            LedgerFailed: the writer has ended; `recover` decides what is there.
        """
        ...

    async def recover(self, ledger: int) -> SealedLedger:
        """The ledger as its last writer left it, whoever that was, fenced and durable; a ledger never written is empty.

        Raises:
            LedgerCorrupt: confirmed entries are damaged or missing, so its end is not known.
        """
        ...

    async def open_sealed(self, ledger: int, last_entry: int) -> SealedLedger:
        """A ledger whose end is on record. Opens no file before it is read."""
        ...

    async def delete(self, ledger: int) -> None:
        """Remove the ledger. Durable on return: no recovery brings it back. Idempotent."""
        ...

    async def store_aborted(self, ledger: int, spans: Iterable[AbortedSpan]) -> None:
        """Write a closed ledger's aborted-transaction index in place of the one there is. Durable on return."""
        ...

    async def load_aborted(self, ledger: int, *, spans_min: int) -> tuple[AbortedSpan, ...]:
        """A ledger's aborted-transaction index, empty if it has none.

        `spans_min`: how many spans it holds at least, as the managed ledger's record says.

        Raises:
            LedgerCorrupt: it is damaged, missing or an older one.
        """
        ...


@dataclass(frozen=True, slots=True)
class LedgerStoreConfig:
    """Sizes, in bytes."""

    journal_file_bytes: int = JOURNAL_FILE_BYTES
    """A journal file; four full ones are kept before a checkpoint frees them."""
    tail_bytes_max: int = TAIL_BYTES_MAX
    """Newest entries kept in memory for readers, over all ledgers."""


@dataclass(frozen=True, slots=True)
class LedgerStoreStatistics:
    """A snapshot for metrics."""

    open_ledgers: int
    journal: JournalStatistics
    write_behind: WriteBehindStatistics


class DirectoryLedgerStore:
    """A `LedgerStore` in a directory, and the one writer of this broker's journal.

    store = await DirectoryLedgerStore.open(files, data_dir, broker_id)
    await nursery.start(store.run)
    """

    def __init__(
        self,
        files: Files,
        data_dir: Path,
        folder: LedgerFolder,
        journal: Journal,
        write_behind: WriteBehind,
        lock: Lock,
        takeover: Takeover,
    ) -> None:
        self._files = files
        self._data_dir = data_dir
        self._folder = folder
        self._journal = journal
        self._write_behind = write_behind
        self._lock = lock
        self._open: dict[int, OpenLedger] = {}
        self.takeover = takeover
        """What was found at the start: blocks replayed, ledgers quarantined, files that are not ours."""

    @classmethod
    async def open(
        cls,
        files: Files,
        data_dir: Path,
        broker_id: str,
        config: LedgerStoreConfig | None = None,
        *,
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> "DirectoryLedgerStore":
        """Take the broker's journal over, bring what it holds into the ledgers, and be ready to `run`.

        `broker_id` is a file name. Holds the lock until `run` ends, or `close`.

        Raises:
            DataFolderInUse: a broker with this id runs.
            JournalDamaged: nobody can tell which ledgers lost entries.
        """
        return await files.run(
            cls._open_blocking, files, data_dir, broker_id, config or LedgerStoreConfig(), random_bits
        )

    @classmethod
    def _open_blocking(
        cls,
        files: Files,
        data_dir: Path,
        broker_id: str,
        config: LedgerStoreConfig,
        random_bits: Callable[[int], int],
    ) -> "DirectoryLedgerStore":
        directory = _journal_dir(data_dir, broker_id)
        files.make_dir(directory)
        folder = LedgerFolder(files, data_dir / "ledgers")
        files.make_dir(folder.path)
        try:
            lock = files.lock(directory.parent / "lock")
        except AlreadyLocked as held:
            raise DataFolderInUse(f"a broker named {broker_id} already runs on {data_dir}") from held
        try:
            takeover = take_over(files, directory, folder)
            write_behind = WriteBehind(folder, tail_bytes_max=config.tail_bytes_max)
            journal = Journal(
                files,
                directory,
                fence=takeover.fence,
                stream=random_bits(64),
                write_behind=write_behind,
                file_bytes=config.journal_file_bytes,
            )
            journal.begin()
            finish(files, directory, takeover)
        except BaseException:
            folder.open_files.close()
            lock.close()
            raise
        return cls(files, data_dir, folder, journal, write_behind, lock, takeover)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until cancelled; then everything that waits gets `LedgerFailed`, and the store is closed.

        Raises:
            LedgerFailed: the disk failed; `Fenced`: another process took over. No entry is confirmed any more.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._journal.run)
                nursery.start_soon(self._journal.make_files)
                nursery.start_soon(self._write_files)
                task_status.started()
                await self._journal.wait_failed()
                nursery.cancel_scope.cancel()
        finally:
            self.close()
        # Cancelled from outside, the nursery raises; here the writer ended by itself.
        failure = self._journal.failure
        assert failure is not None, "the journal said that it failed"
        raise failure

    def close(self) -> None:
        """Let go of everything; for a store that was opened and not run. Syncs nothing: recovery needs no goodbye."""
        self._fail(LedgerFailed("the store was closed"))
        self._journal.close()
        self._folder.open_files.close()
        self._lock.close()

    @property
    def failure(self) -> LedgerFailed | None:
        """Why nothing is confirmed any more, or None."""
        return self._journal.failure

    @property
    def room_bytes(self) -> int:
        """Bytes that may be appended, over all ledgers, before `OpenLedger.wait_room` would wait; may be negative."""
        return self._journal.room_bytes

    async def create(self, ledger: int, *, confirmed: Watermark | None = None) -> OpenLedger:
        """See `LedgerStore`. Costs nothing on the disk: the file is made when there is something to write to it."""
        made = OpenLedger(ledger, self._folder, self._journal, confirmed)
        self._journal.register(made)
        self._open[ledger] = made
        return made

    async def seal(self, ledger: OpenLedger) -> SealedLedger:
        """See `LedgerStore`."""
        ledger.close()
        last_entry = ledger.next_entry - 1
        if last_entry >= 0:
            # The place before the first entry is no position that anything is ever confirmed at.
            await ledger.confirmed.wait_for(Position(ledger.id, last_entry))
        await self._write_behind.flush(ledger.log)
        ledger.log.is_growing = False
        self._journal.unregister(ledger)
        self._open.pop(ledger.id, None)
        return SealedLedger(ledger.id, last_entry, self._folder, ledger.log)

    async def recover(self, ledger: int) -> SealedLedger:
        """See `LedgerStore`. Other brokers' ledgers: `recover_broker` comes first."""
        mine = self._open.get(ledger)
        if mine is not None:
            return await self.seal(mine)
        found = SealedLedger(ledger, -1, self._folder)
        log = await found.log()
        if log.damage is not None:
            raise log.damage
        found.last_entry = log.index.last_entry
        return found

    async def open_sealed(self, ledger: int, last_entry: int) -> SealedLedger:
        """See `LedgerStore`."""
        return SealedLedger(ledger, last_entry, self._folder)

    async def delete(self, ledger: int) -> None:
        """See `LedgerStore`."""
        mine = self._open.pop(ledger, None)
        if mine is not None:
            mine.close()
            if mine.next_entry:
                await mine.confirmed.wait_for(Position(ledger, mine.next_entry - 1))
            self._journal.unregister(mine)
            if not mine.next_entry:
                return
        await self._journal.note_deleted(ledger)
        await self._write_behind.remove(ledger)

    async def store_aborted(self, ledger: int, spans: Iterable[AbortedSpan]) -> None:
        """See `LedgerStore`."""
        await self._files.run(self._folder.store_aborted, ledger, tuple(spans))

    async def load_aborted(self, ledger: int, *, spans_min: int) -> tuple[AbortedSpan, ...]:
        """See `LedgerStore`."""
        return await self._files.run(self._folder.load_aborted, ledger, spans_min)

    async def recover_broker(self, broker_id: str, *, random_bits: Callable[[int], int] = secrets.randbits) -> Takeover:
        """Fence another broker's journal and bring what it holds into the ledgers, so that they can be recovered.

        Raises:
            JournalDamaged: nobody can tell which ledgers lost entries.
        """
        directory = _journal_dir(self._data_dir, broker_id)
        return await self._files.run(self._recover_broker, directory, random_bits(64))

    def statistics(self) -> LedgerStoreStatistics:
        """Counters at this moment."""
        return LedgerStoreStatistics(len(self._open), self._journal.statistics(), self._write_behind.statistics())

    def _recover_broker(self, directory: Path, stream: int) -> Takeover:
        self._files.make_dir(directory)
        return recover_abandoned(self._files, directory, self._folder, stream=stream)

    async def _write_files(self) -> None:
        try:
            await self._write_behind.run()
        except OSError as error:
            failure = LedgerFailed(f"a ledger file could not be written: {error}")
            failure.__cause__ = error
            self._fail(failure)

    def _fail(self, cause: LedgerFailed) -> None:
        self._journal.fail(cause)
        self._write_behind.fail(self._journal.failure or cause)


def _journal_dir(data_dir: Path, broker_id: str) -> Path:
    return data_dir / "brokers" / broker_id / "journal"
