"""One ledger in a directory: an append-only sequence of entries, open for one writer or sealed for good.

`ledger_store.py` has the contract of the two types. Neither type knows other ledgers, topics or the metadata.

An append is synchronous: it numbers the entry, queues it for the journal's writer, and returns. The writer asks every
ledger with queued entries for its batches, and writes them all as one block. Once the block is durable, the writer
tells each ledger, and only then does `confirmed` rise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

import trio

from storage.damages import LedgerDamage
from storage.entry import BATCH_HEADER_SIZE, BatchHeader, Entry, EntryFormat, Pieces, TxnId, encode_batch, encode_entry
from storage.errors import LedgerCorrupt, LedgerSealed, StorageError, fresh
from storage.ledger_folder import LedgerFolder
from storage.ledger_index import SparseIndex
from storage.ledger_log import LedgerLog
from storage.position import Position
from storage.watermark import Watermark

MARKER_PAYLOAD_MAX: Final = 1024
"""Control entries up to this size are written while a full disk refuses others (`journal.py`)."""

BATCH_BYTES: Final = 256 * 1024
"""A batch is closed when it reaches this size, in bytes. So reading one entry never reads much more."""


class Batch(NamedTuple):
    """Entries on their way to the disk."""

    ledger: "DirectoryOpenLedger"
    header: BatchHeader
    offset: int
    """Its offset in the ledger file."""
    pieces: Pieces
    """Header and entries, `header.size` bytes."""


class AppendQueue(Protocol):
    """The part of the journal that an open ledger needs."""

    @property
    def failure(self) -> StorageError | None:
        """Why nothing more is appended, or None."""

    def require_space(self, *, is_marker: bool = False) -> None:
        """Return if there is space for what is queued now. Raises NoSpace if not."""

    def queue(self, ledger: "DirectoryOpenLedger", size: int) -> None:
        """The ledger has `size` more bytes waiting."""

    async def wait_room(self) -> None:
        """Return when the waiting bytes are below their bound. Raises the failure if the writer has ended."""


@dataclass(frozen=True, slots=True)
class LedgerStatistics:
    """A snapshot for metrics. Reading it costs nothing."""

    entries: int
    confirmed_entries: int
    size_bytes: int
    tail_entries: int


class DirectoryOpenLedger:
    """A ledger that takes entries. Made by `LedgerStore.create`."""

    def __init__(
        self, ledger: int, folder: LedgerFolder, queue: AppendQueue, confirmed: Watermark | None = None
    ) -> None:
        self.id = ledger
        self.log = LedgerLog(ledger, folder, SparseIndex(ledger), is_growing=True)
        self.confirmed = confirmed or Watermark(Position(ledger, -1))
        """The last durable entry. All entries before it are durable, too."""
        self.confirmed_entry = -1
        """The same, as a number within this ledger."""
        self.size_bytes = 0
        """Bytes that the ledger has or will have in its file. A batch's header counts once the batch is made."""
        self._queue = queue
        self._waiting: list[Pieces] = []
        self._waiting_bytes = 0
        self._waiting_first = 0
        self._next_offset = 0
        self._last_crc = 0
        self._is_closed = False

    @property
    def next_entry(self) -> int:
        """The number of the next entry."""
        return self._waiting_first + len(self._waiting)

    @property
    def is_closed(self) -> bool:
        """Whether it accepts no more entries."""
        return self._is_closed

    def append(
        self,
        payload: bytes,
        *,
        first_index: int,
        message_count: int,
        timestamp_ms: int,
        txn: TxnId | None = None,
        entry_format: EntryFormat = EntryFormat.PULSAR,
        is_control: bool = False,
    ) -> Position:
        """See `OpenLedger`."""
        if self._is_closed:
            raise LedgerSealed(f"ledger {self.id} is closed and accepts no more entries")
        failure = self._queue.failure
        if failure is not None:
            raise fresh(failure)
        self._queue.require_space(is_marker=is_control and len(payload) <= MARKER_PAYLOAD_MAX)
        position = Position(self.id, self._waiting_first + len(self._waiting))
        entry = Entry(position, payload, first_index, message_count, timestamp_ms, txn, entry_format, is_control)
        encoded = encode_entry(entry)
        size = sum(map(len, encoded))
        self.log.tail.append(entry)
        self._waiting.append(encoded)
        self.size_bytes += size
        self._waiting_bytes += size
        self._queue.queue(self, size)
        return position

    async def index(self) -> SparseIndex:
        """See `LedgerReader`."""
        return self.log.index

    async def wait_room(self) -> None:
        """See `OpenLedger`."""
        await self._queue.wait_room()

    async def read(self, first: int, last: int, *, entries_max: int, bytes_max: int) -> list[Entry]:
        """The confirmed entries first..last; at least one if there is one, even above `bytes_max`.

        Raises:
            LedgerCorrupt: the file is damaged where the first of them should be.
        """
        return await self.log.read(first, min(last, self.confirmed_entry), entries_max=entries_max, bytes_max=bytes_max)

    def close(self) -> None:
        """Accept no more entries. Accepted entries are still confirmed. Idempotent."""
        self._is_closed = True

    def statistics(self) -> LedgerStatistics:
        """Counters at this moment."""
        return LedgerStatistics(self.next_entry, self.confirmed_entry + 1, self.size_bytes, len(self.log.tail))

    # -- for the journal

    def take(self) -> list[Batch]:
        """All queued entries, as batches that continue the ledger's chain."""
        waiting, self._waiting = self._waiting, []
        waiting_bytes, self._waiting_bytes = self._waiting_bytes, 0
        groups = [waiting] if waiting_bytes < BATCH_BYTES else _divided(waiting)
        return [self._batch(group) for group in groups if group]

    def _batch(self, group: list[Pieces]) -> Batch:
        header, pieces = encode_batch(
            self.id,
            self._waiting_first,
            group,
            confirmed_before=self.confirmed_entry,
            previous_crc=self._last_crc,
        )
        batch = Batch(self, header, self._next_offset, pieces)
        self._waiting_first += len(group)
        self._next_offset += header.size
        self.size_bytes += BATCH_HEADER_SIZE
        self._last_crc = header.crc
        return batch

    def confirm(self, header: BatchHeader) -> None:
        """The batch is durable, and so is everything before it."""
        log = self.log
        base = log.tail_first
        log.index.add(header, log.tail[header.first_entry - base], log.tail[header.last_entry - base])
        self.confirmed_entry = header.last_entry
        self.confirmed.raise_to(Position(self.id, header.last_entry))

    def fail(self, cause: StorageError) -> None:
        """The writer has ended. Unconfirmed entries are never confirmed."""
        if not self._is_closed or self.confirmed_entry + 1 < self.next_entry:
            self.confirmed.fail(cause)


def _divided(waiting: Sequence[Pieces]) -> list[list[Pieces]]:
    """The entries in groups. Each group ends when it has reached `BATCH_BYTES`."""
    groups: list[list[Pieces]] = [[]]
    size = 0
    for encoded in waiting:
        if size >= BATCH_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(encoded)
        size += sum(map(len, encoded))
    return groups


class DirectorySealedLedger:
    """A ledger with an end. Its file is opened when it is first read."""

    def __init__(
        self,
        ledger: int,
        last_entry: int,
        folder: LedgerFolder,
        log: LedgerLog | None = None,
        *,
        lost: LedgerDamage | None = None,
    ) -> None:
        self.id = ledger
        self.last_entry = last_entry
        """The last entry, -1 if there is none. Entries of the file behind it are never shown."""
        self._folder = folder
        self._log = log
        self._lost = lost
        self._loading = trio.Lock()

    async def read(self, first: int, last: int, *, entries_max: int, bytes_max: int) -> list[Entry]:
        """The entries first..last; at least one if there is one, even above `bytes_max`.

        Raises:
            LedgerCorrupt: the file is damaged, or ends, where the first of them should be.
        """
        log = await self.log()
        return await log.read(first, min(last, self.last_entry), entries_max=entries_max, bytes_max=bytes_max)

    @property
    def confirmed_entry(self) -> int:
        """See `LedgerReader`."""
        return self.last_entry

    async def index(self) -> SparseIndex:
        """See `LedgerReader`. The first call opens the file."""
        return (await self.log()).index

    async def log(self) -> LedgerLog:
        """The contents of its file. The first call opens it."""
        if self._log is None:
            async with self._loading:
                if self._log is None:
                    self._log = await self._open()
        return self._log

    async def _open(self) -> LedgerLog:
        loaded = await self._folder.files.run(partial(self._folder.load, self.id, passes_damage=True))
        log = LedgerLog(self.id, self._folder, loaded.index, is_growing=False)
        log.damage = loaded.damage
        lost = self._lost
        if log.damage is None and lost is not None and lost.offset >= loaded.index.end_offset:
            log.damage = LedgerCorrupt(self._folder.ledger_path(self.id), lost.offset, lost.reason)
        if log.damage is None and loaded.index.last_entry < self.last_entry:
            reason = f"the ledger ends with entry {loaded.index.last_entry}, but entry {self.last_entry} was confirmed"
            log.damage = LedgerCorrupt(self._folder.ledger_path(self.id), loaded.index.end_offset, reason)
        return log
