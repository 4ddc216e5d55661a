"""Sweeps do work in proportion to what is due, and no entry hides later ones."""

from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.entry import TxnId
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, IndexEntry, IndexHit, Op, Put, PutSequential, Record, starting_with
from storage.position import Position
from tests.support.steered_store import SteeredStore
from txn.coordinator import Coordinator
from txn.counters import OpCounters
from txn.due_records import AGAIN_MS, SWEEP_BATCH
from txn.errors import RecordUnreadable
from txn.headers import BY_DEADLINE, BY_FINAL_STATE, Header, header_key, v5_id
from txn.ops import KEY_PREFIX as OPS
from txn.ops import WriteOp
from txn.states import TxnState
from txn.sweeps import LEFTOVER_OPS_SHOWN, REDRIVE_SECONDS_MAX, REDRIVES_AT_ONCE, HeaderSweep, TimeoutSweep
from txn.transactions import Transactions, TransactionSettings
from txn.wall_clock_timer import WallClockTimer

RETENTION_MS = 60_000
WAS_MS = 5


def now_ms() -> int:
    return 1_000_000 + round(trio.current_time() * 1000)


class CountingStore(MemoryStore):
    """Counts what sweeps read."""

    def __init__(self) -> None:
        super().__init__()
        self.hits = 0
        self.records = 0
        self.largest = 0
        self.queries = 0

    async def query(
        self, index: str, start: str, end: str, *, limit: int | None = None, after: str = ""
    ) -> list[IndexHit]:
        found = await super().query(index, start, end, limit=limit, after=after)
        self.queries += 1
        self.hits += len(found)
        self.largest = max(self.largest, len(found))
        return found

    async def scan(self, start: str, end: str, *, limit: int | None = None) -> list[Record]:
        found = await super().scan(start, end, limit=limit)
        self.records += len(found)
        return found


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


async def finished(store: MemoryStore, number: int, state: TxnState = TxnState.ABORTED) -> TxnId:
    txn = v5_id(0, number)
    await store.commit([Header(state, 10, 1, finalized_ms=WAS_MS).to_put(txn, ABSENT)])
    return txn


async def wrote(store: MemoryStore, txn: TxnId, segment: str) -> None:
    await store.commit([WriteOp(txn, segment, "c", Position(1, 0)).to_put()])


def header_sweep(
    store: MemoryStore, redrive: Callable[[str], Awaitable[bool]], *, retention_ms: int = RETENTION_MS
) -> HeaderSweep:
    timer = WallClockTimer(now_ms, delay_ms=retention_ms)
    return HeaderSweep(
        store, retention_ms=retention_ms, now_ms=now_ms, timer=timer, redrive=redrive, counters=OpCounters()
    )


def coordinator_of(store: MemoryStore) -> Coordinator:
    settings = TransactionSettings(coordinators=1, timeout_ms_max=1_000_000, retention_ms=RETENTION_MS)
    return Transactions(store, settings, now_ms).coordinator


def final_index(rest: str) -> tuple[IndexEntry, ...]:
    return (IndexEntry(BY_FINAL_STATE, f"{TxnState.ABORTED}:{rest}"),)


async def test_headers_that_stay_are_looked_at_once_a_sweep(store: CountingStore, mock_clock: MockClock) -> None:
    """E7, E16, T31: ten pages of headers of one millisecond, which their segment keeps; none is read twice."""
    count = 10 * SWEEP_BATCH
    for number in range(count):
        await wrote(store, await finished(store, number), "segment://public/default/x/0000-ffff-0")
    await finished(store, count)
    redriven: list[str] = []

    async def redrive(segment: str) -> bool:
        redriven.append(segment)
        return True

    sweep = header_sweep(store, redrive)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sweep.run)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert sweep.deleted == 1
    assert store.hits == count + 1
    assert store.largest == SWEEP_BATCH
    assert store.records <= 2 * count
    assert len(redriven) == 1


async def test_many_op_records_on_one_segment_do_not_hide_the_others(
    store: CountingStore, mock_clock: MockClock
) -> None:
    """T29, T30: this holds for a segment that cannot be loaded, and for one that is gone."""
    first, last = ("segment://public/default/x/0000-7fff-0", "segment://public/default/x/8000-ffff-1")
    kept, gone = await finished(store, 1), await finished(store, 2)
    for txn, segment in ((kept, first), (gone, "segment://public/default/gone/0000-ffff-0")):
        for _ in range(LEFTOVER_OPS_SHOWN + 1):
            await wrote(store, txn, segment)
    await wrote(store, kept, last)
    redriven: list[str] = []

    async def redrive(segment: str) -> bool:
        redriven.append(segment)
        return "gone" not in segment

    async with trio.open_nursery() as nursery:
        nursery.start_soon(header_sweep(store, redrive).run)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert {first, last} <= set(redriven)
    left = [WriteOp.from_record(record) for record in await store.scan(*starting_with(OPS))]
    assert {op.txn for op in left} == {kept}
    assert len(left) == LEFTOVER_OPS_SHOWN + 2


async def test_segments_that_take_for_ever_hold_up_nothing_for_good(
    store: CountingStore, autojump_clock: MockClock
) -> None:
    """T30: a bounded number is loaded at a time, and the sweep continues with the next ones."""
    stuck = [f"segment://public/default/stuck/0000-ffff-{number:02}" for number in range(REDRIVES_AT_ONCE)]
    txn = await finished(store, 1)
    for segment in stuck:
        await wrote(store, txn, segment)
    other = await finished(store, 2)
    await wrote(store, other, "segment://public/default/x/0000-ffff-0")
    await finished(store, 3)
    redriven: list[str] = []

    async def redrive(segment: str) -> bool:
        redriven.append(segment)
        if segment in stuck:
            await trio.sleep_forever()
        return True

    sweep = header_sweep(store, redrive)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sweep.run)
        await trio.sleep(REDRIVE_SECONDS_MAX + 1)
        assert sorted(redriven) == sorted([*stuck, "segment://public/default/x/0000-ffff-0"])
        assert sweep.deleted == 1
        nursery.cancel_scope.cancel()
    assert len(await store.scan(*starting_with(OPS))) == REDRIVES_AT_ONCE + 1


async def test_without_a_retention_a_kept_header_does_not_keep_the_sweep_running(
    store: CountingStore, autojump_clock: MockClock
) -> None:
    """E7: it pauses between two rounds."""
    await wrote(store, await finished(store, 1), "segment://public/default/x/0000-ffff-0")
    looks: list[float] = []

    async def redrive(_segment: str) -> bool:
        looks.append(trio.current_time())
        return True

    with trio.move_on_after(10 * AGAIN_MS / 1000 + 0.5):
        await header_sweep(store, redrive, retention_ms=0).run()
    assert len(looks) == 11


async def test_what_cannot_be_aborted_does_not_keep_the_sweep_of_deadlines_running(
    store: CountingStore, autojump_clock: MockClock
) -> None:
    """E7, T9: more entries than a page are past their deadline, and none of them can be aborted."""
    final = Header(TxnState.COMMITTED, 10, 1, finalized_ms=2)
    for number in range(2 * SWEEP_BATCH):
        # Such as no broker writes: it is decided, and stands in the index of open ones.
        txn = v5_id(0, number)
        opened = Header(TxnState.OPEN, 10, 1).to_put(txn, ABSENT)
        decided = final.to_put(txn, ABSENT)
        await store.commit([Put(opened.key, decided.value, ABSENT, opened.indexes)])
    assert opened.indexes[0].name == BY_DEADLINE
    timeouts = WallClockTimer(now_ms)
    with trio.move_on_after(5 * AGAIN_MS / 1000 + 0.5):
        await TimeoutSweep(store, coordinator_of(store), now_ms=now_ms, timer=timeouts, counters=OpCounters()).run()
    at_the_start = 1
    assert store.queries == 6 * 4 + at_the_start, "three pages and a look at what is next, once a second"


async def test_a_header_that_another_brokers_sweep_was_first_with_is_not_counted(mock_clock: MockClock) -> None:
    """T28: each is deleted once, and the rest of its page as well."""
    store = SteeredStore()
    txns = [await finished(store, number) for number in range(3)]

    async def delete_first(_ops: Sequence[Op]) -> None:
        store.before = None
        await store.delete(header_key(txns[0]))

    async def redrive(_segment: str) -> bool:
        raise AssertionError("nothing was left behind")

    store.before = delete_first
    sweep = header_sweep(store, redrive)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sweep.run)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert sweep.deleted == 2
    assert [await store.get(header_key(txn)) for txn in txns] == [None] * 3


@pytest.mark.parametrize(
    "stray",
    [
        pytest.param([PutSequential(f"{OPS}0_1", b'{"segment": "no segment at all"}', "0_1")], id="segment"),
        pytest.param([PutSequential(f"{OPS}0_1", b"[]", "0_1")], id="op record"),
        pytest.param([Put("/txn/id/nobody", b"{}", ABSENT, final_index("!"))], id="index"),
        pytest.param([Put("/txn/id/nobody", b"{}", ABSENT, final_index(f"{0:020}:x"))], id="header"),
    ],
)
async def test_what_cannot_be_read_is_told_once_and_hides_nothing(
    store: CountingStore, autojump_clock: MockClock, stray: list[Op], capsys: pytest.CaptureFixture[str]
) -> None:
    """E11, T28: it stays, and the log has its name."""
    kept = await finished(store, 1)
    await wrote(store, kept, "segment://public/default/x/0000-ffff-0")
    await store.commit(stray)
    for number in range(2, 5):
        await finished(store, number)
    redriven: list[str] = []

    async def redrive(segment: str) -> bool:
        if segment.startswith("no"):
            raise RecordUnreadable(segment)
        redriven.append(segment)
        return True

    sweep = header_sweep(store, redrive)
    with trio.move_on_after(10 * RETENTION_MS / 1000):
        await sweep.run()
    assert sweep.deleted == 3
    assert set(redriven) == {"segment://public/default/x/0000-ffff-0"}
    assert 5 <= len(redriven) <= 15, "once a retention"
    told = [line for line in capsys.readouterr().out.splitlines() if "damaged" in line]
    assert len(told) == 1
    assert len(await store.scan(*starting_with("/txn/"))) == 2 + len(stray)


async def test_a_sweep_removes_only_the_op_records_that_it_read(store: CountingStore, mock_clock: MockClock) -> None:
    """C18, T29: the segment is gone, but another broker has written one of its op records again since."""
    txn = await finished(store, 1)
    gone = "segment://public/default/x/0000-ffff-0"
    for _ in range(3):
        await wrote(store, txn, gone)
    first = (await store.scan(OPS, OPS + "~"))[0].key

    async def redrive(segment: str) -> bool:
        await store.put(first, WriteOp(txn, segment, "newer", Position(1, 0)).to_put().value)
        return False

    sweep = header_sweep(store, redrive)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sweep.run)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [record.key for record in await store.scan(OPS, OPS + "~")] == [first]
    assert sweep.deleted == 0
    assert await store.get(header_key(txn)) is not None


async def test_a_damaged_header_keeps_no_other_transaction_open(
    store: CountingStore, autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """E11, T9: the others are aborted at their deadline, and the damaged ones are not read again and again."""
    early = (IndexEntry(BY_DEADLINE, f"{10:020}:x"),)
    damaged = [
        Put("/txn/id/nobody", b"{}", ABSENT, early),
        Put(header_key(v5_id(0, 1)), b"[]", ABSENT, early),
        Put(header_key(v5_id(0, 2)), b"{}", ABSENT, (IndexEntry(BY_DEADLINE, "!"),)),
    ]
    await store.commit(damaged)
    until_s = 100
    txns = [v5_id(0, number) for number in range(3, 6)]
    for txn, timeout_ms in zip(txns, (10, now_ms() + 1_000, now_ms() + until_s * 1_000), strict=True):
        await store.commit([Header(TxnState.OPEN, timeout_ms, 1).to_put(txn, ABSENT)])
    with trio.move_on_after(until_s + 1):
        await TimeoutSweep(
            store, coordinator_of(store), now_ms=now_ms, timer=WallClockTimer(now_ms), counters=OpCounters()
        ).run()
    for txn in txns:
        record = await store.get(header_key(txn))
        assert record is not None
        assert Header.from_value(record.value).state is TxnState.ABORTED
    told = [line for line in capsys.readouterr().out.splitlines() if "damaged" in line]
    assert len(told) == len(damaged)
    assert store.queries <= 20
