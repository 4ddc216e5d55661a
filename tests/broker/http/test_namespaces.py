"""Tenants and namespaces are created, listed and deleted as Pulsar's tools do."""

import json

import pytest

from broker.addresses import Address
from broker.names import TopicName
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Put
from tests.broker.test_administration_anywhere import served
from tests.support.http import request

TENANTS = "/admin/v2/tenants"
NAMESPACES = "/admin/v2/namespaces"
INFO = b'{"adminRoles": [], "allowedClusters": ["standalone"]}'
DEFAULTS: dict[str, object] = {
    "auth_policies": {"namespaceAuth": {}, "destinationAuth": {}},
    "replication_clusters": [],
    "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
    "backlog_quota_map": {},
    "message_ttl_in_seconds": None,
    "deleted": False,
    "subscription_auth_mode": "None",
    "offload_threshold": -1,
    "max_producers_per_topic": 0,
}
"""As Pulsar's client sends policies of which none is set."""


async def get(server: Address, path: str) -> object:
    answer = await request(server, "GET", path)
    assert answer.status == 200, answer
    return answer.json


async def test_the_default_namespace_is_always_there(server: Address) -> None:
    assert await get(server, TENANTS) == ["public"]
    assert await get(server, f"{NAMESPACES}/public") == ["public/default"]
    assert await get(server, f"{TENANTS}/public") == {"adminRoles": [], "allowedClusters": ["standalone"]}
    for path in (f"{TENANTS}/public", f"{NAMESPACES}/public/default"):
        assert (await request(server, "PUT", path)).status == 409
        assert (await request(server, "DELETE", path)).status == 409


async def test_a_tenant_and_a_namespace_are_created_listed_and_deleted(server: Address) -> None:
    assert (await request(server, "PUT", f"{NAMESPACES}/shop/orders")).status == 404
    for expected in (204, 409):
        assert (await request(server, "PUT", f"{TENANTS}/shop", body=INFO)).status == expected
    assert (await request(server, "POST", f"{TENANTS}/shop", body=INFO)).status == 204
    assert (await request(server, "POST", f"{TENANTS}/none", body=INFO)).status == 404
    assert await get(server, f"{NAMESPACES}/shop") == []
    for expected in (204, 409):
        answer = await request(server, "PUT", f"{NAMESPACES}/shop/orders", body=json.dumps(DEFAULTS).encode())
        assert answer.status == expected
    assert await get(server, TENANTS) == ["public", "shop"]
    assert await get(server, f"{NAMESPACES}/shop") == ["shop/orders"]
    refused = await request(server, "DELETE", f"{TENANTS}/shop")
    assert (refused.status, refused.reason) == (
        409,
        "Tenant shop has the namespace orders. Delete its namespaces first.",
    )
    for path in (f"{NAMESPACES}/shop/orders", f"{TENANTS}/shop"):
        assert (await request(server, "DELETE", path)).status == 204
        assert (await request(server, "DELETE", path)).status == 404
        assert (await request(server, "GET", path)).status == 404
    assert await get(server, TENANTS) == ["public"]


async def test_the_retention_of_a_new_namespace_is_kept_and_goes_with_it(server: Address) -> None:
    path = f"{NAMESPACES}/public/short"
    policy = {"retentionTimeInMinutes": 5, "retentionSizeInMB": 7}
    body = json.dumps({"retention_policies": policy}).encode()
    assert (await request(server, "PUT", path, body=body)).status == 204
    assert (await request(server, "GET", path)).json["retention_policies"] == policy
    assert (await request(server, "GET", f"{path}/retention")).json == policy
    assert (await request(server, "DELETE", path)).status == 204
    assert (await request(server, "PUT", path)).status == 204
    shown = (await request(server, "GET", path)).json
    assert (shown["retention_policies"], shown["replication_clusters"]) == (None, ["standalone"])


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        (f"{TENANTS}/t", {"adminRoles": ["root"]}, 501, "adminRoles"),
        (f"{TENANTS}/t", {"allowedClusters": ["far"]}, 412, "no cluster far"),
        (f"{TENANTS}/t", {"quota": 1}, 501, "quota"),
        (f"{TENANTS}/%20", {}, 412, "not a valid name"),
        (f"{NAMESPACES}/public/n", {"message_ttl_in_seconds": 60}, 501, "message_ttl_in_seconds"),
        (f"{NAMESPACES}/public/n", {"backlog_quota_map": {"a": {"limit": 5}}}, 501, "backlog_quota_map"),
        (f"{NAMESPACES}/public/n", {"encryption_required": True}, 501, "encryption_required"),
        (f"{NAMESPACES}/public/n", {"replication_clusters": ["standalone", "far"]}, 412, "no cluster far"),
        (f"{NAMESPACES}/public/n", {"retention_policies": 5}, 412, "retentionTimeInMinutes"),
    ],
)
async def test_what_would_be_set_and_is_not_served_is_refused_by_name(
    server: Address, store: MemoryStore, path: str, body: object, status: int, said: str
) -> None:
    answer = await request(server, "PUT", path, body=json.dumps(body).encode())
    assert answer.status == status
    assert said in answer.reason
    assert await store.scan("/namespaces/", "/namespaces0") == []


async def test_nothing_is_deleted_by_force(server: Address) -> None:
    for path, what in ((f"{TENANTS}/public", "namespaces"), (f"{NAMESPACES}/public/default", "topics")):
        answer = await request(server, "DELETE", f"{path}?force=true")
        assert answer.status == 501
        assert f"does not delete all {what} at once" in answer.reason


async def test_a_topics_tenant_and_namespace_exist_with_it() -> None:
    """Clients create topics in any namespace, and none is deleted under them. Strange keys are passed over."""
    async with served("one") as ((one, address),):
        await one.controller.create_topic(TopicName.parse("topic://a/scalable/x"), 1, {})
        await one.topics.get(TopicName.parse("persistent://a-b:c/regular/x"))
        await one.partitioned_topics.create(TopicName.parse("persistent://a/partitioned/x"), 2)
        await one.metadata.commit([Put("/topics/bad name", b"{}"), Put("/managed-ledgers/other", b"{}")])
        assert await get(address, TENANTS) == ["a", "a-b:c", "public"]
        assert await get(address, f"{NAMESPACES}/a") == ["a/partitioned", "a/scalable"]
        assert await get(address, f"{NAMESPACES}/a-b:c") == ["a-b:c/regular"]
        for namespace in ("a/scalable", "a-b:c/regular", "a/partitioned"):
            assert (await request(address, "GET", f"{NAMESPACES}/{namespace}")).status == 200
            refused = await request(address, "DELETE", f"{NAMESPACES}/{namespace}")
            assert (refused.status, refused.reason) == (
                409,
                f"Namespace {namespace} has topics. Delete them first.",
            )
        await one.controller.delete_topic(TopicName.parse("topic://a/scalable/x"), force=True)
        assert await get(address, f"{NAMESPACES}/a") == ["a/partitioned"]
