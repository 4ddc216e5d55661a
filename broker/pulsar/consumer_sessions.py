"""One consumer of a connection, and its outlet, which turns dispatch's deliveries into MESSAGE frames.

The outlet never blocks. It puts frames into the connection's outbox, and is writable while the outbox is.
"""

from collections.abc import Callable, Sequence
from uuid import uuid4

import structlog
import trio

from broker.layouts.legacy import segment_of
from broker.names import TopicName
from broker.outbox import Outbox
from broker.pulsar.acknowledging import DurableAnswers
from broker.read_uncommitted import ReadUncommitted
from broker.reader_positions import ReaderId, SeekPosition
from broker.topic import Topic
from broker.traffic import Traffic
from dispatch.consumer import Consumer, Delivery
from dispatch.subscription import Subscription
from storage.entry import EntryFormat
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
        self.id = uuid4().hex
        """Distinguishes it from all other sessions of all brokers. A client's own ids and names may be used again."""
        self.read_uncommitted = read_uncommitted
        """The source that it reads instead of the topic, if it reads uncommitted messages."""
        self.consumer = consumer
        self.outlet = outlet
        self.topic = topic
        self.subscription = subscription
        self.durable = durable
        self.seek_position = seek_position
        """Where a reader continues after its last seek when it reconnects."""
        self.is_replicated = is_replicated
        self.answers = answers
        self.has_flowed = False
        """Whether the client has asked for messages. Then it has taken up what it was answered at SUBSCRIBE."""
        self.scalable_name, self.segment_id = segment_of(topic.name)
        """The topic and segment id by which clients of scalable topics know its segment."""
        self._follows_layout = follows_layout

    @property
    def follows_layout(self) -> bool:
        """See `TopicClient`. It may become true later: after a reconnect, the Java client registers last."""
        return self._follows_layout()

    @property
    def durable_name(self) -> str | None:
        """The subscription's name; None for a reader."""
        return self.subscription.name if self.durable else None

    @property
    def reader_id(self) -> ReaderId:
        """The identity by which a reader is recognised when it reconnects."""
        return ReaderId(self.topic.name, self.subscription.name, self.consumer.name)

    def close(self) -> None:
        """Leave the subscription. Unacknowledged messages are redelivered to others."""
        self.answers.close()
        self.subscription.remove_consumer(self.consumer)
        self.topic.clients.remove_consumer(self.consumer)
        if not self.durable:
            self.topic.end_reader(self.subscription)

    def topic_closed(self, assigned_url: str | None = None) -> None:
        """See `TopicClient`. The client is told to look up the topic again, or where to go."""
        self.outlet.close(assigned_url)


class ConsumerOutlet:
    """Turns deliveries into frames on the connection."""

    def __init__(
        self,
        consumer_id: int,
        topic: Topic,
        epoch: int | None,
        outbox: Outbox,
        traffic: Traffic,
        closed_by_broker: Callable[[int, str | None], None],
        *,
        indexed: bool,
        subscription: str,
    ) -> None:
        self.epoch = epoch
        """The client raises it with each request for redelivery, and drops messages with a lower epoch."""
        self._consumer_id = consumer_id
        self._indexed = indexed
        self._subscription = subscription
        self._topic = topic
        self._partition = partition_of(topic.name)
        self._outbox = outbox
        self._traffic = traffic
        self._closed_by_broker = closed_by_broker
        self._since = trio.current_time()

    @property
    def writable(self) -> bool:
        """See `Outlet`."""
        return self._outbox.writable

    def send(self, deliveries: Sequence[Delivery]) -> None:
        """See `Outlet`."""
        for entry, redelivery_count, ack_bits in deliveries:
            if entry.format is not EntryFormat.PULSAR:
                # `conversion.py` has left it as it is. It is not acknowledged, so nothing is lost.
                self.damaged(
                    f"The entry {entry.position} of {self._topic.name} is a batch of a Kafka client that cannot be "
                    "converted: it is damaged, or too large for a Pulsar client. A Kafka client can read it. To go on "
                    "without it, acknowledge it or seek behind it."
                )
                continue
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
            # The frame is put in pieces, so the payload is copied at most once more on its way to the socket.
            self._outbox.put(encode_frame_head(command, len(known) + len(payload)) + known, payload)
            self._traffic.messages_out += entry.message_count
            self._traffic.bytes_out += len(entry.payload)
            self._topic.delivered(entry.message_count, len(entry.payload))
            if self._topic.spans is not None:
                self._topic.spans.delivered(entry, self._subscription)
        readable = self._topic.readable
        if deliveries[-1].entry.position == readable.value:
            self._traffic.pulsar.delivered(readable, since=self._since)

    def end_of_topic(self) -> None:
        """See `Outlet`."""
        self._outbox.put(encode_command(commands.reached_end_of_topic(self._consumer_id)))

    def active_changed(self, *, is_active: bool) -> None:
        """See `Outlet`. Pulsar tells consumers of Failover subscriptions alone, which are not served yet."""

    def damaged(self, reason: str) -> None:
        """See `Outlet`. The consumer stays open: if it were closed, its client would resubscribe in a loop."""
        log.error(
            "a consumer cannot read damaged data",
            topic=str(self._topic.name),
            consumer=self._consumer_id,
            reason=reason,
        )
        self._outbox.put(encode_command(commands.consumer_error(self._consumer_id, pb.PersistenceError, reason)))

    def disconnected(self) -> None:
        """See `Outlet`."""
        self.close(None)

    def close(self, assigned_url: str | None) -> None:
        """Close the consumer on the broker's initiative. Its client may go to the broker at `assigned_url`."""
        self._closed_by_broker(self._consumer_id, assigned_url)

    def attach(self, signal: Signal) -> None:
        """See `Outlet`."""
        self._outbox.attach(signal)

    def detach(self, signal: Signal) -> None:
        """See `Outlet`."""
        self._outbox.detach(signal)


def partition_of(name: TopicName) -> int:
    """Return the partition in a topic's message ids; -1 if it is not partitioned."""
    index = name.partition_index
    return -1 if index is None else index
