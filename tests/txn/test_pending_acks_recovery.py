"""How the next owner of a subscription treats what earlier owners left pending."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.metadata.store import Check, Delete, Op, PutSequential, StoreUnavailable, starting_with
from storage.ranges import EntryAck
from tests.support.pending_acks import CLAIM, SEGMENT, owned, stream_of, transactions_of, writes
from tests.support.steered_store import SteeredStore
from txn.errors import OutcomeUnknown, OwnershipLost, TransactionConflict
from txn.headers import header_key
from txn.op_removal import remove_strange_acks
from txn.ops import KEY_PREFIX as OPS
from txn.ops import AckOp
from txn.states import EndAction


async def test_a_stale_owner_records_nothing() -> None:
    """D4: its claim is gone, so it ends; the next owner finds the earlier records."""
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


async def test_a_record_that_a_stale_owner_cannot_take_back_has_an_unknown_outcome() -> None:
    """D16, M22: the cursor moved while the record was written. If the move never becomes durable, the record counts."""
    store, stream = SteeredStore(), stream_of(3)
    async with owned(store, stream) as old:
        txn = await old.begin()

        async def move_and_take_over(ops: Sequence[Op]) -> None:
            if writes(ops, PutSequential, OPS):
                store.after = None
                old.acks.forget()
                await store.put(CLAIM, b"another's")

        store.after = move_and_take_over
        with pytest.raises(OutcomeUnknown) as told:
            await old.acknowledge(txn, 1)
        assert not told.value.definite
        assert len(await old.op_keys()) == 1
        await wait_all_tasks_blocked()
        assert len(old.ended) == 1


async def test_an_unknown_answer_leaves_the_rest_to_the_next_owner() -> None:
    """T26, M22: the record may exist, so its messages are neither acknowledged nor resent here."""
    store, stream = SteeredStore(), stream_of(3)
    async with owned(store, stream) as old:
        txn = await old.begin()

        async def break_off(ops: Sequence[Op]) -> None:
            if writes(ops, PutSequential, OPS):
                store.after = None
                raise StoreUnavailable("no answer")

        store.after = break_off
        with pytest.raises(OutcomeUnknown):
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
    """T25: recovery groups the records by transaction and applies decided ones; open ones stay reserved."""
    store, stream = SteeredStore(), stream_of(5)
    async with owned(store, stream) as old:
        committed, aborted, still_open = [await old.begin() for _ in range(3)]
        await old.acknowledge(committed, 1)
        await old.acknowledge(committed, 3)
        await old.acknowledge(aborted, 2)
        await old.acknowledge(still_open, 4)
    coordinator = transactions_of(store).coordinator
    await coordinator.end(committed, EndAction.COMMIT)
    await coordinator.end(aborted, EndAction.ABORT)
    async with owned(store, stream) as new:
        assert [new.is_acknowledged(entry) for entry in range(5)] == [False, True, False, True, False]
        assert [new.acks.unreserved(stream.positions[entry]) for entry in (2, 4)] == [None, 0]
        await wait_all_tasks_blocked()
        assert len(await new.op_keys()) == new.acks.transactions == new.counters.op_records_outstanding == 1
        assert new.counters.index_queries == 1


async def test_of_two_cumulative_ones_the_open_one_stays_reserved() -> None:
    """T24, T25: the decided one's records are still there; whichever is found first, the other stays reserved."""
    store, stream = SteeredStore(), stream_of(5)

    async def hang(ops: Sequence[Op]) -> None:
        if writes(ops, Delete, OPS):
            await trio.sleep_forever()

    async with owned(store, stream) as old:
        still_open, committed = await old.begin(), await old.begin()
        store.before = hang
        await old.acknowledge(committed, 1, cumulative=True)
        await old.end(committed, EndAction.COMMIT)
        await old.acknowledge(still_open, 3, cumulative=True)
    store.before = None
    async with owned(store, stream) as new:
        await wait_all_tasks_blocked()
        assert [new.acks.unreserved(stream.positions[entry]) for entry in (2, 3, 4)] == [0, 0, None]
        with pytest.raises(TransactionConflict):
            await new.acknowledge(await new.begin(), 3, cumulative=True)
        await new.end(still_open, EndAction.COMMIT)
        assert new.is_acknowledged(3)
        new.assert_clean()


async def test_records_without_a_header_or_of_another_subscription_are_removed() -> None:
    """T28, D16: nothing proves a commit, or their cursor is gone; nothing is acknowledged."""
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
    """T32: with any names, two subscriptions do not see each other's records."""
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


async def test_a_stale_owner_removes_no_record() -> None:
    """D4: it gets the abort like the new owner, which must find the acknowledgements."""
    store, stream = SteeredStore(), stream_of(3)
    async with owned(store, stream) as old:
        txn = await old.begin()
        await old.acknowledge(txn, 0)
        await store.put(CLAIM, b"another's")
        await old.end(txn, EndAction.ABORT)
        assert len(await old.op_keys()) == 1
        assert len(old.ended) == 1
