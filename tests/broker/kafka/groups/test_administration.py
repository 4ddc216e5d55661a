"""What administrators see of groups, and what they can delete."""

from collections.abc import Sequence

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.kafka.groups.coordination import group_claim_key
from broker.kafka.groups.coordinator import CommitRequest
from broker.kafka.groups.group_record import group_key
from broker.kafka.groups.offsets import Offset, TopicPartition
from broker.kafka.groups.values import (
    DescribedGroup,
    GroupError,
    GroupState,
    Leaver,
    ListedGroup,
    Protocol,
    SyncRequest,
)
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Op
from tests.support.kafka_groups import SESSION_MS, join_request, subscription
from tests.support.kafka_nodes import T0, become_stable, commit, committed, node
from tests.support.metadata import damage_records
from tests.support.steered_store import SteeredStore


async def test_an_empty_group_is_deleted_with_its_offsets(autojump_clock: MockClock) -> None:
    """K36: its claim goes, too. A group with members stays."""
    store = MemoryStore()
    async with node(store, "left") as left:
        administration = left.coordinator.administration
        member = await become_stable(left)
        await commit(left, 5, member_id=member, generation=1)
        assert await administration.delete("g") is GroupError.NON_EMPTY_GROUP
        await left.coordinator.leave("g", [Leaver(member)])
        assert await administration.delete("g") is None
        assert await administration.delete("g") is GroupError.GROUP_ID_NOT_FOUND
        assert await administration.describe("g") == DescribedGroup(GroupState.DEAD)
        assert await administration.listed() == []
        assert await left.coordinator.fetch("g") == {}
        assert await store.get(group_claim_key("g")) is None
        assert await left.coordinator.heartbeat("g", member, None, 1) is GroupError.UNKNOWN_MEMBER_ID


async def test_a_commit_during_a_deletion_is_deleted_or_made_in_a_new_group() -> None:
    """K36: no offset is left without its group."""
    store = SteeredStore()
    async with node(store, "left") as left:
        await commit(left, 5)
        go = trio.Event()

        async def hold(ops: Sequence[Op]) -> None:
            await go.wait()

        store.before = hold
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit, left, 6)
            await wait_all_tasks_blocked()
            nursery.start_soon(left.coordinator.administration.delete, "g")
            await wait_all_tasks_blocked()
            nursery.start_soon(commit, left, 7)
            await wait_all_tasks_blocked()
            go.set()
        assert await committed(left) == 7
        assert len(await left.coordinator.administration.listed()) == 1


async def test_all_brokers_together_list_each_group_once() -> None:
    """Also those that nobody coordinates, and whose members died with their coordinator."""
    store = MemoryStore()
    async with node(store, "left") as left, node(store, "right") as right:
        async with node(store, "third") as third:
            for number in range(20):
                await commit([left, right, third][number % 3], 5, group=f"g{number}")
            await become_stable(third, "stable")
        await wait_all_tasks_blocked()
        listed = [await each.coordinator.administration.listed() for each in (left, right)]
        names = [group.group for groups in listed for group in groups]
        assert sorted(names) == sorted([*(f"g{number}" for number in range(20)), "stable"])
        states = {group.group: group.state for groups in listed for group in groups}
        assert states["stable"] is GroupState.STABLE


async def test_groups_without_members_are_told_about_without_loading_them() -> None:
    """E9: monitoring asks for all groups of a week. It claims none, and leaves the room to those that are used."""
    store = SteeredStore()
    async with node(store, "left") as left:
        for number in range(20):
            await commit(left, 5, group=f"g{number}")
        await left.coordinator.leave("g0", [Leaver(await become_stable(left, "g0"))])
        await wait_all_tasks_blocked()
        await left.coordinator.hand_over()
        commits = store.commits
        administration = left.coordinator.administration
        listed = {group.group: group for group in await administration.listed()}
        assert len(listed) == 20
        assert listed["g0"] == ListedGroup("g0", "consumer", GroupState.EMPTY)
        assert listed["g1"] == ListedGroup("g1", "", GroupState.EMPTY)
        assert await administration.describe("g0") == DescribedGroup(GroupState.EMPTY, "consumer")
        assert await administration.describe("g1") == DescribedGroup(GroupState.EMPTY)
        assert await administration.describe("who") == DescribedGroup(GroupState.DEAD)
        assert left.coordinator.statistics().groups == 0
        assert store.commits == commits


async def test_members_that_died_with_their_coordinator_are_missed(autojump_clock: MockClock) -> None:
    """Whoever lists groups loads them, so that the sessions of their members end."""
    store = MemoryStore()
    async with node(store, "right") as right:
        async with node(store, "left") as left:
            await become_stable(left)
        assert [group.state for group in await right.coordinator.administration.listed()] == [GroupState.STABLE]
        await trio.sleep(SESSION_MS / 1000 + 1)
        assert [group.state for group in await right.coordinator.administration.listed()] == [GroupState.EMPTY]


async def test_offsets_that_are_read_are_not_deleted() -> None:
    """OffsetDelete: consumers keep those of the topics that they read."""
    store = MemoryStore()
    other = TopicPartition("u", 0)
    async with node(store, "left") as left:
        administration = left.coordinator.administration
        member = await become_stable(left, protocols=[Protocol("range", subscription("t"))])
        request = CommitRequest({T0: Offset(1), other: Offset(1)}, member, None, 1)
        assert set((await left.coordinator.commit("g", request)).values()) == {None}
        assert await administration.delete_offsets("g", [T0, other]) == {
            T0: GroupError.GROUP_SUBSCRIBED_TO_TOPIC,
            other: None,
        }
        assert list(await left.coordinator.fetch("g")) == [T0]
        await left.coordinator.leave("g", [Leaver(member)])
        assert await administration.delete_offsets("g", [T0]) == {T0: None}
        assert await left.coordinator.fetch("g") == {}
        member = await become_stable(left, protocols=[Protocol("range", b"?")])
        assert await administration.delete_offsets("g", [T0]) == {T0: GroupError.GROUP_SUBSCRIBED_TO_TOPIC}
        assert await administration.delete_offsets("who", [T0]) is GroupError.GROUP_ID_NOT_FOUND
        joined = await left.coordinator.join("connect", join_request(protocol_type="connect"))
        await left.coordinator.sync("connect", SyncRequest(joined.member_id, None, 1))
        assert await administration.delete_offsets("connect", [T0]) is GroupError.NON_EMPTY_GROUP


async def test_a_damaged_group_is_not_served_until_it_is_deleted() -> None:
    """E11: its members and generation are unknown. Others go on."""
    store = MemoryStore()
    async with node(store, "left") as left:
        await commit(left, 5)
        await left.coordinator.hand_over()
        await damage_records(store, group_key("g"), b"?")
        assert await commit(left, 6) is GroupError.UNKNOWN_SERVER_ERROR
        assert (await left.coordinator.join("g", join_request())).error is GroupError.UNKNOWN_SERVER_ERROR
        assert [group.group for group in await left.coordinator.administration.listed()] == ["g"]
        assert await left.coordinator.administration.delete("g") is None
        assert await committed(left) is None
        assert await commit(left, 6) is None
