"""What the owner of a managed ledger does with it: append, read, roll, seal."""

from collections.abc import Sequence
from contextlib import suppress
from errno import EIO
from pathlib import Path

import orjson
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage import ledger_chain
from storage.aborted_index import AbortedSpan
from storage.entry import TxnId
from storage.errors import SPACE_RETRY_SECONDS, LedgerNotMade, LedgerSealed
from storage.ledger_chain import ManagedLedgerConfig
from storage.ledger_ids import LedgerIds
from storage.ledger_reading import SEALED_KEPT_MAX
from storage.managed_ledger_record import record_key
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Committed, Op, Put, StoreFull, StoreUnavailable
from storage.position import EARLIEST, LATEST, Position
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS, ledger_store
from tests.support.managed_ledgers import NAME, Clock, open_managed, payloads, publish, rolling, stored
from tests.support.steered_store import SteeredStore


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
    """E15: steps of the clock, and restarts behind entries with later timestamps, roll no ledger.

    A clock that had been ahead used to make a ledger for every entry.
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
    """E13: the topic continues in its ledger, and rolls when there is space."""

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


async def test_sealing_waits_for_what_was_taken_and_lasts(files: SimulatedFiles, metadata: MemoryStore) -> None:
    """T20: nothing is appended to a sealed ledger, and no accepted entry is lost."""
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


async def test_a_list_that_is_full_makes_the_last_ledger_grow(
    files: SimulatedFiles, metadata: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E18: the record does not exceed the store's limit; entries continue in the open ledger."""
    monkeypatch.setattr(ledger_chain, "LEDGERS_MAX", 3)
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_bytes_max=1))
        async with rolling(ledger):
            places = await publish(ledger, [b"x"] * 8)
        assert len({place.ledger for place in places}) == 4
        assert await payloads(ledger) == [b"x"] * 8


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
    """E2: the sync failed for all of them, and one was told; the others repeat it."""
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


async def test_indexes_of_ledgers_read_long_ago_leave_memory(files: SimulatedFiles, metadata: MemoryStore) -> None:
    """E16: reading a long history keeps the indexes of a few ledgers, and another read finds everything."""
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
    """E16: the least recently read index is evicted, not the first loaded one."""
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
    """E13: reads and appends continue in the existing ledger; a later append makes the next one."""
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


async def test_the_confirmed_index_counts_durable_messages_only(files: SimulatedFiles, metadata: MemoryStore) -> None:
    """K19: the high watermark."""
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata)
        async with rolling(ledger):
            ledger.append(b"a", message_count=3)
            last = ledger.append(b"b", message_count=4)
            assert (ledger.confirmed_index, ledger.next_index) == (0, 7)
            await ledger.confirmed.wait_for(last)
            assert ledger.confirmed_index == 7
            ledger.append(b"c", message_count=2)
            assert (ledger.confirmed_index, ledger.next_index) == (7, 9)
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata)
        assert ledger.confirmed_index == ledger.next_index


async def test_what_the_confirmed_index_remembers_is_bounded_by_the_journal(
    files: SimulatedFiles, metadata: MemoryStore
) -> None:
    """E8: also if nobody asks for it."""
    async with ledger_store(files) as store:
        chain = (ledger := await open_managed(store, metadata))._chain
        async with rolling(ledger):
            for _round in range(5):
                await publish(ledger, [b"a"] * 20)
                assert len(chain._unconfirmed) <= 1


async def test_the_leader_epoch_rises_with_each_owner_and_ends_where_the_next_one_began(
    files: SimulatedFiles, metadata: MemoryStore
) -> None:
    """K44: also over owners that wrote nothing, and for ledgers that were replaced for their size."""
    ends = {}
    for epoch, count in enumerate((4, 0, 6)):
        async with ledger_store(files) as store:
            ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_bytes_max=100))
            assert ledger.leader_epoch == epoch
            async with rolling(ledger):
                places = await publish(ledger, [b"a" * 40] * count, message_count=2)
                assert {ledger.epoch_of(place.ledger) for place in places} <= {epoch}
                ends[epoch] = ledger.next_index
                assert ledger.epoch_end(epoch) == (epoch, ledger.next_index)
        files = files.crash(keep=0.0)
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata)
        assert [ledger.epoch_end(epoch) for epoch in range(3)] == [(0, ends[0]), (0, ends[1]), (2, ends[2])]
        assert ledger.epoch_end(3) == ledger.epoch_end(9) == (3, 20)
        in_epoch_2 = next(info.id for info in ledger.closed if info.epoch == 2)
        async with rolling(ledger):
            await ledger.trim(Position(in_epoch_2, 0).before())
        assert ledger.closed[0].id == in_epoch_2
        assert ledger.epoch_end(0) == (0, ends[0])
        assert ledger.epoch_end(2) == (2, ends[2])


async def test_the_record_of_an_earlier_release_has_the_first_epoch(
    files: SimulatedFiles, metadata: MemoryStore
) -> None:
    """C22, K44: its ledgers count as those of epoch 0, and nothing is lost."""
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata)
        async with rolling(ledger):
            await publish(ledger, [b"a"])
            await ledger.close()
    record = await metadata.get(record_key(NAME))
    assert record is not None
    fields = orjson.loads(record.value)
    del fields["leader_epoch"]
    fields["ledgers"] = [row[:-1] for row in fields["ledgers"]]
    await metadata.commit([Put(record.key, orjson.dumps(fields), record.version)])
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata)
        assert (ledger.leader_epoch, ledger.closed[0].epoch) == (0, 0)
        assert ledger.epoch_end(0) == (0, 1)
