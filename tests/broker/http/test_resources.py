"""Methods that a path does not support."""

import pytest

from broker.addresses import Address
from tests.support.http import FakeTopics, request

TOPIC = "/admin/v2/scalable/public/default/x"
SEGMENT = "/admin/v2/segments/public/default/x/8000-ffff-1"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/admin/v2/scalable/public/default", {"GET", "HEAD"}),
        ("POST", TOPIC, {"DELETE", "GET", "HEAD", "PUT"}),
        ("PATCH", TOPIC, {"DELETE", "GET", "HEAD", "PUT"}),
        ("POST", f"{TOPIC}/stats", {"GET", "HEAD"}),
        ("GET", f"{TOPIC}/split/0", {"POST"}),
        ("HEAD", f"{TOPIC}/split/0", {"POST"}),
        ("PUT", f"{TOPIC}/merge/0/1", {"POST"}),
        ("PUT", f"{TOPIC}/migrate", {"POST"}),
        ("PATCH", f"{TOPIC}/subscriptions/s", {"DELETE", "GET", "HEAD", "PUT"}),
        ("POST", f"{TOPIC}/subscriptions/s", {"DELETE", "GET", "HEAD", "PUT"}),
        ("GET", f"{TOPIC}/subscriptions/s/seek?timestamp=1", {"POST"}),
        ("DELETE", f"{TOPIC}/subscriptions/s/skip-all", {"POST"}),
        ("PUT", f"{TOPIC}/autoScalePolicy", {"DELETE", "GET", "HEAD", "POST"}),
        ("POST", f"{SEGMENT}/subscription/s/backlog", {"GET", "HEAD"}),
        ("GET", f"{SEGMENT}/subscription/s/seek?timestamp=1", {"POST"}),
        ("PUT", f"{SEGMENT}/subscription/s/skip-all", {"POST"}),
        ("POST", "/metrics", {"GET", "HEAD"}),
        ("DELETE", "/admin/v2/brokers/health", {"GET", "HEAD"}),
    ],
)
async def test_a_method_that_a_path_does_not_have_is_refused_and_those_it_has_are_named(
    server: Address, topics: FakeTopics, method: str, path: str, allowed: set[str]
) -> None:
    answer = await request(server, method, path)
    assert answer.status == 405
    assert set(answer.headers["allow"].split(", ")) == allowed
    if method != "HEAD":
        assert answer.reason.startswith(f"This broker does not serve {method} {path.partition('?')[0]}. ")
    assert topics.layouts == {}


async def test_the_head_of_what_can_be_got_can_be_had(server: Address) -> None:
    assert (await request(server, "PUT", TOPIC)).status == 204
    answer = await request(server, "HEAD", TOPIC)
    assert (answer.status, answer.body) == (200, b"")
