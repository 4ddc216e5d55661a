"""Aborted transactions are remembered as long as their entries exist: first in records, then in indexes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.aborted_index import AbortedSpan
from storage.directory_ledger_store import DirectoryLedgerStore
from storage.entry import Entry, TxnId
from storage.errors import LedgerCorrupt, LedgerNotFound
from storage.ledger_chain import ManagedLedgerConfig
from storage.ledger_folder import LedgerFolder
from storage.managed_ledger import ManagedLedger
from storage.managed_ledger_opening import open_managed_ledger
from storage.metadata.memory import MemoryStore
from storage.metadata.store import starting_with
from storage.position import EARLIEST, LATEST, Position
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS, ledger_store
from tests.support.segments import segment_host
from txn.aborted_transactions import INDEXES_CACHED_MAX, KEY_PREFIX, AbortedTransactions, Span
from txn.headers import v5_id

NAME = "segment://public/default/x/0000-ffff-0"


class Segment:
    """A managed ledger that rolls after one or two entries, and its aborted transactions."""

    def __init__(
        self, ledger: ManagedLedger, metadata: MemoryStore, store: DirectoryLedgerStore, files: SimulatedFiles
    ) -> None:
        self.ledger = ledger
        self.metadata = metadata
        self.store = store
        self.files = files
        self.aborted = AbortedTransactions(ledger)

    async def open_again(self) -> ManagedLedger:
        """Open it as the next owner does."""
        return await open_managed_ledger(
            NAME,
            metadata=self.metadata,
            ledgers=self.store,
            claim=None,
            config=ManagedLedgerConfig(),
            now_ms=lambda: 1_000,
        )

    async def write(self, txn: TxnId | None) -> Position:
        position = self.ledger.append(b"x" * 100, txn=txn)
        await self.ledger.confirmed.wait_for(position)
        await wait_all_tasks_blocked()
        return position

    async def abort(self, txn: TxnId, span: Span) -> None:
        self.aborted.remember(txn, span)
        put = self.aborted.to_put(txn)
        self.aborted.recorded([put], (await self.metadata.commit([put])).revision)

    async def move(self) -> None:
        for ops in await self.aborted.move_to_indexes(self.ledger.confirmed.value):
            await self.metadata.commit(ops)
            self.aborted.forget(ops)

    async def records(self) -> int:
        return len(await self.metadata.scan(*starting_with(KEY_PREFIX)))

    async def visible(self, aborted: AbortedTransactions | None = None) -> list[Position]:
        """Return the visible entries, in small reads as a dispatcher makes them."""
        aborted = aborted or self.aborted
        seen = []
        at = EARLIEST
        while entries := await self.ledger.read(at, upto=LATEST, entries_max=2, bytes_max=1000):
            await aborted.prepare(entries)
            seen += [entry.position for entry in entries if not aborted.hides(entry)]
            at = self.ledger.next_after(entries[-1].position)
        return seen


@asynccontextmanager
async def segment(bytes_max: int = 150) -> AsyncIterator[Segment]:
    files = SimulatedFiles()
    async with ledger_store(files) as store, trio.open_nursery() as nursery:
        metadata = MemoryStore()
        ledger = await open_managed_ledger(
            NAME,
            metadata=metadata,
            ledgers=store,
            claim=None,
            config=ManagedLedgerConfig(ledger_bytes_max=bytes_max),
            now_ms=lambda: 1_000,
        )
        await nursery.start(ledger.run)
        yield Segment(ledger, metadata, store, files)
        nursery.cancel_scope.cancel()


async def test_only_what_was_aborted_is_hidden() -> None:
    """T17, T19: an entry whose transaction has no record here is committed."""
    async with segment() as on:
        aborted, committed = v5_id(0, 1), v5_id(0, 2)
        bad = await on.write(aborted)
        good = await on.write(committed)
        plain = await on.write(None)
        await on.abort(aborted, Span(bad, bad))
        assert await on.visible() == [good, plain]


async def test_records_move_to_the_index_when_their_ledger_is_behind_the_watermark() -> None:
    """T19: neither the store nor memory grows with history, and a new owner hides aborted entries, too."""
    async with segment() as on:
        expected = []
        for number in range(60):
            txn = v5_id(0, number)
            position = await on.write(txn)
            if number % 3:
                expected.append(position)
            else:
                await on.abort(txn, Span(position, position))
                if on.aborted.has_passed(on.ledger.confirmed.value):
                    await on.move()
        assert await on.records() <= 3
        assert len(on.aborted) <= 3
        assert await on.visible() == expected
        successor = AbortedTransactions(on.ledger)
        await successor.load(on.metadata)
        assert await on.visible(successor) == expected


async def test_the_open_ledger_keeps_its_records() -> None:
    """T19: a record moves only when everything in its last ledger is decided and the ledger is complete."""
    async with segment(bytes_max=1_000_000) as on:
        txn = v5_id(0, 1)
        position = await on.write(txn)
        await on.abort(txn, Span(position, position))
        assert not on.aborted.has_passed(on.ledger.confirmed.value)
        assert await on.aborted.move_to_indexes(on.ledger.confirmed.value) == []


async def test_a_sealed_segment_moves_its_last_records_too() -> None:
    """T20, T19: after a split, nothing of the parent stays in the metadata store."""
    async with segment(bytes_max=1_000_000) as on:
        txn = v5_id(0, 1)
        position = await on.write(txn)
        last = await on.write(None)
        await on.abort(txn, Span(position, position))
        await on.ledger.seal()
        assert on.aborted.has_passed(last)
        await on.move()
        assert await on.records() == 0
        assert await on.visible() == [last]


async def test_a_transaction_over_several_ledgers_is_in_each_ones_index() -> None:
    """T19: the entries of one transaction in many ledgers are hidden wherever a reader begins."""
    async with segment() as on:
        txn = v5_id(0, 1)
        positions = [await on.write(txn) for _ in range(6)]
        kept = [await on.write(None) for _ in range(2)]
        assert len({position.ledger for position in positions}) > 2
        await on.abort(txn, Span(positions[0], positions[-1]))
        await on.move()
        assert await on.records() == 0
        assert await on.visible() == kept
        for position in positions:
            spans = await on.ledger.load_aborted(position.ledger)
            assert any(span.txn == txn and span.first <= position.entry <= span.last for span in spans)


async def test_moving_twice_changes_nothing() -> None:
    """T26: a crash between the index and the removal of the records leaves both; the next owner moves them again."""
    async with segment() as on:
        txn = v5_id(0, 1)
        bad = await on.write(txn)
        good = [await on.write(None) for _ in range(3)]
        await on.abort(txn, Span(bad, bad))
        await on.aborted.move_to_indexes(on.ledger.confirmed.value)
        index = await on.ledger.load_aborted(bad.ledger)
        successor = AbortedTransactions(on.ledger)
        await successor.load(on.metadata)
        on.aborted = successor
        await on.move()
        assert await on.ledger.load_aborted(bad.ledger) == index
        assert await on.records() == 0
        assert await on.visible() == good


async def test_an_index_loaded_while_records_move_to_it_hides_nothing_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """T17, T19: a consumer that reads while the records move, for example after a restart, sees nothing aborted."""
    async with segment() as on:
        txn = v5_id(0, 1)
        bad = await on.write(txn)
        good = [await on.write(None) for _ in range(3)]
        await on.abort(txn, Span(bad, bad))
        loaded, moved = trio.Event(), trio.Event()
        load = ManagedLedger.load_aborted

        async def load_slowly(ledger: ManagedLedger, number: int) -> tuple[AbortedSpan, ...]:
            spans = await load(ledger, number)
            if not loaded.is_set():
                loaded.set()
                await moved.wait()
            return spans

        async with trio.open_nursery() as nursery:
            with monkeypatch.context() as slow:
                slow.setattr(ManagedLedger, "load_aborted", load_slowly)
                entries = await on.ledger.read(EARLIEST, upto=LATEST, entries_max=2, bytes_max=1000)
                nursery.start_soon(on.aborted.prepare, entries)
                await loaded.wait()
                await on.move()
                moved.set()
        assert on.aborted.hides(entries[0])
        assert await on.visible() == good


async def test_indexes_of_long_ago_are_loaded_again() -> None:
    """T19: memory holds a bounded number of indexes; older ones are read from the disk again."""
    async with segment(bytes_max=1) as on:
        good = []
        for number in range(INDEXES_CACHED_MAX + 20):
            txn = v5_id(0, number)
            bad = await on.write(txn)
            good.append(await on.write(None))
            await on.abort(txn, Span(bad, bad))
        await on.move()
        assert await on.visible() == good
        assert await on.visible() == good


async def test_an_entry_of_no_transaction_needs_no_index() -> None:
    async with segment() as on:
        aborted = AbortedTransactions(on.ledger)
        entry = Entry(Position(123456, 0), b"", 0, 1, 0)
        await aborted.prepare([entry])
        assert not aborted.hides(entry)


async def aborted_and_moved(on: Segment) -> tuple[TxnId, Position, list[Position]]:
    """Return a transaction that only its ledger's index knows, its position, and the visible entries."""
    txn = v5_id(0, 1)
    bad = await on.write(txn)
    good = [await on.write(None) for _ in range(3)]
    await on.abort(txn, Span(bad, bad))
    await on.move()
    assert await on.records() == 0
    return txn, bad, good


@pytest.mark.parametrize("harm", ["missing", "damaged", "older"])
async def test_a_lost_index_is_damage_and_never_nothing_aborted(harm: str) -> None:
    """E3: the ledger's record says that it has an index, so what the index hid stays hidden when it is gone."""
    async with segment() as on:
        txn, bad, _good = await aborted_and_moved(on)
        path = LEDGERS / f"{bad.ledger:020}.aborted-0"
        if harm == "missing":
            on.files.remove(path)
        elif harm == "damaged":
            on.files.flip(path, 100)
        else:
            LedgerFolder(on.files, LEDGERS).store_aborted(bad.ledger, [], 0)
        aborted = AbortedTransactions(on.ledger)
        entries = await on.ledger.read(bad, upto=bad, entries_max=1, bytes_max=1000)
        assert [entry.txn for entry in entries] == [txn]
        with pytest.raises(LedgerCorrupt, match=str(path)):
            await aborted.prepare(entries)


async def test_a_new_owner_misses_a_lost_index_too() -> None:
    """E3: the statement in the record outlives the process that wrote the index."""
    async with segment() as on:
        _txn, bad, _good = await aborted_and_moved(on)
        on.files.remove(LEDGERS / f"{bad.ledger:020}.aborted-0")
        again = await on.open_again()
        aborted = AbortedTransactions(again)
        await aborted.load(on.metadata)
        with pytest.raises(LedgerCorrupt):
            await aborted.prepare(await again.read(bad, upto=bad, entries_max=1, bytes_max=1000))


async def test_an_index_damaged_before_it_was_on_record_is_written_anew() -> None:
    """E3: a crash between the index and the ledger's record leaves all metadata records, which suffice."""
    async with segment() as on:
        txn = v5_id(0, 1)
        bad = await on.write(txn)
        good = [await on.write(None) for _ in range(3)]
        await on.abort(txn, Span(bad, bad))
        await on.store.store_aborted(bad.ledger, [AbortedSpan(txn, bad.entry, bad.entry)], owner=0)
        on.files.flip(LEDGERS / f"{bad.ledger:020}.aborted-0", 100)
        await on.move()
        assert await on.records() == 0
        assert await on.visible(AbortedTransactions(on.ledger)) == good


async def test_records_of_a_ledger_with_a_damaged_index_stay() -> None:
    """E3: a later abort in that ledger is not moved into a new index, which would hide less than the lost one."""
    async with segment(bytes_max=250) as on:
        first, second = v5_id(0, 1), v5_id(0, 2)
        one, two = await on.write(first), await on.write(second)
        assert one.ledger == two.ledger
        await on.write(None)
        await on.abort(first, Span(one, one))
        await on.move()
        on.files.remove(LEDGERS / f"{one.ledger:020}.aborted-0")
        await on.abort(second, Span(two, two))
        await on.move()
        assert await on.records() == 1
        with pytest.raises(LedgerCorrupt):
            await AbortedTransactions(on.ledger).prepare(
                await on.ledger.read(one, upto=two, entries_max=2, bytes_max=1000),
            )


async def test_an_entry_read_before_its_ledger_was_trimmed_is_not_judged_by_nothing() -> None:
    """E3: the index is removed with its ledger; the holder of an entry gets an error and shows nothing aborted."""
    async with segment() as on:
        _txn, bad, _good = await aborted_and_moved(on)
        entries = await on.ledger.read(bad, upto=bad, entries_max=1, bytes_max=1000)
        await on.ledger.trim(Position(bad.ledger, on.ledger.last_position.entry + 10))
        with pytest.raises(LedgerNotFound):
            await AbortedTransactions(on.ledger).prepare(entries)


async def test_aborts_on_one_ledger_do_not_pile_up_until_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """E16: many aborted transactions make the ledger roll, whatever its size and age."""
    monkeypatch.setattr("txn.aborted_transactions.ABORTED_IN_LEDGER_MAX", 20)
    async with segment_host(MemoryStore(), SimulatedFiles()) as made:
        on = await made.own(NAME)
        await on.publish(b"first")
        for _ in range(200):
            txn = await made.begin()
            await on.publish(b"bad", txn)
            await made.abort(txn)
            await wait_all_tasks_blocked()
        assert len(await made.abort_keys()) <= 2 * 20
        await on.publish(b"last")
        assert await on.visible() == [b"first", b"last"]


async def test_an_index_that_is_written_again_still_names_who_was_there() -> None:
    """T17, T19: a transaction that ends in a later ledger is added to those whose records have already moved."""
    async with segment(bytes_max=250) as on:
        early, late = v5_id(0, 1), v5_id(0, 2)
        first = await on.write(early)
        second = await on.write(late)
        assert first.ledger == second.ledger
        third = await on.write(late)
        assert third.ledger > first.ledger
        kept = [await on.write(None) for _ in range(4)]
        await on.abort(early, Span(first, first))
        await on.move()
        assert await on.records() == 0
        await on.abort(late, Span(second, third))
        await on.move()
        assert await on.records() == 0
        assert await on.visible() == kept
        assert await on.visible(AbortedTransactions(on.ledger)) == kept


async def test_one_read_may_need_more_indexes_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """T19: all are available when the entries are judged, and each is loaded once."""
    async with segment(bytes_max=1) as on:
        txns = [v5_id(0, number) for number in range(2 * INDEXES_CACHED_MAX)]
        for txn in txns:
            position = await on.write(txn)
            await on.abort(txn, Span(position, position))
        kept = [await on.write(None) for _ in range(2)]
        await on.move()
        load, loaded = on.ledger.load_aborted, []

        async def counted(ledger: int) -> tuple[AbortedSpan, ...]:
            loaded.append(ledger)
            assert len(loaded) <= len(txns), "one pushes out another"
            return await load(ledger)

        monkeypatch.setattr(on.ledger, "load_aborted", counted)
        entries = await on.ledger.read(EARLIEST, upto=LATEST, entries_max=100, bytes_max=100_000)
        assert len({entry.position.ledger for entry in entries}) == len(txns) + len(kept)
        successor = AbortedTransactions(on.ledger)
        await successor.prepare(entries)
        assert [entry.position for entry in entries if not successor.hides(entry)] == kept
