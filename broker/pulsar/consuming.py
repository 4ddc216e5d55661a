"""Consumers and readers of one connection: SUBSCRIBE, FLOW and related commands.

This module only translates commands (ACK is in `acknowledging.py`, MESSAGE in `consumer_sessions.py`). Dispatch decides
which message goes to which consumer, and when.
"""

from collections.abc import Iterator
from typing import Final

import trio

from broker.errors import NotSupported, SegmentBusy, SubscriptionNotFound
from broker.layouts.legacy import KIND_BY_TYPE
from broker.layouts.parts import StartPosition
from broker.names import TopicName
from broker.pulsar.acknowledging import Acknowledging
from broker.pulsar.connection import Connection
from broker.pulsar.consumer_sessions import ConsumerOutlet, ConsumerSession, partition_of
from broker.pulsar.pending_opens import PendingOpens
from broker.pulsar.reading import INDEXED, backlog_range_of, is_uncommitted, last_index_in, named_start, reader_start
from broker.pulsar.registry import Registry
from broker.pulsar.requests import Inline, Request, require_label, require_name
from broker.pulsar.schemas import SchemaGate
from broker.pulsar.seeking import require_target, seek, seek_all
from broker.pulsar.sizes import pause_between, slices
from broker.pulsar.unsupported import require_supported_consumer
from broker.read_uncommitted import ReadUncommitted
from broker.reader_positions import ReaderId, SeekPosition
from broker.scalable.controller import Controller
from broker.topic import Topic
from broker.topics import Topics
from broker.traffic import Traffic
from dispatch.consumer import Consumer
from dispatch.errors import ConsumerBusy
from dispatch.subscription import Subscription
from dispatch.subscription_types import SubscriptionType
from storage.position import EARLIEST, LATEST, Position
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame, encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id, position

CONSUMERS_MAX: Final = 10_000
"""Most consumers and readers of one connection. Further ones are refused."""

_TYPES = {
    pb.CommandSubscribe.Exclusive: SubscriptionType.EXCLUSIVE,
    pb.CommandSubscribe.Shared: SubscriptionType.SHARED,
}


class ConsumerHandler:
    """Serves the consumers of one connection."""

    def __init__(
        self,
        connection: Connection,
        registry: Registry,
        topics: Topics,
        controller: Controller,
        schemas: SchemaGate,
        traffic: Traffic,
    ) -> None:
        self._outbox = connection.outbox
        self._schemas = schemas
        self._topics = topics
        self._controller = controller
        self._traffic = traffic
        self._nursery = connection.nursery
        self._registry = registry
        self._consumers = registry.consumers
        self._pending_opens = PendingOpens("consumer", CONSUMERS_MAX, self._consumers)
        self._acknowledging = Acknowledging(self._consumers, connection)

    @property
    def inline(self) -> dict[int, Inline]:
        """See `CommandHandler`."""
        return {
            pb.BaseCommand.FLOW: self._flow,
            pb.BaseCommand.ACK: self._acknowledging.take,
            pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: self._redeliver,
        }

    @property
    def requests(self) -> dict[int, Request]:
        """See `CommandHandler`."""
        return {
            pb.BaseCommand.SUBSCRIBE: Request(
                self._subscribe,
                announce=lambda command: self._pending_opens.announce(command.subscribe.consumer_id, command),
            ),
            pb.BaseCommand.UNSUBSCRIBE: Request(self._unsubscribe),
            pb.BaseCommand.CLOSE_CONSUMER: Request(
                self._close, announce=lambda command: self._pending_opens.call_off(command.close_consumer.consumer_id)
            ),
            pb.BaseCommand.SEEK: Request(self._seek),
            pb.BaseCommand.GET_LAST_MESSAGE_ID: Request(self._last_message_id),
            pb.BaseCommand.CONSUMER_STATS: Request(
                self._statistics,
                lambda command, fault: commands.consumer_stats_failed(
                    command.consumer_stats.request_id, fault.code, fault.message
                ),
            ),
        }

    def close(self) -> Iterator[None]:
        """See `CommandHandler`."""
        for consumer_id, session in tuple(self._consumers.items()):
            if self._consumers.get(consumer_id) is session:
                del self._consumers[consumer_id]
                self._closed(session)
                yield

    def closed_by_broker(self, consumer_id: int, assigned_url: str | None) -> None:
        """Close a consumer on the broker's initiative, and tell its client, which then resubscribes.

        `assigned_url` is the broker that takes the topic over, if that is known.
        """
        session = self._consumers.pop(consumer_id, None)
        if session is not None:
            self._closed(session)
            self._put(commands.close_consumer(consumer_id, assigned_url=assigned_url))

    def _closed(self, session: ConsumerSession) -> None:
        """Close a consumer that its client did not close; the client may come back."""
        session.close()
        if session.seek_position is not None:
            self._topics.reader_positions.left(session.reader_id, session.seek_position, trio.current_time())

    async def _subscribe(self, command: pb.BaseCommand) -> None:
        request = command.subscribe
        with self._pending_opens.opening(request.consumer_id, command):
            await self._open(request)

    async def _open(self, request: pb.CommandSubscribe) -> None:
        if request.consumer_id in self._consumers:
            raise NotSupported(f"This connection already uses consumer id {request.consumer_id}. Choose another id.")
        kind = _TYPES.get(request.sub_type)
        if kind is None:
            asked = pb.CommandSubscribe.SubType.Name(request.sub_type)
            raise NotSupported(f"The broker does not support subscriptions of type {asked}. Use Exclusive or Shared.")
        require_label("consumer", request.consumer_name)
        require_label("subscription", request.subscription)
        require_supported_consumer(request)
        if request.durable:
            require_name("subscription", request.subscription)
        wishes = {item.key: item.value for item in request.metadata}
        indexed = wishes.get(INDEXED) == "true"
        uncommitted = is_uncommitted(request, wishes)
        name = TopicName.parse(request.topic)
        topic = await self._topics.get(name, creates=request.force_topic_creation)
        read_uncommitted = ReadUncommitted(topic) if uncommitted else None
        if request.HasField("schema"):
            # The schema is checked first, so that a refused one does not create a subscription.
            await self._schemas.admit_consumer(topic, request.schema)
        subscription: Subscription | None = None
        start = EARLIEST
        seek_position: SeekPosition | None = None
        if request.durable:
            topic, subscription = await self._durable(name, request, kind)
        else:
            start = await reader_start(topic, request, indexed=indexed)
        # No await follows: either the consumer opens, or it was cancelled before.
        await trio.lowlevel.checkpoint_if_cancelled()
        if subscription is None:
            reader = ReaderId(name, request.subscription, request.consumer_name)
            seek_position = self._topics.reader_positions.returned(reader, named_start(request), trio.current_time())
            subscription = topic.subscribe_reader(
                request.subscription, start if seek_position is None else seek_position.mark_delete, read_uncommitted
            )
        epoch = request.consumer_epoch if request.HasField("consumer_epoch") else None
        outlet = ConsumerOutlet(
            *(request.consumer_id, topic, epoch, self._outbox, self._traffic, self.closed_by_broker),
            indexed=indexed,
            subscription=request.subscription,
        )
        consumer = Consumer(request.consumer_id, request.consumer_name, outlet, priority=request.priority_level)
        answers = self._acknowledging.answers(request.consumer_id, subscription)
        session = ConsumerSession(
            consumer,
            outlet,
            topic,
            subscription,
            answers,
            durable=request.durable,
            read_uncommitted=read_uncommitted,
            seek_position=seek_position,
            is_replicated=request.replicate_subscription_state,
            follows_layout=lambda: self._registry.follows_layout(name, request.metadata),
        )
        is_scalable = topic.scalable_topic is not None or session.follows_layout
        if is_scalable and kind is SubscriptionType.EXCLUSIVE and consumer.name:
            self._end_namesake(session)
        try:
            subscription.add_consumer(consumer, kind)
        except ConsumerBusy as busy:
            if not request.durable:
                topic.end_reader(subscription)
            if is_scalable:
                self._registry.consumer_refused(session)
                # The segment moves between consumers, and the old one has not released it yet. A retry will succeed.
                raise SegmentBusy(f"The previous consumer of {name} has not released it yet. Try again.") from busy
            raise
        topic.clients.add_consumer(consumer, session, takes_any_schema=request.schema.type == pb.Schema.AutoConsume)
        self._nursery.start_soon(answers.run)
        self._put(commands.success(request.request_id))
        self._registry.consumer_opened(request.consumer_id, session)

    def _end_namesake(self, session: ConsumerSession) -> None:
        """Close the client's earlier consumer with the same name on the segment. The new one replaces it.

        If the Java client is closed while an assignment arrives, it subscribes to the new segments and never closes
        them. The client is not told, because it would then resubscribe.
        """
        for consumer_id, other in list(self._consumers.items()):
            if other.subscription is session.subscription and other.consumer.name == session.consumer.name:
                del self._consumers[consumer_id]
                other.close()

    async def _durable(
        self, name: TopicName, request: pb.CommandSubscribe, kind: SubscriptionType
    ) -> tuple[Topic, Subscription]:
        earliest = request.initial_position == pb.CommandSubscribe.Earliest
        topic = await self._topics.get(name)
        if topic.scalable_topic is None:
            subscription = await topic.subscribe(request.subscription, EARLIEST if earliest else LATEST)
            # The topic may have been migrated meanwhile.
            if topic.scalable_topic is None:
                return topic, subscription
        elif not (request.subscription in topic.subscriptions or self._registry.follows_layout(name, request.metadata)):
            # A new subscription here could not read the rest of the topic.
            raise NotSupported(f"{name} was migrated to {topic.scalable_topic}. Use a v5 client.")
        # A subscription of a scalable topic covers all its segments, including those of later splits.
        start = StartPosition.EARLIEST if earliest else StartPosition.LATEST
        return await self._controller.subscriptions.open(name, request.subscription, KIND_BY_TYPE[kind], start)

    async def _unsubscribe(self, command: pb.BaseCommand) -> None:
        request = command.unsubscribe
        session = self._session(request.consumer_id)
        async with session.topic.subscriptions_held():
            if session.topic.scalable_topic is not None:
                raise NotSupported(
                    f"Subscription {session.subscription.name} belongs to the whole scalable topic, so it cannot be "
                    "deleted on one segment. Delete it on the topic."
                )
            try:
                await session.subscription.unsubscribe(session.consumer, force=request.force)
                self._consumers.pop(request.consumer_id, None)
                session.close()
                self._put(commands.success(request.request_id))
            finally:
                session.topic.clients.tell_disconnected()

    async def _close(self, command: pb.BaseCommand) -> None:
        request = command.close_consumer
        session = self._consumers.pop(request.consumer_id, None)
        if session is not None:
            session.close()
            self._topics.reader_positions.forget(session.reader_id)
            self._registry.consumer_closed(session)
        elif (registration := self._registry.registration(request.consumer_id)) is not None:
            # Tidewire's clients close their registrations. Pulsar's only close the consumers of segments.
            self._registry.leave(registration)
        self._put(commands.success(request.request_id))

    async def _seek(self, command: pb.BaseCommand) -> None:
        request = command.seek
        require_target(request)
        registration = self._registry.registration(request.consumer_id)
        if registration is None or registration.subscription is None or request.consumer_id in self._consumers:
            await seek(self._session(request.consumer_id), request)
        else:
            await seek_all(self._controller, registration.group.topic, registration.subscription, request)
        self._put(commands.success(request.request_id))

    async def _last_message_id(self, command: pb.BaseCommand) -> None:
        request = command.get_last_message_id
        session = self._session(request.consumer_id)
        partition = partition_of(session.topic.name)
        shown = session.read_uncommitted or session.topic
        entry = await shown.last_visible()
        if entry is None:
            last = message_id(*EARLIEST, partition=partition)
        else:
            last = message_id(*entry.position, partition=partition, batch_index=last_index_in(entry))
        acknowledged = await session.topic.acknowledged(session.subscription)
        mark_delete = message_id(*acknowledged, partition=partition)
        backlog_range = (
            await backlog_range_of(session.topic, shown, request.backlog_range)
            if request.HasField("backlog_range")
            else None
        )
        self._put(
            commands.get_last_message_id_response(
                request.request_id, last, mark_delete=mark_delete, backlog_range=backlog_range
            )
        )

    async def _statistics(self, command: pb.BaseCommand) -> None:
        raise NotSupported(
            "The broker does not serve statistics to consumers. Request /admin/v2/scalable/.../stats or /metrics over "
            "HTTP."
        )

    async def _flow(self, frame: Frame) -> None:
        flow = frame.command.flow
        session = self._consumers.get(flow.consumer_id)
        if session is not None:
            if not session.has_flowed:
                session.has_flowed = True
                self._registry.consumer_flowed(session)
            session.subscription.flow(session.consumer, flow.message_permits)

    async def _redeliver(self, frame: Frame) -> None:
        request = frame.command.redeliver_unacknowledged_messages
        session = self._consumers.get(request.consumer_id)
        if session is not None:
            if request.HasField("consumer_epoch"):
                session.outlet.epoch = request.consumer_epoch
            if not request.message_ids:
                session.subscription.redeliver(session.consumer)
            for part in slices(request.message_ids):
                session.subscription.redeliver(session.consumer, [Position(*position(given)) for given in part])
                await pause_between(request.message_ids)

    def _session(self, consumer_id: int) -> ConsumerSession:
        session = self._consumers.get(consumer_id)
        if session is None:
            raise SubscriptionNotFound(f"This connection has no consumer {consumer_id}. Subscribe again.")
        return session

    def _put(self, command: pb.BaseCommand) -> None:
        self._outbox.put(encode_command(command))
