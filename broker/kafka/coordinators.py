"""FindCoordinator: which broker coordinates a group or a transactional id.

A group has one coordinator, by a claim. Any broker may coordinate a transactional id, because its record decides. All
clients are told the same one, so that it remembers the connections of transaction version 1 (K31).
"""

from collections.abc import Mapping
from typing import Final

from broker.addresses import KafkaNode
from broker.cluster.duties import living_worker
from broker.cluster.ownership import HasEnded
from broker.kafka.errors import EXPECTED
from broker.kafka.groups.coordinator import GroupCoordinator
from broker.kafka.members import KafkaMembers
from broker.kafka.requests import Api, Asked
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
"""The types of keys: a group, a transactional id."""

SCHEME: Final = "kafka-transaction://"
NO_NODE: Final = -1

_SINCE_SEVERAL_KEYS: Final = 4


class CoordinatorHandler:
    """Serves FindCoordinator on one connection."""

    def __init__(
        self, groups: GroupCoordinator, members: KafkaMembers, has_ended: HasEnded, me: KafkaNode, *, broker_id: str
    ) -> None:
        """Set up.

        Args:
            groups: the groups' coordinator.
            members: the brokers that serve Kafka's clients.
            has_ended: asked before a client is sent to another broker.
            me: this broker as this client reaches it.
            broker_id: the id of this broker.
        """
        self._groups = groups
        self._members = members
        self._has_ended = has_ended
        self._me = me
        self._broker_id = broker_id

    @property
    def apis(self) -> Mapping[ApiKey, Api]:
        """See `Handler`."""
        return {ApiKey.FIND_COORDINATOR: Api(FindCoordinatorRequest, FindCoordinatorResponse, 0, 6, self._find)}

    async def _find(self, request: FindCoordinatorRequest, asked: Asked) -> FindCoordinatorResponse:
        if asked.version >= _SINCE_SEVERAL_KEYS:
            found = [await self._coordinator(key, request.key_type) for key in request.coordinator_keys]
            return FindCoordinatorResponse(coordinators=tuple(found))
        one = await self._coordinator(request.key, request.key_type)
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    async def _coordinator(self, key: str, key_type: int) -> Coordinator:
        try:
            if key_type == GROUP_KEY:
                broker = await self._groups.find(key)
            elif key_type == TRANSACTION_KEY:
                members = self._members.live
                broker = await living_worker(SCHEME + key, members, self._has_ended, me=self._broker_id)
            else:
                return _none(key, ErrorCode.INVALID_REQUEST, f"A key of type {key_type} has no coordinator here.")
        except EXPECTED as error:
            return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
        member = None if broker is None else self._members.live.get(broker)
        node = None if member is None else member.kafka
        if node is None:
            reason = f"The coordinator of {key} is not known at the moment. Ask again."
            return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, reason)
        # This client may reach this broker at another address than others do.
        return Coordinator(key, node.id, *(self._me if node.id == self._me.id else node).address)


def _none(key: str, code: ErrorCode, reason: str) -> Coordinator:
    return Coordinator(key, NO_NODE, port=NO_NODE, error_code=code, error_message=reason)
