"""What dead brokers left open is recovered by others, at a cost that depends on nothing else."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster import recovery
from broker.cluster.membership import BROKERS
from broker.cluster.ownership import claim_key
from broker.cluster.recovery import DeadBrokers
from broker.store_retry import RETRY_SECONDS
from storage.errors import WriterAlive
from storage.journal_records import JOURNALS, JournalRecords
from storage.managed_ledger_opening import record_ends
from storage.managed_ledger_record import left_open_by, writers_of_open_ledgers
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, Check, Committed, MetadataStore, Op, Put, Record
from storage.position import EARLIEST, LATEST
from storage.writer import Writer
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import DATA, ledger_store
from tests.support.recoveries import Counting, opened, publish, stored, survivor


async def test_the_ends_of_a_dead_broker_go_on_record(autojump_clock: MockClock) -> None:
    """C11: when its registration goes, without anybody asking for its topics."""
    files, metadata = SimulatedFiles(), MemoryStore()
    session = await metadata.open_session(10)
    await metadata.put(BROKERS + "one", b"{}", expected=ABSENT, session=session)
    async with ledger_store(files.process(), broker_id="one", metadata=metadata) as one:
        for name in ("a/b", "c"):
            await publish(await opened(name, metadata, one), name.encode())
        closed = await opened("closed", metadata, one)
        await publish(closed, b"closed")
        await closed.close()
        await opened("empty", metadata, one)
        assert await left_open_by("one", metadata) == ["a/b", "c", "empty"]
    async with survivor(metadata, files.process()) as two, trio.open_nursery() as nursery:
        nursery.start_soon(two.run)
        await wait_all_tasks_blocked()
        assert await left_open_by("one", metadata) == ["a/b", "c", "empty"], "it is registered"
        await session.close()
        await wait_all_tasks_blocked()
        assert await writers_of_open_ledgers(metadata) == []
        for name in ("a/b", "c", "closed"):
            (info,) = (await stored(name, metadata)).ledgers
            assert (info.closed, info.entries) == (True, 1)
        assert (await stored("empty", metadata)).ledgers == ()
        assert await metadata.get("/recovering/one") is None
        nursery.cancel_scope.cancel()
    async with ledger_store(files.process(), broker_id="three", metadata=metadata) as three:
        topic = await opened("a/b", metadata, three)
        (entry,) = await topic.read(EARLIEST, upto=LATEST, entries_max=9, bytes_max=999)
        assert entry.payload == b"a/b"


@pytest.mark.parametrize("closed", [1, 200])
async def test_the_cost_is_what_was_open(autojump_clock: MockClock, closed: int) -> None:
    """C11: three open ledgers among few or many cost the same reads and writes."""
    files, metadata = SimulatedFiles(), Counting()
    async with ledger_store(files.process(), broker_id="one", metadata=metadata) as one:
        for number in range(closed):
            topic = await opened(f"closed-{number}", metadata, one)
            await topic.close()
        for number in range(3):
            await publish(await opened(f"open-{number}", metadata, one), b"a")
    async with survivor(metadata, files.process()) as two, trio.open_nursery() as nursery:
        metadata.calls = 0
        nursery.start_soon(two.run)
        await wait_all_tasks_blocked()
        assert await left_open_by("one", metadata) == []
        assert metadata.calls <= 40
        nursery.cancel_scope.cancel()


async def test_a_claimed_topic_is_left_to_its_new_owner(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C11, D4: it finds the end itself, and the others are recovered, also one after another."""
    monkeypatch.setattr(recovery, "AT_ONCE_MAX", 1)
    files, metadata = SimulatedFiles(), MemoryStore()
    async with ledger_store(files.process(), broker_id="one", metadata=metadata) as one:
        for name in ("claimed", "free"):
            await publish(await opened(name, metadata, one), b"a")
    await metadata.put(claim_key("claimed"), b"{}", expected=ABSENT)
    async with survivor(metadata, files.process()) as two, trio.open_nursery() as nursery:
        nursery.start_soon(two.run)
        await wait_all_tasks_blocked()
        assert await left_open_by("one", metadata) == ["claimed"]
        nursery.cancel_scope.cancel()


async def test_a_broker_is_recovered_as_often_as_it_dies(autojump_clock: MockClock) -> None:
    """C11: what it left open the second time goes on record too."""
    files, metadata = SimulatedFiles(), MemoryStore()
    async with survivor(metadata, files.process()) as two, trio.open_nursery() as nursery:
        nursery.start_soon(two.run)
        for name in ("first", "second"):
            session = await metadata.open_session(10)
            await metadata.put(BROKERS + "one", b"{}", expected=ABSENT, session=session)
            async with ledger_store(files.process(), broker_id="one", metadata=metadata) as one:
                await publish(await opened(name, metadata, one), b"a")
            await wait_all_tasks_blocked()
            assert await left_open_by("one", metadata) == [name]
            await session.close()
            await wait_all_tasks_blocked()
            assert await left_open_by("one", metadata) == []
        nursery.cancel_scope.cancel()


async def test_a_broker_that_dies_again_meanwhile_is_recovered_again(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C11: it returned, opened another ledger and died, all while its first death was being recovered."""
    files, metadata = SimulatedFiles(), MemoryStore()
    await left_by_one(metadata, files)
    has_read, may_go_on = trio.Event(), trio.Event()

    async def slow(broker_id: str, store: MetadataStore) -> list[str]:
        names = await left_open_by(broker_id, store)
        has_read.set()
        await may_go_on.wait()
        return names

    monkeypatch.setattr(recovery, "left_open_by", slow)
    async with survivor(metadata, files.process()) as two, trio.open_nursery() as nursery:
        nursery.start_soon(two.run)
        await has_read.wait()
        session = await metadata.open_session(10)
        await metadata.put(BROKERS + "one", b"{}", expected=ABSENT, session=session)
        async with ledger_store(files.process(), broker_id="one", metadata=metadata) as one:
            await publish(await opened("b", metadata, one), b"b")
        await session.close()
        await wait_all_tasks_blocked()
        may_go_on.set()
        await wait_all_tasks_blocked()
        assert await left_open_by("one", metadata) == []
        nursery.cancel_scope.cancel()


async def test_a_broker_that_has_returned_is_not_recovered(autojump_clock: MockClock) -> None:
    """C12: while it was not registered, its journal could not be recovered yet. Nobody tries any more."""
    files, metadata = SimulatedFiles(), Counting()
    async with ledger_store(files.process(), broker_id="one", metadata=metadata) as one:
        await publish(await opened("topic", metadata, one), b"a")

        async def is_alive(_writer: Writer) -> bool:
            return True

        async with survivor(metadata, files.process(), is_alive=is_alive) as two, trio.open_nursery() as nursery:
            nursery.start_soon(two.run)
            await trio.sleep(60)
            await metadata.put(BROKERS + "one", b"{}", expected=ABSENT, session=await metadata.open_session(10))
            await trio.sleep(2 * RETRY_SECONDS)
            calls = metadata.calls
            await trio.sleep(60)
            assert metadata.calls == calls
            assert await left_open_by("one", metadata) == ["topic"]
            nursery.cancel_scope.cancel()


async def test_a_broker_without_its_registration_does_not_recover_itself(autojump_clock: MockClock) -> None:
    """C12: its session has ended, and it is about to register again. Its ledgers are its own all the time."""
    files, metadata = SimulatedFiles(), MemoryStore()
    session = await metadata.open_session(10)
    await metadata.put(BROKERS + "one", b"{}", expected=ABSENT, session=session)
    async with ledger_store(files, broker_id="one", metadata=metadata) as one, trio.open_nursery() as nursery:
        topic = await opened("topic", metadata, one)
        await publish(topic, b"a")
        journals = JournalRecords(metadata, DATA)
        own = DeadBrokers(metadata, one, journals, await metadata.open_session(10), broker_id="one")
        for was_registered in (True, False):
            with trio.move_on_after(60):
                async with trio.open_nursery() as work:
                    work.start_soon(own.run)
                    await wait_all_tasks_blocked()
                    assert session.has_ended is not was_registered
                    await session.close()
            assert await left_open_by("one", metadata) == ["topic"]
        await publish(topic, b"b")
        nursery.cancel_scope.cancel()


async def test_two_survivors_recover_a_broker_once(autojump_clock: MockClock) -> None:
    """C8, C11: the second one finds nothing left, and the journal has one new epoch."""
    files, metadata = SimulatedFiles(), MemoryStore()
    async with ledger_store(files.process(), broker_id="one", metadata=metadata) as one:
        for number in range(50):
            await publish(await opened(f"topic-{number}", metadata, one), b"a")
        epoch = one.writer.epoch
    async with (
        survivor(metadata, files.process(), "two") as two,
        survivor(metadata, files.process(), "three") as three,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(two.run)
        nursery.start_soon(three.run)
        await trio.sleep(60)
        assert await writers_of_open_ledgers(metadata) == []
        known = await JournalRecords(metadata, DATA).read("one")
        assert known is not None
        assert (known.life.number, known.pending) == (epoch + 1, None)
        nursery.cancel_scope.cancel()


async def left_by_one(metadata: MemoryStore, files: SimulatedFiles) -> None:
    async with ledger_store(files.process(), broker_id="one", metadata=metadata) as one:
        await publish(await opened("a", metadata, one), b"a")


@pytest.mark.parametrize("session_ends", [False, True])
async def test_a_survivor_waits_for_the_end_of_anothers_recovery(mock_clock: MockClock, session_ends: bool) -> None:
    """C11: whether that one stopped trying or was killed, the next one goes on in that moment. The clock stands."""
    files, metadata = SimulatedFiles(), MemoryStore()
    await left_by_one(metadata, files)
    session = await metadata.open_session(10)
    records = JournalRecords(metadata, DATA)
    async with survivor(metadata, files.process()) as two, trio.open_nursery() as nursery:
        async with records.announced("one", "three", session):
            nursery.start_soon(two.run)
            await wait_all_tasks_blocked()
            assert await left_open_by("one", metadata) == ["a"], "three recovers it"
            if session_ends:
                await session.close()
                await wait_all_tasks_blocked()
                assert await left_open_by("one", metadata) == []
        await wait_all_tasks_blocked()
        assert await left_open_by("one", metadata) == []
        nursery.cancel_scope.cancel()


async def test_a_recovery_waits_for_the_end_of_the_grace(autojump_clock: MockClock) -> None:
    """C12: to the moment, and not for a pause of another length."""
    files, metadata = SimulatedFiles(), MemoryStore()
    await left_by_one(metadata, files)
    asked: list[float] = []

    async def in_its_grace(writer: Writer) -> bool:
        asked.append(trio.current_time())
        if asked[-1] < asked[0] + 7:
            raise WriterAlive(writer, gone_at=asked[0] + 7)
        return False

    async with survivor(metadata, files.process(), is_alive=in_its_grace) as two, trio.open_nursery() as nursery:
        began = trio.current_time()
        nursery.start_soon(two.run)
        await trio.sleep(60)
        assert await left_open_by("one", metadata) == []
        assert asked == [began, began + RETRY_SECONDS, began + 7]
        nursery.cancel_scope.cancel()


class ReadEarly(MemoryStore):
    """Something happens between the first reading of a record and what follows from it."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def get(self, key: str) -> Record | None:
        record = await super().get(key)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return record


async def test_a_ledger_that_a_new_owner_has_removed_is_not_damaged(autojump_clock: MockClock) -> None:
    """E10: a ledger without entries has no file any more. That was logged as damage of confirmed data."""
    files, metadata = SimulatedFiles(), ReadEarly()
    async with ledger_store(files.process(), broker_id="one", metadata=metadata) as one:
        await opened("empty", metadata, one)
    async with (
        ledger_store(files.process(), broker_id="two", metadata=metadata) as two,
        ledger_store(files.process(), broker_id="three", metadata=metadata) as three,
    ):
        metadata.meanwhile = partial(opened, "empty", metadata, three)
        unowned = Check(claim_key("empty"), ABSENT)
        assert await record_ends(
            "empty", metadata=metadata, ledgers=two, claim=unowned, is_left=lambda writer: writer.broker == "one"
        )
        (ledger,) = (await stored("empty", metadata)).ledgers
        assert ledger.writer == three.writer


class Overtaken(MemoryStore):
    """Another process writes the record of the journal just before this one does, once."""

    def __init__(self) -> None:
        super().__init__()
        self.overtakes = False

    async def commit(self, ops: Sequence[Op]) -> Committed:
        if self.overtakes and any(isinstance(op, Put) and op.key == JOURNALS + "one" for op in ops):
            self.overtakes = False
            held = await super().get(JOURNALS + "one")
            assert held is not None
            await super().put(held.key, held.value, expected=held.version)
        return await super().commit(ops)


async def test_a_recovery_that_was_overtaken_is_tried_at_once(mock_clock: MockClock) -> None:
    """C8: the other process may be killed in the next moment. The clock stands."""
    files, metadata = SimulatedFiles(), Overtaken()
    await left_by_one(metadata, files)
    metadata.overtakes = True
    async with survivor(metadata, files.process()) as two, trio.open_nursery() as nursery:
        nursery.start_soon(two.run)
        await wait_all_tasks_blocked()
        assert not metadata.overtakes
        assert await left_open_by("one", metadata) == []
        nursery.cancel_scope.cancel()
