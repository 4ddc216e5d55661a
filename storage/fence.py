"""The fence of a journal: it makes sure that the old writer confirms nothing after a new writer has begun.

Fences are files `fence-<epoch>` in the journal's folder. A writer takes the next free epoch by creating its file,
durably. Only then does it read what the writer before it left. After every sync, before it confirms, a writer checks
whether the next epoch's file exists. If so, a new writer has begun to read and may have missed what was just written,
so the old writer does not confirm it.

Why files and not the operating system's lock: a lock ends with its process, but a stopped process keeps it. A stopped
writer that wakes up later must learn that it was replaced (D2).

The file also names the owner of its epoch and the journal files that must exist (`EpochRecord`). So a missing journal
file is damage, never an empty journal (E3). The file is one sector, rewritten in place, because a disk writes a sector
whole or not at all. The writer notes a journal file after making it and before writing to it. It notes that it frees a
file before removing it.
"""

import re
import threading
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from storage.errors import Fenced, FenceDamaged
from storage.files import Files
from storage.sector import SECTOR, decode_sector, encode_sector
from storage.writer import Epoch

_NAME: Final = re.compile(r"fence-(\d{10})")


class Owner(NamedTuple):
    """The owner of a journal."""

    folder: str
    """Identity of the data folder."""
    broker: str
    stream: int
    """The random number of this writer's life."""
    previous: Epoch | None
    """The broker's epoch in the metadata store when this one was taken; None if it had none."""


class EpochRecord(NamedTuple):
    """The contents of a fence file."""

    owner: Owner
    first: int = 0
    """The lowest journal file that is not freed."""
    last: int = -1
    """The highest journal file that may hold blocks, -1 before the first exists. `first`..`last` must all exist."""
    file_bytes: int = 0
    """The size with which each of these files was made. A shorter file was cut by something else."""
    first_sequence: int = 0
    """Sequence of the first block of the file `first`."""
    closed_below: int = 0
    """This writer's ledgers with lower ids are closed and complete in their files, so nobody needs to fence it for
    them."""

    @property
    def has_begun(self) -> bool:
        """Whether this epoch has a journal file. Everything that lower epochs confirmed is then in the ledger files."""
        return self.last >= 0

    def encode(self) -> bytes:
        """One sector: a checksum and JSON."""
        owner = self.owner
        fields = {
            "folder": owner.folder,
            "broker": owner.broker,
            "stream": owner.stream,
            "previous": None if owner.previous is None else tuple(owner.previous),
            "files": (self.first, self.last, self.file_bytes, self.first_sequence),
            "closed_below": self.closed_below,
        }
        # It fits, as broker ids and identities are bounded.
        return encode_sector(orjson.dumps(fields))

    @classmethod
    def decode(cls, data: bytes) -> "EpochRecord":
        """The record that `encode` made.

        Raises:
            ValueError: it is damaged.
        """
        fields = orjson.loads(decode_sector(data))
        previous = None if fields["previous"] is None else Epoch(*fields["previous"])
        owner = Owner(fields["folder"], fields["broker"], fields["stream"], previous)
        first, last, file_bytes, first_sequence = fields["files"]
        return cls(owner, first, last, file_bytes, first_sequence, fields["closed_below"])


class Fence:
    """One writer's epoch."""

    __slots__ = ("_files", "_guard", "_mine", "_next", "_record", "epoch")

    def __init__(self, files: Files, directory: Path, epoch: int, record: EpochRecord) -> None:
        self._files = files
        self.epoch = epoch
        self._mine = _path(directory, epoch)
        self._next = _path(directory, epoch + 1)
        self._record = record
        self._guard = threading.Lock()

    @property
    def stream(self) -> int:
        """The random number of this writer's life."""
        return self._record.owner.stream

    def check(self) -> None:
        """Return if no later writer had claimed the journal when this check began. Blocks.

        Raises:
            Fenced: a later writer has.
        """
        # Old fences are removed in rising order, so checking in this order cannot miss one between two removals.
        if self._files.exists(self._next) or not self._files.exists(self._mine):
            raise Fenced(f"another process took over the journal in {self._mine.parent}, which was epoch {self.epoch}")

    def note_made(self, number: int, file_bytes: int) -> None:
        """Note that this journal file exists, with this size, and may be written to. Durable on return. Blocks.

        Raises:
            Fenced: a later writer has removed this fence.
        """
        with self._guard:
            self._write(self._record._replace(last=number, file_bytes=file_bytes))

    def note_freed(self, first: int, sequence: int) -> None:
        """Note that the journal files below `first` may be gone. Durable on return. Blocks.

        `sequence` is that of the first block in the file `first`.

        Raises:
            Fenced: a later writer has removed this fence.
        """
        with self._guard:
            self._write(self._record._replace(first=first, first_sequence=sequence))

    def note_closed(self, below: int) -> None:
        """Note that this writer's ledgers with lower ids are closed. Durable on return. Blocks.

        Raises:
            Fenced: a later writer has removed this fence.
        """
        with self._guard:
            self._write(self._record._replace(closed_below=below))

    def _write(self, record: EpochRecord) -> None:
        try:
            file = self._files.open(self._mine)
        except FileNotFoundError:
            self.check()
            raise
        try:
            file.write_at(0, record.encode())
            file.sync()
        finally:
            file.close()
        self._record = record


def claim(files: Files, directory: Path, owner: Owner) -> Fence:
    """Take the next epoch. Durable on return. From then on, the writer before confirms nothing. Blocks."""
    epoch = max(_epochs(files, directory), default=0)
    record = EpochRecord(owner)
    while True:
        epoch += 1
        try:
            file = files.open(_path(directory, epoch), create=True, exclusive=True)
        except FileExistsError:
            continue
        try:
            file.write_at(0, record.encode())
            file.sync()
        finally:
            file.close()
        files.sync_dir(directory)
        return Fence(files, directory, epoch, record)


def remove_older(files: Files, directory: Path, fence: Fence) -> None:
    """Remove the fences below this one, the oldest first. Blocks."""
    for epoch in sorted(_epochs(files, directory)):
        if epoch < fence.epoch:
            files.remove(_path(directory, epoch))


def read_epochs(files: Files, directory: Path) -> dict[int, EpochRecord]:
    """The contents of the fences, by epoch, rising. Blocks.

    An empty fence file is left out, because its writer died while making it.

    Raises:
        FenceDamaged: a fence file is damaged.
    """
    found = {}
    for epoch in sorted(_epochs(files, directory)):
        path = _path(directory, epoch)
        try:
            file = files.open(path)
        except FileNotFoundError:
            continue  # A later writer has removed it meanwhile.
        try:
            data = file.read_at(0, SECTOR)
        finally:
            file.close()
        if data.strip(b"\0"):
            try:
                found[epoch] = EpochRecord.decode(data)
            except ValueError as damaged:
                raise FenceDamaged(path, str(damaged)) from damaged
    return found


def newest_begun(files: Files, directory: Path, *, below: int) -> tuple[int, EpochRecord] | None:
    """The newest epoch below `below` that has a journal file, and the contents of its fence. Blocks.

    None if there is none.

    Raises:
        FenceDamaged: a fence file is damaged.
    """
    begun = [(epoch, record) for epoch, record in read_epochs(files, directory).items() if record.has_begun]
    return next((each for each in reversed(begun) if each[0] < below), None)


def _path(directory: Path, epoch: int) -> Path:
    return directory / f"fence-{epoch:010d}"


def _epochs(files: Files, directory: Path) -> list[int]:
    return [int(match[1]) for name in files.names(directory) if (match := _NAME.fullmatch(name))]
