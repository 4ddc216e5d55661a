"""A blocking client of one regular topic, which sends its commands one by one and shows every answer.

with Client(broker) as client:
assert client.produce().type == Type.PRODUCER_SUCCESS
assert client.publish(0).type == Type.SEND_RECEIPT
assert stored(broker) == 1
"""

import socket
from typing import Final

from tests.support.processes import RunningBroker
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.frames import Frame, FrameDecoder, encode_command, encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

TOPIC: Final = "persistent://public/default/plain"

SECONDS_MAX: Final = 60.0
"""How long an answer may take."""

Type = pb.BaseCommand.Type


class Client:
    """One connection, one answer at a time."""

    def __init__(self, broker: RunningBroker, topic: str = TOPIC) -> None:
        """Connect to the broker, and shake hands."""
        self._topic = topic
        self._decoder = FrameDecoder()
        self._socket = socket.create_connection(broker.pulsar, timeout=SECONDS_MAX)
        assert self.ask(encode_command(commands.connect("test"))).command.type == Type.CONNECTED

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_ended: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send a command without waiting."""
        self._socket.sendall(data)

    def ask(self, data: bytes) -> Frame:
        """Send, and return the next frame."""
        self.send(data)
        return self.next_frame()

    def next_frame(self) -> Frame:
        """Return the next frame from the broker."""
        while (frame := self._decoder.next_frame()) is None:
            received = self._socket.recv(65536)
            assert received, "the broker closed the connection"
            self._decoder.feed(received)
        return frame

    def produce(self) -> pb.BaseCommand:
        """Open a producer on the topic. Return the answer."""
        return self.ask(encode_command(commands.producer(self._topic, 1, 1))).command

    def publish(self, number: int, padding: bytes = b"") -> pb.BaseCommand:
        """Publish one plain message. Return the answer."""
        self.send_publish(number, padding)
        return self.next_frame().command

    def send_publish(self, number: int, padding: bytes = b"") -> None:
        """Publish one plain message without waiting for the answer."""
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
        self.send(encode_payload_command(commands.send(1, number), build_payload(metadata, b"%d" % number + padding)))

    def last_answer(self) -> pb.BaseCommand | None:
        """Return the next answer, or None if the broker closes the connection without one."""
        try:
            return self.next_frame().command
        except (AssertionError, OSError):
            return None


def stored(broker: RunningBroker, topic: str = TOPIC) -> int:
    """Return how many messages a new subscription gets, up to the last one."""
    with Client(broker, topic) as client:
        earliest = pb.CommandSubscribe.InitialPosition.Earliest
        wanted = commands.subscribe(topic, "all", 1, 2, durable=False, initial_position=earliest)
        answer = client.ask(encode_command(wanted)).command
        assert answer.type == Type.SUCCESS, answer
        last = client.ask(encode_command(commands.get_last_message_id(1, 3))).command
        end = last.get_last_message_id_response.last_message_id
        frame = client.ask(encode_command(commands.flow(1, 1000)))
        count = 1
        while (at := frame.command.message.message_id).ledger_id != end.ledger_id or at.entry_id != end.entry_id:
            assert frame.command.type == Type.MESSAGE
            frame = client.next_frame()
            count += 1
    return count
