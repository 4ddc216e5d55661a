"""An ordered consumer of a connection: SCALABLE_TOPIC_SUBSCRIBE is answered with its share, then with each change."""

from collections.abc import Callable

import structlog

from broker.layouts.layout import Layout
from broker.layouts.legacy import segment_topic
from broker.layouts.registrations import GroupId, GroupKind
from broker.names import TopicName
from broker.pulsar.connection import Connection
from broker.pulsar.consumer_sessions import ConsumerSession
from broker.scalable.consumer_groups import ConsumerGroups
from storage.errors import ExpectedError
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

log = structlog.get_logger(__name__)


class RegisteredConsumer:
    """One SCALABLE_TOPIC_SUBSCRIBE: pushes the consumer's assignment until it leaves or the connection ends.

    The Java client hears no assignment before it has subscribed to all segments of its first one. So the newest
    assignment is repeated at that moment. To repeat one is harmless. No assignment waits for that moment: it may never
    come. A consumer that registers again may still read its segments at other connections and at other brokers, and
    what was reported about them (`broker.consumer_reports`) is forgotten.

    The client has no command to leave. A consumer has left when it has closed its last segment while that segment was
    assigned to it. Two cases are uncertain. It may have kept segments of its first assignment since an earlier
    registration. They count until it has closed all segments that it was seen to subscribe to: a client closes assigned
    ones only when it ends, or when it could not subscribe to the rest. And another consumer of the same name may have
    closed the last one: an earlier process, whose reports come late. In both cases the registration is kept. When the
    consumer subscribes to a segment after all, it joins the group again. If the reports of two owners that a segment
    had came in the wrong order, the consumer counts until its connection ends.

    A topic that is deleted may be made again under its name, and its epochs and segment ids begin again. Clients drop
    an assignment whose epoch is lower than the last one, and know segments by their ids. So the epochs that they are
    told never fall. Before segments with the ids of others, they are told an empty assignment.
    """

    def __init__(
        self,
        request: pb.CommandScalableTopicSubscribe,
        group: GroupId,
        groups: ConsumerGroups,
        forget: Callable[["RegisteredConsumer"], None],
        connection: Connection,
    ) -> None:
        """Set up. The caller must pass already subscribed segments to `segment_subscribed` before it calls `join`.

        After a reconnect, the client's consumers of segments may come back before its registration.

        Args:
            request: the client's request.
            group: the group to join.
            groups: all groups.
            forget: called when the broker closes the registration, or when it has left; perhaps more than once.
            connection: the client's connection, which may be ended.
        """
        self.name = request.consumer_name
        self.group = group
        self.subscription = group.name if group.kind is GroupKind.STREAM else None
        """The subscription of its consumers of segments; None if they are readers."""
        self.consumer_id = request.consumer_id
        self._request_id = request.request_id
        self._outbox = connection.outbox
        self._connection = connection
        self._groups = groups
        self._forget = forget
        self._regular: TopicName | None = None
        self._newest: tuple[Layout, frozenset[int]] | None = None
        """The last assignment that was sent."""
        self._epoch = 0
        """The highest epoch that was sent."""
        self._untaken: set[int] = set()
        """Segments of the first assignment that the client has not been seen to subscribe to."""
        self._is_repeated = False
        """Whether the newest assignment is sent again when none of those is left."""
        self._subscribed: dict[int, str | None] = {}
        """Its segments that the client has, and by which sessions. None for one that it only is supposed to have: it
        has not been seen to subscribe to it since it joined."""
        self._has_left = False
        self._is_rejoining = False

    async def join(self, regular: TopicName | None) -> None:
        """See `ConsumerGroups.join`. The client has its first assignment when this returns."""
        self._regular = regular
        await self._groups.join(self.group, self, regular=regular)

    def leave(self) -> None:
        """Leave the group. The others get its segments at once."""
        self._groups.leave(self.group, self)

    def lose(self) -> None:
        """Keep the segments for the grace period, because the connection is lost."""
        self._groups.lose(self.group, self)

    def assigned(self, layout: Layout, segments: frozenset[int]) -> None:
        """See `Member`. The first assignment answers the request."""
        if self._newest is None:
            self._untaken = set(segments - self._subscribed.keys())
            self._subscribed.update(dict.fromkeys(self._untaken))
        else:
            # The client cannot subscribe to segments that were pruned meanwhile.
            self._untaken &= layout.segments.keys()
            self._is_repeated = bool(self._untaken)
            if self._has_other_segments(*self._newest, layout):
                self._subscribed.clear()
                self._send(layout, frozenset())
        for segment_id in self._subscribed.keys() - segments:
            del self._subscribed[segment_id]
        self._send(layout, segments)

    def _has_other_segments(self, before: Layout, segments: frozenset[int], layout: Layout) -> bool:
        """Return whether one of these segments has the id of another segment in the new layout."""
        topic = self.group.topic
        return any(
            segment_topic(topic, before.segments[segment_id]) != segment_topic(topic, layout.segments[segment_id])
            for segment_id in segments & layout.segments.keys()
        )

    def _send(self, layout: Layout, segments: frozenset[int]) -> None:
        is_first, self._newest = self._newest is None, (layout, segments)
        self._epoch = max(self._epoch, layout.epoch)
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
        if is_first:
            command = commands.scalable_topic_subscribe_response(self._request_id, self._epoch, assigned)
        else:
            command = commands.scalable_topic_assignment_update(self.consumer_id, self._epoch, assigned)
        self._outbox.put(encode_command(command))

    def sent_away(self) -> None:
        """See `Member`. A request that was not answered yet is refused by `join`."""
        if self._newest is not None:
            self._forget(self)
            if self._connection.peer.heeds_closed_registrations:
                self._outbox.put(encode_command(commands.close_consumer(self.consumer_id)))
            else:
                self._connection.nursery.cancel_scope.cancel()

    def taken_up(self, segment_id: int, session: str) -> None:
        """See `Member`."""
        self.segment_subscribed(segment_id, session)

    def closed(self, segment_id: int, session: str) -> None:
        """See `Member`."""
        self.segment_closed(segment_id, session)

    def has(self, session: ConsumerSession) -> bool:
        """Return whether a consumer of a segment belongs to this ordered consumer.

        Several ordered consumers of one subscription may share a connection. When a segment moves between them, one
        closes it and the other subscribes to it. Only their names distinguish them. A consumer without a name may
        belong to this one. A reader without a name does not, because most readers belong to no group.
        """
        if session.durable_name != self.subscription or session.scalable_name != self.group.topic:
            return False
        name = session.consumer.name
        may_be = not name and self.subscription is not None
        return may_be or name == f"{self.name}-seg-{session.segment_id}"

    def segment_subscribed(self, segment_id: int, session: str) -> None:
        """Note that the client has subscribed to a segment. The response is already queued."""
        self._subscribed[segment_id] = session
        self._untaken.discard(segment_id)
        if self._has_left and not self._is_rejoining:
            self._is_rejoining = True
            self._connection.nursery.start_soon(self._rejoin)
        self._has_left = False
        if self._is_repeated and not self._untaken:
            self._is_repeated = False
            self._repeat()

    def segment_refused(self, segment_id: int) -> None:
        """Note that the client could not subscribe to a segment, because another consumer has it.

        If the segment is already reassigned, the client is told again. Otherwise it might retry indefinitely.
        """
        if self._newest is not None and segment_id in self._untaken - self._newest[1]:
            self._repeat()

    def _repeat(self) -> None:
        assert self._newest is not None, "only then an update was sent"
        self._send(*self._newest)

    def segment_closed(self, segment_id: int, session: str) -> None:
        """Note that the client has closed its consumer of a segment. It may have left the group by that."""
        if segment_id not in self._subscribed:
            return
        subscribed_by = self._subscribed[segment_id]
        if subscribed_by and session and subscribed_by != session:
            # The report was overtaken: the client has subscribed to the segment again.
            return
        del self._subscribed[segment_id]
        was_assigned = self._newest is not None and segment_id in self._newest[1]
        was_seen = subscribed_by is not None
        has_more = any(by is not None or not was_seen for by in self._subscribed.values())
        if was_assigned and not has_more:
            is_certain = not self._subscribed and (was_seen or self._has_left)
            self._has_left = True
            if not self._is_rejoining:
                self._end(is_certain=is_certain)

    def _end(self, *, is_certain: bool) -> None:
        """Leave the group. Keep the registration unless it is certain that the client has closed the consumer."""
        if is_certain:
            self._forget(self)
            self.leave()
        else:
            self._groups.leave(self.group, self, may_return=True)

    async def _rejoin(self) -> None:
        """Join the group again, because the client still uses the consumer."""
        try:
            await self.join(self._regular)
        except ExpectedError as refused:
            log.info("an ordered consumer has to register again", consumer=self.name, reason=str(refused))
            self.sent_away()
            return
        self._is_rejoining = False
        if self._has_left:
            # Meanwhile the client has closed the segment.
            self._end(is_certain=True)
