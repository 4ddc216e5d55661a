"""Finds the entries of a transaction that an earlier owner left open."""

import pytest
from trio.testing import wait_all_tasks_blocked

from storage.entry import Entry, TxnId
from storage.managed_ledger import ManagedLedger
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST, Position
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS
from tests.support.segments import segment_host
from txn import segment_write
from txn.aborted_transactions import Span
from txn.headers import v5_id
from txn.segment_write import find_spans


async def test_a_span_begins_with_the_first_entry_and_ends_with_the_log() -> None:
    """T18, T25: it may cover several ledgers; no entry is below the bound; without an entry there is no span."""
    files, metadata = SimulatedFiles(seed=3), MemoryStore()
    async with segment_host(metadata, files) as first:
        segment = await first.own(ledger_bytes_max=1)
        txn, other = await first.begin(), await first.begin()
        places = []
        for payload, writer in [(b"1", None), (b"2", txn), (b"3", None), (b"4", txn), (b"5", None)]:
            places.append(await segment.publish(payload, writer))
            await wait_all_tasks_blocked()
        wanted: list[tuple[TxnId, Position, tuple[int, Span] | None]] = [
            (txn, EARLIEST, (1, Span(places[1], places[4]))),
            (txn, places[1], (1, Span(places[1], places[4]))),
            (txn, places[2], (3, Span(places[3], places[4]))),
            (txn, places[4], None),
            (other, EARLIEST, None),
            (v5_id(0, 99), EARLIEST, None),
        ]
        for asked, bound, span in wanted:
            assert (await find_spans(segment.ledger, {asked: bound})).get(asked) == span
        together = {txn: places[2], other: EARLIEST}
        assert await find_spans(segment.ledger, together) == {txn: (3, Span(places[3], places[4]))}


async def test_a_takeover_reads_the_log_once_for_all_open_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """T25, E7: a client may leave many that joined and never wrote; the segment is not served until all are sought."""
    files, metadata = SimulatedFiles(seed=3), MemoryStore()
    entries, joined = 40, 25
    async with segment_host(metadata, files) as first:
        segment = await first.own()
        silent = [await first.begin() for _ in range(joined)]
        for txn in silent:
            await segment.buffer.join(txn)
        for _ in range(entries):
            await segment.publish(b"plain")
        late = await first.begin()
        position = await segment.publish(b"late", late)
    read: list[Position] = []
    plain = ManagedLedger.read

    async def counted(
        ledger: ManagedLedger, start: Position, *, upto: Position, entries_max: int, bytes_max: int
    ) -> list[Entry]:
        found = await plain(ledger, start, upto=upto, entries_max=entries_max, bytes_max=bytes_max)
        read.extend(entry.position for entry in found)
        return found

    monkeypatch.setattr(ManagedLedger, "read", counted)
    monkeypatch.setattr(segment_write, "SCAN_ENTRIES_MAX", 7)
    async with segment_host(metadata, files.kill()) as second:
        segment = await second.own()
        assert len(read) == len(set(read)) == entries + 1
        assert segment.buffer.readable.value == position.before()
        await second.commit(late)
        await wait_all_tasks_blocked()
        assert segment.buffer.readable.value == position


@pytest.mark.parametrize("damaged", [0, 1, 2])
async def test_an_entry_that_nobody_can_read_may_be_its_first(damaged: int) -> None:
    """T25, E3: so the readable position stays below, and open entries behind the damage are shown to nobody."""
    files, metadata = SimulatedFiles(seed=3), MemoryStore()
    async with segment_host(metadata, files) as first:
        segment = await first.own(ledger_bytes_max=1)
        silent, txn = await first.begin(), await first.begin()
        for joins in (silent, txn):
            await segment.buffer.join(joins)
        places = []
        for payload, writer in [(b"1", None), (b"2", None), (b"open", txn)]:
            places.append(await segment.publish(payload, writer))
            await wait_all_tasks_blocked()
        await segment.ledger.close()
    async with segment_host(metadata, files := files.kill()):
        pass  # The journal is in the ledgers now.
    files.flip(LEDGERS / f"{places[damaged].ledger:020d}.ledger", 8 * 60)
    async with segment_host(metadata, files) as second:
        segment = await second.own(ledger_bytes_max=1)
        assert segment.buffer.readable.value < places[damaged] <= segment.ledger.confirmed.value
        assert segment.buffer.readable_end == damaged
        await second.commit(silent)
        await wait_all_tasks_blocked()
        assert segment.buffer.readable.value < places[damaged], "the first entry of either may be there"
