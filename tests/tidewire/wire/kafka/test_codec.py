"""The codec of Kafka's messages, compared with `kio`, which Kafka's own definitions generated."""

from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from io import BytesIO
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from tests.support.examples import examples
from tests.tidewire.wire.kafka.messages import APIS, Api, drawn
from tidewire.wire.kafka.api_keys import FLEXIBLE_FROM, ApiKey, is_flexible
from tidewire.wire.kafka.codec import ELEMENTS_MAX, Input, decoder, encoder, unsigned_varint
from tidewire.wire.kafka.errors import MalformedRequest, RequestError, RequestTooLarge
from tidewire.wire.kafka.fields import Kind
from tidewire.wire.kafka.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tidewire.wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidewire.wire.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidewire.wire.kafka.messages.topics import Cursor, DescribeTopicPartitionsRequest

VERSIONS = [(api, version) for api in APIS for version in range(api.lowest, api.highest + 1)]


def name_of(api_version: object) -> str:
    return api_version.key.name if isinstance(api_version, Api) else str(api_version)


def encoded(message: Any, version: int, *, flexible: bool) -> bytes:
    pieces: list[bytes] = []
    encoder(type(message), version, is_flexible=flexible)(pieces, message)
    return b"".join(pieces)


def decoded(message: type[Any], data: bytes, version: int, *, flexible: bool) -> Any:
    given = Input(data)
    value = decoder(message, version, is_flexible=flexible)(given)
    assert given.at == len(data)
    return value


def as_oracle_writes(schema: type[Any], data: bytes) -> bytes:
    value, size = entity_reader(schema)(data, 0)
    assert size == len(data)
    written = BytesIO()
    entity_writer(schema)(written, value)
    return written.getvalue()


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=name_of)
def test_the_oracle_reads_and_writes_the_same_bytes(api: Api, version: int) -> None:
    """Every message of every version is Kafka's, and what it says comes back."""

    @settings(max_examples=examples(12))
    @given(request=drawn(api.request, version), response=drawn(api.response, version))
    def compare(request: Any, response: Any) -> None:
        flexible = is_flexible(api.key, version)
        for message, schema in (
            (request, load_request_schema(api.key, version)),
            (response, load_response_schema(api.key, version)),
        ):
            data = encoded(message, version, flexible=flexible)
            assert as_oracle_writes(schema, data) == data
            again = decoded(type(message), data, version, flexible=flexible)
            assert encoded(again, version, flexible=flexible) == data

    compare()


def test_values_come_back() -> None:
    """Names, numbers and records are what the client sent, absent fields have their defaults."""
    records = b"\0\xff" * 9
    request = ProduceRequest("tx", -1, 30_000, (TopicProduceData("ä", (PartitionProduceData(3, records),)),))
    assert decoded(ProduceRequest, encoded(request, 9, flexible=True), 9, flexible=True) == request
    fetch = FetchRequest(max_wait_ms=5, min_bytes=1, topics=(FetchTopic("t", (FetchPartition(1, fetch_offset=7),)),))
    assert decoded(FetchRequest, encoded(fetch, 4, flexible=False), 4, flexible=False) == fetch


def test_a_tagged_field_is_written_only_if_it_says_something() -> None:
    """An old client need not know it, and a new one finds it."""
    plain = FetchResponse(responses=(FetchableTopicResponse("t", (PartitionData(0),)),))
    told = FetchResponse(
        responses=(FetchableTopicResponse("t", (PartitionData(0, diverging_epoch=EpochEndOffset(2, 9)),)),)
    )
    without, with_tag = encoded(plain, 12, flexible=True), encoded(told, 12, flexible=True)
    # The tag, its size, the number and the offset, and one tagged-field count of the inner structure.
    assert len(with_tag) - len(without) == 1 + 1 + 4 + 8 + 1
    assert decoded(FetchResponse, with_tag, 12, flexible=True) == told


def test_an_aborted_list_is_null_or_has_transactions() -> None:
    """K3: null for READ_UNCOMMITTED is not the same as an empty list."""
    none = PartitionData(0, aborted_transactions=None)
    empty = PartitionData(0, aborted_transactions=())
    one = PartitionData(0, aborted_transactions=(AbortedTransaction(2, 6),))
    bytes_of = [encoded(each, 11, flexible=False) for each in (none, empty, one)]
    assert [decoded(PartitionData, data, 11, flexible=False) for data in bytes_of] == [none, empty, one]


def test_bytes_behind_a_message_are_ignored() -> None:
    """Librdkafka sends three of them behind Metadata."""
    data = encoded(MetadataRequest(topics=None), 12, flexible=True) + b"\0\0\0"
    assert decoder(MetadataRequest, 12, is_flexible=True)(Input(data)).topics is None


def test_an_unknown_tagged_field_is_passed_over() -> None:
    """A later client may send one."""
    data = encoded(MetadataRequest(topics=()), 12, flexible=True)[:-1] + b"\x01\x63\x02ab"
    assert decoded(MetadataRequest, data, 12, flexible=True) == MetadataRequest(topics=())


@pytest.mark.parametrize("count", [5, 0x7FFFFFFF, -2])
def test_an_array_longer_than_its_request_is_refused_before_it_is_read(count: int) -> None:
    """E8: a length alone takes no memory."""
    data = count.to_bytes(4, "big", signed=True) + b"\0\0"
    with pytest.raises(MalformedRequest):
        decoder(MetadataRequest, 0, is_flexible=False)(Input(data))


def test_a_compact_array_longer_than_its_request_is_refused() -> None:
    """E8: this length ended the process of the oracle."""
    body = encoded(FetchRequest(), 12, flexible=True)
    at = 4 + 4 + 4 + 4 + 1 + 4 + 4
    with pytest.raises(MalformedRequest):
        decoder(FetchRequest, 12, is_flexible=True)(Input(body[:at] + b"\xff\xff\xff\xff\x0f" + body[at + 1 :]))


def test_a_request_with_too_many_elements_is_refused() -> None:
    """E7: its elements together are counted, in every array."""
    inner = FetchTopic("", (FetchPartition(),) * 99)
    fits = FetchRequest(topics=(inner,) * (ELEMENTS_MAX // 100))
    assert len(decoded(FetchRequest, encoded(fits, 11, flexible=False), 11, flexible=False).topics) == 100
    above = FetchRequest(topics=(*fits.topics, FetchTopic()))
    with pytest.raises(RequestTooLarge, match="10000 elements"):
        decoder(FetchRequest, 11, is_flexible=False)(Input(encoded(above, 11, flexible=False)))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "within a field|longer"),
        (b"\x00\x00\x00\x01\x00\x02a", "longer"),
        (b"\x00\x00\x00\x01\x00\x02\xff\xff", "UTF-8"),
        (b"\x00\x00\x00\x01\xff\xff", "is null"),
    ],
)
def test_a_broken_field_is_named(data: bytes, reason: str) -> None:
    """E8: a string may be too short, not UTF-8, or null where it must not be."""
    with pytest.raises(MalformedRequest, match=reason):
        decoder(MetadataRequest, 0, is_flexible=False)(Input(data))


def test_an_endless_number_is_refused() -> None:
    """E8: a number of variable length ends after five bytes."""
    with pytest.raises(MalformedRequest, match="more than five bytes"):
        Input(b"\x80" * 9).unsigned_varint()


def test_a_tagged_field_of_another_size_is_refused() -> None:
    """E8: its size must be that of its value."""
    tag = b"\x01\x00\x05\x02xyz\x00"
    with pytest.raises(MalformedRequest, match="tagged field 0"):
        decoder(FetchRequest, 12, is_flexible=True)(Input(encoded(FetchRequest(), 12, flexible=True)[:-1] + tag))


@given(st.integers(0, 2**32 - 1))
def test_numbers_of_variable_length_come_back(number: int) -> None:
    """What one side writes, the other reads."""
    assert Input(unsigned_varint(number)).unsigned_varint() == number


@settings(max_examples=examples(300))
@given(data=st.data())
def test_no_bytes_raise_anything_else(data: st.DataObject) -> None:
    """E8: whatever a client changes in a request, it is read or refused by name."""
    api, version = data.draw(st.sampled_from(VERSIONS))
    flexible = is_flexible(api.key, version)
    good = bytearray(encoded(data.draw(drawn(api.request, version)), version, flexible=flexible))
    for _ in range(data.draw(st.integers(0, 4))):
        if good:
            good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    for damaged in (bytes(good), bytes(good[:cut])):
        try:
            decoder(api.request, version, is_flexible=flexible)(Input(damaged))
        except RequestError:
            continue


def test_every_kind_of_field_is_compared() -> None:
    """The messages above have fields of every kind."""
    kinds: set[Kind] = set()

    def note(message: type[Any]) -> None:
        for field in message.__dataclass_fields__.values():
            spec = field.metadata["kafka"]
            kinds.add(spec.kind)
            if isinstance(spec.element, type):
                note(spec.element)

    for api in APIS:
        note(api.request)
        note(api.response)
    assert kinds == set(Kind)


def test_a_topic_is_named_or_has_an_id() -> None:
    """Version 12 allows a topic without a name."""
    asked = MetadataRequest(topics=(MetadataRequestTopic(bytes(range(16)), None),))
    assert decoded(MetadataRequest, encoded(asked, 12, flexible=True), 12, flexible=True) == asked


def test_a_structure_may_be_null() -> None:
    """The first page of DescribeTopicPartitions has no cursor."""
    first = DescribeTopicPartitionsRequest(topics=())
    second = DescribeTopicPartitionsRequest(topics=(), cursor=Cursor("t", 3))
    for asked in (first, second):
        data = encoded(asked, 0, flexible=True)
        assert decoded(DescribeTopicPartitionsRequest, data, 0, flexible=True) == asked


def test_each_request_has_messages() -> None:
    """The table of keys and the messages above name the same requests, and no version is flexible by mistake."""
    assert [api.key for api in APIS] == list(ApiKey) == list(FLEXIBLE_FROM)
    for api, version in VERSIONS:
        assert load_request_schema(api.key, version).__flexible__ == is_flexible(api.key, version)


RENAMED = {
    "generation_id": "generation_id_or_member_epoch",
    "transactional_id": "v3_and_below_transactional_id",
    "producer_id": "v3_and_below_producer_id",
    "producer_epoch": "v3_and_below_producer_epoch",
    "topics": "v3_and_below_topics",
    "results_by_topic": "results_by_topic_v3_and_below",
    "name": "topic",
    "partitions": "partition_indexes",
}
"""Names of the oracle that we shorten, or that several of its messages have in different forms."""


def inner_class(hint: Any) -> type[Any]:
    """The class of the oracle within an annotation such as `tuple[X, ...] | None`."""
    if is_dataclass(hint) and isinstance(hint, type):
        return hint
    return inner_class(get_args(hint)[0])


def compare_names(ours: type[Any], theirs: type[Any], version: int) -> None:
    specs = {each.name: each.metadata["kafka"] for each in dataclass_fields(ours)}
    names = [name for name, spec in specs.items() if spec.is_in(version) and spec.tag is None]
    hints = get_type_hints(theirs)
    expected = [each.name for each in dataclass_fields(theirs) if "tag" not in each.metadata]
    for name, other in zip(names, expected, strict=True):
        short = name.removesuffix("_ms")
        assert other in {name, short, RENAMED.get(name)}, f"{ours.__name__} {version}: {names} for {expected}"
        element = specs[name].element
        if isinstance(element, type):
            compare_names(element, inner_class(hints[other]), version)


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=name_of)
def test_fields_stand_in_the_order_of_the_oracle(api: Api, version: int) -> None:
    """Two numbers that change places keep their bytes, so the test above does not see it."""
    compare_names(api.request, load_request_schema(api.key, version), version)
    compare_names(api.response, load_response_schema(api.key, version), version)
