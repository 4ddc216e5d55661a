"""Ledgers that lost entries with a damaged journal: their records in the metadata store.

    /damage/<20-digit ledger id>    {offset, reason}

Whoever takes over a journal records what it found, before it removes the journal's files. The change set requires that
the journal's record has not changed since (`journal_records`). So the findings of a stale recoverer, which wakes up
after another one has finished, count nothing. It may have read files that were being removed.

Only the end of a ledger that is open on record can be lost, because a closed ledger needs no journal. So the record is
read when that end is looked for, and it goes with the ledger.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import orjson

from storage.errors import JournalContended
from storage.metadata.store import Check, Conflict, MetadataStore, Put

DAMAGE: Final = "/damage/"
_AT_ONCE_MAX: Final = 32
"""Records of one change set, which keeps it below etcd's 128 operations."""


class LedgerDamage(NamedTuple):
    """The first entry that is lost."""

    offset: int
    """Where its batch belongs in the ledger's file, in bytes. Damage below the file's end was written there before."""
    reason: str


class Damages:
    """The records of a metadata store."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def note(self, found: Mapping[int, LedgerDamage], *, broker_id: str, under: Check) -> None:
        """Record what the take-over of this broker's journal found, by ledger. Durable on return. May be repeated.

        Raises:
            JournalContended: `under` does not hold, because another process has taken over the journal since.
        """
        puts = [Put(_key(ledger), orjson.dumps(damage._asdict())) for ledger, damage in sorted(found.items())]
        for start in range(0, max(len(puts), 1), _AT_ONCE_MAX):
            try:
                await self._metadata.commit([under, *puts[start : start + _AT_ONCE_MAX]])
            except Conflict as conflict:
                raise JournalContended(broker_id) from conflict

    async def of(self, ledger: int) -> LedgerDamage | None:
        """The damage of this ledger; None if no journal lost any of its entries."""
        record = await self._metadata.get(_key(ledger))
        if record is None:
            return None
        fields = orjson.loads(record.value)
        return LedgerDamage(fields["offset"], fields["reason"])

    async def forget(self, ledger: int) -> None:
        """Remove the record of a removed ledger. Durable on return."""
        key = _key(ledger)
        if await self._metadata.get(key) is not None:
            await self._metadata.delete(key)


def _key(ledger: int) -> str:
    return f"{DAMAGE}{ledger:020d}"
