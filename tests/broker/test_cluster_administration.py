"""What administrators ask one broker about topics that it owns, that another one owns, and that nobody owns.

Requests that go to another broker over HTTP are shown in tests/tidewire/cli/cluster and in test_peers.py.
"""

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.cluster.ownership import OwnedElsewhere, claim_key
from broker.errors import TopicNotFound
from broker.handover import NoSuchBroker
from broker.names import TopicName
from storage.metadata.memory import MemoryStore
from tests.broker.test_handover import PLAIN, assignments, brokers
from tests.support.rooms import TOPIC


async def test_a_scalable_topic_is_all_its_segments() -> None:
    """C21: those that are owned move, and those that nobody owns are taken, too."""
    async with brokers(MemoryStore(), "one", "two") as (one, two):
        await one.controller.create_topic(TOPIC, 3, {})
        names = {await one.segment(TOPIC, number) for number in range(3)}
        for name in set(one.topics.owned) | names:
            await one.topics.get(name)
        await one.topics.unload(await one.segment(TOPIC, 0))
        await one.cluster_administration.move(TOPIC, "two")
        await wait_all_tasks_blocked()
        assert set(two.topics.owned) == names
        assert one.topics.owned == ()
        await two.cluster_administration.unload(TOPIC)
        assert two.topics.owned == ()
        await two.cluster_administration.unload(TOPIC)


async def test_what_does_not_exist_is_not_moved() -> None:
    """No hint is left for it, so nobody creates it."""
    store = MemoryStore()
    async with brokers(store, "one", "two") as (one, _two):
        missing = TopicName.parse("segment://public/default/none/0000-ffff-0")
        for name in (TOPIC, missing, PLAIN):
            with pytest.raises(TopicNotFound):
                await one.cluster_administration.move(name, "two")
        with pytest.raises(NoSuchBroker):
            await one.cluster_administration.move(PLAIN, "three")
        assert await assignments(store) == []


async def test_a_partition_that_nobody_used_is_moved() -> None:
    """C21: it exists by its topic's record. So do all partitions of a topic, and no partition beyond them."""
    async with brokers(MemoryStore(), "one", "two") as (one, two):
        await one.partitioned_topics.create(PLAIN, 2)
        await one.cluster_administration.move(PLAIN.partition(1), "two")
        await wait_all_tasks_blocked()
        assert two.topics.owned == (PLAIN.partition(1),)
        with pytest.raises(TopicNotFound):
            await one.cluster_administration.move(PLAIN.partition(2), "two")
        await two.cluster_administration.move(PLAIN, "one")
        await wait_all_tasks_blocked()
        assert set(one.topics.owned) == {PLAIN.partition(0), PLAIN.partition(1)}
        await one.cluster_administration.unload(PLAIN)
        assert one.topics.owned == ()


@pytest.mark.parametrize("moves", [True, False])
async def test_what_an_earlier_run_owned_is_moved_and_unloaded(moves: bool) -> None:
    """C7: after a kill and a start, this broker's own claims last until the old session ends. Nothing is loaded."""
    store = MemoryStore()
    async with brokers(store, "one", "two") as (one, two):
        await one.topics.get(PLAIN)
        await one.topics.unload(PLAIN)
        earlier = await store.open_session(10)
        claim = b'{"broker": "one", "service_url": "pulsar://one:6650"}'
        await store.put(claim_key(str(PLAIN)), claim, session=earlier)
        if moves:
            await one.cluster_administration.move(PLAIN, "two")
            await wait_all_tasks_blocked()
            assert two.topics.owned == (PLAIN,)
        else:
            await one.cluster_administration.unload(PLAIN)
            assert await store.get(claim_key(str(PLAIN))) is None


async def test_a_forwarded_request_goes_no_further() -> None:
    """C21: ownership has moved meanwhile. The administrator asks again; nothing goes in a circle."""
    store = MemoryStore()
    async with brokers(store, "one", "two") as (one, two):
        await two.topics.get(PLAIN)
        asked = one.cluster_administration
        for request in (
            asked.move(PLAIN, "one", forwarded=True),
            asked.unload(PLAIN, forwarded=True),
            asked.drain("two", forwarded=True),
            asked.undrain("two", forwarded=True),
            asked.balance("two", forwarded=True),
        ):
            with pytest.raises(OwnedElsewhere, match="Try again"):
                await request
        assert two.topics.owned == (PLAIN,)


async def test_a_damaged_claim_is_nobodys_to_move() -> None:
    store = MemoryStore()
    async with brokers(store, "one", "two") as (one, _two):
        await store.put(claim_key(str(PLAIN)), b"{")
        with pytest.raises(OwnedElsewhere, match="damaged"):
            await one.cluster_administration.unload(PLAIN)
