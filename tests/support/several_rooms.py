"""Several brokers' rooms on one metadata store and one disk. Each can be killed, also at one of its change sets.

async with several("one", "two") as brokers:
    one, two = brokers["one"], brokers["two"]
    brokers.store("one").die_at(3, made=True)   # its third change set from now is its last one
    await brokers.store("one").died.wait()
    await brokers.kill("one")                   # its claims end; the others may recover its journal

A broker that dies at a change set hears no answer, whether the change set was made or not. Later it writes nothing.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from broker.names import TopicName
from broker.topic import Topic
from storage.metadata.memory import MemoryStore
from storage.metadata.store import (
    Committed,
    Fresh,
    IndexHit,
    KeyWatch,
    MetadataStore,
    Op,
    RangeWatch,
    Record,
    Session,
    StoreStatistics,
    StoreUnavailable,
)
from storage.writer import Writer
from tests.support.disk import SimulatedFiles
from tests.support.rooms import Rooms, rooms


class OwnStore(MetadataStore):
    """One broker's way to the store that all share."""

    authoritative = False

    def __init__(self, shared: MetadataStore) -> None:
        self.shared = shared
        self.died = trio.Event()
        self.commits = 0
        self._dies_at: tuple[int, bool] | None = None
        self._answers = trio.Event()
        self._answers.set()
        self._silent_at = ""
        self._loses_answer_at: str | None = None

    def lose_answer(self, at: str) -> None:
        """Make the next change set that changes or checks the key `at`, and let its caller get no answer in time."""
        self._loses_answer_at = at

    def fall_silent(self, at: str = "") -> None:
        """Let change sets wait until `answer`: all, or those that change or check the key `at`."""
        self._answers, self._silent_at = trio.Event(), at

    def answer(self) -> None:
        """Undo `fall_silent`."""
        self._answers.set()

    def die_at(self, number: int, *, made: bool) -> None:
        """Let the `number`-th change set from now be the last one. `made` says whether it is made."""
        self._dies_at = (self.commits + number, made)

    def live_on(self) -> None:
        """Undo `die_at`, if the broker did not come so far."""
        self._dies_at = None

    async def commit(self, ops: Sequence[Op]) -> Committed:
        """Commit as the contract says, unless the broker dies."""
        if self.died.is_set():
            raise StoreUnavailable("this broker is dead")
        self.commits += 1
        keys = {getattr(op, "key", "") for op in ops}
        if not self._silent_at or self._silent_at in keys:
            await self._answers.wait()
        if self._loses_answer_at in keys:
            self._loses_answer_at = None
            await self.shared.commit(ops)
            raise StoreUnavailable("no answer")
        last, is_made = self._dies_at or (0, False)
        if self.commits != last:
            return await self.shared.commit(ops)
        self.died.set()
        if is_made:
            await self.shared.commit(ops)
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    def peek(self, key: str) -> Record | None:
        """See the contract."""
        return self.shared.peek(key)

    async def fresh(self, keys: Collection[str]) -> Fresh:
        """See the contract."""
        return await self.shared.fresh(keys)

    async def get(self, key: str) -> Record | None:
        """See the contract."""
        return await self.shared.get(key)

    async def scan(self, start: str, end: str, *, limit: int | None = None) -> list[Record]:
        """See the contract."""
        return await self.shared.scan(start, end, limit=limit)

    async def query(
        self, index: str, start: str, end: str, *, limit: int | None = None, after: str = ""
    ) -> list[IndexHit]:
        """See the contract."""
        return await self.shared.query(index, start, end, limit=limit, after=after)

    async def barrier(self) -> int:
        """See the contract."""
        return await self.shared.barrier()

    def watch_key(self, key: str) -> AbstractAsyncContextManager[KeyWatch]:
        """See the contract."""
        return self.shared.watch_key(key)

    def watch_range(self, start: str, end: str) -> AbstractAsyncContextManager[RangeWatch]:
        """See the contract."""
        return self.shared.watch_range(start, end)

    async def open_session(self, timeout_seconds: float) -> Session:
        """See the contract."""
        return await self.shared.open_session(timeout_seconds)

    async def end_session(self, session_id: int) -> None:
        """See the contract."""
        await self.shared.end_session(session_id)

    def statistics(self) -> StoreStatistics:
        """See the contract."""
        return self.shared.statistics()


class Brokers:
    """See the module's docstring."""

    def __init__(self, shared: MetadataStore, files: SimulatedFiles, nursery: trio.Nursery) -> None:
        self.shared = shared
        self.living: dict[str, Rooms] = {}
        self._files = files
        self._nursery = nursery
        self._stores: dict[str, OwnStore] = {}
        self._ends: dict[str, tuple[trio.Event, trio.Event]] = {}

    def __getitem__(self, broker_id: str) -> Rooms:
        return self.living[broker_id]

    def store(self, broker_id: str) -> OwnStore:
        """Return a broker's way to the store, also a dead one's."""
        return self._stores[broker_id]

    async def start(self, broker_id: str) -> Rooms:
        """Start a broker that is a member and finishes what others left."""
        started: Rooms = await self._nursery.start(self._run, broker_id)
        return started

    async def kill(self, broker_id: str) -> None:
        """End a broker. Its claims are gone on return."""
        stop, ended = self._ends.pop(broker_id)
        del self.living[broker_id]
        stop.set()
        await ended.wait()

    async def load(self, name: TopicName) -> Topic:
        """Return the topic where it is loaded, or load it at the first living broker."""
        for broker in self.living.values():
            loaded = broker.topics.running(name)
            if loaded is not None:
                return loaded
        return await next(iter(self.living.values())).topics.get(name)

    async def _is_alive(self, writer: Writer) -> bool:
        await trio.lowlevel.checkpoint()
        return writer.broker in self.living

    async def _run(self, broker_id: str, *, task_status: trio.TaskStatus[Rooms]) -> None:
        stop, ended = self._ends[broker_id] = trio.Event(), trio.Event()
        store = self._stores[broker_id] = OwnStore(self.shared)
        node = 1 + list(self._stores).index(broker_id)
        files = self._files.process()
        try:
            async with rooms(store, files, broker_id=broker_id, kafka_node=node, is_alive=self._is_alive) as broker:
                await broker.register()
                self.living[broker_id] = broker
                await broker.controller.recover()
                task_status.started(broker)
                await stop.wait()
        finally:
            ended.set()


@asynccontextmanager
async def several(*broker_ids: str, shared: MetadataStore | None = None, seed: int = 5) -> AsyncIterator[Brokers]:
    """Run brokers on one store and disk."""
    async with trio.open_nursery() as nursery:
        brokers = Brokers(shared or MemoryStore(), SimulatedFiles(seed=seed), nursery)
        for broker_id in broker_ids:
            await brokers.start(broker_id)
        yield brokers
        for broker_id in tuple(brokers.living):
            await brokers.kill(broker_id)
