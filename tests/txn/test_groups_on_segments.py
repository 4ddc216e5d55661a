"""Groups of transactions on segments: what readers see of the attempts, and which writes are accepted."""

from collections.abc import Sequence

import pytest
from trio.testing import wait_all_tasks_blocked

from storage.entry import TxnId
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Op
from tests.support.disk import SimulatedFiles
from tests.support.segments import SegmentHost, segment_host
from tests.support.steered_store import LaggingStore, SteeredStore, Stopped
from txn.errors import TransactionEnded
from txn.group_record import GroupRecord, GroupState, group_key
from txn.headers import TransactionGroup

ONE = TransactionGroup("app", 1)
LEFT, RIGHT = "segment://t/n/a/0000-7fff-0", "segment://t/n/a/8000-ffff-1"


async def publish_in(host: SegmentHost, group: TransactionGroup) -> TxnId:
    txn = await host.coordinator.new_in_group(0, 60_000, group, once=False)
    assert txn is not None
    return txn


@pytest.mark.parametrize("kind", [MemoryStore, LaggingStore])
async def test_a_segment_shows_the_winner_alone(kind: type[MemoryStore]) -> None:
    """D17: the attempts wrote at the same time; the test reads after the decision."""
    async with segment_host(kind(), SimulatedFiles()) as host:
        await host.start_groups()
        segment = await host.own()
        loser, winner = await publish_in(host, ONE), await publish_in(host, ONE)
        await segment.publish(b"lost", loser)
        await segment.publish(b"won", winner)
        await segment.publish(b"plain")
        assert await segment.visible() == []
        await host.coordinator.groups.commit(ONE, [winner], once=False)
        await wait_all_tasks_blocked()
        assert await segment.visible() == [b"won", b"plain"]
        assert await host.op_keys() == []


@pytest.mark.parametrize("kind", [MemoryStore, LaggingStore])
async def test_nothing_joins_a_winner_after_the_decision(kind: type[MemoryStore]) -> None:
    """T12: the header is still open, but the group has decided."""
    async with segment_host(kind(), SimulatedFiles()) as host:
        segment = await host.own()
        loser, winner = await publish_in(host, ONE), await publish_in(host, ONE)
        await segment.publish(b"won", winner)
        await host.coordinator.groups.commit(ONE, [winner], once=False)
        for txn, state in ((winner, "COMMITTED"), (loser, "ABORTED")):
            with pytest.raises(TransactionEnded, match=state):
                await segment.publish(b"late", txn)
        # Nor has any reader who asks where the segment ends to wait until the header says so.
        await segment.buffer.caught_up()
        assert await segment.visible() == [b"won"]


async def test_an_op_record_is_put_although_another_attempt_is_aborted_meanwhile() -> None:
    """An abort in the group rewrites the group's record, which must not cost the segment."""
    store = SteeredStore()
    async with segment_host(store, SimulatedFiles()) as host:
        await host.start_groups()
        segment = await host.own()
        loser, winner = await publish_in(host, ONE), await publish_in(host, ONE)

        async def abort_meanwhile(ops: Sequence[Op]) -> None:
            store.before = None
            await host.abort(loser)

        store.before = abort_meanwhile
        await segment.publish(b"won", winner)
        await host.coordinator.groups.commit(ONE, [winner], once=False)
        await wait_all_tasks_blocked()
        assert segment.ended is None
        assert await segment.visible() == [b"won"]


async def test_an_op_record_that_meets_the_decision_is_refused() -> None:
    """T11: otherwise the record and its entry would follow the decision."""
    store = SteeredStore()
    async with segment_host(store, SimulatedFiles()) as host:
        segment = await host.own()
        winner = await publish_in(host, ONE)

        async def decide_meanwhile(ops: Sequence[Op]) -> None:
            store.before = None
            await host.coordinator.groups.commit(ONE, [winner], once=False)

        store.before = decide_meanwhile
        with pytest.raises(TransactionEnded):
            await segment.publish(b"late", winner)
        assert segment.ended is None
        assert await host.op_keys() == []


@pytest.mark.parametrize("last", range(1, 12))
async def test_a_crash_at_every_change_set_shows_all_or_nothing(last: int) -> None:
    """D17: there are two winners on two segments, and a loser; after a crash at any write both show, or neither."""
    store = SteeredStore()
    files = SimulatedFiles()
    is_answered = False
    try:
        async with segment_host(store, files) as host:
            await host.start_groups()
            left, right = await host.own(LEFT), await host.own(RIGHT)
            store.fail_at(last)
            one, two, loser = [await publish_in(host, ONE) for _ in range(3)]
            await left.publish(b"one", one)
            await right.publish(b"two", two)
            await right.publish(b"lost", loser)
            await host.coordinator.groups.commit(ONE, [one, two], once=False)
            is_answered = True
            await wait_all_tasks_blocked()
    except* Stopped:
        pass
    store.fail_at(None)
    async with segment_host(store, files.crash()) as host:
        await host.start_groups()
        left, right = await host.own(LEFT), await host.own(RIGHT)
        await wait_all_tasks_blocked()
        record = await store.get(group_key("app"))
        is_decided = record is not None and GroupRecord.from_value(record.value).state is GroupState.COMMITTED
        assert is_decided or not is_answered
        assert await left.visible() == ([b"one"] if is_decided else [])
        assert await right.visible() == ([b"two"] if is_decided else [])
