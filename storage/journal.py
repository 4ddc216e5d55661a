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
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from storage.errors import Fenced, LedgerFailed
from storage.fence import Fence
from storage.files import File, Files
from storage.gathering import let_others_join
from storage.journal_block import BlockHeader, Part, encode_block
from storage.journal_files import FullFiles, JournalName, make_journal_file
from storage.ledger import OpenLedger
from storage.signal import Signal
from storage.write_behind import WriteBehind

UNCONFIRMED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes appended and not yet confirmed, over all ledgers, above which appenders wait."""
JOURNAL_FILE_BYTES: Final = 16 * 1024 * 1024
"""Size of a journal file; larger than any block that respects the bound above, its last entry included."""
FORMED_APART_BYTES: Final = 1024 * 1024
"""A block with so many bytes is put together in a worker thread: that takes 1 to 3 ms a megabyte."""

RETIRED_FILES_MAX: Final = 4
"""So many full journal files are kept before a checkpoint frees them: it syncs every ledger written to since."""


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
        self._dirty: dict[OpenLedger, None] = {}
        """Ledgers with something waiting, in the order of their first waiting entry."""
        self._deleted: list[tuple[int, trio.Event]] = []
        self._noting: list[tuple[int, trio.Event]] = []
        self._unconfirmed_bytes = 0
        self._room = trio.lowlevel.ParkingLot()
        self._open: dict[OpenLedger, None] = {}
        self._file: File | None = None
        self._offset = 0
        self._sequence = 0
        self._previous_crc = 0
        self._number = 0
        """Of the file that is written to."""
        self._retired: list[Path] = []
        self._made, self._next_file = trio.open_memory_channel[File](0)
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

    def register(self, ledger: OpenLedger) -> None:
        """Tell this ledger should the writer end."""
        if self._failure is not None:
            raise self._failure
        self._open[ledger] = None

    def unregister(self, ledger: OpenLedger) -> None:
        """The ledger was closed, and all that it took is confirmed."""
        self._open.pop(ledger, None)

    def queue(self, ledger: OpenLedger, size: int) -> None:
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
        """
        while self._unconfirmed_bytes >= UNCONFIRMED_BYTES_MAX and self._failure is None:
            await self._room.park()
        if self._failure is not None:
            raise self._failure

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
            except OSError as error:
                self._fail_by(error)
                return
            try:
                await self._made.send(file)
            except trio.Cancelled:
                file.close()
                raise
            number += 1

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
        if self._offset and self._offset + len(block) > self._file_bytes:
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
        self._offset = 0
        self._number += 1
        if len(self._retired) >= RETIRED_FILES_MAX:
            self._write_behind.retire(FullFiles(tuple(self._retired), self._fence, self._number))
            self._retired = []

    def _make_file(self, number: int) -> File:
        name = JournalName(self._fence.epoch, number, self._fence.stream)
        try:
            file = make_journal_file(self._files, self._directory, name, self._file_bytes)
            try:
                self._fence.note_made(number)
            except BaseException:
                file.close()
                raise
            return file
        except OSError:
            # Who took over removes what it finds of ours; then that is the cause, and not the disk.
            self._fence.check()
            raise
