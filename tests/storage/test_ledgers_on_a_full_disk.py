"""Managed ledgers while the disk is full: a roll that waits for space does not block work that frees some."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.errors import SPACE_RETRY_SECONDS, LedgerSealed, NoSpace
from storage.ledger_chain import ManagedLedgerConfig
from storage.ledger_ids import LedgerIds
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Committed, Op, Put, StoreFull
from storage.signal import Signal
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS, ledger_store
from tests.support.managed_ledgers import open_managed, payloads, publish, rolling, stored
from tests.support.segments import segment_host

FILE_BYTES = 256 * 1024
PAYLOAD = b"x" * 5_000


@pytest.mark.parametrize("how", ["trim", "delete"])
async def test_space_is_made_while_a_roll_waits_for_it(autojump_clock: MockClock, how: str) -> None:
    """E13, E18: the roll holds a full ledger back; trimming, or deleting the topic, frees the disk."""
    files, metadata = SimulatedFiles(seed=1), MemoryStore()
    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store:
        config = ManagedLedgerConfig(ledger_bytes_max=20_000)
        ledger = await open_managed(store, metadata, config=config)
        async with rolling(ledger):
            await publish(ledger, [PAYLOAD] * 4)
            first = ledger.closed[0]
            await publish(ledger, [PAYLOAD] * 3)
            files.set_capacity(files.used_bytes + 10)
            await ledger.confirmed.wait_for(ledger.append(PAYLOAD))
            await trio.sleep(5 * SPACE_RETRY_SECONDS)
            with pytest.raises(NoSpace):
                await ledger.wait_room()
            with trio.fail_after(60):
                if how == "trim":
                    await ledger.trim(ledger.confirmed.value)
                    known = [(info.closed, info.entries) for info in (await stored(metadata)).ledgers]
                    assert known == [(False, 0), (False, 0)]
                else:
                    await ledger.delete()
                    await ledger.close()
            await trio.sleep(2 * SPACE_RETRY_SECONDS)
            store.require_space()
            if how == "trim":
                await publish(ledger, [b"after"])
                assert await payloads(ledger) == [PAYLOAD] * 4 + [b"after"]
        assert store.failure is None
    assert [name for name in files.names(LEDGERS) if name == f"{first.id:020d}.ledger"] == []


class Filling(MemoryStore):
    """A metadata store whose disk may be full."""

    is_full = False

    async def commit(self, ops: Sequence[Op]) -> Committed:
        if self.is_full:
            raise StoreFull("the disk is full")
        return await super().commit(ops)


async def test_rolls_that_find_no_metadata_space_leave_no_files(autojump_clock: MockClock) -> None:
    """E13, E16: the topic continues in its ledger; attempts have pauses, with any appends, and clean up."""
    files, metadata = SimulatedFiles(seed=2), Filling()
    async with ledger_store(files) as store:
        ids = LedgerIds(metadata)
        ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_bytes_max=100), ids=ids)
        before = files.names(LEDGERS)
        async with rolling(ledger):
            metadata.is_full = True
            await publish(ledger, [b"a" * 200] * 30)
            assert await ids.take(above=0) - int(before[-1][:20]) < 5
            assert files.names(LEDGERS) == before
            metadata.is_full = False
            await trio.sleep(2 * SPACE_RETRY_SECONDS)
            await publish(ledger, [b"b"])
            assert len(ledger.closed) == 1


async def test_a_topic_without_a_ledger_names_what_keeps_it_from_having_one(autojump_clock: MockClock) -> None:
    """E13: after a full disk, the file may be refused for another reason, which whoever looks for space must see."""
    files, metadata = SimulatedFiles(seed=6), MemoryStore()
    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store:
        ledger = await open_managed(store, metadata)
        await publish(ledger, [b"a"])
        await ledger.close()
        files.set_capacity(files.used_bytes)
        again = await open_managed(store, metadata)
        with pytest.raises(NoSpace, match=r"the disk is full.*Free space"):
            again.append(b"b")
        files.set_capacity(None)
        files.fail("open", where=lambda path: path.is_relative_to(LEDGERS))
        async with rolling(again):
            await trio.sleep(SPACE_RETRY_SECONDS / 2)
            with pytest.raises(NoSpace, match=r"could not be made.*tries again by itself") as refused:
                again.append(b"b")
            assert "the disk is full" not in str(refused.value)
            await trio.sleep(SPACE_RETRY_SECONDS)
            await publish(again, [b"b"])
            assert await payloads(again) == [b"a", b"b"]


async def test_an_end_that_cannot_be_recorded_is_recorded_later(autojump_clock: MockClock) -> None:
    """E13: the metadata log fills between the two writes of a roll, and the topic continues."""
    files, metadata = SimulatedFiles(seed=3), Filling()
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_bytes_max=100))
        signal = Signal()
        ledger.attach_rolls(signal)

        async def fill() -> None:
            await signal.wait()
            metadata.is_full = True

        async with rolling(ledger), trio.open_nursery() as nursery:
            nursery.start_soon(fill)
            await publish(ledger, [b"a" * 200])
            assert metadata.is_full
            await publish(ledger, [b"b"])
            metadata.is_full = False
            await trio.sleep(2 * SPACE_RETRY_SECONDS)
            assert await payloads(ledger) == [b"a" * 200, b"b"]
            assert [info.closed for info in (await stored(metadata)).ledgers] == [True, False]


async def test_a_ledger_that_waits_for_space_is_deleted(autojump_clock: MockClock) -> None:
    """E13: nothing else can be deleted, and nobody waits for the end of a deleted ledger."""
    files, metadata = SimulatedFiles(seed=4), MemoryStore()
    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store:
        ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_bytes_max=20_000))
        async with rolling(ledger):
            await publish(ledger, [PAYLOAD] * 3)
            files.set_capacity(files.used_bytes + 10)
            await ledger.confirmed.wait_for(ledger.append(PAYLOAD))
            await trio.sleep(5 * SPACE_RETRY_SECONDS)
            assert len(ledger.closed) == 1
            with trio.fail_after(60):
                await ledger.delete()
                await ledger.close()
            await trio.sleep(2 * SPACE_RETRY_SECONDS)
            store.require_space()
        assert store.failure is None
    assert files.names(LEDGERS) == []


async def test_the_next_owner_in_this_process_reads_what_cannot_be_completed(autojump_clock: MockClock) -> None:
    """E13, E14: it serves from memory at once; the ledger's end is recorded when its file is complete, not before."""
    files, metadata = SimulatedFiles(seed=5), MemoryStore()
    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store, trio.open_nursery() as nursery:
        ids = LedgerIds(metadata)
        lost = await open_managed(store, metadata, ids=ids)
        written = await publish(lost, [PAYLOAD] * 3)
        files.set_capacity(files.used_bytes + 1)
        with trio.fail_after(SPACE_RETRY_SECONDS / 2):
            await nursery.start(store.close_all)
            await wait_all_tasks_blocked()
            # Ledger files took that byte. With another one an empty file can be made.
            files.set_capacity(files.used_bytes + 1)
            ledger = await open_managed(store, metadata, ids=ids)
        with pytest.raises(LedgerSealed):
            lost.append(b"of a session that is over")
        async with rolling(ledger):
            assert await payloads(ledger) == [PAYLOAD] * 3
            await trio.sleep(10 * SPACE_RETRY_SECONDS)
            with pytest.raises(NoSpace):
                ledger.require_space()
            assert [(info.closed, info.entries) for info in (await stored(metadata)).ledgers] == [(False, 0)] * 2
            # The power may go at any moment, and its journal has it.
            dead, then = files.crash(keep=0.0), MemoryStore()
            await then.commit([Put(record.key, record.value) for record in await metadata.scan("", "~")])
            files.set_capacity(None)
            await trio.sleep(3 * SPACE_RETRY_SECONDS)
            ledger.require_space()
            known = [(info.closed, info.entries) for info in (await stored(metadata)).ledgers]
            assert known == [(True, 3), (False, 0)]
            written += await publish(ledger, [b"after"])
            assert await payloads(ledger) == [PAYLOAD] * 3 + [b"after"]
            assert written == sorted(set(written))
    async with ledger_store(dead, journal_file_bytes=FILE_BYTES) as store:
        assert await payloads(await open_managed(store, then)) == [PAYLOAD] * 3


async def test_without_space_for_a_ledger_a_topic_is_read_alone(autojump_clock: MockClock) -> None:
    """E13: it accepts messages as soon as an empty file can be made; a new topic has nothing to read."""
    files, metadata = SimulatedFiles(seed=6), MemoryStore()
    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store:
        before = await open_managed(store, metadata)
        written = await publish(before, [b"a", b"b"])
        await before.close()
        files.set_capacity(files.used_bytes)
        with pytest.raises(NoSpace):
            await open_managed(store, metadata, name="another")
        ledger = await open_managed(store, metadata)
        async with rolling(ledger):
            await trio.sleep(10 * SPACE_RETRY_SECONDS)
            assert await payloads(ledger) == [b"a", b"b"]
            assert ledger.confirmed.value == ledger.last_position == written[-1]
            for refused in (ledger.require_space, lambda: ledger.append(b"refused")):
                with pytest.raises(NoSpace):
                    refused()
            with pytest.raises(NoSpace):
                await ledger.wait_room()
            assert [info.closed for info in (await stored(metadata)).ledgers] == [True]
            files.set_capacity(None)
            await trio.sleep(2 * SPACE_RETRY_SECONDS)
            ledger.require_space()
            written += await publish(ledger, [b"c"])
            assert await payloads(ledger) == [b"a", b"b", b"c"]
            assert written == sorted(set(written))


@pytest.mark.parametrize("how", ["seal", "close", "delete"])
async def test_a_topic_without_space_for_a_ledger_is_left(autojump_clock: MockClock, how: str) -> None:
    """E13: a task that gives it up, or removes it, waits for nothing, and no ledger is made afterwards."""
    files, metadata = SimulatedFiles(seed=7), MemoryStore()
    async with ledger_store(files, journal_file_bytes=FILE_BYTES) as store:
        before = await open_managed(store, metadata)
        await publish(before, [b"a"])
        await before.close()
        files.set_capacity(files.used_bytes)
        ledger = await open_managed(store, metadata)
        async with rolling(ledger):
            with trio.fail_after(1):
                await getattr(ledger, how)()
            files.set_capacity(None)
            await trio.sleep(2 * SPACE_RETRY_SECONDS)
            with pytest.raises(LedgerSealed):
                await ledger.wait_room()
            assert store.statistics().open_ledgers == 0


async def test_what_was_aborted_stays_hidden_without_space_for_a_ledger(autojump_clock: MockClock) -> None:
    """E13, T17: the last ledger is a closed one then, with an index that names them."""
    files = SimulatedFiles(seed=8)
    async with segment_host(MemoryStore(), files) as broker:
        first = await broker.own()
        txn = await broker.begin()
        await first.publish(b"kept")
        await first.publish(b"aborted", txn)
        await broker.abort(txn)
        await first.leave()
        # Its ledger takes no more entries, so what is remembered of it moves to its index.
        second = await broker.own()
        await trio.sleep(1)
        assert await broker.abort_keys() == []
        await second.leave()
        files.set_capacity(files.used_bytes)
        third = await broker.own()
        with pytest.raises(NoSpace):
            await third.publish(b"refused")
        assert await third.visible() == [b"kept"]
        files.set_capacity(None)
        await trio.sleep(2 * SPACE_RETRY_SECONDS)
        await third.publish(b"later")
        assert await third.visible() == [b"kept", b"later"]
