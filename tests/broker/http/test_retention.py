"""Retention policies over HTTP, as `pulsar-admin` requests them."""

import json

import pytest
import trio

from broker.addresses import Address
from broker.http.application import build_application
from broker.http.listener import serve_http
from broker.names import TopicName
from broker.retention import Retention
from broker.retention_policies import RetentionPolicies, namespace_key, topic_key
from storage.metadata.memory import MemoryStore
from tests.support.http import FakeCluster, FakeMonitor, FakeTopics, request

POLICY = {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}
PLACES = {
    "/admin/v2/namespaces/public/default/retention": namespace_key("public", "default"),
    "/admin/v2/persistent/public/default/x/retention": topic_key(TopicName.parse("persistent://public/default/x")),
    "/admin/v2/scalable/public/default/x/retention": topic_key(TopicName.parse("topic://public/default/x")),
}


@pytest.mark.parametrize("path", PLACES)
async def test_a_policy_is_set_shown_and_removed(server: Address, store: MemoryStore, path: str) -> None:
    """E18: Pulsar's administrators do it this way."""
    assert (await request(server, "GET", path)).status == 204
    assert (await request(server, "POST", path, body=json.dumps(POLICY).encode())).status == 204
    assert (await request(server, "GET", path)).json == POLICY
    assert await RetentionPolicies(store).stored(PLACES[path]) == Retention(60, -1)
    assert (await request(server, "DELETE", path)).status == 204
    assert (await request(server, "GET", path)).status == 204


@pytest.mark.parametrize("kind", ["persistent", "scalable"])
async def test_the_policy_that_applies_is_the_nearest(store: MemoryStore, nursery: trio.Nursery, kind: str) -> None:
    """E18: as Pulsar's administrators ask for it, of the topic, its namespace, or the broker."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    application = build_application(
        FakeTopics(), FakeMonitor(), store, FakeCluster(), retention_default=Retention(7, 8)
    )
    server = await nursery.start(serve_http, application, listener)
    path = f"/admin/v2/{kind}/public/default/x/retention"

    async def applied() -> list[int]:
        return list((await request(server, "GET", f"{path}?applied=true")).json.values())

    assert await applied() == [7, 8]
    for place, minutes in (("/admin/v2/namespaces/public/default/retention", 30), (path, 5)):
        policy = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": -1}
        assert (await request(server, "POST", place, body=json.dumps(policy).encode())).status == 204
        assert await applied() == [minutes, -1]
    assert (await request(server, "DELETE", path)).status == 204
    assert await applied() == [30, -1]
    assert (await request(server, "GET", f"{path}?applied=false")).status == 204
    assert (await request(server, "GET", f"{path}?applied=maybe")).status == 412


@pytest.mark.parametrize("body", [b"", b"{}", b'{"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}'])
async def test_a_policy_that_makes_no_sense_is_refused(server: Address, store: MemoryStore, body: bytes) -> None:
    """E18: nothing is changed."""
    path = next(iter(PLACES))
    assert (await request(server, "POST", path, body=body)).status == 412
    assert await RetentionPolicies(store).stored(PLACES[path]) is None


def test_partitions_and_segments_have_the_policy_of_their_topic() -> None:
    """E18: each of them applies the policy to itself."""
    names = ["persistent://a/b/x-partition-3", "topic://a/b/x", "segment://a/b/x/0000-ffff-0", "persistent://a/b/x"]
    assert {topic_key(TopicName.parse(name)) for name in names} == {"/retention/a/b/x"}
