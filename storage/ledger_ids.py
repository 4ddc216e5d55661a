"""Ledger ids: unique in a metadata store, never used twice.

One counter record holds the first id that was never reserved. Ids are reserved in blocks, so that a new ledger needs no
write for its id. A process that ends loses its unused ids, which only leaves gaps.
"""

from typing import Final

import trio

from storage.errors import LedgerListCorrupt
from storage.metadata.store import ABSENT, Conflict, MetadataStore

LEDGER_IDS_KEY: Final = "/ids/ledger"
IDS_PER_BLOCK: Final = 1000
"""Ids reserved by one write."""


class LedgerIds:
    """Hands out ids. One for each process and metadata store is enough."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._next = 0
        self._stop = 0
        self._reserving = trio.Lock()

    async def take(self, *, above: int) -> int:
        """An id that nobody else has or will have, greater than `above`.

        A ledger must have a greater id than the one before it, so that positions rise. If another process's block is
        higher than the rest of this block, this block is dropped.

        Raises:
            LedgerListCorrupt: the id `above` was never given out, so a record is damaged.
        """
        async with self._reserving:
            if self._next >= self._stop or self._next <= above:
                await self._reserve()
            if self._next <= above:
                # Nobody may count up to it: every other topic would wait.
                raise LedgerListCorrupt(
                    f"a list of ledgers names ledger {above}, but the record {LEDGER_IDS_KEY} says that no ledger had "
                    f"an id above {self._next - 1}"
                )
            taken = self._next
            self._next += 1
            return taken

    async def _reserve(self) -> None:
        while True:
            record = await self._metadata.get(LEDGER_IDS_KEY)
            first = 1 if record is None else int(record.value)
            stop = first + IDS_PER_BLOCK
            try:
                version = ABSENT if record is None else record.version
                await self._metadata.put(LEDGER_IDS_KEY, str(stop).encode(), expected=version)
            except Conflict:
                continue  # Another process took that block.
            self._next, self._stop = first, stop
            return
