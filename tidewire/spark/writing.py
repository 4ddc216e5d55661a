"""Writes one task's rows in one transaction: each row to the segment that currently holds its key's hash.

Rows wait until they fill a frame for their segment. The task sends frames without waiting for answers, up to a window,
and processes what has arrived before each of them. `finish` returns when every frame is answered. So a commit after it
commits all of the task's rows.

**A sealed segment.** For a split or merge the broker first pushes the new layout. It waits a while for the task to
receive the last answers and close its producer. Then it seals the segment: it answers every frame that it has stored,
and refuses the next one. That frame and all later ones are not stored, and their rows go to the segment's children, in
order, before any new row. The task first settles all segments that the new layout does not have, and only then divides
rows by it. So the rows of a key stay in order.

**A closed producer.** A broker may close a producer with unanswered frames: the segment was replaced or moved, or the
disk is full. The new layout may come later, by another connection. So the task asks for the layout, and opens the
producer again under its name. A sealed segment that stored nothing of this name refuses that. Otherwise the task sends
the frames again, with their sequence ids. The broker drops what it has, and a sealed segment refuses the rest.

**Doubt.** When a connection is lost, or the broker does not remember the closed producer, the unanswered frames may or
may not be stored. That is an error: the transaction is not committed, and Spark runs the task again.
"""

import random
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Final

from tidewire.protocol.coordination import TransactionId
from tidewire.protocol.errors import ConnectionLost, OperationTimedOut, ProtocolViolation, TidewireError
from tidewire.protocol.layout import Succession
from tidewire.protocol.refusals import Refused, refusal
from tidewire.protocol.unanswered import SEALING
from tidewire.spark.batching import Producing, SentFrame, encode_frame
from tidewire.spark.brokers import Brokers
from tidewire.spark.connection import BlockingConnection
from tidewire.spark.coordinating import Coordinator
from tidewire.spark.encoding import Rows
from tidewire.spark.errors import UnwritableRow, WriteFailed
from tidewire.spark.layouts import layout_of, open_layout
from tidewire.spark.persisting import passes, persistently
from tidewire.spark.routing import Routes
from tidewire.spark.written import OpenProducer, Phase, WrittenSegment, WrittenTopic
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

WINDOW_BYTES_MAX: Final = 16 * 1024 * 1024
WINDOW_FRAMES_MAX: Final = 1000
"""Unanswered frames of one task, and their size. Above either, the task waits for answers."""

WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Rows of one task that wait for a full frame. Above this, the task sends frames that are not full."""

TOPICS_MAX: Final = 1000
"""Topics that one task writes to; each takes a layout session."""

_T: Final = pb.BaseCommand.Type


class Attempt:
    """See the module's docstring. After an error it cannot be used again."""

    def __init__(
        self, brokers: Brokers, coordinator: Coordinator, transaction: TransactionId, declared: pb.Schema | None
    ) -> None:
        """Ask nothing yet.

        Args:
            brokers: connections that nobody else uses meanwhile.
            coordinator: the transaction's coordinator.
            transaction: takes all rows.
            declared: the schema of the rows' values, to declare to topics; None for no schema.
        """
        self._brokers = brokers
        self._coordinator = coordinator
        self._transaction = transaction
        self._declared = declared
        self._topics: dict[str, WrittenTopic] = {}
        self._by_session: dict[int, WrittenTopic] = {}
        self._by_producer: dict[int, tuple[WrittenTopic, WrittenSegment]] = {}
        self._session_ids = count(1)
        self._producer_ids = count(1)
        self.frames_unanswered = 0
        """The number for all topics together."""
        self._bytes_unanswered = 0

    def write(self, topic: str, rows: Rows) -> None:
        """Take rows after those taken before. Waits while too many frames are unanswered.

        Raises:
            TidewireError: a frame was refused, or may or may not be stored.
        """
        target = self._topics.get(topic) or self._open_topic(topic)
        self._distribute(target, rows)
        self._send(everything=False)

    def finish(self) -> None:
        """Return when all rows are stored.

        Raises:
            TidewireError: as `write`.
        """
        self._send(everything=True)

    def leave(self) -> None:
        """Close all producers, after `finish`. Nobody uses their names again, so brokers forget them soon."""
        for _topic, segment in self._all_segments():
            if segment.producer is not None:
                closing = commands.close_producer(segment.producer.producing.producer_id)
                # All rows are stored. A broker that is not told forgets the producer later.
                with suppress(ConnectionLost, OperationTimedOut):
                    segment.producer.connection.send(closing)

    # -------------------------------------------------------------------------------------------------------- sending

    def _send(self, *, everything: bool) -> None:
        while True:
            self._hear_what_is_there()
            if self._settle():
                continue
            segment = self._next(everything=everything)
            if segment is None:
                if not (everything and self.frames_unanswered):
                    return
                self._await_answers()
            elif self.frames_unanswered >= WINDOW_FRAMES_MAX or self._bytes_unanswered >= WINDOW_BYTES_MAX:
                self._await_answers()
            else:
                self._send_frame(*segment)

    def _all_segments(self) -> Iterator[tuple[WrittenTopic, WrittenSegment]]:
        for topic in self._topics.values():
            for segment in topic.segments.values():
                yield topic, segment

    def _next(self, *, everything: bool) -> tuple[WrittenTopic, WrittenSegment] | None:
        """The segment whose frame is next; None when all rows should wait."""
        waiting = [(topic, segment) for topic, segment in self._all_segments() if segment.waiting.count]
        for topic, segment in waiting:
            if everything or segment.waiting.is_full:
                return topic, segment
        if sum(segment.waiting.size_bytes for _, segment in waiting) > WAITING_BYTES_MAX:
            return max(waiting, key=lambda one: one[1].waiting.size_bytes)
        return None

    def _send_frame(self, topic: WrittenTopic, segment: WrittenSegment) -> None:
        producer = segment.producer or self._open_producer(topic, segment)
        if producer is None:
            return
        limit = producer.connection.message_bytes_max
        rows = segment.waiting.take_frame(limit)
        if rows[0].size_bytes > limit:
            raise UnwritableRow(
                f"{rows[0].first_named} takes {rows[0].size_bytes} bytes as a message, and the broker at "
                f"{producer.connection.address} accepts at most {limit}; write smaller rows, or raise the broker's "
                "setting message_bytes_max"
            )
        sequence_id = producer.next_sequence_id
        pieces = encode_frame(rows, producer.producing, sequence_id, _now_ms())
        size_bytes = sum(map(len, pieces))
        producer.next_sequence_id += sum(len(piece) for piece in rows)
        segment.unanswered.append(SentFrame(sequence_id, rows, size_bytes))
        self.frames_unanswered += 1
        self._bytes_unanswered += size_bytes
        producer.connection.send_encoded(*pieces)

    def _open_producer(self, topic: WrittenTopic, segment: WrittenSegment) -> OpenProducer | None:
        """Open a producer, and send the unanswered frames of a closed one again; None when the segment is sealed.

        Raises:
            TidewireError: it could not be opened, or unanswered frames may or may not be stored.
        """
        if segment.phase is Phase.UNTOUCHED:
            persistently(
                partial(self._coordinator.include, self._transaction, segment.part.wire_name),
                self._brokers.timeout_seconds,
                _is_refused_for_now,
            )
            segment.included()
        else:
            # Its broker has closed the producer. The segment was replaced or has moved, or its topic was deleted.
            self._ask_layout(topic)
        try:
            owner, answer, producer_id = persistently(
                partial(self._producer, topic, segment), self._brokers.timeout_seconds, _is_refused_for_now
            )
        except Refused as refused:
            if refused.code not in SEALING:
                raise
            if refused.code == pb.TopicNotFound:
                self._ask_layout(topic)
            segment.sealed()
            return None
        # Nothing was received between the answer and here, so nothing about this producer was missed.
        producing = Producing(producer_id, answer.producer_name, answer.schema_version, self._transaction)
        producer = segment.opened(owner, producing, answer.last_sequence_id)
        for frame in segment.unanswered:
            owner.send_encoded(*encode_frame(frame.rows, producing, frame.sequence_id, _now_ms()))
        return producer

    def _producer(
        self, topic: WrittenTopic, segment: WrittenSegment
    ) -> tuple[BlockingConnection, pb.CommandProducerSuccess, int]:
        part, doubted = segment.part.wire_name, segment.doubted
        owner = self._listening(self._brokers.owner_of(part))
        producer_id = next(self._producer_ids)
        self._by_producer[producer_id] = (topic, segment)
        answer = owner.request(
            lambda request_id: commands.producer(
                part,
                producer_id,
                request_id,
                name=None if doubted is None else doubted.producing.name,
                is_generated=True,
                epoch=0 if doubted is None else doubted.epoch + 1,
                txn_enabled=True,
                schema=self._declared,
            ),
            pb.CommandProducerSuccess,
        )
        return owner, answer, producer_id

    # --------------------------------------------------------------------------------------------------------- layouts

    def _open_topic(self, name: str) -> WrittenTopic:
        if len(self._topics) >= TOPICS_MAX:
            raise WriteFailed(f"a task writes to more than {TOPICS_MAX} topics; repartition by topic")
        topic = WrittenTopic(name)
        self._ask_layout(topic)
        # A random start, because tasks with few rows would all use the first segment.
        self._follow(topic, random.randrange(1 << 16))  # noqa: S311
        self._topics[name] = topic
        return topic

    def _ask_layout(self, topic: WrittenTopic) -> None:
        """Open a layout session for the topic, and return when the first layout has come.

        Raises:
            TidewireError: there is no such topic, or no broker could be asked.
        """
        if topic.connection is not None:
            topic.connection.send(commands.scalable_topic_close(topic.session_id))
            del self._by_session[topic.session_id]
        topic.session_id = next(self._session_ids)
        self._by_session[topic.session_id] = topic
        topic.connection = self._listening(open_layout(self._brokers, topic.name, topic.session_id))
        deadline = topic.connection.deadline()
        topic.is_new = False
        while not topic.is_new:
            self._hear(topic.connection.receive(deadline, f"the layout of {topic.name}"))

    def _follow(self, topic: WrittenTopic, turn: int) -> None:
        """Divide rows by the newest layout from now on."""
        topic.routes = Routes(topic.layout, turn)
        topic.is_new = False

    def _distribute(self, topic: WrittenTopic, rows: Rows) -> None:
        assert topic.routes is not None, "set before the topic is written to"
        for number, own in topic.routes.divide(rows):
            segment = topic.segments.get(number)
            if segment is None:
                segment = topic.segments[number] = WrittenSegment(topic.layout.segments[number])
            segment.waiting.add(own)

    def _settle(self) -> bool:
        """Settle segments that were replaced. Returns whether there were any."""
        stale = [
            topic
            for topic in self._topics.values()
            if topic.is_new or any(segment.is_sealed for segment in topic.segments.values())
        ]
        for topic in stale:
            self._settle_topic(topic)
        return bool(stale)

    def _settle_topic(self, topic: WrittenTopic) -> None:
        assert topic.connection is not None, "its layout came by one"
        assert topic.routes is not None, "set before the topic is written to"
        deadline = topic.connection.deadline()
        while True:
            is_active = topic.layout.is_active
            if any(segment.is_sealed and is_active(number) for number, segment in topic.segments.items()):
                self._hear(topic.connection.receive(deadline, f"the layout of {topic.name} without a sealed segment"))
                continue
            replaced = [segment for number, segment in topic.segments.items() if not is_active(number)]
            answering = next((one for one in replaced if one.unanswered and not one.is_sealed), None)
            if answering is None:
                break
            self._receive(topic, answering)
        taken_back: list[Rows] = []
        for segment in replaced:
            for frame in segment.unanswered:
                self._forget(frame)
                taken_back += frame.rows
            # Cleared, so that an answer that still comes for one of them is an error.
            segment.unanswered.clear()
            if segment.producer is not None:
                # The broker seals the segment only when its producers have left, or after a timeout.
                closing = commands.close_producer(segment.producer.producing.producer_id)
                segment.producer.connection.send(closing)
            taken_back += segment.waiting.take_all()
            del topic.segments[segment.part.segment_id]
        self._follow(topic, topic.routes.turn)
        for rows in taken_back:
            self._distribute(topic, rows)

    # --------------------------------------------------------------------------------------------------------- hearing

    def _listening(self, connection: BlockingConnection) -> BlockingConnection:
        connection.unasked = self._hear
        return connection

    def _hear_what_is_there(self) -> None:
        for connection in tuple(self._brokers.connected()):
            for frame in connection.arrived():
                self._hear(frame)

    def _await_answers(self) -> None:
        # The segment with the most frames in flight gets an answer, or the wait fails.
        self._receive(*max(self._all_segments(), key=lambda one: len(one[1].unanswered)))

    def _receive(self, topic: WrittenTopic, segment: WrittenSegment) -> None:
        """Wait for an answer to a frame; or learn that the segment is sealed."""
        producer = segment.producer or self._open_producer(topic, segment)
        if producer is not None:
            owner = producer.connection
            self._hear(owner.receive(owner.deadline(), f"its answer to a frame of {segment.part.wire_name}"))

    def _hear(self, frame: Frame) -> None:
        command = frame.command
        if command.type == _T.SEND_RECEIPT:
            self._stored(command.send_receipt)
        elif command.type == _T.SEND_ERROR:
            self._refused(command.send_error)
        elif command.type == _T.CLOSE_PRODUCER:
            self._closed(command.close_producer.producer_id)
        elif command.type == _T.SCALABLE_TOPIC_UPDATE:
            topic = self._by_session.get(command.scalable_topic_update.session_id)
            if topic is not None and topic.connection is not None:
                self._take_layout(topic, topic.connection, command.scalable_topic_update)

    def _take_layout(
        self, topic: WrittenTopic, owner: BlockingConnection, update: pb.CommandScalableTopicUpdate
    ) -> None:
        layout = layout_of(owner, topic.name, update)
        succession = layout.succession(topic.layout)
        if succession is Succession.OTHER_TOPIC:
            raise WriteFailed(f"{topic.name} was deleted and created again while a task wrote to it")
        if succession is Succession.NEWER:
            topic.layout = layout
            topic.is_new = True

    def _stored(self, receipt: pb.CommandSendReceipt) -> None:
        known = self._by_producer.get(receipt.producer_id)
        if known is None:
            return
        _, segment = known
        producer, unanswered = segment.producer, segment.unanswered
        if producer is None or not unanswered or unanswered[0].sequence_id != receipt.sequence_id:
            raise ProtocolViolation(
                f"the broker of {segment.part.wire_name} confirms frame {receipt.sequence_id} out of order"
            )
        producer.answered_upto = unanswered[0].last_sequence_id
        self._forget(unanswered.popleft())

    def _refused(self, error: pb.CommandSendError) -> None:
        known = self._by_producer.get(error.producer_id)
        if known is None:
            return
        _, segment = known
        if error.error not in SEALING:
            raise refusal(error.error, f"{segment.part.wire_name} refuses a task's rows: {error.message}")
        if segment.producer is None:
            raise ProtocolViolation(f"the broker of {segment.part.wire_name} refuses a frame that was not sent")
        segment.sealed()

    def _closed(self, producer_id: int) -> None:
        known = self._by_producer.pop(producer_id, None)
        if known is None:
            return
        _, segment = known
        if segment.producer is None or segment.producer.producing.producer_id != producer_id:
            # The broker closed a refused or replaced producer, which has no unanswered frames.
            return
        segment.closed()

    def _forget(self, frame: SentFrame) -> None:
        self.frames_unanswered -= 1
        self._bytes_unanswered -= frame.size_bytes


def _is_refused_for_now(error: TidewireError) -> bool:
    return isinstance(error, Refused) and passes(error)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
