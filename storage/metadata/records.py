"""The records of the metadata log and of snapshots, and their bytes.

    record = [u8 type][u8 version][u32 length of the rest][fixed fields][u8 count][u8 tag, u32 length, value]*

Why this way: every data record carries the revision of its change set, which is also the version of what it writes, so
a record means the same in whichever batch it stands, a snapshot is written with the same codec, and change sets need
no frame of their own: neighbours of one revision belong together. Optional fields are tagged, as in Kafka's flexible
versions: an older reader skips a tag it does not know, and an absent text stays absent instead of becoming "". A
record type or version it does not know is refused, since skipping it would lose state.

`BeginTransaction`, `EndTransaction` and `AbortTransaction` are those of KIP-868 and keep its numbers (R1).

Pure: values in, bytes out, and back.
"""

from typing import Final, NamedTuple

from storage.metadata.store import Record

FEATURE_LEVEL: Final = 1
"""The highest feature level this code reads and the one it writes. Transaction markers need level 2."""

RECORD_BYTES_MAX: Final = 1024 * 1024
"""The largest record, encoded (DESIGN section 5)."""

KEY_BYTES_MAX: Final = 0xFFFF
"""The largest key, index name, index key or partition key in UTF-8: their lengths are 16-bit."""

TEXT_BYTES_MAX: Final = 255
"""The longest name or reason of a transaction in UTF-8 (R2)."""


class Deletion(NamedTuple):
    """A record is gone."""

    revision: int
    key: str


class RangeDeletion(NamedTuple):
    """Every record of [start, end) is gone. One log record whatever the range held: replay finds the same keys."""

    revision: int
    start: str
    end: str


class SequenceAdvance(NamedTuple):
    """Sequential puts have used every number up to `last`."""

    revision: int
    last: int


class SessionStart(NamedTuple):
    """A session was opened; its id is the revision, which is never reused."""

    revision: int
    timeout_ms: int


class SessionEnd(NamedTuple):
    """A session has ended, and with it every record bound to it."""

    revision: int
    session: int


class FeatureLevel(NamedTuple):
    """From here on records of this level may follow; who does not know it must not read on (R25)."""

    revision: int
    level: int


class BeginTransaction(NamedTuple):
    """The records from here to the end or abort are one change set, over any number of batches (R3)."""

    name: str | None = None


class EndTransaction(NamedTuple):
    """All since the begin becomes visible at once."""


class AbortTransaction(NamedTuple):
    """Nothing since the begin has happened."""

    reason: str | None = None


class SnapshotHeader(NamedTuple):
    """The first record of a snapshot: which state it holds."""

    revision: int
    """The state's revision."""
    sequence: int
    """The last log batch whose effects it contains."""
    crc: int
    """That batch's crc, from which the next batch's continues."""


class SnapshotFooter(NamedTuple):
    """The last record of a snapshot."""

    records: int
    """How many records stand between header and footer."""


DataRecord = Record | Deletion | RangeDeletion | SequenceAdvance | SessionStart | SessionEnd | FeatureLevel
"""What changes state. A `Record` says: this is what its key holds now."""

LogRecord = DataRecord | BeginTransaction | EndTransaction | AbortTransaction | SnapshotHeader | SnapshotFooter


class CorruptRecord(ValueError):
    """The bytes are not a record this code knows; the message says which rule they break."""
