"""The fence of a journal: it makes sure that the old writer confirms nothing after a new writer has begun.

A writer takes the next free epoch by making its fence, durably (`storage.epoch_files`). Only then does it read what
the writer before it left. After every sync, before it confirms, a writer checks whether a later fence exists. If so, a
new writer has begun to read and may have missed what was just written, so the old writer does not confirm it.

Why files and not the operating system's lock: a lock ends with its process, but a stopped process keeps it. A stopped
writer that wakes up later must learn that it was replaced (D2).

The file also names the owner of its epoch and the journal files that must exist (`EpochRecord`). So a missing journal
file is damage, never an empty journal (E3). The file is one sector, rewritten in place, because a disk writes a sector
whole or not at all. The writer notes a journal file after making it and before writing to it. It notes that it frees a
file before removing it.
"""

import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import orjson

from storage.epoch_files import EpochFiles, EpochTaken, TakenEpoch
from storage.errors import Fenced, FenceDamaged
from storage.files import Files
from storage.sector import decode_sector, encode_sector
from storage.writer import Epoch


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

    __slots__ = ("_guard", "_record", "_taken")

    def __init__(self, taken: TakenEpoch, record: EpochRecord) -> None:
        self._taken = taken
        self._record = record
        self._guard = threading.Lock()

    @property
    def epoch(self) -> int:
        """Its number."""
        return self._taken.epoch

    @property
    def stream(self) -> int:
        """The random number of this writer's life."""
        return self._record.owner.stream

    def check(self) -> None:
        """Return if no later writer had claimed the journal when this check began. Blocks.

        Raises:
            Fenced: a later writer has.
        """
        if not self._taken.is_newest():
            where = self._taken.path.parent
            raise Fenced(f"another process took over the journal in {where}, which was epoch {self.epoch}")

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
            self._taken.rewrite(record.encode())
        except FileNotFoundError:
            self.check()
            raise
        self._record = record


def claim(files: Files, directory: Path, owner: Owner, above: int = 0) -> Fence:
    """Take the next epoch, which is also above `above`. Durable on return. Earlier writers confirm nothing. Blocks."""
    fences = EpochFiles(files, directory)
    while True:
        with suppress(EpochTaken):
            return claim_exactly(files, directory, owner, max(above, fences.highest()) + 1)


def claim_exactly(files: Files, directory: Path, owner: Owner, epoch: int) -> Fence:
    """Take this epoch. Durable on return. From then on, earlier writers confirm nothing. Blocks.

    Raises:
        EpochTaken: this epoch or a later one has a fence.
    """
    record = EpochRecord(owner)
    return Fence(EpochFiles(files, directory).make(epoch, record.encode(), owner.stream), record)


def remove_older(files: Files, directory: Path, fence: Fence) -> None:
    """Remove the fences below this one, the oldest first. Blocks."""
    EpochFiles(files, directory).remove_below(fence.epoch)


def read_epochs(files: Files, directory: Path) -> dict[int, EpochRecord]:
    """The contents of the fences, by epoch, rising. Blocks.

    An empty fence is left out, because nobody ever held it.

    Raises:
        FenceDamaged: a fence file is damaged.
    """
    fences = EpochFiles(files, directory)
    while True:
        found = {}
        epochs = fences.epochs()
        for epoch in epochs:
            try:
                record = fences.read(epoch, EpochRecord.decode)
            except ValueError as damaged:
                raise FenceDamaged(fences.path(epoch), str(damaged)) from damaged
            if record is not None:
                found[epoch] = record
        without = set(epochs) - found.keys()
        # A later writer may have removed a fence, when its own was not listed yet. Without both, there would be none.
        if without <= set(fences.epochs() if without else ()):
            return found


def newest_begun(files: Files, directory: Path, *, below: int) -> tuple[int, EpochRecord] | None:
    """The newest epoch below `below` that has a journal file, and the contents of its fence. Blocks.

    None if there is none.

    Raises:
        FenceDamaged: a fence file is damaged.
    """
    begun = [(epoch, record) for epoch, record in read_epochs(files, directory).items() if record.has_begun]
    return next((each for each in reversed(begun) if each[0] < below), None)
