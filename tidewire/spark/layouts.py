"""Which topics there are, and which segments or partitions each has."""

from collections.abc import Iterable
from functools import partial
from itertools import count
from typing import Final

from tidewire.protocol.features import require_scalable_topics
from tidewire.protocol.layout import Layout, Segment
from tidewire.protocol.refusals import Refused, refusal
from tidewire.protocol.topic_names import SCALABLE
from tidewire.protocol.unanswered import SEALING
from tidewire.spark.brokers import Brokers
from tidewire.spark.connection import BlockingConnection
from tidewire.spark.errors import no_topic
from tidewire.spark.options import Pattern, ReadOptions
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

_SESSION_IDS: Final = count(1)
"""Never reused: pushes to a closed session may arrive after the next one is open."""


class LayoutChanged(Exception):
    """A segment left its topic's layout during a request about it."""


def selected(options: ReadOptions, brokers: Brokers) -> list[str]:
    """The topics that the options name, or those that the pattern matches now.

    Raises:
        TidewireError: no broker could be asked.
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
    """Ask the user's broker to push a namespace's scalable topics. Returns the connection that gets the pushes.

    Raises:
        TidewireError: no broker could be asked.
    """
    connection = brokers.service()
    require_scalable_topics(connection)
    connection.send(commands.watch_scalable_topics(watch_id, namespace))
    return connection


def came_and_went(
    connection: BlockingConnection, update: pb.CommandWatchScalableTopicsUpdate, pattern: Pattern
) -> tuple[list[str], list[str]]:
    """The matching topics that a push adds, and those that it removes.

    Raises:
        Refused: the broker refuses to list the topics.
    """
    if update.HasField("error"):
        raise refusal(update.error, f"{connection.address} does not list {pattern.namespace}: {update.message}")
    added: Iterable[str] = update.diff.added
    if update.HasField("snapshot"):
        added = update.snapshot.topics
    removed = update.diff.removed
    return [name for name in added if pattern.matches(name)], [name for name in removed if pattern.matches(name)]


def parts_of(brokers: Brokers, topic: str) -> list[Segment]:
    """The parts that a topic has now, ordered by their numbers.

    Raises:
        TidewireError: there is no such topic, or no broker could be asked.
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
    return list(layout_of(owner, topic, update).segments.values())


def open_layout(brokers: Brokers, topic: str, session_id: int) -> BlockingConnection:
    """Ask for a scalable topic's layout and its changes. Returns the connection that gets them.

    Raises:
        TidewireError: no broker could be asked.
    """
    owner = brokers.owner_of(topic)
    require_scalable_topics(owner)
    owner.send(commands.scalable_topic_lookup(session_id, topic))
    return owner


def layout_of(owner: BlockingConnection, topic: str, update: pb.CommandScalableTopicUpdate) -> Layout:
    """The layout in a push.

    Raises:
        Refused: there is no such topic.
        ProtocolViolation: the layout's segments do not cover every hash exactly once.
    """
    if update.HasField("error"):
        if update.error == pb.TopicNotFound:
            raise refusal(update.error, no_topic(topic, f" at {owner.address}"))
        raise refusal(update.error, f"{owner.address} has no layout of {topic}: {update.message}")
    return Layout.of_update(topic, update)


def _partitions(brokers: Brokers, topic: str) -> list[Segment]:
    ask = partial(commands.partitioned_metadata, topic, auto_create=False)
    answer = brokers.owner_of(topic).request(ask, pb.CommandPartitionedTopicMetadataResponse)
    return list(Layout.of_partitions(topic, answer.partitions).segments.values())


def is_gone(error: Refused) -> bool:
    """Whether a broker refuses because the topic or segment was removed or sealed."""
    return error.code in SEALING
