"""The journal: one task makes the appends of all ledgers durable, with one write and one sync for all that wait.

64 ledgers synced one by one cost 8 ms; 64 entries in one journal cost 0.24 ms. So all ledgers of a broker share one
journal. The writer takes everything that waits and forms a block (`journal_block`). A single call off Trio's thread
writes the block, syncs it and checks the fence. Then the writer tells every ledger what is confirmed. Meanwhile, the
next block gathers. So batches grow with the load, without tuning.

- Confirmations rise in the order of the appends, over all ledgers. A caller that appends to one ledger and then to
  another never sees the second entry confirmed before the first.
- A failed write or sync ends the writer. It is not retried, because after a failed sync the system may have dropped the
  bytes and let the next sync succeed. Every waiter, now and later, gets `LedgerFailed`. A new start recovers.
- A fenced writer confirms nothing of the block in which it noticed the fence (D2).
- The waiting bytes are bounded: callers use `wait_room` before they append.
- Nothing is accepted that may lack space. Journal files are filled with zeros before they are used, and the next one is
  ready before it is needed. On a full disk, the next file cannot be made, or the ledger files cannot take what is
  confirmed. Then `wait_room` raises `NoSpace`. Accepted entries still fit. Deletions go on, in a reserved part of each
  file, because they free space. Another reserved part is for small control entries, because readers wait for the end
  of a transaction. The journal also frees at once the files that a checkpoint would free later. Once there
  is space, the next file is made, and appending resumes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
import trio

from storage.entry import Pieces
from storage.errors import SPACE_RETRY_SECONDS, Fenced, LedgerFailed, NoSpace, fresh
from storage.fence import Fence
from storage.files import DiskFull, File, Files
from storage.group_commit import let_others_join
from storage.journal_block import LABEL_SIZE, BlockHeader, WrittenPart, encode_block
from storage.journal_files import FullFiles, JournalName, make_journal_file
from storage.ledger import DirectoryOpenLedger
from storage.signal import Signal
from storage.write_behind import WriteBehind

UNCONFIRMED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Unconfirmed bytes, over all ledgers, above which callers wait before they append."""
JOURNAL_FILE_BYTES: Final = 16 * 1024 * 1024
"""Size of a journal file. It is larger than any block within the bound above, with one more entry."""
FORMED_APART_BYTES: Final = 1024 * 1024
"""A block of at least this size is formed in a worker thread, which takes 1 to 3 ms per megabyte."""

ENTRY_ROOM_BYTES: Final = 6 * 1024 * 1024
"""More than any one entry. One entry may exceed the bound above."""
DELETIONS_ROOM_BYTES: Final = 64 * 1024
"""The part of a journal file that is reserved for deletions while no next file can be made. It holds hundreds, each in
its own block."""
MARKERS_ROOM_BYTES: Final = 256 * 1024
"""The part of a journal file that is reserved in the same way for small control entries, such as the
markers that end transactions (K33). It holds hundreds, each in its own block."""
MARKER_BYTES_MAX: Final = 4 * 1024
"""More than such an entry takes, its block included."""
RETIRED_FILES_MAX: Final = 4
"""How many full journal files are kept before a checkpoint frees them. A checkpoint syncs every ledger written to since
the last one."""


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
    """The writer of one broker's journal. `run` is its task."""

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
        """Ledgers with waiting entries, in the order of their first waiting entry."""
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
        """The number of the current file."""
        self._first_sequence = 0
        """The sequence of the first block in the current file."""
        self._retired: list[Path] = []
        self._made, self._next_file = trio.open_memory_channel[File](0)
        self._has_next = False
        """Whether the next file is ready."""
        self._shortage: str | None = None
        """Why the next file cannot be made yet; None while no obstacle is known."""
        self._failure: LedgerFailed | None = None
        self._failed = trio.Event()
        self._blocks = 0
        self._batches = 0
        self._bytes = 0

    @property
    def failure(self) -> LedgerFailed | None:
        """Why nothing more is appended, or None."""
        return self._failure

    def begin(self) -> None:
        """Make and note the first file. It says that everything of lower epochs is in the ledger files. Blocks."""
        self._file = self._make_file(0)

    def register(self, ledger: DirectoryOpenLedger) -> None:
        """Tell this ledger if the writer ends."""
        if self._failure is not None:
            raise fresh(self._failure)
        self._open[ledger] = None

    def unregister(self, ledger: DirectoryOpenLedger) -> None:
        """The ledger was closed, and all its entries are confirmed."""
        self._open.pop(ledger, None)

    def queue(self, ledger: DirectoryOpenLedger, size: int) -> None:
        """The ledger has `size` more bytes waiting. The writer will ask for them."""
        if ledger not in self._dirty:
            self._dirty[ledger] = None
        if self._unconfirmed_bytes == 0:
            self._wake.set()
        self._unconfirmed_bytes += size

    @property
    def room_bytes(self) -> int:
        """Bytes that may be appended before `wait_room` waits. Negative above the bound."""
        return UNCONFIRMED_BYTES_MAX - self._unconfirmed_bytes

    async def wait_room(self) -> None:
        """Return when the unconfirmed bytes are below their bound. At once, without yielding, if they are now.

        Raises:
            LedgerFailed: the writer has ended.
            NoSpace: the disk is full.
        """
        while self._failure is None:
            self.require_space()
            if self._unconfirmed_bytes < UNCONFIRMED_BYTES_MAX and (self._has_next or self._fits_this_file):
                return
            await self._room.park()
        raise fresh(self._failure)

    def require_space(self, *, is_marker: bool = False) -> None:
        """Return if an append now finds space. A small control entry (`is_marker`) finds some in a reserved part.

        Raises:
            NoSpace: it may not.
        """
        shortage = self.shortage
        if shortage is not None and not (is_marker and (self._has_next or self._fits(MARKER_BYTES_MAX))):
            raise NoSpace(shortage)

    @property
    def shortage(self) -> str | None:
        """Why a full disk prevents appends; None while there is enough space."""
        if self._write_behind.shortage is not None:
            return self._write_behind.shortage
        return None if self._has_next or self._fits_this_file else self._shortage

    @property
    def next_file_shortage(self) -> str | None:
        """Why the next file cannot be made. The current one may still have room."""
        return self._shortage

    async def wait_next_file(self) -> None:
        """Return when the next file is ready or the writer has ended. On a full disk, waits for space."""
        while not self._has_next and self._failure is None:
            await self._room.park()

    @property
    def _fits_this_file(self) -> bool:
        """Whether everything that waits, and one more entry, fits this file beside markers and deletions.

        Block overhead is small.
        """
        return self._fits(ENTRY_ROOM_BYTES + MARKERS_ROOM_BYTES)

    def _fits(self, room: int) -> bool:
        needed = self._unconfirmed_bytes + self._unconfirmed_bytes // 16 + room + DELETIONS_ROOM_BYTES
        return self._offset + needed <= self._file_bytes

    async def note_deleted(self, ledger: int) -> None:
        """Return when the deletion of this ledger is durable, so that no recovery writes it again.

        Raises:
            LedgerFailed: the writer has ended.
        """
        if self._failure is not None:
            raise fresh(self._failure)
        noted = trio.Event()
        self._deleted.append((ledger, noted))
        self._wake.set()
        await noted.wait()
        if self._failure is not None:
            raise fresh(self._failure)

    async def run(self) -> None:
        """Write until cancelled, or until the writer has ended. `failure` then has the cause."""
        try:
            await self._write_blocks()
        except LedgerFailed as failed:
            # Fenced, or the ledger files cannot be written.
            self.fail(failed)
        except OSError as error:
            self._fail_by(error)

    async def make_files(self) -> None:
        """Keep the next journal file ready, until cancelled. A second task beside `run`."""
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
        """Refuse appends, free what can be freed, and wait before the next try."""
        if self._shortage is None:
            log.error(
                "the disk is full: nothing is published until there is space",
                file=full.filename,
                file_bytes=self._file_bytes,
            )
        self._shortage = f"the disk is full: {full.filename} of {self._file_bytes} bytes cannot be made"
        self._room.unpark_all()
        assert self._file is not None, "begin() comes before make_files()"
        # Not if the writer has just left the last existing file, because no file follows it yet.
        if self._retired and self._retired[-1] != self._file.path:
            self._hand_back()
        await trio.sleep(SPACE_RETRY_SECONDS)

    async def wait_failed(self) -> None:
        """Return when the writer has ended."""
        await self._failed.wait()

    def fail(self, cause: LedgerFailed) -> None:
        """Release every waiter with `cause`. The first cause stands."""
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
        """Close the file. Only after the tasks have ended, because a write may be in progress."""
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
        parts = [WrittenPart(batch.header.ledger, batch.offset, batch.pieces) for batch in batches]
        gone = [ledger for ledger, _noted in self._noting]
        header, block = await self._formed(taken, parts, gone)
        if self._offset > LABEL_SIZE and self._offset + header.size > self._file_bytes:
            await self._change_file()
            # The place in the file determines which sectors are empty.
            header, block = await self._formed(taken, parts, gone)
        assert self._file is not None, "begin() comes before run()"
        await self._files.run_urgent(self._write, self._file, self._offset, block)
        self._offset += header.size
        self._sequence += 1
        self._previous_crc = header.body_crc
        self._blocks += 1
        self._batches += len(batches)
        self._bytes += header.size
        self._unconfirmed_bytes -= taken
        for batch in batches:
            batch.ledger.confirm(batch.header)
            self._write_behind.add(batch)
        for _ledger, noted in self._noting:
            noted.set()
        if self._unconfirmed_bytes < UNCONFIRMED_BYTES_MAX:
            self._room.unpark_all()

    async def _formed(
        self, size: int, parts: Sequence[WrittenPart], deleted: Sequence[int]
    ) -> tuple[BlockHeader, Pieces]:
        # Checksums and copies of many megabytes would block the event loop. A small block is not worth a thread.
        if size >= FORMED_APART_BYTES:
            return await self._files.run_urgent(self._form, parts, deleted)
        return self._form(parts, deleted)

    def _form(self, parts: Sequence[WrittenPart], deleted: Sequence[int]) -> tuple[BlockHeader, Pieces]:
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

    def _write(self, file: File, offset: int, block: Pieces) -> None:
        try:
            file.write_pieces_at(offset, block)
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
            # A new writer may have removed our files. Then the fence is the cause, not the disk.
            self._fence.check()
            raise
