"""The transaction buffer after a takeover, over a real managed ledger."""

from typing import Final

import pytest
from trio.testing import wait_all_tasks_blocked

from storage.entry import Entry, TxnId
from storage.metadata.memory import MemoryStore
from storage.metadata.store import IndexEntry, Put
from storage.position import EARLIEST, LATEST
from tests.support.disk import SimulatedFiles
from tests.support.metadata import damage_records
from tests.support.segments import SEGMENT, Segment, SegmentHost, segment_host
from txn.errors import OpRecordDamaged
from txn.headers import header_key
from txn.ops import KEY_PREFIX as OPS
from txn.ops import WRITES_BY_SEGMENT, segment_index_key
from txn.states import EndAction

DAMAGED: Final = (b"", b"{", b"[]", b'{"creation_id": 1}', b'{"segment":"","creation_id":"","ledger":"1","entry":0}')
"""Values that no op record has."""


@pytest.fixture
def metadata() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(seed=3)


async def test_what_an_open_transaction_wrote_stays_hidden_after_a_takeover(
    metadata: MemoryStore, files: SimulatedFiles
) -> None:
    """D1, T25: the next owner serves only entries below the open transaction, and shows its entry after the commit."""
    async with segment_host(metadata, files) as first:
        segment = await first.own()
        txn = await first.begin()
        await segment.publish(b"before")
        position = await segment.publish(b"open", txn)
        await segment.publish(b"after")
    async with segment_host(metadata, files.kill()) as second:
        segment = await second.own()
        assert segment.buffer.readable.value == position.before()
        assert segment.buffer.readable_end == 1
        assert await segment.visible() == [b"before"]
        await second.commit(txn)
        await wait_all_tasks_blocked()
        assert segment.buffer.readable_end == 3
        assert await segment.visible() == [b"before", b"open", b"after"]
        assert await second.op_keys() == []


async def test_what_was_recovered_and_aborted_stays_hidden_in_every_ledger(
    metadata: MemoryStore, files: SimulatedFiles
) -> None:
    """D1, T19: the next owner knows only the start; the entries are in several ledgers, each with an index."""
    async with segment_host(metadata, files) as first:
        segment = await first.own(ledger_bytes_max=1)
        txn = await first.begin()
        for payload in (b"1", b"2", b"3"):
            await segment.publish(payload, txn)
            await wait_all_tasks_blocked()
        assert len({entry.position.ledger for entry in await entries_of(segment)}) == 3
    async with segment_host(metadata, files.kill()) as second:
        segment = await second.own()
        await second.abort(txn)
        await segment.publish(b"after")
        await wait_all_tasks_blocked()
    async with segment_host(metadata, files.kill()) as third:
        segment = await third.own()
        await wait_all_tasks_blocked()
        assert await third.abort_keys() == []
        assert await segment.visible() == [b"after"]


async def entries_of(segment: Segment) -> list[Entry]:
    """Return everything durable, readable or not."""
    found: list[Entry] = []
    at = EARLIEST
    while entries := await segment.ledger.read(at, upto=LATEST, entries_max=100, bytes_max=1_000_000):
        found += entries
        at = segment.ledger.next_after(entries[-1].position)
    return found


async def write_open_entry(host: SegmentHost) -> tuple[Segment, TxnId]:
    """Prepare a segment with an entry of an open transaction, and a later one without a transaction."""
    segment = await host.own()
    txn = await host.begin()
    await segment.publish(b"unknown", txn)
    await segment.publish(b"after")
    return segment, txn


async def test_a_transaction_whose_header_is_gone_is_aborted_at_the_takeover(
    metadata: MemoryStore, files: SimulatedFiles
) -> None:
    """T19, T25: nothing proves a commit, so nobody sees it; this is remembered without its op record."""
    async with segment_host(metadata, files) as first:
        _, txn = await write_open_entry(first)
    await metadata.delete(header_key(txn))
    async with segment_host(metadata, files.kill()) as second:
        segment = await second.own()
        await wait_all_tasks_blocked()
        assert await segment.visible() == [b"after"]
        assert await second.op_keys() == []
    async with segment_host(metadata, files.kill()) as third:
        assert await (await third.own()).visible() == [b"after"]


async def test_a_header_that_goes_while_its_segment_is_served_lets_the_segment_go_on(
    metadata: MemoryStore, files: SimulatedFiles
) -> None:
    """T19: it is treated as at a takeover, without waiting for one."""
    async with segment_host(metadata, files) as broker:
        segment, txn = await write_open_entry(broker)
        await metadata.delete(header_key(txn))
        await wait_all_tasks_blocked()
        assert await segment.visible() == [b"after"]
        assert await broker.op_keys() == []


@pytest.mark.parametrize("action", EndAction)
@pytest.mark.parametrize("value", DAMAGED)
async def test_a_damaged_op_record_of_a_write_hides_what_it_named(
    metadata: MemoryStore, files: SimulatedFiles, value: bytes, action: EndAction, capsys: pytest.CaptureFixture[str]
) -> None:
    """E11, D1, T19: its key names the transaction, whose entries are found. The segment opens."""
    async with segment_host(metadata, files) as first:
        segment = await first.own()
        await segment.publish(b"before")
        txn = await first.begin()
        position = await segment.publish(b"unknown", txn)
        await segment.publish(b"after")
    (key,) = await damage_records(metadata, OPS, value)
    async with segment_host(metadata, files.kill()) as second:
        segment = await second.own()
        assert segment.buffer.readable.value == position.before()
        await segment.publish(b"more", txn)
        assert await segment.visible() == [b"before"]
        await second.coordinator.end(txn, action)
        await wait_all_tasks_blocked()
        shown = [b"unknown"] if action is EndAction.COMMIT else []
        assert [payload for payload in await segment.visible() if payload != b"more"] == [b"before", *shown, b"after"]
        assert await second.op_keys() == []
        assert segment.ended is None
    assert [key in line for line in capsys.readouterr().out.splitlines() if "is damaged" in line] == [True]
    async with segment_host(metadata, files.kill()) as third:
        assert (b"unknown" in await (await third.own()).visible()) is (action is EndAction.COMMIT)


async def test_a_damaged_header_holds_back_what_its_transaction_wrote(
    metadata: MemoryStore, files: SimulatedFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    """E11, D1: the segment opens. Its entries from before are read, and other transactions end there."""
    async with segment_host(metadata, files) as first:
        segment = await first.own()
        other = await first.begin()
        await segment.publish(b"other", other)
        txn = await first.begin()
        await segment.publish(b"unknown", txn)
    await metadata.put(header_key(txn), b"{")
    async with segment_host(metadata, files.kill()) as second:
        segment = await second.own()
        await second.commit(other)
        await segment.buffer.caught_up()
        assert await segment.visible() == [b"other"]
    told = [line for line in capsys.readouterr().out.splitlines() if "is damaged" in line]
    assert [header_key(txn) in line for line in told] == [True]


async def test_an_op_record_that_names_no_transaction_keeps_only_its_segment_closed(
    metadata: MemoryStore, files: SimulatedFiles
) -> None:
    """E11: any entry may be of that transaction. The error names the record."""
    async with segment_host(metadata, files) as host:
        key = f"{OPS}strange"
        index = IndexEntry(WRITES_BY_SEGMENT, segment_index_key(SEGMENT))
        await metadata.commit([Put(key, b"{}", indexes=(index,))])
        with pytest.raises(OpRecordDamaged, match=key):
            await host.own()
        other = await host.own("segment://public/default/other/0000-ffff-0")
        await other.publish(b"served")
        assert await other.visible() == [b"served"]
