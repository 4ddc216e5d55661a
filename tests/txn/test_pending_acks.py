"""Pending acknowledgements of one subscription, with a store that stops, refuses and waits where a test says."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage import ranges
from storage.cursor import Cursor
from storage.entry import TxnId
from storage.metadata.store import Check, Delete, Op, Put, PutSequential, StoreUnavailable, starting_with
from storage.position import EARLIEST, Position
from storage.ranges import EntryAck
from tests.support.cancellation import cancel_at_each_step
from tests.support.steered_store import SteeredStore
from tests.support.stream import MemoryStream
from txn import pending_acks
from txn.alarm import Alarm
from txn.buffer import BufferCounters
from txn.coordinator import Coordinator
from txn.errors import (
    OwnershipLost,
    PendingAcksDiscarded,
    PendingAcksFull,
    TransactionConflict,
    TransactionEnded,
    TransactionNotFound,
)
from txn.header_watch import HeaderWatch
from txn.headers import header_key, v5_id
from txn.op_removal import remove_strange_acks
from txn.ops import KEY_PREFIX as OPS
from txn.ops import AckOp
from txn.pending_acks import PendingAcks
from txn.states import EndAction

SEGMENT = "segment://public/default/x/0000-ffff-0"
CLAIM = f"/owners/{SEGMENT}"


class Target:
    """A subscription that takes acknowledgements into its cursor and keeps what it is given back."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.given_back: list[Position] = []

    def require_acknowledgeable(self, acks: Sequence[EntryAck], *, cumulative: bool) -> None:
        """Everything is."""

    def set_aside(self, acks: Sequence[EntryAck], *, cumulative: bool) -> None:
        """Nobody holds anything."""

    def take(self, acks: Sequence[EntryAck], *, cumulative: bool) -> list[EntryAck]:
        if cumulative:
            for ack in acks:
                self.cursor.acknowledge_cumulative(ack.position)
            return []
        return [ack for ack in acks if not self.cursor.acknowledge_batch(ack.position, ack.remaining)]

    def give_back(self, acks: Sequence[EntryAck], *, cumulative: bool) -> None:
        self.given_back += [ack.position for ack in acks]


@dataclass
class Rig:
    """One owner's subscription, running."""

    store: SteeredStore
    stream: MemoryStream
    headers: HeaderWatch
    coordinator: Coordinator
    cursor: Cursor
    target: Target
    acks: PendingAcks
    counters: BufferCounters
    ended: list[BaseException] = field(default_factory=list)

    async def begin(self) -> TxnId:
        return await self.coordinator.new_transaction(0, 60_000)

    async def acknowledge(self, txn: TxnId, *entries: int, cumulative: bool = False) -> None:
        await self.acks.acknowledge(txn, [EntryAck(self.stream.positions[e]) for e in entries], cumulative=cumulative)

    async def end(self, txn: TxnId, action: EndAction) -> None:
        await self.coordinator.end(txn, action)
        await wait_all_tasks_blocked()

    async def op_keys(self) -> list[str]:
        return [record.key for record in await self.store.scan(*starting_with(OPS))]

    def is_acknowledged(self, entry: int) -> bool:
        return self.cursor.is_acknowledged(self.stream.positions[entry])

    def assert_clean(self) -> None:
        assert self.acks.transactions == self.headers.transactions_joined == self.counters.op_records_outstanding == 0


def make_coordinator(store: SteeredStore) -> Coordinator:
    return Coordinator(
        store,
        count=1,
        now_ms=lambda: 1_000,
        timeout_ms_max=1_000_000,
        timeout_alarm=Alarm(lambda: 1_000),
        final_alarm=Alarm(lambda: 1_000),
    )


@asynccontextmanager
async def owned(store: SteeredStore, stream: MemoryStream, name: str = "s") -> AsyncIterator[Rig]:
    """The subscription's next owner."""
    claim = Check(CLAIM, await store.put(CLAIM, b""))
    headers, counters = HeaderWatch(store), BufferCounters()
    async with trio.open_nursery() as nursery:
        await nursery.start(headers.run)
        cursor = await Cursor.open(name, ledger=stream, metadata=store, claim=claim, start=EARLIEST)
        acks = PendingAcks(SEGMENT, cursor, metadata=store, headers=headers, claim=claim, counters=counters)
        rig = Rig(store, stream, headers, make_coordinator(store), cursor, Target(cursor), acks, counters)
        await acks.recover(rig.target)

        async def run() -> None:
            try:
                await acks.run()
            except OwnershipLost as lost:
                rig.ended.append(lost)

        nursery.start_soon(run)
        nursery.start_soon(cursor.run)
        yield rig
        nursery.cancel_scope.cancel()
    assert headers.transactions_joined == 0, "nobody is told any more"


def stream_of(entries: int) -> MemoryStream:
    stream = MemoryStream(SEGMENT)
    for _ in range(entries):
        stream.append(messages=3)
    return stream


def writes(ops: Sequence[Op], kind: type[Op], prefix: str) -> bool:
    return any(
        isinstance(op, kind)
        and (op.prefix if isinstance(op, PutSequential) else getattr(op, "key", "")).startswith(prefix)
        for op in ops
    )


async def test_a_record_is_removed_only_when_the_cursor_is_durable() -> None:
    """T23, T26, D3: put the record, decide, put the cursor, remove the record; in this order."""
    store = SteeredStore()
    seen: list[str] = []

    async def note(ops: Sequence[Op]) -> None:
        for name, kind, prefix in (("op", PutSequential, OPS), ("cursor", Put, "/cursors/"), ("gone", Delete, OPS)):
            if writes(ops, kind, prefix):
                seen.append(name)

    async with owned(store, stream_of(3)) as rig:
        txn = await rig.begin()
        store.before = note
        await rig.acknowledge(txn, 0, 2)
        await wait_all_tasks_blocked()
        assert seen == ["op"], "the cursor is not touched before the commit"
        await rig.end(txn, EndAction.COMMIT)
        assert seen == ["op", "cursor", "gone"]
        rig.assert_clean()


@pytest.mark.parametrize("action", EndAction)
async def test_a_decision_that_comes_first_refuses_the_acknowledgement(action: EndAction) -> None:
    """T12, T24: the record is conditioned on the open header, so it is not written, and the messages are free."""
    store = SteeredStore()
    async with owned(store, stream_of(3)) as rig:
        txn = await rig.begin()

        async def decide(ops: Sequence[Op]) -> None:
            if writes(ops, PutSequential, OPS):
                store.before = None
                await rig.coordinator.end(txn, action)

        store.before = decide
        with pytest.raises(TransactionEnded):
            await rig.acknowledge(txn, 1)
        assert await rig.op_keys() == []
        assert not rig.is_acknowledged(1)
        assert rig.target.given_back == [rig.stream.positions[1]]
        await rig.acknowledge(await rig.begin(), 1)


@pytest.mark.parametrize("action", EndAction)
async def test_a_decision_while_the_record_is_being_answered(action: EndAction) -> None:
    """T23, T27: the record was first, so it is part of the transaction, though its writer does not know yet."""
    store = SteeredStore()
    async with owned(store, stream_of(3)) as rig:
        txn = await rig.begin()

        async def decide(ops: Sequence[Op]) -> None:
            if writes(ops, PutSequential, OPS):
                store.after = None
                await rig.coordinator.end(txn, action)
                await trio.testing.wait_all_tasks_blocked()

        store.after = decide
        await rig.acknowledge(txn, 1)
        await wait_all_tasks_blocked()
        assert rig.is_acknowledged(1) is (action is EndAction.COMMIT)
        assert await rig.op_keys() == []
        rig.assert_clean()


async def test_what_is_acknowledged_already_is_answered_when_that_is_durable() -> None:
    """T24: a cumulative one at or below the mark-delete records nothing; after a crash it must hold all the same."""
    store = SteeredStore()
    async with owned(store, stream_of(3)) as rig:
        txn = await rig.begin()
        rig.cursor.acknowledge(rig.stream.positions[0])
        with pytest.raises(TransactionConflict):
            await rig.acknowledge(txn, 0)
        assert rig.cursor.durable.value < rig.stream.positions[0]
        await rig.acknowledge(txn, 0, cumulative=True)
        assert rig.cursor.durable.value == rig.stream.positions[0]
        assert await rig.op_keys() == []
        with pytest.raises(TransactionNotFound):
            await rig.acknowledge(v5_id(0, 4711), 0, cumulative=True)
        await rig.end(txn, EndAction.ABORT)
        with pytest.raises(TransactionEnded):
            await rig.acknowledge(txn, 0, cumulative=True)


async def test_a_stale_owner_records_nothing() -> None:
    """D4: its claim is gone, so it ends; the next owner finds what was recorded before."""
    store, stream = SteeredStore(), stream_of(3)
    async with owned(store, stream) as old:
        txn = await old.begin()
        await old.acknowledge(txn, 0)
        async with owned(store, stream) as new:
            with pytest.raises(OwnershipLost):
                await old.acknowledge(txn, 1)
            await wait_all_tasks_blocked()
            assert len(old.ended) == 1
            assert new.acks.unreserved(stream.positions[0]) == 0
            await new.end(txn, EndAction.COMMIT)
            assert (new.is_acknowledged(0), new.is_acknowledged(1)) == (True, False)
            assert await new.op_keys() == []


async def test_an_unknown_answer_leaves_the_rest_to_the_next_owner() -> None:
    """T26, M22: the record may be there, so what it names is neither applied nor sent again here."""
    store, stream = SteeredStore(), stream_of(3)
    async with owned(store, stream) as old:
        txn = await old.begin()

        async def break_off(ops: Sequence[Op]) -> None:
            if writes(ops, PutSequential, OPS):
                store.after = None
                raise StoreUnavailable("no answer")

        store.after = break_off
        with pytest.raises(OwnershipLost):
            await old.acknowledge(txn, 1)
        await old.end(txn, EndAction.COMMIT)
        assert len(old.ended) == 1
        assert old.acks.unreserved(stream.positions[1]) == 0
        assert not old.is_acknowledged(1)
        async with owned(store, stream) as new:
            await wait_all_tasks_blocked()
            assert new.is_acknowledged(1)
            assert await new.op_keys() == []
            new.assert_clean()


async def test_final_headers_are_materialised_at_once() -> None:
    """T25: recovery groups the records by transaction and applies what was decided; what is open stays reserved."""
    store, stream = SteeredStore(), stream_of(5)
    async with owned(store, stream) as old:
        committed, aborted, still_open = [await old.begin() for _ in range(3)]
        await old.acknowledge(committed, 1)
        await old.acknowledge(committed, 3)
        await old.acknowledge(aborted, 2)
        await old.acknowledge(still_open, 4)
    coordinator = make_coordinator(store)
    await coordinator.end(committed, EndAction.COMMIT)
    await coordinator.end(aborted, EndAction.ABORT)
    async with owned(store, stream) as new:
        assert [new.is_acknowledged(entry) for entry in range(5)] == [False, True, False, True, False]
        assert [new.acks.unreserved(stream.positions[entry]) for entry in (2, 4)] == [None, 0]
        await wait_all_tasks_blocked()
        assert len(await new.op_keys()) == new.acks.transactions == new.counters.op_records_outstanding == 1
        assert new.counters.index_queries == 1


async def test_records_without_a_header_or_of_another_subscription_are_removed() -> None:
    """T28, D16: nothing says that they were committed, or the cursor they are of is gone; nothing is acknowledged."""
    store, stream = SteeredStore(), stream_of(3)
    async with owned(store, stream) as old:
        txn = await old.begin()
        await old.acknowledge(txn, 1)
        strange = AckOp(txn, SEGMENT, "s", "another creation", True, (EntryAck(stream.positions[2]),))
        await store.commit([strange.to_put()])
    await store.delete(header_key(txn))
    async with owned(store, stream) as new:
        await wait_all_tasks_blocked()
        assert await new.op_keys() == []
        assert not any(new.is_acknowledged(entry) for entry in range(3))
        new.assert_clean()


async def test_names_that_contain_the_separators_are_told_apart() -> None:
    """T32: whatever two subscriptions are called, neither sees the other's records."""
    store, stream = SteeredStore(), stream_of(3)
    names = ["a:b", "a", "a%3Ab", "b/a:", "a:b:c"]
    for number, name in enumerate(names):
        async with owned(store, stream, name) as rig:
            assert rig.acks.transactions == 0
            await rig.acknowledge(await rig.begin(), number % 3)
    for name in names:
        async with owned(store, stream, name) as rig:
            assert rig.acks.transactions == 1
    claim = Check(CLAIM, await store.put(CLAIM, b""))
    await remove_strange_acks(SEGMENT, besides={"a:b", "a"}, metadata=store, claim=claim)
    left = [AckOp.from_record(record).subscription for record in await store.scan(*starting_with(OPS))]
    assert sorted(left) == ["a", "a:b"]


async def test_discarding_waits_for_what_is_being_written_and_forgets_it() -> None:
    """D16: before a subscription is moved or removed; nothing is taken meanwhile, and the commit changes nothing."""
    store = SteeredStore()
    async with owned(store, stream_of(3)) as rig:
        first, second = await rig.begin(), await rig.begin()
        await rig.acknowledge(first, 0)
        go_on = trio.Event()

        async def hold(ops: Sequence[Op]) -> None:
            if writes(ops, PutSequential, OPS):
                await go_on.wait()

        store.before = hold
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.acknowledge, second, 1)
            await wait_all_tasks_blocked()
            nursery.start_soon(rig.acks.discard)
            await wait_all_tasks_blocked()
            with pytest.raises(PendingAcksDiscarded):
                await rig.acknowledge(first, 2)
            go_on.set()
        assert await rig.op_keys() == []
        rig.assert_clean()
        await rig.end(first, EndAction.COMMIT)
        await rig.end(second, EndAction.COMMIT)
        assert not any(rig.is_acknowledged(entry) for entry in range(3))
        await rig.acknowledge(await rig.begin(), 0)


async def test_more_than_the_cursor_can_remember(monkeypatch: pytest.MonkeyPatch) -> None:
    """T23, T29: what a commit acknowledges and the cursor has no room for stays pending until it has."""
    monkeypatch.setattr(ranges, "RANGES_MAX", 2)
    store = SteeredStore()
    async with owned(store, stream_of(9)) as rig:
        txn = await rig.begin()
        await rig.acknowledge(txn, 1, 3, 5, 7)
        await rig.end(txn, EndAction.COMMIT)
        assert [rig.is_acknowledged(entry) for entry in (1, 3, 5, 7)] == [True, True, False, False]
        assert rig.acks.unreserved(rig.stream.positions[5]) == 0, "it is sent to nobody"
        assert len(await rig.op_keys()) == 1
        rig.cursor.acknowledge(rig.stream.positions[0])
        rig.cursor.acknowledge(rig.stream.positions[2])
        await rig.cursor.synced()
        await wait_all_tasks_blocked()
        assert all(rig.is_acknowledged(entry) for entry in (1, 3, 5, 7))
        assert await rig.op_keys() == []
        rig.assert_clean()


async def test_what_is_pending_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a refused command is kept; the end of a transaction makes room."""
    monkeypatch.setattr(pending_acks, "PENDING_MAX", 4)
    async with owned(SteeredStore(), stream_of(9)) as rig:
        txn = await rig.begin()
        await rig.acknowledge(txn, 0, 1, 2)
        with pytest.raises(PendingAcksFull):
            await rig.acknowledge(await rig.begin(), 3)
        await rig.end(txn, EndAction.COMMIT)
        await rig.acknowledge(await rig.begin(), 3)
        monkeypatch.setattr(pending_acks, "RECORD_BYTES_MAX", 10)
        with pytest.raises(PendingAcksFull):
            await rig.acknowledge(await rig.begin(), 4)


async def test_one_that_is_refused_leaves_the_transactions_others_reserved() -> None:
    """T24: two commands may name the same messages; refusing one frees only what no other holds."""
    store = SteeredStore()
    async with owned(store, stream_of(3)) as rig:
        txn = await rig.begin()
        await rig.acknowledge(txn, 1)
        with pytest.raises(TransactionConflict):
            await rig.acknowledge(await rig.begin(), 0, 1)

        async def decide(ops: Sequence[Op]) -> None:
            if writes(ops, PutSequential, OPS):
                store.before = None
                await store.delete(header_key(txn))

        store.before = decide
        with pytest.raises(TransactionNotFound):
            await rig.acknowledge(txn, 1, 2)
        assert [rig.acks.unreserved(rig.stream.positions[entry]) for entry in (1, 2)] == [0, None]


async def test_acknowledging_cancelled_at_any_step() -> None:
    """T22: there is a record and a reservation, or there is neither; whoever cancels does not break the rest."""
    async with owned(SteeredStore(), stream_of(3)) as rig:
        txn = await rig.begin()

        async def check() -> None:
            await wait_all_tasks_blocked()
            reserved = rig.acks.unreserved(rig.stream.positions[0]) == 0
            assert bool(await rig.op_keys()) is reserved is bool(rig.acks.transactions)

        await cancel_at_each_step(lambda: rig.acknowledge(txn, 0), check)
        await rig.end(txn, EndAction.COMMIT)
        rig.assert_clean()
        assert rig.is_acknowledged(0)


async def test_discarding_cancelled_at_any_step() -> None:
    """D16: it is done as a whole."""
    async with owned(SteeredStore(), stream_of(3)) as rig:
        txn = await rig.begin()

        async def discard() -> None:
            await rig.acks.discard()

        async def check() -> None:
            await wait_all_tasks_blocked()
            assert await rig.op_keys() == []
            rig.assert_clean()
            await rig.acknowledge(txn, 0)

        await rig.acknowledge(txn, 0)
        await cancel_at_each_step(discard, check)
