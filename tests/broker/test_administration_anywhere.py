"""Topics are administered at any broker of a cluster, over HTTP. Their controllers and segments are on others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import wait_all_tasks_blocked

from broker.addresses import Address
from broker.http.application import build_application
from broker.http.listener import serve_http
from broker.layouts.parts import StartPosition, SubscriptionKind
from broker.names import TopicName
from storage.metadata.memory import MemoryStore
from tests.broker.test_handover import brokers
from tests.support.http import FakeMonitor, request
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
