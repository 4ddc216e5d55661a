"""Who may write and read a ledger after its writer died, lost it or released it, on every store."""

from contextlib import suppress

import pytest
from trio.testing import wait_all_tasks_blocked

from storage.aborted_index import AbortedSpan
from storage.entry import TxnId
from storage.errors import Fenced, JournalMissing, LedgerFailed, LedgerOutOfReach
from storage.ledger_chain import ManagedLedgerConfig
from storage.ledger_store import LedgerStore
from storage.managed_ledger import ManagedLedger
from storage.managed_ledger_opening import open_managed_ledger
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, Check
from storage.position import EARLIEST, LATEST
from storage.watermark import Watermark
from tests.storage.ledger_conformance.conftest import Place
from tests.storage.ledger_conformance.test_ledgers import payloads
from tests.support.ledgers import add, add_all


async def test_what_was_confirmed_is_recovered_after_a_kill(place: Place) -> None:
    async with place.broker() as store:
        writer = store.writer
        await add_all(await store.create(1), [b"a", b"b"])
        await store.create(2)
    async with place.broker() as store:
        assert store.writer.epoch > writer.epoch
        await store.fence(writer, 1)
        recovered = await store.recover(1)
        assert (recovered.last_entry, await payloads(recovered)) == (1, [b"a", b"b"])
        assert (await store.recover(2)).last_entry == -1


async def test_a_fenced_writer_gets_nothing_more_confirmed(place: Place) -> None:
    """The new owner finds everything that was confirmed."""
    async with place.broker("one") as one, place.broker("two") as two:
        confirmed = Watermark(EARLIEST)
        ledger = await one.create(1, confirmed=confirmed)
        await add_all(ledger, [b"a"])
        await two.fence(one.writer, 1)
        with pytest.raises(LedgerFailed):
            await confirmed.wait_for(add(ledger, b"b"))
        found = await two.recover(1)
        assert await payloads(found) == [b"a"]
        await two.fence(one.writer, 1)
        assert await payloads(await two.recover(1)) == [b"a"]


async def test_a_ledger_that_its_writer_sealed_is_read_by_others(place: Place) -> None:
    async with place.broker("one") as one, place.broker("two") as two:
        ledger = await one.create(1)
        await add_all(ledger, [b"a", b"b"])
        sealed = await one.seal(ledger)
        assert await payloads(await two.open_sealed(1, sealed.last_entry)) == [b"a", b"b"]


async def test_no_start_of_its_writer_brings_a_ledger_back_that_another_broker_deleted(place: Place) -> None:
    """C10: the deleter notes the removal in its own journal, and the writer's journal still has the entries."""
    async with place.broker("one") as one, place.broker("two") as two:
        await add_all(await one.create(2), [b"kept"])
        ledger = await one.create(1)
        await add_all(ledger, [b"a", b"b"])
        await one.seal(ledger)
        await two.delete(1)
        writer = one.writer
    async with place.broker("one") as one:
        assert await one.missing([1, 2]) == [1]
        assert await payloads(await one.recover(2)) == [b"kept"]
    async with place.broker("two") as two:
        await two.fence(writer, 2)
        assert await two.missing([1, 2]) == [1]


async def test_a_fenced_writer_brings_no_ledger_back_that_its_fencer_deleted(place: Place) -> None:
    """C10: it still has entries that it confirmed and did not write to the ledger's file."""
    async with place.broker("one") as one, place.broker("two") as two:
        ledger = await one.create(1)
        await add_all(ledger, [b"a", b"b"])
        await two.fence(one.writer, 1)
        await two.delete(1)
        with suppress(LedgerFailed):
            await one.seal(ledger)
        assert await two.missing([1]) == [1]


async def test_what_this_process_left_open_takes_no_more_and_is_recovered(place: Place) -> None:
    async with place.broker() as store:
        await add_all(await store.create(1), [b"a"])
        left = await store.left_open(1)
        assert left is not None
        assert await payloads(left) == [b"a"]
        await store.fence(store.writer, 1)
        assert await payloads(await store.recover(1)) == [b"a"]
        assert await store.left_open(1) is None
        assert await store.left_open(2) is None


async def test_a_writer_of_another_store_is_out_of_reach(place: Place) -> None:
    """It is neither empty nor lost, and nothing is fenced."""
    async with place.broker() as store:
        elsewhere = store.writer._replace(folder="another")
        store.require_within_reach(store.writer)
        with pytest.raises(LedgerOutOfReach):
            store.require_within_reach(elsewhere)
        with pytest.raises(LedgerOutOfReach):
            await store.fence(elsewhere, 1)
        await add_all(await store.create(1), [b"a"])


@pytest.mark.parametrize("broker_id", ["broker-1", "broker-2"])
async def test_a_life_of_a_broker_that_never_was_is_missing(place: Place, broker_id: str) -> None:
    """What it confirmed may exist elsewhere, so its ledgers are never read as empty."""
    async with place.broker() as store:
        later = store.writer._replace(broker=broker_id, epoch=store.writer.epoch + 1)
        with pytest.raises(JournalMissing):
            await store.fence(later, 1)


async def test_a_store_that_has_ended_takes_nothing(place: Place) -> None:
    async with place.broker() as store:
        ledger = await store.create(1)
    with pytest.raises(LedgerFailed):
        add(ledger, b"a")


async def test_a_stale_owners_late_index_of_aborts_is_not_read(place: Place) -> None:
    """C9, T19: the record names the index of the owner that counts, and the other one is another file."""
    metadata = MemoryStore()
    both = [AbortedSpan(TxnId(0, 1), 0, 0), AbortedSpan(TxnId(0, 2), 0, 0)]

    async def owned(store: LedgerStore, before: int) -> tuple[ManagedLedger, int]:
        version = await metadata.put("/owners/topic", b"", expected=before)
        config = ManagedLedgerConfig()
        claim = Check("/owners/topic", version)
        opened = await open_managed_ledger(
            "topic", metadata=metadata, ledgers=store, claim=claim, config=config, now_ms=lambda: 1_000
        )
        return opened, version

    async with place.broker("one") as one, place.broker("two") as two:
        first, version = await owned(one, ABSENT)
        await first.confirmed.wait_for(first.append(b"a"))
        await first.close()
        (info,) = first.closed
        second, _version = await owned(two, version)
        await second.store_aborted({info.id: both})
        with pytest.raises(Fenced):
            await first.store_aborted({info.id: both[:1]})
        assert set(await second.load_aborted(info.id)) == set(both)


async def contents(topic: ManagedLedger) -> list[bytes]:
    entries = await topic.read(EARLIEST, upto=LATEST, entries_max=1_000, bytes_max=1 << 20)
    return [entry.payload for entry in entries]


async def test_a_managed_ledger_goes_from_owner_to_owner(place: Place) -> None:
    """Each owner may end in another way: killed, fenced while it runs, closed."""
    metadata = MemoryStore()

    async def opened(store: LedgerStore) -> ManagedLedger:
        config = ManagedLedgerConfig()
        return await open_managed_ledger(
            "topic", metadata=metadata, ledgers=store, claim=None, config=config, now_ms=lambda: 1_000
        )

    async def publish(topic: ManagedLedger, payload: bytes) -> None:
        await topic.confirmed.wait_for(topic.append(payload))

    async with place.broker("one") as one:
        await publish(await opened(one), b"1")
    async with place.broker("one") as one, place.broker("two") as two:
        first = await opened(one)
        await publish(first, b"2")
        second = await opened(two)
        with pytest.raises(LedgerFailed):
            await publish(first, b"lost")
        await publish(second, b"3")
        await second.close()
        await wait_all_tasks_blocked()
        last = await second.position_of_index(2)
        async with place.broker("three") as three:
            third = await opened(three)
            await publish(third, b"4")
            assert await contents(third) == [b"1", b"2", b"3", b"4"]
            assert await third.position_of_index(2) == last
            assert third.entries_between(EARLIEST, third.last_position) == 4
