"""What the stores with the image in this process have in common: reads, watches and sessions.

Such a store decides a proposal against a `Delta`, makes it durable in its own way, and then shows it. `show` applies
the change set to the image, ends the sessions that it ended, and fires the watches. A small change set takes one step
for each of these. A large one is measured, decided and shown with pauses, so that it does not block the event loop.
While it is shown, readers wait.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import islice

import trio

from storage.metadata.collector import look_at_newest
from storage.metadata.delta import measure_in_steps
from storage.metadata.image import Image, Written
from storage.metadata.pacing import paced
from storage.metadata.proposed import Commit, EndSessions, OpenSession, Proposed
from storage.metadata.records import DataRecord
from storage.metadata.steps import KEYS_AT_ONCE, Steps
from storage.metadata.store import (
    Committed,
    Fresh,
    IndexHit,
    InvalidOperation,
    KeyWatch,
    MetadataStore,
    Op,
    Put,
    RangeWatch,
    Record,
    Session,
    SessionLost,
    StoreEnded,
    StoreStatistics,
)
from storage.metadata.watches import ImageRangeWatch, Watches


class ImageStore(MetadataStore):
    """Everything except how a decision becomes durable."""

    def __init__(self, image: Image) -> None:
        # For images that were not recovered.
        image.settle()
        self._image = image
        self._watches = Watches(image)
        self._sessions: dict[int, LocalSession] = {}
        self._failure: BaseException | None = None
        self._shown_before: dict[str, Record | None] = {}
        """While the image shows a part of a change set: the earlier records of its keys."""

    def peek(self, key: str) -> Record | None:
        """See `MetadataStore.peek`. One dict lookup, or two while a large change set is being shown."""
        if key in self._shown_before:
            return self._shown_before[key]
        record: Record | None = self._image.records.get(key)
        return record

    async def fresh(self, keys: Collection[str]) -> Fresh:
        """See `MetadataStore.fresh`."""
        await self._pause_for_barrier()
        records = self._image.records
        return Fresh(self._image.revision, {key: records.get(key) for key in keys})

    async def get(self, key: str) -> Record | None:
        """See `MetadataStore.get`."""
        await self._pause_for_barrier()
        record: Record | None = self._image.records.get(key)
        return record

    async def scan(self, start: str, end: str, *, limit: int | None = None) -> list[Record]:
        """See `MetadataStore.scan`."""
        await self._pause_for_barrier()
        return self._image.scan(start, end, limit)

    async def query(
        self, index: str, start: str, end: str, *, limit: int | None = None, after: str = ""
    ) -> list[IndexHit]:
        """See `MetadataStore.query`."""
        await self._pause_for_barrier()
        return self._image.query(index, start, end, limit, after)

    async def barrier(self) -> int:
        """See `MetadataStore.barrier`.

        The image holds durable changes before anybody is told. So there is nothing to wait for unless a large change
        set is being shown, and other tasks get no turn. Publishes that are admitted in one step then share one barrier.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._readable()
        return self._image.revision

    async def _pause_for_barrier(self) -> None:
        # The pause, because a barrier need not pause, and a loop of reads would hold up all other tasks.
        await trio.lowlevel.checkpoint()
        await self.barrier()

    async def commit(self, ops: Sequence[Op]) -> Committed:
        """See `MetadataStore.commit`."""
        return await self._decide(await self._checked(ops))

    async def _checked(self, ops: Sequence[Op]) -> Commit:
        """The change set, if it keeps the contract and names living sessions of this process only."""
        # A copy, because the caller may change its list while the change set waits for its turn.
        ops = tuple(ops)
        size = await paced(measure_in_steps(ops))
        await paced(self._refuse_lost_sessions(ops))
        return Commit(ops, size)

    def _refuse_lost_sessions(self, ops: Sequence[Op]) -> Steps[None]:
        # Sessions that end after this check are refused when the change set is decided.
        for number, op in enumerate(ops, 1):
            if isinstance(op, Put) and op.session is not None and self._sessions.get(op.session.id) is not op.session:
                self._raise_failure()
                raise SessionLost(f"{op.key}: session {op.session.id} has ended")
            if number % KEYS_AT_ONCE == 0:
                yield

    def watch_key(self, key: str) -> AbstractAsyncContextManager[KeyWatch]:
        """See `MetadataStore.watch_key`."""
        return self._watches.of_key(key)

    def watch_range(self, start: str, end: str) -> AbstractAsyncContextManager[RangeWatch]:
        """See `MetadataStore.watch_range`."""
        return self._watches.of_range(start, end)

    async def open_session(self, timeout_seconds: float) -> Session:
        """See `MetadataStore.open_session`.

        The session lives in this process, so it ends only by `close` or with the store.
        """
        if not timeout_seconds > 0:
            raise InvalidOperation(f"a session timeout of {timeout_seconds} seconds")
        timeout_ms = round(timeout_seconds * 1000)
        await self._checkpoint()
        # Shielded, so that no session is opened without its opener learning of it. It takes one group commit.
        with trio.CancelScope(shield=True):
            session_id = (await self._decide(OpenSession(timeout_ms))).revision
        self._raise_failure()
        session = self._sessions[session_id] = LocalSession(self, session_id)
        return session

    async def end_session(self, session_id: int) -> None:
        """See `MetadataStore.end_session`."""
        await self._decide(EndSessions((session_id,)))

    def statistics(self) -> StoreStatistics:
        """See `MetadataStore.statistics`."""
        return StoreStatistics(self._image.revision, len(self._image.records), len(self._watches), 0)

    @abstractmethod
    async def _decide(self, proposed: Proposed) -> Committed:
        """Decide it against the pending delta. Return the result, or raise the refusal, once that is durable."""

    async def show(self, change_set: Sequence[DataRecord], note: Callable[[list[Written]], None]) -> None:
        """Make a durable change set visible: a small one in one step, a large one with pauses (E7).

        Nobody sees a part of it (R14): readers wait until all of it is there, and `peek` answers from before. No other
        change set may be shown meanwhile. `note` is told what each step did, within that step.
        """
        steps = self._image.apply_each(change_set)
        concerned: dict[ImageRangeWatch, list[Written]] = {}
        part = list(islice(steps, KEYS_AT_ONCE))
        note(part)
        self._watches.note(part, concerned)
        while len(part) == KEYS_AT_ONCE:
            if self._watches.showing is None:
                self._watches.showing = trio.Event()
            self._shown_before.update((change.key, change.old) for change in part)
            look_at_newest()
            await trio.lowlevel.checkpoint()
            part = list(islice(steps, KEYS_AT_ONCE))
            note(part)
            self._watches.note(part, concerned)
        self._shown_before = {}
        self._end_sessions()
        self._watches.tell(self._image.revision, concerned)
        if self._watches.showing is not None:
            self._watches.showing.set()
            self._watches.showing = None

    def _end_sessions(self) -> None:
        """Tell the sessions of this process that the image no longer holds. A change set has more records than that."""
        for session_id in [each for each in self._sessions if each not in self._image.sessions]:
            self._sessions.pop(session_id).ended.set()

    def _end(self, cause: BaseException) -> None:
        """Answer nothing from now on. `cause` says why."""
        self._failure = cause
        self._watches.fail(self._unavailable())
        if self._watches.showing is not None:
            self._watches.showing.set()
            self._watches.showing = None
        for session in self._sessions.values():
            session.ended.set()

    def _unavailable(self) -> StoreEnded:
        assert self._failure is not None, "it has ended, or closes"
        return StoreEnded(self._failure)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._unavailable()

    async def _checkpoint(self) -> None:
        """Pause, and return when the image may be read as of now."""
        await trio.lowlevel.checkpoint()
        await self._readable()

    async def _readable(self) -> None:
        """Return when the image may be read as of now. Pauses only while a large change set is being shown."""
        await self._watches.readable()
        self._raise_failure()


class LocalSession(Session):
    """A session of this process. It needs no heartbeat, because it lives exactly as long as the store."""

    def __init__(self, store: ImageStore, session_id: int) -> None:
        self._store = store
        self._id = session_id
        self.ended = trio.Event()

    @property
    def id(self) -> int:
        """See `Session.id`: the revision of its opening."""
        return self._id

    @property
    def has_ended(self) -> bool:
        """See `Session.has_ended`."""
        return self.ended.is_set()

    async def close(self) -> None:
        """See `Session.close`.

        Raises:
            StoreUnavailable: the store has ended. The records go when the store is opened again.
        """
        await self._store.end_session(self._id)

    async def wait_lost(self) -> None:
        """See `Session.wait_lost`. Also returns when the store itself has ended."""
        await self.ended.wait()
