"""The record of one managed ledger in the metadata store, and the only way to change it: by compare-and-set.

    /managed-ledgers/<name>    see `ledger_record`
    index ledgers-by-writer    <broker>/<10-digit epoch>-<16 hex digits of the stream>, for the writers of open ledgers

Every change requires the version on which it was decided. If the owner has a claim, the change also requires the claim.
The index finds what a dead broker had open, at a cost that depends on nothing else.
"""

from dataclasses import replace
from typing import Final
from urllib.parse import quote, unquote

from storage.errors import Fenced, LedgerListCorrupt
from storage.ledger_record import ManagedLedgerRecord
from storage.metadata.paging import each_hit
from storage.metadata.store import (
    ABSENT,
    Check,
    Conflict,
    Delete,
    IndexEntry,
    MetadataStore,
    Op,
    Put,
    Record,
    StoreUnavailable,
    starting_with,
)

MANAGED_LEDGERS: Final = "/managed-ledgers/"
LEDGERS_BY_WRITER: Final = "ledgers-by-writer"

NO_LEDGER: Final = -1
"""The newest ledger id of a managed ledger that never had one."""


def record_key(name: str) -> str:
    """The key of the record of the managed ledger with this name."""
    return MANAGED_LEDGERS + quote(name, safe="")


async def left_open_by(broker_id: str, metadata: MetadataStore) -> list[str]:
    """The names of the managed ledgers that have a ledger without an end which this broker wrote, in order."""
    hits = each_hit(metadata.query, LEDGERS_BY_WRITER, *starting_with(f"{broker_id}/"))
    return sorted({unquote(hit.record.key.removeprefix(MANAGED_LEDGERS)) async for hit in hits})


async def writers_of_open_ledgers(metadata: MetadataStore) -> list[str]:
    """The ids of the brokers that wrote a ledger without an end, in order. One query for each."""
    found: list[str] = []
    start, end = starting_with("")
    while hits := await metadata.query(LEDGERS_BY_WRITER, start, end, limit=1):
        found.append(hits[0].index_key.partition("/")[0])
        # The first key behind every key of this broker.
        start = f"{found[-1]}0"
    return found


def _indexes(record: ManagedLedgerRecord) -> tuple[IndexEntry, ...]:
    writers = {info.writer for info in record.ledgers if not info.closed and info.writer is not None}
    keys = (f"{writer.broker}/{writer.epoch:010d}-{writer.stream:016x}" for writer in writers)
    return tuple(IndexEntry(LEDGERS_BY_WRITER, key) for key in sorted(keys))


def first_record(name: str, creation_id: str) -> Put:
    """The operation that makes a managed ledger without entries which nobody owns, if there is none of this name.

    Its first owner makes its first ledger. So it takes no space for entries before that.
    """
    return Put(record_key(name), ManagedLedgerRecord(creation_id, (), NO_LEDGER).encode(), ABSENT)


def renamed(record: Record, folder: str) -> Put:
    """The operation that gives all writers in a record the data folder with this identity. Only for a restored folder.

    Raises:
        LedgerListCorrupt: the record is damaged.
    """
    before = ManagedLedgerRecord.decode(record.value)
    ledgers = tuple(
        info._replace(writer=None if info.writer is None else info.writer._replace(folder=folder))
        for info in before.ledgers
    )
    unknown = {writer._replace(folder=folder): columns for writer, columns in before.unknown_of_writers.items()}
    after = replace(before, ledgers=ledgers, unknown_of_writers=unknown)
    return Put(record.key, after.encode(), record.version, indexes=_indexes(after))


async def is_there(name: str, metadata: MetadataStore) -> bool:
    """Whether there is a managed ledger of this name."""
    return await metadata.get(record_key(name)) is not None


class RecordChanged(Exception):
    """Another writer changed the record since it was read. Nothing was changed here."""


class RecordKeeper:
    """The record as its owner knows it."""

    def __init__(self, name: str, metadata: MetadataStore, claim: Check | None) -> None:
        self._name = name
        self._key = record_key(name)
        self._metadata = metadata
        self._conditions: tuple[Op, ...] = () if claim is None else (claim,)
        self.owner = 0 if claim is None else claim.expected
        """The version of the owner's claim, 0 without a claim. No other owner has or had the same."""
        self._version = ABSENT
        self.record: ManagedLedgerRecord | None = None
        """The record as last read or written, even after it was removed."""

    @property
    def unchanged(self) -> Check:
        """A condition that holds while the record is as it was last read or written."""
        return Check(self._key, self._version)

    async def read(self) -> ManagedLedgerRecord | None:
        """Read the current record.

        Raises:
            LedgerListCorrupt: it is damaged.
        """
        stored = await self._metadata.get(self._key)
        self._version = ABSENT if stored is None else stored.version
        self.record = None if stored is None else ManagedLedgerRecord.decode(stored.value)
        return self.record

    async def lists(self, ledger: int) -> bool:
        """Whether the record in the store lists a ledger now, whoever wrote it. True if nobody can tell."""
        try:
            stored = await self._metadata.get(self._key)
            record = None if stored is None else ManagedLedgerRecord.decode(stored.value)
        except (StoreUnavailable, LedgerListCorrupt):
            return True
        return record is not None and any(info.id == ledger for info in record.ledgers)

    async def write(self, record: ManagedLedgerRecord) -> None:
        """Replace the record that was last read, and keep what a later release added to it. Durable on return.

        Raises:
            RecordChanged: the record has changed since then.
            Fenced: the claim does not hold.
        """
        record = record.keeping(self.record)
        value = record.encode()
        try:
            self._version = await self._apply(Put(self._key, value, self._version, indexes=_indexes(record)))
        except RecordChanged:
            # A caller repeats a write whose answer was lost. The repeat then finds the first one.
            stored = await self._metadata.get(self._key)
            if stored is None or stored.value != value:
                raise
            self._version = stored.version
        self.record = record

    async def remove(self) -> None:
        """Remove the record that was last read. Durable on return. Raises as `write` does."""
        try:
            await self._apply(Delete(self._key, self._version))
        except RecordChanged:
            # A caller repeats a removal whose answer was lost. The repeat then finds no record.
            if await self._metadata.get(self._key) is not None:
                raise

    async def _apply(self, op: Op) -> int:
        try:
            return (await self._metadata.commit([op, *self._conditions])).revision
        except Conflict as conflict:
            if conflict.key == self._key:
                raise RecordChanged(str(conflict)) from conflict
            raise Fenced(f"{self._name} has another owner: {conflict}") from conflict
