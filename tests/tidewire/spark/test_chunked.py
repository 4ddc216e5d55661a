"""Messages in chunks, in a topic in memory; and from Pulsar's own client, at a broker in a separate process."""

import uuid
from contextlib import closing

import pulsar
import pytest

from tests.support.processes import RunningBroker
from tests.tidewire.spark.readable import LEDGER, TOPIC, Readable, batch
from tidewire.protocol.positions import EARLIEST, EntryPosition
from tidewire.spark.chunked import whole_messages
from tidewire.spark.errors import UnreadableMessage
from tidewire.spark.options import ReadOptions
from tidewire.spark.partitions import SegmentRange
from tidewire.spark.reader import TidewireReader
from tidewire.spark.receiving import entries
from tidewire.wire.pulsar.building import build_chunks, build_payload, message_metadata
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import parse_payload

NAME = "segment://public/default/x/0000-ffff-0"


def chunked(producer: str, value: bytes, sequence_id: int = 0) -> list[bytes]:
    """Make the payloads of a message in chunks of two bytes."""
    described = message_metadata(producer, sequence_id, 1)
    return build_chunks(described, value, pb.CompressionType.NONE, chunk_size_max=2)


def read(payloads: list[bytes], after: EntryPosition = EARLIEST, end: int | None = None) -> list[tuple[int, bytes]]:
    """Return the entries of a range: each one's number and body."""
    world = Readable()
    world.add(NAME, payloads)
    last = len(payloads) - 1 if end is None else end
    partition = SegmentRange(TOPIC, None, NAME, start=after, end=EntryPosition(LEDGER, last))
    found = whole_messages(partition, entries(partition, world.brokers), lambda part: entries(part, world.brokers))
    return [(one.position.entry, bytes(one.body)) for one in found]


def test_interleaved_chunks_are_joined_at_their_last_one() -> None:
    a, b = chunked("a", b"aabbc"), chunked("b", b"ddee")
    found = read([a[0], b[0], a[1], batch(b"v"), b[1], a[2]])
    assert [(number, body) for number, body in found if number != 3] == [(4, b"ddee"), (5, b"aabbc")]
    assert len(found) == 3


@pytest.mark.parametrize("cut", range(6))
def test_a_message_belongs_to_the_range_of_its_last_chunk(cut: int) -> None:
    """Wherever a range ends and the next one begins; other entries lie between the chunks."""
    first, *rest = chunked("a", b"aabbccdd")
    payloads = [batch(b"v")] * 3 + [first] + [batch(b"v")] * 20 + rest
    split = 2 + cut if cut < 3 else len(payloads) - 6 + cut
    before = read(payloads, end=split)
    behind = read(payloads, EntryPosition(LEDGER, split))
    whole = [one for one in (*before, *behind) if one[1] == b"aabbccdd"]
    assert whole == [(len(payloads) - 1, b"aabbccdd")]
    assert len(before) + len(behind) == 24


def test_a_last_chunk_that_came_again_is_not_a_second_message() -> None:
    chunks = chunked("a", b"aabb")
    payloads = [*chunks, batch(b"v"), chunks[1]]
    assert [number for number, _ in read(payloads)] == [1, 2]
    assert [number for number, _ in read(payloads, EntryPosition(LEDGER, 1))] == [2]


def test_incomplete_messages_are_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    chunks = chunked("a", b"aabbcc")
    assert [number for number, _ in read([chunks[0], batch(b"v"), chunks[2]])] == [1]
    assert f"{NAME} has the last chunk of a message at 5:2, and not all of the others" in caplog.text


def test_chunks_that_contradict_each_other_name_the_place() -> None:
    """The second chunk is longer than the message claims."""
    first, last = chunked("a", b"aabb")
    metadata, _ = parse_payload(last)
    with pytest.raises(UnreadableMessage, match=f"^{NAME} 5:1: the chunks hold more"):
        read([first, build_payload(metadata, b"bbb")])


def test_pulsars_client_sends_chunks_and_spark_reads_them_whole(broker: RunningBroker) -> None:
    topic = f"persistent://public/default/{uuid.uuid4().hex}"
    values = [bytes([65 + number]) * (3_000_000 * number + 10) for number in range(4)]
    with closing(pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))) as client:
        for compression in (pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4):
            producer = client.create_producer(
                topic, chunking_enabled=True, batching_enabled=False, compression_type=compression
            )
            for value in values:
                producer.send(value, partition_key="k", properties={"size": str(len(value))})
            producer.close()
    reader = TidewireReader(ReadOptions.parse({"service_url": broker.service_url, "topic": topic}))
    rows = [row for part in reader.partitions() for made in reader.read(part) for row in made.to_pylist()]
    assert [row["value"] for row in rows] == values * 2
    assert [dict(row["properties"])["size"] for row in rows] == [str(len(value)) for value in values * 2]
    assert {row["key"] for row in rows} == {"k"}
    # In ranges that begin between two chunks, too.
    last = rows[3]["position"]
    options = {"starting_position": f'{{"{topic}": {{"": "{last["ledger"]}:{last["entry"] - 1}"}}}}'}
    reader = TidewireReader(ReadOptions.parse({"service_url": broker.service_url, "topic": topic, **options}))
    cut = [row["value"] for part in reader.partitions() for made in reader.read(part) for row in made.to_pylist()]
    assert cut == [values[3], *values]
