"""One consumer of a connection, and its outlet: where dispatch's deliveries become MESSAGE frames.

The outlet never blocks: it hands frames to the connection's outbox, and says by that whether it takes more.
"""

from collections.abc import Callable, Sequence

import structlog

from broker.layouts.legacy import segment_of
from broker.names import TopicName
from broker.pulsar.acknowledging import DurableAnswers
from broker.pulsar.outbox import Outbox
from broker.read_uncommitted import ReadUncommitted
from broker.reader_positions import ReaderId, SeekPosition
from broker.topic import Topic
from broker.traffic import Traffic
from dispatch.consumer import Consumer, Delivery
from dispatch.subscription import Subscription
from storage.signal import Signal
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import encode_broker_metadata
from tidewire.wire.pulsar.frames import encode_command, encode_frame_head
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

log = structlog.get_logger(__name__)


class ConsumerSession:
    """One consumer or reader of the connection."""

    def __init__(
        self,
        consumer: Consumer,
        outlet: "ConsumerOutlet",
        topic: Topic,
        subscription: Subscription,
        answers: DurableAnswers,
        *,
        durable: bool,
        read_uncommitted: ReadUncommitted | None,
        seek_position: SeekPosition | None,
        is_replicated: bool,
        follows_layout: Callable[[], bool],
    ) -> None:
        self.read_uncommitted = read_uncommitted
        """What it reads in place of what the topic shows."""
        self.consumer = consumer
        self.outlet = outlet
        self.topic = topic
        self.subscription = subscription
        self.durable = durable
        self.seek_position = seek_position
        """Of a reader that was moved: where it goes on when it comes back."""
        self.is_replicated = is_replicated
        self.answers = answers
        self.scalable_name, self.segment_id = segment_of(topic.name)
        """The topic and segment as which clients of scalable topics know what it consumes."""
        self._follows_layout = follows_layout

    @property
    def follows_layout(self) -> bool:
        """See `TopicClient`. It may turn out only later: the Java client registers after it has subscribed again."""
        return self._follows_layout()

    @property
    def durable_name(self) -> str | None:
        """The subscription's name; None of a reader."""
        return self.subscription.name if self.durable else None

    @property
    def reader_id(self) -> ReaderId:
        """By what a reader is known when it comes back."""
        return ReaderId(self.topic.name, self.subscription.name, self.consumer.name)

    def close(self) -> None:
        """Leave the subscription; what was not acknowledged goes to others."""
        self.answers.close()
        self.subscription.remove_consumer(self.consumer)
        self.topic.remove_consumer(self.consumer)
        if not self.durable:
            self.topic.end_reader(self.subscription)

    def topic_closed(self) -> None:
        """See `TopicClient`: the client is told to look the topic up again."""
        self.outlet.disconnected()


class ConsumerOutlet:
    """Turns deliveries into frames on the connection."""

    def __init__(
        self,
        consumer_id: int,
        topic: Topic,
        epoch: int | None,
        outbox: Outbox,
        traffic: Traffic,
        closed_by_broker: Callable[[int], None],
        *,
        indexed: bool,
    ) -> None:
        self.epoch = epoch
        """What the client counts up with each request to send everything again; it drops messages of earlier ones."""
        self._consumer_id = consumer_id
        self._indexed = indexed
        self._topic = topic
        self._partition = partition_of(topic.name)
        self._outbox = outbox
        self._traffic = traffic
        self._closed_by_broker = closed_by_broker

    @property
    def writable(self) -> bool:
        """See `Outlet`."""
        return self._outbox.writable

    def send(self, deliveries: Sequence[Delivery]) -> None:
        """See `Outlet`."""
        for entry, redelivery_count, ack_bits in deliveries:
            command = commands.message(
                self._consumer_id,
                *entry.position,
                partition=self._partition,
                redelivery_count=redelivery_count,
                ack_set=ack_bits or (),
                consumer_epoch=self.epoch,
            )
            payload = entry.payload
            known = b""
            if self._indexed:
                known = encode_broker_metadata(
                    last_index=entry.first_index + entry.message_count - 1, timestamp_ms=entry.timestamp_ms
                )
            # In pieces, so that the payload is copied once more at the most on its way to the socket.
            self._outbox.put(encode_frame_head(command, len(known) + len(payload)) + known, payload)
            self._traffic.messages_out += entry.message_count
            self._traffic.bytes_out += len(entry.payload)
            self._topic.delivered(entry.message_count, len(entry.payload))

    def end_of_topic(self) -> None:
        """See `Outlet`."""
        self._outbox.put(encode_command(commands.reached_end_of_topic(self._consumer_id)))

    def damaged(self, reason: str) -> None:
        """See `Outlet`. The consumer stays: closing it would make its client subscribe again and again."""
        log.error("a consumer met damage", topic=str(self._topic.name), consumer=self._consumer_id, reason=reason)
        self._outbox.put(encode_command(commands.consumer_error(self._consumer_id, pb.PersistenceError, reason)))

    def disconnected(self) -> None:
        """See `Outlet`."""
        self._closed_by_broker(self._consumer_id)

    def attach(self, signal: Signal) -> None:
        """See `Outlet`."""
        self._outbox.attach(signal)

    def detach(self, signal: Signal) -> None:
        """See `Outlet`."""
        self._outbox.detach(signal)


def partition_of(name: TopicName) -> int:
    """The partition that a topic's message ids name; -1 for none."""
    index = name.partition_index
    return -1 if index is None else index
