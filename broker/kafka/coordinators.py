"""FindCoordinator: which broker coordinates a transactional id.

Any broker may coordinate, because the record of the id decides. All clients are told the same one, so that it remembers
the connections of transaction version 1 (K31).
"""

from collections.abc import Mapping
from typing import Final

from broker.addresses import KafkaNode
from broker.cluster.members import Members
from broker.cluster.placement import worker
from broker.kafka.requests import Api, Asked
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

TRANSACTION_KEY: Final = 1
"""The type of key whose coordinator is that of a transactional id."""

SCHEME: Final = "kafka-transaction://"
NO_NODE: Final = -1

_SINCE_SEVERAL_KEYS: Final = 4


class CoordinatorHandler:
    """Serves FindCoordinator on one connection."""

    def __init__(self, members: Members, me: KafkaNode) -> None:
        """Set up; `me` is this broker as this client reaches it."""
        self._members = members
        self._me = me

    @property
    def apis(self) -> Mapping[ApiKey, Api]:
        """See `Handler`."""
        return {ApiKey.FIND_COORDINATOR: Api(FindCoordinatorRequest, FindCoordinatorResponse, 0, 6, self._find)}

    async def _find(self, request: FindCoordinatorRequest, asked: Asked) -> FindCoordinatorResponse:
        if asked.version >= _SINCE_SEVERAL_KEYS:
            found = [self._coordinator(key, request.key_type) for key in request.coordinator_keys]
            return FindCoordinatorResponse(coordinators=tuple(found))
        one = self._coordinator(request.key, request.key_type)
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    def _coordinator(self, key: str, key_type: int) -> Coordinator:
        if key_type != TRANSACTION_KEY:
            return _none(key, ErrorCode.INVALID_REQUEST, "Groups of Kafka's clients are not served yet.")
        serving = {broker: member for broker, member in self._members.live.items() if member.kafka is not None}
        broker = worker(SCHEME + key, serving)
        node = None if broker is None else serving[broker].kafka
        if node is None:
            return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "All brokers are draining. Ask again later.")
        # This client may reach this broker at another address than others do.
        return Coordinator(key, node.id, *(self._me if node.id == self._me.id else node).address)


def _none(key: str, code: ErrorCode, reason: str) -> Coordinator:
    return Coordinator(key, NO_NODE, port=NO_NODE, error_code=code, error_message=reason)
