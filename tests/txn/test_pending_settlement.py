"""What removing op records waits for, and what ends the wait."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage import cursor_record
from storage.metadata.store import Op, PutSequential, StoreUnavailable
from tests.support.pending_acks import owned, stream_of, writes
from tests.support.steered_store import SteeredStore
from txn.errors import OutcomeUnknown
from txn.ops import KEY_PREFIX as OPS
from txn.states import EndAction


async def test_an_unknown_outcome_closes_a_segment_whose_cursor_has_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """T25, M22: an owner that applies nothing more must not stay, and the gaps may last as long as it stays."""
    monkeypatch.setattr(cursor_record, "STORED_MAX", 1)
    store = SteeredStore()
    async with owned(store, stream_of(5)) as rig:
        txn = await rig.begin()
        await rig.acknowledge(txn, 1, 3)
        await rig.end(txn, EndAction.COMMIT)
        assert len(await rig.op_keys()) == 1, "the cursor's record has no room for the second message"
        fills_gaps = await rig.begin()
        store.leave_unanswered(1, made=True)
        with pytest.raises(OutcomeUnknown):
            await rig.acknowledge(fills_gaps, 0, 2)
        await wait_all_tasks_blocked()
        assert [type(end) for end in rig.ended] == [OutcomeUnknown]
        await rig.end(fills_gaps, EndAction.COMMIT)
    async with owned(store, rig.stream) as rig:
        with trio.fail_after(1):
            await rig.cursor.synced()
        await wait_all_tasks_blocked()
        assert all(rig.is_acknowledged(entry) for entry in range(4))
        assert await rig.op_keys() == []
        rig.assert_clean()


@pytest.mark.parametrize("made", [False, True])
async def test_what_may_not_be_on_record_is_left_to_the_next_owner(made: bool) -> None:
    """M22, T23: the commit comes before the unknown outcome, and counts for what the next owner finds on record."""
    store = SteeredStore()
    async with owned(store, stream_of(3)) as rig:
        txn = await rig.begin()

        async def decide_and_leave_unanswered(ops: Sequence[Op]) -> None:
            if writes(ops, PutSequential, OPS):
                store.before = store.after = None
                await rig.end(txn, EndAction.COMMIT)
                raise StoreUnavailable("no answer")

        if made:
            store.after = decide_and_leave_unanswered
        else:
            store.before = decide_and_leave_unanswered
        with pytest.raises(OutcomeUnknown):
            await rig.acknowledge(txn, 1)
        await wait_all_tasks_blocked()
        assert not rig.is_acknowledged(1)
        assert [type(end) for end in rig.ended] == [OutcomeUnknown]
    async with owned(store, rig.stream) as rig:
        assert rig.is_acknowledged(1) is made
        await wait_all_tasks_blocked()
        assert await rig.op_keys() == []
