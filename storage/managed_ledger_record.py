"""The record of one managed ledger in the metadata store, and the only way to change it: by compare-and-set.

Every change names the version it was decided on and, when the owner has a claim, that the claim still stands.
"""

from typing import Final
from urllib.parse import quote

from storage.errors import Fenced
from storage.ledger_list import ManagedLedgerRecord
from storage.metadata.store import ABSENT, Check, Conflict, Delete, MetadataStore, Op, Put

MANAGED_LEDGERS: Final = "/managed-ledgers/"


def record_key(name: str) -> str:
    """Where the record of the managed ledger of this name is."""
    return MANAGED_LEDGERS + quote(name, safe="")


async def is_there(name: str, metadata: MetadataStore) -> bool:
    """Whether there is a managed ledger of this name."""
    return await metadata.get(record_key(name)) is not None


class RecordChanged(Exception):
    """Somebody else changed the record since it was read; nothing was done."""


class RecordKeeper:
    """The record as its owner knows it."""

    def __init__(self, name: str, metadata: MetadataStore, claim: Check | None) -> None:
        self._name = name
        self._key = record_key(name)
        self._metadata = metadata
        self._conditions: tuple[Op, ...] = () if claim is None else (claim,)
        self._version = ABSENT
        self.record: ManagedLedgerRecord | None = None
        """As last read or written, also once it is removed."""

    async def read(self) -> ManagedLedgerRecord | None:
        """The record as it is now."""
        stored = await self._metadata.get(self._key)
        self._version = ABSENT if stored is None else stored.version
        self.record = None if stored is None else ManagedLedgerRecord.decode(stored.value)
        return self.record

    async def write(self, record: ManagedLedgerRecord) -> None:
        """Replace the record as last read; durable on return.

        Raises:
            RecordChanged: it is not what was last read.
            Fenced: the claim does not hold.
        """
        value = record.encode()
        try:
            self._version = await self._apply(Put(self._key, value, self._version))
        except RecordChanged:
            # A write whose answer was lost is repeated by its caller and then meets itself.
            stored = await self._metadata.get(self._key)
            if stored is None or stored.value != value:
                raise
            self._version = stored.version
        self.record = record

    async def remove(self) -> None:
        """Remove the record as last read; durable on return. Raises as `write` does."""
        try:
            await self._apply(Delete(self._key, self._version))
        except RecordChanged:
            # A removal whose answer was lost is repeated by its caller and finds nothing.
            if await self._metadata.get(self._key) is not None:
                raise

    async def _apply(self, op: Op) -> int:
        try:
            return (await self._metadata.commit([op, *self._conditions])).revision
        except Conflict as conflict:
            if conflict.key == self._key:
                raise RecordChanged(str(conflict)) from conflict
            raise Fenced(f"{self._name} has another owner: {conflict}") from conflict
