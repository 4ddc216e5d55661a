"""How the next owner of a subscription treats what earlier owners left pending."""

from collections.abc import Sequence
from typing import Final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.metadata.store import (
    Check,
    Delete,
    IndexEntry,
    Op,
    Put,
    PutSequential,
    StoreUnavailable,
    exactly,
    starting_with,
)
from storage.position import EARLIEST
from storage.ranges import EntryAck
from tests.support.metadata import damage_records
from tests.support.pending_acks import CLAIM, SEGMENT, owned, stream_of, transactions_of, writes
from tests.support.steered_store import SteeredStore
from txn.errors import OpRecordDamaged, OutcomeUnknown, OwnershipLost, TransactionConflict
from txn.headers import header_key
from txn.op_removal import remove_strange_acks
from txn.ops import ACKS_BY_SUBSCRIPTION, AckOp, acks_of_subscription
from txn.ops import KEY_PREFIX as OPS
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


DAMAGED: Final = (b"", b"{", b"[]", b'{"acks": [1], "command": null}', b'{"acks": [[7, "1", [], 0]], "command": null}')
"""Values that no op record has."""


@pytest.mark.parametrize("value", DAMAGED)
async def test_a_damaged_record_of_an_aborted_transaction_is_removed(
    value: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """E11, T23: whatever it named, nothing of that is acknowledged."""
    store, stream = SteeredStore(), stream_of(3)
    async with owned(store, stream) as old:
        txn, still_open = await old.begin(), await old.begin()
        await old.acknowledge(txn, 1)
    (key,) = await damage_records(store, OPS, value)
    async with owned(store, stream) as new:
        assert key in str(new.acks.damage)
        with pytest.raises(TransactionConflict, match=key):
            await new.acknowledge(still_open, 0)
        await new.acks.caught_up()
        await new.end(txn, EndAction.ABORT)
        assert new.acks.damage is None
        assert new.target.given_back == [EARLIEST], "sending begins anew"
        assert await new.op_keys() == []
        await new.acknowledge(still_open, 0)
        await new.end(still_open, EndAction.COMMIT)
        assert [new.is_acknowledged(entry) for entry in range(3)] == [True, False, False]
        new.assert_clean()
    assert [key in line for line in capsys.readouterr().out.splitlines() if "is damaged" in line] == [True]


@pytest.mark.parametrize("way_out", ["move", "delete"])
async def test_a_damaged_record_of_a_committed_transaction_stops_its_subscription_only(way_out: str) -> None:
    """E11, T23: if its messages were sent again, they would count twice, and if not, they might be lost."""
    store, stream = SteeredStore(), stream_of(3)
    async with owned(store, stream, "other") as other:
        await other.acknowledge(await other.begin(), 0)
    async with owned(store, stream) as old:
        txn = await old.begin()
        await old.acknowledge(txn, 1)
        (key,) = [
            hit.record.key for hit in await store.query(ACKS_BY_SUBSCRIPTION, *acks_of_subscription(SEGMENT, "s"))
        ]
        await damage_records(store, key, b"{")
    await transactions_of(store).coordinator.end(txn, EndAction.COMMIT)
    async with owned(store, stream) as new:
        await wait_all_tasks_blocked()
        assert new.acks.damage is not None
        assert key in await new.op_keys()
        with pytest.raises(OpRecordDamaged, match=key):
            await new.acks.caught_up()
        async with owned(store, stream, "other") as other:
            assert other.acks.damage is None
            assert other.acks.unreserved(stream.positions[0]) == 0
        await store.put(CLAIM, b"")
    async with owned(store, stream) as new:
        if way_out == "move":
            new.cursor.move(EARLIEST)
            new.acks.forget()
        else:
            await new.cursor.delete()
            await new.acks.clear()
        assert new.acks.damage is None
        await wait_all_tasks_blocked()
        assert key not in await new.op_keys()
        new.assert_clean()


async def test_a_damaged_record_of_an_unknown_subscription_is_removed() -> None:
    """E11: the index still names its subscription."""
    store, stream = SteeredStore(), stream_of(3)
    for name in ("s", "gone"):
        async with owned(store, stream, name) as rig:
            await rig.acknowledge(await rig.begin(), 1)
    await damage_records(store, OPS, b"{")
    claim = Check(CLAIM, await store.put(CLAIM, b""))
    await remove_strange_acks(SEGMENT, besides={"s"}, metadata=store, claim=claim)
    left = [hit.index_key for hit in await store.query(ACKS_BY_SUBSCRIPTION, *starting_with(""))]
    assert [exactly(key) for key in left] == [acks_of_subscription(SEGMENT, "s")]


async def test_a_record_that_names_no_transaction_is_named() -> None:
    """E11: nobody can tell when what it acknowledged counts."""
    store, stream = SteeredStore(), stream_of(3)
    async with owned(store, stream) as rig:
        await rig.acknowledge(await rig.begin(), 1)
        (record,) = await store.scan(*starting_with(OPS))
    strange = Put(f"{OPS}strange", b"{}", indexes=tuple(IndexEntry(*entry) for entry in record.indexes))
    await store.commit([strange])
    with pytest.RaisesGroup(pytest.RaisesExc(OpRecordDamaged, match=strange.key)):
        async with owned(store, stream):
            raise AssertionError("it must not open")
