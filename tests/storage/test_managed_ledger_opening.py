"""One owner of a managed ledger after another: what each finds, and what the earlier one can still do."""

from collections.abc import Sequence

import pytest
import trio

from storage.errors import Fenced, LedgerFailed, LedgerSealed
from storage.ledger_chain import ManagedLedgerConfig
from storage.ledger_ids import LedgerIds
from storage.ledger_record import ManagedLedgerRecord
from storage.managed_ledger import ManagedLedger
from storage.managed_ledger_record import record_key
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Check, Committed, Conflict, Op, Put
from storage.position import EARLIEST, LATEST, Position
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS, ledger_store
from tests.support.managed_ledgers import NAME, open_managed, payloads, publish, rolling, stored


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


async def test_d8_what_is_confirmed_does_not_go_back_over_restarts(
    files: SimulatedFiles, metadata: MemoryStore
) -> None:
    """D8: this holds even if all entries were trimmed or the last ledger was empty."""
    highest = EARLIEST
    for number in range(4):
        async with ledger_store(files) as store:
            ledger = await open_managed(store, metadata)
            assert ledger.confirmed.value >= highest
            if number % 2:
                highest = (await publish(ledger, [b"x"]))[0]
                await ledger.trim(LATEST)


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
        assert listed(files) == {info.id for info in before.ledgers}


def listed(files: SimulatedFiles) -> set[int]:
    """The ledgers that have a file."""
    return {int(name.split(".")[0]) for name in files.names(LEDGERS)}


async def test_a_ledger_that_is_on_record_though_its_answer_was_lost_keeps_its_file(
    files: SimulatedFiles, metadata: MemoryStore
) -> None:
    """E18: the repeat is refused, because the first try was applied, and the next owner has gone on from there."""

    class Losing(MemoryStore):
        is_losing = False

        async def commit(self, ops: Sequence[Op]) -> Committed:
            if not self.is_losing or not any(isinstance(op, Put) and op.key == record_key(NAME) for op in ops):
                return await super().commit(ops)
            self.is_losing = False
            await super().commit(ops)
            record = await self.get(record_key(NAME))
            assert record is not None
            # The next owner writes, and then the first one's repeat finds that.
            await self.put(record.key, record.value + b" ")
            raise Conflict(record.key, record.version, record.version + 1)

    losing = Losing()
    async with ledger_store(files) as store:
        old = await open_managed(store, losing, config=ManagedLedgerConfig(ledger_bytes_max=10))
        losing.is_losing = True
        with pytest.raises(ExceptionGroup) as raised:
            async with rolling(old):
                await publish(old, [b"a" * 20])
        assert raised.group_contains(Fenced)
        assert listed(files) == {info.id for info in (await stored(losing)).ledgers}
        assert len(listed(files)) == 2


async def test_d2_the_last_owner_is_fenced_by_the_record_too(files: SimulatedFiles, metadata: MemoryStore) -> None:
    """D2: a record that a new owner changed refuses the old one's roll and seal, without any claim."""
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
    """E14: it knows everything that will be confirmed, because nothing may appear behind what it recovered."""
    async with ledger_store(files) as store:
        before = await open_managed(store, metadata)
        taken = [before.append(payload) for payload in (b"a", b"b", b"c")]
        ledger = await open_managed(store, metadata)
        assert ledger.confirmed.value == ledger.last_position == taken[-1]
        assert await payloads(ledger) == [b"a", b"b", b"c"]


async def test_positions_rise_when_the_owner_changes_back_and_forth(
    files: SimulatedFiles, metadata: MemoryStore
) -> None:
    """Two brokers hold blocks of ids; a new owner's next ledger still has a higher id than the last one."""
    async with ledger_store(files) as store:
        blocks = [LedgerIds(metadata), LedgerIds(metadata)]
        places: list[Position] = []
        for turn in range(6):
            ledger = await open_managed(store, metadata, ids=blocks[turn % 2])
            if turn % 3:
                places += await publish(ledger, [b"x"])
            places.append(ledger.next_position)
        assert places == sorted(set(places))


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
