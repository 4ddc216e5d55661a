"""Who reads which segment of an ordered subscription, through splits, departures and deletions."""

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.errors import TopicDamaged, TopicNotFound
from broker.layouts.layout import Layout
from broker.layouts.parts import StartPosition, SubscriptionKind
from broker.layouts.registrations import GroupId, GroupKind, Registrations
from broker.names import TopicName
from broker.topic import Topic
from storage.cursor import cursor_key
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Check
from tests.support.disk import SimulatedFiles
from tests.support.draining import drained
from tests.support.group_members import QuietMember
from tests.support.outlet import recording_consumer
from tests.support.rooms import TOPIC, Rooms, publish, rooms
from txn.errors import OwnershipLost

NAME = "s"
GROUP = GroupId(TOPIC, NAME)


@pytest.fixture
async def broker() -> AsyncIterator[Rooms]:
    async with rooms(MemoryStore(), SimulatedFiles(seed=5)) as made:
        yield made


class Member(QuietMember):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.told: list[tuple[int, set[int]]] = []

    def assigned(self, layout: Layout, segments: frozenset[int]) -> None:
        self.told.append((layout.epoch, set(segments)))

    @property
    def segments(self) -> set[int]:
        return self.told[-1][1]


async def topic_with(broker: Rooms, segments: int) -> None:
    await broker.controller.create_topic(TOPIC, segments, {})
    await broker.controller.subscriptions.add(TOPIC, NAME, SubscriptionKind.STREAM, StartPosition.EARLIEST)


async def topic_of(broker: Rooms, segment_id: int) -> Topic:
    return await broker.topics.get(await broker.segment(TOPIC, segment_id))


async def drain(broker: Rooms, segment_id: int) -> None:
    """Acknowledge everything in a segment, durably."""
    topic = await topic_of(broker, segment_id)
    cursor = topic.subscriptions[NAME].cursor
    cursor.acknowledge_cumulative(topic.ledger.last_position)
    await cursor.synced()
    await wait_all_tasks_blocked()


async def test_members_share_the_segments_and_hear_of_every_change(broker: Rooms) -> None:
    await topic_with(broker, 4)
    a, b = Member("a"), Member("b")
    await broker.groups.join(GROUP, a)
    assert a.segments == {0, 1, 2, 3}, "told before join returns"
    await broker.groups.join(GROUP, b)
    assert len(a.segments) == len(b.segments) == 2
    assert a.segments | b.segments == {0, 1, 2, 3}
    count = len(b.told)
    broker.groups.leave(GROUP, a)
    assert b.segments == {0, 1, 2, 3}
    assert len(b.told) == count + 1
    broker.groups.leave(GROUP, a)
    assert len(b.told) == count + 1


async def test_children_wait_until_their_parent_is_durably_drained(broker: Rooms) -> None:
    """D11: then the parent is withdrawn; unchanged assignments are not pushed twice."""
    await topic_with(broker, 1)
    await publish(await topic_of(broker, 0), b"a")
    member = Member("a")
    await broker.groups.join(GROUP, member)
    await broker.controller.split(TOPIC, 0)
    await wait_all_tasks_blocked()
    assert member.told == [(0, {0}), (1, {0})]
    await drain(broker, 0)
    assert member.told == [(0, {0}), (1, {0}), (1, {1, 2})]


async def test_an_empty_parent_does_not_hold_its_children_back(broker: Rooms) -> None:
    """D11: after two splits, only segments with messages are assigned first."""
    await topic_with(broker, 1)
    await broker.controller.split(TOPIC, 0)
    await publish(await topic_of(broker, 1), b"a")
    await broker.controller.split(TOPIC, 1)
    member = Member("a")
    await broker.groups.join(GROUP, member)
    await wait_all_tasks_blocked()
    assert member.segments == {1, 2}
    await drain(broker, 1)
    assert member.segments == {2, 3, 4}


async def test_the_first_share_after_a_restart_is_the_last_one_before_it(broker: Rooms) -> None:
    """D11: children that are being read stay assigned until it is known whether their parent is drained."""
    await topic_with(broker, 2)
    await broker.controller.split(TOPIC, 0)
    before = Member("a")
    await broker.groups.join(GROUP, before)
    await wait_all_tasks_blocked()
    assert before.segments == {1, 2, 3}
    broker.groups.leave(GROUP, before)
    after = Member("a")
    await broker.groups.join(GROUP, after)
    await wait_all_tasks_blocked()
    assert after.told == before.told[-1:]


async def test_a_name_that_comes_again_takes_the_first_ones_place(broker: Rooms) -> None:
    await topic_with(broker, 2)
    old, new, other = Member("a"), Member("a"), Member("b")
    await broker.groups.join(GROUP, old)
    await broker.groups.join(GROUP, other)
    had = old.segments
    await broker.groups.join(GROUP, new)
    assert new.segments == had
    broker.groups.leave(GROUP, old)
    assert new.segments == had, "the old one leaves without effect"


async def test_a_topic_that_does_not_exist_is_refused(broker: Rooms) -> None:
    with pytest.raises(TopicNotFound):
        await broker.groups.join(GROUP, Member("a"))
    await wait_all_tasks_blocked()
    assert broker.groups._groups == {}
    assert broker.feeds._feeds == {}
    assert await Registrations(broker.metadata).load() == {}


async def test_a_question_about_a_topic_looks_at_its_own_groups_only(
    broker: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7: each join, and each change of a layout, asks for its topic's consumers. There may be 10,000 other groups."""
    names = [TopicName.parse(f"topic://public/default/t{number}") for number in range(32)]
    for name in names:
        await broker.controller.create_topic(name, 1, {})
        await broker.groups.join(GroupId(name, "g", GroupKind.CHECKPOINT), Member("a"))
    compared = 0
    are_equal = TopicName.__eq__

    def counted(name: TopicName, other: object) -> bool:
        nonlocal compared
        compared += 1
        return are_equal(name, other)

    monkeypatch.setattr(TopicName, "__eq__", counted)
    assert broker.groups.consumers_of(names[5]) == {"checkpoint g": 1}
    assert [member.name for member in broker.groups.members_named(names[5], None, "a")] == ["a"]
    assert broker.groups.consumers_of(TOPIC) == {}
    assert compared < len(names) / 2


async def test_the_last_member_leaves_nothing_behind(broker: Rooms) -> None:
    await topic_with(broker, 1)
    await publish(await topic_of(broker, 0), b"a")
    watches = broker.metadata.statistics().watches
    member = Member("a")
    await broker.groups.join(GROUP, member)
    await broker.controller.split(TOPIC, 0)
    await wait_all_tasks_blocked()
    assert broker.metadata.statistics().watches > watches
    broker.groups.leave(GROUP, member)
    await wait_all_tasks_blocked()
    assert broker.metadata.statistics().watches == watches


async def test_a_topic_made_again_begins_anew(broker: Rooms) -> None:
    """D16: the drained segment 0 of the deleted topic says nothing about the new one's."""
    await topic_with(broker, 1)
    member = Member("a")
    await broker.groups.join(GROUP, member)
    await broker.controller.split(TOPIC, 0)
    await wait_all_tasks_blocked()
    assert member.segments == {1, 2}
    await broker.controller.delete_topic(TOPIC, force=True)
    await wait_all_tasks_blocked()
    await topic_with(broker, 1)
    await publish(await topic_of(broker, 0), b"a")
    await broker.controller.split(TOPIC, 0)
    await wait_all_tasks_blocked()
    assert member.segments == {0}
    await drain(broker, 0)
    assert member.segments == {1, 2}


async def test_a_sealed_segment_that_cannot_be_opened_harms_nobody_else(broker: Rooms) -> None:
    """C14, E11: its children wait until its consumer has read it; an empty one is drained, and is not opened at all."""
    await topic_with(broker, 3)
    await publish(await topic_of(broker, 1), b"not readable")
    for segment_id in (0, 1):
        await broker.controller.split(TOPIC, segment_id)
        await broker.topics.unload(await broker.segment(TOPIC, segment_id))
    parents = [await broker.segment(TOPIC, segment_id) for segment_id in (0, 1)]
    real = broker.topics._open_topic

    async def broken(name: TopicName, claim: Check) -> Topic:
        if name in parents:
            raise OwnershipLost("not to be had")
        return await real(name, claim)

    broker.topics._open_topic = broken
    member = Member("a")
    await broker.groups.join(GROUP, member)
    await wait_all_tasks_blocked()
    assert member.segments == {1, 2, 3, 4}
    await publish(await topic_of(broker, 2), b"goes on")


async def test_drained_by_a_consumer(broker: Rooms) -> None:
    """D11: the usual way: delivered, acknowledged, written, reassigned."""
    await topic_with(broker, 1)
    parent = await topic_of(broker, 0)
    await publish(parent, b"a")
    member = Member("a")
    await broker.groups.join(GROUP, member)
    consumer, outlet = recording_consumer()
    subscription = parent.subscriptions[NAME]
    subscription.add_consumer(consumer)
    subscription.flow(consumer, 10)
    await broker.controller.split(TOPIC, 0)
    await wait_all_tasks_blocked()
    assert member.segments == {0}
    subscription.cursor.acknowledge_cumulative(outlet.positions[0])
    with trio.fail_after(60):
        await drained(subscription)
    await wait_all_tasks_blocked()
    assert member.segments == {1, 2}


async def test_seeking_back_into_a_drained_parent_takes_its_children_away(broker: Rooms) -> None:
    """D11: its messages are redelivered, so they come before the children's messages again."""
    await topic_with(broker, 2)
    for segment_id in (0, 1):
        await publish(await topic_of(broker, segment_id), b"a")
    member = Member("a")
    await broker.groups.join(GROUP, member)
    await broker.controller.merge(TOPIC, 0, 1)
    for segment_id in (0, 1):
        await drain(broker, segment_id)
    assert member.segments == {2}
    await broker.controller.subscriptions.seek_to_time(TOPIC, NAME, 0)
    await wait_all_tasks_blocked()
    assert member.segments == {0, 1}
    await broker.controller.subscriptions.skip_all(TOPIC, NAME)
    await wait_all_tasks_blocked()
    assert member.segments == {2}


async def test_a_cursor_that_cannot_be_read_harms_nobody_else(broker: Rooms) -> None:
    """D11: a watch or an opened segment may find it: the children wait, and the broker continues."""
    await topic_with(broker, 2)
    for segment_id in (0, 1):
        await publish(await topic_of(broker, segment_id), b"a")
    await broker.controller.split(TOPIC, 0)
    member = Member("a")
    await broker.groups.join(GROUP, member)
    await wait_all_tasks_blocked()
    assert member.segments == {0, 1}
    parent = await broker.segment(TOPIC, 0)
    await broker.metadata.put(cursor_key(str(parent), NAME), b"{}")
    await wait_all_tasks_blocked()
    assert member.segments == {0, 1}
    await broker.topics.unload(parent)
    with pytest.raises(TopicDamaged):
        await broker.topics.get(parent)
    await publish(await topic_of(broker, 1), b"goes on")
