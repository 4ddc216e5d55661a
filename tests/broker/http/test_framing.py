"""Request heads whose end is ambiguous."""

import pytest
import trio

from broker.addresses import Address
from broker.http.framing import AmbiguousRequest, check_head
from tests.support.http import FakeTopics, read_all

PUT = b"PUT /admin/v2/scalable/public/default/x HTTP/1.1\r\nhost: localhost\r\n"

AMBIGUOUS = [
    (PUT + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", "both"),
    (PUT + b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n", "both"),
    (PUT + b"content-length: 0\r\ncontent-length: 0\r\n\r\n", "several"),
    (PUT + b"content-length: 0, 0\r\n\r\n", "not a number"),
    (PUT + b"content-length: +0\r\n\r\n", "not a number"),
    (PUT + b"content-length:\r\n\r\n", "not a number"),
    (PUT + b"x: a\r\n b\r\n\r\n", "continued"),
    (PUT + b"x: a\r\n\tcontent-length: 5\r\n\r\n", "continued"),
    (PUT.replace(b"\r\n", b"\n") + b"\n", "CR LF"),
    (PUT + b"x: a\ncontent-length: 0\r\n\r\n", "CR LF"),
    (PUT + b"x: y\r\n\n", "CR LF"),
    (PUT + b"x: a\x01b\r\n\r\n", "control"),
    (PUT + b"x: \x1b[2J\r\n\r\n", "control"),
    (PUT + b"x: a\rb\r\n\r\n", "control"),
    (PUT + b"x: a\x7f\r\n\r\n", "control"),
    (PUT.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.0"),
]
PLAIN = [
    PUT + b"\r\n",
    PUT + b"content-length: 2\r\n\r\n{}\n\n",
    PUT + b"Content-Length:  2 \r\n\r\n{}",
    PUT + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    PUT + b"x: a\tb \xff\r\n\r\n",
    PUT + b"x: content-length: 1\r\ncontent-length: 0\r\n\r\n",
]


@pytest.mark.parametrize(("head", "words"), AMBIGUOUS)
def test_an_ambiguous_head_is_told_from_a_plain_one(head: bytes, words: str) -> None:
    with pytest.raises(AmbiguousRequest, match=words):
        check_head(head)


@pytest.mark.parametrize("head", PLAIN)
def test_a_plain_head_passes(head: bytes) -> None:
    check_head(head)
    for end in range(len(head)):
        check_head(head[:end])


@pytest.mark.parametrize(("head", "words"), AMBIGUOUS)
async def test_it_is_refused_and_nothing_behind_it_is_read(
    server: Address, topics: FakeTopics, head: bytes, words: str
) -> None:
    """E12: the request is answered with 400 and the connection closed; the bytes behind it are no request."""
    stream = await trio.open_tcp_stream(server.host, server.port)
    async with stream:
        await stream.send_all(head + PUT + b"content-length: 0\r\n\r\n")
        said = await read_all(stream)
    assert said.startswith(b"HTTP/1.1 400")
    assert said.count(b"HTTP/1.1") == 1
    assert words.encode() in said
    assert topics.layouts == {}


async def test_one_behind_a_plain_request_is_refused_too(server: Address, topics: FakeTopics) -> None:
    """E12: this holds in a pipeline, also behind the first request's body."""
    stream = await trio.open_tcp_stream(server.host, server.port)
    async with stream:
        await stream.send_all(PUT + b"content-length: 2\r\n\r\n{}" + AMBIGUOUS[0][0])
        said = await read_all(stream)
    assert said.startswith(b"HTTP/1.1 204")
    assert said.count(b"HTTP/1.1 400") == 1
    assert len(topics.layouts) == 1
