"""A subscription whose next entries cannot be read: who gets the error, who continues, and what it costs."""

import pytest
import trio
import trio.testing

from dispatch.subscription import Subscription
from dispatch.subscription_types import SubscriptionType
from dispatch.withheld import NothingWithheld
from storage.cursor import Cursor
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST, Position
from storage.ranges import EntryAck
from tests.dispatch.test_dispatcher import DISPATCHER
from tests.dispatch.test_subscription import EXCLUSIVE, SHARED, running, settled, stream_of
from tests.support.idle import TaskSteps
from tests.support.outlet import recording_consumer


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
async def test_a_consumer_is_told_of_damage_once_and_stays(
    kind: SubscriptionType, autojump_clock: trio.testing.MockClock
) -> None:
    """E10: it gets everything before the damage and one error, and nothing is retried while nothing happens."""
    stream = stream_of(5)
    stream.damaged.add(stream.positions[2])
    async with running(stream, kind) as rig:
        _consumer, outlet = rig.join()
        await settled()
        assert outlet.positions == stream.positions[:2]
        assert outlet.damages == ["ledger is damaged at byte 2: a flipped bit"]
        assert outlet.disconnections == 0
        with TaskSteps() as steps:
            await trio.sleep(3600)
            await settled()
            assert steps.of(DISPATCHER) == 0
        reads = stream.reads
        stream.append()
        await settled()
        assert (outlet.positions, len(outlet.damages)) == (stream.positions[:2], 1)
        assert stream.reads == reads


async def test_each_consumer_that_comes_is_told() -> None:
    """E10: this includes a later consumer, which reads again in case the damage was repaired."""
    stream = stream_of(3)
    stream.damaged.add(stream.positions[0])
    async with running(stream, SHARED) as rig:
        rig.join()
        await settled()
        _consumer, later = rig.join("later")
        await settled()
        assert len(later.damages) == 1


async def test_a_seek_goes_past_the_damage() -> None:
    """E10: this is how an operator continues."""
    stream = stream_of(5)
    stream.damaged.add(stream.positions[2])
    async with running(stream, EXCLUSIVE) as rig:
        rig.join()
        await settled()
        await rig.subscription.seek(stream.positions[2])
        _consumer, outlet = rig.join("again")
        await settled()
        assert outlet.positions == stream.positions[3:]
        assert outlet.damages == []


async def test_an_acknowledgement_goes_past_the_damage() -> None:
    """E10: an acknowledgement of the damaged entry says that nobody needs it."""
    stream = stream_of(5)
    stream.damaged.add(stream.positions[2])
    async with running(stream, EXCLUSIVE) as rig:
        _consumer, outlet = rig.join()
        await settled()
        rig.acknowledge(stream.positions[2], cumulative=True)
        rig.subscription.flow(_consumer, 1)
        await settled()
        assert outlet.positions == [position for position in stream.positions if position != stream.positions[2]]


async def test_what_a_shared_consumer_held_and_is_damaged_since_keeps_nothing_else_back() -> None:
    """E10: an entry that cannot be resent is reported and stays unacknowledged, and the others are resent."""
    stream = stream_of(4)
    async with running(stream, SHARED) as rig:
        first, _outlet = rig.join()
        await settled()
        stream.damaged.add(stream.positions[1])
        _second, outlet = rig.join("second")
        rig.subscription.remove_consumer(first)
        await settled()
        assert outlet.positions == [position for position in stream.positions if position != stream.positions[1]]
        assert len(outlet.damages) == 1
        assert rig.subscription.cursor.mark_delete < stream.positions[1]
        rig.acknowledge(*outlet.positions)
        assert rig.subscription.cursor.mark_delete == stream.positions[0]


async def test_a_sealed_source_with_a_damaged_front_waits_for_a_consumer() -> None:
    """E10: reading entries that nobody may see does not end the subscription."""
    stream = stream_of(2)
    stream.damaged.add(stream.positions[0])
    stream.seal()
    async with running(stream, EXCLUSIVE) as rig:
        await settled()
        _consumer, outlet = rig.join()
        await settled()
        assert len(outlet.damages) == 1
        assert rig.subscription.cursor.mark_delete < Position(7, 0)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
async def test_nothing_is_sent_while_it_is_unknown_what_is_withheld(kind: SubscriptionType) -> None:
    """E10, E11: each consumer is told once and stays. What is given back later is sent from the beginning."""

    class Unknown(NothingWithheld):
        damage: str | None = "an op record is damaged"

    withheld = Unknown()
    stream = stream_of(3)
    cursor = await Cursor.open("s", ledger=stream, metadata=MemoryStore(), claim=None, start=EARLIEST)
    subscription = Subscription("s", source=stream, cursor=cursor, kind=kind, withheld=withheld)
    async with trio.open_nursery() as nursery:
        await nursery.start(subscription.run)
        consumer, outlet = recording_consumer()
        subscription.add_consumer(consumer, kind)
        for _ in range(2):
            subscription.flow(consumer, 10)
            stream.append()
            await settled()
        assert (outlet.positions, outlet.damages) == ([], ["an op record is damaged"])
        withheld.damage = None
        subscription.give_back([EntryAck(EARLIEST)], cumulative=True)
        await settled()
        assert outlet.positions == stream.positions
        assert outlet.disconnections == 0
        nursery.cancel_scope.cancel()
