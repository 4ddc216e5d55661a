"""The cluster over HTTP: one answer, and a stream of changes that ends when it should."""

from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest
import trio
from trio.testing import MockClock

from broker.addresses import Address
from broker.cluster.ownership import BrokerDrains, claim_key
from broker.handover import NoSuchBroker, NotOwned
from broker.http import cluster as module
from broker.peers import FORWARDED, PeerRefused, PeerSilent
from storage.metadata.memory import MemoryStore
from tests.broker.cluster.test_overview import claim, join
from tests.support.http import FakeCluster, LineReader, request

SEGMENT = "segment://public/default/a/0000-ffff-0"


async def test_one_answer_has_brokers_claims_and_transactions(server: Address, store: MemoryStore) -> None:
    await join(store, "b-1")
    await claim(store, SEGMENT, "b-1")
    answer = await request(server, "GET", module.PATH)
    assert answer.json == {
        "brokers": [
            {
                "broker": "b-1",
                "state": "running",
                "serviceUrl": "pulsar://b-1:6650",
                "httpUrl": "http://b-1:8080",
                "kafka": None,
                "claims": {"segments": 1, "topics": 0, "controllers": 0, "coordinators": 0, "groups": 0},
            }
        ],
        "openTransactions": 0,
        "metadataController": None,
    }
    assert (await request(server, "POST", module.PATH)).status == 405


async def test_changes_are_pushed_and_joined(autojump_clock: MockClock) -> None:
    """Many changes at once make one line. A change that shows nothing new makes none, and a sign of life follows."""
    store = MemoryStore()
    async with module.views(store) as next_lines:

        async def brokers() -> list[dict[str, Any]]:
            (shown,) = await next_lines()
            return list(orjson.loads(shown)["brokers"])

        assert await brokers() == []
        for number in range(20):
            await join(store, f"b-{number}")
        began = trio.current_time()
        assert len(await brokers()) == 20
        assert trio.current_time() - began == module.UPDATE_SECONDS_MIN
        await claim(store, "weather://tomorrow", "b-1")
        began = trio.current_time()
        assert len(await brokers()) == 20
        assert trio.current_time() - began == module.UPDATE_SECONDS_MIN + module.ALIVE_SECONDS
        await claim(store, SEGMENT, "b-1")
        assert [broker["broker"] for broker in await brokers() if broker["claims"]["segments"]] == ["b-1"]
        await store.delete(claim_key(SEGMENT))
        assert not any(broker["claims"]["segments"] for broker in await brokers())


async def test_streams_are_pushed_and_bounded(
    server: Address, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E8: one more is refused in a sentence, and a single answer is still given."""
    monkeypatch.setattr(module, "UPDATE_SECONDS_MIN", 0)
    async with AsyncExitStack() as stack:
        for _ in range(module.WATCHES_MAX):
            watcher = LineReader(await stack.enter_async_context(await trio.open_tcp_stream(*server)))
            await watcher.ask(server, module.PATH + "?watch=true")
            assert (await watcher.line())["brokers"] == []
        await join(store, "b-1")
        assert [broker["broker"] for broker in (await watcher.line())["brokers"]] == ["b-1"]
        refused = await request(server, "GET", module.PATH + "?watch=true")
        assert refused.status == 503
        assert refused.reason.endswith(".")
        assert (await request(server, "GET", module.PATH)).json["openTransactions"] == 0


async def test_changes_are_asked_of_the_cluster(server: Address, ownership: FakeCluster) -> None:
    """C21: by name, and as Pulsar's tools ask. One that another broker has forwarded says so."""
    topic, forwarded = "persistent://public/default/a", {FORWARDED: "b-1"}
    for method, path, content, headers in (
        ("POST", "/cluster/move", {"topic": topic, "to": "b-2"}, None),
        ("POST", "/cluster/move", {"topic": topic, "to": "b-2"}, forwarded),
        ("POST", "/cluster/unload", {"topic": SEGMENT}, forwarded),
        ("POST", "/cluster/brokers/b-2/drain", None, None),
        ("DELETE", "/cluster/brokers/b-2/drain", None, forwarded),
        ("PUT", "/persistent/public/default/a/unload", None, None),
        ("PUT", "/scalable/public/default/a/unload", None, None),
    ):
        body = b"" if content is None else orjson.dumps(content)
        answer = await request(server, method, f"/admin/v2{path}", body=body, headers=headers)
        assert answer.status == 204, answer.body
    assert ownership.asked == [
        ("move", topic, "b-2"),
        ("move", topic, "b-2"),
        ("unload", SEGMENT),
        ("drain", "b-2"),
        ("undrain", "b-2"),
        ("unload", topic),
        ("unload", "topic://public/default/a"),
    ]
    assert ownership.forwarded == [False, True, True, False, True, False, False]


async def test_a_broker_says_how_much_it_has_handed_over(server: Address, ownership: FakeCluster) -> None:
    """C7: `tidewire cluster balance` asks each broker."""
    answer = await request(server, "POST", f"{module.PATH}/brokers/b-2/balance", headers={FORWARDED: "b-1"})
    assert (answer.status, answer.json) == (200, {"moved": 3})
    assert (ownership.asked, ownership.forwarded) == ([("balance", "b-2")], [True])


async def test_a_coordinator_is_refused_by_name(server: Address, ownership: FakeCluster) -> None:
    """C21: nobody can move one, so the administrator is told what moves them."""
    for path, content in (
        ("move", {"topic": "coordinator://3", "to": "b-2"}),
        ("unload", {"topic": "coordinator://3"}),
    ):
        answer = await request(server, "POST", f"{module.PATH}/{path}", body=orjson.dumps(content))
        assert (answer.status, answer.reason.partition(":")[0]) == (501, "coordinator")
    assert ownership.asked == []


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", b"{}", b'{"topic": "persistent://public/default/a"}', b'{"topic": 1, "to": "b"}'),
        *(b'{"topic": "persistent://public/default/a", "to": ""}', b'{"topic": "a", "to": "b", "more": "c"}'),
    ],
)
async def test_a_wrong_body_is_refused(server: Address, ownership: FakeCluster, content: bytes) -> None:
    answer = await request(server, "POST", f"{module.PATH}/move", body=content)
    assert answer.status == 400
    assert answer.reason.endswith(".")
    assert ownership.asked == []


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (NotOwned("Not mine."), 409),
        (NoSuchBroker("Broker x does not run."), 412),
        (PeerSilent("Broker x did not answer.", was_asked=True), 503),
        (PeerRefused("The other one's words.", 409), 409),
        (BrokerDrains("It drains."), 503),
    ],
)
async def test_refusals_have_their_reason(
    server: Address, ownership: FakeCluster, failure: Exception, status: int
) -> None:
    ownership.failure = failure
    answer = await request(server, "POST", f"{module.PATH}/brokers/x/drain")
    assert (answer.status, answer.reason) == (status, str(failure))
