"""Publish, decide, take over and cancel, in any task order, compared with a simple model."""

import trio
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from storage.entry import TxnId
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST, LATEST, Position
from tests.support.disk import SimulatedFiles
from tests.support.schedules import every_schedule
from tests.support.segments import Segment, SegmentHost, segment_host
from txn.errors import InvalidTxnStatus, TxnError
from txn.states import EndAction, TxnState

ENDS = [EndAction.COMMIT, EndAction.ABORT, None]


class World:
    """Two transactions and their writes. Owners may change in between."""

    def __init__(self, host: SegmentHost, segment: Segment, ledger_bytes_max: int) -> None:
        self.host = host
        self.segment = segment
        self.ledger_bytes_max = ledger_bytes_max
        self.appended: list[tuple[Position, TxnId | None, bytes]] = []
        self.decided: dict[TxnId, TxnState] = {}
        self.readable_before = EARLIEST

    async def write(self, txn: TxnId | None, payload: bytes, cancel: bool) -> None:
        with trio.CancelScope() as scope:
            if cancel:
                scope.cancel()
            try:
                position = await self.segment.publish(payload, txn)
            except TxnError:
                return
            self.appended.append((position, txn, payload))

    async def end(self, txn: TxnId, action: EndAction) -> None:
        try:
            await self.host.coordinator.end(txn, action)
        except InvalidTxnStatus:
            return
        self.decided[txn] = TxnState.COMMITTED if action is EndAction.COMMIT else TxnState.ABORTED

    async def take_over(self) -> None:
        self.segment.scope.cancel()
        self.segment = await self.host.own(ledger_bytes_max=self.ledger_bytes_max)

    async def watch(self) -> None:
        """Check that the readable position never goes back, and never passes an undecided entry."""
        segment = self.segment
        while True:
            now = segment.buffer.readable.value
            assert now >= self.readable_before
            self.readable_before = now
            # Each entry has one message, and none was trimmed.
            assert segment.buffer.readable_end == segment.ledger.entries_between(EARLIEST, now)
            await segment.buffer.readable.wait_for(Position(now.ledger, now.entry + 1))


@every_schedule(
    examples_max=100,
    writes=st.lists(st.tuples(st.sampled_from([0, 1, None]), st.booleans()), min_size=1, max_size=8),
    ends=st.tuples(st.sampled_from(ENDS), st.sampled_from(ENDS), st.sampled_from(ENDS)),
    takes_over=st.booleans(),
    ledger_bytes_max=st.sampled_from([1, 200, 1 << 30]),
)
async def test_what_is_visible_follows_from_the_decisions(
    writes: list[tuple[int | None, bool]], ends: tuple[EndAction | None, ...], takes_over: bool, ledger_bytes_max: int
) -> None:
    """T12, T13, T14, T15, T19, T26, D7: every owner shows exactly the entries of committed transactions."""
    async with segment_host(MemoryStore(), SimulatedFiles(seed=2)) as host:
        world = World(host, await host.own(ledger_bytes_max=ledger_bytes_max), ledger_bytes_max)
        txns = [await host.begin(), await host.begin()]
        async with trio.open_nursery() as watching:
            watching.start_soon(world.watch)
            async with trio.open_nursery() as nursery:
                for number, (which, cancel) in enumerate(writes):
                    txn = None if which is None else txns[which]
                    nursery.start_soon(world.write, txn, b"%d" % number, cancel)
                # The third races one of the first two for the same transaction.
                for txn, action in zip((*txns, txns[0]), ends, strict=True):
                    if action is not None:
                        nursery.start_soon(world.end, txn, action)
            await wait_all_tasks_blocked()
            watching.cancel_scope.cancel()
        if takes_over:
            await world.take_over()
        await check(world, txns)
        for txn in txns:
            await world.end(txn, EndAction.COMMIT)
        await wait_all_tasks_blocked()
        await check(world, txns)
        assert await host.op_keys() == []
        assert host.headers.transactions_joined == host.counters.op_records_outstanding == 0
        # What was aborted stays so, wherever it is remembered by now; the last owner knows nothing but that.
        for txn in txns:
            await host.forget_header(txn)
        await world.take_over()
        await wait_all_tasks_blocked()
        await check(world, txns)


async def check(world: World, txns: list[TxnId]) -> None:
    ledger = world.segment.ledger
    entries = await ledger.read(EARLIEST, upto=LATEST, entries_max=100, bytes_max=100_000)
    stored = {entry.position: entry for entry in entries}
    for position, txn, payload in world.appended:
        assert (stored[position].txn, stored[position].payload) == (txn, payload)
    open_ones = [e.position for e in entries if e.txn is not None and e.txn not in world.decided]
    limit = min(open_ones).before() if open_ones else ledger.confirmed.value
    if not any(txn not in world.decided for txn in txns):
        assert world.segment.buffer.readable.value == limit
    assert world.segment.buffer.readable.value <= limit
    expected = [
        entry.payload
        for entry in entries
        if entry.position <= world.segment.buffer.readable.value
        and (entry.txn is None or world.decided[entry.txn] is TxnState.COMMITTED)
    ]
    assert await world.segment.visible() == expected
