"""Checks whether the files of an embedded store are whole and agree with one another, file by file.

    file      looked at
    snapshot  its checksums, header and footer; that it holds plain state alone; its records' versions, sessions and
              index entries; and, where the log that led to it is still there, that replaying it gives the same state
    log       its checksums and their chain, from the file or snapshot before it; its records; that its transactions
              are whole and end in the file they began in; and the state after it, where that before it is known

A damaged file does not stop the check of the files behind it. Those are then checked against their own data. A torn
tail and an unfinished transaction at the log's end are no damage, because they were never confirmed, and opening the
store repairs them. This module repairs nothing.

Everything here blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage.metadata.batches import BEGINNING, Point
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.image import Image
from storage.metadata.inspection import (
    ABORTED,
    COMMITTED,
    Inspection,
    LogPart,
    MarkerReader,
    Progress,
    ProgressReader,
    Torn,
    torn_tail,
)
from storage.metadata.records import EPOCHS_LEVEL
from storage.metadata.replay import Replay
from storage.metadata.store import starting_with

_ALL: Final = starting_with("")


@dataclass(frozen=True, slots=True)
class FileReport:
    """The result for one file."""

    path: Path
    is_snapshot: bool
    damage: CorruptMetadata | None = None
    """Why it is not whole. Its contents are then not counted."""
    batches: int = 0
    """For a log, its batches."""
    records: int = 0
    """For a log, all records with transaction markers. For a snapshot, the records without header and footer."""
    committed: int = 0
    """Committed transactions."""
    aborted: int = 0
    unfinished_records: int | None = None
    """Records in an unfinished transaction at the log's end."""
    torn: Torn | None = None
    is_off_chain: bool = False
    """Whether it is a log file that the log does not go through. What it has was never confirmed, or is in a snapshot.
    Nobody looked at it."""
    is_compared: bool = False
    """Whether the snapshot was compared with the log that led to it."""


def verify(inspection: Inspection, progress: Progress) -> Iterator[FileReport]:
    """Check every file, in the log's order. One report for each file, and one for a file that is missing at the end."""
    verifier = _Verifier(inspection)
    # A log file begins where the snapshot before it was taken.
    files = [(number, -1) for number in inspection.snapshots]
    files += ((part.name.number - 1, position) for position, part in enumerate(inspection.logs))
    damaged: set[Path] = set()
    for place, position in sorted(files):
        told = 0

        def tell(size_bytes: int) -> None:
            nonlocal told
            told += size_bytes
            progress(size_bytes)

        report = verifier.snapshot(inspection.snapshots[place]) if position < 0 else verifier.log(position, tell)
        if report.damage is not None:
            damaged.add(report.path)
        yield report
        progress(inspection.file_bytes(report.path) - told)
    try:
        verifier.require_end()
    except CorruptMetadata as missing:
        if missing.path not in damaged:
            yield FileReport(missing.path, is_snapshot=False, damage=missing)
    for path in inspection.off_chain:
        if path not in damaged:
            yield FileReport(path, is_snapshot=False, is_off_chain=True)
        progress(inspection.file_bytes(path))


class _Verifier:
    """Follows the log with the state at each place, as far as it is known."""

    def __init__(self, inspection: Inspection) -> None:
        self._inspection = inspection
        self._newest_snapshot = max(inspection.snapshots, default=-1)
        self._behind: tuple[Point, int] | None = None if inspection.snapshots else (BEGINNING, 0)
        """The place of the newest snapshot, and the epoch there; None if it is damaged."""
        # Where the last file ended. Unknown behind a damaged file, and before the first one if a snapshot replaces it.
        self._point = None if inspection.snapshots else BEGINNING
        # The state there, if everything that led to it is known.
        self._image: Image | None = None

    def snapshot(self, path: Path) -> FileReport:
        """Check a snapshot."""
        try:
            image, point = self._inspection.load(path)
            _check(path, image)
            is_compared = self._compare(path, image, point)
        except CorruptMetadata as damage:
            return FileReport(path, is_snapshot=True, damage=damage)
        self._point, self._image = point, image
        self._behind = (point, image.epoch) if point.sequence == self._newest_snapshot else None
        return FileReport(path, is_snapshot=True, records=len(image.records), is_compared=is_compared)

    def require_end(self) -> None:
        """Return if the log has an end that a broker would go on from, and all between that and the newest snapshot.

        Raises:
            CorruptMetadata: it has not.
        """
        self._inspection.require_end()
        if self._behind is not None:
            self._inspection.require_chain(*self._behind)

    def log(self, position: int, progress: Progress) -> FileReport:
        """Check a log file."""
        part = self._inspection.logs[position]
        path = part.path
        marks = MarkerReader()
        try:
            after = self._begin(part)
            reader = marks if self._image is None else _Both(marks, Replay(self._image))
            read = self._inspection.read(part, after, ProgressReader(reader, progress))
            following = self._inspection.logs[position + 1 : position + 2]
            if following and following[0].name.epoch == part.name.epoch:
                try:
                    reader.end_file()
                except ValueError as unfinished:
                    raise CorruptMetadata(path, read.end, str(unfinished)) from unfinished
            if self._image is not None:
                _check(path, self._image)
        except CorruptMetadata as damage:
            self._point = self._image = None
            return FileReport(path, is_snapshot=False, damage=damage)
        self._point = read.point
        return FileReport(
            path,
            is_snapshot=False,
            batches=read.point.sequence - after.sequence,
            records=marks.records,
            committed=marks.fates.count(COMMITTED),
            aborted=marks.fates.count(ABORTED),
            unfinished_records=marks.open_records,
            torn=torn_tail(path, read),
        )

    def _begin(self, part: LogPart) -> Point:
        """Where the file begins. Forgets the state if the last file ended elsewhere."""
        path, place = part.path, part.name.number - 1
        if not place:
            self._image = Image()
            return BEGINNING
        if self._point is not None and self._point.sequence == place:
            return self._point
        self._image = None
        said = part.after
        if said is not None and said.sequence != place:
            raise CorruptMetadata(path, 0, f"it begins with batch {said.sequence + 1}")
        return said or Point(place, 0)

    def _compare(self, path: Path, image: Image, point: Point) -> bool:
        """Compare a snapshot with the log that led to it. False if that log is gone."""
        if self._point is None or self._point.sequence != point.sequence:
            return False
        if self._point.crc != point.crc:
            raise CorruptMetadata(
                path, 0, f"batch {point.sequence} of the log is not the batch that it was taken after"
            )
        if self._image is None:
            return False
        difference = _difference(self._image, image)
        if difference is not None:
            raise CorruptMetadata(path, 0, f"the log that led to it gives another state: {difference}")
        return True


class _Both:
    """Two readers of the same batches."""

    def __init__(self, marks: MarkerReader, replay: Replay) -> None:
        self._marks = marks
        self._replay = replay

    @property
    def trusts_length(self) -> bool:
        return self._replay.trusts_length

    def batch(self, body: bytes) -> None:
        self._replay.batch(body)
        self._marks.batch(body)

    def end_file(self) -> None:
        self._replay.end_file()


def _check(path: Path, image: Image) -> None:
    """Check a state for consistency.

    Raises:
        CorruptMetadata: two parts of it contradict each other.
    """
    entries: dict[str, list[tuple[str, str]]] = {}
    for record in image.scan(*_ALL, None):
        if not 0 < record.version <= image.revision:
            raise CorruptMetadata(path, 0, f"{record.key!r} has version {record.version} in revision {image.revision}")
        if record.session is not None and record.session not in image.sessions:
            raise CorruptMetadata(path, 0, f"{record.key!r} belongs to session {record.session}, which is not open")
        for name, index_key in record.indexes:
            entries.setdefault(name, []).append((index_key, record.key))
    for name, expected in entries.items():
        expected.sort()
        found = [(hit.index_key, hit.record.key) for hit in image.query(name, *_ALL, None)]
        if found != expected:
            raise CorruptMetadata(path, 0, f"index {name!r} has other entries than the records say")


def _difference(replayed: Image, loaded: Image) -> str | None:
    """How two states differ, in words; None if they do not.

    The feature level may differ, because a snapshot can be written for another release (R26).
    """
    compared: list[tuple[str, object, object]] = [
        ("revision", replayed.revision, loaded.revision),
        ("sequence counter", replayed.sequence, loaded.sequence),
        ("sessions", sorted(replayed.sessions), sorted(loaded.sessions)),
    ]
    if loaded.feature_level >= EPOCHS_LEVEL:
        compared += (
            ("epoch", replayed.epoch, loaded.epoch),
            ("outcomes of writes", sorted(replayed.outcomes.each()), sorted(loaded.outcomes.each())),
        )
    for what, one, other in compared:
        if one != other:
            return f"{what} {one} where it has {other}"
    records, loaded_records = replayed.scan(*_ALL, None), loaded.scan(*_ALL, None)
    for record, loaded_record in zip(records, loaded_records, strict=False):
        if record != loaded_record:
            return f"{min(record.key, loaded_record.key)!r} differs"
    if len(records) != len(loaded_records):
        return f"{len(records)} records where it has {len(loaded_records)}"
    return None
