"""Open and sealed ledgers, on every store: append, confirm, read, seal and remove."""

import pytest

from storage.aborted_index import AbortedSpan
from storage.entry import Entry, EntryFormat, TxnId
from storage.errors import LedgerAbsent, LedgerCorrupt, LedgerSealed
from storage.hidden_entries import NOTHING_HIDDEN, Hidden, HiddenEntries
from storage.ledger_store import LedgerReader
from storage.position import EARLIEST, Position
from storage.watermark import Watermark
from tests.storage.ledger_conformance.conftest import Place
from tests.support.ledgers import add, add_all

ALL = 1 << 30


async def payloads(ledger: LedgerReader) -> list[bytes]:
    entries = await ledger.read(0, ledger.confirmed_entry, entries_max=1_000, bytes_max=ALL)
    return [entry.payload for entry in entries]


async def test_confirmed_entries_are_read_back_whole(place: Place) -> None:
    async with place.broker() as store:
        ledger = await store.create(7)
        assert (ledger.id, ledger.next_entry, ledger.confirmed_entry) == (7, 0, -1)
        txn = TxnId(3, 4)
        at = ledger.append(b"a", first_index=5, message_count=2, timestamp_ms=1_000, txn=txn)
        await ledger.confirmed.wait_for(at)
        assert at == Position(7, 0)
        assert await ledger.read(0, 0, entries_max=1, bytes_max=1) == [Entry(at, b"a", 5, 2, 1_000, txn)]
        assert ledger.size_bytes > 0
        marker = ledger.append(
            b"", first_index=7, message_count=1, timestamp_ms=1_000, entry_format=EntryFormat.KAFKA, is_control=True
        )
        await ledger.confirmed.wait_for(marker)
        stored = Entry(marker, b"", 7, 1, 1_000, None, EntryFormat.KAFKA, is_control=True)
        assert await ledger.read(1, 1, entries_max=1, bytes_max=1) == [stored]


async def test_reading_is_bounded_and_gives_at_least_one_entry(place: Place) -> None:
    async with place.broker() as store:
        ledger = await store.create(1)
        await add_all(ledger, [b"x" * 100 for _ in range(10)])
        for reader in (ledger, await store.seal(ledger)):
            assert len(await reader.read(2, 9, entries_max=3, bytes_max=ALL)) == 3
            assert len(await reader.read(2, 9, entries_max=9, bytes_max=250)) == 2
            (only,) = await reader.read(4, 9, entries_max=9, bytes_max=1)
            assert only.position == Position(1, 4)
            assert [entry.position.entry for entry in await reader.read(8, 50, entries_max=9, bytes_max=ALL)] == [8, 9]


async def test_nothing_is_read_before_it_is_confirmed(place: Place) -> None:
    async with place.broker() as store:
        ledger = await store.create(1)
        at = add(ledger, b"a")
        shown = ledger.confirmed_entry
        assert len(await ledger.read(0, 0, entries_max=1, bytes_max=1)) == ledger.confirmed_entry + 1 >= shown + 1
        await ledger.confirmed.wait_for(at)
        assert await payloads(ledger) == [b"a"]


async def test_the_index_says_what_is_confirmed(place: Place) -> None:
    async with place.broker() as store:
        ledger = await store.create(1)
        assert not (await ledger.index()).slots
        await add_all(ledger, [b"a", b"b"])
        for reader in (ledger, await store.seal(ledger)):
            index = await reader.index()
            assert (index.last_entry, index.next_index, index.last_timestamp_ms) == (1, 2, 1_001)
            assert index.slots[0].entry == 0
            assert 0 < index.offset_behind(0) <= index.end_offset


async def test_ledgers_with_one_watermark_confirm_in_the_order_of_appends(place: Place) -> None:
    async with place.broker() as store:
        confirmed = Watermark(EARLIEST)
        first, second = await store.create(1, confirmed=confirmed), await store.create(2, confirmed=confirmed)
        early = add(first, b"a")
        late = add(second, b"b")
        await confirmed.wait_for(early)
        await confirmed.wait_for(late)
        assert (first.confirmed_entry, second.confirmed_entry) == (0, 0)
        assert confirmed.value == late


async def test_a_closed_ledger_takes_nothing_and_is_sealed_with_all_it_took(place: Place) -> None:
    async with place.broker() as store:
        ledger = await store.create(1)
        add(ledger, b"a")
        ledger.close()
        with pytest.raises(LedgerSealed):
            add(ledger, b"b")
        sealed = await store.seal(ledger)
        assert (sealed.last_entry, sealed.confirmed_entry) == (0, 0)
        assert await payloads(sealed) == [b"a"]
        assert await payloads(await store.open_sealed(1, 0)) == [b"a"]


async def test_what_stands_behind_a_recorded_end_is_not_read(place: Place) -> None:
    async with place.broker() as store:
        ledger = await store.create(1)
        await add_all(ledger, [b"a", b"b"])
        await store.seal(ledger)
        sealed = await store.open_sealed(1, 0)
        assert [entry.payload for entry in await sealed.read(0, 9, entries_max=9, bytes_max=ALL)] == [b"a"]
        assert await sealed.read(1, 9, entries_max=9, bytes_max=ALL) == []


async def test_an_empty_ledger_ends_before_its_first_entry(place: Place) -> None:
    async with place.broker() as store:
        assert (await store.seal(await store.create(1))).last_entry == -1
        await store.remove_empty(1)
        await store.remove_empty(1)
        assert await store.missing([1]) == [1]


async def test_a_deleted_ledger_is_missing_and_no_start_brings_it_back(place: Place) -> None:
    async with place.broker() as store:
        for number in (1, 2):
            await add_all(await store.create(number), [b"a"])
        assert await store.missing([1, 2, 3]) == [3]
        await store.delete(1)
        await store.delete(1)
        assert await store.missing([1, 2]) == [1]
    async with place.broker() as store:
        assert await store.missing([1, 2]) == [1]
        with pytest.raises(LedgerAbsent):
            await store.recover(1)
        with pytest.raises(LedgerAbsent):
            await payloads(await store.open_sealed(1, 0))


async def test_an_abandoned_ledger_takes_nothing_and_is_there(place: Place) -> None:
    async with place.broker() as store:
        ledger = await store.create(1)
        store.abandon(ledger)
        with pytest.raises(LedgerSealed):
            add(ledger, b"a")
        assert await store.left_open(1) is None
        assert await store.missing([1]) == []


async def test_aborted_transactions_are_kept_with_their_ledger(place: Place) -> None:
    """An index that the record names is never read as empty."""
    spans = (AbortedSpan(TxnId(0, 1), 0, 4), AbortedSpan(TxnId(0, 2), 1, 1))
    async with place.broker() as store:
        await add_all(await store.create(1), [b"a"])
        with pytest.raises(LedgerCorrupt):
            await store.load_aborted(1, owner=7, spans_min=1)
        await store.store_aborted(1, spans[:1], owner=7)
        await store.store_aborted(1, spans, owner=7)
        await store.store_aborted(1, spans[:1], owner=6)
        with pytest.raises(LedgerCorrupt):
            await store.load_aborted(1, owner=7, spans_min=3)
    async with place.broker() as store:
        assert set(await store.load_aborted(1, owner=7, spans_min=2)) == set(spans)
        await store.delete(1)
        with pytest.raises(LedgerCorrupt):
            await store.load_aborted(1, owner=7, spans_min=2)


async def test_hidden_entries_are_kept_with_their_ledger(place: Place) -> None:
    """K35: nothing is said of a ledger without a list, and a list of nothing is one."""
    hidden = HiddenEntries()
    async with place.broker() as store:
        await add_all(await store.create(1), [b"a"])
        assert (await store.load_hidden(1), await store.load_hidden_total(1)) == (None, None)
        await store.store_hidden(1, hidden)
        assert await store.load_hidden_total(1) == NOTHING_HIDDEN
        hidden.add(4, 2)
        await store.store_hidden(1, hidden)
    async with place.broker() as store:
        found = await store.load_hidden(1)
        assert found is not None
        assert found.upto(4) == await store.load_hidden_total(1) == Hidden(1, 2)
        await store.delete(1)
        assert (await store.load_hidden(1), await store.load_hidden_total(1)) == (None, None)
