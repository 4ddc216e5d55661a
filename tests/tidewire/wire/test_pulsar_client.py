"""Pulsar's own client library (C++, PyPI's pulsar-client) and this codec read what the other one writes.

Its codecs have no interface, so the library talks to a scripted peer: enough of a broker to open one producer or one
consumer, without storage. So this tests frames, commands, checksums, batches and codecs against a foreign
implementation.
"""

from collections.abc import Callable
from typing import Any

import pulsar
import pytest
import trio

from tidewire.wire.conversion.to_pulsar import to_pulsar
from tidewire.wire.kafka import records
from tidewire.wire.kafka.records import Header, Record
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import build_batch, build_message, message_metadata, single_message_metadata
from tidewire.wire.pulsar.checksums import verify_payload
from tidewire.wire.pulsar.frames import Frame, FrameDecoder, encode_command, encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import ack_set_of_bits
from tidewire.wire.pulsar.messages import SingleMessage, parse_payload, split_messages
from tidewire.wire.steps import finished

CODECS = [
    (pb.CompressionType.NONE, pulsar.CompressionType.NONE),
    (pb.CompressionType.LZ4, pulsar.CompressionType.LZ4),
    (pb.CompressionType.ZLIB, pulsar.CompressionType.ZLib),
    (pb.CompressionType.ZSTD, pulsar.CompressionType.ZSTD),
    (pb.CompressionType.SNAPPY, pulsar.CompressionType.SNAPPY),
]
VALUES = [b"", b"a", bytes(range(256)) * 20, b"to be or not to be; " * 500]
_RECEIVE_SIZE = 65_536
_RECEIVE_TIMEOUT_MS = 20_000

Client = Callable[[str], None]


class ScriptedPeer:
    """Answers what a client needs, records what it sends, and delivers `deliveries` at the first FLOW.

    Left out: more than one producer and one consumer, redelivery, and any check of the requests.
    """

    def __init__(self, deliveries: list[tuple[bytes, tuple[int, ...]]]) -> None:
        self.received: list[Frame] = []
        self._deliveries = deliveries

    async def run(self, client: Client) -> None:
        """Serve while `client` runs in a thread with the address; return when it returns."""
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            port = listener.socket.getsockname()[1]
            self._url = f"pulsar://127.0.0.1:{port}"
            nursery.start_soon(trio.serve_listeners, self._serve, [listener])
            await trio.to_thread.run_sync(client, self._url)
            nursery.cancel_scope.cancel()

    async def _serve(self, stream: trio.SocketStream) -> None:
        decoder = FrameDecoder()
        async for data in stream:
            decoder.feed(data)
            while (frame := decoder.next_frame()) is not None:
                self.received.append(frame)
                answer = self._answer(frame.command)
                if answer:
                    await stream.send_all(answer)

    def _answer(self, asked: pb.BaseCommand) -> bytes:
        match pb.BaseCommand.Type.Name(asked.type):
            case "CONNECT":
                return encode_command(commands.connected("scripted"))
            case "PING":
                return encode_command(commands.pong())
            case "PARTITIONED_METADATA":
                request_id = asked.partition_metadata.request_id
                return encode_command(commands.partitioned_metadata_response(request_id, 0))
            case "LOOKUP":
                return encode_command(commands.lookup_connect(asked.lookup_topic.request_id, self._url))
            case "PRODUCER":
                return encode_command(commands.producer_success(asked.producer.request_id, "scripted-producer"))
            case "SEND":
                sent = asked.send
                return encode_command(commands.send_receipt(sent.producer_id, sent.sequence_id, 7, len(self.received)))
            case "SUBSCRIBE":
                return encode_command(commands.success(asked.subscribe.request_id))
            case "FLOW":
                deliveries, self._deliveries = self._deliveries, []
                return b"".join(
                    encode_payload_command(commands.message(asked.flow.consumer_id, 7, entry, ack_set=ack_set), payload)
                    for entry, (payload, ack_set) in enumerate(deliveries)
                )
            case "CLOSE_PRODUCER":
                return encode_command(commands.success(asked.close_producer.request_id))
            case "CLOSE_CONSUMER":
                return encode_command(commands.success(asked.close_consumer.request_id))
            case _:
                return b""


def client_of(url: str) -> Any:
    return pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"))


@pytest.mark.parametrize("batching", [False, True], ids=["alone", "in a batch"])
@pytest.mark.parametrize(("ours", "theirs"), CODECS, ids=[pb.CompressionType.Name(ours) for ours, _ in CODECS])
async def test_what_the_client_library_sends_is_read(ours: pb.CompressionType, theirs: Any, batching: bool) -> None:
    def produce(url: str) -> None:
        client = client_of(url)
        producer = client.create_producer(
            "persistent://public/default/x",
            compression_type=theirs,
            batching_enabled=batching,
            batching_max_publish_delay_ms=10_000,
        )
        for place, value in enumerate(VALUES):
            producer.send_async(
                value,
                None,
                properties={"place": str(place)},
                partition_key=f"käy-{place}",
                event_timestamp=1000 + place,
            )
        producer.flush()
        client.close()

    peer = ScriptedPeer([])
    await peer.run(produce)
    payloads = [frame.payload for frame in peer.received if frame.command.type == pb.BaseCommand.Type.SEND]
    messages: list[SingleMessage] = []
    for payload in payloads:
        assert payload is not None
        verify_payload(payload)
        metadata, _ = parse_payload(payload)
        assert metadata.compression == ours
        messages += split_messages(payload)
    assert len(payloads) == (1 if batching else len(VALUES))
    assert [message.batch_index for message in messages] == ([0, 1, 2, 3] if batching else [None] * len(VALUES))
    assert [message.value for message in messages] == VALUES
    assert [message.properties for message in messages] == [{"place": str(place)} for place in range(len(VALUES))]
    assert [message.key for message in messages] == [f"käy-{place}" for place in range(len(VALUES))]
    assert [message.event_time_ms for message in messages] == [1000 + place for place in range(len(VALUES))]
    assert {message.producer_name for message in messages} == {"scripted-producer"}


@pytest.mark.parametrize("codec", [ours for ours, _ in CODECS], ids=pb.CompressionType.Name)
async def test_what_is_built_here_the_client_library_reads(codec: pb.CompressionType) -> None:
    alone = [
        build_message(message_metadata("us", place, 5, key=f"käy-{place}", event_time_ms=6), value, codec)
        for place, value in enumerate(VALUES)
    ]
    singles = [
        (single_message_metadata(place, key="k", properties={"place": str(place)}), value)
        for place, value in enumerate(VALUES)
    ]
    batch = build_batch(message_metadata("us", 0, 5), singles, codec)
    some = ack_set_of_bits(0b1010)
    deliveries: list[tuple[bytes, tuple[int, ...]]] = [
        *((payload, ()) for payload in alone),
        (batch, ()),
        (batch, some),
    ]
    expected = [
        *((value, f"käy-{place}", {}) for place, value in enumerate(VALUES)),
        *((value, "k", {"place": str(place)}) for place, value in enumerate(VALUES)),
        *((VALUES[place], "k", {"place": str(place)}) for place in (1, 3)),
    ]
    got = []

    def consume(url: str) -> None:
        client = client_of(url)
        consumer = client.subscribe("persistent://public/default/x", "s")
        for _ in expected:
            message = consumer.receive(_RECEIVE_TIMEOUT_MS)
            got.append((message.data(), message.partition_key(), message.properties()))
            consumer.acknowledge(message)
        client.close()

    peer = ScriptedPeer(deliveries)
    await peer.run(consume)
    assert got == expected
    acknowledged = [frame.command.ack for frame in peer.received if frame.command.type == pb.BaseCommand.Type.ACK]
    assert {identity.ledger_id for ack in acknowledged for identity in ack.message_id} == {7}


async def test_the_client_library_reads_what_was_sent_to_kafka() -> None:
    """K42: keys, tombstones, headers, times and ids of a converted batch, and of a record alone."""
    some = [
        Record("käy".encode(), b"v", 1_000, (Header(b"h", b"x"), Header(b"h", b"\xff"), Header(b"n", None))),
        Record(None, None, 2_000),
        Record(b"\xff", b"", 3_000),
    ]
    expected = [
        (b"v", "käy", {"h": "x", "kafka:2,base64:h": "/w==", "kafka:null:n": ""}, 1_000),
        (b"", "", {}, 2_000),
        (b"", "/w==", {}, 3_000),
    ]
    deliveries: list[tuple[bytes, tuple[int, ...]]] = [
        (finished(to_pulsar(records.build(batch), message_count=len(batch), base_index=9, publish_time_ms=5)), ())
        for batch in (some, some[:1])
    ]
    got = []
    places = []

    def consume(url: str) -> None:
        client = client_of(url)
        consumer = client.subscribe("persistent://public/default/x", "s")
        for _ in range(4):
            message = consumer.receive(_RECEIVE_TIMEOUT_MS)
            got.append((message.data(), message.partition_key(), message.properties(), message.event_timestamp()))
            assert message.publish_timestamp() == 5
            identity = message.message_id()
            places.append((identity.entry_id(), identity.batch_index()))
        client.close()

    await ScriptedPeer(deliveries).run(consume)
    assert got == [*expected, expected[0]]
    assert places == [(0, 0), (0, 1), (0, 2), (1, -1)]
