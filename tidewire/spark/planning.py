"""What there is to read: the segments of a topic and, of each, the last entry that is visible now.

The end of a segment is asked for by GET_LAST_MESSAGE_ID, which a broker answers after it has applied every transaction
decided before the question. So a read that is planned after a commit returned contains all of that commit, and since
the segments are asked one after another, a transaction committed meanwhile may be in some of them and not yet in
others: across segments a read is no snapshot, as it is none across the partitions of a topic in Kafka.

Sealed segments are read like active ones; nothing moves out of them when they are split.
"""

from functools import partial
from typing import NamedTuple
from uuid import uuid4

from tidewire.spark.brokers import Brokers
from tidewire.spark.connection import Connection, refusal
from tidewire.spark.errors import ProtocolViolation
from tidewire.spark.options import SCALABLE, ReadOptions
from tidewire.spark.partitions import EARLIEST, Position, SegmentRange
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id, position

# One session and one consumer after another, so the same numbers do for all of them.
_SESSION_ID = 1
_LATEST = 2**63 - 1


class Part(NamedTuple):
    """A segment of a scalable topic, a partition of a partitioned one, or all of a plain one."""

    name: str | None
    """As the `segment` column shows it; None for all of a plain topic."""
    wire_name: str
    """The name under which brokers know it."""


def plan(options: ReadOptions, brokers: Brokers) -> list[SegmentRange]:
    """The ranges that together are everything committed before the call, ordered by segment; none for an empty topic.

    Raises:
        SourceError: there is no such topic, or a broker could not be asked.
    """
    topic, parts = _scalable(options, brokers) if options.is_scalable else _persistent(options, brokers)
    ranges = []
    for number, part in enumerate(parts):
        end = _end(brokers.owner_of(part.wire_name), part.wire_name, consumer_id=number)
        if end > EARLIEST:
            ranges.append(SegmentRange(topic, part.name, part.wire_name, end=end))
    return ranges


def _scalable(options: ReadOptions, brokers: Brokers) -> tuple[str, list[Part]]:
    owner = brokers.owner_of(options.topic)
    if not owner.features.supports_scalable_topics:
        raise ProtocolViolation(f"the broker at {owner.address} knows no scalable topics; {options.topic} is one")
    owner.send(commands.scalable_topic_lookup(_SESSION_ID, options.topic))
    deadline = owner.deadline()
    while True:
        command = owner.receive(deadline, f"the layout of {options.topic}").command
        if command.type == pb.BaseCommand.SCALABLE_TOPIC_UPDATE:
            break
    owner.send(commands.scalable_topic_close(_SESSION_ID))
    update = command.scalable_topic_update
    if update.HasField("error"):
        raise refusal(f"{owner.address} has no layout of {options.topic}: {update.message}", update.error)
    topic = update.resolved_topic_name or options.topic
    return topic, [_segment(topic, info) for info in sorted(update.dag.segments, key=lambda info: info.segment_id)]


def _segment(topic: str, info: pb.SegmentInfoProto) -> Part:
    name = f"{info.hash_start:04x}-{info.hash_end:04x}-{info.segment_id}"
    return Part(name, info.legacy_topic_name or f"segment://{topic.removeprefix(SCALABLE)}/{name}")


def _persistent(options: ReadOptions, brokers: Brokers) -> tuple[str, list[Part]]:
    topic = options.topic
    answer = brokers.owner_of(topic).request(
        partial(commands.partitioned_metadata, topic, auto_create=False), pb.CommandPartitionedTopicMetadataResponse
    )
    if answer.partitions == 0:
        return topic, [Part(None, topic)]
    return topic, [Part(f"partition-{index}", f"{topic}-partition-{index}") for index in range(answer.partitions)]


def _end(owner: Connection, topic: str, *, consumer_id: int) -> Position:
    subscribe_reader(owner, topic, consumer_id, after=Position(_LATEST, _LATEST))
    answer = owner.request(partial(commands.get_last_message_id, consumer_id), pb.CommandGetLastMessageIdResponse)
    owner.request(partial(commands.close_consumer, consumer_id), pb.CommandSuccess)
    return Position(*position(answer.last_message_id))


def subscribe_reader(owner: Connection, topic: str, consumer_id: int, *, after: Position) -> None:
    """Open a reader that remembers nothing and is sent what comes after a position, once it has given permits.

    Raises:
        SourceError: the broker refuses it, or does not answer.
    """

    def make(request_id: int) -> pb.BaseCommand:
        # Some brokers know a reader by its subscription's name alone, so no two readers share one.
        command = commands.subscribe(
            topic,
            f"spark-{uuid4().hex}",
            consumer_id,
            request_id,
            durable=False,
            start=message_id(*after),
        )
        # Reading creates nothing where the broker can be told so.
        command.subscribe.force_topic_creation = False
        return command

    owner.request(make, pb.CommandSuccess)
