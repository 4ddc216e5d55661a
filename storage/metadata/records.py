"""The records of the metadata log and of snapshots, as values. Their bytes are in `record_codec`.

Every data record carries the revision of its change set, which is also the version of what it writes. So a record means
the same in any batch, and snapshots use the same records. Change sets that fit a batch need no frame, because
neighbours with the same revision belong together.

Pure: values only.
"""

from typing import Final, NamedTuple

from storage.metadata.outcomes import Made, WriteId
from storage.metadata.store import Record

FEATURE_LEVEL: Final = 3
"""The highest feature level that this code reads. Level 1 was the first."""

TRANSACTIONS_LEVEL: Final = 2
"""From this feature level on, a change set may fill several batches, between transaction markers (R25)."""

EPOCHS_LEVEL: Final = 3
"""From this feature level on, one controller after another writes the log, each in its own files."""

RECORD_BYTES_MAX: Final = 1024 * 1024
"""The largest record, encoded (docs/design.md#metadata)."""

KEY_BYTES_MAX: Final = 0xFFFF
"""The largest key, index name, index key or partition key in UTF-8, because their lengths are 16-bit."""

TEXT_BYTES_MAX: Final = 255
"""The longest name or reason of a transaction in UTF-8 (R2)."""


class Deletion(NamedTuple):
    """A record was deleted."""

    revision: int
    key: str


class RangeDeletion(NamedTuple):
    """Every record of [start, end) was deleted.

    It is one log record, whatever the range held, because replay finds the same keys.
    """

    revision: int
    start: str
    end: str


class SequenceAdvance(NamedTuple):
    """Sequential puts have used every number up to `last`."""

    revision: int
    last: int


class SessionStart(NamedTuple):
    """A session was opened. Its id is the revision, which is never reused."""

    revision: int
    timeout_ms: int
    owner: str = ""
    """The broker whose link the session is; "" for any other session, and below `EPOCHS_LEVEL`."""
    nonce: int = 0
    """The number of that broker's store, so that a repeated HELLO finds the session; 0 if there is no owner."""


class SessionEnd(NamedTuple):
    """A session has ended, and its records with it."""

    revision: int
    session: int


class FeatureLevel(NamedTuple):
    """Records of this level may follow. A reader that does not know the level must not continue (R25)."""

    revision: int
    level: int


class TakeOver(NamedTuple):
    """A controller has taken over the log. It is in the first batch of the controller's epoch."""

    revision: int
    epoch: int
    """Above the epochs of all controllers before it."""
    broker: str
    address: str | None = None
    """Where other brokers reach it; None if it serves no others."""


class Answered(NamedTuple):
    """A numbered write is made. It is in the write's own change set."""

    write: WriteId
    made: Made

    @property
    def revision(self) -> int:
        """The revision of the write's change set."""
        return self.made.revision


class SnapshotNamed(NamedTuple):
    """A whole, durable snapshot may get its name. So whatever has that name includes only batches of the log."""

    revision: int
    sequence: int
    """The last log batch whose effects the snapshot contains."""
    crc: int
    """The crc of that batch."""
    epoch: int
    """The epoch of the controller that wrote the snapshot."""


class BeginTransaction(NamedTuple):
    """The records from here to the end or abort are one change set, in any number of batches (R3)."""

    name: str | None = None


class EndTransaction(NamedTuple):
    """Everything since the begin becomes visible at once."""


class AbortTransaction(NamedTuple):
    """Everything since the begin has no effect."""

    reason: str | None = None


class SnapshotHeader(NamedTuple):
    """The first record of a snapshot. It names the state."""

    revision: int
    """The state's revision."""
    sequence: int
    """The last log batch whose effects it contains."""
    crc: int
    """The crc of that batch. The next batch continues it."""


class SnapshotFooter(NamedTuple):
    """The last record of a snapshot."""

    records: int
    """How many records are between header and footer."""


EpochRecord = TakeOver | Answered | SnapshotNamed
"""The records that need `EPOCHS_LEVEL`."""

DataRecord = (
    Record | Deletion | RangeDeletion | SequenceAdvance | SessionStart | SessionEnd | FeatureLevel | EpochRecord
)
"""A change of state. A `Record` gives the new content of its key. A `SnapshotNamed` changes nothing."""

LogRecord = DataRecord | BeginTransaction | EndTransaction | AbortTransaction | SnapshotHeader | SnapshotFooter
