"""When a source is drained, and who learns that nothing will follow."""

import pytest
import trio
import trio.testing

from dispatch.errors import SubscriptionClosed
from storage.position import EARLIEST, LATEST, Position
from tests.dispatch.test_subscription import SHARED, running, settled, stream_of
from tests.support.draining import drained
from tests.support.outlet import recording_consumer
from tests.support.stream import MemoryStream


async def test_end_of_topic_is_told_once() -> None:
    """FACTS 13: consumers learn it when the durable mark-delete reaches the sealed end, and only once."""
    async with running(stream_of(3), SHARED) as rig:
        one, first = rig.join("one")
        _, second = rig.join("two", permits=0)
        await settled()
        rig.acknowledge(*rig.stream.positions[:2])
        rig.stream.seal()
        await rig.subscription.synced()
        await settled()
        assert (first.ends, second.ends) == (0, 0)
        rig.acknowledge(rig.stream.positions[2])
        await settled()
        assert (first.ends, second.ends) == (0, 0), "not before it is durable"
        await drained(rig.subscription)
        await settled()
        assert (first.ends, second.ends) == (1, 1)
        rig.acknowledge(rig.stream.positions[2])
        rig.subscription.redeliver(one)
        rig.subscription.flow(one, 10)
        await rig.subscription.synced()
        await settled()
        assert (first.ends, second.ends) == (1, 1)
        _, late = rig.join("late")
        await settled()
        assert late.ends == 1
        assert first.ends == 1


@pytest.mark.parametrize("start", [EARLIEST, LATEST])
async def test_an_empty_sealed_source_is_drained(start: Position) -> None:
    """The end of a segment that was sealed empty lies before every entry."""
    stream = MemoryStream()
    stream.seal()
    async with running(stream, start=start) as rig:
        _, outlet = rig.join()
        await drained(rig.subscription)
        await settled()
        assert outlet.ends == 1


@pytest.mark.parametrize("durable", [True, False])
async def test_a_source_that_is_drained_already_tells_new_consumers(durable: bool) -> None:
    stream = stream_of(3)
    stream.seal()
    async with running(stream, durable=durable, start=LATEST) as rig:
        _, outlet = rig.join(permits=0)
        await settled()
        assert outlet.ends == 1
        assert outlet.positions == []


async def test_a_reader_is_told_when_it_was_sent_everything() -> None:
    """A non-durable reader need not acknowledge; what it was sent counts, up to the last aborted entry."""
    stream = stream_of(3)
    stream.append(aborted=True)
    async with running(stream, durable=False) as rig:
        reader, outlet = rig.join(permits=3)
        stream.seal()
        await settled()
        assert len(outlet.positions) == 3
        assert outlet.ends == 0, "the end is not reached before the last entry was looked at"
        rig.subscription.flow(reader, 1)
        await settled()
        assert outlet.ends == 1


async def test_a_reader_with_holes_is_told_as_well() -> None:
    stream = stream_of(4)
    stream.seal()
    async with running(stream, durable=False) as rig:
        first, _ = rig.join()
        await settled()
        rig.acknowledge(*stream.positions[1:])
        rig.subscription.remove_consumer(first)
        second, outlet = rig.join(permits=2)
        await settled()
        assert outlet.positions == stream.positions[:1]
        assert outlet.ends == 1
        rig.acknowledge(stream.positions[0])
        rig.subscription.remove_consumer(second)
        _, late = rig.join(permits=0)
        await settled()
        assert late.ends == 1, "needs no permits to know that everything is acknowledged"


async def test_a_reader_is_not_told_before_what_comes_back_was_sent() -> None:
    stream = stream_of(3)
    async with running(stream, SHARED, durable=False) as rig:
        reader, outlet = rig.join(permits=3)
        await settled()
        rig.subscription.redeliver(reader)
        stream.seal()
        await settled()
        assert outlet.ends == 0
        rig.subscription.flow(reader, 3)
        await settled()
        assert outlet.ends == 1


async def test_seek_takes_the_end_back(autojump_clock: trio.testing.MockClock) -> None:
    """After a seek, draining again tells the consumers connected then; nobody polls for it."""
    stream = stream_of(2)
    stream.seal()
    async with running(stream) as rig:
        rig.join()
        await settled()
        rig.acknowledge(stream.positions[1], cumulative=True)
        await drained(rig.subscription)
        await rig.subscription.seek(EARLIEST)
        assert not rig.subscription.is_drained
        _, outlet = rig.join()
        with trio.move_on_after(5) as waited:
            await drained(rig.subscription)
        assert waited.cancelled_caught
        assert outlet.ends == 0
        rig.acknowledge(stream.positions[1], cumulative=True)
        await drained(rig.subscription)
        await settled()
        assert outlet.ends == 1


async def test_joining_alone_tells_of_the_end() -> None:
    """A consumer without permits learns it as well."""
    stream = stream_of(1)
    stream.seal()
    async with running(stream, start=LATEST) as rig:
        await settled()
        consumer, outlet = recording_consumer()
        rig.subscription.add_consumer(consumer)
        await settled()
        assert outlet.ends == 1


async def test_nobody_joins_a_subscription_whose_task_has_ended() -> None:
    async with running(stream_of(1)) as rig:
        await settled()
    with pytest.raises(SubscriptionClosed):
        rig.join()


async def test_a_source_that_ends_in_aborted_entries_drains_without_consumers() -> None:
    """D11: nobody may see them, so no consumer is needed; behind a visible message they wait."""
    stream = stream_of(2)
    tail = [stream.append(aborted=True) for _ in range(3)]
    async with running(stream) as rig:
        await settled()
        stream.seal()
        await settled()
        assert stream.entries_read == 5, "one look finds that there is a message to consume"
        consumer, _ = rig.join(permits=0)
        rig.subscription.remove_consumer(consumer)
        await settled()
        assert stream.entries_read == 5, "and it stays found"
        assert rig.subscription.cursor.first_unacknowledged() == stream.positions[0]
        rig.acknowledge(*stream.positions[:2])
        await drained(rig.subscription)
        assert rig.subscription.cursor.mark_delete == tail[-1]
        assert rig.subscription.backlog_entries == 0


async def test_what_is_decided_after_the_seal_drains_as_well() -> None:
    """D11: while the transaction is open the end is not readable; its abort makes it readable."""
    stream = stream_of(1)
    stream.append(readable=False)
    async with running(stream) as rig:
        rig.acknowledge(stream.positions[0])
        stream.seal()
        await settled()
        assert not rig.subscription.is_drained
        stream.abort(stream.last_position)
        stream.show()
        await drained(rig.subscription)


async def test_a_source_that_is_not_sealed_is_not_read_for_nobody() -> None:
    stream = stream_of(1)
    stream.append(aborted=True)
    async with running(stream, start=stream.positions[0]) as rig:
        await settled()
        assert stream.reads == 0
        stream.seal()
        await drained(rig.subscription)
