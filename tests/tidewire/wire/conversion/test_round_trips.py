"""There and back: what a reader of the first protocol gets if the entry was stored by the second one's client.

The exceptions are a table in `tidewire/wire/conversion/__init__.py`. Each has an example here or beside the module that
makes it.
"""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tidewire.wire.conversion.drawn import (
    BASE,
    NOW_MS,
    Message,
    batch_of,
    codecs,
    kafka_of,
    payload_of,
    pulsar_of,
    records_of,
    some_messages,
    some_records,
)
from tidewire.wire.conversion.headers import ORDERING_KEY
from tidewire.wire.kafka.records import Header, Record
from tidewire.wire.pulsar.building import build_batch, build_message
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import SingleMessage, split_messages


def by_name(headers: tuple[Header, ...]) -> dict[bytes, list[bytes | None]]:
    """The values of each name, in order. The order of names is open where a client keeps properties in a map."""
    found: dict[bytes, list[bytes | None]] = {}
    for header in headers:
        found.setdefault(header.key, []).append(header.value)
    return found


def without_headers(some: list[Record]) -> list[Record]:
    return [record._replace(headers=()) for record in some]


@given(some_records, codecs)
def test_records_come_back_through_pulsar(some: list[Record], codec: int) -> None:
    """K42: keys, values, timestamps; headers in their order, but for the ordering key, which stands first."""
    found = records_of(kafka_of(pulsar_of(batch_of(some, codec)), len(some)))
    assert without_headers(found) == without_headers(some)
    for back, record in zip(found, some, strict=True):
        if any(header.key == ORDERING_KEY for header in record.headers):
            assert by_name(back.headers) == by_name(record.headers)
        else:
            assert back.headers == record.headers


def sent_on(message: SingleMessage, chance: random.Random) -> bytes:
    """The payload of an application that sends on what it got, as Pulsar's clients let it."""
    properties = list(message.properties.items())
    chance.shuffle(properties)
    made = pb.MessageMetadata(
        producer_name="copy",
        sequence_id=0,
        publish_time=NOW_MS,
        properties=[pb.KeyValue(key=name, value=text) for name, text in properties],
        event_time=message.event_time_ms,
        partition_key=message.key,
        ordering_key=message.ordering_key,
        null_value=message.null_value,
        partition_key_b64_encoded=message.key_is_base64,
    )
    return build_message(made, message.value)


@given(some_records, st.randoms(use_true_random=False))
def test_records_come_back_from_a_pulsar_application(some: list[Record], chance: random.Random) -> None:
    """K42: one that reads them and sends them on, with its properties in a map."""
    found = [
        records_of(kafka_of(sent_on(message, chance), 1))[0] for message in split_messages(pulsar_of(batch_of(some)))
    ]
    assert without_headers(found) == without_headers(some)
    assert [by_name(back.headers) for back in found] == [by_name(record.headers) for record in some]


@given(some_messages, codecs)
def test_messages_come_back_through_kafka(messages: list[Message], codec: int) -> None:
    """K42: keys, values, properties, event times, ordering keys."""
    published_ms = 5
    payload = payload_of(messages, codec, publish_time_ms=published_ms)
    found = split_messages(pulsar_of(kafka_of(payload, len(messages)).batch))
    for place, (before, after) in enumerate(zip(split_messages(payload), found, strict=True)):
        assert after == before._replace(
            # An event time is all that Kafka's timestamp can be.
            event_time_ms=before.event_time_ms or published_ms,
            # These are of the broker, as of any producer.
            publish_time_ms=NOW_MS,
            producer_name="kafka",
            sequence_id=BASE + place,
        )


@given(some_records, some_messages)
def test_the_second_way_changes_nothing(some: list[Record], messages: list[Message]) -> None:
    """K42: the exceptions happen once. So copies of copies do not drift."""
    once = kafka_of(pulsar_of(batch_of(some)), len(some)).batch
    assert kafka_of(pulsar_of(once), len(some)).batch == once
    there = pulsar_of(kafka_of(payload_of(messages), len(messages)).batch)
    assert pulsar_of(kafka_of(there, len(messages)).batch) == there


@pytest.mark.parametrize("moment", [0, -1, -(2**40)])
def test_a_time_before_1970_comes_back_as_the_brokers(moment: int) -> None:
    """K42: an exception."""
    some = [Record(None, b"v", moment), Record(None, b"v", 7)]
    found = records_of(kafka_of(pulsar_of(batch_of(some)), 2))
    assert [record.timestamp_ms for record in found] == [NOW_MS, 7]


def test_a_key_of_text_in_base64_comes_back_as_text() -> None:
    """K42: an exception. The bytes are the same, so the key goes to the same consumer."""
    message = Message(b"text", True, b"v", None, {}, None)
    (found,) = split_messages(pulsar_of(kafka_of(payload_of([message]), 1).batch))
    assert (found.key, found.key_is_base64) == ("text", False)


def test_a_property_with_the_form_of_an_escape_comes_back_as_its_header() -> None:
    """K42: an exception. A Pulsar application may write headers that are no text."""
    properties = {"kafka:base64:a": "YQ==", "pulsar:ordering_key": "k", "kafka:base64:b": "/w=="}
    message = Message(None, False, b"v", None, properties, None)
    (found,) = split_messages(pulsar_of(kafka_of(payload_of([message]), 1).batch))
    assert found.properties == {"a": "a", "kafka:base64:b": "/w=="}
    assert found.ordering_key == b"k"


def test_a_batch_of_one_comes_back_alone() -> None:
    """K42: an exception."""
    payload = build_batch(
        pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=5), [(pb.SingleMessageMetadata(), b"v")]
    )
    (found,) = split_messages(pulsar_of(kafka_of(payload, 1).batch))
    assert (found.batch_index, found.value) == (None, b"v")
