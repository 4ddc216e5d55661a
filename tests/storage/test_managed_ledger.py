from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from errno import EIO
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage import ledger_chain
from storage.aborted_index import AbortedSpan
from storage.directory_ledger_store import DirectoryLedgerStore
from storage.entry import TxnId
from storage.errors import SPACE_RETRY_SECONDS, Fenced, LedgerFailed, LedgerNotMade, LedgerSealed
from storage.ledger_chain import ManagedLedgerConfig
from storage.ledger_ids import IDS_PER_BLOCK, LEDGER_IDS_KEY, LedgerIds
from storage.ledger_list import ManagedLedgerRecord
from storage.ledger_reading import SEALED_KEPT_MAX
from storage.managed_ledger import ManagedLedger
from storage.managed_ledger_opening import open_managed_ledger
from storage.managed_ledger_record import record_key
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Check, Committed, MetadataStore, Op, Put, StoreFull, StoreUnavailable
from storage.position import EARLIEST, LATEST, Position
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS, ledger_store
from tests.support.steered_store import SteeredStore

NAME = "segment://public/default/orders/0000-ffff-0"


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


async def open_managed(
    store: DirectoryLedgerStore,
    metadata: MetadataStore,
    *,
    name: str = NAME,
    claim: Check | None = None,
    config: ManagedLedgerConfig | None = None,
    now_ms: Callable[[], int] = lambda: 1_000,
    ids: LedgerIds | None = None,
) -> ManagedLedger:
    return await open_managed_ledger(
        name,
        metadata=metadata,
        ledgers=store,
        claim=claim,
        config=config or ManagedLedgerConfig(),
        now_ms=now_ms,
        ids=ids,
    )


@asynccontextmanager
async def rolling(ledger: ManagedLedger) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(ledger.run)
        yield
        nursery.cancel_scope.cancel()


async def publish(ledger: ManagedLedger, payloads: list[bytes], *, message_count: int = 1) -> list[Position]:
    positions = []
    for payload in payloads:
        position = ledger.append(payload, message_count=message_count)
        await ledger.confirmed.wait_for(position)
        await wait_all_tasks_blocked()
        positions.append(position)
    return positions


async def payloads(ledger: ManagedLedger, *, entries_max: int = 3, bytes_max: int = 1_000_000) -> list[bytes]:
    """Everything, by small reads; checks that positions and indexes rise without gaps."""
    found: list[bytes] = []
    at = EARLIEST
    index: int | None = None
    while entries := await ledger.read(at, upto=LATEST, entries_max=entries_max, bytes_max=bytes_max):
        assert len(entries) <= entries_max
        for entry in entries:
            assert entry.position >= at
            assert index in (None, entry.first_index)
            index = entry.first_index + entry.message_count
            at = ledger.next_after(entry.position)
        found.extend(entry.payload for entry in entries)
    return found


async def stored(metadata: MetadataStore) -> ManagedLedgerRecord:
    record = await metadata.get(record_key(NAME))
    assert record is not None
    return ManagedLedgerRecord.decode(record.value)


@pytest.fixture
def metadata() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(seed=5)


async def test_what_was_appended_is_read_back(files: SimulatedFiles, metadata: MemoryStore) -> None:
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata)
        assert (ledger.last_position, ledger.confirmed.value, ledger.next_index) == (EARLIEST, EARLIEST, 0)
        expected = ledger.next_position
        assert ledger.next_after(EARLIEST) == expected
        position = ledger.append(b"payload", message_count=3, txn=TxnId(1, 2))
        assert position == expected
        assert ledger.last_position == position
        assert await ledger.read(EARLIEST, upto=LATEST, entries_max=9, bytes_max=9) == []
        await ledger.confirmed.wait_for(position)
        (entry,) = await ledger.read(EARLIEST, upto=LATEST, entries_max=9, bytes_max=1)
        assert (entry.position, entry.payload, entry.first_index, entry.message_count) == (position, b"payload", 0, 3)
        assert (entry.timestamp_ms, entry.txn) == (1_000, TxnId(1, 2))
        assert ledger.next_index == 3


async def test_reading_is_bounded_by_entries_bytes_and_the_last_position(
    files: SimulatedFiles, metadata: MemoryStore
) -> None:
    async with ledger_store(files, tail_bytes_max=0) as store:
        ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_bytes_max=150))
        async with rolling(ledger):
            places = await publish(ledger, [b"%d" % number * 50 for number in range(9)])
        assert ledger.statistics().ledgers > 2

        async def count(start: Position, upto: Position, entries_max: int, bytes_max: int) -> int:
            return len(await ledger.read(start, upto=upto, entries_max=entries_max, bytes_max=bytes_max))

        assert await count(EARLIEST, LATEST, 100, 10_000) == 9
        assert await count(EARLIEST, LATEST, 4, 10_000) == 4
        assert await count(EARLIEST, LATEST, 100, 120) == 2
        assert await count(EARLIEST, LATEST, 100, 1) == 1
        assert await count(places[2], places[5], 100, 10_000) == 4
        assert await count(places[5], places[2], 100, 10_000) == 0
        assert await count(ledger.next_position, LATEST, 100, 10_000) == 0


async def test_a_new_owner_goes_on_where_the_last_one_ended(files: SimulatedFiles, metadata: MemoryStore) -> None:
    async with ledger_store(files) as store:
        first = await open_managed(store, metadata)
        before = await publish(first, [b"a", b"b"], message_count=5)
        creation_id = first.creation_id
    async with ledger_store(files.crash(keep=0.0)) as store:
        second = await open_managed(store, metadata)
        assert second.creation_id == creation_id
        assert second.confirmed.value == before[-1]
        assert second.next_index == 10
        after = await publish(second, [b"c"])
        assert after[0] > before[-1]
        assert second.next_after(before[-1]) == after[0]
        assert second.previous(after[0]) == before[-1]
        assert second.entries_between(EARLIEST, LATEST) == 3
        assert await payloads(second) == [b"a", b"b", b"c"]


async def test_restarts_leave_no_empty_ledgers_and_no_id_is_used_again(
    files: SimulatedFiles, metadata: MemoryStore
) -> None:
    ids: list[int] = []
    async with ledger_store(files) as store:
        await publish(await open_managed(store, metadata), [b"a"])
    for _ in range(5):
        async with ledger_store(files) as store:
            ledger = await open_managed(store, metadata)
            ids.append(ledger.next_position.ledger)
            assert await payloads(ledger) == [b"a"]
    assert ids == sorted(set(ids))
    assert len((await stored(metadata)).ledgers) == 2
    assert len([name for name in files.names(LEDGERS) if name.endswith(".ledger")]) == 2


async def test_ledgers_roll_under_load_without_a_gap(files: SimulatedFiles, metadata: MemoryStore) -> None:
    async with ledger_store(files, tail_bytes_max=500) as store:
        ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_bytes_max=1_000))
        done: list[tuple[Position, bytes]] = []

        async def appender(name: int) -> None:
            for number in range(40):
                await ledger.wait_room()
                payload = b"%d-%d" % (name, number) + b"." * 30
                position = ledger.append(payload)
                await ledger.confirmed.wait_for(position)
                done.append((position, payload))

        async with rolling(ledger):
            async with trio.open_nursery() as nursery:
                for name in range(8):
                    nursery.start_soon(appender, name)
            await wait_all_tasks_blocked()
        assert ledger.statistics().ledgers > 5
        expected = [payload for _position, payload in sorted(done)]
        assert await payloads(ledger, entries_max=50) == expected
        assert ledger.entries_between(EARLIEST, LATEST) == ledger.next_index == 320
    record = await stored(metadata)
    assert [info.closed for info in record.ledgers] == [True] * (len(record.ledgers) - 1) + [False]
    async with ledger_store(files.crash(keep=0.0)) as store:
        assert await payloads(await open_managed(store, metadata), entries_max=50) == expected


async def test_an_old_ledger_is_followed_at_the_next_append(
    mock_clock: MockClock, files: SimulatedFiles, metadata: MemoryStore
) -> None:
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_age_max_ms=50))
        async with rolling(ledger):
            (first,) = await publish(ledger, [b"a"])
            mock_clock.jump(0.05)
            (second,) = await publish(ledger, [b"b"])
            (third,) = await publish(ledger, [b"c"])
        assert first.ledger == second.ledger < third.ledger


@pytest.mark.parametrize("step_ms", [1_000, 3_600_000, 86_400_000, -1_000, -3_600_000, -86_400_000])
async def test_a_step_of_the_wall_clock_rolls_no_ledger(
    mock_clock: MockClock, files: SimulatedFiles, metadata: MemoryStore, step_ms: int
) -> None:
    """E15: a clock that steps rolls no ledgers, nor does a restart behind entries that were stamped ahead of it.

    A clock that had been ahead made a ledger for every entry.
    """
    clock = Clock()
    clock.now_ms = 1_000_000_000_000
    config = ManagedLedgerConfig(ledger_age_max_ms=500)
    async with ledger_store(files) as store:
        for _opening in range(2):
            ledger = await open_managed(store, metadata, config=config, now_ms=clock)
            async with rolling(ledger):
                positions = await publish(ledger, [b"a"])
                clock.now_ms += step_ms
                positions += await publish(ledger, [b"b", b"c", b"d"])
            assert len({position.ledger for position in positions}) == 1
            entries = await ledger.read(EARLIEST, upto=LATEST, entries_max=99, bytes_max=9_999)
            stamps = [entry.timestamp_ms for entry in entries]
            assert stamps == sorted(stamps)


async def test_a_roll_that_finds_the_metadata_log_full_is_put_off(
    autojump_clock: MockClock, files: SimulatedFiles
) -> None:
    """E13: the topic goes on in the ledger it has, and rolls when there is space."""

    class Filling(MemoryStore):
        is_full = False

        async def commit(self, ops: Sequence[Op]) -> Committed:
            if self.is_full:
                raise StoreFull("the disk is full")
            return await super().commit(ops)

    metadata = Filling()
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_bytes_max=10))
        async with rolling(ledger):
            metadata.is_full = True
            before = await publish(ledger, [b"a" * 20, b"b" * 20])
            metadata.is_full = False
            await trio.sleep(2 * SPACE_RETRY_SECONDS)
            after = await publish(ledger, [b"c" * 20, b"d"])
        assert before[0].ledger == before[1].ledger < after[0].ledger < after[1].ledger
        assert await payloads(ledger) == [b"a" * 20, b"b" * 20, b"c" * 20, b"d"]


async def test_a_crash_between_the_steps_of_a_roll_leaves_two_ledgers_to_recover(
    files: SimulatedFiles, metadata: MemoryStore
) -> None:
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_bytes_max=10))
        # The old ledger's file cannot be made complete, so its end never gets on record.
        files.fail("sync", where=lambda path: path.suffix == ".ledger")
        with pytest.raises(ExceptionGroup) as raised:
            async with rolling(ledger):
                await publish(ledger, [b"a" * 20, b"b" * 20, b"c"])
        assert raised.group_contains(LedgerFailed)
    assert [info.closed for info in (await stored(metadata)).ledgers] == [False, False]
    async with ledger_store(files.crash()) as store:
        again = await open_managed(store, metadata)
        assert await payloads(again) == [b"a" * 20, b"b" * 20, b"c"][: again.next_index]
        assert again.next_index >= 1


async def test_sealing_waits_for_what_was_taken_and_lasts(files: SimulatedFiles, metadata: MemoryStore) -> None:
    """T20: nothing is appended to a sealed ledger, and nothing that was taken is lost."""
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata)
        await publish(ledger, [b"a"])
        files.stop()
        position = ledger.append(b"in flight")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ledger.seal)
            nursery.start_soon(ledger.seal)
            await wait_all_tasks_blocked()
            assert not (await stored(metadata)).sealed
            with pytest.raises(LedgerSealed):
                ledger.append(b"refused")
            files.resume()
        assert ledger.is_sealed
        assert ledger.confirmed.value == position
        assert await ledger.seal() == position
        with pytest.raises(LedgerSealed):
            await ledger.wait_room()
        assert ledger.next_position > position
    survivor = files.crash(keep=0.0)
    async with ledger_store(survivor) as store:
        again = await open_managed(store, metadata)
        assert again.is_sealed
        assert await again.seal() == again.confirmed.value == position
        with pytest.raises(LedgerSealed):
            again.append(b"refused")
        assert await payloads(again) == [b"a", b"in flight"]


async def test_an_empty_ledger_can_be_sealed(files: SimulatedFiles, metadata: MemoryStore) -> None:
    async with ledger_store(files) as store:
        assert await (await open_managed(store, metadata)).seal() == EARLIEST
        again = await open_managed(store, metadata)
        assert again.is_sealed
        assert (again.last_position, again.confirmed.value) == (EARLIEST, EARLIEST)
        assert await payloads(again) == []


async def test_a_seal_that_was_cancelled_can_be_repeated(files: SimulatedFiles, metadata: MemoryStore) -> None:
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata)
        (position,) = await publish(ledger, [b"a"])
        checkpoints = 0
        while not ledger.is_sealed:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ledger.seal)
                    for _ in range(checkpoints):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
            checkpoints += 1
            assert checkpoints < 200
        assert checkpoints > 3
        assert await ledger.seal() == position
        again = await open_managed(store, metadata)
        assert again.is_sealed
        assert await payloads(again) == [b"a"]


async def test_a_change_whose_answer_was_lost_is_repeated_and_meets_itself(
    files: SimulatedFiles, metadata: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata)
        (position,) = await publish(ledger, [b"a"])
        commit = metadata.commit

        async def applied_but_not_answered(ops: Sequence[Op]) -> Committed:
            await commit(ops)
            raise StoreUnavailable("the answer is lost")

        monkeypatch.setattr(metadata, "commit", applied_but_not_answered)
        with pytest.raises(StoreUnavailable):
            await ledger.seal()
        monkeypatch.undo()
        assert await ledger.seal() == position
        assert ledger.is_sealed


async def test_sealing_meets_a_roll(files: SimulatedFiles, metadata: MemoryStore) -> None:
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_bytes_max=10))
        async with rolling(ledger):
            files.stop()
            last = EARLIEST
            for number in range(5):
                last = ledger.append(b"%d" % number * 20)
                await wait_all_tasks_blocked()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ledger.seal)
                await wait_all_tasks_blocked()
                files.resume()
        assert await ledger.seal() == last
        assert len(await payloads(ledger)) == 5
    assert all(info.closed and info.entries for info in (await stored(metadata)).ledgers)


async def test_trimming_is_on_record_before_anything_is_removed(files: SimulatedFiles, metadata: MemoryStore) -> None:
    async with ledger_store(files, tail_bytes_max=0) as store:
        ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_bytes_max=100))
        async with rolling(ledger):
            places = await publish(ledger, [b"%d" % number * 60 for number in range(8)])
        first_kept = next(place for place in places if place.ledger > places[3].ledger)
        await ledger.trim(places[3])
        assert await payloads(ledger) == [b"%d" % number * 60 for number in range(places.index(first_kept), 8)]
        assert ledger.next_after(EARLIEST) == first_kept
        gone = {place.ledger for place in places if place < first_kept}
        assert gone
        assert not [name for name in files.names(LEDGERS) if int(name.split(".")[0]) in gone]
        await ledger.trim(LATEST)
        assert ledger.last_position == ledger.confirmed.value == places[-1]
        assert ledger.next_index == 8
    async with ledger_store(files.crash(keep=0.0)) as store:
        again = await open_managed(store, metadata)
        assert (again.last_position, again.confirmed.value, again.next_index) == (places[-1], places[-1], 8)
        assert again.next_position > places[-1]


async def test_a_removal_that_was_cut_off_is_finished_by_the_next_owner(
    files: SimulatedFiles, metadata: MemoryStore
) -> None:
    """E18: a crash between the trim's record and the removal of its files leaves no file that nobody refers to."""
    config = ManagedLedgerConfig(ledger_bytes_max=100)
    for operations in range(1, 200):
        disk, store_of_records = SimulatedFiles(seed=operations), MemoryStore()
        is_cut = False
        async with ledger_store(disk, tail_bytes_max=0) as store:
            ledger = await open_managed(store, store_of_records, config=config)
            async with rolling(ledger):
                places = await publish(ledger, [b"x" * 60] * 6)
            disk.lose_power_after(operations)
            try:
                await ledger.trim(places[-1])
            except (OSError, LedgerFailed):
                is_cut = True
        survivor = disk.crash()
        async with ledger_store(survivor) as store:
            again = await open_managed(store, store_of_records, config=config)
            record = await store_of_records.get(record_key(NAME))
            assert record is not None
            known = ManagedLedgerRecord.decode(record.value)
            assert known.removing == ()
            there = {int(name.split(".")[0]) for name in survivor.names(LEDGERS)}
            assert there <= {info.id for info in known.ledgers}
            assert again.next_index == 6
        if not is_cut:
            assert operations > 3
            return
    pytest.fail("the trim never ended")


async def test_a_list_that_is_full_makes_the_last_ledger_grow(
    files: SimulatedFiles, metadata: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E18: the record does not outgrow the store; entries go on in the ledger that is open."""
    monkeypatch.setattr(ledger_chain, "LEDGERS_MAX", 3)
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_bytes_max=1))
        async with rolling(ledger):
            places = await publish(ledger, [b"x"] * 8)
        assert len({place.ledger for place in places}) == 4
        assert await payloads(ledger) == [b"x"] * 8


async def test_d8_what_is_confirmed_does_not_go_back_over_restarts(
    files: SimulatedFiles, metadata: MemoryStore
) -> None:
    """D8: also when all entries were trimmed or the last ledger was empty."""
    highest = EARLIEST
    for number in range(4):
        async with ledger_store(files) as store:
            ledger = await open_managed(store, metadata)
            assert ledger.confirmed.value >= highest
            if number % 2:
                highest = (await publish(ledger, [b"x"]))[0]
                await ledger.trim(LATEST)


async def test_indexes_and_times_are_found(files: SimulatedFiles, metadata: MemoryStore) -> None:
    clock = Clock()
    async with ledger_store(files, tail_bytes_max=0) as store:
        ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_bytes_max=200), now_ms=clock)
        places = []
        async with rolling(ledger):
            for number in range(12):
                clock.now_ms = 2_000 + number // 2 * 10
                places += await publish(ledger, [b"%d" % number * 40], message_count=3)
        for index in range(36):
            assert await ledger.position_of_index(index) == places[index // 3]
        assert await ledger.position_of_index(36) == ledger.next_position
        for number in range(12):
            assert await ledger.position_at_time(2_000 + number // 2 * 10) == places[number // 2 * 2]
            assert await ledger.position_at_time(1_995 + number // 2 * 10) == places[number // 2 * 2]
        assert await ledger.position_at_time(9_999) == ledger.next_position
        assert await ledger.position_of_age(10) == await ledger.position_at_time(clock.now_ms - 10)
        assert await ledger.position_of_age(10**15) == places[0]
        await ledger.seal()
        assert await ledger.position_at_time(9_999) == ledger.next_position
        assert await ledger.position_of_index(5) == places[1]


async def test_times_never_go_back_when_the_clock_does(files: SimulatedFiles, metadata: MemoryStore) -> None:
    clock = Clock()
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata, now_ms=clock)
        clock.now_ms = 5_000
        await publish(ledger, [b"a"])
    clock.now_ms = 100
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata, now_ms=clock)
        await publish(ledger, [b"b"])
        entries = await ledger.read(EARLIEST, upto=LATEST, entries_max=9, bytes_max=99)
        assert [entry.timestamp_ms for entry in entries] == [5_000, 5_000]


async def test_d4_an_owner_whose_claim_is_gone_changes_nothing(files: SimulatedFiles, metadata: MemoryStore) -> None:
    """D4: it neither opens, rolls, seals, trims nor deletes."""
    version = await metadata.put("/owners/it", b"me")
    claim = Check("/owners/it", version)
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata, claim=claim, config=ManagedLedgerConfig(ledger_bytes_max=10))
        await publish(ledger, [b"a" * 20])
        before = await stored(metadata)
        await metadata.put("/owners/it", b"another")
        with pytest.raises(ExceptionGroup) as raised:
            async with rolling(ledger):
                await publish(ledger, [b"b" * 20])
        assert raised.group_contains(Fenced)
        assert store.statistics().open_ledgers == 1, "the one that was to follow is closed"
        for change in (ledger.delete, ledger.seal):
            with pytest.raises(Fenced):
                await change()
        with pytest.raises(Fenced):
            await open_managed(store, metadata, claim=claim)
        assert await stored(metadata) == before
        assert store.statistics().open_ledgers == 0


async def test_d2_the_last_owner_is_fenced_by_the_record_too(files: SimulatedFiles, metadata: MemoryStore) -> None:
    """D2: a record changed by a new owner refuses the old one's roll and seal, without any claim."""
    async with ledger_store(files) as store:
        old = await open_managed(store, metadata)
        await publish(old, [b"a"])
        new = await open_managed(store, metadata)
        with pytest.raises(LedgerSealed):
            old.append(b"late")
        (position,) = await publish(new, [b"b"])
        with pytest.raises(Fenced):
            await old.seal()
        assert await payloads(new) == [b"a", b"b"]
        assert position > old.last_position


async def test_two_who_open_at_once_do_not_share_a_ledger(files: SimulatedFiles, metadata: MemoryStore) -> None:
    async with ledger_store(files) as store:
        opened: list[ManagedLedger] = []

        async def open_one() -> None:
            opened.append(await open_managed(store, metadata))

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(open_one)
        places = {ledger.next_position.ledger for ledger in opened}
        assert len(places) == 4


async def test_the_next_owner_in_this_process_waits_for_what_was_taken(
    files: SimulatedFiles, metadata: MemoryStore
) -> None:
    """E14: it knows all that will be confirmed, since nothing may come to light behind what it has recovered."""
    async with ledger_store(files) as store:
        before = await open_managed(store, metadata)
        taken = [before.append(payload) for payload in (b"a", b"b", b"c")]
        ledger = await open_managed(store, metadata)
        assert ledger.confirmed.value == ledger.last_position == taken[-1]
        assert await payloads(ledger) == [b"a", b"b", b"c"]


async def test_deleting_removes_record_and_files_and_a_new_one_is_another(
    files: SimulatedFiles, metadata: MemoryStore
) -> None:
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_bytes_max=10))
        async with rolling(ledger):
            await publish(ledger, [b"a" * 20, b"b" * 20])
        await ledger.delete()
        with pytest.raises(LedgerSealed):
            ledger.append(b"refused")
        assert await metadata.get(record_key(NAME)) is None
        assert files.names(LEDGERS) == []
        another = await open_managed(store, metadata)
        assert another.creation_id != ledger.creation_id
        assert await payloads(another) == []
        assert files.names(LEDGERS) == [f"{another.next_position.ledger:020d}.ledger"]
    async with ledger_store(files.crash(keep=0.0)) as store:
        assert await store.missing([1, 2, 3]) == [1, 2, 3]


async def test_ids_are_reserved_in_blocks_and_rise_over_all_owners(metadata: MemoryStore) -> None:
    here, there = LedgerIds(metadata), LedgerIds(metadata)
    taken = [await here.take(above=-1) for _ in range(5)]
    other = await there.take(above=taken[-1])
    assert taken == [1, 2, 3, 4, 5]
    assert other == IDS_PER_BLOCK + 1
    # A ledger that follows one of the other's must not use what is left of this block.
    assert await here.take(above=other) == 2 * IDS_PER_BLOCK + 1
    record = await metadata.get(LEDGER_IDS_KEY)
    assert record is not None
    assert record.value == b"%d" % (3 * IDS_PER_BLOCK + 1)


async def test_positions_rise_when_the_owner_changes_back_and_forth(
    files: SimulatedFiles, metadata: MemoryStore
) -> None:
    """Two brokers hold blocks of ids; a new owner's next ledger still has a greater id than the last one's."""
    async with ledger_store(files) as store:
        blocks = [LedgerIds(metadata), LedgerIds(metadata)]
        places: list[Position] = []
        for turn in range(6):
            ledger = await open_managed(store, metadata, ids=blocks[turn % 2])
            if turn % 3:
                places += await publish(ledger, [b"x"])
            places.append(ledger.next_position)
        assert places == sorted(set(places))


async def test_ids_taken_at_once_differ(metadata: MemoryStore) -> None:
    taken: list[int] = []

    async def take(ids: LedgerIds) -> None:
        taken.extend([await ids.take(above=-1) for _ in range(3)])

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(take, LedgerIds(metadata))
    assert len(set(taken)) == len(taken) == 30


async def test_ledgers_that_are_made_at_once_share_their_sync(files: SimulatedFiles, metadata: MemoryStore) -> None:
    """E2: each has a file before its record; one that cannot be made fails alone."""
    async with ledger_store(files) as store:
        ids = LedgerIds(metadata)
        done: list[str] = []
        files.before = lambda operation, path: done.append(operation) if LEDGERS in (path, path.parent) else None
        failed: list[LedgerNotMade] = []

        async def open_one(number: int) -> None:
            try:
                await open_managed(store, metadata, name=f"topic-{number}", ids=ids)
            except LedgerNotMade as error:
                failed.append(error)

        files.fail("sync_dir", where=lambda path: path == LEDGERS)
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(open_one, number)
        assert done.count("sync_dir") < 50
        assert len(failed) == 1
        assert len(await metadata.scan("/managed-ledgers/", "/managed-ledgers0")) == 199


async def test_ledgers_that_shared_a_failed_sync_are_synced_again(files: SimulatedFiles) -> None:
    """E2: the sync failed for all, and was told to one; the others try it themselves."""
    syncs = 0

    def fail_the_first(operation: str, path: Path) -> None:
        nonlocal syncs
        if operation == "sync_dir" and path == LEDGERS:
            syncs += 1
            if syncs == 1:
                raise OSError(EIO, "simulated fault")

    made: list[int] = []
    async with ledger_store(files) as store:
        files.before = fail_the_first

        async def make(number: int) -> None:
            with suppress(LedgerNotMade):
                await store.create(number)
                made.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(1, 6):
                nursery.start_soon(make, number)
        dead = files.crash(keep=0.0)
    assert len(made) == 4
    async with ledger_store(dead) as again:
        assert await again.missing(made) == []


async def test_a_trim_that_is_refused_trims_nothing(files: SimulatedFiles, metadata: MemoryStore) -> None:
    """D4, E18: what the record still lists is still read."""
    version = await metadata.put("/owners/it", b"me")
    async with ledger_store(files) as store:
        claim, config = Check("/owners/it", version), ManagedLedgerConfig(ledger_bytes_max=1)
        ledger = await open_managed(store, metadata, claim=claim, config=config)
        async with rolling(ledger):
            positions = await publish(ledger, [b"a", b"b", b"c"])
            await metadata.put("/owners/it", b"another")
            with pytest.raises(Fenced):
                await ledger.trim(positions[1])
            assert await payloads(ledger) == [b"a", b"b", b"c"]


async def test_c7_closing_records_the_end_and_the_next_owner_goes_on(
    files: SimulatedFiles, metadata: MemoryStore
) -> None:
    """C7, E16: an owner that gives up leaves nothing to recover and keeps no ledger open."""
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata)
        (first,) = await publish(ledger, [b"a"])
        await ledger.close()
        await ledger.close()
        with pytest.raises(LedgerSealed):
            ledger.append(b"late")
        assert store.statistics().open_ledgers == 0
        record = await metadata.get(record_key(NAME))
        assert record is not None
        assert [info.closed for info in ManagedLedgerRecord.decode(record.value).ledgers] == [True]
        following = await open_managed(store, metadata)
        (second,) = await publish(following, [b"b"])
        assert second > first
        found = await following.read(EARLIEST, upto=LATEST, entries_max=10, bytes_max=1_000)
        assert [entry.payload for entry in found] == [b"a", b"b"]


async def test_indexes_of_ledgers_read_long_ago_leave_memory(files: SimulatedFiles, metadata: MemoryStore) -> None:
    """E16: reading all of a long history keeps the indexes of a few ledgers, and reading again finds everything."""
    async with ledger_store(files) as store:
        config = ManagedLedgerConfig(ledger_bytes_max=1)
        ledger = await open_managed(store, metadata, config=config)
        async with rolling(ledger):
            positions = await publish(ledger, [bytes([number]) for number in range(3 * SEALED_KEPT_MAX)])
        for _ in range(2):
            for position in positions:
                (entry,) = await ledger.read(position, upto=position, entries_max=1, bytes_max=100)
                assert entry.position == position
            assert len(ledger._reading._sealed) <= SEALED_KEPT_MAX
        assert await ledger.position_of_index(1) == positions[1]


async def test_the_index_of_a_ledger_that_is_read_often_stays(files: SimulatedFiles, metadata: MemoryStore) -> None:
    """E16: the one read longest ago goes, not the one that was opened first."""
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_bytes_max=1))
        async with rolling(ledger):
            first, *others = await publish(ledger, [bytes([number]) for number in range(2 * SEALED_KEPT_MAX)])
        await ledger.read(first, upto=first, entries_max=1, bytes_max=100)
        reader = ledger._reading._sealed[first.ledger]
        for other in others:
            for position in (other, first):
                (entry,) = await ledger.read(position, upto=position, entries_max=1, bytes_max=100)
                assert entry.position == position
        assert ledger._reading._sealed[first.ledger] is reader


async def test_a_ledger_that_cannot_be_followed_goes_on(
    autojump_clock: MockClock, files: SimulatedFiles, metadata: MemoryStore
) -> None:
    """E13: reads and appends go on in the one there is; a later append makes the next one."""
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_bytes_max=1))
        async with rolling(ledger):
            files.fail("sync_dir", where=lambda path: path == LEDGERS)
            await publish(ledger, [b"a", b"b"])
            await trio.sleep(2 * SPACE_RETRY_SECONDS)
            await publish(ledger, [b"c"])
            assert await payloads(ledger) == [b"a", b"b", b"c"]
            assert len((await stored(metadata)).ledgers) == 3


async def test_an_aborted_index_is_recorded_while_a_ledgers_end_becomes_known(files: SimulatedFiles) -> None:
    """T16: neither of the two is lost, in memory or on record."""
    metadata = SteeredStore()
    gates = [trio.Event() for _ in range(3)]
    reached: list[int] = []

    async def hold(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put) and op.key == record_key(NAME) for op in ops) and len(reached) < len(gates):
            reached.append(len(reached))
            await gates[reached[-1]].wait()

    async with ledger_store(files) as store, trio.open_nursery() as nursery:
        ledger = await open_managed(store, metadata)
        async with rolling(ledger):
            await publish(ledger, [b"a"])
            ledger.request_roll()
            await wait_all_tasks_blocked()
            (first,) = ledger.closed
            await publish(ledger, [b"b"])
            metadata.before = hold
            # A roll holds the lock. The index and a trim wait behind it, and the end of the ledger comes meanwhile.
            ledger.request_roll()
            await wait_all_tasks_blocked()
            nursery.start_soon(ledger.store_aborted, {first.id: [AbortedSpan(TxnId(1, 2), 0, 0)]})
            await wait_all_tasks_blocked()
            nursery.start_soon(ledger.trim, LATEST)
            await wait_all_tasks_blocked()
            gates[0].set()
            await wait_all_tasks_blocked()
            assert reached == [0, 1]
            assert [info.closed for info in ledger.closed] == [True, True]
            gates[1].set()
            await wait_all_tasks_blocked()
            assert [(info.closed, info.aborted) for info in ledger.closed] == [(True, 1), (True, 0)]
            gates[2].set()
            await wait_all_tasks_blocked()
        record = await stored(metadata)
        assert [info.closed for info in record.ledgers] == [False]
        assert record.ledgers[:-1] == tuple(ledger.closed)
