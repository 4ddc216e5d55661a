"""Groups and their offsets, from the wire."""

from typing import Final

from storage.metadata.memory import MemoryStore
from tests.support.disk import SimulatedFiles
from tests.support.kafka_connection import KafkaClient, kafka_client
from tests.support.rooms import rooms
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tidewire.wire.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)

PROTOCOLS: Final = (JoinGroupRequestProtocol("range", b"topics"),)


async def joined(
    client: KafkaClient, group: str = "g", protocols: tuple[JoinGroupRequestProtocol, ...] = PROTOCOLS
) -> JoinGroupResponse:
    """Join as a new member, which first gets an id (KIP-394)."""
    request = JoinGroupRequest(group, 10_000, 10_000, "", None, "consumer", protocols)
    first = await client.ask(request, JoinGroupResponse, 9)
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    request = JoinGroupRequest(group, 10_000, 10_000, first.member_id, None, "consumer", protocols)
    return await client.ask(request, JoinGroupResponse, 9)


async def joined_at_once(client: KafkaClient) -> JoinGroupResponse:
    """Join as a client that knows nothing of member ids."""
    request = JoinGroupRequest("g", 10_000, 10_000, "", None, "consumer", PROTOCOLS)
    return await client.ask(request, JoinGroupResponse, 3)


async def committed(
    client: KafkaClient, offset: int, *, generation: int = -1, member: str = "", partition: int = 0
) -> int:
    """Commit an offset of partition 0 of `t`. Returns the error code."""
    part = OffsetCommitRequestPartition(partition, offset, -1, "text")
    request = OffsetCommitRequest("g", generation, member, topics=(OffsetCommitRequestTopic("t", (part,)),))
    return (await client.ask(request, OffsetCommitResponse, 8)).topics[0].partitions[0].error_code


async def stored(client: KafkaClient, version: int = 8) -> tuple[int, str | None]:
    """The committed offset of partition 0 of `t`, with its text."""
    topics = (OffsetFetchRequestTopic("t", (0,)),)
    request = OffsetFetchRequest("g", topics, (OffsetFetchRequestGroup("g", topics=topics),))
    answer = await client.ask(request, OffsetFetchResponse, version)
    found = answer.groups[0].topics if version >= 8 else answer.topics
    part = found[0].partitions[0]
    assert part.error_code == 0
    return part.committed_offset, part.metadata


async def test_a_member_joins_syncs_commits_and_leaves() -> None:
    """K34, K36: a commit is that of its generation; offsets may go back."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await client.create("t")
        found = await client.ask(FindCoordinatorRequest("g", 0), FindCoordinatorResponse, 2)
        assert (found.error_code, found.node_id, found.port) == (0, 1, 9092)
        assert await stored(client) == (-1, "")
        member = await joined(client)
        assert (member.error_code, member.leader, len(member.members)) == (0, member.member_id, 1)
        share = (SyncGroupRequestAssignment(member.member_id, b"everything"),)
        sync = SyncGroupRequest("g", member.generation_id, member.member_id, None, "consumer", "range", share)
        assert (await client.ask(sync, SyncGroupResponse, 5)).assignment == b"everything"
        beat = HeartbeatRequest("g", member.generation_id, member.member_id)
        assert (await client.ask(beat, HeartbeatResponse, 4)).error_code == 0
        for offset in (7, 3):
            assert await committed(client, offset, generation=member.generation_id, member=member.member_id) == 0
            assert await stored(client) == await stored(client, 7) == (offset, "text")
        stale = member.generation_id - 1
        assert await committed(client, 9, generation=stale, member=member.member_id) == ErrorCode.ILLEGAL_GENERATION
        assert await committed(client, 9, generation=stale + 1, member="x") == ErrorCode.UNKNOWN_MEMBER_ID
        gone = LeaveGroupRequest("g", members=(MemberIdentity(member.member_id), MemberIdentity("x")))
        left = await client.ask(gone, LeaveGroupResponse, 5)
        assert [one.error_code for one in left.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
        assert await committed(client, 9, partition=1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await committed(client, 9) == 0
        assert await stored(client) == (9, "text")


async def test_administrators_see_and_delete_groups_and_offsets() -> None:
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await client.create("t")
        assert await committed(client, 5) == 0
        listed = (await client.ask(ListGroupsRequest(), ListGroupsResponse, 5)).groups
        assert [(one.group_id, one.group_state, one.group_type) for one in listed] == [("g", "Empty", "classic")]
        busy = await client.ask(ListGroupsRequest(("Stable",)), ListGroupsResponse, 5)
        assert busy.groups == ()
        missing = await client.ask(DescribeGroupsRequest(("g", "x")), DescribeGroupsResponse, 6)
        assert [(one.group_id, one.error_code) for one in missing.groups] == [
            ("g", 0),
            ("x", ErrorCode.GROUP_ID_NOT_FOUND),
        ]
        place = (OffsetDeleteRequestTopic("t", (OffsetDeleteRequestPartition(0),)),)
        deleted = await client.ask(OffsetDeleteRequest("g", place), OffsetDeleteResponse, 0)
        assert (deleted.error_code, deleted.topics[0].partitions[0].error_code) == (0, 0)
        assert await stored(client) == (-1, "")
        await committed(client, 5)
        gone = await client.ask(DeleteGroupsRequest(("g", "x")), DeleteGroupsResponse, 2)
        assert [one.error_code for one in gone.results] == [0, ErrorCode.GROUP_ID_NOT_FOUND]
        assert await stored(client) == (-1, "")


async def test_a_drained_broker_gives_up_its_groups() -> None:
    """C21: its members are sent to another broker, which has the group's offsets. A repeated drain is one."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with (
        rooms(store, files.process(), broker_id="one") as one,
        rooms(store, files.process(), broker_id="two") as two,
    ):
        for broker in (one, two):
            await broker.register()
        async with kafka_client(one) as old, kafka_client(two) as new:
            await old.create("t")
            assert await committed(old, 5) == 0
            member = await joined(old)
            assert (await joined_at_once(new)).error_code == ErrorCode.NOT_COORDINATOR
            await one.handover.drain()
            await one.handover.drain()
            beat = HeartbeatRequest("g", member.generation_id, member.member_id)
            assert (await old.ask(beat, HeartbeatResponse, 4)).error_code == ErrorCode.NOT_COORDINATOR
            assert (await joined_at_once(old)).error_code == ErrorCode.NOT_COORDINATOR
            assert (await joined(new)).error_code == 0
            assert await stored(new) == (5, "text")
