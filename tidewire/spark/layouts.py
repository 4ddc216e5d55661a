"""Which topics there are, and of which parts they are made.

A scalable topic is made of segments, which come of each other by splits and merges; an older topic of partitions, or of
itself. Everybody downstream sees `Part`s.
"""

from collections.abc import Iterable
from functools import partial
from itertools import count
from typing import Final, NamedTuple

from tidewire.protocol.errors import ProtocolViolation
from tidewire.protocol.refusals import Refused, refusal
from tidewire.spark.brokers import Brokers
from tidewire.spark.connection import BlockingConnection
from tidewire.spark.errors import no_topic
from tidewire.spark.options import SCALABLE, Pattern, ReadOptions
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

_SESSION_IDS: Final = count(1)
"""No two are alike: what is pushed to one that was closed may arrive when the next one is open."""


class LayoutChanged(Exception):
    """A segment left its layout while it was asked about."""


class Part(NamedTuple):
    """A segment of a scalable topic, a partition of a partitioned one, or all of a plain one."""

    topic: str
    name: str | None
    """As the `segment` column shows it; None for all of a plain topic."""
    wire_name: str
    """The name under which brokers know it."""
    number: int = 0
    """Unique within its topic; children have higher ones than their parents."""
    parents: tuple[int, ...] = ()
    hashes: tuple[int, int] | None = None
    """First and last hash of the keys that it takes; None when keys are not routed by their hash."""
    is_sealed: bool = False
    """It takes no more messages."""


def selected(options: ReadOptions, brokers: Brokers) -> list[str]:
    """The topics that the options name, or those that the pattern matches now.

    Raises:
        TidewireError: nobody could be asked.
    """
    if options.pattern is None:
        return list(options.topics)
    watch_id = next(_SESSION_IDS)
    watch = open_namespace(brokers, options.pattern.namespace, watch_id)
    deadline = watch.deadline()
    while True:
        command = watch.receive(deadline, f"the topics of {options.pattern.namespace}").command
        update = command.watch_scalable_topics_update
        if command.type == pb.BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE and update.watch_id == watch_id:
            break
    watch.send(commands.watch_scalable_topics_close(watch_id))
    return sorted(came_and_went(watch, update, options.pattern)[0])


def open_namespace(brokers: Brokers, namespace: str, watch_id: int) -> BlockingConnection:
    """Ask the user's broker to push the scalable topics of a namespace; the connection on which that will happen.

    Raises:
        TidewireError: nobody could be asked.
    """
    connection = brokers.service()
    if not connection.features.supports_scalable_topics:
        raise ProtocolViolation(f"the broker at {connection.address} knows no scalable topics")
    connection.send(commands.watch_scalable_topics(watch_id, namespace))
    return connection


def came_and_went(
    connection: BlockingConnection, update: pb.CommandWatchScalableTopicsUpdate, pattern: Pattern
) -> tuple[list[str], list[str]]:
    """The topics that a push adds and removes, of those that match.

    Raises:
        Refused: the broker does not tell.
    """
    if update.HasField("error"):
        raise refusal(update.error, f"{connection.address} does not list {pattern.namespace}: {update.message}")
    added: Iterable[str] = update.diff.added
    if update.HasField("snapshot"):
        added = update.snapshot.topics
    removed = update.diff.removed
    return [name for name in added if pattern.matches(name)], [name for name in removed if pattern.matches(name)]


def parts_of(brokers: Brokers, topic: str) -> list[Part]:
    """The parts that a topic has now, ordered by their numbers.

    Raises:
        TidewireError: there is no such topic, or a broker could not be asked.
    """
    if not topic.startswith(SCALABLE):
        return _partitions(brokers, topic)
    session_id = next(_SESSION_IDS)
    owner = open_layout(brokers, topic, session_id)
    deadline = owner.deadline()
    while True:
        command = owner.receive(deadline, f"the layout of {topic}").command
        update = command.scalable_topic_update
        if command.type == pb.BaseCommand.SCALABLE_TOPIC_UPDATE and update.session_id == session_id:
            break
    owner.send(commands.scalable_topic_close(session_id))
    return segments(owner, topic, update)


def open_layout(brokers: Brokers, topic: str, session_id: int) -> BlockingConnection:
    """Ask for a scalable topic's layout and its changes; the connection on which they will come.

    Raises:
        TidewireError: nobody could be asked.
    """
    owner = brokers.owner_of(topic)
    if not owner.features.supports_scalable_topics:
        raise ProtocolViolation(f"the broker at {owner.address} knows no scalable topics; {topic} is one")
    owner.send(commands.scalable_topic_lookup(session_id, topic))
    return owner


def segments(owner: BlockingConnection, topic: str, update: pb.CommandScalableTopicUpdate) -> list[Part]:
    """The parts in a layout that was pushed, ordered by their numbers.

    Raises:
        Refused: there is no such topic.
    """
    if update.HasField("error"):
        if update.error == pb.TopicNotFound:
            raise refusal(update.error, no_topic(topic, f" at {owner.address}"))
        raise refusal(update.error, f"{owner.address} has no layout of {topic}: {update.message}")
    resolved = update.resolved_topic_name or topic
    return [_segment(resolved, info) for info in sorted(update.dag.segments, key=lambda info: info.segment_id)]


def _segment(topic: str, info: pb.SegmentInfoProto) -> Part:
    name = f"{info.hash_start:04x}-{info.hash_end:04x}-{info.segment_id}"
    return Part(
        topic,
        name,
        info.legacy_topic_name or f"segment://{topic.removeprefix(SCALABLE)}/{name}",
        info.segment_id,
        tuple(info.parent_ids),
        # What is in a topic that was made before there were segments came there by other rules.
        None if info.legacy_topic_name else (info.hash_start, info.hash_end),
        info.state != pb.ACTIVE,
    )


def _partitions(brokers: Brokers, topic: str) -> list[Part]:
    ask = partial(commands.partitioned_metadata, topic, auto_create=False)
    answer = brokers.owner_of(topic).request(ask, pb.CommandPartitionedTopicMetadataResponse)
    if answer.partitions == 0:
        return [Part(topic, None, topic)]
    return [Part(topic, f"partition-{i}", f"{topic}-partition-{i}", i) for i in range(answer.partitions)]


def is_gone(error: Refused) -> bool:
    """Whether a broker refuses because there is no such topic or segment."""
    return error.code in (pb.TopicNotFound, pb.TopicTerminatedError)
