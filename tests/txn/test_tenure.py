"""When an owner's tenure of a segment ends, and what its task does until then."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.errors import SPACE_RETRY_SECONDS
from storage.metadata.store import StoreFull
from txn.errors import OutcomeUnknown, OwnershipLost
from txn.tenure import Tenure

SEGMENT = "segment://public/default/x/0000-ffff-0"


async def test_the_first_error_ends_a_tenure() -> None:
    """D4: each caller gets its own error. Later calls and the task get the first one, and settle nothing more."""
    tenure = Tenure(SEGMENT)
    tenure.require()
    lost, unknown = OwnershipLost(SEGMENT), OutcomeUnknown(SEGMENT, "an op record")
    assert isinstance(tenure.end(lost), OwnershipLost)
    assert isinstance(tenure.end(unknown), OutcomeUnknown)
    assert tenure.has_ended
    with pytest.raises(OwnershipLost):
        tenure.require()
    settled = []

    async def settle() -> None:
        settled.append("too late")

    with trio.fail_after(1), pytest.raises(OwnershipLost):
        await tenure.repeat(settle, tenure.due.wait)
    assert not settled
    assert lost.__traceback__ is None


async def test_a_refused_removal_is_repeated_until_there_is_space(autojump_clock: MockClock) -> None:
    """E13: the metadata store's disk is full for a while. Nothing else wakes the task, and it ends no tenure."""
    tenure = Tenure(SEGMENT)
    tries = []

    async def settle() -> None:
        tries.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if len(tries) < 3:
            raise StoreFull("no space")

    began = trio.current_time()
    tenure.due.set()
    with trio.move_on_after(100 * SPACE_RETRY_SECONDS):
        await tenure.repeat(settle, tenure.due.wait)
    assert [at - began for at in tries] == pytest.approx([0, SPACE_RETRY_SECONDS, 2 * SPACE_RETRY_SECONDS])
    assert not tenure.has_ended


async def test_a_tenure_that_ends_does_not_wait_for_what_is_being_settled() -> None:
    """D4, M22: that may wait for space, or for acknowledgements that only the next owner can apply."""
    tenure = Tenure(SEGMENT)
    ended: list[OutcomeUnknown] = []

    async def run() -> None:
        try:
            await tenure.repeat(trio.sleep_forever, tenure.due.wait)
        except OutcomeUnknown as unknown:
            ended.append(unknown)

    tenure.due.set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await wait_all_tasks_blocked()
        tenure.end(OutcomeUnknown(SEGMENT, "an op record"))
        await wait_all_tasks_blocked()
        assert len(ended) == 1
        nursery.cancel_scope.cancel()
