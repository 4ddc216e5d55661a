"""Namespaces pushed to followers: a listing, then differences, by properties, with one watch of the store."""

from collections.abc import AsyncIterator, Mapping

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from broker.layouts import store as layouts
from broker.layouts.layout import Layout, create
from broker.layouts.store import Layouts, layout_key
from broker.names import TopicName
from broker.scalable import namespaces
from broker.scalable.namespaces import Membership, NamespaceFeeds, NamespaceFollower
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Record
from tests.support.idle import TaskSteps

PLACE = "public/default"


def named(local: str, namespace: str = PLACE) -> TopicName:
    return TopicName.parse(f"topic://{namespace}/{local}")


class Room:
    def __init__(self, nursery: trio.Nursery) -> None:
        self.store = MemoryStore()
        self.layouts = Layouts(self.store)
        self.namespaces = NamespaceFeeds(self.store, nursery)

    async def make(self, name: TopicName, properties: Mapping[str, str] | None = None) -> str:
        await self.layouts.create(name, create(1, 0, creation_id="c", properties=properties or {}))
        return str(name)


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    async with trio.open_nursery() as nursery:
        yield Room(nursery)
        nursery.cancel_scope.cancel()


async def test_a_follower_gets_what_is_there_and_every_difference(room: Room) -> None:
    there = await room.make(named("a b"))
    await room.make(named("a", "public/other"))
    # A namespace whose name begins with this one's is another one.
    await room.make(named("a", "public/default2"))
    with room.namespaces.follow(PLACE, {}) as follower:
        assert await follower.listing() == [there]
        added = await room.make(named("grüße"))
        assert await follower.next() == Membership([added], [])
        await room.layouts.remove(named("a b"), "c")
        assert await follower.next() == Membership([], [there])
    await wait_all_tasks_blocked()
    assert room.store.statistics().watches == 0


async def test_an_empty_namespace_is_listed_as_empty(room: Room) -> None:
    with room.namespaces.follow(PLACE, {}) as follower:
        assert await follower.listing() == []


async def test_all_of_the_properties_count(room: Room) -> None:
    await room.make(named("plain"))
    await room.make(named("one"), {"team": "x"})
    both = await room.make(named("both"), {"team": "x", "tier": "1", "other": "o"})
    with room.namespaces.follow(PLACE, {"team": "x", "tier": "1"}) as follower:
        assert await follower.listing() == [both]
        await room.make(named("wrong"), {"team": "x", "tier": "2"})
        late = await room.make(named("late"), {"tier": "1", "team": "x"})
        assert await follower.next() == Membership([late], [])


async def test_followers_share_a_watch_and_a_late_one_is_served_from_what_is_known(room: Room) -> None:
    first = await room.make(named("first"))
    with room.namespaces.follow(PLACE, {}) as early:
        assert await early.listing() == [first]
        with room.namespaces.follow(PLACE, {}) as late:
            assert await late.listing() == [first]
            assert room.store.statistics().watches == 1
        second = await room.make(named("second"))
        assert await early.next() == Membership([second], [])


async def test_a_split_and_what_came_and_went_are_no_news(room: Room) -> None:
    name = named("a")
    await room.make(name)
    with room.namespaces.follow(PLACE, {}) as follower:
        await follower.listing()
        await room.layouts.change(name, lambda layout: layout.begin_split(0))
        await room.make(named("b"))
        await room.layouts.remove(named("b"), "c")
        await wait_all_tasks_blocked()
        with trio.move_on_after(0) as no_news:
            await follower.next()
        assert no_news.cancelled_caught


async def test_a_parked_follower_is_not_scheduled(room: Room) -> None:
    await room.make(named("a"))
    with room.namespaces.follow(PLACE, {}) as follower:
        await follower.listing()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower.next)
            await wait_all_tasks_blocked()
            with TaskSteps() as steps:
                await room.make(named("a", "public/other"))
                await wait_all_tasks_blocked()
                assert steps.of("_watch") == steps.of("next") == 0
                await room.make(named("b"))
                await wait_all_tasks_blocked()
                assert steps.of("next") > 0


async def test_an_unreadable_layout_hides_no_other_topic(room: Room) -> None:
    good = await room.make(named("good"))
    await room.store.put(layout_key(named("bad")), b"{")
    with room.namespaces.follow(PLACE, {}) as follower:
        assert await follower.listing() == [str(named("bad")), good]
    with room.namespaces.follow(PLACE, {"team": "x"}) as follower:
        assert await follower.listing() == []


async def test_a_topic_that_is_being_deleted_is_there_no_more(room: Room) -> None:
    name = await room.make(named("a"))
    with room.namespaces.follow(PLACE, {}) as follower:
        assert await follower.listing() == [name]
        await room.layouts.change(named("a"), Layout.begin_deletion)
        assert await follower.next() == Membership([], [name])
        await room.layouts.remove(named("a"), "c")
    with room.namespaces.follow(PLACE, {}) as follower:
        assert await follower.listing() == []


async def test_a_record_that_is_no_topics_is_passed_over(room: Room) -> None:
    await room.store.put("/topics/public/default/%zz/more", b"")
    name = await room.make(named("a"))
    with room.namespaces.follow(PLACE, {}) as follower:
        assert await follower.listing() == [name]


NAMES = st.sampled_from(["a", "b", "c"])
PROPERTIES = st.dictionaries(st.just("k"), st.sampled_from(["v", "w"]))
STEPS = st.lists(st.one_of(st.tuples(NAMES, PROPERTIES), st.tuples(NAMES, st.none()), st.none()), max_size=12)


@given(steps=STEPS, filters=PROPERTIES)
def test_the_differences_add_up_to_what_is_there(
    steps: list[tuple[str, Mapping[str, str] | None] | None], filters: Mapping[str, str]
) -> None:
    """A step writes a topic with properties, removes it (None), or lets the follower read (no step)."""

    async def follow() -> None:
        topics: dict[str, Mapping[str, str]] = {}
        follower = NamespaceFollower(filters, topics)
        follower.touched(())
        told = set(await follower.listing())
        assert told == set()
        for step in [*steps, None]:
            if step is None:
                with trio.move_on_after(1):
                    change = await follower.next()
                    assert told.isdisjoint(change.added)
                    assert told.issuperset(change.removed)
                    told |= set(change.added)
                    told -= set(change.removed)
                assert told == {name for name, has in topics.items() if filters.items() <= has.items()}
                continue
            name, properties = step
            if properties is None:
                topics.pop(name, None)
            else:
                topics[name] = properties
            follower.touched([name])

    trio.run(follow, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_a_large_namespace_is_read_in_slices(monkeypatch: pytest.MonkeyPatch, room: Room) -> None:
    """E7: both a watch and a listing read pages until one is empty."""
    names = {await room.make(named(f"t{number}")) for number in range(7)}
    monkeypatch.setattr(namespaces, "RECORDS_AT_ONCE", 2)
    monkeypatch.setattr(layouts, "PAGE_RECORDS", 3)
    with TaskSteps() as steps:
        with room.namespaces.follow(PLACE, {}) as follower:
            assert set(await follower.listing()) == names
        # To begin, for what the watch has, and a pause after every second record.
        assert steps.of("NamespaceFeeds._watch") >= 2 + 3
    sizes: list[int] = []
    scan = room.store.scan

    async def noted(start: str, end: str, *, limit: int | None = None) -> list[Record]:
        found = await scan(start, end, limit=limit)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(room.store, "scan", noted)
    assert {str(name) for name in await room.layouts.names(PLACE)} == names
    assert sizes == [3, 3, 1, 0]


async def test_a_large_namespace_is_compared_in_slices(monkeypatch: pytest.MonkeyPatch, room: Room) -> None:
    """E7: and what was touched meanwhile, or by a call that was cancelled, is in the next difference."""
    monkeypatch.setattr(namespaces, "NAMES_AT_ONCE", 2)
    names = sorted([await room.make(named(f"t{number}")) for number in range(9)])
    with room.namespaces.follow(PLACE, {}) as follower:
        await wait_all_tasks_blocked()
        with TaskSteps() as steps:
            assert await follower.listing() == names
            # A pause after every second name, to compare, to sort and to merge.
            assert sum(steps.counts.values()) >= 4 + 5 + 4
        for name in names:
            await room.layouts.remove(TopicName.parse(name), "c")
        await wait_all_tasks_blocked()
        for pauses in range(6):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follower.next)
                for _ in range(pauses):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        assert await follower.next() == Membership([], names)
