"""What consumers may request of a subscription, on a stream in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar

import pytest
import trio
import trio.testing

from dispatch.consumer import Consumer
from dispatch.errors import AcknowledgementRefused, ConsumerBusy, SubscriptionClosed
from dispatch.policy import exclusive
from dispatch.subscription import Acknowledgement, Subscription
from dispatch.subscription_types import TYPES, SubscriptionType
from dispatch.withheld import NothingWithheld
from storage.cursor import BaseCursor, Cursor, CursorDeleted, NonDurableCursor, cursor_key
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST, LATEST, Position
from storage.ranges import EntryAck
from tests.support.outlet import RecordingOutlet, recording_consumer
from tests.support.stream import MemoryStream

EXCLUSIVE, SHARED = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED


@dataclass
class Rig:
    """A running subscription and the objects below it."""

    stream: MemoryStream
    store: MemoryStore
    subscription: Subscription

    def join(
        self, name: str = "c", *, permits: int = 1000, kind: SubscriptionType | None = None, priority: int = 0
    ) -> tuple[Consumer, RecordingOutlet]:
        consumer, outlet = recording_consumer(name, priority=priority)
        self.subscription.add_consumer(consumer, kind)
        self.subscription.flow(consumer, permits)
        return consumer, outlet

    def acknowledge(self, *positions: Position, cumulative: bool = False) -> None:
        self.subscription.acknowledge([Acknowledgement(position) for position in positions], cumulative=cumulative)


def stream_of(entries: int, *, messages: int = 1) -> MemoryStream:
    stream = MemoryStream()
    for _ in range(entries):
        stream.append(messages=messages)
    return stream


@asynccontextmanager
async def running(
    stream: MemoryStream,
    kind: SubscriptionType = EXCLUSIVE,
    *,
    durable: bool = True,
    store: MemoryStore | None = None,
    start: Position = EARLIEST,
) -> AsyncIterator[Rig]:
    store = MemoryStore() if store is None else store
    cursor: BaseCursor
    if durable:
        cursor = await Cursor.open("s", ledger=stream, metadata=store, claim=None, start=start)
    else:
        cursor = NonDurableCursor("s", ledger=stream, start=start)
    subscription = Subscription("s", source=stream, cursor=cursor, kind=kind)
    async with trio.open_nursery() as nursery:
        await nursery.start(subscription.run)
        yield Rig(stream, store, subscription)
        nursery.cancel_scope.cancel()


async def settled() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_exclusive_refuses_a_second_consumer() -> None:
    async with running(stream_of(1)) as rig:
        first, _ = rig.join()
        with pytest.raises(ConsumerBusy):
            rig.join()
        rig.subscription.remove_consumer(first)
        rig.join()


async def test_consumers_of_another_kind_are_refused_while_some_are_connected() -> None:
    async with running(stream_of(3), SHARED) as rig:
        first, outlet = rig.join(permits=2)
        with pytest.raises(ConsumerBusy):
            rig.join(kind=EXCLUSIVE)
        await settled()
        assert outlet.positions == rig.stream.positions[:2]
        rig.subscription.remove_consumer(first)
        _, alone = rig.join(kind=EXCLUSIVE)
        assert rig.subscription.kind is EXCLUSIVE
        await settled()
        assert alone.positions == rig.stream.positions, "all that is not acknowledged, in order"


async def test_exclusive_sends_again_from_the_mark_delete() -> None:
    """A new consumer of an exclusive subscription gets exactly the unacknowledged entries, in order."""
    async with running(stream_of(6)) as rig:
        first, outlet = rig.join(permits=5)
        await settled()
        assert outlet.positions == rig.stream.positions[:5]
        rig.acknowledge(Position(7, 0), Position(7, 2), Position(7, 3))
        rig.subscription.remove_consumer(first)
        _, second = rig.join()
        await settled()
        assert second.positions == [Position(7, 1), Position(7, 4), Position(7, 5)]
        assert not outlet.is_attached, "who left is forgotten"


async def test_who_alone_is_sent_everything_is_told_once_and_when_it_changes() -> None:
    """This holds for a subscription with such a consumer, whatever the consumer is sent."""
    async with running(stream_of(3)) as rig:
        first, outlet = rig.join()
        assert outlet.active == [True]
        with pytest.raises(ConsumerBusy):
            rig.join("refused")
        await settled()
        rig.acknowledge(*outlet.positions)
        rig.subscription.remove_consumer(first)
        rig.subscription.remove_consumer(first)
        _, second = rig.join()
        assert (outlet.active, second.active) == ([True], [True]), "who has left is told nothing"
        for consumer in rig.subscription.consumers:
            rig.subscription.remove_consumer(consumer)
        shared = [rig.join(kind=SHARED)[1] for _ in range(2)]
        assert [outlet.active for outlet in shared] == [[], []]


async def test_an_active_consumer_behind_which_another_comes_first_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This is for a policy that admits several consumers and sends everything to one of them."""
    several = TYPES[EXCLUSIVE]._replace(consumers_max=None, policy=lambda *given: exclusive(given[0][:1], *given[1:]))
    monkeypatch.setitem(TYPES, EXCLUSIVE, several)
    async with running(stream_of(3)) as rig:
        (first, outlet), (second, waiting) = rig.join("a"), rig.join("b")
        await settled()
        assert (outlet.active, waiting.active) == ([True], [])
        rig.subscription.remove_consumer(second)
        assert outlet.active == [True]
        _, waiting = rig.join("b")
        rig.subscription.remove_consumer(first)
        await settled()
        assert (outlet.active, waiting.active) == ([True], [True])
        assert waiting.positions == rig.stream.positions


async def test_control_entries_are_no_backlog_wherever_they_stand() -> None:
    """K35: they may be below the mark-delete, among acknowledged ranges, and in several ledgers."""
    stream = MemoryStream()
    for number in range(12):
        if number % 5 == 4:
            stream.roll()
        stream.append(is_control=number % 3 != 0)
    async with running(stream, SHARED) as rig:
        assert rig.subscription.backlog_entries == 4
        _, outlet = rig.join(permits=2)
        await settled()
        for left, position in zip((3, 2), reversed(outlet.positions), strict=True):
            rig.acknowledge(position)
            assert rig.subscription.backlog_entries == left


async def test_cumulative_acknowledgement_moves_the_mark_delete() -> None:
    async with running(stream_of(6)) as rig:
        rig.join()
        await settled()
        rig.acknowledge(Position(7, 3), cumulative=True)
        assert rig.subscription.cursor.mark_delete == Position(7, 3)
        assert rig.subscription.backlog_entries == 2
        rig.acknowledge(Position(7, 1), cumulative=True)
        assert rig.subscription.cursor.mark_delete == Position(7, 3), "at or below it nothing changes"


async def test_cumulative_within_a_batch() -> None:
    """D12: everything before the batch is acknowledged, and of the batch what the bits say."""
    async with running(stream_of(4, messages=10)) as rig:
        first, _ = rig.join()
        await settled()
        rig.subscription.acknowledge([Acknowledgement(Position(7, 2), (0b11_1111_1000,), 10)], cumulative=True)
        assert rig.subscription.cursor.mark_delete == Position(7, 1)
        rig.subscription.remove_consumer(first)
        _, second = rig.join()
        await settled()
        assert second.positions == [Position(7, 2), Position(7, 3)]
        assert [delivery.ack_bits for delivery in second.deliveries] == [(0b11_1111_1000,), None]


async def test_shared_refuses_cumulative_acknowledgements() -> None:
    async with running(stream_of(2), SHARED) as rig:
        rig.join()
        await settled()
        with pytest.raises(AcknowledgementRefused):
            rig.acknowledge(Position(7, 1), cumulative=True)
        assert rig.subscription.cursor.mark_delete == EARLIEST


@pytest.mark.parametrize("wrong", [Position(7, 3), Position(8, 0), Position(7, 99), Position(2**62, 2**62)])
async def test_what_was_never_sent_cannot_be_acknowledged(wrong: Position) -> None:
    """A bad acknowledgement is refused completely and changes nothing."""
    stream = stream_of(3)
    stream.roll()
    stream.append()
    async with running(stream) as rig:
        for cumulative in (False, True):
            if cumulative and wrong < stream.readable.value:
                continue
            with pytest.raises(AcknowledgementRefused):
                rig.acknowledge(Position(7, 0), wrong, cumulative=cumulative)
        assert rig.subscription.cursor.mark_delete == EARLIEST
        assert rig.subscription.cursor.entries_above == 0
        rig.acknowledge(EARLIEST, Position(7, 0))
        assert rig.subscription.cursor.mark_delete == Position(7, 0), "at or below the mark-delete is no mistake"


async def test_an_entry_above_the_readable_position_cannot_be_acknowledged() -> None:
    stream = stream_of(1)
    hidden = stream.append(readable=False)
    async with running(stream) as rig:
        with pytest.raises(AcknowledgementRefused):
            rig.acknowledge(hidden)
        with pytest.raises(AcknowledgementRefused):
            rig.acknowledge(hidden, cumulative=True)


async def test_leaving_gives_what_was_unacknowledged_to_others() -> None:
    async with running(stream_of(6), SHARED) as rig:
        first, outlet = rig.join("first")
        await settled()
        rig.acknowledge(Position(7, 0), Position(7, 4))
        _, other = rig.join("other")
        await settled()
        assert other.positions == []
        rig.subscription.remove_consumer(first)
        rig.subscription.remove_consumer(first)
        await settled()
        assert other.positions == [Position(7, number) for number in (1, 2, 3, 5)]
        assert {delivery.redelivery_count for delivery in other.deliveries} == {0}
        assert len(outlet.positions) == 6


async def test_redelivery_of_listed_entries_counts() -> None:
    async with running(stream_of(4), SHARED) as rig:
        consumer, outlet = rig.join()
        stranger, _ = rig.join("stranger", permits=0)
        await settled()
        outlet.deliveries.clear()
        for expected in (1, 2):
            rig.subscription.redeliver(stranger, [Position(7, 0)])
            rig.subscription.redeliver(consumer, [Position(7, 2), Position(7, 1), Position(9, 9)])
            await settled()
            assert [(d.entry.position, d.redelivery_count) for d in outlet.deliveries] == [
                (Position(7, 1), expected),
                (Position(7, 2), expected),
            ]
            outlet.deliveries.clear()
        rig.acknowledge(Position(7, 1))
        rig.subscription.redeliver(consumer)
        await settled()
        assert outlet.positions == [Position(7, 0), Position(7, 2), Position(7, 3)]
        rig.subscription.redeliver(Consumer(9, "unknown", outlet))


async def test_redelivery_of_an_ordered_subscription_keeps_order() -> None:
    """A request for one entry resends all unacknowledged entries, because single ones would break the order."""
    async with running(stream_of(4)) as rig:
        consumer, outlet = rig.join()
        await settled()
        rig.acknowledge(Position(7, 0), cumulative=True)
        outlet.deliveries.clear()
        rig.subscription.redeliver(consumer, [Position(7, 3)])
        await settled()
        assert outlet.positions == rig.stream.positions[1:]


async def test_part_of_a_batch_comes_back() -> None:
    """D12: only the remaining messages of a batch are resent, and only they use permits."""
    async with running(stream_of(1, messages=10), SHARED) as rig:
        consumer, outlet = rig.join(permits=100)
        await settled()
        assert consumer.permits.available == 90
        assert rig.subscription.statistics().unacked_messages == 10
        rig.subscription.acknowledge([Acknowledgement(Position(7, 0), (0b11_1111_0000,), 10)])
        rig.subscription.acknowledge([Acknowledgement(Position(7, 0), (0b00_1111_1111,), 10)])
        assert rig.subscription.statistics().unacked_messages == 4
        rig.subscription.redeliver(consumer)
        await settled()
        assert outlet.deliveries[-1].ack_bits == (0b00_1111_0000,)
        assert outlet.deliveries[-1].redelivery_count == 1
        assert consumer.permits.available == 86
        rig.subscription.acknowledge([Acknowledgement(Position(7, 0), (0b11_0000_0000,), 10)])
        assert rig.subscription.cursor.mark_delete == Position(7, 0)
        assert rig.subscription.statistics().unacked_messages == 0
        assert rig.subscription.backlog_entries == 0


async def test_seek_disconnects_and_goes_back(autojump_clock: trio.testing.MockClock) -> None:
    async with running(stream_of(5), SHARED) as rig:
        consumer, outlet = rig.join()
        await settled()
        rig.acknowledge(*rig.stream.positions)
        assert await rig.subscription.seek(Position(7, 2).before()) == (consumer,)
        assert rig.subscription.consumers == ()
        assert not outlet.is_attached
        _, second = rig.join()
        await settled()
        assert second.positions == rig.stream.positions[2:]
        again = await Cursor.open("s", ledger=rig.stream, metadata=rig.store, claim=None, start=EARLIEST)
        assert again.mark_delete == Position(7, 1)


async def test_seek_to_the_end_goes_on_with_what_becomes_readable(autojump_clock: trio.testing.MockClock) -> None:
    """Entries of a transaction still open at the seek are delivered once they are readable."""
    stream = stream_of(2)
    stream.append(readable=False)
    async with running(stream) as rig:
        await rig.subscription.seek(LATEST)
        _, outlet = rig.join()
        await settled()
        stream.show()
        await settled()
        assert outlet.positions == [Position(7, 2)]


async def test_seek_during_a_read_throws_the_read_away(autojump_clock: trio.testing.MockClock) -> None:
    """Entries read before the seek are not sent after it."""
    stream = stream_of(5)
    async with running(stream) as rig:
        stream.hold_reads = trio.Event()
        rig.join()
        await settled()
        await rig.subscription.seek(Position(7, 3))
        _, second = rig.join()
        stream.hold_reads.set()
        await settled()
        assert second.positions == [Position(7, 4)]


async def test_unsubscribe_deletes_the_cursor(autojump_clock: trio.testing.MockClock) -> None:
    """D16: the record is gone when unsubscribe returns, and a subscription of the same name begins anew."""
    async with running(stream_of(2), SHARED) as rig:
        consumer, _ = rig.join()
        other, _ = rig.join()
        with pytest.raises(ConsumerBusy):
            await rig.subscription.unsubscribe(consumer)
        rig.subscription.remove_consumer(other)
        assert await rig.subscription.unsubscribe(consumer) == (consumer,)
        assert await rig.store.get(cursor_key(rig.stream.name, "s")) is None
        with pytest.raises(SubscriptionClosed):
            rig.join()
        again = await Cursor.open("s", ledger=rig.stream, metadata=rig.store, claim=None, start=EARLIEST)
        assert isinstance(rig.subscription.cursor, Cursor)
        assert again.creation_id != rig.subscription.cursor.creation_id
        rig.acknowledge(Position(7, 0))
        with pytest.raises(CursorDeleted):
            await rig.subscription.synced()
        assert again.mark_delete == EARLIEST


async def test_unsubscribe_by_force_takes_all_consumers(autojump_clock: trio.testing.MockClock) -> None:
    async with running(stream_of(2), SHARED) as rig:
        one, two = rig.join()[0], rig.join()[0]
        assert await rig.subscription.unsubscribe(force=True) == (one, two)


async def test_close_writes_and_ends_the_task(autojump_clock: trio.testing.MockClock) -> None:
    stream, store = stream_of(3), MemoryStore()
    cursor = await Cursor.open("s", ledger=stream, metadata=store, claim=None, start=EARLIEST)
    subscription = Subscription("s", source=stream, cursor=cursor)
    consumer, _ = recording_consumer()
    async with trio.open_nursery() as nursery:
        await nursery.start(subscription.run)
        subscription.add_consumer(consumer)
        subscription.acknowledge([Acknowledgement(Position(7, 1))], cumulative=True)
        assert await subscription.close() == (consumer,)
    again = await Cursor.open("s", ledger=stream, metadata=store, claim=None, start=EARLIEST)
    assert again.mark_delete == Position(7, 1)


async def test_synced_survives_a_restart(autojump_clock: trio.testing.MockClock) -> None:
    """D3: plain acknowledgements are there after a crash once `synced` has returned."""
    stream, store = stream_of(5), MemoryStore()
    async with running(stream, SHARED, store=store) as rig:
        rig.join()
        await settled()
        rig.acknowledge(Position(7, 0), Position(7, 3))
        await rig.subscription.synced()
    async with running(stream, SHARED, store=store) as rig:
        _, outlet = rig.join()
        await settled()
        assert outlet.positions == [Position(7, 1), Position(7, 2), Position(7, 4)]


async def test_statistics_say_what_is_going_on() -> None:
    async with running(stream_of(5, messages=2), SHARED) as rig:
        consumer, _ = rig.join("one", permits=6)
        await settled()
        rig.acknowledge(Position(7, 0), Position(7, 2))
        rig.subscription.redeliver(consumer)
        statistics = rig.subscription.statistics()
        assert statistics.kind is SHARED
        assert statistics.backlog_entries == 3
        assert statistics.entries_to_send_again == 1
        assert statistics.unacked_messages == 0
        assert statistics.mark_delete == Position(7, 0)
        (of_consumer,) = statistics.consumers
        assert (of_consumer.name, of_consumer.permits, of_consumer.messages_sent) == ("one", 0, 6)
        assert of_consumer.bytes_sent == 30


async def test_an_entry_that_is_given_back_comes_again_also_if_it_was_the_last_one_sent() -> None:
    """T22: in an ordered subscription all later entries follow; unsent entries come by themselves."""
    async with running(stream_of(3)) as rig:
        _, outlet = rig.join(permits=2)
        await settled()
        sent = rig.stream.positions[:2]
        assert outlet.positions == sent
        rig.subscription.give_back([EntryAck(sent[-1])], cumulative=False)
        rig.subscription.give_back([EntryAck(rig.stream.positions[2])], cumulative=False)
        rig.subscription.flow(rig.subscription.consumers[0], 10)
        await settled()
        assert outlet.positions == [*sent, *rig.stream.positions[1:]]


async def test_what_is_withheld_is_cleared_only_when_the_cursor_is_gone() -> None:
    """D16: if the deletion failed, the remaining cursor would lack its op records."""

    class Recorder(NothingWithheld):
        cleared: ClassVar[list[bool]] = []

        async def clear(self) -> None:
            self.cleared.append(await store.get(cursor_key(stream.name, "s")) is None)

    stream, store = stream_of(1), MemoryStore()
    cursor = await Cursor.open("s", ledger=stream, metadata=store, claim=None, start=EARLIEST)
    subscription = Subscription("s", source=stream, cursor=cursor, withheld=Recorder())
    async with trio.open_nursery() as nursery:
        await nursery.start(subscription.run)
        await subscription.unsubscribe()
    assert Recorder.cleared == [True]


async def test_of_a_batch_only_what_is_neither_acknowledged_nor_withheld_is_sent() -> None:
    """T22: some of its messages are acknowledged, others belong to a transaction, and the rest is sent."""

    class Partly(NothingWithheld):
        def unreserved(self, position: Position) -> int | None:
            return 0b0110

    stream, store = stream_of(1, messages=4), MemoryStore()
    cursor = await Cursor.open("s", ledger=stream, metadata=store, claim=None, start=EARLIEST)
    cursor.acknowledge_batch(stream.positions[0], 0b0011)
    subscription = Subscription("s", source=stream, cursor=cursor, kind=SHARED, withheld=Partly())
    async with trio.open_nursery() as nursery:
        await nursery.start(subscription.run)
        consumer, outlet = recording_consumer()
        subscription.add_consumer(consumer)
        subscription.flow(consumer, 4)
        await settled()
        assert [delivery.ack_bits for delivery in outlet.deliveries] == [(0b0010,)]
        assert subscription.statistics().unacked_messages == 1
        assert consumer.permits.available == 3
        nursery.cancel_scope.cancel()


async def test_a_deletion_clears_what_was_withheld_though_the_task_has_ended_first() -> None:
    """E16: the task lets go of it, and the caller of the deletion may wake only after that."""
    cleared: list[bool] = []

    class Recorder(NothingWithheld):
        async def clear(self) -> None:
            cleared.append(True)

    stream = stream_of(1)
    cursor = await Cursor.open("s", ledger=stream, metadata=MemoryStore(), claim=None, start=EARLIEST)
    subscription = Subscription("s", source=stream, cursor=cursor, withheld=Recorder())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subscription.unsubscribe)
        await trio.testing.wait_all_tasks_blocked()
        subscription.let_go()
        await cursor.run()
    assert cleared == [True]
