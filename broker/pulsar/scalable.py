"""Scalable-topic commands of one connection: layout sessions and ordered consumers' registrations."""

from collections.abc import Iterator
from typing import Final

from broker.cluster.elections import Elections
from broker.cluster.segment_owners import SegmentOwners
from broker.errors import NotSupported, TopicNotFound
from broker.layouts.registrations import GroupId, GroupKind
from broker.layouts.store import Layouts
from broker.pulsar.connection import Connection
from broker.pulsar.layout_sessions import Asked, EncodedDags, LayoutSession, asked_for
from broker.pulsar.pending_opens import PendingOpens
from broker.pulsar.registered_consumers import RegisteredConsumer
from broker.pulsar.registry import Registry
from broker.pulsar.requests import Inline, Request, require_name
from broker.scalable.consumer_groups import ConsumerGroups
from broker.scalable.feeds import LayoutFeeds
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

LAYOUT_SESSIONS_MAX: Final = 10_000
"""Most layouts that one connection may follow. Further ones are refused."""


class ScalableHandler:
    """Serves the scalable-topic commands of one connection."""

    def __init__(
        self,
        connection: Connection,
        registry: Registry,
        layouts: Layouts,
        feeds: LayoutFeeds,
        groups: ConsumerGroups,
        elections: Elections,
        owners: SegmentOwners,
        dags: EncodedDags,
    ) -> None:
        self._connection = connection
        self._outbox = connection.outbox
        self._layouts = layouts
        self._feeds = feeds
        self._groups = groups
        self._elections = elections
        self._owners = owners
        self._dags = dags
        self._service_url = connection.service_url
        self._registry = registry
        self._sessions = registry.layout_sessions
        self._pending_opens = PendingOpens("layout session", LAYOUT_SESSIONS_MAX, self._sessions)

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
        """See `CommandHandler`. A consumer whose connection is lost keeps its segments for a grace period."""
        for number, session in tuple(self._sessions.items()):
            if number in self._sessions:
                self._end_session(session)
                yield
        yield from self._registry.lose_all()

    async def _lookup(self, command: pb.BaseCommand) -> None:
        request = command.scalable_topic_lookup
        with self._pending_opens.opening(request.session_id, command):
            if request.session_id in self._sessions:
                raise NotSupported(
                    f"This connection already has a layout session {request.session_id}. Choose another id."
                )
            asked = asked_for(request.topic)
            await self._require(asked)
            session = LayoutSession(
                request.session_id,
                asked,
                self._outbox,
                self._service_url,
                self._elections,
                self._owners,
                self._dags,
                self._end_session,
            )
            # No await follows this one: either the session opens, or it was cancelled before.
            await self._owners.follow(asked.topic, session.addresses_changed)
            self._registry.layout_session_opened(session)
            self._elections.follow(asked.topic, session.addresses_changed)
            self._feeds.follow(asked.topic, session.layout_changed)

    async def _require(self, asked: Asked) -> None:
        """Check that the topic exists. Feeds and groups only learn that there is no layout; this raises the reason."""
        try:
            await self._layouts.get(asked.topic)
        except TopicNotFound:
            # The first client that attaches to a regular topic creates it.
            if asked.regular is None:
                raise

    async def _close_session(self, frame: Frame) -> None:
        session_id = frame.command.scalable_topic_close.session_id
        self._pending_opens.call_off(session_id)
        session = self._sessions.get(session_id)
        if session is not None:
            self._end_session(session)

    def _end_session(self, session: LayoutSession) -> None:
        self._registry.layout_session_closed(session)
        self._feeds.unfollow(session.topic, session.layout_changed)
        self._owners.unfollow(session.topic, session.addresses_changed)
        self._elections.unfollow(session.topic, session.addresses_changed)

    async def _subscribe(self, command: pb.BaseCommand) -> None:
        request = command.scalable_topic_subscribe
        require_name("subscription", request.subscription)
        require_name("consumer", request.consumer_name)
        asked = asked_for(request.topic)
        await self._require(asked)
        kind = GroupKind.STREAM if request.consumer_type == pb.STREAM else GroupKind.CHECKPOINT
        group = GroupId(asked.topic, request.subscription, kind)
        registration = RegisteredConsumer(
            request,
            group,
            self._groups,
            self._registry.forget,
            self._connection,
        )
        self._registry.register(registration)
        try:
            await self._registry.show_consumers(registration)
            await registration.join(asked.regular)
        except Exception:
            self._registry.forget(registration)
            raise
