"""Requests in a stream of bytes: pieces, bounds, headers, and the frame of a response."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_reader

from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.errors import MalformedRequest, RequestError, RequestTooLarge
from tidewire.wire.kafka.frames import LARGE_BYTES, Request, RequestDecoder, read_header, response_pieces

SIZE_MAX = 1_000


def request(
    api_key: int, version: int, body: bytes = b"body", *, client: bytes | None = b"me", tags: bytes = b""
) -> bytes:
    length = -1 if client is None else len(client)
    data = struct.pack(">hhih", api_key, version, 77, length) + (client or b"") + tags + body
    return struct.pack(">i", len(data)) + data


def rest_of(found: Request) -> bytes:
    return bytes(found.body.data[found.body.at :])


def test_a_request_is_divided_into_header_and_body() -> None:
    """What the client sent, with the number that the response repeats."""
    decoder = RequestDecoder(SIZE_MAX)
    decoder.feed(request(ApiKey.FETCH, 11) + request(ApiKey.FETCH, 12, tags=b"\0", client=None))
    first, second = decoder.next_request(), decoder.next_request()
    assert first is not None
    assert first[:4] == (1, 11, 77, "me")
    assert rest_of(first) == b"body"
    assert second is not None
    assert second[:4] == (1, 12, 77, None)
    assert rest_of(second) == b"body"
    assert decoder.next_request() is None


def test_tagged_fields_of_a_header_are_passed_over() -> None:
    """A later client may have some."""
    found = read_header(request(ApiKey.METADATA, 9, tags=b"\x02\x05\x01a\x07\x02bc")[4:])
    assert rest_of(found) == b"body"


@pytest.mark.parametrize(("header", "version", "tags"), [(HeaderV1, 8, b""), (HeaderV2, 9, b"\0")])
def test_the_oracle_reads_the_same_header(header: type, version: int, tags: bytes) -> None:
    """The first flexible version is the one whose header has tagged fields."""
    data = request(ApiKey.METADATA, version, tags=tags)[4:]
    assert read_header(data).body.at == entity_reader(header)(data, 0)[1]


@given(st.lists(st.binary(max_size=60), max_size=5), st.lists(st.integers(1, 50), min_size=1, max_size=9))
def test_requests_do_not_depend_on_how_they_arrive(bodies: list[bytes], cuts: list[int]) -> None:
    """The same requests, in order, whatever pieces the network makes."""
    stream = b"".join(request(ApiKey.PRODUCE, 7, body) for body in bodies)
    decoder, found, number = RequestDecoder(SIZE_MAX), [], 0
    while stream:
        size = cuts[number % len(cuts)]
        decoder.feed(stream[:size])
        stream, number = stream[size:], number + 1
        while (one := decoder.next_request()) is not None:
            found.append(rest_of(one))
    assert found == bodies
    assert decoder.expected_bytes == 0


@pytest.mark.parametrize("piece", [3, 4, 1_000, LARGE_BYTES, LARGE_BYTES + 4, 150_000, 10_000_000])
def test_large_requests_do_not_depend_on_how_they_arrive(piece: int) -> None:
    """Also if a piece ends a large request and begins the next one."""
    sizes = (0, LARGE_BYTES - 20, LARGE_BYTES, 140_000, 1, 70_000)
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    stream = b"".join(request(ApiKey.PRODUCE, 7, body) for body in bodies)
    decoder, found = RequestDecoder(len(stream)), []
    for start in range(0, len(stream), piece):
        decoder.feed(bytearray(stream[start : start + piece]))
        while (one := decoder.next_request()) is not None:
            found.append(rest_of(one))
    assert found == bodies
    assert decoder.expected_bytes == 0


def test_a_large_unfinished_request_says_how_long_it_will_be() -> None:
    """E9: also when the bytes behind its size are still to come, and until it is dropped."""
    decoder = RequestDecoder(10 * LARGE_BYTES)
    data = request(ApiKey.PRODUCE, 7, bytes(2 * LARGE_BYTES))
    for piece in (data[:4], data[4:LARGE_BYTES]):
        decoder.feed(piece)
        assert decoder.next_request() is None
        assert decoder.expected_bytes == len(data)
    decoder.clear()
    assert decoder.expected_bytes == 0
    decoder.feed(data)
    assert decoder.next_request() is not None


def test_an_unfinished_request_says_how_long_it_will_be() -> None:
    """E9: the session reserves memory before the bytes arrive."""
    decoder = RequestDecoder(SIZE_MAX)
    assert decoder.expected_bytes == 0
    decoder.feed(struct.pack(">i", 500))
    assert decoder.next_request() is None
    assert decoder.expected_bytes == 504
    decoder.clear()
    assert decoder.expected_bytes == 0


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (struct.pack(">i", SIZE_MAX + 1), RequestTooLarge),
        (struct.pack(">i", -1), MalformedRequest),
        (struct.pack(">i", 9), MalformedRequest),
        (request(ApiKey.FETCH, 11, client=b"\xff"), MalformedRequest),
        (struct.pack(">ihhih", 10, 1, 11, 7, 5), MalformedRequest),
        (request(ApiKey.FETCH, 12, b"", tags=b""), MalformedRequest),
        (request(ApiKey.FETCH, 12, b"", tags=b"\x01\x01\x7f"), MalformedRequest),
    ],
)
def test_a_broken_request_is_refused(data: bytes, error: type[Exception]) -> None:
    """E8: its size is checked before it arrives, then its header."""
    decoder = RequestDecoder(SIZE_MAX)
    decoder.feed(data)
    with pytest.raises(error):
        decoder.next_request()


def test_a_produce_request_may_be_larger_than_others() -> None:
    """E8: its kind is the first thing behind its size, so nothing else of a refused request is read."""
    large = request(ApiKey.PRODUCE, 7, bytes(2 * SIZE_MAX))
    decoder = RequestDecoder(SIZE_MAX, 3 * SIZE_MAX)
    for byte in large[:-1]:
        decoder.feed(bytes((byte,)))
        assert decoder.next_request() is None
    decoder.feed(large[-1:])
    found = decoder.next_request()
    assert found is not None
    assert (found.api_key, found.size) == (ApiKey.PRODUCE, len(large) - 4)
    for announced in (request(ApiKey.FETCH, 7, bytes(2 * SIZE_MAX))[:6], struct.pack(">i", 3 * SIZE_MAX + 1)):
        decoder = RequestDecoder(SIZE_MAX, 3 * SIZE_MAX)
        decoder.feed(announced)
        with pytest.raises(RequestTooLarge, match=f"at most {SIZE_MAX if len(announced) == 6 else 3 * SIZE_MAX} are"):
            decoder.next_request()


def test_the_largest_request_is_read() -> None:
    """E8: the bound itself is allowed."""
    decoder = RequestDecoder(SIZE_MAX)
    decoder.feed(request(ApiKey.PRODUCE, 7, bytes(SIZE_MAX - 12)))
    found = decoder.next_request()
    assert found is not None
    assert found.size == SIZE_MAX


@given(st.binary(max_size=40))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    """E8: a stranger's bytes are a request, or they are refused."""
    decoder = RequestDecoder(SIZE_MAX)
    decoder.feed(data)
    try:
        while decoder.next_request() is not None:
            pass
    except RequestError:
        return


@pytest.mark.parametrize(
    ("api_key", "version", "header"),
    [
        (ApiKey.FETCH, 11, b""),
        (ApiKey.FETCH, 12, b"\0"),
        (ApiKey.API_VERSIONS, 4, b""),
        (999, 4, b""),
    ],
)
def test_a_response_repeats_the_number_of_its_request(api_key: int, version: int, header: bytes) -> None:
    """A flexible one has tagged fields in its header, but that of ApiVersions never."""
    asked = read_header(request(api_key, version, tags=header if api_key == ApiKey.FETCH else b"\0")[4:])
    data = b"".join(response_pieces(asked, [b"bo", b"dy"]))
    assert data == struct.pack(">ii", len(data) - 4, 77) + header + b"body"
