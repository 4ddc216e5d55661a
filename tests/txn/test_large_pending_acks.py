"""Acknowledgements of many messages in one transaction: reserved, applied and released in steps, all or nothing."""

from contextlib import suppress

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.entry import TxnId
from storage.position import EARLIEST
from tests.support.cancellation import cancel_at_each_step
from tests.support.pending_acks import Rig, owned, stream_of
from tests.support.schedules import every_schedule
from tests.support.steered_store import SteeredStore
from txn import pending_steps
from txn.errors import PendingAcksDiscarded, TransactionConflict
from txn.states import EndAction, TxnState

AT_ONCE = 3


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_steps, "ENTRIES_AT_ONCE", AT_ONCE)


def free(rig: Rig) -> list[int]:
    """Return the entries without reservations."""
    return [entry for entry, position in enumerate(rig.stream.positions) if rig.acks.unreserved(position) is None]


@pytest.mark.parametrize("action", EndAction)
async def test_no_step_handles_all_of_a_large_transaction(action: EndAction) -> None:
    """E7: reserving, applying and releasing pause after some messages, within one command or several."""
    async with owned(SteeredStore(), stream_of(40)) as rig:
        txn = await rig.begin()
        await rig.acknowledge(txn, *range(20))
        for entry in range(20, 40):
            await rig.acknowledge(txn, entry)
        assert free(rig) == []
        await rig.coordinator.end(txn, action)
        await rig.acks.caught_up()
        done = [rig.is_acknowledged(entry) for entry in range(40)]
        assert done == [action is EndAction.COMMIT] * 40, "whoever asks waits until all of it is applied"
        assert free(rig) == list(range(40))
        assert rig.target.longest_part == AT_ONCE
        await wait_all_tasks_blocked()
        rig.assert_clean()


@pytest.mark.parametrize("state", [TxnState.COMMITTED, TxnState.ABORTED])
async def test_deciding_a_large_transaction_is_not_one_step(state: TxnState) -> None:
    """E7: the first part is applied at once, and then other decisions are applied, too."""
    async with owned(SteeredStore(), stream_of(40)) as rig:
        txn = await rig.begin()
        await rig.acknowledge(txn, *range(40))
        rig.acks.decided(txn, state)
        assert free(rig) == list(range(AT_ONCE))
        await rig.acks.caught_up()
        assert free(rig) == list(range(40))


async def test_a_conflict_far_behind_gives_everything_back() -> None:
    """T24: a command reserves all of its messages or none; the other command's stay reserved."""
    async with owned(SteeredStore(), stream_of(20)) as rig:
        one, two = await rig.begin(), await rig.begin()
        await rig.acknowledge(one, 17)
        with pytest.raises(TransactionConflict):
            await rig.acknowledge(two, *range(20))
        assert free(rig) == [*range(17), 18, 19]
        assert sorted(rig.target.given_back) == rig.stream.positions[:15], "whole parts of it were set aside"
        await rig.acknowledge(two, *range(17), 18)
        await rig.end(one, EndAction.ABORT)
        await rig.end(two, EndAction.COMMIT)
        assert [rig.is_acknowledged(entry) for entry in (0, 16, 17, 18, 19)] == [True, True, False, True, False]
        rig.assert_clean()


@every_schedule()
async def test_of_two_that_want_the_same_one_has_all_or_both_nothing() -> None:
    """T24: nobody reserves in between, in any order; a refused command's messages are free again."""
    async with owned(SteeredStore(), stream_of(20)) as rig:
        taken: list[tuple[TxnId, range]] = []

        async def acknowledge(entries: range) -> None:
            txn = await rig.begin()
            try:
                await rig.acknowledge(txn, *entries)
            except TransactionConflict:
                return
            taken.append((txn, entries))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(acknowledge, range(13))
            nursery.start_soon(acknowledge, range(19, 8, -1))
        held = [entry for _txn, entries in taken for entry in entries]
        assert len(taken) <= 1
        assert free(rig) == [entry for entry in range(20) if entry not in held]
        for txn, _entries in taken:
            await rig.end(txn, EndAction.COMMIT)
        assert [entry for entry in range(20) if rig.is_acknowledged(entry)] == sorted(held)
        rig.assert_clean()


@every_schedule(examples_max=30)
async def test_a_seek_in_the_middle_of_it() -> None:
    """D16: what was reserved, or being applied, before the move is void after it."""
    async with owned(SteeredStore(), stream_of(20)) as rig:
        committed, late = await rig.begin(), await rig.begin()
        await rig.acknowledge(committed, *range(10))

        async def acknowledge() -> None:
            with suppress(PendingAcksDiscarded):
                await rig.acknowledge(late, *range(10, 20))

        async def seek() -> None:
            rig.cursor.move(EARLIEST)
            rig.acks.forget()
            assert free(rig) == list(range(20))
            await rig.cursor.synced()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.coordinator.end, committed, EndAction.COMMIT)
            nursery.start_soon(acknowledge)
            nursery.start_soon(seek)
        await wait_all_tasks_blocked()
        await rig.end(late, EndAction.ABORT)
        acknowledged = [entry for entry in range(20) if rig.is_acknowledged(entry)]
        assert acknowledged in ([], list(range(10))), "applied before the move or not at all, or decided behind it"
        assert free(rig) == list(range(20))
        rig.assert_clean()


@pytest.mark.parametrize("state", [TxnState.COMMITTED, TxnState.ABORTED])
async def test_a_seek_between_two_steps(state: TxnState) -> None:
    """D16: what was still to be applied or released is dropped after the move."""
    async with owned(SteeredStore(), stream_of(20)) as rig:
        txn = await rig.begin()
        await rig.acknowledge(txn, *range(20))
        rig.acks.decided(txn, state)
        rig.cursor.move(EARLIEST)
        rig.acks.forget()
        await rig.acks.caught_up()
        await wait_all_tasks_blocked()
        assert not any(rig.is_acknowledged(entry) for entry in range(20))
        assert len(rig.target.given_back) <= AT_ONCE
        assert await rig.op_keys() == []
        rig.assert_clean()


async def test_cancelled_at_each_step() -> None:
    """T24: a cancelled command is reserved completely, with its record, or not at all."""
    async with owned(SteeredStore(), stream_of(20)) as rig:
        txn = await rig.begin()

        async def acknowledge() -> None:
            await rig.acknowledge(txn, *range(10))

        async def check() -> None:
            nonlocal txn
            assert free(rig) in (list(range(20)), list(range(10, 20)))
            assert (free(rig) == list(range(20))) is (await rig.op_keys() == [])
            await rig.end(txn, EndAction.ABORT)
            txn = await rig.begin()

        assert await cancel_at_each_step(acknowledge, check) > 8
        rig.assert_clean()


async def test_where_order_is_kept_nothing_is_sent_before_all_is_free() -> None:
    """T23: redelivery is in order, so the subscription goes back once, to the lowest position."""
    async with owned(SteeredStore(), stream_of(20)) as rig:
        rig.target.keeps_order = True
        txn = await rig.begin()
        await rig.acknowledge(txn, *range(19, 9, -1))
        await rig.acknowledge(txn, *range(5, 10))
        rig.cursor.acknowledge(rig.stream.positions[5])
        await rig.end(txn, EndAction.ABORT)
        assert rig.target.given_back == [rig.stream.positions[6]]
        assert free(rig) == list(range(20))


async def test_what_the_next_owner_finds() -> None:
    """T25: in many steps, all of it is reserved again, or applied."""
    store = SteeredStore()
    stream = stream_of(20)
    async with owned(store, stream) as rig:
        decided, still_open = await rig.begin(), await rig.begin()
        await rig.acknowledge(decided, *range(10))
        await rig.acknowledge(still_open, *range(10, 19))
    await rig.coordinator.end(decided, EndAction.COMMIT)
    async with owned(store, stream) as rig:
        assert all(rig.is_acknowledged(entry) for entry in range(10))
        assert free(rig) == [*range(10), 19]
        await rig.end(still_open, EndAction.COMMIT)
        assert all(rig.is_acknowledged(entry) for entry in range(19))
        rig.assert_clean()
