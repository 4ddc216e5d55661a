"""The list of a managed ledger's ledgers: its owner trims some, and deletes all."""

import pytest

from storage.aborted_index import AbortedSpan
from storage.entry import TxnId
from storage.errors import Fenced, LedgerFailed, LedgerSealed
from storage.ledger_chain import ManagedLedgerConfig
from storage.ledger_record import ManagedLedgerRecord
from storage.managed_ledger_record import record_key
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Check
from storage.position import EARLIEST, LATEST
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS, ledger_store
from tests.support.managed_ledgers import NAME, open_managed, payloads, publish, rolling


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
    """E18: a crash between the trim's record and the removal leaves no file without a record."""
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


async def test_no_index_of_aborted_transactions_is_written_behind_a_deletion(
    files: SimulatedFiles, metadata: MemoryStore
) -> None:
    """E16, E18: its owner settles transactions while the topic is deleted, and no record would name the file."""
    async with ledger_store(files) as store:
        ledger = await open_managed(store, metadata, config=ManagedLedgerConfig(ledger_bytes_max=10))
        async with rolling(ledger):
            places = await publish(ledger, [b"a" * 20, b"b" * 20])
        await ledger.delete()
        await ledger.store_aborted({places[0].ledger: [AbortedSpan(TxnId(0, 1), 0, 0)]})
        assert not [name for name in files.names(LEDGERS) if int(name.split(".")[0]) == places[0].ledger]


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


async def test_a_trim_that_is_refused_trims_nothing(files: SimulatedFiles, metadata: MemoryStore) -> None:
    """D4, E18: ledgers that the record still lists can be read."""
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
