"""Topics are administered at any broker of a cluster, over HTTP. Their controllers and segments are on others."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.addresses import Address
from broker.cluster.members import DRAINING
from broker.errors import SubscriptionInUse
from broker.http.application import build_application
from broker.http.listener import serve_http
from broker.layouts.parts import StartPosition, SubscriptionKind
from broker.names import TopicName
from storage.metadata.memory import MemoryStore
from tests.broker.test_handover import brokers
from tests.support.http import FakeMonitor, request
from tests.support.outlet import recording_consumer
from tests.support.rooms import TOPIC, Rooms, publish

PATH = f"/admin/v2/scalable/{TOPIC.tenant}/{TOPIC.namespace}/{TOPIC.local}"


@asynccontextmanager
async def served(*names: str) -> AsyncIterator[list[tuple[Rooms, Address]]]:
    """Run brokers that serve HTTP, to clients and to each other."""
    store = MemoryStore()
    async with brokers(store, *names) as made, trio.open_nursery() as nursery:
        addresses: list[Address] = []
        for broker in made:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            application = build_application(broker.administration, FakeMonitor(), store, broker.cluster_administration)
            addresses.append(await nursery.start(serve_http, application, listener))
            await broker.register(f"http://{addresses[-1]}")
        await wait_all_tasks_blocked()
        yield list(zip(made, addresses, strict=True))
        nursery.cancel_scope.cancel()


async def test_any_broker_lets_the_controller_change_the_layout() -> None:
    """C14, C21: a topic is split, merged and deleted wherever the administrator asks."""
    async with served("one", "two") as ((one, _), (_two, elsewhere)):
        await one.controller.create_topic(TOPIC, 1, {})
        await one.control()
        assert (await request(elsewhere, "POST", f"{PATH}/split/0")).status == 204
        assert [segment.id for segment in (await one.layouts.get(TOPIC)).active()] == [1, 2]
        refused = await request(elsewhere, "POST", f"{PATH}/split/0")
        assert refused.status == 412
        assert "SEALED" in refused.reason
        assert (await request(elsewhere, "POST", f"{PATH}/merge/1/2")).status == 204
        policy = b'{"enabled": false}'
        assert (await request(elsewhere, "POST", f"{PATH}/autoScalePolicy", body=policy)).status == 204
        assert (await request(elsewhere, "DELETE", f"{PATH}?force=true")).status == 204
        assert await one.layouts.names("public/default") == []


async def test_any_broker_tells_pulsars_tools_of_all_of_them() -> None:
    """C21: `pulsar-admin brokers list` and `clusters get` name every broker that runs."""
    async with served("one", "two") as ((_one, first), (_two, second)):
        for path in ("/admin/v2/brokers", "/admin/v2/brokers/standalone"):
            assert (await request(first, "GET", path)).json == [str(first), str(second)]
        shown = (await request(second, "GET", "/admin/v2/clusters/standalone")).json
        assert shown["serviceUrl"] == f"http://{first},{second}"
        assert shown["brokerServiceUrl"].startswith("pulsar://")
        assert shown["brokerServiceUrl"].count(",") == 1
        refused = await request(first, "GET", "/admin/v2/clusters/far")
        assert (refused.status, refused.reason) == (412, "There is no cluster far. The only one is standalone.")


async def spread(*brokers: Rooms) -> list[TopicName]:
    """Create TOPIC with one segment on each broker and two subscriptions. The first broker controls it."""
    await brokers[0].controller.create_topic(TOPIC, len(brokers), {})
    for kind in (SubscriptionKind.STREAM, SubscriptionKind.QUEUE):
        await brokers[0].controller.subscriptions.add(TOPIC, kind.value, kind, StartPosition.EARLIEST)
    await brokers[0].control()
    names = [await broker.segment(TOPIC, number) for number, broker in enumerate(brokers)]
    for name, broker in zip(names, brokers, strict=True):
        await publish(await broker.topics.get(name), b"a")
    await wait_all_tasks_blocked()
    return names


async def backlogs(at: Address) -> dict[str, int]:
    """Return what a broker says of the backlogs of TOPIC's subscriptions."""
    answer = await request(at, "GET", f"{PATH}/stats")
    assert answer.status == 200, answer
    return {name: counted["msgBacklog"] for name, counted in answer.json["subscriptions"].items()}


async def test_statistics_cover_the_segments_of_all_brokers() -> None:
    """C14, C21: the answer is the same wherever it is asked, and moves no segment."""
    async with served("one", "two", "three") as ((one, first), (two, second), (three, third)):
        names = await spread(one, two, three)
        for address in (first, second, third):
            assert await backlogs(address) == {"QUEUE": 3, "STREAM": 3}
        assert [broker.topics.owned for broker in (one, two, three)] == [(name,) for name in names]


async def test_a_drained_broker_passes_on_what_it_would_have_to_own() -> None:
    """C7, C21: a topic without controller or owner is changed at a broker that takes it. Before, it was refused."""
    async with served("one", "two") as ((one, first), (two, _second)):
        await one.controller.create_topic(TOPIC, 1, {})
        assert (await request(first, "POST", "/admin/v2/cluster/brokers/one/drain")).status == 204
        assert (await request(first, "POST", f"{PATH}/split/0")).status == 204
        assert two.elections.held == (TOPIC,)
        await two.elections.resign(TOPIC)
        assert await backlogs(first) == {}
        assert (await request(first, "DELETE", PATH)).status == 204
        assert one.topics.owned == ()
        await one.controller.create_topic(TOPIC, 1, {})
        await two.metadata.put(DRAINING + "two", b"{}")
        await wait_all_tasks_blocked()
        refused = await request(first, "POST", f"{PATH}/split/0")
        assert refused.status == 503
        assert "draining" in refused.reason


class Client:
    """A client that is connected."""

    name = "a producer"
    follows_layout = True

    def topic_closed(self, assigned_url: str | None = None) -> None:
        """Ignore it."""

    def topic_replaced(self) -> None:
        """Ignore it."""


async def test_a_topic_that_other_brokers_serve_is_deleted_unless_somebody_uses_it() -> None:
    """C14: each owner is asked who is connected there. Before, an owner was enough to refuse."""
    async with served("one", "two") as ((one, first), (two, second)):
        _here, there = await spread(one, two)
        clients = (await two.topics.get(there)).clients
        clients.add_producer(Client())
        for address in (first, second):
            refused = await request(address, "DELETE", PATH)
            assert (refused.status, refused.reason.partition(".")[0]) == (
                412,
                f"{TOPIC} has connected producers or consumers",
            )
        consumer, _outlet = recording_consumer()
        subscription = (await two.topics.get(there)).subscriptions["QUEUE"]
        subscription.add_consumer(consumer)
        with pytest.raises(SubscriptionInUse, match="has consumers"):
            await one.controller.subscriptions.delete(TOPIC, "QUEUE")
        await one.controller.subscriptions.delete(TOPIC, "STREAM")
        subscription.remove_consumer(consumer)
        await one.controller.subscriptions.delete(TOPIC, "QUEUE")
        clients.send_away()
        assert (await request(second, "DELETE", PATH)).status == 204
        assert await one.layouts.names("public/default") == []


async def test_metrics_cover_all_brokers() -> None:
    """C23: one scrape of any broker is enough."""
    async with served("one", "two") as ((_one, first), (_two, second)):
        for address in (first, second):
            body = (await request(address, "GET", "/metrics")).body.decode()
            up = re.findall(r'^tidewire_broker_up\{broker="(\w+)"\} 1.0$', body, re.MULTILINE)
            assert up == ["one", "two"]
            counted = re.findall(r'^process_open_fds\{broker="(\w+)"\}', body, re.MULTILINE)
            assert sorted(counted) == ["one", "two"]


async def test_a_subscription_moves_on_the_segments_of_all_brokers() -> None:
    """C14, C21: wherever it is asked. Before, a topic with spread segments could not be moved at all."""
    async with served("one", "two", "three") as ((one, first), (two, second), (three, third)):
        names = await spread(one, two, three)
        for address in (first, second, third):
            for name in ("QUEUE", "STREAM"):
                assert (await request(address, "POST", f"{PATH}/subscriptions/{name}/skip-all")).status == 204
            assert await backlogs(address) == {"QUEUE": 0, "STREAM": 0}
            for name in ("QUEUE", "STREAM"):
                moved = await request(address, "POST", f"{PATH}/subscriptions/{name}/seek?timestamp=0")
                assert moved.status == 204, moved
            assert await backlogs(address) == {"QUEUE": 3, "STREAM": 3}
        assert [broker.topics.owned for broker in (one, two, three)] == [(name,) for name in names]


async def test_a_topic_is_migrated_whoever_owns_and_controls_it() -> None:
    """C14, C21: the owner of the regular topic writes the layout, and the controller finishes the change.

    Consumers that keep their order elect a controller already for the regular topic.
    """
    async with served("one", "two", "three") as ((one, first), (two, second), (_three, third)):
        regular = await one.topics.get(TOPIC.as_regular)
        await publish(regular, b"a")
        await two.control()
        client = Client()
        client.follows_layout = False
        regular.clients.add_producer(client)
        for address in (first, second, third):
            refused = await request(address, "POST", f"{PATH}/migrate")
            assert refused.status == 409
            assert "force=true" in refused.reason
        regular.clients.remove_producer(client)
        assert (await request(third, "POST", f"{PATH}/migrate")).status == 204
        layout = await one.layouts.get(TOPIC)
        assert [segment.id for segment in layout.active()] == [1]
        assert layout.intent is None
        again = await request(third, "POST", f"{PATH}/migrate")
        assert again.status == 409
        assert "already a scalable topic" in again.reason


async def test_any_broker_lists_a_topics_subscriptions_and_shows_one() -> None:
    """C14, C21: with the backlog and the consumers on each segment, whoever owns it."""
    async with served("one", "two") as ((one, first), (two, second)):
        names = await spread(one, two)
        topic = await two.topics.get(names[1])
        consumer, _outlet = recording_consumer()
        topic.subscriptions["QUEUE"].add_consumer(consumer)
        for address in (first, second):
            listed = await request(address, "GET", f"{PATH}/subscriptions")
            assert listed.json == ["QUEUE", "STREAM"]
            shown = (await request(address, "GET", f"{PATH}/subscriptions/QUEUE")).json
            assert (shown["name"], shown["type"], shown["start"], shown["msgBacklog"]) == (
                "QUEUE",
                "QUEUE",
                "EARLIEST",
                2,
            )
            assert {number: one["msgBacklog"] for number, one in shown["segments"].items()} == {"0": 1, "1": 1}
            assert [one["consumers"] for one in shown["segments"].values()] == [[], [consumer.name]]
            counted = (await request(address, "GET", f"{PATH}/stats")).json["segments"]["1"]
            assert (counted["msgInCounter"], counted["endIndex"], counted["state"]) == (1, 1, "ACTIVE")
            missing = await request(address, "GET", f"{PATH}/subscriptions/other")
            assert (missing.status, missing.reason) == (404, f"{TOPIC} has no subscription other.")
        assert (await request(first, "GET", f"{PATH}-none/subscriptions")).status == 404
