"""Stale owners, silent stores, deleted segments, and lagging images."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.metadata.store import Delete, Op, Put, StoreUnavailable
from tests.support.disk import SimulatedFiles
from tests.support.segments import SegmentHost, append, puts_an_op, segment_host
from tests.support.steered_store import LaggingStore, SteeredStore
from txn.errors import OutcomeUnknown, OwnershipLost, TransactionEnded
from txn.open_header import OP_PUT_SECONDS_MAX


async def test_a_stale_owner_writes_nothing(host: SegmentHost) -> None:
    """D4: its op record, its abort record and its removals are refused."""
    stale = await host.own()
    open_one, other = await host.begin(), await host.begin()
    await stale.publish(b"a", open_one)
    kept = await host.op_keys()
    await host.claim()
    before = stale.ledger.next_position
    with pytest.raises(OwnershipLost):
        await append(stale.buffer, b"b", other)
    assert stale.ledger.next_position == before
    await host.abort(open_one)
    await wait_all_tasks_blocked()
    assert await host.op_keys() == kept
    assert await host.abort_keys() == []
    assert isinstance(stale.ended, OwnershipLost)
    with pytest.raises(OwnershipLost):
        await stale.buffer.discard()
    assert await host.op_keys() == kept


@pytest.mark.parametrize("commit", [True, False])
async def test_a_stale_owner_that_wrote_nothing_since_settles_nothing(host: SegmentHost, commit: bool) -> None:
    """D4: it gets the decision like the new owner, and its change set is refused as a whole."""
    stale = await host.own()
    txn = await host.begin()
    await stale.publish(b"a", txn)
    kept = await host.op_keys()
    await host.claim()
    await (host.commit(txn) if commit else host.abort(txn))
    await wait_all_tasks_blocked()
    assert await host.op_keys() == kept
    assert await host.abort_keys() == []
    assert isinstance(stale.ended, OwnershipLost)


async def test_an_owner_that_learns_by_a_publish_that_it_is_stale_ends(host: SegmentHost) -> None:
    """D4: the buffer's caller closes the segment, so that clients look up the new owner."""
    stale = await host.own()
    txn = await host.begin()
    await host.claim()
    with pytest.raises(OwnershipLost):
        await append(stale.buffer, b"b", txn)
    await wait_all_tasks_blocked()
    assert isinstance(stale.ended, OwnershipLost)


async def test_a_store_that_does_not_answer_ends_the_ownership(
    host: SegmentHost, store: SteeredStore, autojump_clock: trio.testing.MockClock
) -> None:
    """D7: the op record's outcome is unknown, so nothing is appended, and the next owner finds out."""
    segment = await host.own()
    txn = await host.begin()

    async def hang(ops: Sequence[Op]) -> None:
        if puts_an_op(ops):
            await trio.sleep_forever()

    store.before = hang
    before = segment.ledger.next_position
    start = trio.current_time()
    with pytest.raises(OutcomeUnknown):
        await append(segment.buffer, b"a", txn)
    assert trio.current_time() - start == OP_PUT_SECONDS_MAX
    assert segment.ledger.next_position == before
    await wait_all_tasks_blocked()
    assert isinstance(segment.ended, OutcomeUnknown)


async def test_an_op_record_of_unknown_outcome_ends_the_ownership(host: SegmentHost, store: SteeredStore) -> None:
    """D7, M22: the store does not know, so the segment's next owner reads what is there."""
    segment = await host.own()
    txn = await host.begin()

    async def fail(ops: Sequence[Op]) -> None:
        if puts_an_op(ops):
            raise StoreUnavailable("etcd gave no answer")

    store.after = fail
    before = segment.ledger.next_position
    with pytest.raises(OutcomeUnknown):
        await append(segment.buffer, b"a", txn)
    assert segment.ledger.next_position == before
    await wait_all_tasks_blocked()
    assert isinstance(segment.ended, OutcomeUnknown)


async def test_a_deleted_segment_leaves_no_records(host: SegmentHost) -> None:
    """D16: a transaction may be aborted while its segment is being deleted."""
    segment = await host.own()
    aborted, late = await host.begin(), await host.begin()
    await segment.publish(b"a", aborted)
    await segment.publish(b"b", late)
    await host.abort(aborted)
    await wait_all_tasks_blocked()
    assert len(await host.abort_keys()) == 1
    await segment.buffer.discard()
    await host.abort(late)
    await wait_all_tasks_blocked()
    assert await host.op_keys() == await host.abort_keys() == []


@pytest.mark.parametrize("first", ["settlement", "deletion"])
async def test_a_segment_deleted_while_an_abort_is_recorded_leaves_no_records(
    store: SteeredStore, host: SegmentHost, first: str
) -> None:
    """D16: the change set with the abort record is on its way when the deletion begins, or the other way round."""
    segment = await host.own()
    txn = await host.begin()
    await segment.publish(b"a", txn)
    is_held, go_on, is_deleted = trio.Event(), trio.Event(), trio.Event()

    async def hold(ops: Sequence[Op]) -> None:
        is_abort = any(isinstance(op, Put) and op.key.startswith("/txn/segment-state/") for op in ops)
        is_deletion = any(isinstance(op, Delete) and op.key.startswith("/txn/op/") for op in ops) and not is_abort
        if is_abort if first == "settlement" else is_deletion:
            store.before = None
            is_held.set()
            await go_on.wait()

    async def delete() -> None:
        await segment.buffer.discard()
        is_deleted.set()

    store.before = hold
    async with trio.open_nursery() as nursery:
        if first == "settlement":
            await host.abort(txn)
            await wait_all_tasks_blocked()
            nursery.start_soon(delete)
        else:
            nursery.start_soon(delete)
            await wait_all_tasks_blocked()
            await host.abort(txn)
        await wait_all_tasks_blocked()
        assert is_held.is_set(), "the change set is on its way"
        go_on.set()
        await is_deleted.wait()
    await wait_all_tasks_blocked()
    assert segment.ended is None
    assert await host.op_keys() == await host.abort_keys() == []


async def test_what_an_earlier_segment_of_the_name_left_changes_nothing(host: SegmentHost) -> None:
    """D16: its op record is removed, the new segment holds nothing back for it, and it gets no abort record."""
    segment = await host.own()
    txn = await host.begin()
    await segment.publish(b"old", txn)
    await segment.ledger.delete()
    segment.scope.cancel()
    new = await host.own()
    position = await new.publish(b"new")
    assert new.buffer.readable.value == position
    assert await host.op_keys() == []
    await host.abort(txn)
    await wait_all_tasks_blocked()
    assert await host.abort_keys() == []
    assert await new.visible() == [b"new"]


async def test_a_record_that_is_answered_after_the_segment_was_closed_is_not_counted(
    host: SegmentHost, store: SteeredStore
) -> None:
    """T34: the record belongs to the next owner, who counts it; nobody gets the decision twice."""
    segment = await host.own()
    txn = await host.begin()
    go_on = trio.Event()

    async def hold(ops: Sequence[Op]) -> None:
        if puts_an_op(ops):
            await go_on.wait()

    store.after = hold
    async with trio.open_nursery() as nursery:
        nursery.start_soon(append, segment.buffer, b"a", txn)
        await wait_all_tasks_blocked()
        segment.scope.cancel()
        await wait_all_tasks_blocked()
        go_on.set()
    assert host.headers.transactions_joined == host.counters.op_records_outstanding == 0
    await host.own()
    assert host.headers.transactions_joined == host.counters.op_records_outstanding == 1


# -- a broker whose image is behind


async def test_a_header_that_the_image_lacks_is_looked_for_behind_a_barrier() -> None:
    """D5: another broker created it a moment ago."""
    store = LaggingStore()
    async with segment_host(store, SimulatedFiles(seed=3)) as host:
        segment = await host.own()
        txn = await host.begin()
        await segment.publish(b"a", txn)
        await host.commit(txn)
        await wait_all_tasks_blocked()
        assert await segment.visible() == [b"a"]


async def test_an_image_that_still_says_open_does_not_let_a_write_through() -> None:
    """D5: the record's condition catches the first write, and the barrier before the append a later one."""
    store = LaggingStore()
    async with segment_host(store, SimulatedFiles(seed=3)) as host:
        segment = await host.own()
        wrote, first = await host.begin(), await host.begin()
        await segment.publish(b"a", wrote)
        await store.barrier()
        # The watch is as late as the image.
        host.headers._participants.clear()
        before = segment.ledger.next_position
        for txn in (wrote, first):
            await host.commit(txn)
            with pytest.raises((TransactionEnded, OwnershipLost)):
                await append(segment.buffer, b"late", txn)
        assert segment.ledger.next_position == before
