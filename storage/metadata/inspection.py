"""Reading the folder of an embedded store without opening it. Nothing in the folder changes.

The reader finds what a broker would find, through recovery's own code (`Recovery`). But an unfinished transaction gets
no abort, and the records of sessions that ended with their broker are still there. The folder's lock is shared with
other readers, so no broker begins to write meanwhile.

Everything here blocks.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from storage.files import Files, Lock
from storage.metadata import snapshots
from storage.metadata.batches import BEGINNING, HEADER_BYTES, Point
from storage.metadata.chain import LogName, NoChain, OffChain, Part, whole_chain
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.epochs import MetadataEpochs
from storage.metadata.found_files import fences_of, find_chain, found_files
from storage.metadata.image import Image
from storage.metadata.log_files import FileRead, Reader, read_file
from storage.metadata.opening import metadata_directory
from storage.metadata.record_codec import CorruptRecord, decode
from storage.metadata.records import AbortTransaction, BeginTransaction, EndTransaction, LogRecord
from storage.metadata.recovery import Recovery, damage_of
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


class LogPart(NamedTuple):
    """A log file, up to where the next one goes on."""

    path: Path
    name: LogName
    after: Point | None
    """The place that its first batch follows; None if it has none."""
    cut: Point | None
    """Its last batch that is in the log; None if every whole one is."""


class Inspection:
    """A folder that is being read; made by `inspect`. Every method raises `CorruptMetadata` at damage."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._epochs = MetadataEpochs(files, directory, _draw_nothing)
        self.directory = directory
        self.snapshots = {name.sequence: directory / str(name) for name in snapshots.snapshot_names(files, directory)}
        """By the last batch that each includes, in rising order."""
        found = found_files(files, directory, BEGINNING)
        if not self.snapshots and not found:
            raise NoMetadata(f"{directory} holds neither a log nor a snapshot")
        self._broken: NoChain | None = None
        try:
            chain = whole_chain(found, fences_of(self._epochs.found()))
        except NoChain as broken:
            self._broken = broken
            chain = tuple(Part(file, None) for file in sorted(found, key=lambda each: each.name))
        self.logs = [LogPart(directory / str(file.name), file.name, file.before, cut) for file, cut in chain]
        """The log's files, in its order."""
        used = {part.name for part in self.logs}
        self.off_chain = [directory / str(file.name) for file in found if file.name not in used]
        """Files that are not in the log, or that damage separates from its end."""

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        paths = (*self.snapshots.values(), *(part.path for part in self.logs), *self.off_chain)
        return sum(map(self.file_bytes, paths))

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

    def read(self, part: LogPart, after: Point, reader: Reader) -> FileRead:
        """Hand the batches of a log file to `reader`. Also raises what the reader refuses."""
        file = self._files.open(part.path)
        try:
            return read_file(file, after, reader, cut=part.cut)
        finally:
            file.close()

    def require_end(self) -> None:
        """Return if the log has an end that a broker would go on from."""
        if self._broken is not None:
            raise damage_of(self._files, self.directory, self._broken) from self._broken

    def require_chain(self, behind: Point, epoch: int) -> None:
        """Return if the log has all that is behind a snapshot."""
        try:
            find_chain(self._files, self.directory, self._epochs, behind, epoch)
        except NoChain as broken:
            raise damage_of(self._files, self.directory, broken) from broken
        except OffChain as broken:
            raise CorruptMetadata(self.directory, 0, str(broken)) from broken

    def state(self, progress: Progress) -> FoundState:
        """The state in the folder: its newest snapshot, and the complete change sets of the log behind it."""
        recovery = Recovery.of_folder(
            self._files, self.directory, self._epochs, reading=lambda replay: ProgressReader(replay, progress)
        )
        replay = recovery.replay
        torn = (
            None if recovery.last is None else torn_tail(self.directory / str(recovery.last.name), recovery.last.read)
        )
        return FoundState(replay.image, None if replay.begun is None else replay.open_records, torn)

    def follow(self, found: Callable[[FoundBatch], None]) -> Torn | None:
        """Hand every batch of the log to `found`, in order. Returns what follows the last one, if anything.

        The files are read twice, because a record's fate is known only at the end of its transaction.
        """
        marks = MarkerReader()
        try:
            for part in self.logs:
                self.read(part, part.after or BEGINNING, marks)
        except CorruptMetadata:
            # The second reading raises it again. Until then, it reports what is before the damage.
            pass
        teller = _RecordReader(marks.fates, found)
        torn: Torn | None = None
        for part in self.logs:
            after = part.after or BEGINNING
            teller.begin(part.path, after)
            torn = torn_tail(part.path, self.read(part, after, teller))
        self.require_end()
        return torn


def _draw_nothing(_bits: int) -> int:
    raise AssertionError("a reader takes no epoch")


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
