"""The coordinator and the sweeps over the memory store, on Trio's clock."""

from collections.abc import AsyncIterator, Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.clock import SLEW_MAX, SteadyClock, WallClock
from storage.entry import TxnId
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Conflict, Op, starting_with
from storage.position import Position
from storage.ranges import EntryAck
from tests.support.steered_store import LaggingStore, SteeredStore
from txn import coordinator as coordinator_module
from txn.errors import CoordinatorNotFound, InvalidTxnStatus, TransactionNotFound
from txn.headers import KEY_PREFIX, Header, header_key, v5_id
from txn.ops import KEY_PREFIX as OPS
from txn.ops import AckOp, WriteOp, ops_of
from txn.states import EndAction, TxnState
from txn.transactions import Transactions, TransactionSettings

RETENTION_MS = 60_000
WALL_MS = 1_700_000_000_000


def now_ms() -> int:
    """Return Trio's clock as wall time, so that a mocked clock moves both."""
    return round(trio.current_time() * 1000)


class CoordinatorHost:
    """A coordinator with its sweeps and the store they share."""

    def __init__(self, metadata: MemoryStore, now_ms: WallClock = now_ms) -> None:
        self.metadata = metadata
        self.redriven: list[str] = []
        self.gone: set[str] = set()
        """Segments that were deleted."""
        settings = TransactionSettings(coordinators=16, timeout_ms_max=10_000_000, retention_ms=RETENTION_MS)
        transactions = Transactions(metadata, settings, now_ms)
        self.headers = transactions.headers
        self.coordinator = transactions.coordinator
        self.timeout_sweep = transactions.timeout_sweep
        self.header_sweep = transactions.header_sweep(self.redrive)

    async def redrive(self, segment: str) -> bool:
        self.redriven.append(segment)
        return segment not in self.gone

    async def header(self, txn: TxnId) -> Header | None:
        record = await self.metadata.get(header_key(txn))
        return None if record is None else Header.from_value(record.value)

    async def state(self, txn: TxnId) -> TxnState | None:
        header = await self.header(txn)
        return None if header is None else header.state


@pytest.fixture
async def host() -> AsyncIterator[CoordinatorHost]:
    async with trio.open_nursery() as nursery:
        host = CoordinatorHost(MemoryStore())
        await nursery.start(host.headers.run)
        nursery.start_soon(host.timeout_sweep.run)
        nursery.start_soon(host.header_sweep.run)
        yield host
        nursery.cancel_scope.cancel()


async def test_a_longer_timeout_than_the_broker_allows_is_cut(autojump_clock: MockClock, host: CoordinatorHost) -> None:
    """T4: an open transaction holds back all readers."""
    txn = await host.coordinator.new_transaction(3, 1 << 60)
    header = await host.header(txn)
    assert header is not None
    assert header.timeout_ms == now_ms() + 10_000_000


async def test_ids_are_reserved_by_blocks_that_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """T4: several brokers may hand out a coordinator's ids, and their blocks may alternate."""
    monkeypatch.setattr(coordinator_module, "ID_BLOCK", 3)
    store = MemoryStore()
    one, other = (CoordinatorHost(store).coordinator for _ in range(2))
    handed_out = [await coordinator.new_transaction(2, 1_000) for coordinator in (one, other, one, one, one, other) * 3]
    assert len(set(handed_out)) == len(handed_out)
    numbers = sorted(txn.least for txn in handed_out)
    assert numbers[0] == v5_id(2, 0).least
    assert numbers[-1] < v5_id(2, 3 * 8).least


async def test_a_new_transaction_is_open_with_an_absolute_deadline(
    autojump_clock: MockClock, host: CoordinatorHost
) -> None:
    """T4, T1: newTxn writes OPEN with timeout_ms = now + timeout."""
    await trio.sleep(5)
    txn = await host.coordinator.new_transaction(3, 30_000)
    assert txn.most == 3
    header = await host.header(txn)
    assert header == Header(TxnState.OPEN, timeout_ms=now_ms() + 30_000, created_ms=now_ms())


async def test_ids_are_never_reused_by_a_restarted_or_second_coordinator() -> None:
    """T4, D6, T10: two coordinators over one store, at once or one after the other, never give out the same id."""
    metadata = MemoryStore()
    seen: set[TxnId] = set()
    both = [CoordinatorHost(metadata), CoordinatorHost(metadata)]

    async def open_some(host: CoordinatorHost) -> None:
        for _ in range(20):
            txn = await host.coordinator.new_transaction(0, 1000)
            assert txn not in seen
            seen.add(txn)

    async with trio.open_nursery() as nursery:
        for host in both:
            nursery.start_soon(open_some, host)
    await open_some(CoordinatorHost(metadata))
    assert len(seen) == 60


async def test_unknown_coordinators_are_refused(autojump_clock: MockClock, host: CoordinatorHost) -> None:
    for tc_id in (-1, 16):
        with pytest.raises(CoordinatorNotFound):
            await host.coordinator.new_transaction(tc_id, 1000)


async def test_a_commit_is_one_compare_and_set(autojump_clock: MockClock, host: CoordinatorHost) -> None:
    """T6: one put that also sets finalized_ms; nothing else in the store changes."""
    txn = await host.coordinator.new_transaction(0, 30_000)
    revision = host.metadata.statistics().revision
    await trio.sleep(2)
    await host.coordinator.end(txn, EndAction.COMMIT)
    assert host.metadata.statistics().revision == revision + 1
    header = await host.header(txn)
    assert header is not None
    assert header.state is TxnState.COMMITTED
    assert header.finalized_ms == now_ms()


@pytest.mark.parametrize("first", EndAction)
@pytest.mark.parametrize("second", EndAction)
async def test_ending_twice(
    autojump_clock: MockClock, host: CoordinatorHost, first: EndAction, second: EndAction
) -> None:
    """T7, T2: the same outcome succeeds and changes nothing, the opposite fails and changes nothing."""
    txn = await host.coordinator.new_transaction(0, 30_000)
    await host.coordinator.end(txn, first)
    before = await host.header(txn)
    await trio.sleep(1)
    if first is second:
        await host.coordinator.end(txn, second)
    else:
        with pytest.raises(InvalidTxnStatus):
            await host.coordinator.end(txn, second)
    assert await host.header(txn) == before


async def test_ending_an_unknown_transaction(autojump_clock: MockClock, host: CoordinatorHost) -> None:
    """T7: unknown id -> not found."""
    with pytest.raises(TransactionNotFound):
        await host.coordinator.end(v5_id(0, 12345), EndAction.COMMIT)


async def test_of_racing_ends_exactly_one_wins() -> None:
    """T8: commit and abort come from two coordinators at once; the loser learns who won."""
    for _ in range(20):
        metadata = MemoryStore()
        one, other = CoordinatorHost(metadata), CoordinatorHost(metadata)
        txn = await one.coordinator.new_transaction(0, 30_000)
        refused: list[EndAction] = []

        async def end(
            host: CoordinatorHost, action: EndAction, txn: TxnId = txn, refused: list[EndAction] = refused
        ) -> None:
            try:
                await host.coordinator.end(txn, action)
            except InvalidTxnStatus:
                refused.append(action)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end, one, EndAction.COMMIT)
            nursery.start_soon(end, other, EndAction.ABORT)
        state = await one.state(txn)
        assert refused == [EndAction.ABORT if state is TxnState.COMMITTED else EndAction.COMMIT]


async def test_a_transaction_that_another_broker_has_just_opened_is_ended() -> None:
    """T7, T10, D5: a header that this broker's image lacks is read behind a barrier before it counts as unknown."""
    metadata = LaggingStore()
    txn = await CoordinatorHost(metadata).coordinator.new_transaction(0, 10_000)
    host = CoordinatorHost(metadata)
    assert metadata.peek(header_key(txn)) is None
    await host.coordinator.end(txn, EndAction.COMMIT)
    assert metadata.barriers > 0
    assert await host.state(txn) is TxnState.COMMITTED


async def test_a_decision_is_never_taken_from_an_old_image() -> None:
    """T7, T8: this broker's image still shows the transaction as open, but another broker has decided it."""
    metadata = LaggingStore()
    other, host = CoordinatorHost(metadata), CoordinatorHost(metadata)
    txn = await other.coordinator.new_transaction(0, 10_000)
    await metadata.barrier()
    await other.coordinator.end(txn, EndAction.ABORT)
    record = metadata.peek(header_key(txn))
    assert record is not None
    assert Header.from_value(record.value).state is TxnState.OPEN
    with pytest.raises(InvalidTxnStatus):
        await host.coordinator.end(txn, EndAction.COMMIT)
    await host.coordinator.end(txn, EndAction.ABORT)


async def test_the_sweep_aborts_at_the_deadline_and_not_before(
    autojump_clock: MockClock, host: CoordinatorHost
) -> None:
    """T9: timeout_ms <= now is aborted, the boundary included; a transaction a millisecond later stays."""
    due = await host.coordinator.new_transaction(0, 10_000)
    later = await host.coordinator.new_transaction(1, 10_001)
    await trio.sleep(9.999)
    assert await host.state(due) is TxnState.OPEN
    await trio.sleep(0.001)
    await wait_all_tasks_blocked()
    assert now_ms() == 10_000
    assert await host.state(due) is TxnState.ABORTED
    assert await host.state(later) is TxnState.OPEN


@pytest.mark.parametrize("step_ms", [5_000, 3_600_000, 86_400_000, -5_000, -3_600_000, -86_400_000])
async def test_a_step_of_the_wall_clock_moves_no_deadline(autojump_clock: MockClock, step_ms: int) -> None:
    """E15, T9: an open transaction is neither aborted early nor held longer by a step of the wall clock."""
    stepped_ms = 0
    clock = SteadyClock(lambda: WALL_MS + now_ms() + stepped_ms, lambda: now_ms() * 1_000_000)
    metadata = MemoryStore()
    host = CoordinatorHost(metadata, clock)
    async with trio.open_nursery() as nursery:
        await nursery.start(host.headers.run)
        nursery.start_soon(host.timeout_sweep.run)
        begun = trio.current_time()
        before = await host.coordinator.new_transaction(0, 60_000)
        stepped_ms = step_ms
        after = await host.coordinator.new_transaction(0, 60_000)
        for txn in (before, after):
            async with metadata.watch_key(header_key(txn)) as watch:
                while (record := await watch.next()) is None or not Header.from_value(record.value).state.is_final:
                    pass
            assert Header.from_value(record.value).state is TxnState.ABORTED
            assert trio.current_time() - begun == pytest.approx(60, rel=SLEW_MAX + 0.01)
        nursery.cancel_scope.cancel()


async def test_an_earlier_deadline_that_comes_later_is_met(autojump_clock: MockClock, host: CoordinatorHost) -> None:
    """T9: the sweep sleeps until the next deadline, even if it is set during the sleep."""
    slow = await host.coordinator.new_transaction(0, 100_000)
    await trio.sleep(1)
    quick = await host.coordinator.new_transaction(0, 1_000)
    await trio.sleep(1.5)
    assert await host.state(quick) is TxnState.ABORTED
    assert await host.state(slow) is TxnState.OPEN
    await trio.sleep(100)
    assert await host.state(slow) is TxnState.ABORTED


async def test_deadlines_of_an_earlier_coordinator_are_swept(autojump_clock: MockClock) -> None:
    """T9, T10: a coordinator that takes over aborts what its predecessor left open, without a replay."""
    metadata = MemoryStore()
    left = await CoordinatorHost(metadata).coordinator.new_transaction(0, 5_000)
    successor = CoordinatorHost(metadata)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(successor.timeout_sweep.run)
        await trio.sleep(4.5)
        assert await successor.state(left) is TxnState.OPEN
        await trio.sleep(1)
        assert await successor.state(left) is TxnState.ABORTED
        nursery.cancel_scope.cancel()


async def test_headers_go_after_their_retention(autojump_clock: MockClock, host: CoordinatorHost) -> None:
    """T28: a finished header is deleted only after its retention; an open one stays."""
    ended = await host.coordinator.new_transaction(0, 10_000_000)
    await host.coordinator.end(ended, EndAction.COMMIT)
    await trio.sleep(1)
    still_open = await host.coordinator.new_transaction(0, 10_000_000)
    later = await host.coordinator.new_transaction(0, 10_000_000)
    await host.coordinator.end(later, EndAction.ABORT)
    await trio.sleep(58.5)
    assert await host.state(ended) is TxnState.COMMITTED
    await trio.sleep(1)
    assert await host.state(ended) is None
    assert await host.state(later) is TxnState.ABORTED
    await trio.sleep(1)
    assert await host.state(later) is None
    assert await host.state(still_open) is TxnState.OPEN
    assert host.header_sweep.deleted == 2


async def test_a_header_with_op_records_is_kept_and_its_segments_are_redriven(
    autojump_clock: MockClock, host: CoordinatorHost
) -> None:
    """T28, T29: op records make their participant settle and keep the header; without them the header is deleted."""
    txn = await host.coordinator.new_transaction(0, 10_000_000)
    op = WriteOp(txn, "segment://public/default/x/0000-ffff-0", "c", Position(1, 0))
    key = (await host.metadata.commit([op.to_put()])).keys[0]
    assert key is not None
    await host.coordinator.end(txn, EndAction.COMMIT)
    await trio.sleep(61)
    assert host.redriven == [op.segment]
    assert await host.state(txn) is TxnState.COMMITTED
    await host.metadata.delete(key)
    await trio.sleep(60)
    assert await host.state(txn) is None


async def test_a_segment_of_many_transactions_is_redriven_once_a_sweep(
    autojump_clock: MockClock, host: CoordinatorHost
) -> None:
    """T29: a segment that cannot be loaded must not keep the sweep from the others."""
    kept, gone = "segment://public/default/x/0000-ffff-0", "segment://public/default/gone/0000-ffff-0"
    host.gone.add(gone)
    for _ in range(5):
        txn = await host.coordinator.new_transaction(0, 10_000_000)
        for segment in (kept, gone):
            await host.metadata.commit([WriteOp(txn, segment, "c", Position(1, 0)).to_put()])
        await host.coordinator.end(txn, EndAction.COMMIT)
    await trio.sleep(61)
    assert sorted(host.redriven) == sorted([kept, gone])
    left = await host.metadata.scan(*starting_with(OPS))
    assert {WriteOp.from_record(record).segment for record in left} == {kept}


async def test_what_a_slow_participant_has_not_applied_outlives_every_sweep(
    autojump_clock: MockClock, host: CoordinatorHost
) -> None:
    """T29, T31: a committed acknowledgement is dropped only with its segment, and then before the header."""
    txn = await host.coordinator.new_transaction(0, 10_000_000)
    kept = AckOp(txn, "segment://public/default/x/0000-ffff-0", "s", "c", True, (EntryAck(Position(1, 0)),))
    gone = WriteOp(txn, "segment://public/default/gone/0000-ffff-0", "c", Position(1, 0))
    host.gone.add(gone.segment)
    key = (await host.metadata.commit([kept.to_put()])).keys[0]
    assert key is not None
    await host.metadata.commit([gone.to_put()])
    await host.coordinator.end(txn, EndAction.COMMIT)
    await trio.sleep(1_000)
    left = await host.metadata.scan(*ops_of(txn))
    assert [AckOp.from_record(record) for record in left] == [kept]
    assert host.redriven.count(kept.segment) > 5
    assert host.redriven.count(gone.segment) == 1
    assert await host.state(txn) is TxnState.COMMITTED
    await host.metadata.delete(key)
    await trio.sleep(61)
    assert await host.state(txn) is None


async def test_no_op_record_can_follow_a_decision(autojump_clock: MockClock, host: CoordinatorHost) -> None:
    """T12, T28: an op record requires the open header's version, so none appears after the decision."""
    txn = await host.coordinator.new_transaction(0, 10_000_000)
    record = await host.metadata.get(header_key(txn))
    assert record is not None
    await host.coordinator.end(txn, EndAction.COMMIT)
    with pytest.raises(Conflict):
        await host.metadata.put(record.key, b"late", expected=record.version)


async def test_sweeping_many_costs_few_change_sets(autojump_clock: MockClock) -> None:
    """T9, T28: a thousand transactions of one second are aborted and forgotten just as fast, with few syncs."""
    store = SteeredStore()
    host = CoordinatorHost(store)
    for number in range(200):
        await host.coordinator.new_transaction(number % 16, 10_000)

    async def sync(ops: Sequence[Op]) -> None:
        await trio.sleep(0.01)

    store.before = sync
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.timeout_sweep.run)
        nursery.start_soon(host.header_sweep.run)
        await trio.sleep(10.1)
        assert host.coordinator.statistics().aborted == 200
        commits = store.commits
        await trio.sleep(61)
        assert host.header_sweep.deleted == 200
        assert await store.scan(*starting_with(KEY_PREFIX)) == []
        assert store.commits - commits <= 4
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("made", [True, False])
async def test_a_sweep_without_an_answer_goes_on(autojump_clock: MockClock, made: bool) -> None:
    """M22, T9, T28: the broker lives, and the sweep catches up a little later."""
    store = SteeredStore()
    host = CoordinatorHost(store)
    for _ in range(3):
        await host.coordinator.new_transaction(0, 10_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.timeout_sweep.run)
        nursery.start_soon(host.header_sweep.run)
        store.leave_unanswered(2, made=made)
        await trio.sleep(12)
        assert not store.has_answered_all
        for record in await store.scan(*starting_with(KEY_PREFIX)):
            assert Header.from_value(record.value).state is TxnState.ABORTED
        store.leave_unanswered(1, made=made)
        await trio.sleep(130)
        assert not store.has_answered_all
        assert await store.scan(*starting_with(KEY_PREFIX)) == []
        nursery.cancel_scope.cancel()


async def test_two_sweeps_at_once_forget_everything(autojump_clock: MockClock) -> None:
    """T31: a header that another broker's sweep has already deleted does not keep others."""
    store = SteeredStore()
    host = CoordinatorHost(store)
    txns = [await host.coordinator.new_transaction(0, 10_000) for _ in range(5)]
    for txn in txns:
        await host.coordinator.end(txn, EndAction.COMMIT)

    async def be_first(ops: Sequence[Op]) -> None:
        store.before = None
        await store.delete(header_key(txns[2]))

    store.before = be_first
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.header_sweep.run)
        await trio.sleep(61)
        assert await store.scan(*starting_with(KEY_PREFIX)) == []
        nursery.cancel_scope.cancel()


async def test_many_headers_are_swept_in_one_go(autojump_clock: MockClock, host: CoordinatorHost) -> None:
    """T31: more than one batch of finished headers of the same millisecond are all forgotten."""
    for number in range(250):
        txn = await host.coordinator.new_transaction(number % 16, 10_000_000)
        await host.coordinator.end(txn, EndAction.COMMIT if number % 2 else EndAction.ABORT)
    await trio.sleep(61)
    assert await host.metadata.scan(*starting_with(KEY_PREFIX)) == []
    assert host.header_sweep.deleted == 250
