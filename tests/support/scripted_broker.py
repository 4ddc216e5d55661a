"""A broker in memory for the client's tests. It answers like a broker, until the script says otherwise.

    async with scripted_broker() as broker:
        topic = broker.add_topic("topic://public/default/x", segments=2)
        async with broker.client() as client: ...

By default it serves lookups, layouts, producers, consumers, readers and transactions from memory. Every connection is a
`memory_stream_pair`. It records what it was sent in `broker.commands` (type and content, in order) and
`topic.segments[0].entries`. A script can interfere:

- `broker.hold(SEND)`: commands of this type pile up unanswered; `broker.release(SEND)` answers them and all later ones.
- `topic.segments[0].held = []`: the same for the sends to one segment; `broker.answer_held(segment)` answers them.
- `broker.on(SEND, handler)`: `handler(peer, frame)` answers instead; `broker.off(SEND)` undoes it.
- `broker.drop_connections()`: every client's connection ends, after what was sent on it. `broker.refuses = True`: no
  new one is accepted.
- `topic.split(0)`, `topic.merge(2, 3)`: seal, create children, push the layout, answer sends to the sealed segment,
  close the producers, in this order; `topic.seal(0)` and `topic.push()` are parts of it.
- `await broker.seen(SEND, 3)`: wait until three such commands have come.

It leaves out what no test of the client needs: checks of what it is sent, permits, redelivery to another consumer,
individual acknowledgements (a new session gets everything that was not acknowledged cumulatively), batches as more than
one entry, and hiding aborted transactions.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc

from tests.support.memory_network import memory_stream_pair
from tidewire.client.client import Client, open_client
from tidewire.client.network import Network, Settings
from tidewire.protocol.addresses import BrokerAddress, ServiceAddresses
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import build_message, message_metadata
from tidewire.wire.pulsar.frames import Frame, FrameDecoder, encode_command, encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id, position
from tidewire.wire.pulsar.messages import split_messages
from tidewire.wire.pulsar.parsing import MEMBERS

T = pb.BaseCommand.Type
ADDRESS = BrokerAddress("broker", 6650)
HASHES = 0x10000
Handler = Callable[["Peer", Frame], None]


@dataclass(eq=False)
class Segment:
    """One segment, or a plain topic."""

    segment_id: int
    topic: str
    hash_start: int
    hash_end: int
    ledger_id: int
    parents: tuple[int, ...] = ()
    last_sequence_id: int = -1
    """What it remembers of each producer, as it says when one is opened."""
    sealed: bool = False
    entries: list[bytes] = field(default_factory=list)
    # Durable subscriptions: the first entry that is not acknowledged.
    cursors: dict[str, int] = field(default_factory=dict)
    consumers: "list[_Consumer]" = field(default_factory=list)
    held: "list[tuple[Peer, Frame]] | None" = None
    """Sends to this segment pile up here while it is a list; `ScriptedBroker.answer_held` answers them."""

    def values(self) -> list[bytes]:
        """Return what was sent to it, message by message."""
        return [single.value for entry in self.entries for single in split_messages(entry)]

    def close_consumers(self, assigned_url: str | None = None) -> None:
        """Close all its consumers. `assigned_url` is the next owner."""
        for consumer in self.consumers:
            del consumer.peer.consumers[consumer.consumer_id]
            consumer.peer.send(commands.close_consumer(consumer.consumer_id, assigned_url=assigned_url))
        self.consumers.clear()

    def deliver(self) -> None:
        """Send each consumer the entries that it was not sent yet."""
        for consumer in self.consumers:
            consumer.deliver(self)


@dataclass(eq=False)
class _Consumer:
    peer: "Peer"
    consumer_id: int
    subscription: str | None
    next_entry: int
    acknowledged: int
    """The first entry that is not."""
    has_permits: bool = False
    told_end: bool = False
    redeliveries: Counter[int] = field(default_factory=Counter)
    """By entry, how often it was asked for again."""

    def deliver(self, segment: Segment) -> None:
        if not self.has_permits:
            return
        while self.next_entry < len(segment.entries):
            self.peer.deliver(self.consumer_id, segment.ledger_id, self.next_entry, segment.entries[self.next_entry])
            self.next_entry += 1

    def deliver_again(self, segment: Segment, entry: int) -> None:
        self.redeliveries[entry] += 1
        count = self.redeliveries[entry]
        self.peer.deliver(self.consumer_id, segment.ledger_id, entry, segment.entries[entry], redelivery_count=count)

    def tell_end(self, segment: Segment) -> None:
        if segment.sealed and self.has_permits and not self.told_end and self.acknowledged >= len(segment.entries):
            self.told_end = True
            self.peer.send(commands.reached_end_of_topic(self.consumer_id))


class Topic:
    """A topic of the broker."""

    def __init__(self, broker: "ScriptedBroker", name: str, segments: Iterable[Segment]) -> None:
        self.broker = broker
        self.name = name
        self.epoch = 0
        self.created_ms = 0
        """When its segments were created."""
        self.segments = {segment.segment_id: segment for segment in segments}
        self.watchers: list[tuple[Peer, int]] = []
        self.members: list[tuple[Peer, int]] = []
        self.share: list[int] | None = None
        """What stream consumers are told to consume; all segments that are active unless set."""

    def dag(self) -> pb.ScalableTopicDAG:
        """Return its layout."""
        dag = pb.ScalableTopicDAG(epoch=self.epoch, controller_broker_url=str(ADDRESS))
        for segment in self.segments.values():
            dag.segments.add(
                segment_id=segment.segment_id,
                hash_start=segment.hash_start,
                hash_end=segment.hash_end,
                state=pb.SegmentState.SEALED if segment.sealed else pb.SegmentState.ACTIVE,
                parent_ids=segment.parents,
                created_at_epoch=0,
                created_at_ms=self.created_ms,
            )
        return dag

    def push(self) -> None:
        """Push its layout to all watches."""
        for peer, session_id in self.watchers:
            peer.send(commands.scalable_topic_update(session_id, self.dag(), resolved_topic_name=self.name))

    def assigned(self) -> list[pb.ScalableAssignedSegment]:
        """Return what a stream consumer is assigned."""
        share = [known for known, segment in self.segments.items() if not segment.sealed]
        return [
            pb.ScalableAssignedSegment(
                segment_id=segment_id,
                hash_start=self.segments[segment_id].hash_start,
                hash_end=self.segments[segment_id].hash_end,
                segment_topic=self.segments[segment_id].topic,
            )
            for segment_id in (share if self.share is None else self.share)
        ]

    def assign(self, *segment_ids: int) -> None:
        """Assign these segments to stream consumers, and tell them."""
        self.share = list(segment_ids)
        for peer, consumer_id in self.members:
            peer.send(commands.scalable_topic_assignment_update(consumer_id, self.epoch, self.assigned()))

    def seal(self, segment_id: int) -> None:
        """Seal the segment, without telling anybody."""
        self.segments[segment_id].sealed = True

    def split(self, segment_id: int) -> tuple[Segment, Segment]:
        """Replace a segment by its two halves. Its producers are told, unless its sends are held."""
        parent = self.segments[segment_id]
        middle = (parent.hash_start + parent.hash_end) // 2
        ranges = (parent.hash_start, middle), (middle + 1, parent.hash_end)
        first, second = self._replace([parent], ranges)
        return first, second

    def merge(self, first_id: int, second_id: int) -> Segment:
        """Replace two neighbours by one segment."""
        first, second = self.segments[first_id], self.segments[second_id]
        (child,) = self._replace([first, second], [(first.hash_start, second.hash_end)])
        return child

    def _replace(self, parents: list[Segment], ranges: Iterable[tuple[int, int]]) -> list[Segment]:
        children = []
        parent_ids = tuple(parent.segment_id for parent in parents)
        for start, end in ranges:
            child = self.broker.new_segment(self.name, len(self.segments), start, end, parent_ids)
            self.segments[child.segment_id] = child
            children.append(child)
        for parent in parents:
            parent.sealed = True
            for consumer in parent.consumers:
                consumer.tell_end(parent)
        self.epoch += 1
        self.push()
        for parent in parents:
            if parent.held is None:
                self.broker.close_producers(parent)
        return children


def send_refusal(send: pb.CommandSend, code: int, reason: str) -> pb.BaseCommand:
    """Return the refusal of a send. As brokers do, it names a batch by the id of its last message."""
    sequence_id = max(send.sequence_id, send.highest_sequence_id)
    return commands.send_error(send.producer_id, sequence_id, code, reason)  # type: ignore[arg-type]


class Peer:
    """The broker's side of one connection."""

    def __init__(self, broker: "ScriptedBroker", stream: anyio.abc.ByteStream) -> None:
        self.broker = broker
        self.stream = stream
        self.producers: dict[int, Segment] = {}
        self.consumers: dict[int, tuple[Segment, _Consumer]] = {}
        self._is_dropped = False
        self._send, self._output = anyio.create_memory_object_stream[bytes](100_000)

    def send(self, command: pb.BaseCommand) -> None:
        """Send a command."""
        self.send_bytes(encode_command(command))

    def send_bytes(self, data: bytes) -> None:
        """Send arbitrary bytes."""
        try:
            self._send.send_nowait(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # The client has gone; a broker finds that out later.

    def deliver(
        self, consumer_id: int, ledger_id: int, entry_id: int, payload: bytes, *, redelivery_count: int = 0
    ) -> None:
        """Send an entry."""
        command = commands.message(consumer_id, ledger_id, entry_id, redelivery_count=redelivery_count)
        self.send_bytes(encode_payload_command(command, payload))

    async def serve(self) -> None:
        """Read and answer until the connection ends."""
        async with self.stream, self._send, self._output, anyio.create_task_group() as tasks:
            tasks.start_soon(self._write, tasks.cancel_scope)
            decoder = FrameDecoder()
            try:
                while True:
                    decoder.feed(await self.stream.receive())
                    while not self._is_dropped and (frame := decoder.next_frame()) is not None:
                        self.broker.take(self, frame)
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                tasks.cancel_scope.cancel()

    async def _write(self, scope: anyio.CancelScope) -> None:
        try:
            async for data in self._output:
                await self.stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # The reading task ends the connection.
        # The connection was dropped, and everything sent before has left.
        scope.cancel()

    def drop(self) -> None:
        """Stop reading, and end the connection after the bytes already sent."""
        self._is_dropped = True
        self._send.close()


class ScriptedBroker:
    """See the module's docstring; made by `scripted_broker`."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self.refuses = False
        self.dialed: list[BrokerAddress] = []
        self.peers: list[Peer] = []
        self.topics: dict[str, Topic] = {}
        self.segments: dict[str, Segment] = {}
        self.commands: list[tuple[int, Any]] = []
        self.payloads: list[bytes | None] = []
        self.transactions: dict[tuple[int, int], str] = {}
        self.features = commands.broker_features()
        self.coordinators = 2
        self._tasks = tasks
        self._handlers: dict[int, Handler] = {}
        self._held: dict[int, list[tuple[Peer, Frame]]] = {}
        self._came = anyio.Event()
        self._counts: Counter[int] = Counter()

    # ----------------------------------------------------------------------------------------------------- the script

    def add_topic(self, name: str, segments: int = 1) -> Topic:
        """Add a topic: scalable with this number of segments, or plain."""
        if name.startswith("topic://"):
            size = HASHES // segments
            made = [
                self.new_segment(
                    name, index, index * size, HASHES - 1 if index == segments - 1 else (index + 1) * size - 1
                )
                for index in range(segments)
            ]
        else:
            made = [Segment(0, name, 0, HASHES - 1, len(self.segments) + 1)]
            self.segments[name] = made[0]
        self.topics[name] = Topic(self, name, made)
        return self.topics[name]

    def new_segment(self, topic: str, segment_id: int, start: int, end: int, parents: tuple[int, ...] = ()) -> Segment:
        """Add a segment that can be found by its name."""
        name = f"segment://{topic.removeprefix('topic://')}/{start:04x}-{end:04x}-{segment_id}"
        segment = Segment(segment_id, name, start, end, len(self.segments) + 1, parents)
        self.segments[name] = segment
        return segment

    def client(self, **settings: float) -> AbstractAsyncContextManager[Client]:
        """Connect a client to this broker. It does not wait between attempts to reconnect."""
        return open_client([ADDRESS], Settings(**{"reconnect_seconds_max": 0.0, **settings}), dial=self.dial)

    @asynccontextmanager
    async def network(self, **settings: float) -> AsyncIterator[Network]:
        """Return the client's lower half, without the client."""
        async with anyio.create_task_group() as tasks:
            known = Settings(**{"reconnect_seconds_max": 0.0, **settings})
            network = Network(ServiceAddresses([ADDRESS]), tasks, settings=known, dial=self.dial)
            try:
                yield network
            finally:
                await network.aclose()

    def hold(self, *kinds: int) -> None:
        """Hold commands of these types."""
        for kind in kinds:
            self._held.setdefault(kind, [])

    def release(self, kind: int) -> None:
        """Answer the held commands."""
        for peer, frame in self._held.pop(kind):
            self._answer(peer, frame)

    def forget(self, kind: int) -> None:
        """Never answer the held commands, but answer later ones."""
        del self._held[kind]

    def on(self, kind: int, handler: Handler) -> None:
        """Let `handler` answer commands of this type."""
        self._handlers[kind] = handler

    def off(self, kind: int) -> None:
        """Let the broker answer them again."""
        del self._handlers[kind]

    def drop_connections(self) -> None:
        """End every connection."""
        peers, self.peers = self.peers, []
        for peer in peers:
            peer.drop()
        for segment in self.segments.values():
            segment.consumers.clear()
        for topic in self.topics.values():
            topic.watchers.clear()
            topic.members.clear()

    async def seen(self, kind: int, times: int = 1) -> Any:
        """Wait until this many commands of this type have arrived. Return the content of the last one."""
        while self._counts[kind] < times:
            await self._came.wait()
        return self.of(kind)[-1]

    def of(self, kind: int) -> list[Any]:
        """Return the contents of all commands of this type, in order."""
        return [content for known, content in self.commands if known == kind]

    def answer_held(self, segment: Segment) -> None:
        """Answer the held sends of one segment, and close its producers if it is sealed."""
        held, segment.held = segment.held, None
        for peer, frame in held or ():
            self._answer(peer, frame)
        if segment.sealed:
            self.close_producers(segment)

    def close_producers(self, segment: Segment, assigned_url: str | None = None) -> None:
        """Answer the sends that arrived after the seal, then close the producers. `assigned_url` is the next owner."""
        held = self._held.get(T.SEND, [])
        for peer, frame in [
            (peer, frame) for peer, frame in held if peer.producers.get(frame.command.send.producer_id) is segment
        ]:
            held.remove((peer, frame))
            self._answer(peer, frame)
        for peer in self.peers:
            for producer_id in [known for known, at in peer.producers.items() if at is segment]:
                del peer.producers[producer_id]
                peer.send(commands.close_producer(producer_id, assigned_url=assigned_url))

    # ----------------------------------------------------------------------------------------------------- the broker

    async def dial(self, address: BrokerAddress) -> anyio.abc.ByteStream:
        """Return a client's end of a new connection."""
        await anyio.lowlevel.checkpoint()
        self.dialed.append(address)
        if self.refuses:
            raise ConnectionRefusedError("the script refuses")
        near, far = memory_stream_pair()
        peer = Peer(self, far)
        self.peers.append(peer)
        self._tasks.start_soon(self._serve, peer)
        return near

    async def _serve(self, peer: Peer) -> None:
        await peer.serve()
        if peer in self.peers:
            self.peers.remove(peer)
            for segment, consumer in peer.consumers.values():
                if consumer in segment.consumers:
                    segment.consumers.remove(consumer)

    def take(self, peer: Peer, frame: Frame) -> None:
        """Handle a command."""
        kind = frame.command.type
        self.commands.append((kind, getattr(frame.command, MEMBERS[kind])))
        self.payloads.append(frame.payload)
        self._counts[kind] += 1
        came, self._came = self._came, anyio.Event()
        came.set()
        if kind in self._held:
            self._held[kind].append((peer, frame))
        else:
            self._answer(peer, frame)

    def _answer(self, peer: Peer, frame: Frame) -> None:
        kind = frame.command.type
        handler = self._handlers.get(kind) or getattr(self, f"_{MEMBERS[kind]}", None)
        if handler is not None:
            handler(peer, frame)

    def answer(self, peer: Peer, frame: Frame) -> None:
        """Answer as the broker does without a handler. Handlers that interfere only sometimes call it."""
        getattr(self, f"_{MEMBERS[frame.command.type]}")(peer, frame)

    def _connect(self, peer: Peer, frame: Frame) -> None:
        peer.send(commands.connected("scripted", features=self.features))

    def _ping(self, peer: Peer, _frame: Frame) -> None:
        peer.send(commands.pong())

    def _lookup_topic(self, peer: Peer, frame: Frame) -> None:
        request = frame.command.lookup_topic
        if request.topic in self.topics or request.topic in self.segments:
            peer.send(commands.lookup_connect(request.request_id, str(ADDRESS)))
        else:
            peer.send(commands.lookup_failed(request.request_id, pb.ServerError.TopicNotFound, "no such topic"))

    def _partition_metadata(self, peer: Peer, frame: Frame) -> None:
        peer.send(commands.partitioned_metadata_response(frame.command.partition_metadata.request_id, 0))

    def _scalable_topic_lookup(self, peer: Peer, frame: Frame) -> None:
        request = frame.command.scalable_topic_lookup
        topic = self.topics.get(request.topic)
        if topic is None:
            peer.send(commands.scalable_topic_failed(request.session_id, pb.ServerError.TopicNotFound, "no such topic"))
        else:
            topic.watchers.append((peer, request.session_id))
            peer.send(commands.scalable_topic_update(request.session_id, topic.dag(), resolved_topic_name=topic.name))

    def _scalable_topic_close(self, peer: Peer, frame: Frame) -> None:
        session = (peer, frame.command.scalable_topic_close.session_id)
        for topic in self.topics.values():
            if session in topic.watchers:
                topic.watchers.remove(session)

    def _scalable_topic_subscribe(self, peer: Peer, frame: Frame) -> None:
        request = frame.command.scalable_topic_subscribe
        topic = self.topics[request.topic]
        topic.members.append((peer, request.consumer_id))
        peer.send(commands.scalable_topic_subscribe_response(request.request_id, topic.epoch, topic.assigned()))

    def _producer(self, peer: Peer, frame: Frame) -> None:
        request = frame.command.producer
        segment = self.segments[request.topic]
        if segment.sealed:
            peer.send(commands.error(request.request_id, pb.ServerError.TopicTerminatedError, "sealed"))
            return
        peer.producers[request.producer_id] = segment
        peer.send(
            commands.producer_success(
                request.request_id,
                request.producer_name or f"producer-{len(self.commands)}",
                last_sequence_id=segment.last_sequence_id,
            )
        )

    def _send(self, peer: Peer, frame: Frame) -> None:
        send = frame.command.send
        segment = peer.producers.get(send.producer_id)
        if segment is None:
            return  # Closed by us while this was on its way.
        if segment.held is not None:
            segment.held.append((peer, frame))
            return
        if segment.sealed:
            peer.send(send_refusal(send, pb.ServerError.TopicTerminatedError, "sealed"))
            return
        assert frame.payload is not None
        segment.entries.append(frame.payload)
        peer.send(
            commands.send_receipt(send.producer_id, send.sequence_id, segment.ledger_id, len(segment.entries) - 1)
        )
        segment.deliver()

    def _close_producer(self, peer: Peer, frame: Frame) -> None:
        request = frame.command.close_producer
        peer.producers.pop(request.producer_id, None)
        peer.send(commands.success(request.request_id))

    def _subscribe(self, peer: Peer, frame: Frame) -> None:
        request = frame.command.subscribe
        segment = self.segments.get(request.topic)
        if segment is None:
            peer.send(commands.error(request.request_id, pb.ServerError.TopicNotFound, "no such topic"))
            return
        if request.durable:
            latest = request.initial_position == pb.CommandSubscribe.InitialPosition.Latest
            first = segment.cursors.setdefault(request.subscription, len(segment.entries) if latest else 0)
            consumer = _Consumer(peer, request.consumer_id, request.subscription, first, first)
        else:
            ledger, entry = position(request.start_message_id)
            if ledger != segment.ledger_id:
                first = 0 if ledger < segment.ledger_id else len(segment.entries)
            else:
                # Clients drop what they do not want of the entry that they name.
                first = max(entry, 0)
            consumer = _Consumer(peer, request.consumer_id, None, first, first)
        segment.consumers.append(consumer)
        peer.consumers[request.consumer_id] = (segment, consumer)
        peer.send(commands.success(request.request_id))

    def _get_last_message_id(self, peer: Peer, frame: Frame) -> None:
        request = frame.command.get_last_message_id
        segment, _ = peer.consumers[request.consumer_id]
        last = message_id(segment.ledger_id, len(segment.entries) - 1) if segment.entries else message_id(-1, -1)
        peer.send(commands.get_last_message_id_response(request.request_id, last))

    def _flow(self, peer: Peer, frame: Frame) -> None:
        segment, consumer = peer.consumers[frame.command.flow.consumer_id]
        consumer.has_permits = True
        consumer.deliver(segment)
        consumer.tell_end(segment)

    def _ack(self, peer: Peer, frame: Frame) -> None:
        ack = frame.command.ack
        segment, consumer = peer.consumers[ack.consumer_id]
        if ack.ack_type == pb.CommandAck.AckType.Cumulative:
            (told,) = ack.message_id
            consumer.acknowledged = position(told)[1] + (0 if told.ack_set else 1)
            if consumer.subscription is not None:
                segment.cursors[consumer.subscription] = consumer.acknowledged
            consumer.tell_end(segment)
        if ack.HasField("request_id"):
            peer.send(commands.ack_response(ack.consumer_id, ack.request_id))

    def _redeliver_unacknowledged_messages(self, peer: Peer, frame: Frame) -> None:
        request = frame.command.redeliver_unacknowledged_messages
        segment, consumer = peer.consumers[request.consumer_id]
        for told in request.message_ids:
            consumer.deliver_again(segment, position(told)[1])

    def _seek(self, peer: Peer, frame: Frame) -> None:
        request = frame.command.seek
        for topic in self.topics.values():
            if (peer, request.consumer_id) in topic.members:
                # A stream consumer seeks to the beginning or the end of all segments.
                to_end = position(request.message_id) > (0, 0)
                for segment in topic.segments.values():
                    segment.cursors = dict.fromkeys(segment.cursors, len(segment.entries) if to_end else 0)
                    segment.close_consumers()
                peer.send(commands.success(request.request_id))
                return
        segment, consumer = peer.consumers.pop(request.consumer_id)
        segment.consumers.remove(consumer)
        ledger, entry = position(request.message_id)
        if ledger != segment.ledger_id:
            entry = 0 if ledger < segment.ledger_id else len(segment.entries)
        assert consumer.subscription is not None
        segment.cursors[consumer.subscription] = entry
        peer.send(commands.success(request.request_id))
        peer.send(commands.close_consumer(request.consumer_id))

    def _close_consumer(self, peer: Peer, frame: Frame) -> None:
        request = frame.command.close_consumer
        segment, consumer = peer.consumers.pop(request.consumer_id, (None, None))
        if segment is not None and consumer in segment.consumers:
            segment.consumers.remove(consumer)
        for topic in self.topics.values():
            if (peer, request.consumer_id) in topic.members:
                topic.members.remove((peer, request.consumer_id))
        peer.send(commands.success(request.request_id))

    def _watch_tc_assignments(self, peer: Peer, frame: Frame) -> None:
        assignments = [pb.TcAssignment(tc_id=tc, broker_service_url=str(ADDRESS)) for tc in range(self.coordinators)]
        watch_id = frame.command.watch_tc_assignments.watch_id
        peer.send(commands.watch_tc_assignments_update(watch_id, self.coordinators, assignments))

    def _tc_client_connect_request(self, peer: Peer, frame: Frame) -> None:
        peer.send(commands.tc_client_connect_response(frame.command.tc_client_connect_request.request_id))

    def _new_txn(self, peer: Peer, frame: Frame) -> None:
        txn = (frame.command.new_txn.tc_id, len(self.transactions))
        self.transactions[txn] = "OPEN"
        peer.send(commands.new_txn_response(frame.command.new_txn.request_id, txn))

    def _add_partition_to_txn(self, peer: Peer, frame: Frame) -> None:
        request = frame.command.add_partition_to_txn
        txn = (request.txnid_most_bits, request.txnid_least_bits)
        peer.send(commands.add_partition_to_txn_response(request.request_id, txn))

    def _add_subscription_to_txn(self, peer: Peer, frame: Frame) -> None:
        request = frame.command.add_subscription_to_txn
        txn = (request.txnid_most_bits, request.txnid_least_bits)
        peer.send(commands.add_subscription_to_txn_response(request.request_id, txn))

    def _end_txn(self, peer: Peer, frame: Frame) -> None:
        request = frame.command.end_txn
        txn = (request.txnid_most_bits, request.txnid_least_bits)
        wanted = "COMMITTED" if request.txn_action == pb.TxnAction.COMMIT else "ABORTED"
        if self.transactions[txn] == "OPEN":
            self.transactions[txn] = wanted
        if self.transactions[txn] == wanted:
            peer.send(commands.end_txn_response(request.request_id, txn))
        else:
            peer.send(
                commands.end_txn_response(
                    request.request_id, txn, error=pb.ServerError.InvalidTxnStatus, message=self.transactions[txn]
                )
            )


@asynccontextmanager
async def scripted_broker() -> AsyncIterator[ScriptedBroker]:
    """Run a broker during an `async with`."""
    async with anyio.create_task_group() as tasks:
        yield ScriptedBroker(tasks)
        tasks.cancel_scope.cancel()


def payload_of(value: bytes, *, key: str | None = None, publish_time_ms: int = 1_000) -> bytes:
    """Return a message as a producer would send it."""
    return build_message(message_metadata("scripted", 0, publish_time_ms, key=key), value)
