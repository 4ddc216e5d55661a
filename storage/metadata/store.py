"""The metadata store's contract: versioned records, secondary indexes, conditional change sets and watches.

Every decision of the broker is a compare-and-set here (docs/design.md#metadata, invariant 4). So the promises are few
and strict:

- A change set (`commit`) is applied whole or not at all. Each record that it writes gets the change set's revision as
  its version. Revisions rise with every change set that changed something, and are never reused. So a record that was
  deleted and made again never shows an old version (M1-M3).
- Readers, index queries and watches see only change sets that are durable and complete. Every answer, including a
  refusal, waits until the state behind it is durable (D13).
- Keys are text, ordered by their UTF-8 bytes (M11). A range is [start, end): start included, end excluded.
- Index entries change in the same step as their record (M8).
- The outcome of a cancelled or timed-out write is unknown. Conditional writes are safe to repeat.

Left out on purpose:

- Transactions that read. A caller reads, decides, and writes on conditions.
- Server-side code.
- Time-to-live. A record is ephemeral by its session, or it stays.
- An order between watches of different streams.

A store may weaken these points, and says so in its own module:

- The size of a change set. etcd: 124 operations, 123 conditions and 1.5 MiB, refused up front (M25).
- Dense revisions. etcd: they rise with gaps, and change sets that were made in one step share one.
- Dense sequences. etcd: a refused change set may use up numbers.
- Session timeouts to the second. etcd: whole seconds, at least two.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, Self, runtime_checkable

from storage.errors import ExpectedError

ABSENT: Final = 0
"""As an expected version: the key must not exist."""

SEQUENCE_DIGITS: Final = 20
"""A sequential put appends `-` and this many digits to its key."""


class IndexEntry(NamedTuple):
    """One entry of a secondary index, pointing at the record that carries it."""

    name: str
    """The index's name, for example `txn-by-deadline`."""
    key: str
    """The key in the index. Numbers in it have a fixed width, so that bytewise order is their order (M12)."""


class Record(NamedTuple):
    """A stored record as its readers see it."""

    key: str
    value: bytes
    version: int
    """The revision of the change set that last wrote it."""
    indexes: tuple[IndexEntry, ...] = ()
    partition_key: str | None = None
    session: int | None = None
    """Id of the session whose end deletes it; None for a lasting record."""


class RecordVersion(NamedTuple):
    """A record as one change set wrote it. Whoever removes a record names the version that it saw."""

    key: str
    version: int

    @classmethod
    def of(cls, record: Record) -> "RecordVersion":
        """The version of a record that was read."""
        return cls(record.key, record.version)

    def to_delete(self) -> "Delete":
        """The removal of this version. It conflicts if the record was written again or removed."""
        return Delete(self.key, self.version)


class Fresh(NamedTuple):
    """Some records as of one revision, no older than the question."""

    revision: int
    records: Mapping[str, Record | None]
    """Every key that was asked for. None: there was no such record at that revision."""

    def version(self, key: str) -> int:
        """The version of a key that was asked for; ABSENT if there was no record."""
        record = self.records[key]
        return ABSENT if record is None else record.version


class IndexHit(NamedTuple):
    """One result of an index query, in order of (index key, primary key)."""

    index_key: str
    record: Record


@dataclass(frozen=True, slots=True)
class Put:
    """Write a record, replacing its value, its index entries and its partition key."""

    key: str
    value: bytes
    expected: int | None = None
    """The version that the key must have now: ABSENT, a version, or None for any."""
    indexes: tuple[IndexEntry, ...] = ()
    partition_key: str | None = None
    session: "NamesSession | None" = None
    """Makes the record ephemeral: the record goes when this session ends."""


@dataclass(frozen=True, slots=True)
class PutSequential:
    """Write a new record under `<prefix>-<20 digits>`. The store assigns the digits, rising, never reused (M5).

    The key is absent before the change set, and no other operation of the change set names it.
    """

    prefix: str
    value: bytes
    partition_key: str
    indexes: tuple[IndexEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a record if it exists."""

    key: str
    expected: int | None = None
    """The version that it must have now; None for any, even an absent record."""


@dataclass(frozen=True, slots=True)
class DeleteRange:
    """Remove every record with a key in [start, end), as one step (M24)."""

    start: str
    end: str


@dataclass(frozen=True, slots=True)
class Check:
    """A condition without a write: the key must have this version (ABSENT: must not exist)."""

    key: str
    expected: int


Op = Put | PutSequential | Delete | DeleteRange | Check


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a durable change set."""

    revision: int
    """The version of every record that it wrote. If it changed nothing, the store's current revision."""
    keys: tuple[str | None, ...]
    """For each operation, the key that it wrote (for a sequential put, the assigned key); None if it writes no record.
    """


@dataclass(frozen=True, slots=True)
class Change:
    """One step of a range watch: everything that one change set, or a new listing, changed in the range."""

    revision: int
    records: tuple[Record, ...] = ()
    """Written records at `revision`, in key order."""
    deleted: tuple[str, ...] = ()
    """Deleted keys, in key order."""


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """A snapshot for metrics and for people. Reading it costs nothing."""

    revision: int
    records: int
    watches: int
    writes_waiting: int
    extra: Mapping[str, float] = field(default_factory=dict)


class MetadataError(ExpectedError):
    """Base of all errors of the store."""


class Conflict(MetadataError):
    """A condition did not hold, and nothing was changed. Read again and decide again."""

    def __init__(self, key: str, expected: int, actual: int) -> None:
        super().__init__(f"{key}: expected version {expected}, is {actual}")
        self.key = key
        self.expected = expected
        self.actual = actual


class SessionLost(MetadataError):
    """The session of an ephemeral write has ended. The write was not made (M19)."""


class ChangeSetTooLarge(MetadataError):
    """The change set is too large for this store. It was refused before anything was done (M25)."""


class InvalidOperation(MetadataError):
    """The call breaks the contract, for example by an empty key. Nothing was done."""


class StoreUnavailable(MetadataError):
    """The store cannot answer. The outcome of a write is unknown (M22)."""

    retriable = True
    definite = False


class StoreFull(StoreUnavailable):
    """The store's disk is full. Nothing was done. The same call succeeds once space is freed."""

    definite = True


class StoreEnded(StoreUnavailable):
    """The store of this process has ended, for the cause it names. Only opening it again may help."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"the metadata store has ended: {cause}")
        self.__cause__ = cause


class NamesSession(Protocol):
    """A session, or in a process that decides for another one, only its id."""

    @property
    def id(self) -> int:
        """See `Session.id`."""


class Session(ABC):
    """Keeps ephemeral records alive. It ends on `close`, or when its owner was silent for longer than its timeout."""

    @property
    @abstractmethod
    def id(self) -> int:
        """Unique for all time in this store."""

    @property
    @abstractmethod
    def has_ended(self) -> bool:
        """Whether this process knows that it has ended, or must assume so."""

    @abstractmethod
    async def close(self) -> None:
        """End it now. Its records are deleted, durably, on return. Idempotent."""

    @abstractmethod
    async def wait_lost(self) -> None:
        """Return when it has ended, for any reason."""


class KeyWatch(ABC):
    """Follows one key. It yields the newest state, not every state, and never an older version (M13)."""

    @abstractmethod
    async def next(self) -> Record | None:
        """The current record, once it differs from the last one returned. The first call returns at once."""


class RangeWatch(ABC):
    """Follows a key range: first the existing records, then every change set in order, none skipped (M14).

    Bounded: if its reader falls too far behind, one `Change` replaces the backlog. It holds the difference between what
    was last read and now. So nobody else waits, and changes are merged but not lost (M17).
    """

    @abstractmethod
    async def next(self) -> Change:
        """The first call returns all records of the range as one `Change`. Later calls wait for the next change."""

    def __aiter__(self) -> Self:
        # No generator: a reader may leave its loop, and nobody would finish the generator.
        return self

    async def __anext__(self) -> Change:
        return await self.next()


class MetadataStore(ABC):
    """See the module's docstring for the promises of every implementation."""

    @abstractmethod
    def peek(self, key: str) -> Record | None:
        """The record in this process's image, without waiting. It may be stale.

        It is for guesses that a condition judges afterwards.
        """

    @abstractmethod
    async def fresh(self, keys: Collection[str]) -> Fresh:
        """These records, all at one revision, as new as every write by any process answered before the call (C20).

        Concurrent calls may share one request to the store. A rule that must not rest on a stale state asks with this.
        A store needs no image of all records for it.

        Raises:
            StoreUnavailable: the store does not answer.
        """

    @abstractmethod
    async def get(self, key: str) -> Record | None:
        """The record, or None. As new as every write by any process that was answered before the call (M2)."""

    @abstractmethod
    async def scan(self, start: str, end: str, *, limit: int | None = None) -> list[Record]:
        """The records of [start, end) in key order, all at one revision; at most `limit`. As new as `get`."""

    @abstractmethod
    async def query(
        self, index: str, start: str, end: str, *, limit: int | None = None, after: str = ""
    ) -> list[IndexHit]:
        """Index entries with keys in [start, end), by (index key, primary key), at one revision (M9). As new as `get`.

        At most `limit`. The entries with the index key `start` begin behind the primary key `after`, so that a page can
        follow another (`paging.each_hit`). For equality use `exactly(key)`, for a prefix `starting_with(prefix)`.
        """

    @abstractmethod
    async def commit(self, ops: Sequence[Op]) -> Committed:
        """Apply a change set, all or nothing. Durable on return.

        The change set may name each key once. Conditions are judged against the state before the change set.

        Raises:
            Conflict: a condition did not hold. Durable, like every answer.
            SessionLost: an ephemeral write's session has ended.
            ChangeSetTooLarge, InvalidOperation: refused before anything was done.
            StoreUnavailable: unknown whether it was applied.
        """

    async def commit_along(self, ops: Sequence[Op]) -> Committed:
        """As `commit`, for a change set that no caller waits for. The store may hold it back for a moment.

        A store that makes change sets durable in groups adds it to the next group. So cleanup costs no sync of its own
        and delays nobody's. A cancelled call may have changed nothing.
        """
        return await self.commit(ops)

    @abstractmethod
    async def barrier(self) -> int:
        """Return once this process's image holds everything that was decided before the call.

        Returns the revision reached.
        """

    @abstractmethod
    def watch_key(self, key: str) -> AbstractAsyncContextManager[KeyWatch]:
        """Follow one key while the context is open."""

    @abstractmethod
    def watch_range(self, start: str, end: str) -> AbstractAsyncContextManager[RangeWatch]:
        """Follow the range [start, end) while the context is open."""

    @abstractmethod
    async def open_session(self, timeout_seconds: float) -> Session:
        """A new session. The store ends it after `timeout_seconds` without a sign of life from this process."""

    @abstractmethod
    async def end_session(self, session_id: int) -> None:
        """End a session now, as `Session.close` does, whichever process opened it. No effect if it has ended.

        Its records are deleted, durably, on return. For a process that has certainly ended, so that nobody waits for
        its timeout.

        Raises:
            StoreUnavailable: unknown whether it was ended.
        """

    @abstractmethod
    def statistics(self) -> StoreStatistics:
        """Counters at this moment."""

    @property
    def controller(self) -> str | None:
        """The id of the broker that decides for this store, as far as this process knows. It may be some moments old.

        Empty while none is known. None if no broker decides, for example in etcd.
        """
        return None

    def telling_controller(self, listener: Callable[[], None]) -> AbstractContextManager[None]:
        """While the context is open, call `listener` when `controller` may have changed. It must not block."""
        del listener  # Here it never changes.
        return nullcontext()

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        expected: int | None = None,
        indexes: tuple[IndexEntry, ...] = (),
        partition_key: str | None = None,
        session: Session | None = None,
    ) -> int:
        """Write one record and return its new version; `commit` with one `Put`."""
        return (await self.commit([Put(key, value, expected, indexes, partition_key, session)])).revision

    async def delete(self, key: str, *, expected: int | None = None) -> None:
        """Remove one record; `commit` with one `Delete`."""
        await self.commit([Delete(key, expected)])


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A whole, durable snapshot."""

    sequence: int
    """The last batch of the store's log whose effects it contains."""
    revision: int
    """The revision of the state it holds."""
    size_bytes: int


@runtime_checkable
class TakesSnapshots(Protocol):
    """A store with a log of its own can also write down its whole state, so that the log gets short.

    It does so by itself when a snapshot is due. Operators ask for one before a copy or an upgrade.
    """

    async def take_snapshot(self) -> SnapshotTaken:
        """Take a snapshot with every change set that was answered before the call. Durable on return.

        Raises:
            StoreUnavailable: unknown whether it was taken.
        """
        ...


def starting_with(prefix: str) -> tuple[str, str]:
    """The range of every key that begins with `prefix`."""
    # U+10FFFF is the last code point, so it sorts above anything that may follow the prefix in our keys.
    return prefix, prefix + "\U0010ffff"


def exactly(key: str) -> tuple[str, str]:
    """The range that holds only `key`."""
    return key, key + "\0"
