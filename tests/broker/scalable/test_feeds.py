"""Layouts pushed to followers: one watch for each topic, every change, every follower."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.cluster.members import Members
from broker.cluster.placement import Member
from broker.layouts.layout import Layout, create
from broker.layouts.store import Layouts
from broker.names import TopicName
from broker.scalable.feeds import LayoutFeeds
from broker.scalable.layout_followers import LayoutFollowers
from storage.metadata.memory import MemoryStore
from tests.support.idle import TaskSteps
from tests.support.rooms import TOPIC
from tests.support.schedules import every_schedule

OTHER = TopicName.parse("topic://public/default/other")


class Room:
    def __init__(self, nursery: trio.Nursery) -> None:
        self.store = MemoryStore()
        self.layouts = Layouts(self.store)
        self.nursery = nursery

    async def make(self, topic: TopicName = TOPIC, creation_id: str = "c") -> Layout:
        layout = create(1, 0, creation_id=creation_id)
        await self.layouts.create(topic, layout)
        return layout

    async def split(self, segment: int) -> Layout:
        layout = await self.layouts.change(TOPIC, lambda layout: layout.begin_split(segment))
        intent = layout.intent
        assert intent is not None
        return await self.layouts.change(TOPIC, lambda layout: layout.replace_segments(intent, 1).finish())

    async def open(self) -> None:
        """Follow layouts, as a broker that is alone."""
        members = Members(self.store, Member("one", "pulsar://one:6650"))
        session = await self.store.open_session(10)
        everywhere = LayoutFollowers(self.store, session, members, self.nursery, me="one")
        self.feeds = LayoutFeeds(self.store, everywhere, self.nursery)


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    async with trio.open_nursery() as nursery:
        made = Room(nursery)
        await made.open()
        yield made
        nursery.cancel_scope.cancel()


class Follower:
    def __init__(self) -> None:
        self.seen: list[int | None] = []

    def __call__(self, layout: Layout | None) -> None:
        self.seen.append(None if layout is None else layout.epoch)


async def test_followers_get_what_is_there_and_every_change(room: Room) -> None:
    await room.make()
    early, late = Follower(), Follower()
    room.feeds.follow(TOPIC, early)
    assert not early.seen
    await wait_all_tasks_blocked()
    assert list(early.seen) == [0]
    room.feeds.follow(TOPIC, late)
    assert late.seen == [0], "what is known is handed over at once"
    await room.split(0)
    await wait_all_tasks_blocked()
    assert early.seen[-1] == late.seen[-1] == 1
    assert room.store.statistics().watches == 1
    room.feeds.unfollow(TOPIC, early)
    count = len(early.seen)
    await room.layouts.remove(TOPIC, "c")
    await wait_all_tasks_blocked()
    assert len(early.seen) == count
    assert late.seen.pop() is None
    room.feeds.unfollow(TOPIC, late)
    await wait_all_tasks_blocked()
    assert room.store.statistics().watches == 0


async def test_a_topic_that_is_not_there_is_followed_as_absent(room: Room) -> None:
    follower = Follower()
    room.feeds.follow(TOPIC, follower)
    await room.make(OTHER)
    await wait_all_tasks_blocked()
    assert follower.seen == [None]
    await room.make()
    await wait_all_tasks_blocked()
    assert follower.seen == [None, 0]


@every_schedule(examples_max=40)
async def test_reached_means_that_every_follower_has_it() -> None:
    """T20: the call does not wait for followers that have left."""
    async with trio.open_nursery() as nursery:
        room = Room(nursery)
        await room.open()
        await room.make()
        followers = [Follower() for _ in range(3)]
        for follower in followers:
            room.feeds.follow(TOPIC, follower)
        layout = await room.split(0)
        await room.feeds.reached(TOPIC, layout)
        assert [follower.seen[-1] for follower in followers] == [layout.epoch] * 3
        await room.feeds.reached(OTHER, layout)
        nursery.cancel_scope.cancel()


async def test_reached_ends_when_nobody_follows_any_more(room: Room) -> None:
    """T20: a split does not wait for clients that have left, nor for the layout of a deleted topic."""
    layout = await room.make()
    follower = Follower()
    room.feeds.follow(TOPIC, follower)
    await wait_all_tasks_blocked()
    ended = []

    async def wait() -> None:
        await room.feeds.reached(TOPIC, replace(layout, epoch=9))
        ended.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert ended == []
        room.feeds.unfollow(TOPIC, follower)
    room.feeds.follow(TOPIC, follower)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        await room.layouts.remove(TOPIC, "c")
    assert ended == [True, True]


async def test_a_layout_of_a_deleted_topic_is_not_waited_for(room: Room) -> None:
    """The topic was made again, and its epochs have begun again."""
    await room.make()
    room.feeds.follow(TOPIC, Follower())
    await wait_all_tasks_blocked()
    late = await room.split(0)
    await room.layouts.remove(TOPIC, "c")
    await room.make(creation_id="again")
    await wait_all_tasks_blocked()
    await room.feeds.reached(TOPIC, late)


async def test_following_costs_nothing_while_nothing_changes(room: Room) -> None:
    await room.make()
    room.feeds.follow(TOPIC, Follower())
    await wait_all_tasks_blocked()
    with TaskSteps() as steps:
        await room.make(OTHER)
        await wait_all_tasks_blocked()
        assert steps.of("_watch") == 0
        await room.split(0)
        await wait_all_tasks_blocked()
        assert steps.of("_watch") > 0


async def test_followers_of_a_topic_without_a_layout_are_waited_for(room: Room) -> None:
    """A regular topic's clients follow before there is a layout, and get it before any client is disconnected."""
    follower = Follower()
    room.feeds.follow(TOPIC, follower)
    await wait_all_tasks_blocked()
    seen: list[list[int | None]] = []

    async def wait() -> None:
        await room.feeds.reached(TOPIC, create(1, 0, creation_id="c"))
        seen.append(list(follower.seen))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert seen == []
        await room.make()
    assert seen == [[None, 0]]


async def test_a_layout_is_reached_when_all_of_many_followers_have_it(
    monkeypatch: pytest.MonkeyPatch, room: Room
) -> None:
    """E7: they get it in slices; a follower that leaves meanwhile gets nothing, a new one gets it at once."""
    monkeypatch.setattr("broker.followers.FOLLOWERS_AT_ONCE", 2)
    await room.make()
    followers = [Follower() for _ in range(8)]
    late = Follower()
    for follower in followers:
        room.feeds.follow(TOPIC, follower)
    await wait_all_tasks_blocked()
    left: list[Follower] = []
    lacking: list[int] = []

    async def look_in_between() -> None:
        while not any(1 in follower.seen for follower in followers):
            await trio.lowlevel.checkpoint()
        gone, *others = [follower for follower in followers if 1 not in follower.seen]
        assert others, "not all of them in one step"
        room.feeds.unfollow(TOPIC, gone)
        left.append(gone)
        room.feeds.follow(TOPIC, late)
        assert late.seen == [1]
        await room.feeds.reached(TOPIC, replace(create(1, 0, creation_id="c"), epoch=1))
        lacking.append(sum(1 not in follower.seen for follower in others))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look_in_between)
        assert (await room.split(0)).epoch == 1
    assert lacking == [0]
    assert 1 not in left[0].seen
    await wait_all_tasks_blocked()
    assert late.seen == [1]
