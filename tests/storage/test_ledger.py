import pytest
from trio.testing import wait_all_tasks_blocked

from storage import write_behind
from storage.entry import ENTRY_MEMORY_BYTES
from storage.errors import LedgerCorrupt
from storage.ledger_log import LedgerLog
from storage.position import Position
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS, add, add_all, ledger_store


async def test_nothing_is_read_before_it_is_confirmed() -> None:
    files = SimulatedFiles()
    async with ledger_store(files) as store:
        ledger = await store.create(1)
        await add_all(ledger, [b"a"])
        files.stop()
        add(ledger, b"b")
        assert [entry.payload for entry in await ledger.read(0, 9, entries_max=9, bytes_max=99)] == [b"a"]
        files.resume()
        await ledger.confirmed.wait_for(Position(1, 1))
        assert [entry.payload for entry in await ledger.read(0, 9, entries_max=9, bytes_max=99)] == [b"a", b"b"]


@pytest.mark.parametrize("tail_bytes_max", [0, 30_000, 10_000_000])
@pytest.mark.parametrize("is_sealed", [False, True])
async def test_every_range_is_read_from_memory_and_file_alike(tail_bytes_max: int, is_sealed: bool) -> None:
    async with ledger_store(SimulatedFiles(), tail_bytes_max=tail_bytes_max, journal_file_bytes=16_000) as store:
        ledger = await store.create(1)
        payloads = [b"%d" % number * (number * 37 % 5_000) for number in range(150)]
        for begin in range(0, 150, 7):
            places = [add(ledger, payload) for payload in payloads[begin : begin + 7]]
            await ledger.confirmed.wait_for(places[-1])
        await wait_all_tasks_blocked()
        reader = await store.seal(ledger) if is_sealed else ledger
        if tail_bytes_max == 0:
            assert ledger.log.tail_first > 50
        for first in range(0, 150, 11):
            for last in (first, first + 1, first + 40, 149, 1_000):
                entries = await reader.read(first, last, entries_max=30, bytes_max=20_000)
                expected = payloads[first : last + 1][:30]
                assert [entry.payload for entry in entries] == expected[: len(entries)]
                assert [entry.position.entry for entry in entries] == list(range(first, first + len(entries)))
                assert entries
                if len(entries) > 1:
                    assert sum(len(entry.payload) for entry in entries) <= 20_000
        assert await reader.read(150, 200, entries_max=9, bytes_max=9) == []


async def test_an_entry_larger_than_the_bound_is_read_alone() -> None:
    async with ledger_store(SimulatedFiles(), tail_bytes_max=0, journal_file_bytes=4096) as store:
        ledger = await store.create(1)
        await add_all(ledger, [b"small", b"L" * 700_000, b"small"])
        sealed = await store.seal(ledger)
        for reader in (ledger, sealed):
            (entry,) = await reader.read(1, 2, entries_max=9, bytes_max=10)
            assert entry.payload == b"L" * 700_000
            assert len(await reader.read(0, 2, entries_max=9, bytes_max=10)) == 2 - 1


async def test_sequential_reading_reads_the_file_once() -> None:
    files = SimulatedFiles()
    async with ledger_store(files) as store:
        ledger = await store.create(1)
        for _ in range(400):
            place = add(ledger, b"x" * 1_000)
        await ledger.confirmed.wait_for(place)
        await store.seal(ledger)
        sealed = await store.open_sealed(1, 399)
        await sealed.log()
        bytes_read = 0
        reads = 0

        def count(operation: str, _path: object) -> None:
            nonlocal reads
            reads += operation == "read"

        files.before = count
        at = 0
        while entries := await sealed.read(at, 399, entries_max=10, bytes_max=100_000):
            at += len(entries)
            bytes_read += sum(len(entry.payload) for entry in entries)
        assert bytes_read == 400_000
        assert reads <= 8


async def test_the_tail_in_memory_is_bounded_once_it_is_written() -> None:
    async with ledger_store(SimulatedFiles(), tail_bytes_max=50_000, journal_file_bytes=8_192) as store:
        ledgers = [await store.create(number) for number in range(1, 6)]
        for _ in range(60):
            for ledger in ledgers:
                add(ledger, b"x" * 1_000)
            await ledger.confirmed.wait_for(Position(ledger.id, ledger.next_entry - 1))
        # Sealing waits until everything is written; before that the tail holds what is not, however much it is.
        for ledger in ledgers:
            await store.seal(ledger)
        statistics = store.statistics()
        assert statistics.write_behind.pending_bytes == 0
        assert 40_000 < statistics.write_behind.tail_bytes <= 50_000
        kept = sum(len(ledger.log.tail) for ledger in ledgers) * (1_000 + ENTRY_MEMORY_BYTES)
        assert 0 < kept <= 50_000


async def test_the_tail_of_small_messages_counts_what_they_cost_in_memory() -> None:
    """E16: a message of one byte takes some hundred bytes in memory, and these count."""
    async with ledger_store(SimulatedFiles()) as store:
        ledger = await store.create(1)
        for _ in range(2_000):
            place = add(ledger, b"x")
        await ledger.confirmed.wait_for(place)
        assert store.statistics().write_behind.tail_bytes >= 2_000 * ENTRY_MEMORY_BYTES


async def test_a_deleted_ledger_does_not_hold_the_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """E16: entries that are deleted before they are written let later ones leave the memory."""
    monkeypatch.setattr(write_behind, "WRITE_BEHIND_BYTES", 10_000)
    async with ledger_store(SimulatedFiles(seed=4), tail_bytes_max=50_000) as store:
        gone, kept = await store.create(1), await store.create(2)
        await add_all(gone, [b"small"])
        await store.delete(1)
        await add_all(kept, [b"x" * 5_000] * 100)
        assert store.statistics().write_behind.tail_bytes < 100_000


async def test_a_ledger_is_written_in_batches_of_bounded_size() -> None:
    async with ledger_store(SimulatedFiles()) as store:
        ledger = await store.create(1)
        for _ in range(2_000):
            place = add(ledger, b"x" * 1_000)
        await ledger.confirmed.wait_for(place)
        assert store.statistics().journal.blocks == 1
        assert 7 <= store.statistics().journal.batches <= 9


async def test_damage_found_while_reading_is_told_with_file_and_offset() -> None:
    files = SimulatedFiles()
    async with ledger_store(files) as store:
        ledger = await store.create(1)
        await add_all(ledger, [b"first", b"DAMAGED", b"last"])
        await store.seal(ledger)
        path = LEDGERS / f"{1:020d}.ledger"
        files.flip(path, files.content(path).index(b"DAMAGED") * 8)
        sealed = await store.open_sealed(1, 2)
        assert [entry.payload for entry in await sealed.read(0, 2, entries_max=9, bytes_max=99)] == [b"first"]
        with pytest.raises(LedgerCorrupt) as raised:
            await sealed.read(1, 2, entries_max=9, bytes_max=99)
        assert raised.value.path == path
        assert raised.value.offset == files.content(path).index(b"first") + len(b"first")
        assert isinstance(await sealed.log(), LedgerLog)
        assert raised.value.next_entry == 2
        assert [entry.payload for entry in await sealed.read(2, 2, entries_max=9, bytes_max=99)] == [b"last"]
