"""What a position contains when somebody asks for it while op records are being written."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.metadata.store import Op, PutSequential, StoreUnavailable
from storage.position import Position
from tests.support.pending_acks import owned, stream_of, writes
from tests.support.segments import SegmentHost
from tests.support.steered_store import SteeredStore
from txn.errors import OutcomeUnknown, TransactionEnded
from txn.ops import KEY_PREFIX as OPS
from txn.states import EndAction


async def test_the_last_position_contains_what_a_transaction_held_back_that_ended_while_it_joined(
    host: SegmentHost, store: SteeredStore
) -> None:
    """T14, T15: it joined in vain. A job that reads up to the last position must not miss what stands behind."""
    segment, txn = await host.own(), await host.begin()
    go_on = trio.Event()

    async def wait(ops: Sequence[Op]) -> None:
        if writes(ops, PutSequential, OPS):
            await go_on.wait()

    async def join_late() -> None:
        with pytest.raises(TransactionEnded):
            await segment.buffer.join(txn)

    async def ask() -> None:
        await segment.buffer.caught_up()
        seen.append(segment.buffer.readable.value)

    seen: list[Position] = []
    store.before = wait
    async with trio.open_nursery() as nursery:
        nursery.start_soon(join_late)
        await wait_all_tasks_blocked()
        behind = await segment.publish(b"behind")
        await host.abort(txn)
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        go_on.set()
    assert seen == [behind]


async def test_a_position_contains_a_commit_that_meets_an_acknowledgement() -> None:
    """T23, T27: a commit is applied when each acknowledgement of its transaction is recorded or refused."""
    store = SteeredStore()
    async with owned(store, stream_of(3)) as rig:
        txn = await rig.begin()
        await rig.acknowledge(txn, 0)
        go_on = trio.Event()

        async def wait(ops: Sequence[Op]) -> None:
            if writes(ops, PutSequential, OPS):
                await go_on.wait()

        async def acknowledge_late() -> None:
            with pytest.raises(TransactionEnded):
                await rig.acknowledge(txn, 1)

        async def ask() -> None:
            await rig.acks.caught_up()
            seen.append(rig.cursor.mark_delete)

        seen: list[Position] = []
        store.before = wait
        async with trio.open_nursery() as nursery:
            nursery.start_soon(acknowledge_late)
            await wait_all_tasks_blocked()
            await rig.end(txn, EndAction.COMMIT)
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            go_on.set()
        assert seen == [rig.stream.positions[0]]


async def test_an_owner_that_applies_nothing_more_tells_no_position() -> None:
    """C19, M22: after an acknowledgement of unknown outcome, the next owner applies the commit."""
    store = SteeredStore()
    async with owned(store, stream_of(3)) as rig:
        txn = await rig.begin()
        await rig.acknowledge(txn, 0)

        async def decide_and_ask(ops: Sequence[Op]) -> None:
            if writes(ops, PutSequential, OPS):
                store.before = None
                await rig.end(txn, EndAction.COMMIT)
                nursery.start_soon(ask)
                await wait_all_tasks_blocked()
                raise StoreUnavailable("no answer")

        async def ask() -> None:
            with pytest.raises(OutcomeUnknown):
                await rig.acks.caught_up()

        store.before = decide_and_ask
        async with trio.open_nursery() as nursery:
            with pytest.raises(OutcomeUnknown):
                await rig.acknowledge(txn, 1)
