"""The groups that this broker has in memory: loads them, stores what they decide, and wakes them in time.

A group is loaded by the first request for it. It stays until it was vacant for a while, or until a write for it fails.
In the latter case nobody knows what is stored. So everybody who waits in the group is told to try again, and the next
request loads what is stored. No decision ever rests on a write whose outcome is unknown (`coordination.py`).

One task wakes the groups: it sleeps until the first moment at which something is due in any of them. Each record is
written by a task of its own, so that no client that goes away leaves a rebalance unfinished.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog
import trio

from broker.kafka.groups.coordination import Coordination, group_claim_key
from broker.kafka.groups.group import Group
from broker.kafka.groups.group_record import GroupRecordDamaged, StoredGroup, from_value, group_key, to_put
from broker.kafka.groups.loaded import DamagedGroup, Loaded, Refused, refusal
from broker.kafka.groups.offsets import all_of
from broker.kafka.groups.values import (
    AnswerJoin,
    AnswerSync,
    Effects,
    GroupError,
    GroupRecord,
    GroupSettings,
    GroupState,
    JoinAnswer,
    Persist,
    SyncAnswer,
)
from broker.kafka.groups.waiting import Waiting
from broker.keyed_locks import KeyedLocks
from storage.ages import DueTimes
from storage.clock import WallClock
from storage.errors import ExpectedError
from storage.metadata.store import ABSENT, Delete, MetadataError, MetadataStore
from storage.signal import Signal
from storage.unknown_fields import NOTHING_UNKNOWN

GROUPS_MAX: Final = 10_000
"""Groups in memory. Vacant ones leave it after IDLE_SECONDS_MAX."""

IDLE_SECONDS_MAX: Final = 60
"""How long a vacant group stays loaded that nobody asks for."""

DUE_AT_ONCE: Final = 64
"""Groups that are woken in one step of the event loop."""

RESIGNED_AT_ONCE: Final = 32
"""Claims that are released together, so that they share the store's syncs."""

log = structlog.get_logger(__name__)


def now_ms() -> int:
    """The time of all groups. Their timeouts only wait, so it is Trio's."""
    return round(trio.current_time() * 1000)


class LoadedGroups:
    """See the module's docstring. It serves while `run` runs."""

    def __init__(
        self, coordination: Coordination, metadata: MetadataStore, settings: GroupSettings, wall_ms: WallClock
    ) -> None:
        """Set up. `wall_ms` stamps records."""
        self.members_bytes = 0
        """What the members of all loaded groups say of themselves."""
        self._settings = settings
        self._coordination = coordination
        self._metadata = metadata
        self._wall_ms = wall_ms
        self._loaded: dict[str, Loaded] = {}
        self._locks: KeyedLocks[str] = KeyedLocks()
        """Held while a group is loaded, or used alone."""
        self._due = DueTimes()
        self._due_changed = Signal()
        self._joins: Waiting[JoinAnswer] = Waiting()
        self._syncs: Waiting[SyncAnswer] = Waiting()
        self._nursery: trio.Nursery | None = None

    def __len__(self) -> int:
        return len(self._loaded)

    def __contains__(self, name: str) -> bool:
        return name in self._loaded

    @property
    def waiting(self) -> int:
        """How many joins and syncs wait for an answer."""
        return len(self._joins) + len(self._syncs)

    def all(self) -> tuple[Loaded, ...]:
        """Return the groups in memory."""
        return tuple(self._loaded.values())

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wake groups and write records until cancelled. Then nobody waits any more."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                while True:
                    next_ms = self._due.next_ms
                    with trio.move_on_at(float("inf") if next_ms is None else next_ms / 1000):
                        await self._due_changed.wait()
                    self._wake_due()
        finally:
            self._nursery = None
            for loaded in self.all():
                self._close(loaded, GroupError.NOT_COORDINATOR)

    async def open(self, name: str, *, create: bool) -> Loaded | None:
        """Return the group, loaded. Without `create`, return None if it does not exist.

        Raises:
            Refused: it cannot be served here now.
        """
        loaded = self._loaded.get(name)
        if loaded is None:
            async with self._locks.hold(name):
                loaded = await self._load(name, create=create)
        if loaded is not None:
            loaded.used_ms = now_ms()
        return loaded

    @asynccontextmanager
    async def alone(self, name: str) -> AsyncIterator[Loaded | None]:
        """Load the group, if it exists. If it is vacant, nobody else uses it during the block.

        Requests wait then until the block ends, and commits that have begun are made before. The block holds
        `Loaded.writing` in any case.

        Raises:
            Refused: it cannot be served here now.
        """
        async with self._locks.hold(name):
            loaded = await self._load(name, create=False)
            if loaded is None:
                yield None
                return
            async with loaded.writing:
                loaded.require_alive()
                if not loaded.group.is_vacant:
                    yield loaded
                    return
                del self._loaded[name]
                try:
                    while loaded.commits:
                        await loaded.quiet.wait()
                    loaded.require_alive()
                    yield loaded
                finally:
                    if loaded.group.state is not GroupState.DEAD:
                        self._loaded[name] = loaded
                        self._watch(loaded)

    async def join(self, loaded: Loaded, ask: Callable[[int], Effects]) -> JoinAnswer:
        """Ask the group with a ticket, and wait for the answer."""
        return await self._joins.answered(lambda ticket: self.apply(loaded, ask(ticket)))

    async def sync(self, loaded: Loaded, ask: Callable[[int], Effects]) -> SyncAnswer:
        """Ask the group with a ticket, and wait for the answer."""
        return await self._syncs.answered(lambda ticket: self.apply(loaded, ask(ticket)))

    def apply(self, loaded: Loaded, effects: Effects) -> None:
        """Do what the group wants."""
        for effect in effects:
            match effect:
                case AnswerJoin(ticket, joined):
                    self._joins.tell(ticket, joined)
                case AnswerSync(ticket, synced):
                    self._syncs.tell(ticket, synced)
                case Persist():
                    loaded.unwritten = effect
                    assert self._nursery is not None, "groups are served while `run` runs"
                    self._nursery.start_soon(self._write, loaded)
        self._count(loaded, loaded.group.members_bytes)
        self._watch(loaded)

    async def ensure_record(self, loaded: Loaded) -> None:
        """Store the group if it is not stored yet, so that it can have offsets. Durable on return.

        Raises:
            Refused: it could not be stored.
        """
        async with loaded.writing:
            loaded.require_alive()
            if loaded.version == ABSENT:
                await self.write_record(loaded, loaded.group.record())

    async def write_record(
        self, loaded: Loaded, record: GroupRecord, *, since_ms: int | None = None, from_ms: int | None = None
    ) -> None:
        """Store a record of the group, for the holder of `Loaded.writing`. Durable on return.

        Args:
            loaded: the group.
            record: what to store.
            since_ms: since when it has been like that; None: since now.
            from_ms: from when the retention of its offsets counts; None: the same.

        Raises:
            Refused: it could not be stored.
        """
        since_ms = self._wall_ms() if since_ms is None else since_ms
        put = to_put(loaded.name, StoredGroup(record, since_ms, loaded.unknown), loaded.version, from_ms=from_ms)
        async with self.writes(loaded):
            loaded.version = (await self._metadata.commit([put, loaded.claim])).revision

    @asynccontextmanager
    async def writes(self, loaded: Loaded) -> AsyncIterator[None]:
        """Write for the group in the block. If that fails, the group must be loaded again.

        Raises:
            Refused: the write failed, or had no answer.
        """
        try:
            yield
        except MetadataError as failed:
            refused = refusal(failed)
            log.warning("a consumer group has to be loaded again", group=loaded.name, reason=str(failed))
            self._close(loaded, refused.error)
            self._coordination.doubt(loaded.name)
            raise refused from failed

    async def resign(self, loaded: Loaded) -> None:
        """Stop coordinating the group: it is deleted, not used, or handed over. Who waits gets NOT_COORDINATOR."""
        self._close(loaded, GroupError.NOT_COORDINATOR)
        try:
            await self._coordination.resign(loaded.name)
        except MetadataError as failed:
            # The claim may stay. This broker takes it over when the group is needed, or it ends with the session.
            log.warning("a consumer group's claim could not be released", group=loaded.name, reason=str(failed))

    async def resign_all(self) -> None:
        """Stop coordinating all groups, for example because this broker drains."""
        places = trio.CapacityLimiter(RESIGNED_AT_ONCE)

        async def resign(loaded: Loaded) -> None:
            async with places:
                await self.resign(loaded)

        async with trio.open_nursery() as nursery:
            for loaded in self.all():
                nursery.start_soon(resign, loaded)

    def _close(self, loaded: Loaded, error: GroupError) -> None:
        if loaded.group.state is GroupState.DEAD:
            return
        self.apply(loaded, loaded.group.close(error))
        self._count(loaded, 0)
        if self._loaded.get(loaded.name) is loaded:
            del self._loaded[loaded.name]

    def _count(self, loaded: Loaded, members_bytes: int) -> None:
        self.members_bytes += members_bytes - loaded.members_bytes
        loaded.members_bytes = members_bytes

    async def _load(self, name: str, *, create: bool) -> Loaded | None:
        """Return the group, loaded, for the holder of its lock."""
        found = self._loaded.get(name)
        if found is not None:
            return found
        if self._nursery is None:
            raise Refused(GroupError.COORDINATOR_NOT_AVAILABLE, "This broker does not coordinate groups now.")
        if len(self._loaded) >= GROUPS_MAX:
            raise Refused(
                GroupError.COORDINATOR_NOT_AVAILABLE,
                f"This broker coordinates {GROUPS_MAX} groups and takes no more. Add a broker, or wait until a group "
                "has had no members for a minute.",
            )
        try:
            loaded = await self._read(name, create=create)
        except GroupRecordDamaged as damaged:
            log.error("a consumer group cannot be loaded", group=name, reason=str(damaged))
            raise DamagedGroup(str(damaged)) from damaged
        except ExpectedError as failed:
            raise refusal(failed) from failed
        if loaded is not None:
            self._loaded[name] = loaded
            self.apply(loaded, ())
        return loaded

    async def remove_damaged(self, name: str) -> None:
        """Delete a group whose record cannot be read, with its offsets. Durable on return.

        Raises:
            Refused: it was not deleted, or another broker coordinates it.
        """
        async with self._locks.hold(name):
            try:
                claim = await self._coordination.elect(name)
                await self._metadata.commit([all_of(name), Delete(group_key(name)), claim])
                await self._coordination.resign(name)
            except ExpectedError as failed:
                self._coordination.doubt(name)
                raise refusal(failed) from failed

    async def _read(self, name: str, *, create: bool) -> Loaded | None:
        key, claim_key = group_key(name), group_claim_key(name)
        if not create:
            seen = (await self._metadata.fresh({key, claim_key})).records
            if self._coordination.is_elsewhere(seen[claim_key]):
                raise Refused(GroupError.NOT_COORDINATOR, f"Another broker coordinates the group {name}.")
            if seen[key] is None:
                return None
        claim = await self._coordination.elect(name)
        # From now on, nobody else can write it.
        record = (await self._metadata.fresh({key})).records[key]
        if record is None:
            return Loaded(name, Group(self._settings), claim, ABSENT, NOTHING_UNKNOWN, now_ms())
        stored = from_value(key, record.value)
        group = Group(self._settings, stored.record, now_ms())
        return Loaded(name, group, claim, record.version, stored.unknown, now_ms())

    async def _write(self, loaded: Loaded) -> None:
        async with loaded.writing:
            persist, loaded.unwritten = loaded.unwritten, None
            if persist is None or loaded.group.state is GroupState.DEAD:
                # Another task has written it, or it will not be written.
                return
            try:
                await self.write_record(loaded, persist.record)
            except Refused:
                # `writes` has told everybody who waits.
                return
            self.apply(loaded, loaded.group.stored(persist.number, now_ms()))

    def _watch(self, loaded: Loaded) -> None:
        """Note when something is due in the group."""
        moments = [] if loaded.group.wake_ms is None else [loaded.group.wake_ms]
        if loaded.group.is_vacant:
            moments.append(loaded.used_ms + IDLE_SECONDS_MAX * 1000)
        if not moments:
            self._due.forget(loaded.name)
            return
        before_ms = self._due.next_ms
        self._due.put(loaded.name, min(moments))
        if before_ms is None or min(moments) < before_ms:
            self._due_changed.set()

    def _wake_due(self) -> None:
        time_ms = now_ms()
        for name in self._due.due(time_ms, limit=DUE_AT_ONCE):
            loaded = self._loaded.get(name)
            if loaded is None:
                # Somebody uses it alone, and watches it again afterwards.
                self._due.forget(name)
                continue
            effects = loaded.group.expire(time_ms)
            if loaded.group.is_vacant and loaded.used_ms + IDLE_SECONDS_MAX * 1000 <= time_ms:
                loaded.used_ms = time_ms
                assert self._nursery is not None
                self._nursery.start_soon(self._unload, name)
            self.apply(loaded, effects)

    async def _unload(self, name: str) -> None:
        try:
            async with self.alone(name) as loaded:
                if loaded is not None and loaded.group.is_vacant:
                    await self.resign(loaded)
        except Refused as refused:
            log.warning("an unused consumer group stays loaded", group=name, reason=str(refused))
