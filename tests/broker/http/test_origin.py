"""Which web pages may administer the broker: its own."""

import pytest
import trio

from broker.addresses import Address
from tests.support.http import FakeTopics, request

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
