"""What Kafka's clients write is what they read, in each codec, with each client on either side."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final, get_args

import pytest

from tests.interop.kafka.conftest import Station
from tests.support.kafka_clients.contract import Client, Codec, Got, Header, Place, ProducerOptions, Refused
from tests.support.kafka_clients.every import NAMES, PURE, another_than, opened
from tests.support.kafka_clients.reading import read, read_all, values

pytestmark = pytest.mark.interop

CODECS: Final = get_args(Codec)
MIB: Final = 1024 * 1024
BATCH_BYTES_MAX: Final = {"tidewire": 5 * MIB, "kafka": MIB + 12}
"""What each broker accepts as one batch, with its header."""
CLIENT_BYTES_MAX: Final = 8 * MIB
"""More than the broker accepts, so that the broker is who refuses."""
TOO_LARGE: Final = 10
"""Kafka's MESSAGE_TOO_LARGE."""

HEADERS: Final[tuple[Header, ...]] = (
    ("trace", b"first"),
    ("trace", b"second"),
    ("binary", bytes(range(256))),
    ("null", None),
    ("empty", b""),
    ("", b"a header without a name"),
)


@pytest.mark.parametrize("codec", CODECS)
def test_every_client_reads_what_a_client_wrote_with_a_codec(station: Station, topic: str, codec: Codec) -> None:
    """K42: keys, values and offsets come back as they were sent, in their order."""
    producer = station.producer(ProducerOptions(codec=codec))
    sent = [producer.send(topic, b"value %d " % n * 20, key=b"key %d" % n) for n in range(200)]
    producer.flush()
    assert [one.result().offset for one in sent] == list(range(200))

    def received(name: str) -> list[Got]:
        with opened(name) as reading:
            return read_all(Station(reading, station.address).consumer(), Place(topic))

    # Side by side, since some clients wait before they are closed.
    with ThreadPoolExecutor(len(NAMES)) as threads:
        for got in threads.map(received, NAMES):
            assert [(one.offset, one.key, one.value) for one in got] == [
                (n, b"key %d" % n, b"value %d " % n * 20) for n in range(200)
            ]


def test_null_and_empty_keys_and_values_and_all_headers_survive(station: Station, topic: str) -> None:
    """K42: a tombstone is not an empty value, and headers may repeat, be binary, be null, and have no name."""
    producer = station.producer()
    producer.send(topic, None, key=b"deleted")
    producer.send(topic, b"", key=b"emptied")
    producer.send(topic, b"keyless")
    producer.send(topic, b"empty key", key=b"")
    # kafka-python refuses to send null values of headers.
    headers = tuple(header for header in HEADERS if header[1] is not None or station.client.name != PURE)
    producer.send(topic, b"headers", headers=headers)
    producer.flush()
    got = read_all(station.consumer(), Place(topic))
    assert [(one.key, one.value, one.headers) for one in got] == [
        (b"deleted", None, ()),
        (b"emptied", b"", ()),
        (None, b"keyless", ()),
        (b"", b"empty key", ()),
        (None, b"headers", headers),
    ]


def test_a_batch_of_almost_5_mib_is_stored_and_a_larger_one_is_refused(
    station: Station, topic: str, pytestconfig: pytest.Config
) -> None:
    """K40: the reader gets a batch that is larger than it asked for. What is refused harms nothing else."""
    limit = BATCH_BYTES_MAX[pytestconfig.getoption("kafka_broker")]
    producer = station.producer(ProducerOptions(message_bytes_max=CLIENT_BYTES_MAX))
    large = os.urandom(limit - 200)
    first = producer.send(topic, large)
    producer.flush()
    assert first.result().offset == 0
    refused = producer.send(topic, os.urandom(limit + 1))
    producer.flush()
    with pytest.raises(Refused) as refusal:
        refused.result()
    assert refusal.value.code == TOO_LARGE
    after = producer.send(topic, b"after")
    producer.flush()
    assert after.result().offset == 1
    assert values(read_all(station.consumer(), Place(topic))) == [large, b"after"]


def test_offsets_are_found_by_records_timestamps(station: Station, topic: str) -> None:
    """K39: timestamps are kept. The search answers the first record that is not older, though they do not rise."""
    producer = station.producer()
    times = [1_000, 5_000, 3_000, 9_000]
    for time in times:
        producer.send(topic, b"%d" % time, timestamp_ms=time)
    producer.flush()
    consumer, place = station.consumer(), Place(topic)
    assert [one.timestamp_ms for one in read_all(consumer, place)] == times
    assert [consumer.offset_at(place, time) for time in (0, 1_000, 1_001, 5_001, 9_000)] == [0, 0, 1, 3, 3]
    assert consumer.offset_at(place, 9_001) in {None, 4}
    assert (consumer.begin(place), consumer.end(place)) == (0, 4)


def test_a_consumer_seeks_back_and_forth(station: Station, topic: str) -> None:
    """K15: it reads on from any offset, in the middle of a batch too."""
    producer = station.producer()
    for n in range(100):
        producer.send(topic, b"%d" % n)
    producer.flush()
    consumer, place = station.consumer(), Place(topic)
    assert len(read_all(consumer, place)) == 100
    for offset in (90, 37, 99):
        consumer.seek(place, offset)
        assert [one.offset for one in read(consumer, 100 - offset)] == list(range(offset, 100))


def test_two_clients_write_to_one_partition_and_offsets_have_no_gaps(
    client: Client, station: Station, topic: str
) -> None:
    """K25: batches of several connections get offsets of their own."""
    with opened(another_than(client.name)) as other:
        producers = [station.producer(), Station(other, station.address).producer()]
        sent = [producer.send(topic, b"%d" % n) for n in range(100) for producer in producers]
        for producer in producers:
            producer.flush()
        assert sorted(one.result().offset for one in sent) == list(range(200))
