"""The epochs of the metadata log: which process may append to it, one after another.

Whoever makes the fence of an epoch is its controller (`storage.epoch_files`). The controller before it is deposed: its
next check fails, so it shows and confirms nothing that it wrote since. The fence is the only rule that keeps the log
safe. The rest of this module only says when to try:

| what is seen                                | what it means                                                         |
|---------------------------------------------|-----------------------------------------------------------------------|
| the controller's lock is free               | its process has ended, if the fence says that its maker had the lock  |
| the lock is held                            | nothing: its process may be stopped, or stuck before its own fence    |
| the lock is held, and the beat stands still | its process is stopped, or cannot run (`beats.BeatWatch`)             |

The fence says which file begins the log of its epoch. So if no file of that epoch is left, the log is damaged, and does
not pass for one that ended with the epoch before (E3).

Everything here blocks.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from storage.epoch_files import EpochFiles, TakenEpoch
from storage.files import AlreadyLocked, Files, Lock
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.store import StoreUnavailable
from storage.sector import decode_sector, encode_sector

_BESIDES: Final = re.compile(r"(?:controller-(\d{10})\.lock|beat-(\d{10}))")
"""What else an epoch has by its number. It is of no use once a later epoch is taken."""


class Deposed(StoreUnavailable):
    """This process is no longer the controller. What it wrote since may be in the log or not."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"another process took over the metadata log, which this one wrote in epoch {epoch}")


class FoundEpoch(NamedTuple):
    """What the fence of an epoch says."""

    epoch: int
    broker: str
    """The broker that made it."""
    address: str | None
    """Where other brokers reach it; None if it serves no others."""
    nonce: int
    """A random number of this claim."""
    is_locked: bool
    """Whether its maker held the controller's lock of this epoch, and so holds it until its process ends."""
    first: int = 0
    """The first batch of this epoch's log; 0 until the log has a file of this epoch. From then on it always has one."""

    def encode(self) -> bytes:
        """One sector: a checksum and JSON."""
        # It fits, as broker ids and host names are bounded.
        return encode_sector(orjson.dumps(self._asdict()))

    @classmethod
    def decode(cls, data: bytes) -> "FoundEpoch":
        """What `encode` made.

        Raises:
            ValueError: it is damaged.
        """
        fields = orjson.loads(decode_sector(data))
        return cls(**{name: fields[name] for name in cls._fields})


class MetadataEpoch:
    """An epoch that this process has taken: it is the controller, until a check fails."""

    __slots__ = ("_lock", "_taken", "found")

    def __init__(self, taken: TakenEpoch, found: FoundEpoch, lock: Lock | None) -> None:
        self._taken = taken
        self._lock = lock
        self.found = found
        """What its fence says."""

    @property
    def epoch(self) -> int:
        """Its number."""
        return self._taken.epoch

    def check(self) -> None:
        """Return if no later epoch was taken when this check began.

        Raises:
            Deposed: one was.
        """
        if not self._taken.is_newest():
            raise Deposed(self.epoch)

    def note_begun(self, first: int) -> None:
        """Note that the log now has a file of this epoch, which begins with batch `first`. Durable on return.

        Raises:
            Deposed: a later epoch was taken.
        """
        assert first > 0, "batches are numbered from 1"
        found = self.found._replace(first=first)
        try:
            self._taken.rewrite(found.encode())
        except FileNotFoundError as removed:
            raise Deposed(self.epoch) from removed
        self.found = found

    def note_ended(self) -> None:
        """Note that the log will have no file of this epoch. Durable on return. Only for a downgrade."""
        self.found = self.found._replace(first=0)
        self._taken.rewrite(self.found.encode())

    def close(self) -> None:
        """Release the controller's lock. Idempotent. The epoch lasts until another process takes the next one."""
        if self._lock is not None:
            self._lock.close()


class MetadataEpochs:
    """The epochs of one metadata folder. `random_bits` draws the nonces."""

    __slots__ = ("_directory", "_fences", "_files", "random_bits")

    def __init__(self, files: Files, directory: Path, random_bits: Callable[[int], int]) -> None:
        self._files = files
        self._directory = directory
        self._fences = EpochFiles(files, directory)
        self.random_bits = random_bits

    def newest(self) -> FoundEpoch | None:
        """The highest epoch that was taken; None if none ever was.

        Raises:
            CorruptMetadata: its fence is damaged.
        """
        found = self.found()
        return found[-1] if found else None

    def found(self) -> list[FoundEpoch]:
        """The epochs that have a fence, rising. A controller removes the fences below its own.

        Raises:
            CorruptMetadata: a fence is damaged, or is the fence of another epoch.
        """
        while True:
            epochs = self._fences.epochs()
            found = [self._read(epoch) for epoch in epochs]
            if not epochs or found[-1] is not None:
                return [each for each in found if each is not None]
            if self._fences.highest() == epochs[-1]:
                raise CorruptMetadata(self._fences.path(epochs[-1]), 0, "it is empty")
            # It was removed since it was listed, so there is a higher one now.

    def claim(self, epoch: int, broker: str, address: str | None, lock: Lock | None) -> MetadataEpoch:
        """Take exactly this epoch. Durable on return. From then on, the controllers before it are deposed.

        `lock` is the controller's lock of this epoch; None if another process has it. The taken epoch releases it.
        After an error it is still the caller's.

        Raises:
            EpochTaken: another process has this epoch or a later one.
            DiskFull: no epoch was taken.
        """
        nonce = self.random_bits(64)
        found = FoundEpoch(epoch, broker, address, nonce, lock is not None)
        return MetadataEpoch(self._fences.make(epoch, found.encode(), nonce), found, lock)

    def controller_lock(self, epoch: int) -> Lock | None:
        """Take the controller's lock of an epoch. None if another process has it.

        Raises:
            DiskFull: its file cannot be made.
        """
        try:
            return self._files.lock(self._directory / f"controller-{epoch:010d}.lock")
        except AlreadyLocked:
            return None

    def has_ended(self, found: FoundEpoch) -> bool:
        """Whether the process that took this epoch has certainly ended. False says nothing: it may be stopped."""
        if not found.is_locked:
            return False
        lock = self.controller_lock(found.epoch)
        if lock is None:
            return False
        lock.close()
        return True

    def remove_older(self, mine: MetadataEpoch) -> None:
        """Remove what lower epochs left: fences, locks, beats, and claims that were never finished.

        Log files and snapshots stay, because the log may need them.
        """
        self._fences.remove_below(mine.epoch)
        for name in self._files.names(self._directory):
            match = _BESIDES.fullmatch(name)
            if match is not None and int(match[1] or match[2]) < mine.epoch:
                with suppress(FileNotFoundError):
                    self._files.remove(self._directory / name)

    def _read(self, epoch: int) -> FoundEpoch | None:
        path = self._fences.path(epoch)
        try:
            found = self._fences.read(epoch, FoundEpoch.decode)
        except ValueError as damaged:
            raise CorruptMetadata(path, 0, str(damaged)) from damaged
        if found is not None and found.epoch != epoch:
            raise CorruptMetadata(path, 0, f"it is the fence of epoch {found.epoch}")
        return found


def remove_epochs(files: Files, directory: Path) -> None:
    """Remove all that epochs have besides log files and snapshots. Durable on return. Only for a downgrade."""
    for name in files.names(directory):
        if _BESIDES.fullmatch(name) or name.startswith("fence-"):
            files.remove(directory / name)
    files.sync_dir(directory)
