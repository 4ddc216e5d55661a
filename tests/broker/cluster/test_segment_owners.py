"""Who owns a topic's segments: told to its followers at each change, and not more often than they need."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster.ownership import Claims, claim_key
from broker.cluster.segment_owners import TELL_SECONDS_MIN, SegmentOwners
from broker.names import SegmentDescriptor, TopicName
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Check, StoreUnavailable
from tests.support.idle import TaskSteps
from tests.support.rooms import TOPIC

SEGMENTS = [SegmentDescriptor.parse(text) for text in ("0000-7fff-1", "8000-ffff-2")]
ELSEWHERE = "pulsar://two:1"


class Follower:
    """Notes what it could read at each call."""

    def __init__(self, owners: SegmentOwners, topic: TopicName = TOPIC) -> None:
        self._owners = owners
        self._topic = topic
        self.told: list[dict[SegmentDescriptor, str]] = []

    def changed(self) -> None:
        self.told.append(dict(self._owners.elsewhere(self._topic)))


async def claims_of(store: MemoryStore, broker_id: str) -> Claims:
    session = await store.open_session(100)
    return Claims(store, session, broker_id=broker_id, service_url=f"pulsar://{broker_id}:1")


async def claim(claims: Claims, segment: SegmentDescriptor, topic: TopicName = TOPIC) -> Check:
    return await claims.claim(str(topic.segment_name(segment)))


async def test_followers_know_the_owners_at_once_and_at_each_change(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """C21: a segment of this broker, or of nobody, is not elsewhere."""
    store = MemoryStore()
    one, two = await claims_of(store, "one"), await claims_of(store, "two")
    first = await claim(two, SEGMENTS[0])
    owners = SegmentOwners(store, nursery, me="one")
    follower = Follower(owners)
    assert owners.elsewhere(TOPIC) == {}
    await owners.follow(TOPIC, follower.changed)
    assert owners.elsewhere(TOPIC) == {SEGMENTS[0]: ELSEWHERE}
    assert follower.told == []
    await claim(two, SEGMENTS[1])
    await trio.sleep(2 * TELL_SECONDS_MIN)
    assert follower.told == [{SEGMENTS[0]: ELSEWHERE, SEGMENTS[1]: ELSEWHERE}]
    await two.release(first)
    await claim(one, SEGMENTS[0])
    await trio.sleep(2 * TELL_SECONDS_MIN)
    assert follower.told[1:] == [{SEGMENTS[1]: ELSEWHERE}]
    owners.unfollow(TOPIC, follower.changed)
    assert owners.elsewhere(TOPIC) == {}


@pytest.mark.parametrize("by", ["nobody", "this broker", "this broker at once"])
async def test_a_segment_that_another_broker_gave_up_is_not_elsewhere(
    nursery: trio.Nursery, autojump_clock: MockClock, by: str
) -> None:
    """C21: nobody has it, or this broker. A watch may leave out the moment in between."""
    store = MemoryStore()
    one, two = await claims_of(store, "one"), await claims_of(store, "two")
    held = await claim(two, SEGMENTS[0])
    owners = SegmentOwners(store, nursery, me="one")
    follower = Follower(owners)
    await owners.follow(TOPIC, follower.changed)
    if by == "this broker at once":
        own = await one.claim("another name")
        record = await store.get(own.key)
        assert record is not None
        await store.put(held.key, record.value)
    else:
        await two.release(held)
        if by == "this broker":
            await claim(one, SEGMENTS[0])
    await trio.sleep(TELL_SECONDS_MIN)
    assert follower.told == [{}]


async def test_this_brokers_own_claims_are_no_news(nursery: trio.Nursery) -> None:
    """C21: one broker alone tells its clients nothing, whatever it loads and unloads."""
    store = MemoryStore()
    one = await claims_of(store, "one")
    owners = SegmentOwners(store, nursery, me="one")
    follower = Follower(owners)
    await owners.follow(TOPIC, follower.changed)
    before = owners.elsewhere(TOPIC)
    for _ in range(3):
        held = await claim(one, SEGMENTS[0])
        await wait_all_tasks_blocked()
        await one.release(held)
        await wait_all_tasks_blocked()
    assert follower.told == []
    assert owners.elsewhere(TOPIC) is before


async def test_many_changes_are_told_together(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    """E7: the first at once, all others a second later; the newest state counts."""
    store = MemoryStore()
    two, three = await claims_of(store, "two"), await claims_of(store, "three")
    owners = SegmentOwners(store, nursery, me="one")
    follower = Follower(owners)
    await owners.follow(TOPIC, follower.changed)
    for _ in range(10):
        for claims in (two, three):
            held = await claim(claims, SEGMENTS[0])
            await trio.sleep(0.01)
            await claims.release(held)
    await claim(three, SEGMENTS[0])
    await trio.sleep(10 * TELL_SECONDS_MIN)
    assert follower.told == [{SEGMENTS[0]: ELSEWHERE}, {SEGMENTS[0]: "pulsar://three:1"}]


async def test_other_names_are_not_the_topics(nursery: trio.Nursery) -> None:
    """E11: also one that begins with the topic's name, one that is no name, and a damaged claim."""
    store = MemoryStore()
    two = await claims_of(store, "two")
    owners = SegmentOwners(store, nursery, me="one")
    follower = Follower(owners)
    await owners.follow(TOPIC, follower.changed)
    await claim(two, SEGMENTS[0], TopicName.parse(f"{TOPIC}-2"))
    for name in (str(TOPIC), str(TOPIC.as_regular), f"segment://{TOPIC.tenant_namespace}/{TOPIC.local}/nonsense"):
        await two.claim(name)
    for value in (b"\xff", b"{}", b"[]"):
        await store.put(claim_key(str(TOPIC.segment_name(SEGMENTS[0]))), value)
        await wait_all_tasks_blocked()
    assert follower.told == []


async def test_followers_share_one_watch_until_the_last_one_leaves(nursery: trio.Nursery) -> None:
    """E16: and a topic that nobody follows costs nothing."""
    store = MemoryStore()
    owners = SegmentOwners(store, nursery, me="one")
    before = store.statistics().watches
    followers = [Follower(owners) for _ in range(3)]
    for follower in followers:
        await owners.follow(TOPIC, follower.changed)
    assert store.statistics().watches == before + 1
    for follower in followers:
        owners.unfollow(TOPIC, follower.changed)
    await wait_all_tasks_blocked()
    assert store.statistics().watches == before
    assert not nursery.child_tasks


async def test_whoever_is_cancelled_meanwhile_follows_nothing(nursery: trio.Nursery) -> None:
    """E16: whether the owners were known already or not."""
    store = MemoryStore()
    owners = SegmentOwners(store, nursery, me="one")
    staying, leaving = Follower(owners), Follower(owners)
    for is_known in (False, True):
        if is_known:
            await owners.follow(TOPIC, staying.changed)
        with trio.CancelScope() as scope:
            scope.cancel()
            await owners.follow(TOPIC, leaving.changed)
        assert scope.cancelled_caught
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == is_known
    await claim(await claims_of(store, "two"), SEGMENTS[0])
    await wait_all_tasks_blocked()
    assert (len(staying.told), len(leaving.told)) == (1, 0)


async def test_a_watch_that_fails_ends_what_the_broker_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """E14: a store that is away is not read as a topic without owners."""
    store = MemoryStore()

    def fail(*_: object) -> None:
        raise StoreUnavailable("it is away")

    monkeypatch.setattr(store, "watch_range", fail)
    with pytest.RaisesGroup(StoreUnavailable):
        async with trio.open_nursery() as nursery:
            owners = SegmentOwners(store, nursery, me="one")
            await owners.follow(TOPIC, Follower(owners).changed)


async def test_many_followers_are_told_in_slices(monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery) -> None:
    """E7: thousands of sessions follow one topic."""
    monkeypatch.setattr("broker.followers.FOLLOWERS_AT_ONCE", 2)
    store = MemoryStore()
    owners = SegmentOwners(store, nursery, me="one")
    followers = [Follower(owners) for _ in range(6)]

    for follower in followers:
        await owners.follow(TOPIC, follower.changed)
    two = await claims_of(store, "two")
    with TaskSteps() as steps:
        await claim(two, SEGMENTS[0])
        await wait_all_tasks_blocked()
        assert steps.of("_tell") >= 1 + len(followers) // 2
    assert [len(follower.told) for follower in followers] == [1] * len(followers)


async def test_a_follower_that_leaves_meanwhile_is_told_nothing(nursery: trio.Nursery) -> None:
    """E16: whoever is told first makes the other leave."""
    store = MemoryStore()
    owners = SegmentOwners(store, nursery, me="one")
    told: list[str] = []

    def one() -> None:
        told.append("one")
        owners.unfollow(TOPIC, two)

    def two() -> None:
        told.append("two")
        owners.unfollow(TOPIC, one)

    await owners.follow(TOPIC, one)
    await owners.follow(TOPIC, two)
    await claim(await claims_of(store, "two"), SEGMENTS[0])
    await wait_all_tasks_blocked()
    assert len(told) == 1
