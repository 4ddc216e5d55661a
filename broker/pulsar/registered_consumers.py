"""One ordered consumer of a connection: SCALABLE_TOPIC_SUBSCRIBE is told its share, and at each change again."""

from broker.layouts.layout import Layout
from broker.layouts.legacy import segment_topic
from broker.layouts.registrations import GroupId, GroupKind
from broker.names import TopicName
from broker.pulsar.consumer_sessions import ConsumerSession
from broker.pulsar.outbox import Outbox
from broker.scalable.consumer_groups import ConsumerGroups
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


class RegisteredConsumer:
    """One SCALABLE_TOPIC_SUBSCRIBE: pushes the consumer's assignment until it leaves or the connection ends.

    The Java client forgets an assignment that arrives before it has subscribed to every segment of the one before, so
    the newest one is kept back until then. It has no command to leave: a consumer that closed its last segment while
    it was assigned to it has left (FACTS: closing is leaving).
    """

    def __init__(
        self, request: pb.CommandScalableTopicSubscribe, group: GroupId, outbox: Outbox, groups: ConsumerGroups
    ) -> None:
        """Set up; `segment_subscribed` is to be told what the client has subscribed to by now, and then `join`.

        After a lost connection its consumers of segments may come back before its registration.
        """
        self.name = request.consumer_name
        self.group = group
        self.subscription = group.name if group.kind is GroupKind.STREAM else None
        """What its consumers of segments subscribe to; None: they are readers."""
        self.consumer_id = request.consumer_id
        self._request_id = request.request_id
        self._outbox = outbox
        self._groups = groups
        self._answered = False
        self._segments: frozenset[int] = frozenset()
        self._subscribed: set[int] = set()
        self._kept_back: tuple[Layout, frozenset[int]] | None = None

    async def join(self, regular: TopicName | None) -> None:
        """See `ConsumerGroups.join`. The client has its first assignment when this returns."""
        await self._groups.join(self.group, self, regular=regular)

    def leave(self) -> None:
        """Let the others of the group have its segments at once."""
        self._groups.leave(self.group, self)

    def lose(self) -> None:
        """The connection is gone: keep the segments for a while."""
        self._groups.lose(self.group, self)

    def assigned(self, layout: Layout, segments: frozenset[int]) -> None:
        """See `Member`. The first assignment answers the request."""
        # What was pruned meanwhile cannot be subscribed to any more.
        if self._answered and not self._segments & layout.segments.keys() <= self._subscribed:
            self._kept_back = (layout, segments)
            return
        self._kept_back = None
        self._segments = segments
        self._subscribed &= segments
        assigned = [
            pb.ScalableAssignedSegment(
                segment_id=segment.id,
                hash_start=segment.range.start,
                hash_end=segment.range.end,
                segment_topic=str(segment_topic(self.group.topic, segment)),
            )
            for segment_id in sorted(segments)
            for segment in (layout.segments[segment_id],)
        ]
        if self._answered:
            command = commands.scalable_topic_assignment_update(self.consumer_id, layout.epoch, assigned)
        else:
            self._answered = True
            command = commands.scalable_topic_subscribe_response(self._request_id, layout.epoch, assigned)
        self._outbox.put(encode_command(command))

    def has(self, session: ConsumerSession) -> bool:
        """Whether a consumer of a segment is part of this one.

        Several of one subscription may share a connection, and a segment that moves between them is closed by one and
        subscribed to by the other; only the names tell which is which. Without a name it may be part of this one,
        unless it is a reader: most of these have nothing to do with any group.
        """
        if session.durable_name != self.subscription or session.scalable_name != self.group.topic:
            return False
        name = session.consumer.name
        may_be = not name and self.subscription is not None
        return may_be or name == f"{self.name}-seg-{session.segment_id}"

    def segment_subscribed(self, segment_id: int) -> None:
        """The client has subscribed to a segment, and its answer is on the way."""
        self._subscribed.add(segment_id)
        if self._kept_back is not None:
            self.assigned(*self._kept_back)

    def segment_refused(self, segment_id: int) -> None:
        """The client could not subscribe to a segment, because another consumer has it.

        Of one that is to be that other's by now the client hears at once: it would try in vain for ever.
        """
        if self._kept_back is not None and segment_id not in self._kept_back[1]:
            layout, segments = self._kept_back
            self._segments &= self._subscribed
            self.assigned(layout, segments)

    def segment_closed(self, segment_id: int) -> bool:
        """The client has closed its consumer of a segment; whether it has thereby left."""
        was_assigned = segment_id in self._segments and segment_id in self._subscribed
        self._subscribed.discard(segment_id)
        return was_assigned and not self._subscribed
