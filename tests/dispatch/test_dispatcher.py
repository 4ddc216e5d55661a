"""The dispatcher: what it sends, in which order, and when it sleeps."""

from collections.abc import Mapping, Sequence

import pytest
import trio
import trio.testing

from dispatch import dispatcher as dispatcher_module
from dispatch.consumer import Consumer
from dispatch.policy import Assignment, Candidate, Piece
from dispatch.subscription import Acknowledgement
from dispatch.subscription_types import SubscriptionType
from storage import base_cursor
from storage.entry import Entry
from storage.position import Position
from tests.dispatch.test_subscription import EXCLUSIVE, SHARED, running, settled, stream_of
from tests.support.draining import drained
from tests.support.idle import TaskSteps
from tests.support.outlet import RecordingOutlet, recording_consumer
from tests.support.stream import MemoryStream

DISPATCHER = "Subscription.run"
"""The dispatcher runs in this task."""
WRITER = "Cursor.run"


async def test_an_idle_dispatcher_is_never_scheduled(autojump_clock: trio.testing.MockClock) -> None:
    """T16: it is parked with consumers, permits and an idle source, and does not wake in an hour."""
    async with running(stream_of(3)) as rig:
        _, outlet = rig.join()
        await settled()
        rig.acknowledge(Position(7, 2), cumulative=True)
        await rig.subscription.synced()
        await settled()
        with TaskSteps() as steps:
            await trio.sleep(3600)
            await settled()
            assert steps.of(DISPATCHER) == 0
            assert steps.of(WRITER) == 0
            reads = rig.stream.reads
            rig.stream.append()
            await settled()
            assert outlet.positions[-1] == Position(7, 3)
            assert 0 < steps.of(DISPATCHER) < 8, "a rise of the readable position wakes it"
            assert rig.stream.reads == reads + 1


async def test_nothing_to_send_for_is_idle_too(autojump_clock: trio.testing.MockClock) -> None:
    """T16: without permits, or with a blocked outlet, a backlog costs nothing."""
    async with running(stream_of(5), SHARED) as rig:
        _, closed = rig.join(permits=10)
        closed.writable = False
        rig.join(permits=0)
        await settled()
        with TaskSteps() as steps:
            await trio.sleep(3600)
            await settled()
            assert steps.of(DISPATCHER) == 0
        assert rig.stream.reads == 0
        closed.writable = True
        await settled()
        assert closed.positions == rig.stream.positions


async def test_never_above_the_readable_position() -> None:
    """T16: entries of an open transaction are sent at once when the watermark passes them."""
    stream = stream_of(2)
    for _ in range(3):
        stream.append(readable=False)
    async with running(stream) as rig:
        _, outlet = rig.join()
        await settled()
        assert outlet.positions == stream.positions[:2]
        stream.show(Position(7, 3))
        await settled()
        assert outlet.positions == stream.positions[:4]


async def test_aborted_entries_are_skipped_and_acknowledged(autojump_clock: trio.testing.MockClock) -> None:
    """D11: a sealed segment that ends in aborted entries drains once the visible ones are acknowledged."""
    stream = MemoryStream()
    stream.append(aborted=True)
    visible = stream.append()
    stream.roll()
    stream.append(aborted=True)
    stream.append(aborted=True)
    stream.seal()
    async with running(stream) as rig:
        _, outlet = rig.join(permits=1)
        await settled()
        assert outlet.positions == [visible]
        assert not rig.subscription.is_drained
        rig.subscription.flow(rig.subscription.consumers[0], 1)
        rig.acknowledge(visible)
        await drained(rig.subscription)
        assert rig.subscription.cursor.durable.value == stream.last_position
        await settled()
        assert outlet.ends == 1
        assert outlet.positions == [visible]


async def test_aborted_entries_take_no_permits() -> None:
    stream = MemoryStream()
    for number in range(20):
        stream.append(aborted=number % 2 == 0)
    async with running(stream, SHARED) as rig:
        consumer, outlet = rig.join(permits=10)
        await settled()
        assert outlet.positions == stream.positions[1::2]
        assert consumer.permits.available == 0


async def test_permits_bound_what_is_sent() -> None:
    """There are never more messages than permits, apart from the entry that uses the last permit."""
    async with running(stream_of(10, messages=3)) as rig:
        consumer, outlet = rig.join(permits=4)
        await settled()
        assert len(outlet.deliveries) == 2
        assert consumer.permits.available == -2
        rig.subscription.flow(consumer, 2)
        await settled()
        assert len(outlet.deliveries) == 2
        rig.subscription.flow(consumer, 1)
        await settled()
        assert len(outlet.deliveries) == 3


async def test_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large backlog is read in chunks; a small number of permits reads little."""
    stream = stream_of(2000)
    async with running(stream) as rig:
        consumer, outlet = rig.join(permits=1)
        await settled()
        assert stream.entries_read == 1
        rig.subscription.flow(consumer, 5000)
        await settled()
        assert outlet.positions == stream.positions
        assert stream.reads - 1 == -(-1999 // dispatcher_module.CHUNK_ENTRIES_MAX)
    big = MemoryStream()
    for _ in range(4):
        big.append(size=400)
    monkeypatch.setattr(dispatcher_module, "CHUNK_BYTES_MAX", 1000)
    async with running(big) as rig:
        rig.join()
        await settled()
        assert big.reads == 2


async def test_batches_are_not_read_over_and_over() -> None:
    """The dispatcher learns the number of messages per entry, so permits for a few batches read few entries."""
    stream = stream_of(300, messages=100)
    async with running(stream) as rig:
        consumer, outlet = rig.join(permits=100)
        await settled()
        first = stream.entries_read
        for _ in range(50):
            rig.subscription.flow(consumer, 100)
            await settled()
        assert len(outlet.deliveries) == 51
        assert stream.entries_read - first <= 100


async def test_a_slow_consumer_blocks_nobody() -> None:
    """Its outlet is not writable, so the policy skips it, and other consumers get its share."""
    async with running(stream_of(0), SHARED) as rig:
        _, slow = rig.join("slow")
        _, fast = rig.join("fast")
        slow.writable = False
        for _ in range(6):
            rig.stream.append()
        await settled()
        assert fast.positions == rig.stream.positions
        slow.writable = True
        rig.stream.append()
        rig.stream.append()
        await settled()
        assert len(slow.positions) == 1


async def test_priorities_among_shared_consumers() -> None:
    async with running(stream_of(5), SHARED) as rig:
        _, second = rig.join("second", permits=10, priority=1)
        _, first = rig.join("first", permits=3, priority=0)
        await settled()
        assert first.positions == rig.stream.positions[:3]
        assert second.positions == rig.stream.positions[3:]


async def test_unacknowledged_messages_are_bounded_per_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that acknowledges nothing eventually gets no more; an acknowledgement lets it continue."""
    monkeypatch.setattr(dispatcher_module, "UNACKED_MESSAGES_PER_CONSUMER_MAX", 3)
    async with running(stream_of(9), SHARED) as rig:
        _, idler = rig.join("idler")
        await settled()
        assert len(idler.positions) == 3
        _, worker = rig.join("worker")
        await settled()
        assert len(worker.positions) == 3
        rig.acknowledge(worker.positions[0])
        await settled()
        assert len(worker.positions) == 4
        rig.subscription.acknowledge([Acknowledgement(idler.positions[0])])
        await settled()
        assert len(idler.positions) == 4


async def test_unacknowledged_messages_are_bounded_per_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    """The subscription's bound is exceeded by at most one entry, with any number of consumers."""
    monkeypatch.setattr(dispatcher_module, "UNACKED_MESSAGES_PER_SUBSCRIPTION_MAX", 10)
    async with running(stream_of(9, messages=4), SHARED) as rig:
        outlets = [rig.join(str(number))[1] for number in range(5)]
        await settled()
        assert sum(len(outlet.positions) for outlet in outlets) == 3
        assert rig.subscription.statistics().unacked_messages == 12
        rig.acknowledge(Position(7, 1))
        await settled()
        assert sum(len(outlet.positions) for outlet in outlets) == 4


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
async def test_a_full_cursor_gets_holes_filled_first(monkeypatch: pytest.MonkeyPatch, kind: SubscriptionType) -> None:
    """When no more ranges can be remembered, new entries wait, and redelivered ones are sent."""
    monkeypatch.setattr(base_cursor, "STORED_MAX", 3)
    async with running(stream_of(7), kind) as rig:
        consumer, outlet = rig.join()
        await settled()
        rig.acknowledge(*rig.stream.positions[1::2])
        rig.stream.append()
        await settled()
        assert len(outlet.positions) == 7
        outlet.deliveries.clear()
        rig.subscription.redeliver(consumer)
        await settled()
        assert outlet.positions == rig.stream.positions[0:7:2][: 4 if kind is SHARED else 3]
        rig.acknowledge(Position(7, 0))
        await settled()
        assert outlet.positions[-1] == Position(7, 7)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
async def test_a_new_read_during_which_everything_went_back_is_thrown_away(kind: SubscriptionType) -> None:
    """Entries that are read while the subscription goes back are read again in their turn."""
    stream = stream_of(3)
    async with running(stream, kind) as rig:
        first, _ = rig.join()
        await settled()
        stream.hold_reads = trio.Event()
        stream.append()
        await settled()
        if kind is SHARED:
            rig.subscription.remove_consumer(first)
            rig.join(kind=EXCLUSIVE)
            outlet = rig.subscription.consumers[0].outlet
        else:
            rig.subscription.redeliver(first)
            outlet = first.outlet
        assert isinstance(outlet, RecordingOutlet)
        outlet.deliveries.clear()
        stream.hold_reads.set()
        await settled()
        assert outlet.positions == stream.positions


async def test_a_read_of_old_entries_is_thrown_away_as_well() -> None:
    stream = stream_of(3)
    async with running(stream, SHARED) as rig:
        first, _ = rig.join()
        await settled()
        stream.hold_reads = trio.Event()
        rig.subscription.redeliver(first, [Position(7, 2)])
        await settled()
        rig.subscription.remove_consumer(first)
        _, outlet = rig.join(kind=EXCLUSIVE)
        stream.hold_reads.set()
        await settled()
        assert outlet.positions == stream.positions


async def test_turns_go_on_from_chunk_to_chunk() -> None:
    """Entries that arrive one at a time are shared as evenly as entries that arrive together."""
    stream = MemoryStream()
    async with running(stream, SHARED) as rig:
        outlets = [rig.join(str(number))[1] for number in range(3)]
        for _ in range(9):
            stream.append()
            await settled()
        assert [len(outlet.positions) for outlet in outlets] == [3, 3, 3]


async def test_an_empty_read_does_not_spin(autojump_clock: trio.testing.MockClock) -> None:
    """A source may expect an entry after a ledger's end, where there is none. The dispatcher then waits."""

    class Expectant(MemoryStream):
        def next_after(self, position: Position) -> Position:
            return Position(7, 2) if position == Position(7, 1) else super().next_after(position)

    stream = Expectant()
    stream.append()
    stream.append()
    stream.roll()
    stream.show(Position(10, -1))
    async with running(stream) as rig:
        _, outlet = rig.join()
        await settled()
        assert len(outlet.positions) == 2
        with TaskSteps() as steps:
            await trio.sleep(10)
            assert steps.of(DISPATCHER) == 0
        stream.append()
        await settled()
        assert outlet.positions == stream.positions


async def test_entries_that_were_trimmed_are_forgotten() -> None:
    """An entry to redeliver that is gone from the log is given up, without further attempts."""
    stream = stream_of(4)
    async with running(stream, SHARED) as rig:
        first, _ = rig.join("first")
        await settled()
        del stream._entries[:2], stream._positions[:2]
        rig.subscription.remove_consumer(first)
        _, outlet = rig.join()
        await settled()
        assert outlet.positions == stream.positions
        assert rig.subscription.statistics().entries_to_send_again == 0


async def test_sparse_redelivery_reads_little() -> None:
    """Distant entries are fetched one by one, near ones together, and only requested ones are sent."""
    stream = stream_of(200)
    async with running(stream, SHARED) as rig:
        consumer, outlet = rig.join()
        await settled()
        outlet.deliveries.clear()
        wanted = [stream.positions[number] for number in (3, 5, 100, 199)]
        before = stream.entries_read
        rig.subscription.redeliver(consumer, wanted)
        await settled()
        assert outlet.positions == wanted
        assert stream.entries_read - before == 3 + 1 + 1


async def test_acknowledged_during_the_read_is_not_sent_again() -> None:
    stream = stream_of(3)
    async with running(stream, SHARED) as rig:
        consumer, outlet = rig.join()
        await settled()
        outlet.deliveries.clear()
        stream.hold_reads = trio.Event()
        rig.subscription.redeliver(consumer)
        await settled()
        rig.acknowledge(Position(7, 1))
        stream.hold_reads.set()
        await settled()
        assert outlet.positions == [Position(7, 0), Position(7, 2)]


async def test_leaving_during_a_read_sends_nothing_to_who_left() -> None:
    stream = stream_of(3)
    async with running(stream, SHARED) as rig:
        stream.hold_reads = trio.Event()
        first, gone = rig.join()
        await settled()
        rig.subscription.remove_consumer(first)
        stream.hold_reads.set()
        await settled()
        assert gone.positions == []
        _, outlet = rig.join()
        await settled()
        assert outlet.positions == stream.positions


async def test_what_the_source_raises_ends_the_task() -> None:
    class Broken(MemoryStream):
        async def read(self, start: Position, *, entries_max: int, bytes_max: int) -> list[Entry]:
            raise OSError("the disk is gone")

    stream = Broken()
    stream.append()
    with pytest.RaisesGroup(OSError, flatten_subgroups=True):
        async with running(stream) as rig:
            rig.join()
            await trio.sleep_forever()


@pytest.mark.parametrize("during_a_read", [False, True])
async def test_cancelling_detaches_from_everything(during_a_read: bool) -> None:
    """After a cancellation at any point, the dispatcher leaves no signal attached, and sends nothing more."""
    stream = stream_of(3)
    async with running(stream) as rig:
        if during_a_read:
            stream.hold_reads = trio.Event()
        _, outlet = rig.join()
        await settled()
    assert stream._signals == []
    assert stream.readable._attached == []
    assert len(outlet.positions) == (0 if during_a_read else 3)


async def test_outlets_overrun_by_one_chunk_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """With any permits, at most one chunk is sent between two checks of `writable`."""
    monkeypatch.setattr(dispatcher_module, "CHUNK_ENTRIES_MAX", 4)

    class Stopping(RecordingOutlet):
        def send(self, deliveries: object) -> None:
            super().send(deliveries)  # type: ignore[arg-type]
            self.writable = False

    async with running(stream_of(20)) as rig:
        outlet = Stopping()
        consumer = Consumer(1, "c", outlet)
        rig.subscription.add_consumer(consumer)
        rig.subscription.flow(consumer, 1000)
        await settled()
        assert len(outlet.positions) == 4
        outlet.writable = True
        await settled()
        assert len(outlet.positions) == 8


def test_consumers_are_told_apart_by_identity() -> None:
    """Two connections may both call their consumer 1, and both consumers may have the same name."""
    one, two = recording_consumer()[0], recording_consumer()[0]
    assert len({one, two}) == 2


async def test_an_entry_passed_over_is_sent_later() -> None:
    """A policy may skip an entry and send a later one, for another key. The skipped one is sent once, later."""

    def latest_first(
        consumers: Sequence[Candidate], messages: Sequence[int], turn: int, pieces: Mapping[int, Piece]
    ) -> Assignment:
        last = len(messages) - 1
        return Assignment([(0, [last])] if messages else [], list(range(last)), turn)

    stream = stream_of(4)
    async with running(stream, SHARED) as rig:
        rig.subscription._dispatcher.policy = latest_first
        _, outlet = rig.join()
        await settled()
        assert outlet.positions == stream.positions[::-1]
        assert rig.subscription.statistics().entries_to_send_again == 0
        stream.append()
        await settled()
        assert outlet.positions[4:] == stream.positions[4:]


@pytest.mark.parametrize("permits", [0, 1000])
async def test_consumers_that_come_do_not_look_at_all_the_others(permits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """E7: each new consumer wakes the dispatcher, so a step over all consumers would cost quadratic time."""
    looks = 0

    def look(outlet: RecordingOutlet) -> bool:
        nonlocal looks
        looks += 1
        return True

    monkeypatch.setattr(RecordingOutlet, "writable", property(look))
    async with running(stream_of(0), SHARED) as rig:
        for number in range(100):
            rig.join(f"c{number}", permits=permits)
            await settled()
        assert looks <= 200
