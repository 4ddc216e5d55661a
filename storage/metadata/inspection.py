"""Reading the folder of an embedded store without opening it. Nothing in the folder changes.

The reader finds what a broker would find, through recovery's own `log.read_file`. But a torn tail stays where it is, an
unfinished transaction gets no abort, and the records of sessions that ended with their broker are still there. The
folder's lock is shared with other readers, so no broker begins to write meanwhile.

Everything here blocks.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from storage.files import Files, Lock
from storage.metadata import snapshots
from storage.metadata.batches import BEGINNING, HEADER_BYTES, Point, link_at
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.image import Image
from storage.metadata.log import (
    FileRead,
    Reader,
    is_closed,
    log_paths,
    missing_after,
    read_file,
)
from storage.metadata.opening import metadata_directory
from storage.metadata.record_codec import CorruptRecord, decode
from storage.metadata.records import (
    AbortTransaction,
    BeginTransaction,
    EndTransaction,
    LogRecord,
)
from storage.metadata.replay import Replay
from storage.metadata.store import MetadataError

Progress = Callable[[int], None]
"""Told how many more bytes were read, of `Inspection.size_bytes`."""

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
UNFINISHED: Final = "unfinished"


class NoMetadata(MetadataError):
    """The folder holds no metadata store. The message says what is missing."""


class Torn(NamedTuple):
    """The bytes that a broker would overwrite: the rest of an interrupted write, which was never confirmed."""

    path: Path
    offset: int
    reason: str


class FoundState(NamedTuple):
    """The state in a folder, as a broker would find it."""

    image: Image
    unfinished_records: int | None
    """How many records are in an unfinished transaction at the log's end. The image has none of them. None if there is
    no such transaction."""
    torn: Torn | None


class FoundRecord(NamedTuple):
    """A record of the log."""

    record: LogRecord
    fate: str
    """COMMITTED, or why it has no effect: ABORTED or UNFINISHED. For a marker, the fate of its transaction."""


class FoundBatch(NamedTuple):
    """A whole batch of a log file."""

    path: Path
    offset: int
    """Where its header begins in the file."""
    sequence: int
    size_bytes: int
    """The size of its records, without the header."""
    records: tuple[FoundRecord, ...]


class Inspection:
    """A folder that is being read; made by `inspect`. Every method raises `CorruptMetadata` at damage."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self.directory = directory
        self.snapshots = snapshots.snapshot_paths(files, directory)
        """By the last batch that each includes, in rising order."""
        self.logs = log_paths(files, directory)
        """By the first batch that each is for, in rising order."""
        if not self.snapshots and not self.logs:
            raise NoMetadata(f"{directory} holds neither a log nor a snapshot")

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        return sum(self.file_bytes(path) for path in (*self.snapshots.values(), *self.logs.values()))

    def file_bytes(self, path: Path) -> int:
        """The length of a file."""
        file = self._files.open(path)
        try:
            return file.size()
        finally:
            file.close()

    def load(self, path: Path) -> tuple[Image, Point]:
        """A snapshot's state, and the place in the log it was taken at."""
        file = self._files.open(path)
        try:
            data = file.read_at(0, file.size())
        finally:
            file.close()
        try:
            image, point = snapshots.load(path, data)
        except KeyError as absent:
            raise CorruptMetadata(path, 0, f"a record in it belongs to session {absent}, which is not open") from absent
        if self.snapshots.get(point.sequence) != path:
            raise CorruptMetadata(path, 0, f"it holds the state after batch {point.sequence}")
        return image, point

    def read(self, path: Path, after: Point, reader: Reader) -> FileRead:
        """Hand the batches of a log file to `reader`. Also raises what the reader refuses."""
        file = self._files.open(path)
        try:
            return read_file(file, after, reader)
        finally:
            file.close()

    def before(self, path: Path) -> Point | None:
        """The place at which a log file says it begins; None if it does not begin with a whole header."""
        file = self._files.open(path)
        try:
            link = link_at(file.read_at(0, HEADER_BYTES))
            return None if link is None else link.before
        finally:
            file.close()

    def missing(self, after: Point) -> CorruptMetadata:
        """The error for a log that does not continue after `after`."""
        return missing_after(self.directory, after)

    @staticmethod
    def check_end(path: Path, read: FileRead, reader: Reader) -> None:
        """Check the end of a log file against the rules for every file but the last."""
        if read.torn is not None:
            raise CorruptMetadata(path, read.end, read.torn.reason)
        try:
            reader.end_file()
        except ValueError as unfinished:
            raise CorruptMetadata(path, read.end, str(unfinished)) from unfinished

    def state(self, progress: Progress) -> FoundState:
        """The state in the folder: its newest snapshot, and the complete change sets of the log behind it."""
        image, point = Image(), BEGINNING
        if self.snapshots:
            path = self.snapshots[max(self.snapshots)]
            image, point = self.load(path)
            progress(self.file_bytes(path))
        behind = [number for number in self.logs if number > point.sequence]
        if not behind:
            raise self.missing(point)
        replay = Replay(image)
        torn: Torn | None = None
        for number in behind:
            if number != point.sequence + 1:
                raise self.missing(point)
            path = self.logs[number]
            read = self.read(path, point, ProgressReader(replay, progress))
            if number != behind[-1]:
                self.check_end(path, read, replay)
            elif is_closed(path):
                raise self.missing(read.point)
            torn = torn_tail(path, read)
            point = read.point
        return FoundState(image, None if replay.begun is None else replay.open_records, torn)

    def follow(self, found: Callable[[FoundBatch], None]) -> Torn | None:
        """Hand every batch of the log to `found`, in order. Returns what follows the last one, if anything.

        The files are read twice, because a record's fate is known only at the end of its transaction.
        """
        marks = MarkerReader()
        try:
            for path in self.logs.values():
                self.read(path, self.before(path) or BEGINNING, marks)
        except CorruptMetadata:
            # The second reading raises it again. Until then, it reports what is before the damage.
            pass
        teller = _RecordReader(marks.fates, found)
        torn: Torn | None = None
        for path in self.logs.values():
            after = self.before(path) or BEGINNING
            teller.begin(path, after)
            torn = torn_tail(path, self.read(path, after, teller))
        return torn


class ProgressReader:
    """A reader that reports progress and passes batches on to another one."""

    def __init__(self, reader: Reader, progress: Progress) -> None:
        self._reader = reader
        self._progress = progress

    @property
    def trusts_length(self) -> bool:
        """See `Reader`."""
        return self._reader.trusts_length

    def batch(self, body: bytes) -> None:
        """See `Reader`."""
        self._reader.batch(body)
        self._progress(HEADER_BYTES + len(body))

    def end_file(self) -> None:
        """See `Reader`."""
        self._reader.end_file()


class MarkerReader:
    """A reader without state: it only follows the markers of transactions."""

    trusts_length = False
    """The feature level of the log is in files that this reader does not see."""

    def __init__(self) -> None:
        self.fates: list[str] = []
        """The fate of each transaction, in the order of their begins. UNFINISHED until its end is read."""
        self.records = 0
        """How many records were read, markers included."""
        self.open_records: int | None = None
        """How many of them belong to the transaction that is open now; None if none is open."""

    def batch(self, body: bytes) -> None:
        """See `Reader`."""
        for record in decode(body):
            self.records += 1
            if isinstance(record, BeginTransaction):
                if self.open_records is not None:
                    raise CorruptRecord("a transaction begins while another is open")
                self.fates.append(UNFINISHED)
                self.open_records = 0
            elif isinstance(record, EndTransaction | AbortTransaction):
                if self.open_records is None:
                    raise CorruptRecord(f"{type(record).__name__} with no transaction open")
                self.fates[-1] = COMMITTED if isinstance(record, EndTransaction) else ABORTED
                self.open_records = None
            elif self.open_records is not None:
                self.open_records += 1

    def end_file(self) -> None:
        """See `Reader`."""
        if self.open_records is not None:
            raise CorruptRecord("a transaction is open at the end of a file that is not the last")


class _RecordReader:
    """A reader that hands on each record with its place and fate."""

    trusts_length = False

    def __init__(self, fates: list[str], found: Callable[[FoundBatch], None]) -> None:
        self._fates = iter(fates)
        self._fate: str | None = None
        self._found = found
        self._path = Path()
        self._offset = 0
        self._sequence = 0

    def begin(self, path: Path, after: Point) -> None:
        """The following batches are from this file."""
        self._path = path
        self._offset = 0
        self._sequence = after.sequence

    def batch(self, body: bytes) -> None:
        records: list[FoundRecord] = []
        for record in decode(body):
            if isinstance(record, BeginTransaction):
                self._fate = next(self._fates, UNFINISHED)
            records.append(FoundRecord(record, self._fate or COMMITTED))
            if isinstance(record, EndTransaction | AbortTransaction):
                self._fate = None
        self._sequence += 1
        self._found(FoundBatch(self._path, self._offset, self._sequence, len(body), tuple(records)))
        self._offset += HEADER_BYTES + len(body)

    def end_file(self) -> None: ...


@contextmanager
def inspect(files: Files, data_dir: Path) -> Iterator[Inspection]:
    """Read `<data_dir>/metadata`. `files` should refuse to write (`ReadOnlyFiles`).

    Raises:
        NoMetadata: there is no store.
        AlreadyLocked: a broker has it open.
    """
    directory = metadata_directory(data_dir)
    if not files.exists(directory):
        raise NoMetadata(f"there is no folder {directory}")
    lock: Lock | None = None
    # There is no lock file. The folder is a copy, and nobody has it open.
    with suppress(FileNotFoundError):
        lock = files.lock(directory / "lock", shared=True)
    try:
        yield Inspection(files, directory)
    finally:
        if lock is not None:
            lock.close()


def torn_tail(path: Path, read: FileRead) -> Torn | None:
    """What follows the whole batches of a file that was read."""
    return None if read.torn is None else Torn(path, read.end, read.torn.reason)
