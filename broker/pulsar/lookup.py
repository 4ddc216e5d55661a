"""Lookup commands: which broker serves a topic, how many partitions it has, and which topics a namespace has."""

from collections.abc import Iterator, Sequence

import trio

from broker.cluster.locating import Answer, At, Here, NotNow, Redirect
from broker.cluster.locator import Locator
from broker.errors import NotSupported
from broker.names import Domain, TopicName
from broker.partitioned_topics import PartitionedTopics
from broker.pulsar.connection import Connection
from broker.pulsar.faults import Fault
from broker.pulsar.namespaces import check_namespace
from broker.pulsar.requests import Inline, Request
from broker.pulsar.unsupported import require_no_principal, require_ordinary_topic
from broker.regular_contract import RegularService
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import MAX_FRAME_SIZE, encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


class LookupHandler:
    """Serves the lookup commands of one connection."""

    def __init__(
        self, connection: Connection, locator: Locator, partitioned: PartitionedTopics, regular: RegularService
    ) -> None:
        self._connection = connection
        self._partitioned = partitioned
        self._regular = regular
        self._locator = locator
        # A small request has a large answer. So a connection's lists are made one after another.
        self._listing = trio.Lock()

    @property
    def inline(self) -> dict[int, Inline]:
        """See `CommandHandler`."""
        return {}

    @property
    def requests(self) -> dict[int, Request]:
        """See `CommandHandler`."""
        return {
            pb.BaseCommand.PARTITIONED_METADATA: Request(
                self._partitions,
                lambda command, fault: commands.partitioned_metadata_failed(
                    command.partition_metadata.request_id, self._code_of(fault), fault.message
                ),
            ),
            pb.BaseCommand.LOOKUP: Request(
                self._lookup,
                lambda command, fault: commands.lookup_failed(
                    command.lookup_topic.request_id, self._code_of(fault), fault.message
                ),
            ),
            pb.BaseCommand.GET_TOPICS_OF_NAMESPACE: Request(self._topics),
        }

    def close(self) -> Iterator[None]:
        """See `CommandHandler`. There is nothing to close."""
        return iter(())

    def _code_of(self, fault: Fault) -> pb.ServerError:
        return self._connection.peer.gives_up_name_at if fault.code == pb.InvalidTopicName else fault.code

    async def _partitions(self, command: pb.BaseCommand) -> None:
        request = command.partition_metadata
        require_no_principal(request)
        require_ordinary_topic(request.topic)
        name = TopicName.parse(request.topic)
        topic = None
        if name.domain is Domain.PERSISTENT and name.partition_index is None:
            # Kafka's clients make partitioned topics. A topic of Pulsar's clients that must scale is a scalable topic.
            topic = await self._partitioned.find(name)
        partitions = 0 if topic is None else topic.partitions
        response = commands.partitioned_metadata_response(request.request_id, partitions)
        self._connection.outbox.put(encode_command(response))

    async def _lookup(self, command: pb.BaseCommand) -> None:
        request = command.lookup_topic
        require_no_principal(request)
        if request.advertised_listener_name:
            raise NotSupported(
                f"This broker has no listener named {request.advertised_listener_name}. Leave the listener name out."
            )
        located = await self._locator.locate(TopicName.parse(request.topic), authoritative=request.authoritative)
        self._connection.outbox.put(encode_command(self._answer(request.request_id, located)))

    async def _topics(self, command: pb.BaseCommand) -> None:
        # Clients that subscribe by a pattern ask again every minute, and apply the pattern themselves.
        request = command.get_topics_of_namespace
        check_namespace(request.namespace)
        async with self._listing:
            await self._connection.outbox.wait_writable()
            names: Sequence[str] = ()
            if request.mode != pb.CommandGetTopicsOfNamespace.NON_PERSISTENT:
                tenant, _separator, namespace = request.namespace.partition("/")
                names = await self._regular.names(tenant, namespace)
            response = encode_command(commands.topics_of_namespace_response(request.request_id, names))
            if len(response) > MAX_FRAME_SIZE:
                raise NotSupported(
                    f"Namespace {request.namespace} has {len(names):,} topics and partitions, too many for one answer. "
                    "Subscribe to topics by their names, or divide the namespace."
                )
            self._connection.outbox.put(response)

    def _answer(self, request_id: int, located: Answer) -> pb.BaseCommand:
        match located:
            case Here():
                # This broker may have several addresses. Use the one that this client connected to.
                return commands.lookup_connect(request_id, self._connection.service_url)
            case At(url):
                return commands.lookup_connect(request_id, url)
            case Redirect(url):
                return commands.lookup_redirect(request_id, url)
            case NotNow(reason):
                return commands.lookup_failed(request_id, pb.ServiceNotReady, reason)
