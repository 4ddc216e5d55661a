"""Administration of a topic's subscriptions, of single segments, and of a topic's automatic scaling."""

import pytest

from broker.addresses import Address
from broker.layouts.layout import create
from broker.layouts.parts import SubscriptionKind
from broker.names import TopicName
from tests.support.http import FakeTopics, request
from tests.support.layouts import NOW_MS

TOPIC = "/admin/v2/scalable/public/default/x"
SEGMENT = "/admin/v2/segments/public/default/x/8000-ffff-1"
NAME = TopicName.parse("topic://public/default/x")


@pytest.fixture
def topic(topics: FakeTopics) -> FakeTopics:
    """Topic x with two segments, and subscription s."""
    topics.layouts[NAME] = create(2, NOW_MS, creation_id="c")
    return topics


@pytest.fixture
async def subscribed(server: Address, topic: FakeTopics) -> FakeTopics:
    assert (await request(server, "PUT", f"{TOPIC}/subscriptions/s")).status == 204
    return topic


def kinds(topics: FakeTopics) -> dict[str, SubscriptionKind]:
    return {name: subscription.kind for name, subscription in topics.layouts[NAME].subscriptions.items()}


@pytest.mark.parametrize(
    ("query", "kind"),
    [("", SubscriptionKind.STREAM), ("?type=STREAM", SubscriptionKind.STREAM), ("?type=QUEUE", SubscriptionKind.QUEUE)],
)
async def test_a_subscription_is_created_of_its_type(
    server: Address, topic: FakeTopics, query: str, kind: SubscriptionKind
) -> None:
    for _ in range(2):
        answer = await request(server, "PUT", f"{TOPIC}/subscriptions/gr%C3%BC%C3%9Fe%20%25{query}")
        assert (answer.status, answer.body) == (204, b"")
        assert kinds(topic) == {"grüße %": kind}


@pytest.mark.parametrize("text", ["", "stream", "CHECKPOINT", "%FF"])
async def test_a_type_that_is_none_is_refused(server: Address, topic: FakeTopics, text: str) -> None:
    answer = await request(server, "PUT", f"{TOPIC}/subscriptions/s?type={text}")
    assert answer.status == 412
    assert "STREAM or QUEUE" in answer.reason
    assert kinds(topic) == {}


async def test_a_subscription_of_the_other_type_is_in_the_way(server: Address, subscribed: FakeTopics) -> None:
    answer = await request(server, "PUT", f"{TOPIC}/subscriptions/s?type=QUEUE")
    assert answer.status == 409
    assert "STREAM" in answer.reason
    assert kinds(subscribed) == {"s": SubscriptionKind.STREAM}


async def test_a_subscription_is_deleted_once(server: Address, subscribed: FakeTopics) -> None:
    assert (await request(server, "DELETE", f"{TOPIC}/subscriptions/s")).status == 204
    assert kinds(subscribed) == {}
    answer = await request(server, "DELETE", f"{TOPIC}/subscriptions/s")
    assert (answer.status, answer.reason) == (404, "There is no subscription s.")


async def test_a_subscription_is_moved(server: Address, subscribed: FakeTopics) -> None:
    segment = "segment://public/default/x/8000-ffff-1"
    for base, name in [(f"{TOPIC}/subscriptions", str(NAME)), (f"{SEGMENT}/subscription", segment)]:
        # Pulsar's brokers say so among themselves.
        for path in ["seek?timestamp=0&authoritative=true", "seek?timestamp=1795212052776", "skip-all"]:
            assert (await request(server, "POST", f"{base}/s/{path}")).status == 204
        assert subscribed.moved == [(name, "s", 0), (name, "s", 1795212052776), (name, "s", None)]
        subscribed.moved.clear()


@pytest.mark.parametrize("base", [f"{TOPIC}/subscriptions", f"{SEGMENT}/subscription"])
@pytest.mark.parametrize(
    "query", ["", "?timestamp=", "?timestamp=-1", "?timestamp=now", "?timestamp=1.5", f"?timestamp={2**63}", "?time=1"]
)
async def test_a_seek_to_no_time_is_refused(server: Address, subscribed: FakeTopics, base: str, query: str) -> None:
    """Pulsar reads a missing time as the earliest one, so a typing error would redeliver everything."""
    answer = await request(server, "POST", f"{base}/s/seek{query}")
    assert answer.status == 412
    assert "timestamp" in answer.reason
    assert subscribed.moved == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", f"{TOPIC}/subscriptions/other"),
        ("POST", f"{TOPIC}/subscriptions/other/seek?timestamp=1"),
        ("POST", f"{TOPIC}/subscriptions/other/skip-all"),
        ("POST", f"{SEGMENT}/subscription/other/skip-all"),
        ("GET", f"{SEGMENT}/subscription/other/backlog"),
        ("GET", "/admin/v2/segments/public/default/x/8000-fffe-1/subscription/s/backlog"),
        ("PUT", "/admin/v2/scalable/public/default/y/subscriptions/s"),
        ("DELETE", "/admin/v2/scalable/public/default/y/subscriptions/s"),
        ("POST", "/admin/v2/scalable/public/default/y/subscriptions/s/skip-all"),
        ("GET", "/admin/v2/segments/public/default/y/8000-ffff-1/subscription/s/backlog"),
        ("GET", "/admin/v2/scalable/public/default/y/autoScalePolicy"),
        ("POST", "/admin/v2/scalable/public/default/y/autoScalePolicy"),
        ("DELETE", "/admin/v2/scalable/public/default/y/autoScalePolicy"),
    ],
)
async def test_what_does_not_exist_is_not_found(
    server: Address, subscribed: FakeTopics, method: str, path: str
) -> None:
    answer = await request(server, method, path, body=b"{}")
    assert answer.status == 404
    assert answer.reason


@pytest.mark.parametrize("name", ["%00", "%20", "a%2F%0Ab", "%FF", "x" * 1025, "%0A", "%2E"])
async def test_a_subscription_name_that_is_none_is_refused(server: Address, topic: FakeTopics, name: str) -> None:
    answer = await request(server, "PUT", f"{TOPIC}/subscriptions/{name}")
    assert answer.status == 412
    assert answer.reason
    assert kinds(topic) == {}


@pytest.mark.parametrize(
    ("encoded", "name"),
    [("job%2F1", "job/1"), ("job%2f1%2Fseek", "job/1/seek"), ("a%252Fb", "a%2Fb"), ("..%2F", "../")],
)
async def test_a_subscription_may_have_a_slash_in_its_name(
    server: Address, topic: FakeTopics, encoded: str, name: str
) -> None:
    """E12: the name is percent-encoded in the path. Clients create such names over the Pulsar protocol."""
    path = f"{TOPIC}/subscriptions/{encoded}"
    assert (await request(server, "PUT", path)).status == 204
    assert set(kinds(topic)) == {name}
    assert (await request(server, "POST", f"{path}/seek?timestamp=5")).status == 204
    assert topic.moved == [(str(next(iter(topic.layouts))), name, 5)]
    assert (await request(server, "GET", f"{SEGMENT}/subscription/{encoded}/backlog")).json == 17
    assert (await request(server, "DELETE", path)).status == 204
    assert kinds(topic) == {}


async def test_a_segments_backlog_is_a_number(server: Address, subscribed: FakeTopics) -> None:
    answer = await request(server, "GET", f"{SEGMENT}/subscription/s/backlog?authoritative=false")
    assert (answer.status, answer.json) == (200, 17)


@pytest.mark.parametrize("descriptor", ["8000-ffff", "8000-ffff-01", "ffff-8000-1", "8000-FFFF-1", "x", "1"])
async def test_a_segment_that_is_none_is_refused(server: Address, subscribed: FakeTopics, descriptor: str) -> None:
    answer = await request(server, "GET", f"/admin/v2/segments/public/default/x/{descriptor}/subscription/s/backlog")
    assert answer.status == 412
    assert "is not a valid name: " in answer.reason


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", ""),
        ("DELETE", "?force=true"),
        ("POST", "/terminate"),
        ("PUT", "/subscription/t"),
        ("DELETE", "/subscription/s"),
    ],
)
async def test_segments_are_not_made_and_ended_from_outside(
    server: Address, subscribed: FakeTopics, method: str, path: str
) -> None:
    before = dict(subscribed.layouts)
    answer = await request(server, method, SEGMENT + path)
    assert answer.status == 501
    assert answer.reason.startswith("segment://public/default/x/8000-ffff-1 is created, sealed and deleted by")
    assert subscribed.layouts == before


async def test_a_scaling_policy_is_set_shown_replaced_and_removed(server: Address, topic: FakeTopics) -> None:
    path = f"{TOPIC}/autoScalePolicy"
    assert (await request(server, "GET", path)).status == 204
    policy = b'{"enabled": true, "maxSegments": 8, "splitMsgRateInThreshold": 5000.5, "minSegments": null}'
    assert (await request(server, "POST", path, body=policy)).status == 204
    shown = {"enabled": True, "maxSegments": 8, "splitMsgRateInThreshold": 5000.5}
    assert (await request(server, "GET", path)).json == shown
    assert (await request(server, "GET", TOPIC)).json["autoScalePolicy"] == shown
    assert (await request(server, "POST", path, body=b'{"maxSegments": 4}')).status == 204
    assert (await request(server, "GET", path)).json == {"maxSegments": 4}
    assert (await request(server, "DELETE", path)).status == 204
    assert (await request(server, "GET", path)).status == 204
    assert "autoScalePolicy" not in (await request(server, "GET", TOPIC)).json


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"null", 400),
        (b"[]", 400),
        (b"{", 400),
        (b'{"maxSegments": 0}', 412),
        (b'{"maxSegments": "8"}', 412),
        (b'{"maxSegments": 1.5}', 412),
        (b'{"enabled": 1}', 412),
        (b'{"splitMsgRateInThreshold": 10, "mergeMsgRateInThreshold": 10}', 412),
        (b'{"unknown": 1}', 412),
    ],
)
async def test_a_policy_that_cannot_be_is_refused(server: Address, topic: FakeTopics, body: bytes, status: int) -> None:
    answer = await request(server, "POST", f"{TOPIC}/autoScalePolicy", body=body)
    assert answer.status == status
    assert answer.reason
    assert topic.layouts[NAME].auto_scale is None
