"""Divides the batches that a controller pushes into change sets.

A change set that fits one batch has no markers, and its records have one revision. A larger one is between a begin and
an end, in any number of batches. It is complete with its end, and an abort drops it (R12-R16).

`replay` does the same for a log that was read from a disk, and checks each record against the state. Here the
controller has checked them, the follower has checked the chain, and no step may grow with a change set (E7).

Pure: bytes in, values out.
"""

from collections.abc import Iterator

from storage.metadata.record_codec import CorruptRecord, decode
from storage.metadata.records import AbortTransaction, BeginTransaction, DataRecord, EndTransaction, LogRecord
from storage.metadata.store import Record


class PushedChangeSets:
    """The change sets of batches that follow one another."""

    def __init__(self) -> None:
        self._open: list[DataRecord] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the batches so far end inside a large change set."""
        return self._open is not None

    def take(self, body: bytes) -> Iterator[list[DataRecord]]:
        """The change sets that a batch completes, in order. Records that leave the revision as it is join another one.

        Raises:
            CorruptRecord: the body does not divide into known records, or a marker is out of place.
        """
        ready: list[DataRecord] = []
        for record in decode(body):
            if not isinstance(record, DataRecord):
                if ready:
                    yield ready
                    ready = []
                complete = self._mark(record)
                if complete:
                    yield complete
            elif self._open is not None:
                self._open.append(record)
            else:
                if ready and _revision(ready[-1]) != _revision(record):
                    yield ready
                    ready = []
                ready.append(record)
        if ready:
            yield ready

    def _mark(self, marker: LogRecord) -> list[DataRecord]:
        """Take a marker. Returns the change set that it completes, which is empty if it completes none."""
        found = self._open
        if isinstance(marker, BeginTransaction) and found is None:
            self._open = []
            return []
        if isinstance(marker, EndTransaction | AbortTransaction) and found is not None:
            self._open = None
            return found if isinstance(marker, EndTransaction) else []
        raise CorruptRecord(f"{type(marker).__name__} {'outside' if found is None else 'inside'} a large change set")


def _revision(record: DataRecord) -> int:
    return record.version if isinstance(record, Record) else record.revision
