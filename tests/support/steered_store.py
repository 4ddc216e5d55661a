"""Metadata stores in memory that a test steers: it acts before or after change sets, or lets the image lag.

store = SteeredStore()
store.before = hook           # awaited with the operations of each change set, before it is decided
store.after = hook            # after it was decided and shown, before its caller hears of it
store.fail_at(3)              # the third change set from now, and all later ones, raise `Stopped`

store = LaggingStore()        # `peek` shows what the last barrier showed, as on a broker without the controller
"""

from collections.abc import Awaitable, Callable, Sequence

from storage.metadata.memory import MemoryStore
from storage.metadata.store import Committed, Op, Record

Hook = Callable[[Sequence[Op]], Awaitable[None]]


class Stopped(Exception):
    """The caller's process is gone as far as the store is concerned."""


class SteeredStore(MemoryStore):
    """See the module's docstring."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Hook | None = None
        self.after: Hook | None = None
        self.commits = 0
        """Change sets so far, those that were refused too."""
        self._stopped_at: int | None = None

    def fail_at(self, number: int | None) -> None:
        """Take `number - 1` further change sets and no more; None: take them again."""
        self._stopped_at = None if number is None else self.commits + number

    async def commit(self, ops: Sequence[Op]) -> Committed:
        """As the contract says, with the test's steps around it."""
        self.commits += 1
        if self._stopped_at is not None and self.commits >= self._stopped_at:
            raise Stopped(f"change set {self.commits}")
        if self.before is not None:
            await self.before(ops)
        committed = await super().commit(ops)
        if self.after is not None:
            await self.after(ops)
        return committed


class LaggingStore(MemoryStore):
    """See the module's docstring."""

    def __init__(self) -> None:
        super().__init__()
        self.authoritative = False
        self.barriers = 0
        self._seen: dict[str, Record] = {}

    def peek(self, key: str) -> Record | None:
        """As of the last barrier."""
        return self._seen.get(key)

    async def barrier(self) -> int:
        """Bring the image up to date."""
        revision = await super().barrier()
        self.barriers += 1
        self._seen = {record.key: record for record in await self.scan("", "\U0010ffff")}
        return revision
