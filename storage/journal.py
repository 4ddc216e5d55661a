"""The journal: one task makes the appends of all ledgers durable, with one write and one sync for all that wait.

64 ledgers synced one by one cost 8 ms, 64 entries in one journal 0.24 ms, so all ledgers of a broker share one. The
writer takes everything that waits, forms a block (`journal_block`), and in a single call off Trio's thread writes it,
syncs it and looks at the fence; then it tells every ledger what is confirmed. While it is away, the next block gathers:
the batch grows with the load and nobody tunes it.

- Confirmations rise in the order of the appends, over all ledgers: whoever appends to one ledger and then to another
  never sees the second confirmed before the first.
- A failed write or sync ends the writer. It is not retried: after a failed sync the system may have dropped the bytes
  and let the next one succeed. Everything that waits, now and later, gets `LedgerFailed`; a new start recovers.
- A fenced writer confirms nothing of the block in which it noticed (D2).
- The bytes that wait are bounded: appenders call `wait_room` first.
- Nothing is taken for which there may be no space. Journal files are written in full before they are used, and the next
  one is ready before it is needed. While it cannot be made, or the ledger files cannot take what is confirmed, because
  the disk is full, `wait_room` raises `NoSpace`; what was taken before fits. Deletions go on, in a part of each file
  that is kept for them, since they make space. A full disk has the files freed that a checkpoint would free later.
  When there is space again the next file is made, and appending goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
import trio

from storage.errors import SPACE_RETRY_SECONDS, Fenced, LedgerFailed, NoSpace
from storage.fence import Fence
from storage.files import DiskFull, File, Files
from storage.group_commit import let_others_join
from storage.journal_block import LABEL_SIZE, BlockHeader, Part, encode_block
from storage.journal_files import FullFiles, JournalName, make_journal_file
from storage.ledger import DirectoryOpenLedger
from storage.signal import Signal
from storage.write_behind import WriteBehind

UNCONFIRMED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes appended and not yet confirmed, over all ledgers, above which appenders wait."""
JOURNAL_FILE_BYTES: Final = 16 * 1024 * 1024
"""Size of a journal file; larger than any block that respects the bound above, its last entry included."""
FORMED_APART_BYTES: Final = 1024 * 1024
"""A block with so many bytes is put together in a worker thread: that takes 1 to 3 ms a megabyte."""

ENTRY_ROOM_BYTES: Final = 6 * 1024 * 1024
"""More than any one entry, which may go beyond the bound above."""
DELETIONS_ROOM_BYTES: Final = 64 * 1024
"""What of a journal file is kept for deletions while no next one can be made: hundreds, each in a block of its own."""
RETIRED_FILES_MAX: Final = 4
"""So many full journal files are kept before a checkpoint frees them: it syncs every ledger written to since."""


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """A snapshot for metrics."""

    blocks: int
    batches: int
    bytes: int
    unconfirmed_bytes: int
    retired_files: int


class Journal:
    """The writer of one broker's journal; `run` is its task."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        *,
        fence: Fence,
        write_behind: WriteBehind,
        file_bytes: int = JOURNAL_FILE_BYTES,
    ) -> None:
        self._files = files
        self._directory = directory
        self._fence = fence
        self._write_behind = write_behind
        self._file_bytes = file_bytes
        self._wake = Signal()
        self._dirty: dict[DirectoryOpenLedger, None] = {}
        """Ledgers with something waiting, in the order of their first waiting entry."""
        self._deleted: list[tuple[int, trio.Event]] = []
        self._noting: list[tuple[int, trio.Event]] = []
        self._unconfirmed_bytes = 0
        self._room = trio.lowlevel.ParkingLot()
        self._open: dict[DirectoryOpenLedger, None] = {}
        self._file: File | None = None
        self._offset = LABEL_SIZE
        self._sequence = 0
        self._previous_crc = 0
        self._number = 0
        """Of the file that is written to."""
        self._first_sequence = 0
        """Of the first block in that file."""
        self._retired: list[Path] = []
        self._made, self._next_file = trio.open_memory_channel[File](0)
        self._has_next = False
        """Whether the next file is ready."""
        self._shortage: str | None = None
        """Why the next file cannot be made yet; None while nothing is known to be in the way."""
        self._failure: LedgerFailed | None = None
        self._failed = trio.Event()
        self._blocks = 0
        self._batches = 0
        self._bytes = 0

    @property
    def failure(self) -> LedgerFailed | None:
        """Why nothing is appended any more, or None."""
        return self._failure

    def begin(self) -> None:
        """Make and note the first file, which says that all of lower epochs is in the ledger files. Blocks."""
        self._file = self._make_file(0)

    def register(self, ledger: DirectoryOpenLedger) -> None:
        """Tell this ledger should the writer end."""
        if self._failure is not None:
            raise self._failure
        self._open[ledger] = None

    def unregister(self, ledger: DirectoryOpenLedger) -> None:
        """The ledger was closed, and all that it took is confirmed."""
        self._open.pop(ledger, None)

    def queue(self, ledger: DirectoryOpenLedger, size: int) -> None:
        """The ledger has `size` more bytes waiting; the writer will ask for them."""
        if ledger not in self._dirty:
            self._dirty[ledger] = None
        if self._unconfirmed_bytes == 0:
            self._wake.set()
        self._unconfirmed_bytes += size

    @property
    def room_bytes(self) -> int:
        """Bytes that may be appended before `wait_room` would wait; negative above the bound."""
        return UNCONFIRMED_BYTES_MAX - self._unconfirmed_bytes

    async def wait_room(self) -> None:
        """Return when the unconfirmed bytes are below their bound; at once, without yielding, if they are now.

        Raises:
            LedgerFailed: the writer has ended.
            NoSpace: the disk is full.
        """
        while self._failure is None:
            self.require_space()
            if self._unconfirmed_bytes < UNCONFIRMED_BYTES_MAX and (self._has_next or self._fits_this_file):
                return
            await self._room.park()
        raise self._failure

    def require_space(self) -> None:
        """Hold that what is appended now finds space.

        Raises:
            NoSpace: it may not.
        """
        shortage = self.shortage
        if shortage is not None:
            raise NoSpace(shortage)

    @property
    def shortage(self) -> str | None:
        """Why nothing can be appended for want of disk space; None while there is enough."""
        if self._write_behind.shortage is not None:
            return self._write_behind.shortage
        return None if self._has_next or self._fits_this_file else self._shortage

    @property
    def next_file_shortage(self) -> str | None:
        """Why the file behind this one cannot be made; there may be room in this one yet."""
        return self._shortage

    async def wait_next_file(self) -> None:
        """Return when the next file is ready, however long there is no space for it, or the writer has ended."""
        while not self._has_next and self._failure is None:
            await self._room.park()

    @property
    def _fits_this_file(self) -> bool:
        """Whether all that waits, and one more entry, fits this file beside deletions. Blocks add little to entries."""
        needed = self._unconfirmed_bytes + self._unconfirmed_bytes // 16 + ENTRY_ROOM_BYTES + DELETIONS_ROOM_BYTES
        return self._offset + needed <= self._file_bytes

    async def note_deleted(self, ledger: int) -> None:
        """Return when it is durable that this ledger is gone, so that no recovery writes it again.

        Raises:
            LedgerFailed: the writer has ended.
        """
        if self._failure is not None:
            raise self._failure
        noted = trio.Event()
        self._deleted.append((ledger, noted))
        self._wake.set()
        await noted.wait()
        if self._failure is not None:
            raise self._failure

    async def run(self) -> None:
        """Write until cancelled or until the writer has ended, for the cause that `failure` then tells."""
        try:
            await self._write_blocks()
        except LedgerFailed as failed:
            # Fenced, or the ledger files cannot be written.
            self.fail(failed)
        except OSError as error:
            self._fail_by(error)

    async def make_files(self) -> None:
        """Keep the next journal file ready, until cancelled; a second task beside `run`."""
        number = 1
        while True:
            try:
                file = await self._files.run(self._make_file, number)
            except Fenced as fenced:
                self.fail(fenced)
                return
            except DiskFull as full:
                await self._wait_space(full)
                continue
            except OSError as error:
                self._fail_by(error)
                return
            if self._shortage is not None:
                log.info("there is space for the journal again")
            self._shortage = None
            self._has_next = True
            self._room.unpark_all()
            try:
                await self._made.send(file)
            except trio.Cancelled:
                file.close()
                raise
            number += 1

    async def _wait_space(self, full: DiskFull) -> None:
        """Let those who would append be refused, give back what can be given back, and wait before the next try."""
        if self._shortage is None:
            log.error("the disk is full: nothing is published until there is space", file=full.filename)
        self._shortage = f"the disk is full: {full.filename} of {self._file_bytes} bytes cannot be made"
        self._room.unpark_all()
        assert self._file is not None, "begin() comes before make_files()"
        # Unless the writer has just left the last file there is: which one will follow those is not true yet.
        if self._retired and self._retired[-1] != self._file.path:
            self._hand_back()
        await trio.sleep(SPACE_RETRY_SECONDS)

    async def wait_failed(self) -> None:
        """Return when the writer has ended."""
        await self._failed.wait()

    def fail(self, cause: LedgerFailed) -> None:
        """Release every waiter with `cause`; the first cause stands."""
        if self._failure is not None:
            return
        self._failure = cause
        for ledger in self._open:
            ledger.fail(cause)
        for _ledger, noted in self._deleted + self._noting:
            noted.set()
        self._room.unpark_all()
        self._failed.set()

    def close(self) -> None:
        """Let go of the file. Only once the tasks have ended: a write may be under way."""
        if self._file is not None:
            self._file.close()

    def statistics(self) -> JournalStatistics:
        """Counters at this moment."""
        return JournalStatistics(self._blocks, self._batches, self._bytes, self._unconfirmed_bytes, len(self._retired))

    async def _write_blocks(self) -> None:
        while True:
            await self._wake.wait()
            while self._dirty or self._deleted:
                await self._write_behind.wait_room()
                await self._write_block()

    async def _write_block(self) -> None:
        await let_others_join()
        taken = self._unconfirmed_bytes
        batches = [batch for ledger in self._dirty for batch in ledger.take()]
        self._dirty.clear()
        self._noting, self._deleted = self._deleted, []
        parts = [Part(batch.header.ledger, batch.offset, batch.data) for batch in batches]
        gone = [ledger for ledger, _noted in self._noting]
        header, block = await self._formed(taken, parts, gone)
        if self._offset > LABEL_SIZE and self._offset + len(block) > self._file_bytes:
            await self._change_file()
            # Which sectors are empty depends on the place in the file.
            header, block = await self._formed(taken, parts, gone)
        assert self._file is not None, "begin() comes before run()"
        await self._files.run_urgent(self._write, self._file, self._offset, block)
        self._offset += len(block)
        self._sequence += 1
        self._previous_crc = header.body_crc
        self._blocks += 1
        self._batches += len(batches)
        self._bytes += len(block)
        self._unconfirmed_bytes -= taken
        for batch in batches:
            batch.ledger.confirm(batch.header)
            self._write_behind.add(batch)
        for _ledger, noted in self._noting:
            noted.set()
        if self._unconfirmed_bytes < UNCONFIRMED_BYTES_MAX:
            self._room.unpark_all()

    async def _formed(self, size: int, parts: Sequence[Part], deleted: Sequence[int]) -> tuple[BlockHeader, bytes]:
        # Checksums and copies of many megabytes would hold the event loop; a small block is not worth a thread.
        if size >= FORMED_APART_BYTES:
            return await self._files.run_urgent(self._form, parts, deleted)
        return self._form(parts, deleted)

    def _form(self, parts: Sequence[Part], deleted: Sequence[int]) -> tuple[BlockHeader, bytes]:
        return encode_block(
            parts,
            deleted,
            stream=self._fence.stream,
            sequence=self._sequence,
            previous_crc=self._previous_crc,
            file_offset=self._offset,
        )

    def _fail_by(self, error: OSError) -> None:
        failure = LedgerFailed(f"the journal could not be written: {error}")
        failure.__cause__ = error
        self.fail(failure)

    def _write(self, file: File, offset: int, block: bytes) -> None:
        try:
            file.write_at(offset, block)
            file.sync()
        except OSError:
            self._fence.check()
            raise
        self._fence.check()

    async def _change_file(self) -> None:
        assert self._file is not None, "a file is full"
        self._retired.append(self._file.path)
        self._file.close()
        self._file = await self._next_file.receive()
        self._has_next = False
        self._offset = LABEL_SIZE
        self._number += 1
        self._first_sequence = self._sequence
        if len(self._retired) >= RETIRED_FILES_MAX:
            self._hand_back()

    def _hand_back(self) -> None:
        self._write_behind.retire(FullFiles(tuple(self._retired), self._fence, self._number, self._first_sequence))
        self._retired = []

    def _make_file(self, number: int) -> File:
        name = JournalName(self._fence.epoch, number, self._fence.stream)
        try:
            file = make_journal_file(self._files, self._directory, name, self._file_bytes)
            try:
                self._fence.note_made(number, self._file_bytes)
            except BaseException:
                file.close()
                raise
            return file
        except OSError:
            # Who took over removes what it finds of ours; then that is the cause, and not the disk.
            self._fence.check()
            raise
