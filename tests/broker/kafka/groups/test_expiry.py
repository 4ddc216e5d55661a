"""Offsets end with the retention of their group, and only while it is empty (K36)."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.kafka.groups.coordinator import CommitRequest, InTransaction
from broker.kafka.groups.expiry import AGAIN_MS
from broker.kafka.groups.group_record import group_key
from broker.kafka.groups.offsets import Offset, TopicPartition, offset_key
from broker.kafka.groups.values import GroupError, GroupSettings, GroupState, Leaver, SyncRequest
from storage.ages import SKEW_MAX_MS
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Check, Op, starting_with
from tests.support.kafka_groups import SESSION_MS, join_request
from tests.support.kafka_nodes import T0, Node, node, wall_ms
from tests.support.metadata import damage_records, keys
from tests.support.steered_store import SteeredStore
from txn.deferred_puts import deferred_by, settled
from txn.kafka_transaction import transaction_key

RETENTION_MS = 24 * 60 * 60 * 1000
SETTINGS = GroupSettings(offsets_retention_ms=RETENTION_MS)
RETENTION = RETENTION_MS / 1000


async def commit(at: Node, partition: TopicPartition = T0, *, group: str = "g", expires_ms: int | None = None) -> None:
    request = CommitRequest({partition: Offset(1, expires_ms=expires_ms)})
    assert await at.coordinator.commit(group, request) == {partition: None}


async def left_of(at: Node, group: str = "g") -> list[int]:
    """Return the partitions with an offset."""
    found = await at.coordinator.fetch(group)
    assert isinstance(found, dict)
    return [partition.partition for partition in found]


async def become_member(at: Node, session_ms: int = SESSION_MS) -> str:
    joined = await at.coordinator.join("g", join_request(session_ms=session_ms))
    answer = await at.coordinator.sync("g", SyncRequest(joined.member_id, None, joined.generation))
    assert answer.error is None
    return joined.member_id


async def test_offsets_of_a_group_without_members_end_one_by_one(autojump_clock: MockClock) -> None:
    """K36: each after its own commit; with the last one, the group ends, and its claim. Nobody looks in between."""
    store = SteeredStore()
    async with node(store, "left", SETTINGS) as left, trio.open_nursery() as nursery:
        nursery.start_soon(left.coordinator.expiry.run)
        await commit(left)
        await trio.sleep(RETENTION / 2)
        await commit(left, TopicPartition("t", 1))
        await trio.sleep(RETENTION / 2 - 100)
        assert await left_of(left) == [0, 1]
        commits = store.commits
        await trio.sleep(200)
        assert await left_of(left) == [1]
        await trio.sleep(RETENTION / 2)
        assert await keys(store, *starting_with("/kafka/")) == []
        assert await keys(store, *starting_with("/owners/kafka")) == []
        assert store.commits - commits < 10
        commits = store.commits
        await trio.sleep(10 * RETENTION)
        assert store.commits == commits
        nursery.cancel_scope.cancel()


async def test_offsets_of_a_consumer_group_end_after_its_members_left(autojump_clock: MockClock) -> None:
    """K36: while it has members, they stay, however old they are."""
    store = MemoryStore()
    async with node(store, "left", SETTINGS) as left, trio.open_nursery() as nursery:
        nursery.start_soon(left.coordinator.expiry.run)
        await commit(left)
        member = await become_member(left, session_ms=1_800_000)
        for _ in range(3 * RETENTION_MS // 1_000_000):
            assert await left.coordinator.heartbeat("g", member, None, 1) is None
            await trio.sleep(1_000)
        assert await left_of(left) == [0]
        await left.coordinator.leave("g", [Leaver(member)])
        await trio.sleep(RETENTION - 10)
        assert await left_of(left) == [0]
        await trio.sleep(20)
        assert await left_of(left) == []
        assert await left.coordinator.administration.listed() == []
        nursery.cancel_scope.cancel()


async def test_members_that_died_with_their_coordinator_keep_nothing_for_ever(autojump_clock: MockClock) -> None:
    """K36: nobody asks for the group any more. A look loads it, its members' sessions end, and so does it."""
    store = MemoryStore()
    async with node(store, "left", SETTINGS) as left:
        await commit(left)
        await become_member(left)
    async with node(store, "right", SETTINGS) as right, trio.open_nursery() as nursery:
        nursery.start_soon(right.coordinator.expiry.run)
        await trio.sleep(RETENTION + SKEW_MAX_MS / 1000 + 10)
        assert await left_of(right) == [0]
        await trio.sleep(RETENTION + SKEW_MAX_MS / 1000 + 100)
        assert await keys(store, *starting_with("/kafka/")) == []
        nursery.cancel_scope.cancel()


async def test_an_end_that_the_client_asked_for_counts(autojump_clock: MockClock) -> None:
    """OffsetCommit 2 to 4."""
    async with node(MemoryStore(), "left", SETTINGS) as left:
        await commit(left)
        await commit(left, TopicPartition("t", 1), expires_ms=wall_ms() + 2 * RETENTION_MS)
        await trio.sleep(RETENTION)
        again_ms = await left.coordinator.expiry.sweep()
        assert await left_of(left) == [1]
        assert again_ms == wall_ms() + RETENTION_MS
        await trio.sleep(RETENTION)
        await left.coordinator.expiry.sweep()
        assert await left_of(left) == []


async def test_a_group_stays_while_a_transaction_may_bring_it_an_offset(autojump_clock: MockClock) -> None:
    """K36: without the group, nothing would ever find that offset again."""
    store = MemoryStore()
    async with node(store, "left", SETTINGS) as left:
        await commit(left)
        waits = TopicPartition("t", 1)
        record_key, waiting = transaction_key("tid"), offset_key("g", waits)
        version = await store.put(record_key, b"open")
        within = InTransaction("tid", (Check(record_key, version),))
        request = CommitRequest({waits: Offset(2)}, within=within)
        assert await left.coordinator.commit("g", request) == {waits: None}
        await trio.sleep(RETENTION)
        await left.coordinator.expiry.sweep()
        assert await left_of(left) == []
        records = await store.scan(*deferred_by("tid"))
        await store.commit(settled(records, is_commit=True))
        assert await store.get(waiting) is not None
        await trio.sleep(2 * RETENTION)
        await left.coordinator.expiry.sweep()
        assert await keys(store, *starting_with("/kafka/offsets")) == []


async def test_each_group_is_one_brokers_work(autojump_clock: MockClock) -> None:
    """C16, C17: its coordinator's, or else the preferred one's. Clocks may differ, so several brokers wait longer."""
    store = MemoryStore()
    async with node(store, "left", SETTINGS) as left, node(store, "right", SETTINGS) as right:
        await wait_all_tasks_blocked()
        groups = [f"g{number}" for number in range(40)]
        for group in groups:
            await commit(left, group=group)
        await trio.sleep(RETENTION + 61)
        preferred = [group for group in groups if left.coordination.is_mine(group, None)]
        assert 0 < len(preferred) < len(groups)
        await commit(right, group=preferred[0])
        await left.coordinator.expiry.sweep()
        assert [await left_of(left, group) for group in groups] == [[0]] * len(groups)
        await trio.sleep(SKEW_MAX_MS / 1000)
        await right.coordinator.heartbeat(preferred[1], "", None, 1)
        assert await left.coordinator.expiry.sweep() == wall_ms() + AGAIN_MS
        gone = [group for group in groups if not await left_of(left, group)]
        assert gone == preferred[2:]
        await right.coordinator.expiry.sweep()
        assert [group for group in groups if await left_of(left, group)] == [preferred[0]]


async def test_a_commit_during_a_look_keeps_its_group(autojump_clock: MockClock) -> None:
    """K36: the offset is in a group that is listed."""
    store = SteeredStore()
    async with node(store, "left", SETTINGS) as left:
        await commit(left)
        await trio.sleep(RETENTION)

        async def commit_meanwhile(ops: Sequence[Op]) -> None:
            store.before = None
            nursery.start_soon(commit, left)
            await wait_all_tasks_blocked()

        async with trio.open_nursery() as nursery:
            store.before = commit_meanwhile
            await left.coordinator.expiry.sweep()
        assert await left_of(left) == [0]
        assert len(await left.coordinator.administration.listed()) == 1


async def test_somebody_who_is_about_to_join_is_waited_for(autojump_clock: MockClock) -> None:
    """KIP-394: it has an id, and may want the offsets."""
    async with node(MemoryStore(), "left", SETTINGS) as left:
        await commit(left)
        await trio.sleep(RETENTION)
        answer = await left.coordinator.join("g", join_request(needs_known_id=True))
        assert answer.error is GroupError.MEMBER_ID_REQUIRED
        assert await left.coordinator.expiry.sweep() == wall_ms() + AGAIN_MS
        assert await left_of(left) == [0]


@pytest.mark.parametrize("made", [True, False])
async def test_a_store_without_an_answer_is_asked_again(autojump_clock: MockClock, made: bool) -> None:
    """E13: the sweep comes back."""
    store = SteeredStore()
    async with node(store, "left", SETTINGS) as left, trio.open_nursery() as nursery:
        nursery.start_soon(left.coordinator.expiry.run)
        await commit(left)
        await trio.sleep(RETENTION - 1)
        await left.coordinator.administration.describe("g")
        store.leave_unanswered(2, made=made)
        await trio.sleep(2 + AGAIN_MS / 1000)
        assert store.has_answered_all is False
        assert await keys(store, *starting_with("/kafka/")) == []
        nursery.cancel_scope.cancel()


async def test_damage_stops_nothing_else(autojump_clock: MockClock) -> None:
    """E11: a damaged offset stays for people to see; a damaged group is passed over."""
    store = MemoryStore()
    async with node(store, "left", SETTINGS) as left:
        for group in ("damaged", "g", "other"):
            await commit(left, group=group)
        await commit(left, TopicPartition("t", 1))
        await damage_records(store, offset_key("g", T0), b"?")
        await damage_records(store, group_key("damaged"), b"?")
        await trio.sleep(RETENTION)
        await left.coordinator.expiry.sweep()
        assert await left_of(left, "other") == []
        assert await left_of(left, "g") == [0]
        assert await left_of(left, "damaged") == [0]
        assert (await left.coordinator.administration.describe("g")).state is GroupState.EMPTY
