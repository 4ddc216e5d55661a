"""A metadata store in memory that fails at every n-th call, like one with an unreliable server.

    store = FailingStore(seed=3)
    store.fails_every = 5         # from now on; None: no more
    store.failures                # how many calls have failed

A failing change set is either refused as too large, so nothing was done, or not answered. If it is not answered, it was
made or not. A failing query is not answered. The seed decides.
"""

import random
from collections.abc import Sequence

from storage.metadata.memory import MemoryStore
from storage.metadata.store import ChangeSetTooLarge, Committed, IndexHit, Op, Record, StoreUnavailable


class FailingStore(MemoryStore):
    """See the module's docstring."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__()
        self.fails_every: int | None = None
        self.failures = 0
        self._calls = 0
        self._random = random.Random(seed)

    def _is_failing(self) -> bool:
        self._calls += 1
        is_failing = self.fails_every is not None and self._calls % self.fails_every == 0
        self.failures += is_failing
        return is_failing

    def _question(self) -> None:
        if self._is_failing():
            raise StoreUnavailable("no answer")

    async def commit(self, ops: Sequence[Op]) -> Committed:
        """Commit as the contract says, or refuse, or do not answer."""
        if not self._is_failing():
            return await super().commit(ops)
        kind = self._random.randrange(3)
        if kind == 0:
            raise ChangeSetTooLarge("too large")
        if kind == 1:
            await super().commit(ops)
        raise StoreUnavailable("no answer")

    async def get(self, key: str) -> Record | None:
        """Get as the contract says, or do not answer."""
        self._question()
        return await super().get(key)

    async def scan(self, start: str, end: str, *, limit: int | None = None) -> list[Record]:
        """Scan as the contract says, or do not answer."""
        self._question()
        return await super().scan(start, end, limit=limit)

    async def query(
        self, index: str, start: str, end: str, *, limit: int | None = None, after: str = ""
    ) -> list[IndexHit]:
        """Query as the contract says, or do not answer."""
        self._question()
        return await super().query(index, start, end, limit=limit, after=after)

    async def barrier(self) -> int:
        """Wait as the contract says, or do not answer."""
        self._question()
        return await super().barrier()
