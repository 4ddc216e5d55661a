"""Messages that are acknowledged twice in transactions, and repeated commands."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.metadata.store import Op, PutSequential, StoreUnavailable
from storage.position import EARLIEST
from storage.ranges import EntryAck
from tests.support.pending_acks import command, owned, stream_of, writes
from tests.support.steered_store import SteeredStore
from txn.errors import OutcomeUnknown, PendingAcksDiscarded, TransactionConflict, TransactionEnded
from txn.ops import KEY_PREFIX as OPS
from txn.states import EndAction


async def test_a_message_is_acknowledged_once_in_its_own_transaction_too() -> None:
    """E5: a second individual acknowledgement is a conflict and changes nothing; a cumulative one may follow."""
    async with owned(SteeredStore(), stream_of(5)) as rig:
        txn = await rig.begin()
        await rig.acknowledge(txn, 1, identity=command())
        for identity in (None, command(2), command(1, "another")):
            with pytest.raises(TransactionConflict):
                await rig.acknowledge(txn, 1, identity=identity)
            with pytest.raises(TransactionConflict):
                await rig.acknowledge(txn, 2, 1, identity=identity)
        with pytest.raises(TransactionConflict):
            await rig.acknowledge(txn, 2, 2)
        assert rig.acks.unreserved(rig.stream.positions[2]) is None
        for _ in range(2):
            await rig.acknowledge(txn, 3, cumulative=True)
        with pytest.raises(TransactionConflict):
            await rig.acknowledge(txn, 2)
        await rig.end(txn, EndAction.COMMIT)
        assert [rig.is_acknowledged(entry) for entry in range(5)] == [True, True, True, True, False]
        rig.assert_clean()


async def test_messages_of_a_batch_are_acknowledged_once_each() -> None:
    """E5: this holds for their bits, in one command or several, of one transaction or two."""
    async with owned(SteeredStore(), stream_of(2)) as rig:
        first, second, third = [EntryAck(rig.stream.positions[0], 0b111 & ~(1 << bit), 3) for bit in range(3)]
        txn = await rig.begin()
        await rig.acks.acknowledge(txn, [first, second], cumulative=False)
        for acks in ([first], [third, second], [third, third], [EntryAck(rig.stream.positions[0], 0, 3)]):
            with pytest.raises(TransactionConflict):
                await rig.acks.acknowledge(txn, acks, cumulative=False)
        await rig.acks.acknowledge(txn, [third], cumulative=False)
        await rig.end(txn, EndAction.COMMIT)
        assert rig.is_acknowledged(0)


async def test_the_repeat_of_a_command_is_no_second_acknowledgement() -> None:
    """E5: it arrives on another connection with the same name, number and messages, and gets the first answer."""
    async with owned(SteeredStore(), stream_of(5)) as rig:
        txn, another = await rig.begin(), await rig.begin()
        sent = command()
        await rig.acknowledge(txn, 1, 2, identity=sent)
        with pytest.raises(TransactionConflict):
            await rig.acknowledge(txn, 1, 2, identity=sent)
        for _ in range(2):
            await rig.acknowledge(txn, 1, 2, identity=command())
        for entries in ((1,), (2, 1), (1, 2, 3)):
            with pytest.raises(TransactionConflict):
                await rig.acknowledge(txn, *entries, identity=command())
        with pytest.raises(TransactionConflict):
            await rig.acknowledge(another, 1, 2, identity=command())
        # It may have been acknowledged outside any transaction meanwhile.
        rig.cursor.acknowledge(rig.stream.positions[1])
        await rig.acknowledge(txn, 1, 2, identity=command())
        assert len(await rig.op_keys()) == 1
        await rig.end(txn, EndAction.COMMIT)
        with pytest.raises(TransactionEnded):
            await rig.acknowledge(txn, 1, 2, identity=command())
        rig.assert_clean()


@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_repeat_waits_for_the_first(is_taken: bool) -> None:
    """E5: it is unknown whether the first is recorded; if it is refused, so is the repeat."""
    store = SteeredStore()
    async with owned(store, stream_of(3)) as rig:
        txn = await rig.begin()
        go_on = trio.Event()
        answered: list[str] = []

        async def hold(ops: Sequence[Op]) -> None:
            if writes(ops, PutSequential, OPS):
                store.before = None
                await go_on.wait()
                if not is_taken:
                    await rig.coordinator.end(txn, EndAction.ABORT)

        async def acknowledge() -> None:
            try:
                await rig.acknowledge(txn, 1, identity=command())
            except TransactionEnded:
                answered.append("ended")
            else:
                answered.append("taken")

        store.before = hold
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(acknowledge)
                await wait_all_tasks_blocked()
            assert answered == []
            go_on.set()
        assert answered == ["taken" if is_taken else "ended"] * 2
        assert len(await rig.op_keys()) == is_taken


async def test_a_cumulative_command_and_its_repeat_are_both_refused() -> None:
    """T24, E5: they do not wait for each other, and the transaction ends before either is recorded."""
    store = SteeredStore()
    async with owned(store, stream_of(3)) as rig:
        txn = await rig.begin()
        held: list[trio.Event] = []

        async def hold(ops: Sequence[Op]) -> None:
            if writes(ops, PutSequential, OPS):
                held.append(trio.Event())
                await held[-1].wait()

        async def acknowledge() -> None:
            with pytest.raises(TransactionEnded):
                await rig.acknowledge(txn, 1, cumulative=True, identity=command())

        store.before = hold
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(acknowledge)
                await wait_all_tasks_blocked()
            await rig.end(txn, EndAction.COMMIT)
            for write in held:
                write.set()
                await wait_all_tasks_blocked()
        assert not rig.is_acknowledged(1)
        rig.assert_clean()


async def test_a_repeat_of_a_refused_command_is_the_first() -> None:
    """E5: the first one had met a conflict that is over now."""
    async with owned(SteeredStore(), stream_of(3)) as rig:
        txn, other = await rig.begin(), await rig.begin()
        await rig.acknowledge(other, 1)
        with pytest.raises(TransactionConflict):
            await rig.acknowledge(txn, 1, identity=command())
        await rig.end(other, EndAction.ABORT)
        await rig.acknowledge(txn, 1, identity=command())
        await rig.acknowledge(txn, 1, identity=command())
        assert len(await rig.op_keys()) == 1


async def test_a_repeat_after_a_move_is_of_before() -> None:
    """E5, D16: it waited for a first copy that the move made void."""
    store = SteeredStore()
    async with owned(store, stream_of(3)) as rig:
        txn = await rig.begin()
        go_on = trio.Event()

        async def hold(ops: Sequence[Op]) -> None:
            if writes(ops, PutSequential, OPS):
                await go_on.wait()

        async def acknowledge() -> None:
            with pytest.raises(PendingAcksDiscarded):
                await rig.acknowledge(txn, 1, identity=command())

        store.before = hold
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(acknowledge)
                await wait_all_tasks_blocked()
            rig.cursor.move(EARLIEST)
            rig.acks.forget()
            go_on.set()
        await wait_all_tasks_blocked()
        assert await rig.op_keys() == []
        rig.assert_clean()


async def test_a_repeat_is_recognised_by_the_next_owner() -> None:
    """E5: the op record identifies it, even if the earlier owner never learned whether the record exists."""
    store, stream = SteeredStore(), stream_of(3)

    async def lose_answer(ops: Sequence[Op]) -> None:
        if writes(ops, PutSequential, OPS):
            raise StoreUnavailable("no answer")

    async with owned(store, stream) as old:
        txn = await old.begin()
        await old.acknowledge(txn, 0, identity=command(1))
        store.after = lose_answer
        for _ in range(2):
            with pytest.raises(OutcomeUnknown):
                await old.acknowledge(txn, 1, identity=command(2))
        store.after = None
    async with owned(store, stream) as new:
        for entry in range(2):
            await new.acknowledge(txn, entry, identity=command(1 + entry))
            with pytest.raises(TransactionConflict):
                await new.acknowledge(txn, entry, identity=command(3))
        assert len(await new.op_keys()) == 2
        await new.end(txn, EndAction.COMMIT)
        new.assert_clean()
