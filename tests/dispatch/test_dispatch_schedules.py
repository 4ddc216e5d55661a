"""Arbitrary stories of publishers and consumers, under any task order, compared with a model."""

from collections.abc import Sequence
from typing import NamedTuple

import trio
import trio.testing
from hypothesis import strategies as st

from dispatch.consumer import Consumer, Delivery
from dispatch.errors import ConsumerBusy
from dispatch.subscription import Acknowledgement, Subscription
from dispatch.subscription_types import SubscriptionType
from storage.cursor import Cursor
from storage.entry import Entry
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST, Position
from storage.ranges import bits_from_words
from tests.support.draining import drained
from tests.support.outlet import RecordingOutlet
from tests.support.schedules import every_schedule
from tests.support.stream import MemoryStream

BATCH_MAX = 4


class Step(NamedTuple):
    kind: str
    number: int
    bits: int
    pause: int
    """Steps of the scheduler that follow."""


OFTEN = ("append", "join", "flow", "acknowledge", "redeliver")
SELDOM = ("batch", "aborted", "hidden", "show", "roll", "partly", "cumulative", "redeliver-one")
RARELY = ("leave", "close-outlet", "open-outlet", "seek")
KINDS = OFTEN * 3 + SELDOM * 2 + RARELY
STEPS = st.lists(
    st.builds(Step, st.sampled_from(KINDS), st.integers(0, 7), st.integers(0, 2**BATCH_MAX - 1), st.integers(0, 5)),
    min_size=10,
    max_size=40,
)


class LazyStream(MemoryStream):
    """Reads take several steps of the scheduler, so that anything can happen meanwhile."""

    async def read(self, start: Position, *, entries_max: int, bytes_max: int) -> list[Entry]:
        found = await super().read(start, entries_max=entries_max, bytes_max=bytes_max)
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        return found


class Model:
    """What may be sent to whom, computed as simply as possible."""

    def __init__(self, stream: MemoryStream, kind: SubscriptionType) -> None:
        self.stream = stream
        self.kind = kind
        self.left: dict[Position, int] = {}
        """Per entry that is not wholly acknowledged, the bits of its messages that are not."""
        self.sizes: dict[Position, int] = {}
        self.visible: set[Position] = set()
        self.delivered: set[Position] = set()
        self.holder: dict[Position, Consumer] = {}
        self.last: Position = EARLIEST
        """Of an ordered subscription, what was sent last since it last went back."""

    def appended(self, position: Position, messages: int, *, visible: bool) -> None:
        self.sizes[position] = messages
        self.left[position] = (1 << messages) - 1
        if visible:
            self.visible.add(position)

    def sent(self, consumer: Consumer, delivery: Delivery) -> None:
        position = delivery.entry.position
        assert position <= self.stream.readable.value, "nothing above the watermark"
        assert position in self.visible, "nothing aborted"
        assert self.left.get(position, 0), "nothing that is acknowledged"
        bits = bits_from_words(delivery.ack_bits) if delivery.ack_bits is not None else (1 << self.sizes[position]) - 1
        assert bits == self.left[position], "of a batch, what is left"
        if self.kind is SubscriptionType.EXCLUSIVE:
            assert position > self.last, "in order"
            skipped = {place for place in self.left if self.last < place < position}
            assert not skipped & self.visible, "without a gap"
            self.last = position
        else:
            assert position not in self.holder, "to one consumer at a time"
            self.holder[position] = consumer
        self.delivered.add(position)

    def acknowledged(self, position: Position, bits: int) -> None:
        if position in self.left:
            self.left[position] &= bits
            if not self.left[position]:
                del self.left[position]
                self.holder.pop(position, None)

    def taken_back(self, consumer: Consumer, position: Position | None = None) -> None:
        self.last = EARLIEST
        for place, holder in list(self.holder.items()):
            if holder is consumer and position in {None, place}:
                del self.holder[place]


class CheckedOutlet(RecordingOutlet):
    """Compares every delivery with the model when it is made."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.consumer: Consumer | None = None

    def send(self, deliveries: Sequence[Delivery]) -> None:
        assert self.writable
        assert self.consumer is not None
        assert self.consumer.permits.available > -BATCH_MAX
        for delivery in deliveries:
            self.model.sent(self.consumer, delivery)
        super().send(deliveries)


class Story:
    """Plays steps on a subscription and its model alike."""

    def __init__(self, kind: SubscriptionType, stream: MemoryStream, subscription: Subscription) -> None:
        self.stream = stream
        self.model = Model(stream, kind)
        self.subscription = subscription
        self.consumers: list[tuple[Consumer, CheckedOutlet]] = []

    def append(self, messages: int, *, visible: bool = True, readable: bool = True) -> None:
        if self.stream.last_position > self.stream.readable.value:
            readable = False  # Entries become readable in order.
        # The model learns of it first: the append wakes the dispatcher.
        self.model.appended(self.stream.next_after(self.stream.last_position), messages, visible=visible)
        self.stream.append(messages=messages, aborted=not visible, readable=readable)

    def join(self) -> None:
        outlet = CheckedOutlet(self.model)
        consumer = Consumer(len(self.consumers), "c", outlet)
        outlet.consumer = consumer
        try:
            self.subscription.add_consumer(consumer)
        except ConsumerBusy:
            assert self.model.kind is SubscriptionType.EXCLUSIVE
            assert len(self.consumers) == 1
        else:
            self.consumers.append((consumer, outlet))

    def acknowledge(self, position: Position, bits: int) -> None:
        bits &= (1 << self.model.sizes[position]) - 1
        self.model.acknowledged(position, bits)
        words = (bits,) if bits else ()
        self.subscription.acknowledge([Acknowledgement(position, words, self.model.sizes[position])])

    def cumulative(self, position: Position) -> None:
        for place in [place for place in self.model.left if place <= position]:
            self.model.acknowledged(place, 0)
        self.subscription.acknowledge([Acknowledgement(position)], cumulative=True)

    async def seek(self, position: Position) -> None:
        for place, messages in self.model.sizes.items():
            self.model.left[place] = (1 << messages) - 1
            if place <= position:
                del self.model.left[place]
        self.model.holder.clear()
        self.model.last = EARLIEST
        self.consumers.clear()
        await self.subscription.seek(position)

    async def play(self, step: Step) -> None:
        kind, number, bits, pause = step
        readable = [place for place in self.stream.positions if place <= self.stream.readable.value]
        if kind == "append":
            self.append(1)
        elif kind == "batch":
            self.append(1 + number % BATCH_MAX)
        elif kind == "aborted":
            self.append(1 + number % BATCH_MAX, visible=False)
        elif kind == "hidden":
            self.append(1, readable=False)
        elif kind == "show":
            hidden = [place for place in self.stream.positions if place > self.stream.readable.value]
            if hidden:
                self.stream.show(hidden[number % len(hidden)])
        elif kind == "roll":
            self.stream.roll()
        elif kind == "join":
            self.join()
        elif kind in {"acknowledge", "partly"} and readable:
            position = readable[number % len(readable)]
            if position in self.model.visible:
                self.acknowledge(position, bits if kind == "partly" else 0)
        elif kind == "cumulative" and readable and self.model.kind is SubscriptionType.EXCLUSIVE:
            self.cumulative(readable[number % len(readable)])
        elif kind == "seek" and number == 0:
            await self.seek(readable[bits % len(readable)] if readable else EARLIEST)
        elif self.consumers:
            self.play_consumer(kind, number)
        for _ in range(pause):
            await trio.lowlevel.checkpoint()

    def play_consumer(self, kind: str, number: int) -> None:
        consumer, outlet = self.consumers[number % len(self.consumers)]
        if kind == "flow":
            self.subscription.flow(consumer, 2 * number)
        elif kind == "close-outlet":
            outlet.writable = False
        elif kind == "open-outlet":
            outlet.writable = True
        elif kind == "redeliver":
            self.model.taken_back(consumer)
            self.subscription.redeliver(consumer)
        elif kind == "redeliver-one" and outlet.positions:
            position = outlet.positions[number % len(outlet.positions)]
            self.model.taken_back(consumer, position)
            self.subscription.redeliver(consumer, [position])
        elif kind == "leave":
            self.consumers.remove((consumer, outlet))
            self.model.taken_back(consumer)
            self.subscription.remove_consumer(consumer)

    async def finish(self) -> None:
        """Seal, let all consumers acknowledge everything, and check that nothing is missing and all learn it."""
        if self.stream.positions:
            self.stream.show()
        self.stream.seal()
        if not self.consumers:
            self.join()
        for consumer, outlet in self.consumers:
            self.subscription.flow(consumer, 10_000)
            outlet.writable = True
        for _ in range(len(self.stream.positions) + 1):
            await trio.testing.wait_all_tasks_blocked()
            for position in [place for _, outlet in self.consumers for place in outlet.positions]:
                self.acknowledge(position, 0)
        await drained(self.subscription)
        for consumer, _outlet in self.consumers:
            await trio.testing.wait_all_tasks_blocked()
            self.subscription.flow(consumer, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert not set(self.model.left) & self.model.visible, "every message was delivered or acknowledged before"
        assert self.subscription.backlog_entries == 0
        assert self.subscription.cursor.entries_above == 0
        assert self.subscription.statistics().unacked_messages == 0
        assert self.subscription.statistics().entries_to_send_again == 0
        assert [outlet.ends for _, outlet in self.consumers] == [1] * len(self.consumers)


@every_schedule(examples_max=120, steps=STEPS, kind=st.sampled_from(SubscriptionType), permits=st.integers(1, 9))
async def test_any_story_keeps_the_promises(steps: list[Step], kind: SubscriptionType, permits: int) -> None:
    """D11, D12, T16: at least once, in order, one end; nothing acknowledged, hidden or aborted is sent."""
    stream = LazyStream()
    cursor = await Cursor.open("s", ledger=stream, metadata=MemoryStore(), claim=None, start=EARLIEST)
    subscription = Subscription("s", source=stream, cursor=cursor, kind=kind)
    story = Story(kind, stream, subscription)
    async with trio.open_nursery() as nursery:
        await nursery.start(subscription.run)
        for messages in (1, 3, 1, 1):
            story.append(messages)
        for _ in range(2):
            story.join()
        for consumer, _outlet in story.consumers:
            subscription.flow(consumer, permits)
        for step in steps:
            await story.play(step)
        await story.finish()
        nursery.cancel_scope.cancel()
