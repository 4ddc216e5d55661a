"""SEEK: moves a consumer or reader to another position.

The consumer is closed before the response to the seek is sent. Pulsar's clients rely on this order. A client that gets
the response first would continue from its old position.
"""

from typing import NamedTuple

from broker.errors import NotSupported
from broker.names import TopicName
from broker.pulsar.consumer_sessions import ConsumerSession
from broker.pulsar.reading import place_of
from broker.reader_positions import SeekPosition
from broker.scalable.controller import Controller
from broker.topic import Topic
from dispatch.subscription import Acknowledgement
from storage.position import EARLIEST, LATEST, Position
from storage.ranges import EntryAck
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


class _Target(NamedTuple):
    """The position that a subscription is moved to."""

    mark_delete: Position
    partly: EntryAck | None = None
    """The messages of the next entry that are not wanted; None if all are wanted."""


def require_target(request: pb.CommandSeek) -> None:
    """Check that a seek has a target.

    Raises:
        NotSupported: it names neither a message nor a time.
    """
    if not (request.HasField("message_id") or request.HasField("message_publish_time")):
        raise NotSupported("The seek names no target. Name a message or a time.")


async def seek(session: ConsumerSession, request: pb.CommandSeek) -> None:
    """Move a consumer's subscription and close its consumers; durable on return.

    Raises:
        CursorError: the subscription has ended; its consumers are closed nevertheless.
    """
    target = await _target(session.topic, request)
    try:
        await session.subscription.seek(target.mark_delete, target.partly)
    finally:
        if not session.durable:
            session.seek_position = SeekPosition(session.subscription.cursor.mark_delete)
        session.topic.clients.tell_disconnected()


async def _target(topic: Topic, request: pb.CommandSeek) -> _Target:
    if not request.HasField("message_id"):
        return _Target((await topic.ledger.position_at_time(request.message_publish_time)).before())
    place = place_of(request.message_id)
    if place in (EARLIEST, LATEST):
        return _Target(place)
    # The target is the next message to deliver. Inside a batch, the client's ack set marks the messages before it.
    partly = None
    if request.message_id.ack_set:
        given = request.message_id
        partly = Acknowledgement(place, tuple(given.ack_set), given.batch_size).to_entry_ack()
    return _Target(place.before(), partly)


async def seek_all(controller: Controller, topic: TopicName, subscription: str, request: pb.CommandSeek) -> None:
    """Move the subscription of an ordered consumer on all segments; durable on return.

    The command names the consumer by the id of its registration. It is Tidewire's own; Pulsar's clients never send it.

    Raises:
        NotSupported: the target is a message.
    """
    subscriptions = controller.subscriptions
    target = place_of(request.message_id) if request.HasField("message_id") else None
    if target is None:
        await subscriptions.seek_to_time(topic, subscription, request.message_publish_time)
    elif target == EARLIEST:
        await subscriptions.seek_to_time(topic, subscription, 0)
    elif target == LATEST:
        await subscriptions.skip_all(topic, subscription)
    else:
        raise NotSupported(
            "A message is on one segment, but this seek moves the subscription on all segments. Seek to the beginning, "
            "the end or a time."
        )
