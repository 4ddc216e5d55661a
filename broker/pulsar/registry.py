"""What one connection has open. Its handlers meet here, and none of them calls another.

A producer and a namespace watch stand alone. Three other things belong together: layout sessions, registrations for a
share of a topic's segments, and consumers of segments. Clients say only by names which consumer belongs to what. So
each consumer that opens, is refused or closes is shown to the registrations and layout sessions that it may be part of.
If its registration is at another connection, maybe of another broker, that is reported (`broker.consumer_reports`).
"""

from collections.abc import Iterable, Iterator
from typing import Final

import trio

from broker.consumer_reports import ConsumerReports, Report, SegmentConsumer
from broker.errors import NotSupported
from broker.layouts.legacy import segment_of
from broker.names import TopicName
from broker.pulsar.consumer_sessions import ConsumerSession
from broker.pulsar.layout_sessions import LayoutSession
from broker.pulsar.producer_sessions import ProducerSession
from broker.pulsar.registered_consumers import RegisteredConsumer
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

REGISTRATIONS_MAX: Final = 10_000
"""Consumers that one connection has registered for a share of a topic; one more is refused."""

SHOWN_AT_ONCE: Final = 1024
"""Consumers that are shown to a registration in one step of the event loop, which takes about 1 ms."""

CLOSED_PRODUCERS_MAX: Final = 1024
"""Producers that the broker closed and the client has not asked for again, as far as a connection remembers them."""


class Registry:
    """See the module's docstring. Whoever adds something here removes it when it is closed."""

    def __init__(self, reports: ConsumerReports) -> None:
        self._reports = reports
        self.producers: Final[dict[int, ProducerSession]] = {}
        """By the client's ids."""
        self._closed_producers: Final[dict[int, None]] = {}
        """Ids of those that the broker closed, in that order. See `awaits_close`."""
        self.consumers: Final[dict[int, ConsumerSession]] = {}
        """Consumers and readers, by the client's ids."""
        self.layout_sessions: Final[dict[int, LayoutSession]] = {}
        """By the client's ids. See `layout_session_opened`."""
        self._sessions_of: Final[dict[TopicName, dict[int, LayoutSession]]] = {}
        """The same by topic, because each consumer that opens asks."""
        self._registrations_of: Final[dict[TopicName, list[RegisteredConsumer]]] = {}
        """By topic, consumers that share its segments with others; no two of one group have the same name."""
        self._registered = 0
        """How many there are."""
        self.namespace_watches: Final[dict[int, trio.CancelScope]] = {}
        """The scopes of their tasks, by the client's ids."""

    def producer_closed_by_broker(self, producer_id: int) -> None:
        """Remove a producer whose client is being told so. Beyond the bound the first of them is forgotten."""
        self.producers.pop(producer_id, None)
        self._closed_producers[producer_id] = None
        if len(self._closed_producers) > CLOSED_PRODUCERS_MAX:
            del self._closed_producers[next(iter(self._closed_producers))]

    def awaits_close(self, producer_id: int) -> bool:
        """Whether the client may still send to a producer that the broker closed. Such sends are dropped.

        They were on their way when the client was told, and it sends them again.
        """
        return producer_id in self._closed_producers

    def producer_requested(self, producer_id: int) -> None:
        """The client opens a producer of this id, so it knows that the one before was closed."""
        self._closed_producers.pop(producer_id, None)

    def follows_layout(self, name: TopicName, metadata: Iterable[pb.KeyValue]) -> bool:
        """Whether a consumer of this topic is part of one that follows the layout of a scalable topic.

        Of a regular topic, that follows from what it says of itself, or from what else this connection asked for: the
        Java client does not say it of consumers that a controller assigns, nor of readers.
        """
        if name.segment is not None or is_managed(metadata):
            return True
        topic, _segment_id = segment_of(name)
        return topic in self._sessions_of or topic in self._registrations_of

    def layout_session_opened(self, session: LayoutSession) -> None:
        """Keep a layout session."""
        self.layout_sessions[session.session_id] = session
        self._sessions_of.setdefault(session.topic, {})[session.session_id] = session

    def layout_session_closed(self, session: LayoutSession) -> None:
        """Remove a layout session that is kept."""
        del self.layout_sessions[session.session_id]
        of_topic = self._sessions_of[session.topic]
        del of_topic[session.session_id]
        if not of_topic:
            del self._sessions_of[session.topic]

    def consumer_opened(self, consumer_id: int, session: ConsumerSession) -> None:
        """Keep a consumer whose client's answer is in the outbox."""
        self.consumers[consumer_id] = session
        registrations = self._registrations_with(session)
        for registration in registrations:
            registration.segment_subscribed(session.segment_id, session.id)
        if not registrations:
            for layout_session in self._sessions_of.get(session.scalable_name, {}).values():
                layout_session.segment_subscribed()

    def consumer_flowed(self, session: ConsumerSession) -> None:
        """Note that the client has taken a segment up: it has asked for messages."""
        if not self._registrations_with(session):
            self._report(session, is_open=True)

    def consumer_refused(self, session: ConsumerSession) -> None:
        """A consumer could not open, because another one has its segment."""
        for registration in self._registrations_with(session):
            registration.segment_refused(session.segment_id)

    def consumer_closed(self, session: ConsumerSession) -> None:
        """The client has closed a consumer, which is removed already. A registration leaves with its last one."""
        registrations = self._registrations_with(session)
        # Nobody can tell to which one of several groups a reader belonged. The end of the connection will tell.
        if session.durable or len(registrations) == 1:
            for registration in registrations:
                registration.segment_closed(session.segment_id, session.id)
        if not registrations and session.has_flowed:
            self._report(session, is_open=False)

    def registration(self, consumer_id: int) -> RegisteredConsumer | None:
        """The one that the client gave this id."""
        registrations = (one for of_topic in self._registrations_of.values() for one in of_topic)
        return next((one for one in registrations if one.consumer_id == consumer_id), None)

    def register(self, registration: RegisteredConsumer) -> None:
        """Keep a registration. It takes the place of an earlier one of its name. Call `show_consumers` next.

        Raises:
            NotSupported: the connection has too many.
        """
        of_topic = self._registrations_of.get(registration.group.topic, [])
        name = (registration.group, registration.name)
        replaced = [one for one in of_topic if (one.group, one.name) == name]
        if self._registered - len(replaced) >= REGISTRATIONS_MAX:
            raise NotSupported(
                f"This connection already has {REGISTRATIONS_MAX:,} registered consumers, its maximum. Close some of "
                "them, or open another connection."
            )
        for one in replaced:
            self.forget(one)
        self._registrations_of.setdefault(registration.group.topic, []).append(registration)
        self._registered += 1

    async def show_consumers(self, registration: RegisteredConsumer) -> None:
        """Show the consumers that were open before a registration to it. It is shown the later ones as they open."""
        for number, (consumer_id, session) in enumerate(tuple(self.consumers.items()), 1):
            if self.consumers.get(consumer_id) is session and registration.has(session):
                registration.segment_subscribed(session.segment_id, session.id)
            if number % SHOWN_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    def leave(self, registration: RegisteredConsumer) -> None:
        """Remove a registration, whose segments go to the others of its group."""
        self.forget(registration)
        registration.leave()

    def forget(self, registration: RegisteredConsumer) -> None:
        """Remove a registration, if it is kept here."""
        topic = registration.group.topic
        of_topic = self._registrations_of.get(topic, [])
        if registration in of_topic:
            of_topic.remove(registration)
            self._registered -= 1
            if not of_topic:
                del self._registrations_of[topic]

    def lose_all(self) -> Iterator[None]:
        """The connection is lost. Registrations keep their segments for a grace period. Yields between two of them."""
        while self._registrations_of:
            registration = next(iter(self._registrations_of.values()))[-1]
            self.forget(registration)
            registration.lose()
            yield

    def _report(self, session: ConsumerSession, *, is_open: bool) -> None:
        """Report a consumer whose registration is at another connection, if it has one."""
        name, suffix = session.consumer.name, f"-seg-{session.segment_id}"
        if not name.endswith(suffix):
            return
        consumer = SegmentConsumer(
            session.scalable_name, session.durable_name, name.removesuffix(suffix), session.segment_id
        )
        self._reports.report(Report(consumer, is_open, session.id))

    def _registrations_with(self, session: ConsumerSession) -> list[RegisteredConsumer]:
        of_topic = self._registrations_of.get(session.scalable_name, ())
        return [registration for registration in of_topic if registration.has(session)]


def is_managed(metadata: Iterable[pb.KeyValue]) -> bool:
    """Whether a producer or consumer of a regular topic says of itself that a v5 client has it as a segment."""
    return any((given.key, given.value) == ("__pulsar.v5.managed", "true") for given in metadata)
