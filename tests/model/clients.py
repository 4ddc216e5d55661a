"""The clients of the simulated broker: a writer with transactions, and consumers that follow the layout.

They behave like the project's and Java's clients, but never send a message twice: what is unanswered when a producer or
the broker ends stays unknown. They report everything that they do and learn to the `World`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from tests.model.machine import Machine
from tests.model.promises import Ack, Fate, Message, Place, Subscription, Txn, World
from tests.model.wire import ModelConnection, content_of, is_error
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.frames import Frame
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.hashing import key_hash
from tidewire.wire.pulsar.message_ids import message_id, position
from tidewire.wire.pulsar.messages import parse_payload

Type = pb.BaseCommand.Type

AGAIN_SECONDS: Final = 0.1
"""After a refusal that will pass, a client tries again then."""

PERMITS: Final = 5
"""Messages that a consumer takes ahead."""


@dataclass(frozen=True)
class Segment:
    """A segment as clients see it in the layout."""

    id: int
    name: str
    start: int
    end: int
    is_active: bool


@dataclass(eq=False)
class Parties:
    """What all clients of a story share."""

    machine: Machine
    world: World
    nursery: trio.Nursery
    broken: list[Exception] = field(default_factory=list)


class Follower:
    """A connection that gets a topic's layouts."""

    def __init__(self, parties: Parties) -> None:
        self.parties = parties
        self.world = parties.world
        self.connection = ModelConnection(parties.machine, self.hear, parties.broken)
        self._sessions: dict[int, str] = {}
        self._epochs: dict[str, int] = {}
        self.layouts: dict[str, list[Segment]] = {}

    @property
    def is_open(self) -> bool:
        return self.connection.is_open

    def follow(self, topic: str) -> None:
        session_id = self.connection.new_id()
        self._sessions[session_id] = topic
        self.connection.send(commands.scalable_topic_lookup(session_id, topic))

    def hear(self, command: pb.BaseCommand, frame: Frame) -> None:
        if command.type == Type.SCALABLE_TOPIC_UPDATE:
            update = command.scalable_topic_update
            topic = self._sessions[update.session_id]
            if update.dag.epoch > self._epochs.get(topic, -1):
                self._epochs[topic] = update.dag.epoch
                self.layouts[topic] = [
                    Segment(
                        each.segment_id,
                        segment_name(topic, each.hash_start, each.hash_end, each.segment_id),
                        each.hash_start,
                        each.hash_end,
                        each.state == pb.ACTIVE,
                    )
                    for each in update.dag.segments
                ]
                self.layout_changed(topic)

    def layout_changed(self, topic: str) -> None:
        """Take a newer layout."""

    def later(self, call: Callable[[], None]) -> None:
        """Retry in a moment, if the connection still exists."""

        async def wait() -> None:
            await trio.sleep(AGAIN_SECONDS)
            if self.is_open:
                call()

        self.parties.nursery.start_soon(wait)


def segment_name(topic: str, start: int, end: int, segment_id: int) -> str:
    return f"segment://{topic.removeprefix('topic://')}/{start:04x}-{end:04x}-{segment_id}"


@dataclass(eq=False)
class _Producer:
    id: int
    segment: str
    is_ready: bool = False
    is_leaving: bool = False
    waiting: list[tuple[Message, tuple[int, int] | None]] = field(default_factory=list)
    unanswered: dict[int, Message] = field(default_factory=dict)


class Writer(Follower):
    """One client with a producer per segment, and its transactions."""

    def __init__(self, parties: Parties, topics: list[str], *, leaves: bool) -> None:
        """Set up. With `leaves`, producers leave a replaced segment by themselves, as they should."""
        super().__init__(parties)
        self._leaves = leaves
        self._producers: dict[str, _Producer] = {}
        self._by_id: dict[int, _Producer] = {}
        for topic in topics:
            self.follow(topic)

    def send(self, topic: str, key: str, txn: Txn | None, txn_id: tuple[int, int] | None) -> Message | None:
        """Send a message to the segment that takes the key. Return None while the layout is unknown."""
        place = key_hash(key)
        segment = next(
            (each for each in self.layouts.get(topic, ()) if each.is_active and each.start <= place <= each.end), None
        )
        if segment is None:
            return None
        message = self.world.sent(topic, key, txn)
        producer = self._producers.get(segment.name) or self._open(segment.name)
        producer.waiting.append((message, txn_id))
        if producer.is_ready:
            self._flush(producer)
        return message

    def begin(self, seconds: float, begun: Callable[[tuple[int, int]], None]) -> None:
        def answer(content: Any) -> None:
            if not is_error(content):
                begun((content.txnid_most_bits, content.txnid_least_bits))

        self.connection.ask(lambda request: commands.new_txn(request, 0, round(seconds * 1000)), answer)

    def end(self, txn: Txn, txn_id: tuple[int, int], fate: Fate) -> None:
        """Request the transaction's end."""
        txn.asked.add(fate)
        other = Fate.ABORTED if fate is Fate.COMMITTED else Fate.COMMITTED

        def answer(content: Any) -> None:
            if not is_error(content):
                self.world.ended(txn, fate, trio.current_time())
            elif content.error == pb.InvalidTxnStatus:
                self.world.ended(txn, other, trio.current_time())

        self.connection.ask(lambda request: commands.end_txn(request, txn_id, commit=fate is Fate.COMMITTED), answer)

    def hear(self, command: pb.BaseCommand, frame: Frame) -> None:
        super().hear(command, frame)
        if command.type == Type.SEND_RECEIPT:
            receipt = command.send_receipt
            producer = self._by_id[receipt.producer_id]
            message = producer.unanswered.pop(receipt.sequence_id)
            self.world.stored(message, Place(producer.segment, *position(receipt.message_id)))
            self._leave_if_idle(producer)
        elif command.type == Type.SEND_ERROR:
            producer = self._by_id[command.send_error.producer_id]
            self.world.refused(producer.unanswered.pop(command.send_error.sequence_id))
            self._leave_if_idle(producer)
        elif command.type == Type.CLOSE_PRODUCER:
            self._forget(self._by_id[command.close_producer.producer_id])

    def layout_changed(self, topic: str) -> None:
        active = {segment.name for layout in self.layouts.values() for segment in layout if segment.is_active}
        for name, producer in list(self._producers.items()):
            if name not in active and self._leaves:
                del self._producers[name]
                producer.is_leaving = True
                self._leave_if_idle(producer)

    def _open(self, segment: str) -> _Producer:
        producer = _Producer(self.connection.new_id(), segment)
        self._producers[segment] = self._by_id[producer.id] = producer

        def answer(content: Any) -> None:
            producer.is_ready = not is_error(content)
            if producer.is_ready:
                self._flush(producer)
                self._leave_if_idle(producer)
            else:
                self._forget(producer)
                for message, _txn_id in producer.waiting:
                    self.world.refused(message)

        self.connection.ask(lambda request: commands.producer(segment, producer.id, request), answer)
        return producer

    def _flush(self, producer: _Producer) -> None:
        for message, txn_id in producer.waiting:
            producer.unanswered[message.number] = message
            metadata = pb.MessageMetadata(producer_name="w", sequence_id=message.number, publish_time=1)
            if txn_id is not None:
                metadata.txnid_most_bits, metadata.txnid_least_bits = txn_id
            self.connection.send_payload(
                commands.send(producer.id, message.number, txn=txn_id),
                build_payload(metadata, str(message.number).encode()),
            )
        producer.waiting.clear()

    def _leave_if_idle(self, producer: _Producer) -> None:
        if producer.is_leaving and producer.is_ready and not producer.unanswered:
            producer.is_leaving = False
            self.connection.ask(lambda request: commands.close_producer(producer.id, request), lambda _content: None)

    def _forget(self, producer: _Producer) -> None:
        if self._producers.get(producer.segment) is producer:
            del self._producers[producer.segment]


@dataclass(eq=False)
class Held:
    """A message that a consumer got and has not acknowledged."""

    number: int
    place: Place
    consumer_id: int


class Consumer(Follower):
    """One consumer of a scalable topic: ordered, on its assigned segments, or shared, on every segment."""

    def __init__(self, parties: Parties, topic: str, name: str, *, is_ordered: bool, number: int) -> None:
        super().__init__(parties)
        self.topic = topic
        self.subscription: Subscription = self.world.subscribed(topic, name, is_ordered=is_ordered)
        self.held: list[Held] = []
        self.came: list[int] = []
        """Every message that was delivered, in order."""
        self._open: dict[str, int] = {}
        """Segments that are subscribed to or about to be, with the consumer's id there."""
        self._assigned: set[str] = set()
        self._group_id = self.connection.new_id()
        if is_ordered:
            self.connection.ask(
                lambda request: commands.scalable_topic_subscribe(
                    request, topic, name, f"consumer-{number}", self._group_id
                ),
                self._registered,
            )
        else:
            self.follow(topic)

    def leave(self) -> None:
        """Close as a client does: its consumer of every segment."""
        self._assigned.clear()
        for segment in list(self._open):
            self._close(segment)

    def acknowledge(
        self,
        held: Held,
        *,
        is_cumulative: bool,
        txn: Txn | None = None,
        txn_id: tuple[int, int] | None = None,
        is_doubled: bool = False,
    ) -> None:
        """Acknowledge a message, or all up to it on its segment, and request an answer when that is durable.

        `is_doubled`: if it is a single message in a transaction, acknowledge it a second time.
        """
        gone = [
            each
            for each in self.held
            if each is held or (is_cumulative and each.place.segment == held.place.segment and each.place <= held.place)
        ]
        numbers = [each.number for each in gone]
        if is_cumulative:
            numbers += [
                number
                for place, number in self.world.places.items()
                if place.segment == held.place.segment and place < held.place and number not in numbers
            ]
        self.held = [each for each in self.held if each not in gone]
        acks: list[Ack] = self.world.asked_to_acknowledge(self.subscription, numbers, txn)

        def answer(content: Any) -> None:
            if is_error(content):
                self.world.not_acknowledged(self.subscription, acks)
                self.held += [each for each in gone if each.consumer_id in self._open.values()]
            else:
                self.world.acknowledged(acks)

        identity = message_id(held.place.ledger, held.place.entry)

        def ask(answered: Callable[[Any], None]) -> None:
            self.connection.ask(
                lambda request: commands.ack(
                    held.consumer_id, [identity], cumulative=is_cumulative, txn=txn_id, request_id=request
                ),
                answered,
            )

        ask(answer)
        if txn is None or is_cumulative or not is_doubled:
            return
        second = self.world.asked_to_acknowledge(self.subscription, numbers, txn)

        def answer_second(content: Any) -> None:
            if is_error(content):
                self.world.not_acknowledged(self.subscription, second)
            else:
                self.world.acknowledged_twice(acks, second)

        ask(answer_second)

    def send_again(self, held: Held) -> None:
        """Give a message back; in an ordered subscription, all messages of its segment."""
        self.held.remove(held)
        ids = () if self.subscription.is_ordered else (message_id(held.place.ledger, held.place.entry),)
        self.connection.send(commands.redeliver(held.consumer_id, ids))

    def hear(self, command: pb.BaseCommand, frame: Frame) -> None:
        super().hear(command, frame)
        if command.type == Type.MESSAGE:
            self._deliver(frame)
        elif command.type == Type.SCALABLE_TOPIC_ASSIGNMENT_UPDATE:
            self._assign(command.scalable_topic_assignment_update.assignment)
        elif command.type == Type.CLOSE_CONSUMER:
            for segment, consumer_id in list(self._open.items()):
                if consumer_id == command.close_consumer.consumer_id:
                    self._gone(segment)
                    self.later(self._subscribe_all)

    def layout_changed(self, topic: str) -> None:
        self._assigned = {segment.name for segment in self.layouts[topic]}
        self._subscribe_all()

    def _registered(self, content: Any) -> None:
        if not is_error(content):
            self._assign(content.assignment)

    def _assign(self, assignment: Any) -> None:
        self._assigned = {segment.segment_topic for segment in assignment.segments}
        for segment in self._open.keys() - self._assigned:
            self._close(segment)
        self._subscribe_all()

    def _subscribe_all(self) -> None:
        for segment in sorted(self._assigned - self._open.keys()):
            self._subscribe(segment)

    def _subscribe(self, segment: str) -> None:
        consumer_id = self._open[segment] = self.connection.new_id()
        ordered = self.subscription.is_ordered

        def answer(content: Any) -> None:
            if not is_error(content):
                self.connection.send(commands.flow(consumer_id, PERMITS))
            elif self._open.get(segment) == consumer_id:
                del self._open[segment]
                self.later(self._subscribe_all)

        self.connection.ask(
            lambda request: commands.subscribe(
                segment,
                self.subscription.name,
                consumer_id,
                request,
                sub_type=pb.CommandSubscribe.Exclusive if ordered else pb.CommandSubscribe.Shared,
                initial_position=pb.CommandSubscribe.Earliest,
            ),
            answer,
        )

    def _close(self, segment: str) -> None:
        consumer_id = self._gone(segment)
        self.connection.ask(lambda request: commands.close_consumer(consumer_id, request), lambda _content: None)

    def _gone(self, segment: str) -> int:
        consumer_id = self._open.pop(segment)
        self.held = [held for held in self.held if held.consumer_id != consumer_id]
        return consumer_id

    def _deliver(self, frame: Frame) -> None:
        content = content_of(frame.command)
        segment = next((name for name, each in self._open.items() if each == content.consumer_id), None)
        if segment is None:
            # Of a consumer that was closed while the message was on its way: nobody sees it.
            return
        assert frame.payload is not None, "a message has a payload"
        _metadata, body = parse_payload(frame.payload)
        number, place = int(bytes(body)), Place(segment, *position(content.message_id))
        self.world.delivered(self.subscription, number, place, trio.current_time())
        self.came.append(number)
        self.held.append(Held(number, place, content.consumer_id))
        self.connection.send(commands.flow(content.consumer_id, 1))
