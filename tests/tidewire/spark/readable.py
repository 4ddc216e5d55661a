"""Topics in memory that the Spark source can plan and read, served by a `BlockingPeer` for each connection.

    world = Readable()
    world.add("segment://public/default/x/0000-ffff-0", [batch(b"a", b"b"), batch(b"c")])
    entries(partition, world.brokers)

A segment's entries are at (ledger 5, entry 0, 1, ...). Each broker address has its own peer; `peers` has all connected
ones, in order. A test interferes by replacing members of `world.answers`, or through `world.sending`. That is called
with (peer, index of the entry) before each entry is sent; if it returns False, the sending ends.
"""

from collections.abc import Callable, Sequence

from tests.support.blocking_peer import Answer, BlockingPeer
from tidewire.protocol.addresses import BrokerAddress
from tidewire.spark.brokers import Brokers
from tidewire.spark.connection import BlockingConnection
from tidewire.spark.options import ReadOptions
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import build_batch, message_metadata, single_message_metadata
from tidewire.wire.pulsar.errors import MessageError
from tidewire.wire.pulsar.frames import encode_command, encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id, position
from tidewire.wire.pulsar.messages import parse_payload

T = pb.BaseCommand.Type
SERVICE = BrokerAddress("service", 6650)
TOPIC = "topic://public/default/x"
LEDGER = 5


def batch(*values: bytes) -> bytes:
    return build_batch(
        message_metadata("p", 0, 1_700_000_000_000),
        [(single_message_metadata(number), value) for number, value in enumerate(values)],
    )


def segment(
    number: int, start: int, end: int, *, sealed: bool = False, legacy: str | None = None
) -> pb.SegmentInfoProto:
    return pb.SegmentInfoProto(
        segment_id=number,
        hash_start=start,
        hash_end=end,
        state=pb.SEALED if sealed else pb.ACTIVE,
        created_at_epoch=0,
        created_at_ms=0,
        legacy_topic_name=legacy,
    )


class Readable:
    """See the module's docstring."""

    def __init__(self, topic: str = TOPIC) -> None:
        self.options = ReadOptions((SERVICE,), (topic,))
        self.measures = True
        """whether the brokers measure backlog ranges; each entry is as large as its payload."""
        self.topics: dict[str, list[bytes]] = {}
        self.dag = pb.ScalableTopicDAG(epoch=1)
        self.partitions = 0
        self.features = commands.broker_features()
        self.peers: list[tuple[BrokerAddress, BrokerAddress | None, BlockingPeer]] = []
        self.creation: dict[str, str] = {}
        """Of segments, where it is known."""
        self.final: set[str] = set()
        """Segments to which nothing is ever added."""
        self.acknowledged: dict[str, int] = {}
        """Up to which entry subscriptions have acknowledged segments, where it is not nothing."""
        self.sending: Callable[[BlockingPeer, int], bool] = lambda peer, index: True
        self.answers: dict[int, Callable[[BlockingPeer], Answer]] = {
            T.CONNECT: lambda peer: self._connected,
            T.LOOKUP: lambda peer: self._owner,
            T.SCALABLE_TOPIC_LOOKUP: lambda peer: self._layout,
            T.PARTITIONED_METADATA: lambda peer: self._partitions,
            T.SUBSCRIBE: self._subscribing,
            T.FLOW: self._sending,
            T.GET_LAST_MESSAGE_ID: self._ending,
            T.CLOSE_CONSUMER: lambda peer: (
                lambda command: [encode_command(commands.success(command.close_consumer.request_id))]
            ),
        }
        # Per peer: what its consumers read, the next entry of each, and their permits.
        self._reading: dict[tuple[BlockingPeer, int], str] = {}
        self._next: dict[tuple[BlockingPeer, int], int] = {}
        self._permits: dict[tuple[BlockingPeer, int], int] = {}

    def add(self, topic: str, entries: Sequence[bytes]) -> None:
        self.topics[topic] = list(entries)

    def append(self, topic: str, *payloads: bytes) -> None:
        """Add entries, and send them to readers with permits."""
        self.topics[topic] += payloads
        for (peer, consumer_id), name in self._reading.items():
            if name == topic and not peer.is_closed:
                self._send(peer, consumer_id)

    def say_layout(self) -> None:
        """Push the layout to all watches."""
        for _, _, peer in self.peers:
            for command in peer.received_of(T.SCALABLE_TOPIC_LOOKUP):
                peer.say(*self._layout(command))

    def brokers(self) -> Brokers:
        return Brokers(self.options, self._connect)

    def commands_of(self, kind: int) -> list[pb.BaseCommand]:
        """Return all commands of a type that any peer got."""
        return [command for _, _, peer in self.peers for command in peer.received_of(kind)]

    def _connect(self, address: BrokerAddress, proxied_to: BrokerAddress | None) -> BlockingConnection:
        answers: dict[int, Answer] = {}
        peer = BlockingPeer(answers)
        answers.update({kind: make(peer) for kind, make in self.answers.items()})
        self.peers.append((address, proxied_to, peer))
        connection = BlockingConnection(peer, address, timeout_seconds=30, proxied_to=proxied_to, clock=peer.clock)
        connection.handshake()
        return connection

    def _connected(self, command: pb.BaseCommand) -> list[bytes]:
        return [encode_command(commands.connected("scripted", features=self.features))]

    def _owner(self, command: pb.BaseCommand) -> list[bytes]:
        return [encode_command(commands.lookup_connect(command.lookup_topic.request_id, str(SERVICE)))]

    def _layout(self, command: pb.BaseCommand) -> list[bytes]:
        asked = command.scalable_topic_lookup
        if asked.topic not in self.options.topics or not self.dag.segments:
            return [encode_command(commands.scalable_topic_failed(asked.session_id, pb.TopicNotFound, "no such topic"))]
        update = commands.scalable_topic_update(asked.session_id, self.dag, resolved_topic_name=asked.topic)
        return [encode_command(update)]

    def _partitions(self, command: pb.BaseCommand) -> list[bytes]:
        request_id = command.partition_metadata.request_id
        return [encode_command(commands.partitioned_metadata_response(request_id, self.partitions))]

    def _subscribing(self, peer: BlockingPeer) -> Answer:
        def answer(command: pb.BaseCommand) -> list[bytes]:
            asked = command.subscribe
            if asked.topic not in self.topics:
                return [encode_command(commands.error(asked.request_id, pb.TopicNotFound, f"no {asked.topic}"))]
            ledger, entry = position(asked.start_message_id)
            consumer = (peer, asked.consumer_id)
            self._reading[consumer] = asked.topic
            self._next[consumer] = entry + 1 if ledger >= LEDGER else 0
            self._permits[consumer] = 0
            return [encode_command(commands.success(asked.request_id))]

        return answer

    def _ending(self, peer: BlockingPeer) -> Answer:
        def answer(command: pb.BaseCommand) -> list[bytes]:
            asked = command.get_last_message_id
            count = len(self.topics[self._reading[peer, asked.consumer_id]])
            last = message_id(LEDGER, count - 1) if count else message_id(-1, -1)
            backlog_range = None
            if self.measures and asked.HasField("backlog_range"):
                name = self._reading[peer, asked.consumer_id]
                backlog_range = _backlog_range(self.topics[name], asked.backlog_range)
                backlog_range.is_final = name in self.final and backlog_range.end == last
                backlog_range.creation_id = self.creation.get(name, "")
            acknowledged = self.acknowledged.get(self._reading[peer, asked.consumer_id])
            here = message_id(-1, -1) if acknowledged is None else message_id(LEDGER, acknowledged)
            answered = commands.get_last_message_id_response(
                asked.request_id, last, mark_delete=here, backlog_range=backlog_range
            )
            return [encode_command(answered)]

        return answer

    def _sending(self, peer: BlockingPeer) -> Answer:
        def answer(command: pb.BaseCommand) -> list[bytes]:
            consumer = (peer, command.flow.consumer_id)
            self._permits[consumer] += command.flow.message_permits
            self._send(peer, command.flow.consumer_id)
            return []

        return answer

    def _send(self, peer: BlockingPeer, consumer_id: int) -> None:
        consumer = (peer, consumer_id)
        entries = self.topics[self._reading[consumer]]
        while self._permits[consumer] > 0 and self._next[consumer] < len(entries):
            index = self._next[consumer]
            if not self.sending(peer, index):
                break
            peer.say(encode_payload_command(commands.message(consumer_id, LEDGER, index), entries[index]))
            self._permits[consumer] -= _message_count(entries[index])
            self._next[consumer] += 1


def _backlog_range(entries: Sequence[bytes], wanted: pb.BacklogRangeRequest) -> pb.BacklogRange:
    """In this world, an entry's time is its number."""
    ledger, entry = position(wanted.after)
    first = entry + 1 if ledger >= LEDGER else 0
    if wanted.HasField("since_ms"):
        first = min(wanted.since_ms, len(entries))
    count = size = messages = 0
    for number, payload in enumerate(entries[first:], first):
        if wanted.HasField("until_ms") and number > wanted.until_ms:
            break
        messages += _message_count(payload)
        size += len(payload)
        is_more = (wanted.HasField("messages_max") and messages > wanted.messages_max) or (
            wanted.HasField("bytes_max") and size > wanted.bytes_max
        )
        if count and is_more:
            messages -= _message_count(payload)
            size -= len(payload)
            break
        count += 1
    after = message_id(LEDGER, first - 1) if first else message_id(-1, -1)
    return pb.BacklogRange(
        after=after,
        end=message_id(LEDGER, first + count - 1) if count else after,
        first_index=sum(map(_message_count, entries[:first])),
        messages=messages,
        bytes=size,
        first_timestamp_ms=first if count else None,
        last_timestamp_ms=first + count - 1 if count else None,
    )


def _message_count(payload: bytes) -> int:
    try:
        metadata, _ = parse_payload(payload)
    except MessageError:
        return 1
    return max(1, metadata.num_messages_in_batch)
