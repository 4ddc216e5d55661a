"""Lookups with several brokers: nobody is sent to a broker that was killed."""

import orjson

from broker.cluster.locating import Here, Redirect
from broker.cluster.ownership import claim_key
from broker.cluster.placement import preferred
from broker.names import TopicName
from storage.metadata.memory import MemoryStore
from tests.support.disk import SimulatedFiles
from tests.support.rooms import Rooms, rooms

TOPICS = [TopicName.parse(f"persistent://public/default/{number}") for number in range(12)]
BROKERS = ("one", "three", "two")


async def redirects(broker: Rooms) -> set[str]:
    """The brokers that a client which looks up all topics is sent to; its own for those that it stays for."""
    answers = [await broker.locator.locate(topic, authoritative=False) for topic in TOPICS]
    return {"two" if isinstance(answer, Here) else _url(answer) for answer in answers}


def _url(answer: object) -> str:
    assert isinstance(answer, Redirect)
    return answer.service_url.removeprefix("pulsar://").removesuffix(":6650")


async def test_an_unowned_topic_is_not_looked_for_at_a_killed_broker() -> None:
    """C21: its registration stays until its session ends, but its lock is free. The next candidate gets its topics."""
    store = MemoryStore()
    ended: set[str] = set()
    asked: list[str] = []

    async def has_ended(broker_id: str) -> bool:
        asked.append(broker_id)
        return broker_id in ended

    assert {preferred(str(topic), BROKERS) for topic in TOPICS} == set(BROKERS)
    async with (
        rooms(store, SimulatedFiles(seed=1), broker_id="one") as one,
        rooms(store, SimulatedFiles(seed=2), broker_id="three") as three,
        rooms(store, SimulatedFiles(seed=3), broker_id="two", has_ended=has_ended) as two,
    ):
        for broker in (one, two, three):
            await broker.register()
        assert await redirects(two) == set(BROKERS)
        assert set(asked) == {"one", "three"}
        ended.add("one")
        assert await redirects(two) == {"two", "three"}
        ended.add("three")
        assert await redirects(two) == {"two"}


async def test_a_redirected_client_stays() -> None:
    """C21: the broker that it was sent to asks nobody, and keeps it."""

    async def has_ended(broker_id: str) -> bool:
        raise AssertionError(broker_id)

    store = MemoryStore()
    async with (
        rooms(store, SimulatedFiles(seed=1), broker_id="one") as one,
        rooms(store, SimulatedFiles(seed=3), broker_id="two", has_ended=has_ended) as two,
    ):
        await one.register()
        for topic in TOPICS:
            assert await two.locator.locate(topic, authoritative=True) == Here()


async def test_a_killed_owners_topics_are_looked_for_again() -> None:
    """C21: nobody is sent to the address of a broker that has ended. Its claims are free once that is known."""
    store = MemoryStore()
    topic = TOPICS[0]

    async def has_ended(broker_id: str) -> bool:
        record = await store.get(claim_key(str(topic)))
        if record is not None and record.session is not None:
            await store.end_session(record.session)
        return True

    async with rooms(store, SimulatedFiles(seed=3), broker_id="two", has_ended=has_ended) as two:
        await two.register()
        session = await store.open_session(10)
        value = orjson.dumps({"broker": "one", "service_url": "pulsar://one:6650"})
        await store.put(claim_key(str(topic)), value, session=session)
        assert await two.locator.locate(topic, authoritative=False) == Here()


async def test_what_a_killed_owner_left_is_another_brokers_work() -> None:
    """C21, K32: a sweep that looks for its owner does not wait until the dead one's session ends."""
    store = MemoryStore()
    ended: set[str] = set()

    async def has_ended(broker_id: str) -> bool:
        record = await store.get(claim_key(str(TOPICS[0])))
        if broker_id in ended and record is not None and record.session is not None:
            await store.end_session(record.session)
        return broker_id in ended

    async with (
        rooms(store, SimulatedFiles(seed=1), broker_id="one") as one,
        rooms(store, SimulatedFiles(seed=3), broker_id="two", has_ended=has_ended) as two,
    ):
        await one.register()
        value = orjson.dumps({"broker": "one", "service_url": "pulsar://one:6650"})
        await store.put(claim_key(str(TOPICS[0])), value, session=await store.open_session(10))
        assert await two.locator.owner_or_candidate(TOPICS[0]) == ("one", None)
        ended.add("one")
        assert [await two.locator.owner_or_candidate(topic) for topic in TOPICS] == [(None, "two")] * len(TOPICS)
