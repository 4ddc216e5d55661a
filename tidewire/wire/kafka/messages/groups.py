"""Consumer groups (the classic protocol): their coordinator, their members and what each member reads."""

from dataclasses import dataclass

from tidewire.wire.kafka.fields import STRING, array, boolean, byte_string, int8, int16, int32, string


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest:
    """Asks for the coordinator of a group (type 0) or transactional id (type 1); of several since version 4."""

    key: str = string(until=3)
    key_type: int = int8(since=1)
    coordinator_keys: tuple[str, ...] = array(STRING, since=4)


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The broker that coordinates a key."""

    key: str = string(since=4)
    node_id: int = int32(since=4)
    host: str = string(since=4)
    port: int = int32(since=4)
    error_code: int = int16(since=4)
    error_message: str | None = string(since=4, nullable_since=4, default=None)


@dataclass(frozen=True, slots=True)
class FindCoordinatorResponse:
    """The coordinators."""

    throttle_time_ms: int = int32(since=1)
    error_code: int = int16(until=3)
    error_message: str | None = string(since=1, until=3, nullable_since=1, default=None)
    node_id: int = int32(until=3)
    host: str = string(until=3)
    port: int = int32(until=3)
    coordinators: tuple[Coordinator, ...] = array(Coordinator, since=4)


@dataclass(frozen=True, slots=True)
class JoinGroupRequestProtocol:
    """A way to divide partitions that the member knows, with what it subscribes to."""

    name: str = string()
    metadata: bytes = byte_string()


@dataclass(frozen=True, slots=True)
class JoinGroupRequest:
    """Joins a group, or begins its next generation."""

    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(since=1, default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(since=5, nullable_since=5, default=None)
    protocol_type: str = string()
    protocols: tuple[JoinGroupRequestProtocol, ...] = array(JoinGroupRequestProtocol)
    reason: str | None = string(since=8, nullable_since=8, default=None)


@dataclass(frozen=True, slots=True)
class JoinGroupResponseMember:
    """A member, for the one that divides the partitions."""

    member_id: str = string()
    group_instance_id: str | None = string(since=5, nullable_since=5, default=None)
    metadata: bytes = byte_string()


@dataclass(frozen=True, slots=True)
class JoinGroupResponse:
    """The new generation. Only its leader gets the members."""

    throttle_time_ms: int = int32(since=2)
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string(since=7, nullable_since=7, default=None)
    protocol_name: str | None = string(nullable_since=7)
    leader: str = string()
    skip_assignment: bool = boolean(since=9)
    member_id: str = string()
    members: tuple[JoinGroupResponseMember, ...] = array(JoinGroupResponseMember)


@dataclass(frozen=True, slots=True)
class SyncGroupRequestAssignment:
    """What a member reads."""

    member_id: str = string()
    assignment: bytes = byte_string()


@dataclass(frozen=True, slots=True)
class SyncGroupRequest:
    """Asks what to read. The leader says what everybody reads."""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable_since=3, default=None)
    protocol_type: str | None = string(since=5, nullable_since=5, default=None)
    protocol_name: str | None = string(since=5, nullable_since=5, default=None)
    assignments: tuple[SyncGroupRequestAssignment, ...] = array(SyncGroupRequestAssignment)


@dataclass(frozen=True, slots=True)
class SyncGroupResponse:
    """What the member reads."""

    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    protocol_type: str | None = string(since=5, nullable_since=5, default=None)
    protocol_name: str | None = string(since=5, nullable_since=5, default=None)
    assignment: bytes = byte_string()


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """Says that the member is alive."""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable_since=3, default=None)


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """Says whether the generation goes on."""

    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """A member that leaves."""

    member_id: str = string(since=3)
    group_instance_id: str | None = string(since=3, nullable_since=3, default=None)
    reason: str | None = string(since=5, nullable_since=5, default=None)


@dataclass(frozen=True, slots=True)
class LeaveGroupRequest:
    """Leaves a group; several members since version 3."""

    group_id: str = string()
    member_id: str = string(until=2)
    members: tuple[MemberIdentity, ...] = array(MemberIdentity, since=3)


@dataclass(frozen=True, slots=True)
class MemberResponse:
    """What became of a member that left."""

    member_id: str = string(since=3)
    group_instance_id: str | None = string(since=3, nullable_since=3, default=None)
    error_code: int = int16(since=3)


@dataclass(frozen=True, slots=True)
class LeaveGroupResponse:
    """What became of the members."""

    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    members: tuple[MemberResponse, ...] = array(MemberResponse, since=3)


@dataclass(frozen=True, slots=True)
class DescribeGroupsRequest:
    """Asks for the members of groups."""

    groups: tuple[str, ...] = array(STRING)
    include_authorized_operations: bool = boolean(since=3)


@dataclass(frozen=True, slots=True)
class DescribedGroupMember:
    """A member, and what it reads."""

    member_id: str = string()
    group_instance_id: str | None = string(since=4, nullable_since=4, default=None)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = byte_string()
    member_assignment: bytes = byte_string()


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group with its members."""

    error_code: int = int16()
    error_message: str | None = string(since=6, nullable_since=6, default=None)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: tuple[DescribedGroupMember, ...] = array(DescribedGroupMember)
    authorized_operations: int = int32(since=3, default=-0x80000000)


@dataclass(frozen=True, slots=True)
class DescribeGroupsResponse:
    """The groups."""

    throttle_time_ms: int = int32(since=1)
    groups: tuple[DescribedGroup, ...] = array(DescribedGroup)


@dataclass(frozen=True, slots=True)
class ListGroupsRequest:
    """Asks for all groups, or for those in some states (KIP-518) and of some types."""

    states_filter: tuple[str, ...] = array(STRING, since=4)
    types_filter: tuple[str, ...] = array(STRING, since=5)


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group."""

    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4)
    group_type: str = string(since=5)


@dataclass(frozen=True, slots=True)
class ListGroupsResponse:
    """The groups that the asked broker coordinates."""

    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    groups: tuple[ListedGroup, ...] = array(ListedGroup)


@dataclass(frozen=True, slots=True)
class DeleteGroupsRequest:
    """Deletes groups without members."""

    groups_names: tuple[str, ...] = array(STRING)


@dataclass(frozen=True, slots=True)
class DeletableGroupResult:
    """What became of a group."""

    group_id: str = string()
    error_code: int = int16()


@dataclass(frozen=True, slots=True)
class DeleteGroupsResponse:
    """What became of the groups."""

    throttle_time_ms: int = int32()
    results: tuple[DeletableGroupResult, ...] = array(DeletableGroupResult)
