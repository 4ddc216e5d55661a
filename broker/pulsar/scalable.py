"""Scalable-topic commands of one connection: layout sessions and ordered consumers' registrations."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import trio

from broker.cluster.elections import Elections
from broker.errors import NotSupported, TopicNotFound
from broker.names import Domain, InvalidTopicName, TopicName
from broker.pulsar.openings import Openings
from broker.pulsar.outbox import Outbox
from broker.pulsar.requests import Inline, Request
from broker.scalable.feeds import LayoutFeeds
from broker.scalable.layout import Layout
from broker.scalable.layout_parts import Segment
from broker.scalable.layouts import Layouts
from broker.scalable.legacy import segment_of, segment_topic, synthetic_layout
from broker.scalable.registrations import GroupId, GroupKind
from broker.scalable.stream_groups import StreamGroups
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame, encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


class _LayoutSession:
    """One SCALABLE_TOPIC_LOOKUP: pushes the topic's layout until it is closed."""

    def __init__(
        self,
        session_id: int,
        asked: "Asked",
        outbox: Outbox,
        service_url: str,
        elections: Elections,
        on_refused: Callable[["_LayoutSession"], None],
    ) -> None:
        """Set up; `on_refused` is told when it turns out that there is nothing to push."""
        self.session_id = session_id
        self.topic = asked.topic
        self._regular = asked.regular
        self._on_refused = on_refused
        self._outbox = outbox
        self._service_url = service_url
        self._elections = elections
        self._sent: Layout | None = None
        self._is_deleted = False
        self._updates = 0

    def layout_changed(self, layout: Layout | None) -> None:
        """Push the layout.

        Of a deleted topic the client learns by its producers and consumers: to an error it would never listen again.
        Only one that still waits for its first layout is told that none will come. The record also changes by intents
        and subscriptions, which are not the client's concern. A regular topic is its own only segment, until there is
        a layout.
        """
        self._is_deleted = layout is None
        if layout is None and self._sent is None and self._regular is not None:
            layout = synthetic_layout(self._regular)
        if layout is not None and (self._sent is None or _version(layout) != _version(self._sent)):
            self._updates += self._sent is not None
            self._push(layout)
        elif layout is None and self._sent is None:
            reason = f"{self.topic} has just been deleted, or cannot be read any more"
            self._outbox.put(encode_command(commands.scalable_topic_failed(self.session_id, pb.TopicNotFound, reason)))
            self._on_refused(self)

    def segment_subscribed(self) -> None:
        """Push again what changed since the session began.

        The Java client's queue consumer forgets a layout that arrives while it subscribes to the segments of the one
        before; it takes one that comes behind the answers, and a repeated one does no harm.
        """
        if self._updates and self._sent is not None:
            self._push(self._sent)

    def controller_changed(self) -> None:
        """Push again what the client has, with the controller's new address, or none."""
        if self._sent is not None and not self._is_deleted:
            self._push(self._sent)

    def _push(self, layout: Layout) -> None:
        self._sent = layout
        controller = self._elections.controller_of(self.topic)
        if controller is None:
            controller_url = None
        elif self._elections.is_elsewhere(self.topic):
            controller_url = controller.service_url
        else:
            # As this client reached this broker, which may have several addresses.
            controller_url = self._service_url
        update = commands.scalable_topic_update(
            self.session_id,
            dag_of(layout, self._service_url, controller_url=controller_url),
            resolved_topic_name=str(self.topic),
        )
        self._outbox.put(encode_command(update))


class _StreamConsumer:
    """One SCALABLE_TOPIC_SUBSCRIBE: pushes the consumer's assignment until it leaves or the connection ends.

    The Java client forgets an assignment that arrives before it has subscribed to every segment of the one before, so
    the newest one is kept back until then. It has no command to leave: a consumer that closed its last segment while
    it was assigned to it has left (FACTS: closing is leaving).
    """

    def __init__(self, request: pb.CommandScalableTopicSubscribe, group: GroupId, outbox: Outbox) -> None:
        """Set up; `segment_subscribed` is to be told what the client has subscribed to by now.

        After a lost connection its consumers of segments may come back before its registration.
        """
        self.name = request.consumer_name
        self.group = group
        self.subscription = group.name if group.kind is GroupKind.STREAM else None
        """What its consumers of segments subscribe to; None: they are readers."""
        self.consumer_id = request.consumer_id
        self._request_id = request.request_id
        self._outbox = outbox
        self._answered = False
        self._segments: frozenset[int] = frozenset()
        self._subscribed: set[int] = set()
        self._kept_back: tuple[Layout, frozenset[int]] | None = None

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

    def reads_as(self, consumer_name: str, segment_id: int) -> bool:
        """Whether a consumer of a segment is by its name part of this one.

        Without a name it may be, unless it is a reader: most of these have nothing to do with any group.
        """
        may_be = not consumer_name and self.subscription is not None
        return may_be or consumer_name == f"{self.name}-seg-{segment_id}"

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


class ScalableFace:
    """Serves the scalable-topic commands of one connection."""

    def __init__(
        self,
        outbox: Outbox,
        layouts: Layouts,
        feeds: LayoutFeeds,
        groups: StreamGroups,
        elections: Elections,
        *,
        service_url: str,
    ) -> None:
        self._outbox = outbox
        self._layouts = layouts
        self._feeds = feeds
        self._groups = groups
        self._elections = elections
        self._elections.attach(self._controller_changed)
        self._service_url = service_url
        self._sessions: dict[int, _LayoutSession] = {}
        self._openings = Openings("layout session")
        self._consumers: list[_StreamConsumer] = []
        # Segments with a consumer on this connection and that consumer's name, by topic and subscription.
        self._subscribed: defaultdict[tuple[TopicName, str | None], set[tuple[int, str]]] = defaultdict(set)

    @property
    def inline(self) -> dict[int, Inline]:
        """See `Face`."""
        return {pb.BaseCommand.SCALABLE_TOPIC_CLOSE: self._close_session}

    @property
    def requests(self) -> dict[int, Request]:
        """See `Face`."""
        return {
            pb.BaseCommand.SCALABLE_TOPIC_LOOKUP: Request(
                self._lookup,
                lambda command, fault: commands.scalable_topic_failed(
                    command.scalable_topic_lookup.session_id, fault.code, fault.message
                ),
                announce=lambda command: self._openings.announce(command.scalable_topic_lookup.session_id, command),
            ),
            pb.BaseCommand.SCALABLE_TOPIC_SUBSCRIBE: Request(
                self._subscribe,
                lambda command, fault: commands.scalable_topic_subscribe_failed(
                    command.scalable_topic_subscribe.request_id, fault.code, fault.message
                ),
            ),
        }

    def close(self) -> None:
        """See `Face`. A consumer whose connection is gone keeps its segments for a while."""
        self._elections.detach(self._controller_changed)
        for session in self._sessions.values():
            self._feeds.unfollow(session.topic, session.layout_changed)
        self._sessions.clear()
        for consumer in self._consumers:
            self._groups.lose(consumer.group, consumer)
        self._consumers.clear()

    def _controller_changed(self, topic: TopicName) -> None:
        for session in self._sessions.values():
            if session.topic == topic:
                session.controller_changed()

    def ordered_consumer(self, consumer_id: int) -> tuple[TopicName, str] | None:
        """The topic and subscription of the ordered consumer that was registered under this id."""
        for consumer in self._consumers:
            if consumer.consumer_id == consumer_id and consumer.group.kind is GroupKind.STREAM:
                return consumer.group.topic, consumer.group.name
        return None

    def serves(self, name: TopicName, metadata: Iterable[pb.KeyValue]) -> bool:
        """Whether a consumer of this topic is part of one that follows the layout of a scalable topic.

        Of a regular topic, that follows from what it says of itself, or from what else this connection asked for: the
        Java client does not say it of consumers that a controller assigns, nor of readers.
        """
        if name.segment is not None or is_managed(metadata):
            return True
        topic, _segment_id = segment_of(name)
        followed = [session.topic for session in self._sessions.values()]
        return topic in followed or any(consumer.group.topic == topic for consumer in self._consumers)

    def close_registration(self, consumer_id: int) -> None:
        """The client has closed this id, of a consumer or of a registration: in the latter case it leaves.

        Tidewire's clients say so; Pulsar's close their consumers of segments alone.
        """
        for consumer in self._consumers:
            if consumer.consumer_id == consumer_id:
                self._leave(consumer)
                return

    def _leave(self, consumer: _StreamConsumer) -> None:
        self._consumers.remove(consumer)
        self._groups.leave(consumer.group, consumer)

    def segment_subscribed(self, name: TopicName, subscription: str | None, consumer_name: str) -> None:
        """A consumer of this connection has subscribed to a segment, and the answer is in the outbox.

        A reader has no subscription.
        """
        topic, place = segment_of(name)
        self._subscribed[topic, subscription].add((place, consumer_name))
        ordered = self._consumers_of(name, subscription, consumer_name)
        for consumer, segment_id in ordered:
            consumer.segment_subscribed(segment_id)
        if not ordered:
            for session in self._sessions.values():
                if session.topic == topic:
                    session.segment_subscribed()

    def segment_refused(self, name: TopicName, subscription: str, consumer_name: str) -> None:
        """A consumer of this connection could not subscribe to a segment that another one has."""
        for consumer, segment_id in self._consumers_of(name, subscription, consumer_name):
            consumer.segment_refused(segment_id)

    def segment_closed(self, name: TopicName, subscription: str | None, consumer_name: str) -> None:
        """The client has closed its consumer of a segment."""
        topic, place = segment_of(name)
        self._subscribed[topic, subscription].discard((place, consumer_name))
        if not self._subscribed[topic, subscription]:
            del self._subscribed[topic, subscription]
        for consumer, segment_id in self._consumers_of(name, subscription, consumer_name):
            if consumer.segment_closed(segment_id):
                self._leave(consumer)

    def _consumers_of(
        self, name: TopicName, subscription: str | None, consumer_name: str
    ) -> list[tuple[_StreamConsumer, int]]:
        """The ordered consumer that a consumer of a segment belongs to.

        Several of one subscription may share a connection, and a segment that moves between them is closed by one and
        subscribed to by the other; only the names tell which is which.
        """
        topic, segment_id = segment_of(name)
        return [
            (consumer, segment_id)
            for consumer in self._consumers
            if consumer.group.topic == topic and consumer.subscription == subscription
            if consumer.reads_as(consumer_name, segment_id)
        ]

    async def _lookup(self, command: pb.BaseCommand) -> None:
        request = command.scalable_topic_lookup
        with self._openings.opening(request.session_id, command):
            if request.session_id in self._sessions:
                raise NotSupported(f"layout session {request.session_id} is open on this connection already")
            asked = asked_for(request.topic)
            await self._require(asked)
            # From here on nothing waits: it is open, or was called off before.
            await trio.lowlevel.checkpoint_if_cancelled()
            session = _LayoutSession(
                request.session_id, asked, self._outbox, self._service_url, self._elections, self._end_session
            )
            self._sessions[request.session_id] = session
            self._feeds.follow(asked.topic, session.layout_changed)

    async def _require(self, asked: "Asked") -> None:
        """See that there is something to follow. Feeds and groups only hear that there is no layout; this says why."""
        try:
            await self._layouts.get(asked.topic)
        except TopicNotFound:
            # A regular topic is made by whoever first attaches to it.
            if asked.regular is None:
                raise

    async def _close_session(self, frame: Frame) -> None:
        session_id = frame.command.scalable_topic_close.session_id
        self._openings.call_off(session_id)
        session = self._sessions.get(session_id)
        if session is not None:
            self._end_session(session)

    def _end_session(self, session: _LayoutSession) -> None:
        del self._sessions[session.session_id]
        self._feeds.unfollow(session.topic, session.layout_changed)

    async def _subscribe(self, command: pb.BaseCommand) -> None:
        request = command.scalable_topic_subscribe
        asked = asked_for(request.topic)
        topic = asked.topic
        await self._require(asked)
        kind = GroupKind.STREAM if request.consumer_type == pb.STREAM else GroupKind.CHECKPOINT
        consumer = _StreamConsumer(request, GroupId(topic, request.subscription, kind), self._outbox)
        for segment_id, consumer_name in self._subscribed.get((topic, consumer.subscription), ()):
            if consumer.reads_as(consumer_name, segment_id):
                consumer.segment_subscribed(segment_id)
        # A client that registers anew under the name takes the place of its earlier registration.
        self._consumers = [
            other for other in self._consumers if (other.group, other.name) != (consumer.group, consumer.name)
        ]
        self._consumers.append(consumer)
        try:
            await self._groups.join(consumer.group, consumer, regular=asked.regular)
        except Exception:
            if consumer in self._consumers:
                self._consumers.remove(consumer)
            raise


def is_managed(metadata: Iterable[pb.KeyValue]) -> bool:
    """Whether a producer or consumer of a regular topic says of itself that a v5 client has it as a segment."""
    return any((given.key, given.value) == ("__pulsar.v5.managed", "true") for given in metadata)


class Asked(NamedTuple):
    """What a client asks about."""

    topic: TopicName
    """The `topic://` name."""
    regular: TopicName | None
    """The `persistent://` name that it was asked for by: without a layout it is that regular topic."""


def asked_for(text: str) -> Asked:
    """The topic whose layout a client asks for; as in PIP-475 a short name is that of a `persistent://` topic.

    Raises:
        InvalidTopicName: it is none, or only a part of one.
    """
    name = TopicName.parse(text)
    if name.domain is Domain.TOPIC:
        return Asked(name, None)
    if name.domain is not Domain.PERSISTENT or name.partition_index is not None:
        raise InvalidTopicName(text, "a layout belongs to a whole topic")
    return Asked(name.as_scalable, name)


def _version(layout: Layout) -> tuple[str, int]:
    """What differs between two layouts that clients have to tell apart."""
    return layout.creation_id, layout.epoch


def dag_of(layout: Layout, service_url: str, *, controller_url: str | None) -> pb.ScalableTopicDAG:
    """The layout as clients read it. Every segment is at this broker; the controller, if there is one, may be not."""
    dag = pb.ScalableTopicDAG(epoch=layout.epoch, controller_broker_url=controller_url)
    dag.segments.extend(_segment_info(segment) for segment in layout.segments.values())
    for segment in layout.active():
        dag.segment_brokers.add(segment_id=segment.id, broker_url=service_url)
    return dag


def _segment_info(segment: Segment) -> pb.SegmentInfoProto:
    return pb.SegmentInfoProto(
        segment_id=segment.id,
        hash_start=segment.range.start,
        hash_end=segment.range.end,
        state=pb.ACTIVE if segment.is_active else pb.SEALED,
        parent_ids=segment.parents,
        child_ids=segment.children,
        created_at_epoch=segment.created_at_epoch,
        sealed_at_epoch=segment.sealed_at_epoch,
        created_at_ms=segment.created_at_ms,
        sealed_at_ms=segment.sealed_at_ms,
        legacy_topic_name=segment.legacy_topic_name,
    )
