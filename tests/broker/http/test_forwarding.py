"""Requests about topics that another broker owns."""

import orjson
import pytest

from broker.addresses import Address
from broker.administration_contract import PeerAnswer
from broker.cluster.ownership import BrokerDrains, OwnedElsewhere
from broker.peers import FORWARDED, PeerSilent
from tests.support.http import FakeCluster, FakeTopics, request

TOPIC = "/admin/v2/scalable/public/default/gr%C3%BC%C3%9Fe"
ELSEWHERE = OwnedElsewhere("b-2 controls it.", owner="b-2")
POLICY = orjson.dumps({"enabled": False})


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("POST", f"{TOPIC}/split/0", b""),
        ("GET", f"{TOPIC}/stats", b""),
        ("DELETE", f"{TOPIC}?force=true", b""),
        ("POST", f"{TOPIC}/autoScalePolicy", POLICY),
        ("POST", f"{TOPIC}/subscriptions/a%2Fb/seek?timestamp=7", b""),
    ],
)
async def test_the_owner_does_it_and_the_client_gets_its_answer(
    server: Address, topics: FakeTopics, ownership: FakeCluster, method: str, target: str, body: bytes
) -> None:
    """C14, C21: any broker answers; the request arrives at the owner as the client wrote it."""
    topics.failure = ELSEWHERE
    assert (await request(server, method, target, body=body)).status == 204
    ownership.peer = PeerAnswer(412, b'{"reason":"Segment 0 is SEALED."}')
    refused = await request(server, method, target, body=body)
    assert (refused.status, refused.reason) == (412, "Segment 0 is SEALED.")
    assert ownership.asked == 2 * [("pass on", "b-2", method, target, body.decode())]


async def test_a_request_is_passed_on_once(server: Address, topics: FakeTopics, ownership: FakeCluster) -> None:
    """C21: ownership moves while the request is on its way. Nothing goes in a circle."""
    topics.failure = ELSEWHERE
    answer = await request(server, "POST", f"{TOPIC}/split/0", headers={FORWARDED: "b-3"})
    assert (answer.status, answer.reason) == (503, "b-2 controls it.")
    assert ownership.asked == []


@pytest.mark.parametrize("failure", [OwnedElsewhere("Somebody has it."), BrokerDrains("b-1 is draining.")])
async def test_nobody_is_asked_who_is_not_known(
    server: Address, topics: FakeTopics, ownership: FakeCluster, failure: Exception
) -> None:
    topics.failure = failure
    answer = await request(server, "POST", f"{TOPIC}/split/0")
    assert (answer.status, answer.reason) == (503, str(failure))
    assert ownership.asked == []


async def test_the_owners_silence_is_told(server: Address, topics: FakeTopics, ownership: FakeCluster) -> None:
    """E7: the owner may have done it, so the client hears who did not answer."""
    topics.failure, ownership.failure = ELSEWHERE, PeerSilent("Broker b-2 did not answer.", was_asked=True)
    answer = await request(server, "POST", f"{TOPIC}/split/0")
    assert (answer.status, answer.reason) == (503, str(ownership.failure))
    assert "Broker b-2 did not answer. It may have done what it was asked." in answer.reason
