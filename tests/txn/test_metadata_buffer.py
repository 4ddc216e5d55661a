"""The transaction buffer of one owner, over a real managed ledger and the memory store."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.entry import TxnId
from storage.errors import LedgerSealed
from storage.metadata.store import Check, Op
from storage.position import Position
from storage.signal import Signal
from tests.support.disk import SimulatedFiles
from tests.support.markers import open_marker_buffer
from tests.support.segments import SegmentHost, append, puts_an_op, segment_host
from tests.support.steered_store import LaggingStore, SteeredStore
from txn.counters import OpCounters
from txn.errors import OwnershipLost, TransactionEnded, TransactionNotFound
from txn.headers import v5_id
from txn.ops import writes_of_segment
from txn.states import TxnState

# -- publishing


async def test_the_op_record_is_durable_before_the_one_append(host: SegmentHost, store: SteeredStore) -> None:
    """T11: it requires the claim and the open header, and has a lower bound; later writes add no record."""
    segment = await host.own()
    await segment.publish(b"other")
    bound = segment.ledger.next_position
    txn = await host.begin()
    conditions: list[Op] = []

    async def nothing_appended(ops: Sequence[Op]) -> None:
        if puts_an_op(ops):
            conditions.extend(op for op in ops if isinstance(op, Check))
            assert segment.ledger.next_position == bound

    store.after = nothing_appended
    first = await segment.publish(b"a", txn)
    second = await segment.publish(b"b", txn)
    assert (first, second) == (bound, Position(bound.ledger, bound.entry + 1))
    assert len(conditions) == 2
    assert len(await host.op_keys()) == 1
    assert host.counters.op_writes == host.counters.op_records_outstanding == 1


async def test_a_transaction_nobody_opened_is_refused(host: SegmentHost) -> None:
    """T11: nothing is appended, nothing is recorded, nothing is held back."""
    segment = await host.own()
    position = await segment.publish(b"plain")
    with pytest.raises(TransactionNotFound):
        await segment.publish(b"a", v5_id(0, 77))
    assert segment.ledger.last_position == segment.buffer.readable.value == position
    assert await host.op_keys() == []
    assert host.headers.transactions_joined == 0


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
async def test_a_finished_transaction_takes_no_more(host: SegmentHost, commit: bool) -> None:
    """T11, T12: whether it wrote here before or not, and also while its decision is being applied."""
    segment = await host.own()
    wrote, stranger = await host.begin(), await host.begin()
    last = await segment.publish(b"a", wrote)
    for txn in (wrote, stranger):
        await (host.commit if commit else host.abort)(txn)
        with pytest.raises(TransactionEnded):
            await segment.publish(b"late", txn)
        await wait_all_tasks_blocked()
        with pytest.raises(TransactionEnded):
            await segment.publish(b"later", txn)
    assert segment.ledger.last_position == segment.buffer.readable.value == last
    assert await segment.visible() == ([b"a"] if commit else [])
    assert await host.op_keys() == []


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
async def test_an_end_before_the_op_record_refuses_the_publish(
    host: SegmentHost, store: SteeredStore, commit: bool
) -> None:
    """T12: the header was open at the check; the record's condition detects the end."""
    segment = await host.own()
    txn = await host.begin()

    async def end_first(ops: Sequence[Op]) -> None:
        if puts_an_op(ops):
            store.before = None
            await (host.commit if commit else host.abort)(txn)

    store.before = end_first
    before = segment.ledger.next_position
    with pytest.raises(TransactionEnded):
        await segment.publish(b"late", txn)
    assert segment.ledger.next_position == before
    assert await host.op_keys() == await host.abort_keys() == []
    assert host.headers.transactions_joined == 0
    position = await segment.publish(b"plain")
    assert segment.buffer.readable.value == position


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
async def test_an_end_behind_the_op_record_refuses_the_publish(
    host: SegmentHost, store: SteeredStore, commit: bool
) -> None:
    """T12, T18: the record is durable, but the entry was not appended; nothing is held, and the record goes."""
    segment = await host.own()
    txn = await host.begin()

    async def end_now(ops: Sequence[Op]) -> None:
        if puts_an_op(ops):
            store.after = None
            await (host.commit if commit else host.abort)(txn)
            await wait_all_tasks_blocked()

    store.after = end_now
    before = segment.ledger.next_position
    with pytest.raises(TransactionEnded):
        await segment.publish(b"late", txn)
    assert segment.ledger.next_position == before
    position = await segment.publish(b"plain")
    assert segment.buffer.readable.value == position
    await wait_all_tasks_blocked()
    assert await host.op_keys() == await host.abort_keys() == []
    assert host.counters.op_records_outstanding == 0


async def test_an_entry_is_held_back_from_before_its_op_record_is_put(host: SegmentHost, store: SteeredStore) -> None:
    """T13: other appends meanwhile stay unreadable, so no reader passes the entry's possible position."""
    segment = await host.own()
    start = await segment.publish(b"plain")
    txn = await host.begin()
    go_on = trio.Event()

    async def wait(ops: Sequence[Op]) -> None:
        if puts_an_op(ops):
            await go_on.wait()

    store.before = wait
    async with trio.open_nursery() as nursery:
        nursery.start_soon(segment.publish, b"held", txn)
        await wait_all_tasks_blocked()
        await segment.publish(b"meanwhile")
        assert segment.buffer.readable.value == start
        go_on.set()
    # The transaction's entry came behind; what stands before it may be read now.
    assert await segment.visible() == [b"plain", b"meanwhile"]
    await host.commit(txn)
    await wait_all_tasks_blocked()
    assert await segment.visible() == [b"plain", b"meanwhile", b"held"]


async def test_two_first_publishes_share_one_op_record(host: SegmentHost) -> None:
    """T11: two producers write for one transaction to one segment; both entries are stored."""
    segment = await host.own()
    txn = await host.begin()
    async with trio.open_nursery() as nursery:
        for payload in (b"a", b"b", b"c"):
            nursery.start_soon(segment.publish, payload, txn)
    assert len(await host.op_keys()) == 1
    assert await segment.visible() == []
    await host.commit(txn)
    await wait_all_tasks_blocked()
    assert sorted(await segment.visible()) == [b"a", b"b", b"c"]


async def test_a_publish_that_is_cancelled_leaves_a_record_that_goes_with_the_decision(
    host: SegmentHost, store: SteeredStore
) -> None:
    """T18: the connection was lost during the record's write; a repeated publish gives one copy."""
    segment = await host.own()
    txn = await host.begin()
    with trio.CancelScope() as scope:

        async def lose(ops: Sequence[Op]) -> None:
            scope.cancel()
            await trio.lowlevel.checkpoint_if_cancelled()

        store.before = lose
        await segment.publish(b"once", txn)
    store.before = None
    await segment.publish(b"again", txn)
    assert len(await host.op_keys()) == 1
    await host.commit(txn)
    await wait_all_tasks_blocked()
    assert (await segment.visible()).count(b"again") == 1
    assert await host.op_keys() == []


# -- what may be read


async def test_the_readable_position_is_just_below_the_first_open_transaction(host: SegmentHost) -> None:
    """T14, T15: the end of a later one moves nothing; the end of the first moves it to the next."""
    segment = await host.own()
    plain = await segment.publish(b"plain")
    assert segment.buffer.readable.value == plain
    first, second, third = [await host.begin() for _ in range(3)]
    at_first = await segment.publish(b"1", first)
    at_second = await segment.publish(b"2", second)
    await segment.publish(b"3", third)
    last = await segment.publish(b"plain too")
    assert segment.buffer.readable.value == at_first.before() == plain
    await host.commit(third)
    await wait_all_tasks_blocked()
    assert segment.buffer.readable.value == at_first.before()
    await host.abort(first)
    await wait_all_tasks_blocked()
    assert segment.buffer.readable.value == at_second.before()
    assert await segment.visible() == [b"plain"]
    await host.commit(second)
    await wait_all_tasks_blocked()
    assert segment.buffer.readable.value == last
    assert await segment.visible() == [b"plain", b"2", b"3", b"plain too"]


async def test_the_readable_position_waits_for_durability(host: SegmentHost) -> None:
    """T14: a decision shows nothing that is not confirmed."""
    segment = await host.own()
    txn = await host.begin()
    plain = await segment.publish(b"plain")
    position = await append(segment.buffer, b"a", txn)
    assert segment.ledger.confirmed.value == plain
    segment.buffer.decided(txn, TxnState.COMMITTED)
    assert segment.buffer.readable.value == plain
    await segment.ledger.confirmed.wait_for(position)
    assert segment.buffer.readable.value == position


async def test_the_readable_position_stands_at_a_ledgers_end(host: SegmentHost) -> None:
    """T14: the first entry of a new ledger holds back only itself."""
    segment = await host.own(ledger_bytes_max=200)
    payload = b"x" * 150
    last = await segment.publish(payload)
    await segment.publish(payload)
    await wait_all_tasks_blocked()
    txn = await host.begin()
    position = await segment.publish(b"open", txn)
    assert position.entry == 0
    assert position.ledger > last.ledger
    assert await segment.visible() == [payload, payload]
    await host.commit(txn)
    await wait_all_tasks_blocked()
    assert await segment.visible() == [payload, payload, b"open"]


async def test_a_waiting_dispatcher_is_told_when_the_readable_position_rises(host: SegmentHost) -> None:
    """T16: its signal is set once per decision, and not before."""
    segment = await host.own()
    await segment.publish(b"plain")
    signal = Signal()
    segment.buffer.readable.attach(signal)
    woken = 0

    async def dispatcher() -> None:
        nonlocal woken
        while True:
            await signal.wait()
            woken += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(dispatcher)
        txn = await host.begin()
        await segment.publish(b"a", txn)
        await segment.publish(b"b", txn)
        await wait_all_tasks_blocked()
        assert woken == 0
        await host.commit(txn)
        await wait_all_tasks_blocked()
        assert woken == 1
        nursery.cancel_scope.cancel()


async def test_position_requests_answer_behind_every_decision(host: SegmentHost) -> None:
    """T27: `caught_up` reads the headers itself, so a late watch does no harm."""
    segment = await host.own()
    txn = await host.begin()
    position = await segment.publish(b"a", txn)
    told = host.headers._participants.copy()
    host.headers._participants.clear()  # The watch's news reaches nobody.
    await host.commit(txn)
    await wait_all_tasks_blocked()
    assert segment.buffer.readable.value < position
    host.headers._participants.update(told)
    await segment.buffer.caught_up()
    assert segment.buffer.readable.value == position


async def test_a_stale_owner_answers_no_position_request(host: SegmentHost) -> None:
    """C19, D4: its own positions stand still, whatever the new owner appends. It closes the segment."""
    stale = await host.own()
    await stale.buffer.caught_up()
    claim = await host.claim()
    with pytest.raises(OwnershipLost):
        await stale.buffer.caught_up()
    await stale.has_ended.wait()
    assert isinstance(stale.ended, OwnershipLost)
    await host.metadata.delete(claim.key)
    with_markers = open_marker_buffer(stale.ledger, host.metadata, claim)
    with pytest.raises(OwnershipLost):
        await with_markers.caught_up()


async def test_a_claim_that_an_old_image_still_shows_answers_nothing() -> None:
    """C19: the claim is asked for together with the headers, behind every write that was answered before."""
    store = LaggingStore()
    async with segment_host(store, SimulatedFiles(seed=3)) as host:
        stale = await host.own()
        await store.barrier()
        claim = await host.claim()
        seen = store.peek(claim.key)
        assert seen is not None
        assert seen.version < claim.expected
        with pytest.raises(OwnershipLost):
            await stale.buffer.caught_up()


# -- aborted transactions


async def test_an_aborted_transaction_stays_hidden_when_its_header_is_gone(host: SegmentHost) -> None:
    """T17, T19: a committed one stays visible."""
    segment = await host.own()
    committed, aborted = await host.begin(), await host.begin()
    await segment.publish(b"yes", committed)
    await segment.publish(b"no", aborted)
    await host.commit(committed)
    await host.abort(aborted)
    await wait_all_tasks_blocked()
    await host.forget_header(committed)
    await host.forget_header(aborted)
    assert await segment.visible() == [b"yes"]
    segment.scope.cancel()
    after = await host.own()
    assert await after.visible() == [b"yes"]


async def test_a_segment_sealed_in_the_middle_of_transactions(host: SegmentHost) -> None:
    """T20: both outcomes are applied, and nothing is appended to the sealed ledger."""
    segment = await host.own()
    committed, aborted = await host.begin(), await host.begin()
    await segment.publish(b"yes", committed)
    last = await segment.publish(b"no", aborted)
    await segment.ledger.seal()
    for txn in (None, committed, await host.begin()):
        with pytest.raises(LedgerSealed):
            await append(segment.buffer, b"more", txn)
    await host.commit(committed)
    await host.abort(aborted)
    await wait_all_tasks_blocked()
    assert segment.buffer.readable.value == segment.ledger.last_position == last
    assert await segment.visible() == [b"yes"]
    segment.scope.cancel()
    after = await host.own()
    assert await after.visible() == [b"yes"]


async def test_the_counters_count(host: SegmentHost) -> None:
    """T34: it counts op records written and outstanding, and the index queries of a recovery."""
    segment = await host.own()
    assert host.counters == OpCounters(index_queries=1, index_query_seconds=host.counters.index_query_seconds)
    txns: list[TxnId] = [await host.begin() for _ in range(3)]
    for txn in txns:
        await segment.publish(b"a", txn)
    assert (host.counters.op_writes, host.counters.op_records_outstanding) == (3, 3)
    await host.commit(txns[0])
    await wait_all_tasks_blocked()
    assert host.counters.op_records_outstanding == 2
    segment.scope.cancel()
    await wait_all_tasks_blocked()
    assert host.counters.op_records_outstanding == 0
    await host.own()
    assert (host.counters.op_records_outstanding, host.counters.index_queries) == (2, 2)
    assert len(await host.metadata.query("writes-by-segment", *writes_of_segment(segment.ledger.name))) == 2
