"""Taking over a journal: fence its writer, then bring its durable entries into the ledger files.

Everything here may be interrupted at any point and repeated, because batches are written where they belong. The old
files are removed only after the ledger files are synced and the new epoch's fence says that the epoch has begun.
Decisions follow the tables in `recovery`. Everything here blocks.
"""

from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Final

from storage.damages import LedgerDamage
from storage.errors import FenceDamaged, JournalFileDamaged, LedgerAbsent
from storage.fence import EpochRecord, Fence, Owner, newest_begun, read_epochs, remove_older
from storage.files import Files
from storage.journal_block import LABEL_SIZE
from storage.journal_files import JournalName, journal_names, make_journal_file, unfinished_files
from storage.ledger_folder import LedgerFolder
from storage.recovery import DamagedPart, JournalReader, RecoveredBlock

_GATHER_BYTES: Final = 8 * 1024 * 1024
LOSS_ACCEPTED: Final = b"lost"
"""An operator puts this into a journal file to accept the loss of its contents."""

_NOTHING: Final = (0, EpochRecord(Owner("", "", 0, None)))
"""Stands for the newest begun epoch while none has begun."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """The result of taking over a journal."""

    fence: Fence
    replayed_blocks: int
    quarantined: tuple[DamagedPart, ...]
    """Lost batches. `finish` requires that they are on record."""
    unknown_names: tuple[str, ...]
    """Foreign files in the ledgers' folder, left alone."""
    obsolete: tuple[Path, ...]
    """Journal files to remove once a file of the new epoch exists."""

    @property
    def damages(self) -> dict[int, LedgerDamage]:
        """The first lost batch of each ledger that lost one."""
        found: dict[int, LedgerDamage] = {}
        for part in sorted(self.quarantined, key=attrgetter("ledger_offset"), reverse=True):
            reason = f"{part.path} is damaged at byte {part.offset}: {part.reason}"
            found[part.ledger] = LedgerDamage(part.ledger_offset, reason)
        return found


def take_over(files: Files, directory: Path, folder: LedgerFolder, fence: Fence) -> Takeover:
    """Replay what the fenced writers wrote. Durable on return.

    Raises:
        JournalFileDamaged: a journal file is missing, or its damage does not show which ledgers lost entries.
        FenceDamaged: a fence is damaged or missing.
    """
    journal = _Journal(files, directory, fence)
    replay = _Replay(files, folder)
    if journal.begun is not None:
        paths = [directory / str(name) for name in journal.names]
        record = journal.begun[1]
        replay.run(JournalReader(record.owner.stream, record.first_sequence, paths, journal.load))
    obsolete = [name for name in journal_names(files, directory) if name.epoch < fence.epoch]
    return Takeover(
        fence,
        replay.blocks,
        replay.settle(),
        tuple(folder.unknown_names()),
        (
            *(directory / str(name) for name in obsolete),
            *unfinished_files(files, directory, before_epoch=fence.epoch),
        ),
    )


def finish(files: Files, directory: Path, takeover: Takeover) -> None:
    """Remove the files that the new epoch's first file makes obsolete. Damaged files stay, renamed, for people.

    Before that, `Takeover.damages` must be on record (`damages`).
    """
    damaged = {part.path for part in takeover.quarantined}
    for path in takeover.obsolete:
        try:
            if path in damaged:
                files.rename(path, path.with_suffix(".journal-damaged"))
            else:
                files.remove(path)
        except FileNotFoundError:
            continue  # Its fenced writer has freed it meanwhile.
    remove_older(files, directory, takeover.fence)


def finish_abandoned(files: Files, directory: Path, takeover: Takeover) -> None:
    """As `finish`, for a dead broker's journal, which this process has fenced and does not write to.

    Raises:
        Fenced: a later process has taken over the journal, and has removed this epoch's unfinished file.
    """
    fence = takeover.fence
    try:
        make_journal_file(files, directory, JournalName(fence.epoch, 0, fence.stream), LABEL_SIZE).close()
    except FileNotFoundError:
        fence.check()
        raise
    fence.note_made(0, LABEL_SIZE)
    finish(files, directory, takeover)


class _Journal:
    """The journal files to replay. It also knows whether a missing file was freed."""

    def __init__(self, files: Files, directory: Path, fence: Fence) -> None:
        self._files = files
        self._directory = directory
        self._fence = fence
        self.begun, self.names = self._list()

    def _list(self) -> tuple[tuple[int, EpochRecord] | None, list[JournalName]]:
        while True:
            begun = newest_begun(self._files, self._directory, below=self._fence.epoch)
            # Listed after the fence was read. Its files existed before, and can only have been freed since.
            names = journal_names(self._files, self._directory)
            epoch, record = begun or _NOTHING
            strays = [name for name in names if name.epoch >= epoch and (name.epoch, name.stream) not in self._lives()]
            due = [name for name in names if name.epoch == epoch and name.number >= record.first]
            missing = set(range(record.first, record.last + 1)) - {name.number for name in due}
            if not strays and not missing:
                return begun, due
            # It is damage, unless another writer has changed the folder meanwhile.
            if newest_begun(self._files, self._directory, below=self._fence.epoch) != begun:
                continue
            if missing:
                raise self._is_missing(JournalName(epoch, min(missing), record.owner.stream))
            self._fence.check()
            fence = f"fence-{strays[0].epoch:010d}"
            raise FenceDamaged(self._directory / fence, f"it is missing, although the journal file {strays[0]} exists")

    def _lives(self) -> set[tuple[int, int]]:
        epochs = read_epochs(self._files, self._directory)
        return {(epoch, record.owner.stream) for epoch, record in epochs.items()}

    def load(self, path: Path) -> bytes | None:
        """A file's bytes. None if its fenced writer has freed it since it was listed, or if its loss was accepted.

        Raises:
            JournalFileDamaged: it is gone and was not freed, or shorter than it was made.
        """
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            name = next(name for name in self.names if str(name) == path.name)
            now = newest_begun(self._files, self._directory, below=self._fence.epoch)
            if now is None or (now[0] == name.epoch and now[1].first <= name.number):
                raise self._is_missing(name) from None
            return None
        try:
            data = file.read_at(0, file.size())
        finally:
            file.close()
        if data.strip() == LOSS_ACCEPTED:
            return None
        made_bytes = 0 if self.begun is None else self.begun[1].file_bytes
        if len(data) < made_bytes:
            self._fence.check()
            raise JournalFileDamaged(path, len(data), f"it was made with {made_bytes} bytes, but the rest was cut off")
        return data

    def _is_missing(self, name: JournalName) -> JournalFileDamaged:
        # A later writer may have finished and removed the files. Then that is the cause.
        self._fence.check()
        return JournalFileDamaged(self._directory / str(name), 0, "the file is missing")


@dataclass(slots=True)
class _Run:
    begin: int
    stop: int
    batches: list[bytes]


class _Replay:
    def __init__(self, files: Files, folder: LedgerFolder) -> None:
        self._files = files
        self._folder = folder
        self._gathered: dict[int, _Run] = {}
        self._gathered_bytes = 0
        self._touched: set[int] = set()
        self._deleted: set[int] = set()
        self._damaged: list[DamagedPart] = []
        self.blocks = 0

    def run(self, reader: JournalReader) -> None:
        last: RecoveredBlock | None = None
        for block in reader.blocks():
            if last is not None:
                self._take(last)
            last = block
        if last is not None:
            self._make_durable(last)
            self._take(last)

    def _make_durable(self, block: RecoveredBlock) -> None:
        try:
            file = self._files.open(block.path)
        except FileNotFoundError:
            return  # Its fenced writer has freed it meanwhile, so the ledger files have its contents, synced.
        try:
            # Written again, not only synced, because after a failed sync the system treats the bytes as clean.
            file.write_at(block.offset, file.read_at(block.offset, block.size))
            file.sync()
        finally:
            file.close()

    def _take(self, block: RecoveredBlock) -> None:
        self.blocks += 1
        for ledger, offset, batch in block.parts:
            self._gather(ledger, offset, batch)
        self._damaged.extend(block.damaged)
        for ledger in block.deleted:
            self._gathered.pop(ledger, None)
            self._touched.discard(ledger)
            self._damaged = [part for part in self._damaged if part.ledger != ledger]
        self._deleted.update(block.deleted)
        if self._gathered_bytes >= _GATHER_BYTES:
            self._write()

    def settle(self) -> tuple[DamagedPart, ...]:
        # Removed first, because a full disk then has space. At once, because a removal lists the whole folder.
        self._folder.remove(self._deleted)
        self._write()
        for ledger in sorted(self._touched):
            self._folder.open_files.sync(self._folder.ledger_path(ledger))
        self._files.sync_dir(self._folder.path)
        lost = []
        for part in self._damaged:
            loaded = self._folder.load(part.ledger)
            if isinstance(loaded.damage, LedgerAbsent):
                continue
            # The batch may be whole in the ledger file, if it was written there before the journal was damaged.
            if loaded.index.end_offset <= part.ledger_offset:
                lost.append(part)
        return tuple(lost)

    def _gather(self, ledger: int, offset: int, batch: bytes) -> None:
        run = self._gathered.get(ledger)
        if run is not None and run.stop != offset:
            self._write()
            run = None
        if run is None:
            run = self._gathered[ledger] = _Run(offset, offset, [])
        run.batches.append(batch)
        run.stop += len(batch)
        self._gathered_bytes += len(batch)

    def _write(self) -> None:
        for ledger, run in self._gathered.items():
            # A ledger without a file was removed by a later owner, which notes that in its own journal only. If its
            # file was lost instead, its record still lists it, and its readers are told.
            with suppress(FileNotFoundError):
                self._folder.open_files.write(self._folder.ledger_path(ledger), run.begin, run.batches)
                self._touched.add(ledger)
        self._gathered = {}
        self._gathered_bytes = 0
