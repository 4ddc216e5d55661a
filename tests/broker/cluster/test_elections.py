"""Elections of controllers: one at a time, all brokers learn the result, and a dead controller loses its topics."""

from collections.abc import Callable
from functools import partial
from urllib.parse import quote

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import broker.cluster.elections
import broker.followers
from broker.cluster.elections import Controlling, Elections
from broker.cluster.ownership import Claims, OwnedElsewhere
from broker.names import TopicName
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Conflict, Put, Session, SessionLost
from tests.support.idle import TaskSteps
from tests.support.rooms import TOPIC

OTHER = TopicName.parse("topic://public/default/b%2F c")


async def taking_part(store: MemoryStore, broker_id: str, nursery: trio.Nursery) -> tuple[Elections, Session]:
    session = await store.open_session(10)
    claims = Claims(store, session, broker_id=broker_id, service_url=f"pulsar://{broker_id}:1")
    elections = Elections(claims, store)
    await nursery.start(elections.run)
    return elections, session


async def test_who_is_needed_first_is_elected(nursery: trio.Nursery) -> None:
    """D4: the other broker learns who was elected, and both know it without asking."""
    store = MemoryStore()
    (one, _), (two, _) = await taking_part(store, "one", nursery), await taking_part(store, "two", nursery)
    assert one.controller_of(TOPIC) is None
    claim = await one.elect(TOPIC)
    assert await one.elect(TOPIC) == claim
    with pytest.raises(OwnedElsewhere, match="one at pulsar://one:1"):
        await two.elect(TOPIC)
    await two.elect(OTHER)
    await wait_all_tasks_blocked()
    for elections in (one, two):
        assert elections.controller_of(TOPIC) == Controlling("one", "pulsar://one:1")
        assert elections.controller_of(OTHER) == Controlling("two", "pulsar://two:1")
    assert (one.is_elsewhere(TOPIC), two.is_elsewhere(TOPIC)) == (False, True)


async def test_a_death_frees_what_it_controlled(nursery: trio.Nursery) -> None:
    """D4: late writes of the dead controller are refused."""
    store = MemoryStore()
    (one, session), (two, _) = await taking_part(store, "one", nursery), await taking_part(store, "two", nursery)
    claim = await one.elect(TOPIC)
    await wait_all_tasks_blocked()
    heard: list[TopicName] = []
    two.attach(heard.append)
    await session.close()
    await wait_all_tasks_blocked()
    assert heard == [TOPIC]
    assert two.controller_of(TOPIC) is None
    later = await two.elect(TOPIC)
    await wait_all_tasks_blocked()
    assert heard == [TOPIC, TOPIC]
    assert two.controller_of(TOPIC) == Controlling("two", "pulsar://two:1")
    with pytest.raises(Conflict):
        await store.commit([Put("/x", b"stale"), claim])
    await store.commit([Put("/x", b"new"), later])
    with pytest.raises(SessionLost):
        await one.elect(TOPIC)
    two.detach(heard.append)


async def test_giving_up_and_being_elected_again(nursery: trio.Nursery) -> None:
    """News of the first term that arrives in the second term does not end it."""
    store = MemoryStore()
    (one, _), (two, _) = await taking_part(store, "one", nursery), await taking_part(store, "two", nursery)
    for _ in range(3):
        first = await one.elect(TOPIC)
        await one.resign(TOPIC)
        await one.resign(TOPIC)
        second = await one.elect(TOPIC)
        assert second.expected > first.expected
        await wait_all_tasks_blocked()
        assert await one.elect(TOPIC) == second
        await one.resign(TOPIC)
    await two.elect(TOPIC)
    await two.resign(OTHER)


async def test_another_run_of_the_same_broker_takes_over(nursery: trio.Nursery) -> None:
    """C15, D4: the earlier run learns that it controls nothing any more. All hear of another controller."""
    store = MemoryStore()
    (earlier, _), (later, _) = await taking_part(store, "one", nursery), await taking_part(store, "one", nursery)
    await earlier.elect(TOPIC)
    await wait_all_tasks_blocked()
    heard: list[TopicName] = []
    later.attach(heard.append)
    claim = await later.elect(TOPIC)
    await wait_all_tasks_blocked()
    assert heard == [TOPIC], "somebody else may have controlled it in between (C15)"
    assert await later.elect(TOPIC) == claim
    again = await earlier.elect(TOPIC)
    assert again.expected > claim.expected


async def test_of_two_at_once_one_is_elected(nursery: trio.Nursery) -> None:
    store = MemoryStore()
    (one, _), (two, _) = await taking_part(store, "one", nursery), await taking_part(store, "two", nursery)
    won: list[Elections] = []

    async def elect(elections: Elections) -> None:
        try:
            await elections.elect(TOPIC)
        except OwnedElsewhere:
            return
        won.append(elections)

    async with trio.open_nursery() as at_once:
        for elections in (one, two, one, two):
            at_once.start_soon(elect, elections)
    assert len(won) == 2
    assert won[0] is won[1]


async def test_claims_of_segments_are_no_elections(nursery: trio.Nursery) -> None:
    store = MemoryStore()
    elections, session = await taking_part(store, "one", nursery)
    claims = Claims(store, session, broker_id="one", service_url="pulsar://one:1")
    heard: list[TopicName] = []
    elections.attach(heard.append)
    for name in ("segment://public/default/x/0000-ffff-0", "persistent://public/default/x", "topic://nonsense"):
        await claims.claim(name)
    await wait_all_tasks_blocked()
    assert heard == []


async def test_a_damaged_claim_is_somebody_elses(nursery: trio.Nursery) -> None:
    """E11: an unreadable record does not end the broker, and no second controller acts for its topic."""
    store = MemoryStore()
    elections, _ = await taking_part(store, "one", nursery)
    await store.put(f"/owners/{quote(str(TOPIC), safe='')}", b"\xff")
    await wait_all_tasks_blocked()
    assert elections.is_elsewhere(TOPIC)
    await elections.elect(OTHER)


async def test_many_sessions_hear_of_a_controller_in_slices(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    """E7: a follower that leaves meanwhile gets no more news."""
    monkeypatch.setattr(broker.followers, "FOLLOWERS_AT_ONCE", 2)
    elections, _ = await taking_part(MemoryStore(), "one", nursery)
    told: list[int] = []
    followers: list[Callable[[], None]] = []

    def hear(number: int) -> None:
        told.append(number)
        if len(told) == 3:
            for other in range(5):
                if other not in told:
                    elections.unfollow(TOPIC, followers[other])

    for number in range(5):
        followers.append(partial(hear, number))
        elections.follow(TOPIC, followers[number])
    with TaskSteps() as steps:
        await elections.elect(TOPIC)
        await wait_all_tasks_blocked()
        assert steps.of("Elections.run") >= 1 + 2
    assert len(told) == 3


async def test_only_a_topics_followers_hear_of_its_controller(nursery: trio.Nursery) -> None:
    """E7, C16: many topics may lose their controller at once, and many clients may follow other topics."""
    store = MemoryStore()
    (one, session), (two, _) = await taking_part(store, "one", nursery), await taking_part(store, "two", nursery)
    told: list[TopicName] = []
    follower = partial(told.append, TOPIC)
    two.follow(TOPIC, follower)
    await one.elect(OTHER)
    await wait_all_tasks_blocked()
    assert told == []
    await one.elect(TOPIC)
    await wait_all_tasks_blocked()
    assert told == [TOPIC]
    two.unfollow(TOPIC, follower)
    await session.close()
    await wait_all_tasks_blocked()
    assert told == [TOPIC]


async def test_a_death_that_ends_many_claims_is_heard_of_in_slices(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    """E7: the other brokers go on serving meanwhile."""
    monkeypatch.setattr(broker.cluster.elections, "HEARD_AT_ONCE", 2)
    store = MemoryStore()
    (one, session), (two, _) = await taking_part(store, "one", nursery), await taking_part(store, "two", nursery)
    for number in range(10):
        await one.elect(TopicName.parse(f"topic://public/default/{number}"))
    await wait_all_tasks_blocked()
    with TaskSteps() as steps:
        await session.close()
        await wait_all_tasks_blocked()
        assert steps.of("Elections.run") >= 10 // 2
    assert two.controller_of(TopicName.parse("topic://public/default/9")) is None
