"""The range behind a position, compared with a count of every entry."""

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.backlog_ranges import BacklogRange, measure
from storage.entry import Entry
from storage.ledger_chain import ManagedLedgerConfig
from storage.ledger_index import CHUNK_BYTES
from storage.managed_ledger import ManagedLedger
from storage.managed_ledger_opening import open_managed_ledger
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST, Position
from tests.support.disk import SimulatedFiles
from tests.support.examples import examples
from tests.support.ledgers import ledger_store

ENTRY_BYTES = 7_000
CONFIG = ManagedLedgerConfig(ledger_bytes_max=4 * CHUNK_BYTES)


async def _entries(ledger: ManagedLedger) -> list[Entry]:
    found: list[Entry] = []
    while more := await ledger.read(
        ledger.next_after(found[-1].position if found else EARLIEST),
        upto=ledger.confirmed.value,
        entries_max=1000,
        bytes_max=1 << 30,
    ):
        found += more
    return found


async def _check(ledger: ManagedLedger, entries: list[Entry], after: int, messages_max: int, bytes_max: int) -> None:
    place = entries[after].position if after >= 0 else EARLIEST
    rest = entries[after + 1 :]
    whole = await measure(ledger, entries[-1], place)
    if not rest:
        assert whole == BacklogRange(place, place, ledger.next_index, 0, 0, None, None)
        return
    messages = sum(entry.message_count for entry in rest)
    assert whole[:4] == (place, rest[-1].position, rest[0].first_index, messages)
    stored = sum(len(entry.payload) for entry in rest)
    assert abs(whole.size_bytes - stored) <= 2 * CHUNK_BYTES + stored // 50
    few = await measure(ledger, entries[-1], place, messages_max=messages_max)
    taken = [entry for entry in rest if entry.position <= few.end]
    assert few.messages == sum(entry.message_count for entry in taken)
    assert len(taken) == 1 or few.messages <= messages_max
    if len(taken) < len(rest):
        assert few.messages + rest[len(taken)].message_count > messages_max, "no more would have been within"
    small = await measure(ledger, entries[-1], place, bytes_max=bytes_max)
    first_alone = small.end == rest[0].position
    assert first_alone or small.size_bytes <= bytes_max
    assert place < small.end <= rest[-1].position
    assert (whole.first_timestamp_ms, whole.last_timestamp_ms) == (rest[0].timestamp_ms, rest[-1].timestamp_ms)


async def _check_time(ledger: ManagedLedger, entries: list[Entry], after: int, messages_max: int) -> None:
    place = entries[after].position if after >= 0 else EARLIEST
    rest = entries[after + 1 :]
    for until_ms in range(entries[0].timestamp_ms - 1, entries[-1].timestamp_ms + 2):
        young = [entry for entry in rest if entry.timestamp_ms <= until_ms]
        found = await measure(ledger, entries[-1], place, until_ms=until_ms)
        assert found.end == (young[-1].position if young else place)
        assert found.messages == sum(entry.message_count for entry in young)
        assert found.last_timestamp_ms == (young[-1].timestamp_ms if young else None)
        few = await measure(ledger, entries[-1], place, until_ms=until_ms, messages_max=messages_max)
        assert few.end <= found.end
        assert few.messages <= max(messages_max, young[0].message_count if young else 0)


async def _story(counts: list[int], asked: list[tuple[int, int, int]]) -> None:
    now_ms = 1_000
    async with ledger_store(SimulatedFiles(seed=3)) as store:
        ledger = await open_managed_ledger(
            "segment://public/default/x/0000-ffff-0",
            metadata=MemoryStore(),
            ledgers=store,
            claim=None,
            config=CONFIG,
            now_ms=lambda: now_ms,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(ledger.run)
            for count in counts:
                position = ledger.append(b"." * ENTRY_BYTES, message_count=count)
                await ledger.confirmed.wait_for(position)
                # The clock stands still, goes on, and steps back.
                now_ms += (-1, 0, 2)[count % 3]
            entries = await _entries(ledger)
            for after, messages_max, bytes_max in asked:
                await _check(ledger, entries, min(after, len(entries) - 1), messages_max, bytes_max)
            await _check_time(ledger, entries, min(asked[0][0], len(entries) - 1), asked[0][1])
            nursery.cancel_scope.cancel()


@settings(max_examples=examples(15))
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=120),
    st.lists(st.tuples(st.integers(-1, 120), st.integers(1, 200), st.integers(1, 900_000)), min_size=1, max_size=5),
)
def test_a_stretch_is_what_a_count_of_every_entry_says(counts: list[int], asked: list[tuple[int, int, int]]) -> None:
    """Messages are exact, bytes are exact to a chunk, over several ledgers."""
    trio.run(_story, counts, asked)


async def test_nothing_stands_behind_a_place_in_a_topic_without_entries() -> None:
    async with ledger_store(SimulatedFiles(seed=3)) as store:
        ledger = await open_managed_ledger(
            "x", metadata=MemoryStore(), ledgers=store, claim=None, config=CONFIG, now_ms=lambda: 1_000
        )
        assert await measure(ledger, None, EARLIEST) == BacklogRange(EARLIEST, EARLIEST, 0, 0, 0, None, None)


@pytest.mark.parametrize("ledgers_on", [0, 99])
async def test_a_place_behind_everything_has_the_next_index(ledgers_on: int) -> None:
    async with ledger_store(SimulatedFiles(seed=3)) as store:
        ledger = await open_managed_ledger(
            "x", metadata=MemoryStore(), ledgers=store, claim=None, config=CONFIG, now_ms=lambda: 1_000
        )
        position = ledger.append(b"a", message_count=3)
        await ledger.confirmed.wait_for(position)
        (last,) = await _entries(ledger)
        place = Position(position.ledger + ledgers_on, 99)
        assert (await measure(ledger, last, place))[2:4] == (3, 0)


async def test_what_is_not_confirmed_yet_has_no_part_in_it() -> None:
    """The index behind a position is the next readable message's, even if an entry is on its way to the disk."""
    async with ledger_store(SimulatedFiles(seed=3)) as store:
        ledger = await open_managed_ledger(
            "x", metadata=MemoryStore(), ledgers=store, claim=None, config=CONFIG, now_ms=lambda: 1_000
        )
        first = ledger.append(b"a", message_count=3)
        assert (await measure(ledger, None, EARLIEST)).first_index == 0
        await ledger.confirmed.wait_for(first)
        (last,) = await _entries(ledger)
        ledger.append(b"b", message_count=2)
        assert await measure(ledger, last, first) == BacklogRange(first, first, 3, 0, 0, None, None)
        assert (await measure(ledger, last, Position(first.ledger, 9))).first_index == 3
