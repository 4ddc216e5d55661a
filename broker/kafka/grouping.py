"""Consumer groups on the wire: what their members and their administrators ask.

It translates for `groups/coordinator.py`. A group's errors have the names of Kafka's codes.
"""

from collections.abc import Mapping
from typing import Final

from broker.kafka.beginnings import Beginnings
from broker.kafka.errors import EXPECTED, Refused, code_of
from broker.kafka.groups.coordinator import GroupCoordinator
from broker.kafka.groups.loaded import Refused as GroupRefused
from broker.kafka.groups.loaded import require_name
from broker.kafka.groups.values import GroupError, JoinRequest, Leaver, Protocol, SyncRequest
from broker.kafka.requests import Api, Asked
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

CLASSIC: Final = "classic"
"""The type of all groups here, in the words of KIP-848."""

_SINCE_REBALANCE_TIMEOUT: Final = 1
_SINCE_KNOWN_ID: Final = 4
_SINCE_NO_PROTOCOL: Final = 7
_SINCE_SKIP_ASSIGNMENT: Final = 9
_SINCE_SEVERAL_LEAVERS: Final = 3
_SINCE_MISSING_IS_AN_ERROR: Final = 6


class GroupHandler:
    """Serves the requests about groups on one connection."""

    def __init__(self, groups: GroupCoordinator, beginnings: Beginnings, client_host: str) -> None:
        self._groups = groups
        self._beginnings = beginnings
        self._client_host = client_host

    @property
    def apis(self) -> Mapping[ApiKey, Api]:
        """See `Handler`."""
        return {
            ApiKey.JOIN_GROUP: Api(JoinGroupRequest, JoinGroupResponse, 0, 9, self._join),
            ApiKey.SYNC_GROUP: Api(SyncGroupRequest, SyncGroupResponse, 0, 5, self._sync),
            ApiKey.HEARTBEAT: Api(HeartbeatRequest, HeartbeatResponse, 0, 4, self._heartbeat),
            ApiKey.LEAVE_GROUP: Api(LeaveGroupRequest, LeaveGroupResponse, 0, 5, self._leave),
            ApiKey.DESCRIBE_GROUPS: Api(DescribeGroupsRequest, DescribeGroupsResponse, 0, 6, self._describe),
            ApiKey.LIST_GROUPS: Api(ListGroupsRequest, ListGroupsResponse, 0, 5, self._list),
            ApiKey.DELETE_GROUPS: Api(DeleteGroupsRequest, DeleteGroupsResponse, 0, 2, self._delete),
        }

    # -- members

    async def _join(self, request: JoinGroupRequest, asked: Asked) -> JoinGroupResponse:
        has_rebalance_timeout = asked.version >= _SINCE_REBALANCE_TIMEOUT
        answer = await self._groups.join(
            request.group_id,
            JoinRequest(
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                client_id=asked.client_id,
                client_host=self._client_host,
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=request.rebalance_timeout_ms
                if has_rebalance_timeout
                else request.session_timeout_ms,
                protocol_type=request.protocol_type,
                protocols=tuple(Protocol(one.name, one.metadata) for one in request.protocols),
                needs_known_id=asked.version >= _SINCE_KNOWN_ID,
                can_skip_assignment=asked.version >= _SINCE_SKIP_ASSIGNMENT,
            ),
        )
        return JoinGroupResponse(
            error_code=code(answer.error),
            generation_id=answer.generation,
            protocol_type=answer.protocol_type,
            # Earlier versions have no null here.
            protocol_name=answer.protocol if asked.version >= _SINCE_NO_PROTOCOL else answer.protocol or "",
            leader=answer.leader,
            skip_assignment=answer.skip_assignment,
            member_id=answer.member_id,
            members=tuple(JoinGroupResponseMember(*member) for member in answer.members),
        )

    async def _sync(self, request: SyncGroupRequest, _asked: Asked) -> SyncGroupResponse:
        given = {one.member_id: one.assignment for one in request.assignments}
        answer = await self._groups.sync(
            request.group_id,
            SyncRequest(
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                generation=request.generation_id,
                protocol_type=request.protocol_type,
                protocol=request.protocol_name,
                assignments=given,
                seen=await self._beginnings.counts(given.values()),
            ),
        )
        return SyncGroupResponse(
            error_code=code(answer.error),
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol,
            assignment=answer.assignment,
        )

    async def _heartbeat(self, request: HeartbeatRequest, _asked: Asked) -> HeartbeatResponse:
        group, member = request.group_id, (request.member_id, request.group_instance_id, request.generation_id)
        error = await self._groups.heartbeat(group, *member)
        if error is None and (more := await self._beginnings.more_for(group, request.member_id)):
            # librdkafka looks for children of a split every few minutes only, and whenever it leads and assigns.
            try:
                await self._groups.partitions_are(group, more)
            except GroupRefused as refused:
                return HeartbeatResponse(error_code=code(refused.error))
            error = await self._groups.heartbeat(group, *member)
        return HeartbeatResponse(error_code=code(error))

    async def _leave(self, request: LeaveGroupRequest, asked: Asked) -> LeaveGroupResponse:
        is_one = asked.version < _SINCE_SEVERAL_LEAVERS
        leaving = (MemberIdentity(request.member_id),) if is_one else request.members
        answer = await self._groups.leave(
            request.group_id, [Leaver(one.member_id, one.group_instance_id) for one in leaving]
        )
        error = answer.error
        if is_one and error is None:
            error = answer.members[0]
        return LeaveGroupResponse(
            error_code=code(error),
            members=tuple(
                MemberResponse(one.member_id, one.group_instance_id, code(problem))
                for one, problem in zip(leaving, answer.members, strict=False)
            ),
        )

    # -- administrators

    async def _describe(self, request: DescribeGroupsRequest, asked: Asked) -> DescribeGroupsResponse:
        return DescribeGroupsResponse(
            # Each once: a small request must not ask for the members of a large group a thousand times.
            groups=tuple([await self._described(group, asked.version) for group in dict.fromkeys(request.groups)])
        )

    async def _described(self, name: str, version: int) -> DescribedGroup:
        group = await self._groups.administration.describe(name)
        error, reason = code(group.error), None
        if error == ErrorCode.NONE and group.state == "Dead" and version >= _SINCE_MISSING_IS_AN_ERROR:
            error, reason = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name} not found."
        return DescribedGroup(
            error,
            reason,
            name,
            group.state,
            group.protocol_type,
            group.protocol,
            tuple(DescribedGroupMember(*member) for member in group.members),
        )

    async def _list(self, request: ListGroupsRequest, _asked: Asked) -> ListGroupsResponse:
        try:
            groups = await self._groups.administration.listed()
        except EXPECTED as error:
            return ListGroupsResponse(error_code=code_of(error))
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        if types and CLASSIC not in types:
            groups = []
        return ListGroupsResponse(
            groups=tuple(
                ListedGroup(group.group, group.protocol_type, group.state, CLASSIC)
                for group in groups
                if not states or group.state.lower() in states
            )
        )

    async def _delete(self, request: DeleteGroupsRequest, _asked: Asked) -> DeleteGroupsResponse:
        results = [
            DeletableGroupResult(name, code(await self._groups.administration.delete(name)))
            for name in request.groups_names
        ]
        return DeleteGroupsResponse(results=tuple(results))


def code(error: GroupError | None) -> ErrorCode:
    """The code of a group's error."""
    return ErrorCode.NONE if error is None else ErrorCode[error.name]


def require_group(name: str) -> None:
    """Check the name of a group that takes part in a transaction.

    Raises:
        Refused: no group can have that name.
    """
    try:
        require_name(name)
    except GroupRefused as refused:
        raise Refused(code(refused.error), str(refused)) from None
