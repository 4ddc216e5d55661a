"""Plays a story with the broker and the model, and checks all promises at the end."""

from collections.abc import Sequence
from typing import Final

import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.errors import BrokerError
from broker.names import TopicName
from storage.errors import LedgerFailed, LedgerNotMade
from tests.model.clients import Consumer, Held, Parties, Segment, Writer
from tests.model.machine import RETENTION_SECONDS, Machine
from tests.model.operations import (
    Abort,
    Acknowledge,
    Advance,
    Begin,
    Commit,
    Hurry,
    Join,
    Leave,
    LosePower,
    Merge,
    Operation,
    Plain,
    Restart,
    Send,
    SendAgain,
    Setting,
    Split,
)
from tests.model.promises import BrokenPromise, Fate, Txn, World

TIMEOUT_SECONDS: Final = 300
"""The longest timeout of a story's transactions."""

STEP_SECONDS_MAX: Final = 3600
"""Nothing that a broker is asked takes longer, however far the clock jumps."""

DRAIN_ROUNDS_MAX: Final = 500

STREAM, QUEUE, AUDIT = "stream", "queue", "audit"


def play(story: Sequence[Operation], setting: Setting) -> None:
    """Run the story from the first operation to the end, on a new machine.

    Raises:
        BrokenPromise: the broker broke a promise; or any other error.
    """
    with capture_logs() as log:
        trio.run(_play, story, setting, clock=MockClock(autojump_threshold=0))
    for event in log:
        if event["log_level"] == "error":
            raise BrokenPromise(f"the broker met an unexpected error: {event}")


async def _play(story: Sequence[Operation], setting: Setting) -> None:
    async with trio.open_nursery() as nursery:
        player = Player(setting, nursery)
        await player.begin()
        for operation in story:
            await player.step(operation)
        await player.finish()
        nursery.cancel_scope.cancel()


class Player:
    """One story's broker, clients and model."""

    def __init__(self, setting: Setting, nursery: trio.Nursery) -> None:
        self.setting = setting
        self.world = World()
        self.machine = Machine(setting.disk, nursery, prunes=setting.prunes)
        self.parties = Parties(self.machine, self.world, nursery)
        self.topics = [f"topic://public/default/t{number}" for number in range(len(setting.segments))]
        self.txns: list[tuple[Txn, tuple[int, int]]] = []
        self.consumers: list[Consumer] = []
        self._joined = 0
        self._writer: Writer | None = None

    async def begin(self) -> None:
        """Start a broker, and create the topics."""
        assert await self.machine.start(), "the power is there"
        for topic, segments in zip(self.topics, self.setting.segments, strict=True):
            await self.machine.broker.administration.create_topic(
                TopicName.parse(topic), segments=segments, properties={}
            )
            if self.setting.prunes:
                for name in (STREAM, QUEUE):
                    self.join(topic, name, is_ordered=name == STREAM)
                await self.settle()

    async def step(self, operation: Operation) -> None:
        """Do one operation, and wait for its effects unless it is in a hurry."""
        if not self.machine.is_running or self.machine.has_lost_power:
            await self.restart("powerless")
        if isinstance(operation, Hurry):
            await self._do(operation.then)
            for _ in range(operation.turns):
                await trio.lowlevel.checkpoint()
            self._raise_broken()
        else:
            await self._do(operation)
            await self.settle()

    async def settle(self) -> None:
        """Wait until nothing is on its way."""
        await wait_all_tasks_blocked()
        if self.machine.is_running:
            self.world.settled()
            for topic in self.machine.broker.topics:
                self.world.readable_stands_at(str(topic.name), topic.readable.value)
        self._raise_broken()

    async def restart(self, how: str) -> None:
        """End the broker and start the next one."""
        for gone in self.consumers:
            gone.connection.hang_up()
        self.consumers.clear()
        if self._writer is not None:
            self._writer.connection.hang_up()
            self._writer = None
        with trio.fail_after(STEP_SECONDS_MAX):
            if how == "stopped" and self.machine.is_running and not self.machine.has_lost_power:
                await self.machine.stop()
            elif how == "killed" and not self.machine.has_lost_power:
                await self.machine.kill()
            else:
                await self.machine.crash()
            while not await self.machine.start():
                await self.machine.crash()
        self._raise_broken()

    async def writer(self) -> Writer:
        """Return the writer, connected and with the layouts."""
        if self._writer is None or not self._writer.is_open:
            self._writer = Writer(self.parties, self.topics, leaves=self.setting.producers_leave)
            await wait_all_tasks_blocked()
        return self._writer

    async def _do(self, operation: Plain) -> None:
        match operation:
            case Begin(seconds):
                await self._begin(seconds)
            case Send(topic, key, number):
                chosen = self._txn(number)
                if number is None or chosen is not None:
                    writer = await self.writer()
                    writer.send(self.topics[topic], key, *(chosen or (None, None)))
            case Commit(number) | Abort(number):
                chosen = self._txn(number)
                if chosen is not None:
                    fate = Fate.COMMITTED if isinstance(operation, Commit) else Fate.ABORTED
                    (await self.writer()).end(*chosen, fate)
            case Join(topic, ordered):
                self.join(self.topics[topic], STREAM if ordered else QUEUE, is_ordered=ordered)
            case Leave(number, politely):
                consumer = self._consumer(number)
                if consumer is not None:
                    self.consumers.remove(consumer)
                    if politely:
                        consumer.leave()
                        await wait_all_tasks_blocked()
                    consumer.connection.hang_up()
            case Acknowledge(number, message, cumulative, txn_number, twice):
                consumer, held = self._held(number, message)
                chosen = self._txn(txn_number)
                if consumer is not None and held is not None and (txn_number is None or chosen is not None):
                    consumer.acknowledge(
                        held,
                        is_cumulative=cumulative and consumer.subscription.is_ordered,
                        txn=None if chosen is None else chosen[0],
                        txn_id=None if chosen is None else chosen[1],
                        is_doubled=twice,
                    )
            case SendAgain(number, message):
                consumer, held = self._held(number, message)
                if consumer is not None and held is not None:
                    consumer.send_again(held)
            case Split(topic, number):
                active = await self._active(topic)
                if active:
                    self._change(topic, active[number % len(active)])
            case Merge(topic, number):
                active = await self._active(topic)
                if len(active) > 1:
                    self._change(topic, *active[number % (len(active) - 1) :][:2])
            case Advance(seconds):
                await trio.sleep(seconds)
            case LosePower(operations):
                self.machine.lose_power_after(operations)
            case Restart(how):
                await self.restart(how)

    async def _begin(self, seconds: int) -> None:
        asked = trio.current_time()
        begun: list[tuple[int, int]] = []
        (await self.writer()).begin(seconds, begun.append)
        await wait_all_tasks_blocked()
        if begun:
            self.txns.append((self.world.begun(asked + seconds), begun[0]))

    async def _active(self, topic: int) -> list[Segment]:
        layout = (await self.writer()).layouts.get(self.topics[topic], [])
        return sorted((segment for segment in layout if segment.is_active), key=lambda segment: segment.start)

    def _change(self, topic: int, *segments: Segment) -> None:
        """Split one segment, or merge two."""
        administration = self.machine.broker.administration
        name = TopicName.parse(self.topics[topic])

        async def change() -> None:
            try:
                if len(segments) == 1:
                    await administration.split(name, segments[0].id)
                else:
                    await administration.merge(name, segments[0].id, segments[1].id)
            except (BrokerError, LedgerFailed, LedgerNotMade):
                # The layout has changed since the client was told of it; or the broker stops, and its segments with it.
                return

        self.machine.do(change)

    def join(self, topic: str, name: str, *, is_ordered: bool) -> Consumer:
        """Connect another consumer."""
        self._joined += 1
        consumer = Consumer(self.parties, topic, name, is_ordered=is_ordered, number=self._joined)
        self.consumers.append(consumer)
        return consumer

    def _txn(self, number: int | None) -> tuple[Txn, tuple[int, int]] | None:
        return self.txns[-1 - number % len(self.txns)] if number is not None and self.txns else None

    def _consumer(self, number: int) -> Consumer | None:
        return self.consumers[-1 - number % len(self.consumers)] if self.consumers else None

    def _held(self, number: int, message: int) -> tuple[Consumer | None, Held | None]:
        consumer = self._consumer(number)
        held = None if consumer is None or not consumer.held else consumer.held[message % len(consumer.held)]
        return consumer, held

    def _raise_broken(self) -> None:
        if self.parties.broken:
            raise self.parties.broken[0]

    async def finish(self) -> None:
        """Repeat unanswered requests, let the rest time out, lose the power, and count the messages."""
        if not self.machine.is_running or self.machine.has_lost_power:
            await self.restart("powerless")
        await self._decide_everything()
        await self._everything_comes()
        await self.restart("powerless")
        for topic in self.topics:
            drains = [
                self.join(topic, subscription.name, is_ordered=subscription.is_ordered)
                for subscription in list(self.world.subscriptions.values())
                if subscription.topic == topic
            ]
            if not self.setting.prunes:
                drains.append(self.join(topic, AUDIT, is_ordered=True))
            await self._drain(drains)
            for consumer in drains:
                self.world.check_drained(consumer.subscription, consumer.came)
                self.consumers.remove(consumer)
                consumer.connection.hang_up()
        await self._nothing_is_left()
        await self.machine.kill()

    async def _decide_everything(self) -> None:
        writer = await self.writer()
        for txn, txn_id in self.txns:
            if txn.fate is Fate.OPEN and txn.asked:
                writer.end(txn, txn_id, min(txn.asked, key=lambda fate: fate.value))
        await self.settle()
        await trio.sleep(TIMEOUT_SECONDS + 1)
        await self.settle()
        if writer.connection.unanswered:
            raise BrokenPromise(f"{writer.connection.unanswered} requests were never answered")
        for txn, _txn_id in self.txns:
            if txn.fate is Fate.OPEN and not txn.asked:
                self.world.ended(txn, Fate.ABORTED, trio.current_time())

    async def _everything_comes(self) -> None:
        """Check that connected consumers get everything without further commands, and can acknowledge it."""
        await self._drain(self.consumers)
        for subscription in {consumer.subscription for consumer in self.consumers if consumer.is_open}:
            self.world.check_nothing_waits(subscription)

    async def _drain(self, consumers: list[Consumer]) -> None:
        """Acknowledge everything until nothing more arrives."""
        quiet = rounds = 0
        while quiet < 3:
            rounds += 1
            if rounds > DRAIN_ROUNDS_MAX:
                raise BrokenPromise("messages come again and again, although they are acknowledged")
            await self.settle()
            busy = False
            for consumer in consumers:
                for held in list(consumer.held):
                    busy = True
                    consumer.acknowledge(held, is_cumulative=False)
            quiet = 0 if busy else quiet + 1
            await trio.sleep(1)

    async def _nothing_is_left(self) -> None:
        """Check that no transaction leaves a record after its header's deletion, and that nothing is held back."""
        await trio.sleep(4 * RETENTION_SECONDS)
        await self.settle()
        metadata = self.machine.metadata
        assert metadata is not None, "the broker is running"
        left = [record.key for record in await metadata.scan("/txn/id/", "/txn/op0")]
        if left:
            raise BrokenPromise(f"records of transactions that are over: {left}")
        for topic in self.machine.broker.topics:
            if topic.readable.value < topic.ledger.confirmed.value:
                raise BrokenPromise(f"{topic.name} is held back at {topic.readable.value}")
