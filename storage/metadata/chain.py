"""Which files of a folder are the metadata log, if several controllers wrote there one after another.

A deposed controller may still be inside a write, a roll or a take-over. It changes only files of its own epoch, so what
it leaves lies beside the log: batches behind the place where its successor went on, or whole files. Nobody removes or
changes them then. They are not on the chain:

    epoch 1   [1 2 3 4 5 6 7]      batches 6 and 7 are not on the chain
                       |
    epoch 2            +--[6]      it took over behind batch 5, but epoch 3 did not see this file: not on the chain
                       |
    epoch 3            +--[6 7 8]  the head: the newest file of the highest epoch

Each batch names the one before it by number and checksum, across files and epochs too. So the chain is found from its
head backwards: the file that holds the batch which comes before a file's first one is the next part. The highest epoch
is right, because a controller makes the first file of its epoch only behind everything that was confirmed before, and
with its first batch in it.

| what is found                                                  | meaning                                          |
|----------------------------------------------------------------|--------------------------------------------------|
| the batch before a file is in a file of the same or a lower    | that file is on the chain, up to this batch      |
| epoch                                                          |                                                  |
| the batch before a file is in no file                          | `NoChain`: a file is missing or damaged          |
| the head has no batch, and follows a file of its own epoch     | the log had just rolled                          |
| the head has no batch, and no file of its epoch is before it   | `NoChain`: its first batch is damaged. It was    |
|                                                                | durable when the epoch began, or when the        |
|                                                                | snapshot got its name that replaced the files    |
|                                                                | before it                                        |
| the same in epoch 0, and a snapshot is just before it          | the log had just rolled                          |
| the head is closed                                             | `NoChain`: the file after it is missing          |
| the same in epoch 0, and there is a fence                      | the first take-over of a single broker's log was |
|                                                                | interrupted                                      |
| an epoch that has begun, but no file of it or of a later one   | `NoChain`: the file is missing                   |
| the head's epoch has no fence                                  | `NoChain`: the fence is missing                  |
| the chain passes the number of the batch asked for             | `OffChain`                                       |

Pure: what is in the folder comes in as values (`found_files`).
"""

import re
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from storage.metadata.batches import BEGINNING, Point
from storage.metadata.store import MetadataError

_NAME: Final = re.compile(r"(\d{20})(?:-(\d{10}))?\.(closed-)?log")


class LogName(NamedTuple):
    """The name of a log file. Only the controller of its epoch makes, writes, renames and closes it."""

    number: int
    """The first batch that it is for."""
    epoch: int
    """0 for the files that one broker wrote before there were epochs."""
    is_closed: bool = False
    """Whether another file of the same controller follows, or, in epoch 0, the first epoch."""

    def __str__(self) -> str:
        epoch = f"-{self.epoch:010}" if self.epoch else ""
        return f"{self.number:020}{epoch}.{'closed-' if self.is_closed else ''}log"

    @classmethod
    def parse(cls, name: str) -> "LogName | None":
        """The name of a log file; None for the name of anything else."""
        found = _NAME.fullmatch(name)
        return None if found is None else cls(int(found[1]), int(found[2] or 0), found[3] is not None)


class FoundFile(NamedTuple):
    """A log file in the folder, and what the headers of its batches say."""

    name: LogName
    before: Point | None
    """The place that its first batch follows; None if it has no first batch."""
    last: Point | None
    """Its last batch; None if it has none."""
    holds: frozenset[Point] = frozenset()
    """Those of its batches that the first batch of any file follows, and the one from which the chain is asked."""


class Fences(NamedTuple):
    """What the fences say."""

    newest: int = 0
    """The highest epoch that has one; 0 if there is none."""
    begun: int = 0
    """The highest epoch of which the log is known to have a file; 0 if there is none."""
    first: int = 0
    """The first batch of that epoch."""


class Part(NamedTuple):
    """A file on the chain."""

    file: FoundFile
    cut: Point | None
    """The last of its batches that is on the chain; None for the head, whose every whole batch is."""


Chain = tuple[Part, ...]
"""The parts behind a place, in order. The first one holds that place or follows it. Empty for a new log."""


class NoChain(MetadataError):
    """A file of the log is missing or damaged."""

    def __init__(self, name: str, batch: int, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        """The file that is missing or damaged, or the one that shows it."""
        self.batch = batch
        """The batch that is missed."""
        self.reason = reason


class OffChain(MetadataError):
    """The log does not contain the batch from which its chain was asked. Whoever holds its effects holds a fork."""

    def __init__(self, below: Point, head: LogName | Point) -> None:
        end = head if isinstance(head, LogName) else f"batch {head.sequence} with checksum {head.crc:08x}"
        super().__init__(f"batch {below.sequence} with checksum {below.crc:08x} is not in the log that ends in {end}")
        self.below = below


def chain_of(found: Collection[FoundFile], below: Point, epoch: int, fences: Fences) -> Chain:
    """The chain behind `below`, a batch that was written in `epoch`.

    Raises:
        NoChain: a file is missing or damaged.
        OffChain: the log goes past `below` without it.
    """
    files = sorted(found, key=lambda each: (each.name.epoch, each.name.number))
    head = files[-1] if files else None
    _check_head(head, below, epoch, fences)
    parts: list[Part] = []
    file, cut = head, None
    while file is not None:
        parts.append(Part(file, cut))
        before = _before(file, files, below, epoch)
        if below == before or below in file.holds:
            break
        if before.sequence <= below.sequence:
            # So a file is only a part up to a cut above `below`.
            assert head is not None, "this file is the head or comes before it"
            raise OffChain(below, head.name)
        # Numbers fall from file to file, so this ends.
        file, cut = _holder(before, file, files), before
    return tuple(reversed(parts))


def whole_chain(found: Collection[FoundFile], fences: Fences) -> Chain:
    """The chain as far back as there are files: to the beginning, or to the first one that a snapshot has not replaced.

    Raises:
        NoChain: the newest file is missing or damaged.
    """
    files = sorted(found, key=lambda each: (each.name.epoch, each.name.number))
    head = files[-1] if files else None
    _check_head(head, BEGINNING, 0, fences)
    parts: list[Part] = []
    file, cut = head, None
    while file is not None:
        parts.append(Part(file, cut))
        try:
            before = _before(file, files, BEGINNING, 0)
            if before == BEGINNING:
                break
            file, cut = _holder(before, file, files), before
        except NoChain:
            break
    return tuple(reversed(parts))


def _check_head(head: FoundFile | None, below: Point, epoch: int, fences: Fences) -> None:
    if fences.begun > (0 if head is None else head.name.epoch):
        # A snapshot of that epoch may have replaced its first files.
        first = below.sequence + 1 if epoch == fences.begun else fences.first
        raise _missing(LogName(first, fences.begun), f"the file is missing: none of epoch {fences.begun} is left")
    if head is None:
        if below != BEGINNING:
            raise _missing(LogName(below.sequence + 1, epoch), "the file is missing")
        return
    name = head.name
    if name.epoch > fences.newest:
        raise NoChain(str(name), name.number, f"the fence of epoch {name.epoch} is missing")
    if name.is_closed and (name.epoch or not fences.newest):
        following = name.number if head.last is None else head.last.sequence + 1
        raise _missing(LogName(following, name.epoch), "the file is missing")


def _before(file: FoundFile, files: Sequence[FoundFile], below: Point, epoch: int) -> Point:
    """The batch that comes before this file on the chain."""
    number = file.name.number
    if file.before is not None:
        if file.before.sequence + 1 != number:
            raise NoChain(str(file.name), number, f"it begins with batch {file.before.sequence + 1}")
        return file.before
    # Only the head can be without a batch. It is named before its first write if the log rolled, but not if an epoch
    # began with it.
    rolled = [each for each in files if each.name.epoch == file.name.epoch and each.name.number < number]
    if rolled and rolled[-1].last is not None:
        if rolled[-1].last.sequence + 1 != number:
            reason = f"it ends with batch {rolled[-1].last.sequence}, but the next file is {file.name}"
            raise NoChain(str(rolled[-1].name), rolled[-1].last.sequence + 1, reason)
        return rolled[-1].last
    if not rolled and not file.name.epoch and not epoch and below.sequence + 1 == number:
        # A snapshot of an epoch has its name only once the file behind it has a batch, which names the snapshot.
        return below
    raise NoChain(str(file.name), number, f"it does not begin with a whole batch {number}")


def _holder(batch: Point, after: FoundFile, files: Sequence[FoundFile]) -> FoundFile:
    """The file that holds the batch which `after` follows."""
    # A file of a later epoch cannot come before one of this epoch.
    candidates = [each for each in files if each.name.epoch <= after.name.epoch and each.name.number <= batch.sequence]
    for each in reversed(candidates):
        if batch in (each.last, *each.holds):
            return each
    if candidates:
        reason = f"it does not hold batch {batch.sequence} with checksum {batch.crc:08x}, which {after.name} follows"
        raise NoChain(str(candidates[-1].name), batch.sequence, reason)
    reason = f"no file holds batch {batch.sequence} with checksum {batch.crc:08x}, which this one follows"
    raise NoChain(str(after.name), batch.sequence, reason)


def _missing(name: LogName, reason: str) -> NoChain:
    return NoChain(str(name), name.number, reason)
