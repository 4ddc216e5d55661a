"""Requests to another broker, over a real listener: its answer, its refusal and its silence."""

from contextlib import suppress
from functools import partial

import pytest
import trio

from broker.addresses import Address
from broker.cluster.members import Members
from broker.cluster.placement import Member
from broker.handover import NotOwned
from broker.http.application import build_application
from broker.http.cluster import PATH
from broker.http.listener import serve_http
from broker.peers import PeerRefused, Peers, PeerSilent
from storage.metadata.memory import MemoryStore
from tests.support.http import FakeCluster, FakeMonitor, FakeTopics

BODY = {"topic": "persistent://public/default/a", "to": "b-2"}


def peers(http_url: str | None) -> Peers:
    """Know one broker."""
    return Peers(Members(MemoryStore(), Member("b-1", "pulsar://b-1:6650", http_url)), me="b-0")


async def serve(nursery: trio.Nursery, cluster: FakeCluster) -> Peers:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    application = build_application(FakeTopics(), FakeMonitor(), MemoryStore(), cluster)
    address: Address = await nursery.start(serve_http, application, listener)
    return peers(f"http://{address}")


async def test_a_peer_does_what_it_is_asked_and_asks_no_other(nursery: trio.Nursery) -> None:
    cluster = FakeCluster()
    await (await serve(nursery, cluster)).request("b-1", "POST", PATH + "/move", BODY)
    assert cluster.asked == [("move", *BODY.values())]
    assert cluster.forwarded == [True]


async def test_a_refusal_comes_back_in_the_peers_words(nursery: trio.Nursery) -> None:
    asked = await serve(nursery, FakeCluster(failure=NotOwned("It is not mine.")))
    with pytest.raises(PeerRefused, match="not mine") as refused:
        await asked.request("b-1", "POST", PATH + "/move", BODY)
    assert refused.value.status_code == 409
    with pytest.raises(PeerRefused, match="does not serve"):
        await asked.request("b-1", "POST", "/nowhere", BODY)


async def answer(stream: trio.SocketStream, said: bytes) -> None:
    """Answer anything with this, and close."""
    async with stream:
        await stream.receive_some()
        with suppress(trio.BrokenResourceError):
            await stream.send_all(said)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 204 No",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>",
    ],
)
async def test_a_broken_answer_is_silence(nursery: trio.Nursery, said: bytes) -> None:
    """E7: whatever arrives instead of an answer, the administrator is told in a sentence."""
    serving = partial(trio.serve_tcp, partial(answer, said=said), 0, host="127.0.0.1")
    listeners = await nursery.start(serving)
    port = listeners[0].socket.getsockname()[1]
    with pytest.raises(PeerSilent, match=r"did not answer: .+ It may have done .+ try again") as silent:
        await peers(f"http://127.0.0.1:{port}").request("b-1", "POST", PATH + "/move", BODY)
    assert not silent.value.definite
    nursery.cancel_scope.cancel()


async def test_an_answer_that_is_too_long_is_told(nursery: trio.Nursery) -> None:
    """E8, C21: the other broker is not taken for silent, and the administrator learns where to ask."""
    said = b"HTTP/1.1 200 OK\r\ncontent-length: 2000000\r\n\r\n" + 2_000_000 * b"x"
    listeners = await nursery.start(partial(trio.serve_tcp, partial(answer, said=said), 0, host="127.0.0.1"))
    url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    with pytest.raises(PeerRefused, match=f"more than 1,048,576 bytes, .+ at {url}") as refused:
        await peers(url).request("b-1", "GET", PATH)
    assert refused.value.status_code == 502
    nursery.cancel_scope.cancel()


async def test_a_peer_that_is_not_there_is_silent() -> None:
    for known, broker in ((peers("http://127.0.0.1:1"), "b-1"), (peers(None), "b-1"), (peers(None), "b-2")):
        with pytest.raises(
            PeerSilent, match=rf"(?i)broker {broker} .+ was not asked, so nothing has changed"
        ) as silent:
            await known.request(broker, "POST", PATH + "/move", BODY)
        assert silent.value.definite
    with pytest.raises(PeerSilent, match=r"^Broker b-2 does not run\. These brokers run: b-1\. "):
        await peers(None).request("b-2", "POST", PATH + "/move", BODY)
