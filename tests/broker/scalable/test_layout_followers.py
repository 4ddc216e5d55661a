"""Which layouts the clients of other brokers have: written before they get one, and waited for by owners."""

from collections.abc import AsyncIterator, Sequence

import orjson
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.layouts.layout import Layout
from broker.layouts.store import layout_key
from broker.names import TopicName
from broker.scalable import layout_followers
from broker.scalable.layout_followers import KEY_PREFIX, WAIT_SECONDS_MAX, followers_of
from broker.store_retry import RETRY_SECONDS
from storage.metadata.store import Op, Put, StoreUnavailable
from tests.support.rooms import TOPIC, Rooms
from tests.support.several_rooms import Brokers, several
from tests.support.steered_store import SteeredStore


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    async with several("one", "two", shared=SteeredStore()) as made:
        await made["one"].controller.create_topic(TOPIC, 1, {})
        await wait_all_tasks_blocked()
        yield made


def steered(brokers: Brokers) -> SteeredStore:
    assert isinstance(brokers.shared, SteeredStore)
    return brokers.shared


async def written(store: object) -> dict[str, int]:
    """Return the epochs on record, by broker."""
    assert isinstance(store, SteeredStore)
    prefix = followers_of(TOPIC)
    return {
        record.key.removeprefix(prefix): orjson.loads(record.value)["epoch"]
        for record in await store.scan(prefix, prefix + "~")
    }


def ignore(layout: Layout | None) -> None:
    """Follow."""


async def test_the_record_is_there_before_the_first_push_and_until_the_last_follower_leaves(
    brokers: Brokers, autojump_clock: MockClock
) -> None:
    """T20: an owner that does not see it has sealed nothing yet that the followers do not know."""
    store, one = steered(brokers), brokers["one"]
    gate = trio.Event()

    async def hold(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put) and op.key.startswith(followers_of(TOPIC)) for op in ops):
            await gate.wait()

    store.before = hold
    pushed: list[Layout | None] = []
    one.feeds.follow(TOPIC, pushed.append)
    await wait_all_tasks_blocked()
    assert pushed == []
    store.before = None
    gate.set()
    await wait_all_tasks_blocked()
    assert len(pushed) == 1
    assert await written(store) == {"one": 0}
    await brokers["two"].controller.split(TOPIC, 0)
    await wait_all_tasks_blocked()
    assert await written(store) == {"one": 1}
    one.feeds.unfollow(TOPIC, pushed.append)
    await wait_all_tasks_blocked()
    assert await written(store) == {}


async def test_an_owner_seals_when_clients_of_other_brokers_know_the_children(
    brokers: Brokers, autojump_clock: MockClock
) -> None:
    """C14, T20: it waits for a broker that is late, but not for one that has died."""
    one, two, store = brokers["one"], brokers["two"], steered(brokers)
    parent = await two.topics.get(await two.segment(TOPIC, 0))
    one.feeds.follow(TOPIC, ignore)
    await wait_all_tasks_blocked()
    late = store.late[layout_key(TOPIC)] = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(two.controller.split, TOPIC, 0)
        await trio.sleep(WAIT_SECONDS_MAX / 2)
        assert (await two.layouts.get(TOPIC)).epoch == 1
        assert not parent.ledger.is_sealed
        late.set()
    assert parent.ledger.is_sealed


async def test_a_broker_that_pushes_nothing_delays_a_seal_for_a_bounded_time(
    brokers: Brokers, autojump_clock: MockClock
) -> None:
    """C14, E11: it is stopped, for example."""
    two, store = brokers["two"], steered(brokers)
    await store.put(followers_of(TOPIC) + "stopped", b'{"epoch": 0, "creation_id": "c"}')
    await store.put(followers_of(TOPIC) + "damaged", b"[]")
    began = trio.current_time()
    await two.controller.split(TOPIC, 0)
    assert WAIT_SECONDS_MAX <= trio.current_time() - began < 2 * WAIT_SECONDS_MAX


async def test_a_first_push_waits_for_its_own_record_behind_those_of_others(
    brokers: Brokers, autojump_clock: MockClock
) -> None:
    """T20: the writes of other topics under way do not count for it."""
    store, one, other = steered(brokers), brokers["one"], TopicName.parse("topic://public/default/other")
    await one.controller.create_topic(other, 1, {})
    gates = {followers_of(topic): trio.Event() for topic in (other, TOPIC)}

    async def hold(ops: Sequence[Op]) -> None:
        for prefix, gate in gates.items():
            if any(isinstance(op, Put) and op.key.startswith(prefix) for op in ops):
                await gate.wait()

    store.before = hold
    pushed: list[Layout | None] = []
    one.feeds.follow(other, ignore)
    await wait_all_tasks_blocked()
    one.feeds.follow(TOPIC, pushed.append)
    await wait_all_tasks_blocked()
    gates[followers_of(other)].set()
    await wait_all_tasks_blocked()
    assert pushed == []
    gates[followers_of(TOPIC)].set()
    await wait_all_tasks_blocked()
    assert len(pushed) == 1
    one.feeds.unfollow(TOPIC, pushed.append)
    one.feeds.unfollow(other, ignore)


async def test_a_record_that_cannot_be_written_delays_no_client(brokers: Brokers, autojump_clock: MockClock) -> None:
    """E14: it is written when the store answers again."""
    one, store = brokers["one"], steered(brokers)

    async def away(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put) and op.key.startswith(followers_of(TOPIC)) for op in ops):
            raise StoreUnavailable("away")

    store.before = away
    pushed: list[Layout | None] = []
    one.feeds.follow(TOPIC, pushed.append)
    await trio.sleep(1)
    assert len(pushed) == 1
    store.before = None
    await trio.sleep(10)
    assert await written(store) == {"one": 0}
    one.feeds.unfollow(TOPIC, pushed.append)


async def test_an_outage_delays_no_client_of_many_topics(
    monkeypatch: pytest.MonkeyPatch, brokers: Brokers, autojump_clock: MockClock
) -> None:
    """E14: those that the next change set would have had do not wait either."""
    monkeypatch.setattr(layout_followers, "RECORDS_AT_ONCE", 1)
    one, store, other = brokers["one"], steered(brokers), TopicName.parse("topic://public/default/other")
    await one.controller.create_topic(other, 1, {})

    async def away(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put) and op.key.startswith(KEY_PREFIX) for op in ops):
            raise StoreUnavailable("away")

    store.before = away
    pushed: list[Layout | None] = []
    for topic in (other, TOPIC):
        one.feeds.follow(topic, pushed.append)
    await trio.sleep(RETRY_SECONDS / 2)
    assert len(pushed) == 2
    store.before = None
    await trio.sleep(10)
    assert await written(store) == {"one": 0}
    for topic in (other, TOPIC):
        one.feeds.unfollow(topic, pushed.append)


async def test_a_broker_that_is_alone_writes_none_until_another_comes(autojump_clock: MockClock) -> None:
    """A single broker pays nothing for it."""
    store = SteeredStore()
    async with several("one", shared=store) as brokers:
        await brokers["one"].controller.create_topic(TOPIC, 1, {})
        brokers["one"].feeds.follow(TOPIC, ignore)
        await wait_all_tasks_blocked()
        assert await written(store) == {}
        await brokers.start("two")
        await wait_all_tasks_blocked()
        assert await written(store) == {"one": 0}
        await brokers.kill("two")
        brokers["one"].feeds.unfollow(TOPIC, ignore)
        await wait_all_tasks_blocked()
        assert await written(store) == {}


async def test_a_follower_that_leaves_at_its_first_layout_leaves_no_record(
    brokers: Brokers, autojump_clock: MockClock
) -> None:
    one: Rooms = brokers["one"]

    def leave(layout: Layout | None) -> None:
        one.feeds.unfollow(TOPIC, leave)

    one.feeds.follow(TOPIC, leave)
    await wait_all_tasks_blocked()
    assert await written(steered(brokers)) == {}
