"""Where a group of Kafka's consumers begins on segments that appear while it reads a scalable topic."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import wait_all_tasks_blocked

from storage.metadata.memory import MemoryStore
from tests.broker.kafka.test_groups_on_the_wire import PROTOCOLS, joined
from tests.support.disk import SimulatedFiles
from tests.support.kafka_connection import KafkaClient, commit, committed, kafka_client
from tests.support.kafka_groups import assignment
from tests.support.rooms import TOPIC, Rooms, rooms
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tidewire.wire.kafka.messages.offsets import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse

NONE = -1


@asynccontextmanager
async def served(segments: int = 1) -> AsyncIterator[tuple[Rooms, KafkaClient]]:
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await broker.controller.create_topic(TOPIC, segments, {})
        yield broker, client


async def assign(client: KafkaClient, group: str, generation: int, member: str, *partitions: int) -> None:
    """Lead the group and take these partitions of `orders`, and one of a topic that is not there."""
    given = SyncGroupRequestAssignment(member, assignment({"orders": partitions, "elsewhere": (0,)}))
    request = SyncGroupRequest(group, generation, member, None, "consumer", "range", (given,))
    assert (await client.ask(request, SyncGroupResponse, 5)).error_code == 0


async def test_a_group_that_committed_on_a_parent_begins_with_the_children() -> None:
    """K41: and with their children, however far it is; a group that knows nothing of the topic has no offset."""
    async with served() as (broker, client):
        await broker.controller.split(TOPIC, 0)
        assert await committed(client, "g", 0, 1, 2) == [NONE, NONE, NONE]
        await commit(client, "g", 0, 7)
        assert await committed(client, "g", 0, 1, 2, 3) == [7, 0, 0, NONE]
        await broker.controller.split(TOPIC, 2)
        assert await committed(client, "g", 1, 2, 3, 4) == [0, 0, 0, 0]
        await commit(client, "g", 4, 3)
        await broker.controller.merge(TOPIC, 1, 3)
        assert await committed(client, "g", 1, 2, 3, 4, 5) == [0, 0, 0, 3, 0]
        assert await committed(client, "other", 0, 1, 5) == [NONE, NONE, NONE]
        # What is listed for administrators is what was committed.
        request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup("g", topics=None),))
        (answer,) = (await client.ask(request, OffsetFetchResponse, 8)).groups
        assert [part.partition_index for part in answer.topics[0].partitions] == [0, 4]


async def test_a_group_begins_nothing_anew_that_was_there_before() -> None:
    """K41: without an offset on one of two first segments, its own policy says where it begins there."""
    async with served(2) as (broker, client):
        await commit(client, "g", 0, 7)
        assert await committed(client, "g", 0, 1) == [7, NONE]
        await broker.controller.split(TOPIC, 1)
        assert await committed(client, "g", 1, 2, 3) == [NONE, NONE, NONE]


async def test_a_running_group_reads_from_the_beginning_what_appears() -> None:
    """K41: although it has committed nothing, as consumers do that begin at the end and got nothing yet."""
    async with served() as (broker, client):
        await broker.controller.split(TOPIC, 0)
        first = await joined(client)
        await assign(client, "g", first.generation_id, first.member_id, 0, 1, 2)
        assert await committed(client, "g", 0, 1, 2) == [NONE, NONE, NONE]
        await broker.controller.split(TOPIC, 1)
        assert await committed(client, "g", 1, 2, 3, 4) == [NONE, NONE, 0, 0]
        # Later generations change nothing about that.
        again = await joined_again(client, first.member_id)
        await assign(client, "g", again, first.member_id, 0, 1, 2, 3, 4)
        assert await committed(client, "g", 1, 2, 3, 4) == [NONE, NONE, 0, 0]
        await leave(client, first.member_id)
        assert await committed(client, "g", 1, 2, 3, 4) == [NONE, NONE, NONE, NONE]


async def test_the_next_coordinator_knows_what_the_group_knew() -> None:
    """K41: the group's record has it."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with rooms(store, files) as broker, kafka_client(broker) as client:
        await broker.controller.create_topic(TOPIC, 1, {})
        member = await joined(client)
        await assign(client, "g", member.generation_id, member.member_id, 0)
    async with rooms(store, files.kill()) as broker, kafka_client(broker) as client:
        await broker.controller.split(TOPIC, 0)
        assert await committed(client, "g", 0, 1, 2) == [NONE, 0, 0]


async def heard(client: KafkaClient, member: str, generation: int) -> int:
    """Send a heartbeat. Return the error code."""
    return (await client.ask(HeartbeatRequest("g", generation, member), HeartbeatResponse, 4)).error_code


async def test_a_leader_is_told_once_that_there_are_more_partitions() -> None:
    """K41: librdkafka would look for them every five minutes only. A leader that leaves them out is not told again."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with rooms(store, files) as broker, kafka_client(broker) as client:
        await broker.controller.create_topic(TOPIC, 1, {})
        leader = await joined(client)
        await assign(client, "g", leader.generation_id, leader.member_id, 0)
        assert await heard(client, leader.member_id, leader.generation_id) == ErrorCode.NONE
        await broker.controller.split(TOPIC, 0)
        for _again in range(2):
            assert await heard(client, leader.member_id, leader.generation_id) == ErrorCode.REBALANCE_IN_PROGRESS
        generation = await joined_again(client, leader.member_id)
        await assign(client, "g", generation, leader.member_id, 0)
        assert await heard(client, leader.member_id, generation) == ErrorCode.NONE
        await broker.controller.split(TOPIC, 1)
        assert await heard(client, leader.member_id, generation) == ErrorCode.REBALANCE_IN_PROGRESS
        generation = await joined_again(client, leader.member_id)
        await assign(client, "g", generation, leader.member_id, 0, 1, 2, 3, 4)
        assert await heard(client, leader.member_id, generation) == ErrorCode.NONE
    async with rooms(store, files.kill()) as broker, kafka_client(broker) as client:
        # The next coordinator finds in the assignments what the leader knew.
        assert await heard(client, leader.member_id, generation) == ErrorCode.NONE
        await broker.controller.split(TOPIC, 4)
        assert await heard(client, leader.member_id, generation) == ErrorCode.REBALANCE_IN_PROGRESS


async def test_a_member_that_does_not_lead_is_told_when_the_group_rebalances() -> None:
    """K41: its own heartbeat changes nothing, because its join would not make the leader assign anew."""
    async with served() as (broker, client):
        leader = await joined(client)
        async with trio.open_nursery() as nursery:
            others: list[JoinGroupResponse] = []

            async def join_too() -> None:
                others.append(await joined(client))

            async with kafka_client(broker) as second:
                nursery.start_soon(join_too)
                await wait_all_tasks_blocked()
                generation = await joined_again(second, leader.member_id)
                await assign(second, "g", generation, leader.member_id, 0)
                other = others[0].member_id
                await broker.controller.split(TOPIC, 0)
                assert await heard(second, other, generation) == ErrorCode.NONE
                assert await heard(second, leader.member_id, generation) == ErrorCode.REBALANCE_IN_PROGRESS
                assert await heard(second, other, generation) == ErrorCode.REBALANCE_IN_PROGRESS


async def joined_again(client: KafkaClient, member: str) -> int:
    """Join as the known leader, which begins a generation. Returns its number."""
    request = JoinGroupRequest("g", 10_000, 10_000, member, None, "consumer", PROTOCOLS)
    return (await client.ask(request, JoinGroupResponse, 9)).generation_id


async def leave(client: KafkaClient, member: str) -> None:
    request = LeaveGroupRequest("g", members=(MemberIdentity(member),))
    assert (await client.ask(request, LeaveGroupResponse, 4)).error_code == 0
