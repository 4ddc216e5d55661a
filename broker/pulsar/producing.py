"""Producers of one connection: PRODUCER, SEND and CLOSE_PRODUCER.

Each producer publishes and answers in its own tasks (`producer_sessions.py`). SEND is handled in order, and only hands
the message to its producer.
"""

from collections.abc import Iterator
from typing import Final

import trio

from broker.errors import NotSupported
from broker.names import TopicName
from broker.pulsar.connection import Connection
from broker.pulsar.faults import Fault
from broker.pulsar.pending_opens import PendingOpens
from broker.pulsar.producer_sessions import ProducerSession, refusal_of
from broker.pulsar.registry import Registry, is_managed
from broker.pulsar.requests import Inline, Request, require_label, require_name
from broker.pulsar.schemas import SchemaGate
from broker.pulsar.unsupported import require_supported_producer
from broker.topic import Topic
from broker.topics import Topics
from broker.traffic import Traffic
from storage.position import EARLIEST
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame, encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

PRODUCERS_MAX: Final = 10_000
"""Most producers of one connection. Further ones are refused."""

LAST_SEQUENCE_ID_MAX: Final = 2**63 - 1

UNKNOWN_PRODUCER: Final = "This connection has no producer with this id. Open the producer first."


class ProducerHandler:
    """Serves the producers of one connection."""

    def __init__(
        self, connection: Connection, registry: Registry, topics: Topics, schemas: SchemaGate, traffic: Traffic
    ) -> None:
        self._connection = connection
        self._outbox = connection.outbox
        self._topics = topics
        self._schemas = schemas
        self._traffic = traffic
        self._registry = registry
        self._producers = registry.producers
        self._pending_opens = PendingOpens("producer", PRODUCERS_MAX, self._producers)

    @property
    def inline(self) -> dict[int, Inline]:
        """See `CommandHandler`."""
        return {pb.BaseCommand.SEND: self._send}

    @property
    def requests(self) -> dict[int, Request]:
        """See `CommandHandler`."""
        return {
            pb.BaseCommand.PRODUCER: Request(
                self._create,
                announce=lambda command: self._pending_opens.announce(command.producer.producer_id, command),
            ),
            pb.BaseCommand.CLOSE_PRODUCER: Request(
                self._close, announce=lambda command: self._announce_close(command.close_producer.producer_id)
            ),
        }

    def close(self) -> Iterator[None]:
        """See `CommandHandler`."""
        for producer_id, producer in tuple(self._producers.items()):
            if self._producers.get(producer_id) is producer:
                del self._producers[producer_id]
                producer.close()
                yield

    async def _create(self, command: pb.BaseCommand) -> None:
        request = command.producer
        with self._pending_opens.opening(request.producer_id, command):
            await self._open(request)

    async def _open(self, request: pb.CommandProducer) -> None:
        self._registry.producer_requested(request.producer_id)
        if request.producer_id in self._producers:
            raise NotSupported(f"This connection already uses producer id {request.producer_id}. Choose another id.")
        require_supported_producer(request)
        require_label("producer", request.producer_name)
        topic = await self._topics.get(TopicName.parse(request.topic))
        if request.initial_subscription_name:
            await _keep_messages(topic, request.initial_subscription_name)
        schema = request.schema if request.HasField("schema") else None
        schema_version = await self._schemas.producer_version(topic, schema)
        # No await follows: either the producer opens, or it was cancelled before.
        await trio.lowlevel.checkpoint_if_cancelled()
        name = request.producer_name or self._topics.new_producer_name()
        producer = ProducerSession(
            request.producer_id,
            name,
            topic,
            self._outbox,
            self._connection.peer,
            self._connection.share,
            self._traffic,
            self._registry.producer_closed_by_broker,
            follows_layout=topic.name.segment is not None or is_managed(request.metadata),
            is_unnamed=not (request.producer_name and request.user_provided_producer_name),
        )
        topic.require_space()
        topic.add_producer(producer, returning=request.epoch > 0)
        self._producers[request.producer_id] = producer
        self._connection.nursery.start_soon(producer.run)
        opened = commands.producer_success(
            request.request_id,
            name,
            # A client that opens a producer of this name again continues its numbering after this id.
            last_sequence_id=_last_sequence_id(topic, name),
            schema_version=schema_version,
        )
        self._outbox.put(encode_command(opened))

    async def _send(self, frame: Frame) -> None:
        send = frame.command.send
        producer = self._producers.get(send.producer_id)
        if producer is None:
            if not self._registry.awaits_close(send.producer_id):
                self._outbox.put(refusal_of(send, Fault(pb.NotAllowedError, UNKNOWN_PRODUCER)))
        else:
            assert frame.payload is not None, "the decoder refuses a SEND without a payload"
            await producer.submit(send, frame.payload)

    def _announce_close(self, producer_id: int) -> None:
        self._pending_opens.call_off(producer_id)
        producer = self._producers.get(producer_id)
        if producer is not None:
            producer.leaves()

    async def _close(self, command: pb.BaseCommand) -> None:
        request = command.close_producer
        producer = self._producers.get(request.producer_id)
        if producer is not None:
            await producer.finish()
            producer.close()
            if self._producers.get(request.producer_id) is producer:
                del self._producers[request.producer_id]
        self._outbox.put(encode_command(commands.success(request.request_id)))


async def _keep_messages(topic: Topic, subscription: str) -> None:
    """Create a subscription that gets the producer's messages, if it is missing. Producers of dead letters ask for it.

    Raises:
        NotSupported: its name is not allowed, or the topic is scalable.
    """
    require_name("subscription", subscription)
    if topic.scalable_topic is not None:
        raise NotSupported(
            f"A producer cannot create subscription {subscription} on a scalable topic. Subscribe a consumer instead."
        )
    await topic.subscribe(subscription, EARLIEST)


def _last_sequence_id(topic: Topic, producer: str) -> int:
    """Return the producer's highest stored id; -1 for none. Ids of sends are unsigned, but this field is signed."""
    return -1 if topic.deduplication is None else min(topic.deduplication.last_id(producer), LAST_SEQUENCE_ID_MAX)
