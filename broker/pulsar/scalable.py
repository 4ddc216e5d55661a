"""Scalable-topic commands of one connection: layout sessions and ordered consumers' registrations."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

import trio

from broker.cluster.elections import Elections
from broker.errors import NotSupported, TopicNotFound
from broker.layouts.legacy import segment_of
from broker.layouts.registrations import GroupId, GroupKind
from broker.layouts.store import Layouts
from broker.names import TopicName
from broker.pulsar.connection import Connection
from broker.pulsar.layout_sessions import Asked, EncodedDags, LayoutSession, asked_for
from broker.pulsar.pending_opens import PendingOpens
from broker.pulsar.registered_consumers import RegisteredConsumer
from broker.pulsar.requests import Inline, Request, require_name
from broker.scalable.consumer_groups import ConsumerGroups
from broker.scalable.feeds import LayoutFeeds
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

LAYOUT_SESSIONS_MAX: Final = 10_000
"""Layouts that one connection follows at a time; one more is refused."""

REGISTRATIONS_MAX: Final = 10_000
"""Consumers that one connection has registered for a share of a topic; one more is refused."""


class ScalableHandler:
    """Serves the scalable-topic commands of one connection."""

    def __init__(
        self,
        connection: Connection,
        layouts: Layouts,
        feeds: LayoutFeeds,
        groups: ConsumerGroups,
        elections: Elections,
        dags: EncodedDags,
    ) -> None:
        self._outbox = connection.outbox
        self._layouts = layouts
        self._feeds = feeds
        self._groups = groups
        self._elections = elections
        self._elections.attach(self._controller_changed)
        self._dags = dags
        self._service_url = connection.service_url
        self._sessions: dict[int, LayoutSession] = {}
        self._pending_opens = PendingOpens("layout session", LAYOUT_SESSIONS_MAX, self._sessions)
        self._consumers: list[RegisteredConsumer] = []
        # Segments with a consumer on this connection and that consumer's name, by topic and subscription.
        self._subscribed: defaultdict[tuple[TopicName, str | None], set[tuple[int, str]]] = defaultdict(set)

    @property
    def inline(self) -> dict[int, Inline]:
        """See `CommandHandler`."""
        return {pb.BaseCommand.SCALABLE_TOPIC_CLOSE: self._close_session}

    @property
    def requests(self) -> dict[int, Request]:
        """See `CommandHandler`."""
        return {
            pb.BaseCommand.SCALABLE_TOPIC_LOOKUP: Request(
                self._lookup,
                lambda command, fault: commands.scalable_topic_failed(
                    command.scalable_topic_lookup.session_id, fault.code, fault.message
                ),
                announce=lambda command: self._pending_opens.announce(
                    command.scalable_topic_lookup.session_id, command
                ),
            ),
            pb.BaseCommand.SCALABLE_TOPIC_SUBSCRIBE: Request(
                self._subscribe,
                lambda command, fault: commands.scalable_topic_subscribe_failed(
                    command.scalable_topic_subscribe.request_id, fault.code, fault.message
                ),
            ),
        }

    def close(self) -> Iterator[None]:
        """See `CommandHandler`. A consumer whose connection is gone keeps its segments for a while."""
        self._elections.detach(self._controller_changed)
        for number, session in tuple(self._sessions.items()):
            if self._sessions.pop(number, None) is not None:
                self._feeds.unfollow(session.topic, session.layout_changed)
                yield
        while self._consumers:
            consumer = self._consumers.pop()
            self._groups.lose(consumer.group, consumer)
            yield

    def _controller_changed(self, topic: TopicName) -> Iterator[None]:
        for number, session in tuple(self._sessions.items()):
            if session.topic == topic and self._sessions.get(number) is session:
                session.controller_changed()
                yield

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

    def _leave(self, consumer: RegisteredConsumer) -> None:
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
    ) -> list[tuple[RegisteredConsumer, int]]:
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
        with self._pending_opens.opening(request.session_id, command):
            if request.session_id in self._sessions:
                raise NotSupported(f"layout session {request.session_id} is open on this connection already")
            asked = asked_for(request.topic)
            await self._require(asked)
            # From here on nothing waits: it is open, or was called off before.
            await trio.lowlevel.checkpoint_if_cancelled()
            session = LayoutSession(
                request.session_id,
                asked,
                self._outbox,
                self._service_url,
                self._elections,
                self._dags,
                self._end_session,
            )
            self._sessions[request.session_id] = session
            self._feeds.follow(asked.topic, session.layout_changed)

    async def _require(self, asked: Asked) -> None:
        """See that there is something to follow. Feeds and groups only hear that there is no layout; this says why."""
        try:
            await self._layouts.get(asked.topic)
        except TopicNotFound:
            # A regular topic is made by whoever first attaches to it.
            if asked.regular is None:
                raise

    async def _close_session(self, frame: Frame) -> None:
        session_id = frame.command.scalable_topic_close.session_id
        self._pending_opens.call_off(session_id)
        session = self._sessions.get(session_id)
        if session is not None:
            self._end_session(session)

    def _end_session(self, session: LayoutSession) -> None:
        del self._sessions[session.session_id]
        self._feeds.unfollow(session.topic, session.layout_changed)

    async def _subscribe(self, command: pb.BaseCommand) -> None:
        request = command.scalable_topic_subscribe
        require_name("subscription", request.subscription)
        require_name("consumer", request.consumer_name)
        asked = asked_for(request.topic)
        topic = asked.topic
        await self._require(asked)
        kind = GroupKind.STREAM if request.consumer_type == pb.STREAM else GroupKind.CHECKPOINT
        consumer = RegisteredConsumer(request, GroupId(topic, request.subscription, kind), self._outbox)
        for segment_id, consumer_name in self._subscribed.get((topic, consumer.subscription), ()):
            if consumer.reads_as(consumer_name, segment_id):
                consumer.segment_subscribed(segment_id)
        # A client that registers anew under the name takes the place of its earlier registration.
        others = [other for other in self._consumers if (other.group, other.name) != (consumer.group, consumer.name)]
        if len(others) >= REGISTRATIONS_MAX:
            raise NotSupported(f"a connection may have {REGISTRATIONS_MAX:,} registered consumers")
        self._consumers = [*others, consumer]
        try:
            await self._groups.join(consumer.group, consumer, regular=asked.regular)
        except Exception:
            if consumer in self._consumers:
                self._consumers.remove(consumer)
            raise


def is_managed(metadata: Iterable[pb.KeyValue]) -> bool:
    """Whether a producer or consumer of a regular topic says of itself that a v5 client has it as a segment."""
    return any((given.key, given.value) == ("__pulsar.v5.managed", "true") for given in metadata)
