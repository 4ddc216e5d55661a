"""Metadata stores in memory that a test controls: it acts before or after change sets, or makes the image lag.

store = SteeredStore()
store.before = hook           # awaited with the operations of each change set, before it is decided
store.after = hook            # after it was decided and shown, before its caller hears of it
store.fail_at(3)              # the third change set from now, and all later ones, raise `Stopped`
store.leave_unanswered(3, made=True)    # the third change set from now is made, but its caller is not told
store.late[key] = event       # watches of the key bring nothing before the event is set

store = LaggingStore()        # `peek` shows what the last barrier showed, as on a broker without the controller
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from storage.metadata.memory import MemoryStore
from storage.metadata.store import Committed, Fresh, KeyWatch, Op, Record, StoreUnavailable

Hook = Callable[[Sequence[Op]], Awaitable[None]]


class Stopped(Exception):
    """For the store, the caller's process is gone."""


class SteeredStore(MemoryStore):
    """See the module's docstring."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Hook | None = None
        self.after: Hook | None = None
        self.commits = 0
        """Change sets so far, those that were refused too."""
        self.late: dict[str, trio.Event] = {}
        self._stopped_at: int | None = None
        self._unanswered: tuple[int, bool] | None = None

    def fail_at(self, number: int | None) -> None:
        """Accept `number - 1` more change sets, and then none. None: accept them again."""
        self._stopped_at = None if number is None else self.commits + number

    def leave_unanswered(self, number: int, *, made: bool) -> None:
        """Raise `StoreUnavailable` at the `number`-th change set from now. `made` says whether it is made."""
        self._unanswered = (self.commits + number, made)

    @property
    def has_answered_all(self) -> bool:
        """Whether the change set to leave unanswered has not arrived yet."""
        return self._unanswered is None or self.commits < self._unanswered[0]

    async def commit(self, ops: Sequence[Op]) -> Committed:
        """Commit as the contract says, with the test's steps around it."""
        self.commits += 1
        if self._stopped_at is not None and self.commits >= self._stopped_at:
            raise Stopped(f"change set {self.commits}")
        if self.before is not None:
            await self.before(ops)
        unanswered, is_made = self._unanswered or (0, False)
        if self.commits == unanswered and not is_made:
            raise StoreUnavailable("no answer")
        committed = await super().commit(ops)
        if self.commits == unanswered:
            raise StoreUnavailable("no answer")
        if self.after is not None:
            await self.after(ops)
        return committed

    def watch_key(self, key: str) -> AbstractAsyncContextManager[KeyWatch]:
        """Watch as the contract says, but perhaps late."""
        return _late(super().watch_key(key), key, self.late)


@asynccontextmanager
async def _late(
    watching: AbstractAsyncContextManager[KeyWatch], key: str, late: dict[str, trio.Event]
) -> AsyncIterator[KeyWatch]:
    async with watching as watch:
        yield _LateWatch(watch, key, late)


class _LateWatch(KeyWatch):
    def __init__(self, watch: KeyWatch, key: str, late: dict[str, trio.Event]) -> None:
        self._watch = watch
        self._key = key
        self._late = late

    async def next(self) -> Record | None:
        record = await self._watch.next()
        if self._key in self._late:
            await self._late[self._key].wait()
        return record


class LaggingStore(MemoryStore):
    """See the module's docstring."""

    def __init__(self) -> None:
        super().__init__()
        self.barriers = 0
        self._seen: dict[str, Record] = {}

    def peek(self, key: str) -> Record | None:
        """Return the record as of the last barrier."""
        return self._seen.get(key)

    async def fresh(self, keys: Collection[str]) -> Fresh:
        """From the image, once it is up to date."""
        revision = await self.barrier()
        return Fresh(revision, {key: self._seen.get(key) for key in keys})

    async def barrier(self) -> int:
        """Bring the image up to date."""
        await super().barrier()
        # As of a store that asks another process.
        await trio.lowlevel.checkpoint()
        self.barriers += 1
        self._seen = {record.key: record for record in self._image.scan("", "\U0010ffff", None)}
        return self._image.revision

    async def _pause_for_barrier(self) -> None:
        # A test that looks into the store must not bring the image up to date.
        await trio.lowlevel.checkpoint()
