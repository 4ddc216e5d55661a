"""The transaction buffer after a takeover, over a real managed ledger."""

import pytest
from trio.testing import wait_all_tasks_blocked

from storage.entry import Entry, TxnId
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST, LATEST
from tests.support.disk import SimulatedFiles
from tests.support.segments import Segment, SegmentHost, segment_host
from txn.headers import header_key


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
        assert await segment.visible() == [b"before"]
        await second.commit(txn)
        await wait_all_tasks_blocked()
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
