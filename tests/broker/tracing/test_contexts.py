"""What counts as a trace context, in entries of both formats."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.kafka.entry_codec import KafkaEntryCodec
from broker.pulsar import entry_codec
from broker.pulsar.entry_codec import _BATCH_TAG, INFLATED_BYTES_MAX, PulsarEntryCodec
from broker.tracing.contexts import CONTEXTS_MAX, TRACESTATE_MAX, TraceContext, parsed
from tidewire.wire.kafka.record_batches import Compression
from tidewire.wire.kafka.records import Header, Record, build
from tidewire.wire.pulsar.building import build_batch, build_message, message_metadata, single_message_metadata
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

PULSAR, KAFKA = PulsarEntryCodec(), KafkaEntryCodec()


def traceparent(span: int, flags: str = "01") -> str:
    return f"00-{7:032x}-{span:016x}-{flags}"


def single(span: int | None, value: bytes = b"v", **more: str) -> bytes:
    properties = dict(more) if span is None else {"a": "b", "traceparent": traceparent(span), **more}
    return build_message(message_metadata("p", 1, 1, properties=properties), value)


def batch(*spans: int | None, codec: pb.CompressionType = pb.CompressionType.NONE) -> bytes:
    messages = [
        (single_message_metadata(n, properties={} if span is None else {"traceparent": traceparent(span)}), b"value")
        for n, span in enumerate(spans)
    ]
    return build_batch(message_metadata("p", 1, 1), messages, codec)


def record(*headers: tuple[bytes, bytes]) -> Record:
    return Record(b"k", b"v", 1, tuple(Header(*header) for header in headers))


def test_a_context_is_read_as_w3c_writes_it() -> None:
    assert parsed(traceparent(5), "v=1") == TraceContext(7, 5, "v=1")
    assert parsed(traceparent(5).encode()) == TraceContext(7, 5)
    assert parsed("01" + traceparent(5)[2:] + "-later fields") == TraceContext(7, 5)
    assert parsed(traceparent(5, "03")) == TraceContext(7, 5)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "text",
        "ff" + traceparent(5)[2:],
        traceparent(5) + "-more",
        traceparent(5).upper().replace("7", "A"),
        traceparent(0),
        traceparent(5).replace("7", "0"),
        traceparent(5)[:-1],
        traceparent(5, "00"),
    ],
)
def test_what_breaks_the_rules_and_what_is_not_sampled_is_none(wrong: str) -> None:
    assert parsed(wrong) is None


@given(st.text() | st.binary())
def test_no_text_ends_the_reading(text: str | bytes) -> None:
    assert parsed(text) is None or len(text) >= 55


def test_a_message_has_its_context_in_its_metadata() -> None:
    assert PULSAR.trace_contexts_of(single(5), 1) == [TraceContext(7, 5)]
    assert PULSAR.trace_contexts_of(single(5, tracestate="vendor=1"), 1) == [TraceContext(7, 5, "vendor=1")]
    assert not PULSAR.trace_contexts_of(single(None, traceparen="x"), 1)


def test_a_state_of_any_length_costs_little() -> None:
    """E7, E16: a span would keep it, and OpenTelemetry would take a second to read a megabyte of it."""
    for length, kept in ((TRACESTATE_MAX, "v" * TRACESTATE_MAX), (TRACESTATE_MAX + 1, ""), (1_000_000, "")):
        assert PULSAR.trace_contexts_of(single(5, tracestate="v" * length), 1) == [TraceContext(7, 5, kept)]


def test_a_context_that_is_repeated_very_often_is_read_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """E7: each one is parsed."""
    read: list[object] = []

    def parsed_once(value: str, state: str) -> TraceContext | None:
        read.append(value)
        return parsed(value, state)

    monkeypatch.setattr(entry_codec, "parsed", parsed_once)
    metadata = message_metadata("p", 1, 1)
    for _ in range(10 * CONTEXTS_MAX):
        metadata.properties.add(key="traceparent", value=traceparent(5))
    assert len(PULSAR.trace_contexts_of(build_message(metadata, b"v"), 1)) == len(read) == CONTEXTS_MAX


def test_the_value_of_a_message_is_not_looked_at() -> None:
    """A message may carry another one as its value, and that one is no part of this trace."""
    assert not PULSAR.trace_contexts_of(single(None, value=single(5)), 1)


def test_a_batch_has_those_of_its_messages() -> None:
    assert PULSAR.trace_contexts_of(batch(5, None, 6), 3) == (TraceContext(7, 5), TraceContext(7, 6))
    assert PULSAR.trace_contexts_of(batch(5), 1) == (TraceContext(7, 5),)
    assert not PULSAR.trace_contexts_of(batch(None, None), 2)


def test_a_batch_with_very_many_gives_the_first_ones() -> None:
    found = PULSAR.trace_contexts_of(batch(*range(1, 2 * CONTEXTS_MAX)), 2 * CONTEXTS_MAX)
    assert [context.span_id for context in found] == list(range(1, CONTEXTS_MAX + 1))


CODECS = [pb.CompressionType.LZ4, pb.CompressionType.ZLIB, pb.CompressionType.ZSTD, pb.CompressionType.SNAPPY]


@pytest.mark.parametrize("codec", CODECS)
def test_a_compressed_batch_is_opened(codec: pb.CompressionType) -> None:
    compressed = batch(5, None, 6, codec=codec)
    assert PULSAR.trace_contexts_of(compressed, 3) == (TraceContext(7, 5), TraceContext(7, 6))
    assert not PULSAR.trace_contexts_of(compressed[:-9], 3)


def test_a_large_compressed_batch_is_left_alone() -> None:
    """E7: the question may not pause."""
    message = single_message_metadata(1, properties={"traceparent": traceparent(5)})
    for size, expected in ((INFLATED_BYTES_MAX - 200, 1), (INFLATED_BYTES_MAX, 0)):
        payload = build_batch(message_metadata("p", 1, 1), [(message, bytes(size))], pb.CompressionType.ZSTD)
        assert len(PULSAR.trace_contexts_of(payload, 1)) == expected
        records = [record((b"traceparent", traceparent(5).encode())), Record(None, bytes(size), 1)]
        assert len(KAFKA.trace_contexts_of(build(records, Compression.ZSTD), 2)) == expected


def test_a_number_that_looks_like_the_tag_of_a_batch_makes_none() -> None:
    alone = build_message(message_metadata("p", _BATCH_TAG, 1), single(5))
    assert alone.find(_BATCH_TAG, 0, 20) >= 0
    assert not PULSAR.trace_contexts_of(alone, 1)


@given(st.binary(max_size=200), st.integers(1, 3))
def test_no_bytes_end_the_search(payload: bytes, count: int) -> None:
    assert not PULSAR.trace_contexts_of(payload, count)
    assert not KAFKA.trace_contexts_of(payload, count)


@given(st.integers(0, 300))
def test_no_cut_ends_the_search(size: int) -> None:
    PULSAR.trace_contexts_of(single(5)[:size], 1)
    PULSAR.trace_contexts_of(batch(5, 6)[:size], 2)


def test_records_have_theirs_in_headers() -> None:
    records = [
        record((b"a", b"b"), (b"traceparent", traceparent(5).encode()), (b"tracestate", b"x=1")),
        record(),
        record((b"traceparent", traceparent(6).encode())),
        record((b"traceparent", b"short")),
    ]
    for codec in Compression:
        assert KAFKA.trace_contexts_of(build(records, codec), 4) == (TraceContext(7, 5), TraceContext(7, 6))
