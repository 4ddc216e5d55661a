"""The metadata in a stopped broker's data folder.

Everything except `snapshot` is read-only. It holds a shared lock and changes nothing, not even what a broker's start
would repair. Import this module after `daemon.make_importable`: it needs the daemon's packages.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from storage.files import AlreadyLocked, DiskFiles, ReadOnlyFiles
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.inspection import COMMITTED, FoundBatch, FoundState, Inspection, NoMetadata, Torn, inspect
from storage.metadata.offline import SnapshotInfo, write_snapshot
from storage.metadata.readable import hit_line, line, log_record_fields, record_line
from storage.metadata.store import InvalidOperation, starting_with
from storage.metadata.verification import FileReport, verify
from tidewire.cli.endings import CommandFailed, UsageError
from tidewire.cli.progress import progress_bar

Note = Callable[[str], None]
"""Called with a sentence that the reader of the output should know."""


class FolderMetadata:
    """The metadata store in a data folder. Every method raises `CommandFailed` with a message for the user."""

    def __init__(self, data_dir: Path, note: Note) -> None:
        self._data_dir = data_dir
        self._note = note

    def dump(self, prefix: str, limit: int | None) -> Iterator[bytes]:
        """Yield the records in key order, a line each."""
        for record in self._state().image.scan(*starting_with(prefix), limit):
            yield record_line(record)

    def get(self, key: str) -> bytes:
        """Return one record as a line."""
        record = self._state().image.records.get(key)
        if record is None:
            raise CommandFailed(f"There is no record {key!r}.")
        return record_line(record)

    def query(self, index: str, start: str, end: str | None, limit: int | None) -> Iterator[bytes]:
        """Yield the index's entries with keys in [start, end), a line each, with the records they point at."""
        last = starting_with("")[1] if end is None else end
        for hit in self._state().image.query(index, start, last, limit):
            yield hit_line(hit)

    def log(self, write: Callable[[bytes], None], *, partial: bool) -> None:
        """Hand every batch of the log and its records to `write`, a line each.

        With `partial`, records of transactions that never took effect are included and marked. Without it, they are
        left out (R24).
        """
        hidden = 0

        def tell(batch: FoundBatch) -> None:
            nonlocal hidden
            place = {"batch": batch.sequence, "file": batch.path.name, "offset": batch.offset}
            write(line({**place, "size_bytes": batch.size_bytes, "records": len(batch.records)}))
            for number, (record, fate) in enumerate(batch.records):
                marked = {} if fate == COMMITTED else {"partial": fate}
                if marked and not partial:
                    hidden += 1
                    continue
                write(line({"batch": batch.sequence, "record": number, **marked, **log_record_fields(record)}))

        with self._inspection() as inspection:
            torn = inspection.follow(tell)
        if hidden:
            self._note(f"{_counted(hidden, 'record')} of partial transactions are hidden; --partial shows them.")
        self._tell_torn(torn)

    def verify(self) -> tuple[Path, list[FileReport]]:
        """Check every file of the store. Return the store's folder and a report for each file."""
        with self._inspection() as inspection, progress_bar("verifying", inspection.size_bytes) as progress:
            return inspection.directory, list(verify(inspection, progress))

    def snapshot(self, feature_level: int | None) -> SnapshotInfo:
        """Write a snapshot that replaces the log, for releases of `feature_level`. It is durable on return."""

        async def write() -> SnapshotInfo:
            return await write_snapshot(DiskFiles(), self._data_dir, feature_level=feature_level)

        with self._sentences():
            return trio.run(write)

    def _state(self) -> FoundState:
        with self._inspection() as inspection, progress_bar("reading", inspection.size_bytes) as progress:
            found = inspection.state(progress)
        if found.unfinished_records is not None:
            self._note(
                f"{_counted(found.unfinished_records, 'record')} of an unfinished transaction are hidden. "
                "`tidewire metadata dump --log --partial` shows them."
            )
        self._tell_torn(found.torn)
        return found

    def _tell_torn(self, torn: Torn | None) -> None:
        if torn is not None:
            self._note(
                f"{torn.path} ends in an interrupted write at byte {torn.offset}. That write was never confirmed, and "
                "the broker's next start discards it."
            )

    @contextmanager
    def _inspection(self) -> Iterator[Inspection]:
        with self._sentences(), inspect(ReadOnlyFiles(), self._data_dir) as inspection:
            yield inspection

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except AlreadyLocked:
            raise CommandFailed(
                f"A running broker uses the data folder {self._data_dir}. Ask that broker with --http HOST:PORT."
            ) from None
        except CorruptMetadata as damage:
            raise CommandFailed(f"{damage}.") from None
        except InvalidOperation as refusal:
            text = str(refusal)
            raise UsageError(f"{text[:1].upper()}{text[1:]}.") from None
        except (NoMetadata, FileNotFoundError, NotADirectoryError):
            raise UsageError(
                f"{self._data_dir} holds no metadata. Either it is not a broker's data folder, or its broker keeps its "
                "metadata elsewhere. If that broker runs, ask it with --http HOST:PORT."
            ) from None
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CommandFailed(f"{error.filename or self._data_dir}: {error.strerror or error}.") from None


def report_text(report: FileReport) -> str:
    """Return a file's report as a line for people."""
    if report.damage is not None:
        return f"damaged  {report.path.name}  at byte {report.damage.offset}: {report.damage.reason}"
    if report.is_off_chain:
        return f"unused   {report.path.name}  not in the log"
    if report.is_snapshot:
        told = [_counted(report.records, "record")]
        if report.is_compared:
            told.append("the same as the log that led to it")
    else:
        told = [_counted(report.batches, "batch", "batches"), _counted(report.records, "record")]
        if report.committed:
            told.append(_counted(report.committed, "committed transaction"))
        if report.aborted:
            told.append(_counted(report.aborted, "aborted transaction"))
        if report.unfinished_records is not None:
            told.append(f"an unfinished transaction of {_counted(report.unfinished_records, 'record')}")
        if report.torn is not None:
            told.append(f"an interrupted write at byte {report.torn.offset}")
    return f"whole    {report.path.name}  {', '.join(told)}"


def report_fields(report: FileReport) -> dict[str, object]:
    """Return a file's report for programs. `in_log` is false for a file that the log does not need."""
    fields: dict[str, object] = {
        "file": str(report.path),
        "kind": "snapshot" if report.is_snapshot else "log",
        "whole": report.damage is None,
        "in_log": not report.is_off_chain,
    }
    if report.damage is not None:
        return {**fields, "offset": report.damage.offset, "reason": report.damage.reason}
    fields["records"] = report.records
    if report.is_snapshot:
        return {**fields, "compared": report.is_compared}
    return {
        **fields,
        "batches": report.batches,
        "committed": report.committed,
        "aborted": report.aborted,
        "unfinished_records": report.unfinished_records,
        "torn_offset": None if report.torn is None else report.torn.offset,
    }


def _counted(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
