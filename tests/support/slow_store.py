"""A metadata store that is slow once, so that another change comes between a read and its write."""

from collections.abc import Sequence

import trio

from storage.metadata.memory import MemoryStore
from storage.metadata.store import Committed, Op


class SlowOnce(MemoryStore):
    """Waits a second before the next change set, whenever `is_slow` is set."""

    is_slow = False

    async def commit(self, ops: Sequence[Op]) -> Committed:
        """See the contract."""
        if self.is_slow:
            self.is_slow = False
            await trio.sleep(1)
        return await super().commit(ops)
