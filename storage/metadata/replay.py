"""The state that a log adds up to while it is read: the image, and the open transaction at its end, if any.

A change set that fits one batch is in that batch without markers. A larger one is between a begin and an end, in any
number of batches (KIP-868). The image takes the records of a transaction only at its end, in one step. So the image
always holds complete change sets only. An abort leaves it unchanged (R13-R15).

    found                                                | open: no         | open: yes
    BeginTransaction                                     | it opens         | refused (R4)
    EndTransaction                                       | refused (R5)     | its records are applied
    AbortTransaction                                     | refused (R5)     | its records are dropped
    a data record of the transaction's revision          | it is applied    | it is kept for the end
    any other data record, a change of the feature level | it is applied    | refused: nothing stands between (R7, R18)
    a marker in a log below feature level 2              | refused (R25)    | -
    `TakeOver`, `Answered`, `SnapshotNamed` below level 3| refused (R25)    | refused (R25)
    a `TakeOver` of no higher epoch                      | refused          | refused
    an `Answered` that the outcomes before contradict    | refused          | refused
    a record of a snapshot                               | refused          | refused
    the end of a file that is not the last               | nothing          | refused (R18)
    the end of the log                                   | nothing          | the next opening aborts it first (R17)

Pure: bytes in, an image out.
"""

from itertools import groupby
from typing import Final

from storage.metadata.image import Image
from storage.metadata.outcomes import ContradictedOutcome
from storage.metadata.record_codec import CorruptRecord, decode
from storage.metadata.records import (
    EPOCHS_LEVEL,
    TRANSACTIONS_LEVEL,
    AbortTransaction,
    BeginTransaction,
    DataRecord,
    EndTransaction,
    EpochRecord,
    FeatureLevel,
    LogRecord,
    SequenceAdvance,
    SnapshotNamed,
    TakeOver,
)
from storage.metadata.store import Record

_MARKERS: Final = (BeginTransaction, EndTransaction, AbortTransaction)
_ALONE: Final = (FeatureLevel, TakeOver, SnapshotNamed)
"""No transaction holds these."""


class Replay:
    """Applies the bodies of batches, in order, to an image. With `kept`, adds the change sets there instead.

    Other threads may read the image while change sets are kept.
    """

    def __init__(self, image: Image, *, kept: list[list[DataRecord]] | None = None) -> None:
        self.image = image
        self._kept = kept
        self.revision = image.revision
        """The revision after the complete change sets so far."""
        self.level = image.feature_level
        """The feature level there."""
        self.epoch = image.epoch
        """The epoch of the newest batch."""
        self._sequence = image.sequence
        self.begun: BeginTransaction | None = None
        """How the open transaction began; None if there is none."""
        self.aborted = 0
        """How many aborted transactions were found."""
        self._open: list[DataRecord] = []

    @property
    def open_records(self) -> int:
        """How many data records of the open transaction have been read."""
        return len(self._open)

    @property
    def trusts_length(self) -> bool:
        """False for a store of level 1: an earlier release may have cut its files anywhere."""
        return self.level != 1

    def batch(self, body: bytes) -> None:
        """Take the records of one batch.

        Raises:
            CorruptRecord: the table in the module's docstring refuses one, or it changes a record that does not exist.
        """
        ready: list[DataRecord] = []
        for record in decode(body):
            if self.begun is None and isinstance(record, DataRecord):
                ready.append(record)
            else:
                self._apply(ready)
                ready = []
                self._take(record)
        self._apply(ready)

    def end_file(self) -> None:
        """The log continues in another file.

        Raises:
            CorruptRecord: a transaction is open, and no transaction spans two files.
        """
        if self.begun is not None:
            raise CorruptRecord(f"{self._name()} is open at the end of a file that is not the last")

    def abort(self) -> None:
        """Forget the open transaction, because its abort is in the log."""
        self.begun = None
        self._open = []

    def _take(self, record: LogRecord) -> None:
        if isinstance(record, _MARKERS):
            _require_level(record, TRANSACTIONS_LEVEL, self.level)
        if isinstance(record, BeginTransaction):
            if self.begun is not None:
                raise CorruptRecord(f"a transaction begins while {self._name()} is open")
            self.begun = record
        elif isinstance(record, EndTransaction | AbortTransaction):
            if self.begun is None:
                raise CorruptRecord(f"{type(record).__name__} with no transaction open")
            if isinstance(record, EndTransaction):
                self._apply(self._open)
            else:
                self.aborted += 1
            self.abort()
        elif isinstance(record, DataRecord):
            revision = _revision(record)
            if revision != self.revision + 1 or isinstance(record, _ALONE):
                raise CorruptRecord(
                    f"{type(record).__name__} of revision {revision} is inside {self._name()}, which has "
                    f"revision {self.revision + 1}"
                )
            self._open.append(record)
        else:
            raise CorruptRecord(f"{type(record).__name__} does not belong in a log")

    def _apply(self, records: list[DataRecord]) -> None:
        for record in records:
            if isinstance(record, SequenceAdvance):
                if record.last <= self._sequence:
                    raise CorruptRecord(f"the sequence counter goes from {self._sequence} back to {record.last}")
                self._sequence = record.last
            elif isinstance(record, FeatureLevel):
                self.level = record.level
            elif isinstance(record, EpochRecord):
                _require_level(record, EPOCHS_LEVEL, self.level)
                if isinstance(record, TakeOver):
                    if record.epoch <= self.epoch:
                        raise CorruptRecord(f"epoch {record.epoch} begins behind epoch {self.epoch}")
                    self.epoch = record.epoch
        if not records:
            return
        self.revision = _revision(records[-1])
        if self._kept is not None:
            self._kept += [list(change_set) for _revision_of_it, change_set in groupby(records, _revision)]
            return
        try:
            self.image.apply(records)
        except KeyError as absent:
            raise CorruptRecord(f"a record changes {absent}, which does not exist") from absent
        except ContradictedOutcome as contradicted:
            raise CorruptRecord(str(contradicted)) from contradicted

    def _name(self) -> str:
        return "a transaction" if self.begun is None or self.begun.name is None else f"transaction {self.begun.name!r}"


def _revision(record: DataRecord) -> int:
    return record.version if isinstance(record, Record) else record.revision


def _require_level(record: LogRecord, needed: int, level: int) -> None:
    if level < needed:
        raise CorruptRecord(f"{type(record).__name__} needs feature level {needed}, but the log has {level}")
