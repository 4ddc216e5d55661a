"""A scalable topic in memory that a task can write to, served by a `BlockingPeer` for each connection.

    world = Writable(segments=2)
    attempt = world.attempt()
    attempt.write(TOPIC, rows("k1", "k2"))
    world.stored                      # values by segment, in order

It answers at once, as a broker would, until a test interferes: by replacing members of `world.answers`, with
`world.holds = True` (frames are kept without an answer; `world.answer_held()` stores and answers them), or with
`world.owners`, which says where a segment is served. It remembers what it stored of each producer's name, and drops
what comes again; `world.remembered.clear()` forgets. `world.replace(...)` and `world.say_layout()` are the parts of a
split.
"""

from collections import defaultdict

import numpy as np
import pyarrow as pa

from tests.support.blocking_peer import Answer, BlockingPeer
from tests.tidewire.spark.readable import SERVICE, Readable, segment
from tidewire.protocol.addresses import BrokerAddress
from tidewire.spark.coordinating import Coordinator
from tidewire.spark.encoding import Columns, Rows, encode
from tidewire.spark.writing import Attempt
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame, encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.hashing import HASH_SPACE_SIZE
from tidewire.wire.pulsar.messages import split_messages

T = pb.BaseCommand.Type
TRANSACTION = (0, (1 << 62) | 1)


def rows(*places: tuple[int, int]) -> Rows:
    """Make rows from the keys' hashes and the values."""
    encoded = encode(Columns(pa.array([b"%d" % value for _, value in places])))
    return Rows(encoded.messages, np.array([hashed for hashed, _ in places], np.int64))


class Writable(Readable):
    """See the module's docstring."""

    def __init__(self, segments: int = 1) -> None:
        super().__init__()
        width = HASH_SPACE_SIZE // segments
        for number in range(segments):
            self.dag.segments.append(segment(number, number * width, (number + 1) * width - 1))
        self.stored: dict[str, list[int]] = defaultdict(list)
        self.holds = False
        self.owners: dict[str, BrokerAddress] = {}
        """Of topics and segments that are not at SERVICE."""
        self._held: list[tuple[BlockingPeer, pb.CommandSend, bytes]] = []
        self.remembered: dict[tuple[str, str], int] = {}
        """The highest stored sequence id, by segment and producer name."""
        self._producers: dict[tuple[BlockingPeer, int], str] = {}
        self._names: dict[tuple[BlockingPeer, int], str] = {}
        self.answers |= {
            T.LOOKUP: lambda peer: self._where,
            T.WATCH_TC_ASSIGNMENTS: lambda peer: _assignments,
            T.TC_CLIENT_CONNECT_REQUEST: lambda peer: (
                lambda command: [
                    encode_command(commands.tc_client_connect_response(command.tc_client_connect_request.request_id))
                ]
            ),
            T.ADD_PARTITION_TO_TXN: lambda peer: (
                lambda command: [
                    encode_command(
                        commands.add_partition_to_txn_response(command.add_partition_to_txn.request_id, TRANSACTION)
                    )
                ]
            ),
            T.PRODUCER: self.producing,
            T.CLOSE_PRODUCER: lambda peer: (
                lambda command: [encode_command(commands.success(command.close_producer.request_id))]
            ),
        }

    def attempt(self) -> Attempt:
        """Make an attempt that writes to it."""
        brokers = self.brokers()
        return Attempt(brokers, Coordinator(brokers), TRANSACTION, None)

    def replace(self, number: int, *children: pb.SegmentInfoProto) -> None:
        """Seal a segment in the layout, and add its children; `say_layout` pushes it."""
        for info in self.dag.segments:
            if info.segment_id == number:
                info.state = pb.SEALED
        self.dag.segments.extend(children)

    def answer_held(self, count: int | None = None) -> None:
        """Store and answer the held frames, or the first of them."""
        now, self._held[:] = self._held[:count], self._held[len(self._held[:count]) :]
        for peer, send, payload in now:
            self._store(peer, send, payload)

    def refuse_held(self, code: pb.ServerError) -> None:
        """Refuse the held frames."""
        for peer, send, _ in self._held:
            peer.say(encode_command(commands.send_error(send.producer_id, send.highest_sequence_id, code, "no")))
        self._held.clear()

    def store_held(self, count: int) -> None:
        """Store the first held frames, and answer none."""
        for held in self._held[:count]:
            self._keep(*held)

    def close_producers(self) -> None:
        """Close all producers, whatever is unanswered."""
        for peer, producer_id in self._producers:
            peer.say(encode_command(commands.close_producer(producer_id)))
        self._producers.clear()
        self._held.clear()

    def producing(self, peer: BlockingPeer) -> Answer:
        """Handle producers and their frames."""

        def answer(command: pb.BaseCommand) -> list[bytes]:
            asked = command.producer
            name = asked.producer_name or f"p{asked.producer_id}"
            self._producers[peer, asked.producer_id] = asked.topic
            self._names[peer, asked.producer_id] = name
            last = self.remembered.get((asked.topic, name), -1)
            return [encode_command(commands.producer_success(asked.request_id, name, last_sequence_id=last))]

        peer.take_payload = lambda frame: self._take(peer, frame)
        return answer

    def _take(self, peer: BlockingPeer, frame: Frame) -> None:
        assert frame.payload is not None
        if self.holds:
            self._held.append((peer, frame.command.send, frame.payload))
        else:
            self._store(peer, frame.command.send, frame.payload)

    def _store(self, peer: BlockingPeer, send: pb.CommandSend, payload: bytes) -> None:
        self._keep(peer, send, payload)
        peer.say(encode_command(commands.send_receipt(send.producer_id, send.sequence_id, 1, 0)))

    def _keep(self, peer: BlockingPeer, send: pb.CommandSend, payload: bytes) -> None:
        topic = self._producers[peer, send.producer_id]
        if not self._is_stored(peer, send):
            self.remembered[topic, self._names[peer, send.producer_id]] = send.highest_sequence_id
            self.stored[topic.rpartition("/")[2]] += [int(message.value) for message in split_messages(payload)]

    def _is_stored(self, peer: BlockingPeer, send: pb.CommandSend) -> bool:
        known = self._producers[peer, send.producer_id], self._names[peer, send.producer_id]
        return send.highest_sequence_id <= self.remembered.get(known, -1)

    def _where(self, command: pb.BaseCommand) -> list[bytes]:
        asked = command.lookup_topic
        owner = self.owners.get(asked.topic, SERVICE)
        return [encode_command(commands.lookup_connect(asked.request_id, str(owner)))]


def _assignments(command: pb.BaseCommand) -> list[bytes]:
    leader = pb.TcAssignment(tc_id=0, broker_service_url=str(SERVICE))
    watch_id = command.watch_tc_assignments.watch_id
    return [encode_command(commands.watch_tc_assignments_update(watch_id, 1, [leader]))]
