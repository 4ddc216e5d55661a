"""Pending acknowledgements of one subscription, with a store that stops, refuses and waits when a test says."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage import cursor_record, ranges
from storage.errors import ExpectedError, fresh
from storage.metadata.store import (
    ChangeSetTooLarge,
    Delete,
    InvalidOperation,
    Op,
    Put,
    PutSequential,
    StoreFull,
    StoreUnavailable,
)
from storage.position import EARLIEST
from tests.support.cancellation import cancel_at_each_step
from tests.support.pending_acks import CLAIM, command, owned, stream_of, writes
from tests.support.steered_store import LaggingStore, SteeredStore
from txn import pending_acks, pending_book
from txn.errors import (
    AcknowledgementTooLarge,
    OutcomeUnknown,
    OwnershipLost,
    PendingAcksDiscarded,
    PendingAcksFull,
    TransactionConflict,
    TransactionEnded,
    TransactionNotFound,
)
from txn.headers import header_key, v5_id
from txn.ops import KEY_PREFIX as OPS
from txn.states import EndAction


async def test_a_record_is_removed_only_when_the_cursor_is_durable() -> None:
    """T23, T26, D3: the order is: write the record, decide, write the cursor, remove the record."""
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
    """T12, T24: the record requires the open header, so it is not written, and the messages are free."""
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
    """T23, T27: the record was first, so it belongs to the transaction, although its writer does not know yet."""
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
    """T24: a cumulative one at or below the mark-delete needs no record, but must hold after a crash."""
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


async def test_a_broker_whose_image_lags() -> None:
    """D5: it accepts acknowledgements of a transaction that it does not know yet, and none after the decision."""
    store = LaggingStore()
    async with owned(store, stream_of(3)) as rig:
        txn = await rig.begin()
        assert store.peek(header_key(txn)) is None
        await rig.acknowledge(txn, 1)
        await rig.end(txn, EndAction.COMMIT)
        assert rig.is_acknowledged(1)
        another = await rig.begin()
        await rig.acknowledge(another, 2)
        await rig.coordinator.end(another, EndAction.ABORT)
        record = store.peek(header_key(another))
        assert record is not None
        assert b"OPEN" in record.value, "it has not heard of that"
        with pytest.raises(TransactionEnded):
            await rig.acknowledge(another, 0)
        rig.cursor.acknowledge_cumulative(rig.stream.positions[0])
        with pytest.raises(TransactionEnded):
            await rig.acknowledge(another, 0, cumulative=True)


async def test_a_moved_cursor_forgets_what_is_pending_and_what_is_being_written() -> None:
    """D16: no decision applies them, and nothing is accepted before the move is durable."""
    store = SteeredStore()
    async with owned(store, stream_of(3)) as rig:
        first, second = await rig.begin(), await rig.begin()
        await rig.acknowledge(first, 0)
        go_on = trio.Event()
        refused: list[PendingAcksDiscarded] = []

        async def hold(ops: Sequence[Op]) -> None:
            if writes(ops, PutSequential, OPS) or writes(ops, Put, "/cursors/"):
                await go_on.wait()

        async def acknowledge_late() -> None:
            with pytest.raises(PendingAcksDiscarded) as caught:
                await rig.acknowledge(second, 1)
            refused.append(caught.value)

        store.before = hold
        async with trio.open_nursery() as nursery:
            nursery.start_soon(acknowledge_late)
            await wait_all_tasks_blocked()
            rig.cursor.move(EARLIEST)
            rig.acks.forget()
            await wait_all_tasks_blocked()
            assert len(await rig.op_keys()) == 1, "until the move is durable a crash brings back what was before"
            with pytest.raises(PendingAcksDiscarded):
                await rig.acknowledge(first, 2)
            go_on.set()
        await wait_all_tasks_blocked()
        assert len(refused) == 1
        assert await rig.op_keys() == []
        rig.assert_clean()
        await rig.acknowledge(first, 2)
        await rig.end(first, EndAction.COMMIT)
        await rig.end(second, EndAction.COMMIT)
        assert [rig.is_acknowledged(entry) for entry in range(3)] == [False, False, True]
        rig.assert_clean()


async def test_the_record_of_an_acknowledgement_from_before_a_move_goes_when_there_is_space() -> None:
    """D16, E13: the store, whose disk is full, refuses the removal; the segment continues."""
    store = SteeredStore()
    async with owned(store, stream_of(3)) as rig:
        txn = await rig.begin()

        async def move(ops: Sequence[Op]) -> None:
            if writes(ops, PutSequential, OPS):
                rig.cursor.move(EARLIEST)
                rig.acks.forget()
            if writes(ops, Delete, OPS):
                store.before = None
                raise StoreFull("no space")

        store.before = move
        with pytest.raises(PendingAcksDiscarded):
            await rig.acknowledge(txn, 1)
        await wait_all_tasks_blocked()
        assert await rig.op_keys() == []
        assert rig.ended == []
        rig.assert_clean()


@pytest.mark.parametrize(
    "refused", [StoreFull("no space"), StoreUnavailable("no answer")], ids=lambda error: str(error)
)
async def test_an_unsubscribe_that_meets_an_acknowledgement_in_flight(refused: StoreUnavailable) -> None:
    """D16, E13: the record is removed with the others, or the segment is closed so that its next owner removes it."""
    store = SteeredStore()
    async with owned(store, stream_of(3)) as rig:
        txn = await rig.begin()
        is_written, go_on = trio.Event(), trio.Event()

        async def hold(ops: Sequence[Op]) -> None:
            if writes(ops, PutSequential, OPS):
                is_written.set()
                await go_on.wait()

        async def refuse_once(ops: Sequence[Op]) -> None:
            if writes(ops, Delete, OPS):
                store.before = None
                raise fresh(refused)

        async def acknowledge_late() -> None:
            with pytest.raises((PendingAcksDiscarded, OutcomeUnknown)):
                await rig.acknowledge(txn, 1)

        async def unsubscribe() -> None:
            await rig.cursor.delete()
            if isinstance(refused, StoreFull):
                await rig.acks.clear()
                return
            with pytest.raises(OutcomeUnknown):
                await rig.acks.clear()

        store.after = hold
        async with trio.open_nursery() as nursery:
            nursery.start_soon(acknowledge_late)
            await is_written.wait()
            nursery.start_soon(unsubscribe)
            await wait_all_tasks_blocked()
            store.before = refuse_once
            go_on.set()
        assert bool(await rig.op_keys()) is not isinstance(refused, StoreFull)
        rig.assert_clean()


async def test_an_acknowledgement_that_waited_through_a_move_is_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """D5, D16: the header was read behind a barrier meanwhile; the acknowledgement would undo the move."""
    store = LaggingStore()
    async with owned(store, stream_of(3)) as rig:
        txn = await rig.begin()
        go_on, plain = trio.Event(), store.barrier

        async def slow() -> int:
            await go_on.wait()
            return await plain()

        async def acknowledge_late() -> None:
            with pytest.raises(PendingAcksDiscarded):
                await rig.acknowledge(txn, 1)

        monkeypatch.setattr(store, "barrier", slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(acknowledge_late)
            await wait_all_tasks_blocked()
            rig.cursor.move(EARLIEST)
            rig.acks.forget()
            await rig.cursor.synced()
            go_on.set()
        assert await rig.op_keys() == []
        await rig.acknowledge(txn, 1)


async def test_more_than_the_cursor_can_remember(monkeypatch: pytest.MonkeyPatch) -> None:
    """T23, T29: committed acknowledgements that the cursor has no room for stay pending until it has room."""
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
    monkeypatch.setattr(pending_book, "PENDING_MAX", 4)
    async with owned(SteeredStore(), stream_of(9)) as rig:
        txn = await rig.begin()
        await rig.acknowledge(txn, 0, 1, 2)
        with pytest.raises(PendingAcksFull):
            await rig.acknowledge(await rig.begin(), 3)
        await rig.end(txn, EndAction.COMMIT)
        await rig.acknowledge(await rig.begin(), 3)
        txn = await rig.begin()
        with monkeypatch.context() as tight:
            tight.setattr(pending_book, "PENDING_BYTES_MAX", 500)
            await rig.acknowledge(txn, 5)
            with pytest.raises(PendingAcksFull):
                await rig.acknowledge(txn, 6)
            await rig.end(txn, EndAction.ABORT)
            await rig.acknowledge(await rig.begin(), 6)
        monkeypatch.setattr(pending_acks, "RECORD_BYTES_MAX", 10)
        with pytest.raises(AcknowledgementTooLarge):
            await rig.acknowledge(await rig.begin(), 4)


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (ChangeSetTooLarge("above the limit"), AcknowledgementTooLarge),
        (InvalidOperation("above the limit"), InvalidOperation),
        (StoreFull("no space"), StoreFull),
    ],
    ids=lambda given: given.__name__ if isinstance(given, type) else "",
)
async def test_a_record_that_the_store_refuses_is_refused_alone(
    refused: ExpectedError, told: type[ExpectedError]
) -> None:
    """T22, E11: it is known that nothing was written. So the messages are free, and the subscription continues."""
    store = SteeredStore()
    async with owned(store, stream_of(3)) as rig:
        txn = await rig.begin()
        await rig.acknowledge(txn, 1)

        async def refuse(ops: Sequence[Op]) -> None:
            if writes(ops, PutSequential, OPS):
                raise fresh(refused)

        store.before = refuse
        with pytest.raises(told, match=str(refused)) as raised:
            await rig.acknowledge(txn, 0, identity=command())
        assert raised.value.definite
        store.before = None
        await wait_all_tasks_blocked()
        assert rig.ended == []
        assert rig.acks.unreserved(rig.stream.positions[0]) is None
        assert rig.target.given_back == [rig.stream.positions[0]]
        await rig.acknowledge(txn, 0, identity=command())
        await rig.end(txn, EndAction.COMMIT)
        assert [rig.is_acknowledged(entry) for entry in range(3)] == [True, True, False]
        rig.assert_clean()


async def test_one_that_is_refused_leaves_the_transactions_others_reserved() -> None:
    """T24: a cumulative command names another one's messages; refusing it frees only its own."""
    store = SteeredStore()
    async with owned(store, stream_of(3)) as rig:
        txn = await rig.begin()
        await rig.acknowledge(txn, 1)
        with pytest.raises(TransactionConflict):
            await rig.acknowledge(await rig.begin(), 0, 1)

        async def take_over(ops: Sequence[Op]) -> None:
            if writes(ops, PutSequential, OPS):
                store.before = None
                await store.put(CLAIM, b"another's")

        store.before = take_over
        with pytest.raises(OwnershipLost):
            await rig.acknowledge(txn, 2, cumulative=True)
        assert [rig.acks.unreserved(rig.stream.positions[entry]) for entry in (0, 1, 2)] == [None, 0, None]


async def test_acknowledging_cancelled_at_any_step() -> None:
    """T22, E5: there is a record and a reservation, or neither. The cancelled command can be repeated."""
    async with owned(SteeredStore(), stream_of(3)) as rig:
        txn = await rig.begin()

        async def check() -> None:
            await wait_all_tasks_blocked()
            reserved = rig.acks.unreserved(rig.stream.positions[0]) == 0
            assert bool(await rig.op_keys()) is reserved is bool(rig.acks.transactions)

        await cancel_at_each_step(lambda: rig.acknowledge(txn, 0, identity=command()), check)
        assert len(await rig.op_keys()) == 1
        await rig.end(txn, EndAction.COMMIT)
        rig.assert_clean()
        assert rig.is_acknowledged(0)


async def test_a_record_that_is_answered_after_the_subscription_was_closed_is_not_counted() -> None:
    """T34: it belongs to the next owner, who counts it."""
    store = SteeredStore()
    go_on = trio.Event()

    async def hold(ops: Sequence[Op]) -> None:
        if writes(ops, PutSequential, OPS):
            await go_on.wait()

    async with trio.open_nursery() as nursery:
        async with owned(store, stream_of(3)) as rig:
            store.after = hold
            nursery.start_soon(rig.acknowledge, await rig.begin(), 1)
            await wait_all_tasks_blocked()
        go_on.set()
    assert rig.counters.op_records_outstanding == rig.headers.transactions_joined == 0


async def test_clearing_cancelled_at_any_step() -> None:
    """D16: it happens completely or not at all."""
    async with owned(SteeredStore(), stream_of(3)) as rig:
        txn = await rig.begin()

        async def check() -> None:
            await wait_all_tasks_blocked()
            assert await rig.op_keys() == []
            rig.assert_clean()
            await rig.acknowledge(txn, 0)

        await rig.acknowledge(txn, 0)
        await cancel_at_each_step(rig.acks.clear, check)


async def test_the_cursor_is_asked_behind_every_decision() -> None:
    """T23, T27: `caught_up` reads the headers itself, so a late watch does no harm."""
    async with owned(SteeredStore(), stream_of(3)) as rig:
        txn, open_one = await rig.begin(), await rig.begin()
        await rig.acknowledge(txn, 1, cumulative=True)
        await rig.acknowledge(open_one, 2)
        told = rig.headers._participants.copy()
        rig.headers._participants.clear()  # The watch's news reaches nobody.
        await rig.end(txn, EndAction.COMMIT)
        assert not rig.is_acknowledged(1)
        rig.headers._participants.update(told)
        await rig.acks.caught_up()
        assert rig.cursor.mark_delete == rig.stream.positions[1]
        await wait_all_tasks_blocked()
        await rig.end(open_one, EndAction.ABORT)


@pytest.mark.parametrize("is_waiting", [False, True])
async def test_a_stale_owner_says_nothing_about_the_cursor(is_waiting: bool) -> None:
    """C19, D4: even if no transaction is open here, the new owner's cursor may be further."""
    async with owned(LaggingStore(), stream_of(3)) as rig:
        if is_waiting:
            await rig.acknowledge(await rig.begin(), 1)
        await rig.acks.caught_up()
        await rig.store.put(CLAIM, b"another's")
        with pytest.raises(OwnershipLost):
            await rig.acks.caught_up()
        await wait_all_tasks_blocked()
        assert [type(end) for end in rig.ended] == [OwnershipLost]


async def test_an_acknowledgement_that_waited_through_an_abort_of_a_cumulative_one_is_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T24, D5: its consumer had messages behind those that are redelivered now, and would acknowledge these."""
    store = LaggingStore()
    async with owned(store, stream_of(5)) as rig:
        aborted = await rig.begin()
        await rig.acknowledge(aborted, 2, cumulative=True)
        txn = await rig.begin()
        go_on, plain = trio.Event(), store.barrier

        async def slow() -> int:
            await go_on.wait()
            return await plain()

        async def acknowledge_late() -> None:
            with pytest.raises(PendingAcksDiscarded):
                await rig.acknowledge(txn, 3, cumulative=True)

        monkeypatch.setattr(store, "barrier", slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(acknowledge_late)
            await wait_all_tasks_blocked()
            await rig.end(aborted, EndAction.ABORT)
            assert rig.target.given_back == [rig.stream.positions[2]]
            go_on.set()
        assert await rig.op_keys() == []
        await rig.acknowledge(txn, 3, cumulative=True)


async def test_a_record_stays_until_the_last_of_its_messages_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """T26, D3: the cursor's record has room only for the first message, until the gaps below are filled."""
    monkeypatch.setattr(cursor_record, "STORED_MAX", 1)
    async with owned(SteeredStore(), stream_of(5)) as rig:
        txn = await rig.begin()
        await rig.acknowledge(txn, 1, 3)
        await rig.end(txn, EndAction.COMMIT)
        assert len(await rig.op_keys()) == 1
        for entry in (0, 2):
            rig.cursor.acknowledge(rig.stream.positions[entry])
        await rig.cursor.synced()
        await wait_all_tasks_blocked()
        assert await rig.op_keys() == []
        rig.assert_clean()
