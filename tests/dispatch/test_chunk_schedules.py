"""Arbitrary stories of chunked messages, under any task order: every consumer can assemble its chunks."""

from collections.abc import Sequence
from typing import NamedTuple

import trio
import trio.testing
from hypothesis import strategies as st

from dispatch.chunks import Chunk
from dispatch.consumer import Consumer, Delivery
from dispatch.subscription import Acknowledgement, Subscription
from dispatch.subscription_types import SubscriptionType
from storage.cursor import Cursor
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST, Position
from tests.dispatch.test_dispatch_schedules import LazyStream
from tests.support.outlet import RecordingOutlet
from tests.support.schedules import every_schedule

PRODUCERS = 3


class Part(NamedTuple):
    message: int
    number: int
    is_last: bool


class Step(NamedTuple):
    kind: str
    number: int
    pause: int
    """Steps of the scheduler that follow."""


OFTEN = ("chunk", "chunk", "last", "flow", "acknowledge")
SELDOM = ("plain", "roll", "join", "leave", "give-back", "redeliver", "close-outlet", "open-outlet")
STEPS = st.lists(
    st.builds(Step, st.sampled_from(OFTEN * 3 + SELDOM), st.integers(0, 5), st.integers(0, 5)),
    min_size=10,
    max_size=60,
)


class Client(RecordingOutlet):
    """Assembles what it is sent, as every client does: an unexpected chunk loses the message."""

    def __init__(self, parts: dict[Position, Part]) -> None:
        super().__init__()
        self.parts = parts
        self.begun: dict[int, list[Position]] = {}
        self.whole: dict[int, list[Position]] = {}

    def send(self, deliveries: Sequence[Delivery]) -> None:
        assert self.writable
        for delivery in deliveries:
            position = delivery.entry.position
            part = self.parts.get(position)
            if part is None:
                continue
            begun = self.begun.setdefault(part.message, [])
            assert part.number == len(begun), "all chunks come, and in order"
            begun.append(position)
            if part.is_last:
                self.whole[part.message] = self.begun.pop(part.message)
        super().send(deliveries)


class Story:
    """Plays steps on a subscription."""

    def __init__(self, stream: LazyStream, subscription: Subscription) -> None:
        self.stream = stream
        self.subscription = subscription
        self.parts: dict[Position, Part] = {}
        self.plain: set[Position] = set()
        self.under_way: list[tuple[int, int]] = [(message, 0) for message in range(PRODUCERS)]
        """Per producer, the number of its message and of the next chunk."""
        self.acknowledged: list[int] = []
        self.clients: list[tuple[Consumer, Client]] = []

    def append(self, producer: int, *, is_last: bool) -> None:
        message, number = self.under_way[producer]
        # Known before the append, which wakes the dispatcher.
        position = self.stream.next_after(self.stream.last_position)
        self.parts[position] = Part(message, number, is_last)
        self.stream.append(chunk=Chunk(message, is_last))
        self.under_way[producer] = (message + PRODUCERS, 0) if is_last else (message, number + 1)

    def join(self, permits: int) -> None:
        client = Client(self.parts)
        consumer = Consumer(len(self.clients), "c", client)
        self.clients.append((consumer, client))
        self.subscription.add_consumer(consumer)
        self.subscription.flow(consumer, permits)

    def acknowledge(self, client: Client, message: int) -> None:
        self.acknowledged.append(message)
        self.subscription.acknowledge([Acknowledgement(position) for position in client.whole.pop(message)])

    async def play(self, step: Step) -> None:
        kind, number, pause = step
        if kind in {"chunk", "last"}:
            self.append(number % PRODUCERS, is_last=kind == "last" and self.under_way[number % PRODUCERS][1] > 0)
        elif kind == "plain":
            self.plain.add(self.stream.append())
        elif kind == "roll":
            self.stream.roll()
        elif kind == "join":
            self.join(number)
        elif self.clients:
            self.play_consumer(kind, number)
        for _ in range(pause):
            await trio.lowlevel.checkpoint()

    def play_consumer(self, kind: str, number: int) -> None:
        consumer, client = self.clients[number % len(self.clients)]
        if kind == "flow":
            self.subscription.flow(consumer, 1 + number)
        elif kind == "close-outlet":
            client.writable = False
        elif kind == "open-outlet":
            client.writable = True
        elif kind == "acknowledge" and client.whole:
            self.acknowledge(client, min(client.whole))
        elif kind == "give-back" and client.whole:
            self.subscription.redeliver(consumer, client.whole.pop(max(client.whole)))
        elif kind == "redeliver":
            client.whole.clear()
            client.begun.clear()
            self.subscription.redeliver(consumer)
        elif kind == "leave":
            self.clients.remove((consumer, client))
            self.subscription.remove_consumer(consumer)

    async def finish(self) -> None:
        """Let all consumers take everything; each complete message arrives whole and is acknowledged once."""
        if not self.clients:
            self.join(0)
        for consumer, client in self.clients:
            self.subscription.flow(consumer, 10_000)
            client.writable = True
        await trio.testing.wait_all_tasks_blocked()
        for _consumer, client in self.clients:
            for message in list(client.whole):
                self.acknowledge(client, message)
        ended = [part.message for part in self.parts.values() if part.is_last]
        assert sorted(self.acknowledged) == sorted(ended)
        assert self.subscription.statistics().entries_to_send_again == 0
        held = len(self.plain) + sum(next_chunk for _message, next_chunk in self.under_way)
        assert self.subscription.statistics().unacked_messages == held


@every_schedule(examples_max=150, steps=STEPS, permits=st.integers(0, 4))
async def test_messages_in_chunks_come_whole_and_once(steps: list[Step], permits: int) -> None:
    stream = LazyStream()
    cursor = await Cursor.open("s", ledger=stream, metadata=MemoryStore(), claim=None, start=EARLIEST)
    subscription = Subscription("s", source=stream, cursor=cursor, kind=SubscriptionType.SHARED)
    story = Story(stream, subscription)
    async with trio.open_nursery() as nursery:
        await nursery.start(subscription.run)
        for producer in (0, 1, 0, 2, 1):
            story.append(producer, is_last=False)
        for _ in range(3):
            story.join(permits)
        for step in steps:
            await story.play(step)
        await story.finish()
        nursery.cancel_scope.cancel()
