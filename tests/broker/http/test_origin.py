"""Which web pages may administer the broker: only its own."""

import pytest
import trio

from broker.addresses import Address
from broker.http.application import build_application
from broker.http.listener import serve_http
from storage.metadata.memory import MemoryStore
from tests.support.http import FakeCluster, FakeMonitor, FakeTopics, request

PATH = "/admin/v2/scalable/public/default/x"


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "http://127.0.0.1", "http://127.0.0.1:1", "null", "", "file://", "http://[", "evil"],
)
@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST"])
async def test_another_sites_page_changes_nothing(
    server: Address, topics: FakeTopics, method: str, origin: str
) -> None:
    answer = await request(server, method, PATH, headers={"origin": origin})
    assert answer.status == 403
    assert "may not administer" in answer.reason
    assert topics.layouts == {}


async def test_a_request_without_a_host_has_no_page_of_its_own(server: Address, topics: FakeTopics) -> None:
    stream = await trio.open_tcp_stream(server.host, server.port)
    async with stream:
        await stream.send_all(f"PUT {PATH} HTTP/1.0\r\norigin: null\r\n\r\n".encode())
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 403")
    assert topics.layouts == {}


async def test_the_brokers_own_page_may(server: Address, topics: FakeTopics) -> None:
    headers = {"origin": f"http://{server}", "host": str(server)}
    assert (await request(server, "PUT", PATH, headers=headers)).status == 204
    assert len(topics.layouts) == 1


async def test_programs_name_no_origin_and_may(server: Address) -> None:
    assert (await request(server, "PUT", PATH)).status == 204


async def test_reading_is_left_to_the_browsers_own_rules(server: Address) -> None:
    answer = await request(server, "GET", "/metrics", headers={"origin": "http://evil.example"})
    assert answer.status == 200
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "0.0.0.0",
        ),
        *(
            "",
            "localhost@evil.example",
            "user@localhost",
            "[::2]:8080",
            "[localhost]",
            "a b",
            "localhost:x",
            "2130706433",
        ),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("PUT", PATH), ("GET", "/metrics"), ("GET", PATH)])
async def test_a_name_that_is_not_the_brokers_is_refused(
    server: Address, topics: FakeTopics, method: str, path: str, host: str
) -> None:
    """E12: a page whose own name resolves to this address would have the same origin (DNS rebinding)."""
    origin = {} if method == "GET" else {"origin": f"http://{host}"}
    answer = await request(server, method, path, headers={"host": host, **origin})
    assert answer.status == 403
    assert "--http-hosts" in answer.reason
    assert topics.layouts == {}


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost.:1", "127.0.0.1", "127.1.2.3:80", "[::1]:8080", "[::ffff:127.0.0.1]"]
)
async def test_this_machines_own_names_are_known(server: Address, host: str) -> None:
    assert (await request(server, "PUT", PATH, headers={"host": host})).status == 204


@pytest.mark.parametrize(
    ("host", "known"),
    [("Broker-1.example:80", True), ("192.0.2.7", True), ("broker-2.example", False), ("evil-broker-1.example", False)],
)
async def test_names_may_be_added(
    topics: FakeTopics,
    monitor: FakeMonitor,
    store: MemoryStore,
    listener: trio.SocketListener,
    nursery: trio.Nursery,
    host: str,
    known: bool,
) -> None:
    """E12: `--http-hosts`."""
    application = build_application(topics, monitor, store, FakeCluster(), hosts=["broker-1.example.", "192.0.2.7"])
    server = await nursery.start(serve_http, application, listener)
    assert (await request(server, "PUT", PATH, headers={"host": host})).status == (204 if known else 403)


async def test_without_a_host_it_is_no_browser(server: Address) -> None:
    """E12: some health checks use HTTP/1.0."""
    stream = await trio.open_tcp_stream(server.host, server.port)
    async with stream:
        await stream.send_all(b"GET /admin/v2/brokers/health HTTP/1.0\r\n\r\n")
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
