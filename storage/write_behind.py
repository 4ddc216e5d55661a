"""Confirmed batches on their way from memory into their ledger files, outside the path of an acknowledgement.

The journal has made them durable, so nobody waits here. Batches gather until there are enough of them, until a ledger
is closed, or until the journal's files should be freed. Then each ledger gets one write. One task does all of it, so
writes, syncs and removals of a ledger never overlap.

- After a **write**, the batches are in their files and may leave memory. The number that stays for readers is bounded
  in bytes.
- A **flush** makes one ledger complete on the disk: synced, indexed, its name durable. A ledger is closed only then, so
  closed ledgers never need a journal.
- A **checkpoint** flushes every ledger written to since the last one, and then removes the journal files that held
  those batches.

While the disk is full, all of it waits and is tried again. A file that could not grow promised nothing, and a repeated
write goes to the same place. Removals come first, because they free space. Any other failure here ends the store's
writer. The journal still has everything, and recovery writes it again.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog
import trio

from storage.entry import ENTRY_MEMORY_BYTES
from storage.errors import SPACE_RETRY_SECONDS, LedgerFailed, fresh
from storage.files import DiskFull
from storage.journal_files import FullFiles
from storage.ledger import Batch
from storage.ledger_folder import LedgerFolder
from storage.ledger_index import SparseIndex
from storage.ledger_log import LedgerLog
from storage.signal import Signal

WRITE_BEHIND_BYTES: Final = 8 * 1024 * 1024
"""Confirmed bytes that gather before they are written."""
WRITE_BEHIND_BYTES_MAX: Final = 32 * 1024 * 1024
"""Above this, the journal's writer waits for the ledger files to catch up."""
TAIL_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of the newest entries kept in memory for readers, over all ledgers, besides unwritten entries."""


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WriteBehindStatistics:
    """A snapshot for metrics."""

    pending_bytes: int
    tail_bytes: int
    open_files: int
    checkpoints: int
    written_bytes: int


class _Request(NamedTuple):
    log: LedgerLog
    done: trio.Event


class WriteBehind:
    """The writer of the ledger files."""

    def __init__(self, folder: LedgerFolder, *, tail_bytes_max: int = TAIL_BYTES_MAX) -> None:
        self._folder = folder
        self._tail_bytes_max = tail_bytes_max
        self._wake = Signal()
        self._room = Signal()
        self._pending: dict[int, list[Batch]] = {}
        self._pending_bytes = 0
        self._unsynced: dict[int, LedgerLog] = {}
        self._flushes: list[_Request] = []
        self._removals: list[tuple[int, trio.Event]] = []
        self._retired: list[FullFiles] = []
        self._tail: deque[tuple[LedgerLog, int, int]] = deque()
        self._tail_bytes = 0
        self._failure: LedgerFailed | None = None
        self._shortage: str | None = None
        self._checkpoints = 0
        self._written_bytes = 0

    @property
    def shortage(self) -> str | None:
        """Which ledger file cannot grow because the disk is full; None while all can."""
        return self._shortage

    def add(self, batch: Batch) -> None:
        """Take a confirmed batch."""
        self._pending.setdefault(batch.header.ledger, []).append(batch)
        size = batch.header.size
        self._pending_bytes += size
        entries = batch.header.last_entry - batch.header.first_entry + 1
        held = size + entries * ENTRY_MEMORY_BYTES
        self._tail.append((batch.ledger.log, batch.header.last_entry, held))
        self._tail_bytes += held
        if self._pending_bytes >= WRITE_BEHIND_BYTES:
            self._wake.set()

    async def wait_room(self) -> None:
        """Return when the pending bytes are below their bound. For one task at a time.

        On a full disk it does not wait. Nothing more is accepted then, and accepted entries must still be confirmed.
        They take the same memory as before.
        """
        while self._pending_bytes >= WRITE_BEHIND_BYTES_MAX and self._shortage is None:
            if self._failure is not None:
                raise fresh(self._failure)
            await self._room.wait()

    async def flush(self, log: LedgerLog) -> None:
        """Return when all confirmed batches of this ledger are in its file, durably, with its index.

        Raises:
            LedgerFailed: the writer has ended.
        """
        done = trio.Event()
        self._flushes.append(_Request(log, done))
        await self._await(done)

    async def remove(self, ledger: int) -> None:
        """Drop the pending batches of this ledger and remove its files. Durable at the next checkpoint."""
        done = trio.Event()
        self._removals.append((ledger, done))
        await self._await(done)

    def retire(self, full: FullFiles) -> None:
        """Remove these journal files once everything confirmed before this call is synced into its ledger files."""
        self._retired.append(full)
        self._wake.set()

    async def run(self) -> None:
        """Write, flush, remove and checkpoint until cancelled.

        Raises:
            OSError: a ledger file could not be written.
            Fenced: another process took over the journal.
        """
        while True:
            await self._wake.wait()
            # A round for a removal may have met a full disk. It is repeated until there is space.
            while self._is_due() or self._shortage is not None:
                try:
                    await self._round()
                except DiskFull as full:
                    if self._shortage is None:
                        log.error("the disk is full: nothing is published until there is space", file=full.filename)
                    self._shortage = f"the disk is full: {full.filename} cannot grow"
                    self._room.set()
                    await trio.sleep(SPACE_RETRY_SECONDS)
                else:
                    if self._shortage is not None:
                        log.info("there is space for the ledger files again")
                    self._shortage = None

    def fail(self, cause: LedgerFailed) -> None:
        """Release every waiter with `cause`. Nothing more is written."""
        if self._failure is None:
            self._failure = cause
        for request in self._flushes:
            request.done.set()
        for _ledger, done in self._removals:
            done.set()
        self._room.set()

    def statistics(self) -> WriteBehindStatistics:
        """Counters at this moment."""
        return WriteBehindStatistics(
            self._pending_bytes,
            self._tail_bytes,
            len(self._folder.open_files),
            self._checkpoints,
            self._written_bytes,
        )

    async def _await(self, done: trio.Event) -> None:
        if self._failure is None:
            self._wake.set()
            await done.wait()
        if self._failure is not None:
            raise fresh(self._failure)

    def _is_due(self) -> bool:
        is_asked = bool(self._flushes or self._removals or self._retired)
        return is_asked or self._pending_bytes >= WRITE_BEHIND_BYTES

    async def _round(self) -> None:
        run = self._folder.files.run
        await self._remove_ledgers()
        flushes, self._flushes = self._flushes, []
        retired, self._retired = self._retired, []
        try:
            pending, self._pending = self._pending, {}
            taken = self._pending_bytes
            # Indexes are copied now, while they cover exactly the contents of the files after this write.
            settled = {request.log.id: request.log for request in flushes}
            if retired:
                settled |= self._unsynced | {ledger: batches[0].ledger.log for ledger, batches in pending.items()}
            indexes = [settling.index.copy() for settling in settled.values()]
            try:
                await run(self._write, pending)
            except DiskFull:
                for ledger, batches in self._pending.items():
                    pending.setdefault(ledger, []).extend(batches)
                self._pending = pending
                raise
            self._pending_bytes -= taken
            self._written(pending)
            if settled or retired:
                await run(self._settle, indexes, retired)
                for ledger in settled:
                    self._unsynced.pop(ledger, None)
                self._checkpoints += bool(retired)
        except (OSError, LedgerFailed, trio.Cancelled):
            # The callers still wait. The next round, or `fail`, must find them.
            self._flushes = flushes + self._flushes
            self._retired = retired + self._retired
            raise
        for request in flushes:
            request.done.set()

    async def _remove_ledgers(self) -> None:
        removals, self._removals = self._removals, []
        removed = [ledger for ledger, _done in removals]
        for ledger in removed:
            self._forget(ledger)
        if removed:
            try:
                await self._folder.files.run(self._remove, removed)
            except (OSError, trio.Cancelled):
                self._removals = removals + self._removals
                raise
        # Nothing remains to complete.
        for request in self._flushes:
            if request.log.id in removed:
                request.done.set()
        self._flushes = [request for request in self._flushes if request.log.id not in removed]
        for _ledger, done in removals:
            done.set()

    def _forget(self, ledger: int) -> None:
        batches = self._pending.pop(ledger, [])
        self._pending_bytes -= sum(batch.header.size for batch in batches)
        if batches:
            # Nobody writes them any more, and the tail drops only written entries.
            batches[-1].ledger.log.written_entry = batches[-1].header.last_entry
        self._unsynced.pop(ledger, None)

    def _written(self, pending: dict[int, list[Batch]]) -> None:
        for ledger, batches in pending.items():
            last = batches[-1]
            log = last.ledger.log
            log.written_offset = last.offset + last.header.size
            log.written_entry = last.header.last_entry
            self._unsynced[ledger] = log
            self._written_bytes += sum(batch.header.size for batch in batches)
        while self._tail_bytes > self._tail_bytes_max and self._tail:
            log, last_entry, size = self._tail[0]
            if log.written_entry < last_entry:
                break
            self._tail.popleft()
            self._tail_bytes -= size
            log.forget(last_entry)
        self._room.set()

    def _remove(self, removed: Sequence[int]) -> None:
        self._folder.remove(removed)

    def _write(self, pending: dict[int, list[Batch]]) -> None:
        """Write the batches.

        Raises:
            FileNotFoundError: the file of an open ledger is missing. Either another owner has fenced this journal and
                removed the ledger, or the file was lost. Then only the journal has its entries, so nothing goes on.
        """
        for ledger, batches in pending.items():
            # One write for each ledger: its batches follow one another without gaps.
            pieces = [piece for batch in batches for piece in batch.pieces]
            self._folder.open_files.write(self._folder.ledger_path(ledger), batches[0].offset, pieces)

    def _settle(self, indexes: Sequence[SparseIndex], retired: Sequence[FullFiles]) -> None:
        files = self._folder.files
        written = [index for index in indexes if index.last_entry >= 0]
        for index in written:
            self._folder.open_files.sync(self._folder.ledger_path(index.ledger))
        if written or retired:
            files.sync_dir(self._folder.path)
        for index in written:
            # It can be rebuilt, and the next steps free space.
            with suppress(DiskFull):
                self._folder.store_index(index)
        for full in retired:
            full.remove(files)
