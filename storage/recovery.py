"""What damage means: the decisions of recovery, as tables for people, and the same tables in the code below.

**A journal file**, at its beginning. The first row that fits decides. A file's label shows its own name. Its first
block shows its writer's stream and the block's place in it.

    label       first block | decision
    good        -           | GO_ON       with the first block
    misplaced   -           | UNREADABLE  another journal file stands under this name
    damaged     good        | GO_ON       the first block says as much
    damaged     -           | UNREADABLE  neither tells which file it is

**A journal**, at the place where its next block is due. The first row that fits decides.

"Later": the good header of a later block is further on, in this file or (behind a damaged block) in a later one. Blocks
are written one at a time, and each is synced before the next. So the block that is due was durable, and may have been
confirmed.

"Empty sector": a sector of the block holds only zeros, although the block put something there. A disk writes sectors
whole. So the write was interrupted and never confirmed.

    header      directory  body     later  empty sector | decision
    unwritten   -          -        no     -            | END         of this file; the block may begin the next one
    unwritten   -          -        yes    -            | UNREADABLE  a block is lost, and which ledgers it was of
    misplaced   -          -        -      -            | UNREADABLE  blocks between this one and the last are missing
    good        good       good     -      -            | REPLAY
    -           -          -        no     yes          | TORN        the write was interrupted, not confirmed: cut (D9)
    good        damaged    good     -      -            | SALVAGE     the body tells its own parts: nothing is lost
    damaged     good       -        -      -            | SALVAGE     the directory finds the parts, each checks itself
    good        good       damaged  -      -            | SALVAGE     the same; ledgers of bad parts are quarantined
    -           -          -        -      -            | UNREADABLE  nobody can tell which ledgers lost entries

REPLAY and SALVAGE write the good parts to their ledger files, at the offsets that the parts carry. Repeating that is
harmless. A block with another one behind it was durable. The last block may be only in the system's memory, because its
writer died before the sync, or the sync failed. So recovery first writes it again and syncs it. Otherwise a loss of
power during recovery could leave half of it in a ledger file and nothing in the journal.

If the batch of a bad part is good in its ledger file, nothing is lost. Otherwise the damage gets a record (`damages`),
and everything else goes on. UNREADABLE stops the start (`JournalFileDamaged`).

**A ledger file**, after the journal was replayed, at the place where its next batch is due. Only confirmed batches are
ever written there, and the journal still has every batch that was not synced. So a ledger file has no torn tail:

    found                                               | decision
    the end of the file                                 | END
    a batch that continues the last one's crc           | NEXT
    anything else; batches chained to the end follow    | SKIP     quarantined up to them (D9)
    anything else                                       | CORRUPT  quarantined from here (D9)
    no file                                             | CORRUPT  listed but missing: it is made before it is listed
    a record of damage at or behind the end             | CORRUPT  the journal lost a batch of this ledger
    fewer entries than the record of its end says       | CORRUPT

**A chunk of a ledger file**, while it is read, at a batch that cannot be read:

    a later header, and headers from it to the end      | PASS     unreadable up to that header's first entry
    of the chunk that follow one another                |
    anything else                                       | REST     unreadable up to the end of the chunk

**The index of a ledger**, written only after the ledger's bytes were synced:

    missing, or its checksum differs                    | REBUILD  from the batches
    ends before the file does                           | EXTEND   by the batches behind it
    ends behind the end of the file                     | CORRUPT  the file lost synced bytes

**The aborted-transaction index of a ledger**, written and synced before the ledger's record counts its transactions:

    the record names none                               | NONE     its aborted transactions have metadata records
    of an owner that the record does not name           | LEFTOVER its owner died, or was replaced, before the record
    missing, damaged or with fewer than the record has  | CORRUPT  entries of its transactions are not shown

**The list of a ledger's hidden entries**, written once everything in the ledger is decided:

    missing or damaged                                  | REBUILD  from the entries

**Names**: files with foreign names in these folders are left alone and counted. An epoch has begun when its fence notes
a journal file. The newest epoch that has begun is replayed.

    journal file                                        | decision
    of the newest epoch, noted by its fence             | READ
    the same, absent                                    | UNREADABLE  unless the fence notes meanwhile that it is freed
    of the newest epoch, above those noted              | READ        its writer died, or was fenced, making it
    of a lower epoch, or of one that has not begun      | LEFTOVER    all it confirmed is in the ledger files (D2)
    of that or a later epoch, with no fence of its own  | UNREADABLE  the fence is missing

Pure: bytes in, decisions out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final, NamedTuple

from storage.errors import JournalFileDamaged
from storage.journal_block import (
    HEADER_SIZE,
    LABEL_SIZE,
    BlockHeader,
    DamagedBlock,
    Directory,
    Part,
    decode_directory,
    decode_header,
    decode_label,
    empty_sectors,
    finds_later_header,
    is_body_good,
    is_unwritten,
    parts_by_body,
    parts_by_directory,
)


class State(Enum):
    """The state in which a label, or a region of a block, was found."""

    GOOD = auto()
    DAMAGED = auto()
    UNWRITTEN = auto()
    MISPLACED = auto()
    """Good, but not the block that is due, or the label of another file."""


class Decision(Enum):
    """See the tables in the module's docstring."""

    GO_ON = auto()
    REPLAY = auto()
    SALVAGE = auto()
    END = auto()
    TORN = auto()
    UNREADABLE = auto()


class LabelRow(NamedTuple):
    """One row of the table of labels. None fits anything."""

    label: State
    first_block: State | None
    """The state of its header."""
    decision: Decision
    reason: str


LABEL_TABLE: Final = (
    LabelRow(State.GOOD, None, Decision.GO_ON, ""),
    LabelRow(State.MISPLACED, None, Decision.UNREADABLE, "the file under this name is another journal file"),
    LabelRow(State.DAMAGED, State.GOOD, Decision.GO_ON, ""),
    LabelRow(
        State.DAMAGED, None, Decision.UNREADABLE, "neither its label nor its first block tells which journal file it is"
    ),
)


def decide_file(label: State, first_block: State) -> LabelRow:
    """The first row of the table of labels that fits."""
    return next(row for row in LABEL_TABLE if row.label is label and row.first_block in (None, first_block))


class Finding(NamedTuple):
    """What was found where a block is due."""

    header: State
    directory: State
    body: State
    is_later: bool
    has_empty_sector: bool


class Row(NamedTuple):
    """One row of the table. None fits anything."""

    header: State | None
    directory: State | None
    body: State | None
    is_later: bool | None
    has_empty_sector: bool | None
    decision: Decision
    reason: str

    def fits(self, finding: Finding) -> bool:
        """Whether every field that the row names has the found value."""
        return all(wanted is None or wanted is found for wanted, found in zip(self[:5], finding, strict=True))


JOURNAL_TABLE: Final = (
    Row(State.UNWRITTEN, None, None, False, None, Decision.END, ""),
    Row(
        State.UNWRITTEN,
        None,
        None,
        True,
        None,
        Decision.UNREADABLE,
        "a block is missing, although later ones are there",
    ),
    Row(State.MISPLACED, None, None, None, None, Decision.UNREADABLE, "blocks before this one are missing"),
    Row(State.GOOD, State.GOOD, State.GOOD, None, None, Decision.REPLAY, ""),
    Row(None, None, None, False, True, Decision.TORN, ""),
    Row(State.GOOD, State.DAMAGED, State.GOOD, None, None, Decision.SALVAGE, "its directory is damaged"),
    Row(State.DAMAGED, State.GOOD, None, None, None, Decision.SALVAGE, "its header is damaged"),
    Row(State.GOOD, State.GOOD, State.DAMAGED, None, None, Decision.SALVAGE, "its batches are damaged"),
    Row(None, None, None, None, None, Decision.UNREADABLE, "neither header nor directory can be read"),
)


def decide(finding: Finding) -> Row:
    """The first row of the table that fits."""
    return next(row for row in JOURNAL_TABLE if row.fits(finding))


@dataclass(frozen=True, slots=True)
class DamagedPart:
    """A batch that the journal has lost."""

    ledger: int
    ledger_offset: int
    """Where the batch belongs in the ledger file."""
    path: Path
    offset: int
    """Where the damaged block begins in the journal file `path`."""
    reason: str


@dataclass(frozen=True, slots=True)
class RecoveredBlock:
    """The parts of one block, for the ledgers."""

    path: Path
    offset: int
    size: int
    """`offset` and `size` in the journal file `path`, in bytes."""
    parts: tuple[Part, ...]
    deleted: tuple[int, ...]
    damaged: tuple[DamagedPart, ...]


class JournalReader:
    """Reads one stream's files in order and decides at every block. Holds the bytes of one file at a time.

    `due` is the sequence of the first block. `load` returns a file's bytes, or None if the file is to be skipped.
    """

    def __init__(self, stream: int, due: int, paths: Sequence[Path], load: Callable[[Path], bytes | None]) -> None:
        self._stream = stream
        self._paths = paths
        self._load = load
        self._due: int | None = due
        """Sequence of the next block. None behind a skipped file, and behind an unreadable header."""
        self._previous_crc: int | None = None

    def blocks(self) -> Iterator[RecoveredBlock]:
        """Every block that was written whole, up to the end or the torn tail.

        Raises:
            JournalFileDamaged: the table says UNREADABLE.
        """
        for number, path in enumerate(self._paths):
            data = self._load(path)
            if data is None:
                # The number of its blocks is unknown.
                self._due = self._previous_crc = None
                continue
            self._require_this_file(path, data)
            offset = LABEL_SIZE
            while True:
                block, row = self._judge(data, offset, path, self._paths[number + 1 :])
                if row.decision is Decision.UNREADABLE:
                    raise JournalFileDamaged(path, offset, row.reason)
                if row.decision is Decision.TORN:
                    return
                # A file ends where its next block did not fit. If that block is missing, the next file's first block is
                # found misplaced.
                if block is None:
                    break
                yield block
                offset += block.size

    def _require_this_file(self, path: Path, data: bytes) -> None:
        try:
            label = State.GOOD if decode_label(data) == path.name else State.MISPLACED
        except DamagedBlock:
            label = State.DAMAGED
        row = decide_file(label, self._header(data, LABEL_SIZE)[0])
        if row.decision is Decision.UNREADABLE:
            raise JournalFileDamaged(path, 0, row.reason)

    def _judge(
        self, data: bytes, offset: int, path: Path, later_paths: Sequence[Path]
    ) -> tuple[RecoveredBlock | None, Row]:
        header_state, header = self._header(data, offset)
        directory_state = body_state = State.DAMAGED
        directory = None
        if header_state in (State.GOOD, State.DAMAGED):
            try:
                directory = decode_directory(data, offset + HEADER_SIZE)
                directory_state = State.GOOD
            except DamagedBlock:
                pass  # The table decides what that means.
            if header is not None and is_body_good(header, data, offset):
                body_state = State.GOOD
        is_whole = header_state is directory_state is body_state is State.GOOD
        # Only damage needs the searches. A good block counts, whatever follows it.
        finding = Finding(
            header_state,
            directory_state,
            body_state,
            not is_whole and self._is_later(data, offset, () if header_state is State.UNWRITTEN else later_paths),
            not is_whole and _has_empty_sector(header, directory, data, offset),
        )
        row = decide(finding)
        if row.decision not in (Decision.REPLAY, Decision.SALVAGE):
            return None, row
        self._due = None if self._due is None else self._due + 1
        if header is not None:
            self._due = header.sequence + 1
        self._previous_crc = None if header is None else header.body_crc
        return _contents(header, directory, data, offset, path, row), row

    def _header(self, data: bytes, offset: int) -> tuple[State, BlockHeader | None]:
        if is_unwritten(data, offset):
            return State.UNWRITTEN, None
        try:
            header = decode_header(data, offset)
        except DamagedBlock:
            return State.DAMAGED, None
        if header.stream != self._stream or self._due not in (None, header.sequence):
            return State.MISPLACED, None
        if self._previous_crc not in (None, header.previous_crc):
            return State.MISPLACED, None
        return State.GOOD, header

    def _is_later(self, data: bytes, offset: int, later_paths: Sequence[Path]) -> bool:
        due = -1 if self._due is None else self._due
        return finds_later_header(data, offset, self._stream, due) or any(
            finds_later_header(self._load(path) or b"", -1, self._stream, due) for path in later_paths
        )


def _has_empty_sector(header: BlockHeader | None, directory: Directory | None, data: bytes, offset: int) -> bool:
    rightly_empty: frozenset[int] = frozenset()
    if directory is not None:
        size = HEADER_SIZE + directory.size + directory.body_size
        rightly_empty = directory.empty_sectors
    elif header is not None:
        size = HEADER_SIZE + header.directory_size
    else:
        size = HEADER_SIZE
    # Bytes behind the end of the file were not written either.
    extent = data[offset : offset + size].ljust(size, b"\0")
    is_cut = len(data) < offset + size
    return is_cut or not rightly_empty.issuperset(empty_sectors(extent, offset))


def _contents(
    header: BlockHeader | None, directory: Directory | None, data: bytes, offset: int, path: Path, row: Row
) -> RecoveredBlock:
    if directory is None:
        assert header is not None, "the table salvages only what one of the two describes"
        parts = tuple(parts_by_body(header, data, offset))
        return RecoveredBlock(path, offset, header.size, parts, (), ())
    good: list[Part] = []
    damaged: list[DamagedPart] = []
    for part, is_good in parts_by_directory(directory, data, offset):
        if is_good:
            good.append(part)
        else:
            damaged.append(DamagedPart(part.ledger, part.offset, path, offset, row.reason))
    size = HEADER_SIZE + directory.size + directory.body_size
    return RecoveredBlock(path, offset, size, tuple(good), directory.deleted, tuple(damaged))
