"""Reading and searching across the ledgers of a managed ledger, one of which is damaged."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import strategies as st

from storage.directory_ledger_store import DirectoryLedgerStore
from storage.entry import BATCH_HEADER_SIZE, BatchHeader, Entry, decode_batch_header, encode_batch, encode_entry
from storage.errors import EntriesUnreadable
from storage.ledger_chain import ManagedLedgerConfig
from storage.ledger_list import LedgerList
from storage.ledger_reading import LedgerReading
from storage.ledger_record import LedgerInfo
from storage.managed_ledger import ManagedLedger
from storage.managed_ledger_opening import open_managed_ledger
from storage.metadata.memory import MemoryStore
from storage.position import Position
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS, add, add_all, ledger_store
from tests.support.rooms import now_ms
from tests.support.schedules import every_schedule

ENTRIES = 12


@asynccontextmanager
async def running(files: SimulatedFiles, metadata: MemoryStore) -> AsyncIterator[ManagedLedger]:
    """Run a managed ledger of small ledgers, none of it in memory."""
    async with ledger_store(files, tail_bytes_max=0) as store, trio.open_nursery() as nursery:
        ledger = await open_managed_ledger(
            "segment://public/default/orders/0000-ffff-0",
            metadata=metadata,
            ledgers=store,
            claim=None,
            config=ManagedLedgerConfig(ledger_bytes_max=200),
            now_ms=now_ms,
        )
        await nursery.start(ledger.run)
        yield ledger
        nursery.cancel_scope.cancel()


async def test_a_search_that_meets_damage_names_the_entries_that_it_hides() -> None:
    """E10: the target is one of them or behind them, so the caller can continue after the damage."""
    files, metadata = SimulatedFiles(seed=1), MemoryStore()
    async with running(files, metadata) as ledger:
        places: list[Position] = []
        for number in range(ENTRIES):
            places.append(ledger.append(b"%02d" % number * 40))
            await ledger.confirmed.wait_for(places[-1])
        await ledger.seal()
    async with running(files, metadata):
        pass  # The journal is in the ledgers now.
    damaged = places[0].ledger
    files.flip(LEDGERS / f"{damaged:020d}.ledger", 8 * 60)
    async with running(files, metadata) as ledger:
        for search in (ledger.position_of_index, ledger.position_at_time):
            with pytest.raises(EntriesUnreadable, match="is damaged at byte") as raised:
                await search(0)
            assert raised.value.first == places[0]
            assert raised.value.last.ledger == damaged
            behind = ledger.next_after(raised.value.last)
            assert behind == places[1], "each is in a batch of its own"
            for place in places[1:]:
                assert await ledger.position_of_index(places.index(place)) == place


async def test_a_time_behind_damage_is_found() -> None:
    """E10: an entry after the damage is earlier, so no damaged one can be the first."""
    files = SimulatedFiles(seed=2)
    async with ledger_store(files, tail_bytes_max=0) as store:
        ledger = await store.create(1)
        await add_all(ledger, [b"%d" % number for number in range(6)])
        await store.seal(ledger)
    await forget_journal(files)
    path = LEDGERS / f"{1:020d}.ledger"
    files.flip(path, 8 * (batches_of(files.content(path))[2][0] + 60))
    listed = LedgerList([LedgerInfo(1, 0, 6, 6, 0, 1_005, closed=True)])
    async with ledger_store(files.kill(), tail_bytes_max=0) as store:
        reading = LedgerReading(store)
        assert await reading.position_at_time(listed, 1_001) == Position(1, 1)
        for hidden in (1_002, 1_003):
            with pytest.raises(EntriesUnreadable) as raised:
                await reading.position_at_time(listed, hidden)
            assert (raised.value.first, raised.value.last) == (Position(1, 2), Position(1, 2))
        assert await reading.position_at_time(listed, 1_004) == Position(1, 4)


async def filled(files: SimulatedFiles, rng: random.Random, *, entries: int, payload_bytes: int) -> list[bytes]:
    """Make a ledger with an index, in batches of one or several entries. Return the payloads."""
    metadata = MemoryStore()
    written = [rng.randbytes(rng.randrange(1, payload_bytes)) for _ in range(entries)]
    async with ledger_store(files, tail_bytes_max=0) as store:
        ledger = await open_whole(store, metadata)
        for payload in written:
            position = ledger.append(payload)
            if rng.random() < 0.6:
                await ledger.confirmed.wait_for(position)
        await ledger.seal()
    await forget_journal(files)
    return written


async def forget_journal(files: SimulatedFiles) -> None:
    """Start once more, which moves the journal into the ledgers and begins another."""
    async with ledger_store(files.kill()):
        pass


async def open_whole(store: DirectoryLedgerStore, metadata: MemoryStore) -> ManagedLedger:
    return await open_managed_ledger(
        "segment://public/default/orders/0000-ffff-0",
        metadata=metadata,
        ledgers=store,
        claim=None,
        config=ManagedLedgerConfig(),
        now_ms=now_ms,
    )


def batches_of(content: bytes) -> list[tuple[int, BatchHeader]]:
    """Return where the batches of a ledger file are."""
    found, offset = [], 0
    while offset < len(content):
        found.append((offset, decode_batch_header(content, offset)))
        offset += found[-1][1].size
    return found


async def read_around(reading: LedgerReading, info: LedgerInfo, start: int = 0) -> tuple[dict[int, bytes], list[int]]:
    """Read a ledger from an entry on. Return what can be read, and which entries the error names."""
    listed = LedgerList([info])
    read: dict[int, bytes] = {}
    lacking: list[int] = []
    at = start
    while at < info.entries:
        try:
            entries = await reading.read(listed, Position(info.id, at), Position(info.id, info.entries - 1), 7, 1 << 20)
        except EntriesUnreadable as damage:
            lacking += range(damage.first.entry, damage.last.entry + 1)
            at = damage.last.entry + 1
        else:
            read |= {entry.position.entry: entry.payload for entry in entries}
            at = entries[-1].position.entry + 1
    return read, lacking


@every_schedule(examples_max=60, seed=st.integers(0, 1_000_000))
async def test_flipped_bits_hide_the_batches_that_they_are_in_and_nothing_else(seed: int) -> None:
    """E10: the batches before and after them are read, even in the same chunk of the index."""
    rng = random.Random(seed)
    files = SimulatedFiles(seed=seed)
    written = await filled(files, rng, entries=rng.choice((5, 60, 400)), payload_bytes=rng.choice((20, 1_000)))
    (name,) = (name for name in files.names(LEDGERS) if name.endswith(".ledger"))
    content = files.content(LEDGERS / name)
    batches = batches_of(content)
    hit: set[int] = set()
    is_header_hit = False
    for _ in range(rng.choice((1, 1, 2))):
        bit = rng.randrange(8 * len(content))
        offset, header = max(batch for batch in batches if batch[0] <= bit // 8)
        if is_header_hit or (hit and bit // 8 < offset + BATCH_HEADER_SIZE):
            continue  # What is between two damaged headers may be lost: nothing says where the batches begin.
        is_header_hit = bit // 8 < offset + BATCH_HEADER_SIZE
        hit |= set(range(header.first_entry, header.last_entry + 1))
        files.flip(LEDGERS / name, bit)
    survivor = files.kill()
    async with ledger_store(survivor, tail_bytes_max=0) as store:
        info = LedgerInfo(int(name.split(".")[0]), 0, len(written), len(written), len(content), closed=True)
        everything = range(len(written))
        read, lacking = await read_around(LedgerReading(store), info)
        assert set(lacking) == hit
        assert read == {number: written[number] for number in everything if number not in hit}
        # Read from anywhere, and again out of the cache, it is the same.
        for _ in range(3):
            start = rng.choice(everything)
            read, lacking = await read_around(LedgerReading(store), info, start)
            assert sorted(lacking) == [number for number in sorted(hit) if number >= start]
            assert read == {number: written[number] for number in everything if number not in hit and number >= start}


def made_up(entry: int) -> bytes:
    """Make a payload that is a whole batch of the ledger, as a client may send it."""
    encoded = encode_entry(Entry(Position(1, entry), b"made up", entry, 1, 1_000))
    return b"".join(encode_batch(1, entry, [encoded], confirmed_before=0, previous_crc=7)[1])


async def test_what_looks_like_a_batch_in_a_payload_is_not_taken_for_one() -> None:
    """E10: the surrounding batch has a damaged header, and what follows does not continue the inner one."""
    files = SimulatedFiles(seed=3)
    async with ledger_store(files, tail_bytes_max=0) as store:
        ledger = await store.create(1)
        await add_all(ledger, [b"a"])
        for payload in (b"b", made_up(3), b"c"):
            add(ledger, payload)
        await add_all(ledger, [made_up(4)])
        add(ledger, b"d")
        await add_all(ledger, [made_up(6)])
        await store.seal(ledger)
    await forget_journal(files)
    path = LEDGERS / f"{1:020d}.ledger"
    batches = batches_of(files.content(path))
    assert [header.last_entry for _offset, header in batches] == [0, 4, 6]
    for offset, header in batches[1:]:
        survivor = files.kill()
        survivor.flip(path, 8 * (offset + 5))
        async with ledger_store(survivor, tail_bytes_max=0) as store:
            read, lacking = await read_around(LedgerReading(store), LedgerInfo(1, 0, 7, 7, 0, closed=True))
            assert lacking == list(range(header.first_entry, header.last_entry + 1))
            assert b"made up" not in read.values()
        survivor.flip(path, 8 * (offset + 5))


@pytest.mark.parametrize("place", [5, 60], ids=["header", "body"])
@pytest.mark.parametrize(("batch", "expected"), [(1, [1]), (2, [2]), (3, [3]), (4, [])])
async def test_of_a_damaged_open_ledger_what_is_in_memory_is_read(place: int, batch: int, expected: list[int]) -> None:
    """E10: the file is damaged in its last, incomplete chunk; the tail in memory is not."""
    files = SimulatedFiles(seed=4)
    async with ledger_store(files) as store:
        ledger = await store.create(1)
        await add_all(ledger, [b"0", b"1", b"2"])
        add(ledger, b"3")
        await add_all(ledger, [b"4", b"5"])
        await store._write_behind.flush(ledger.log)
        ledger.log.forget(3)
        await add_all(ledger, [b"6", b"7"])
        path = LEDGERS / f"{1:020d}.ledger"
        offset, _header = batches_of(files.content(path))[batch]
        assert ledger.log.written_entry == 5
        files.flip(path, 8 * (offset + place))
        reading = LedgerReading(store)
        reading.put_open(ledger)
        read, lacking = await read_around(reading, LedgerInfo(1, 0, 8, 8, 0, closed=True))
        assert lacking == expected
        assert sorted(read) == [number for number in range(8) if number not in expected]
