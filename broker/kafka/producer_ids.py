"""InitProducerId: numbers for producers. A transactional id is refused, because transactions are not served yet."""

from collections.abc import Mapping

from broker.kafka.errors import EXPECTED, code_of
from broker.kafka.requests import Api, Asked
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from txn.producer_ids import ProducerIds


class ProducerIdHandler:
    """Serves InitProducerId on one connection."""

    def __init__(self, ids: ProducerIds) -> None:
        self._ids = ids

    @property
    def apis(self) -> Mapping[ApiKey, Api]:
        """See `Handler`."""
        return {ApiKey.INIT_PRODUCER_ID: Api(InitProducerIdRequest, InitProducerIdResponse, 0, 5, self._init)}

    async def _init(self, request: InitProducerIdRequest, _asked: Asked) -> InitProducerIdResponse:
        if request.transactional_id is not None:
            return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)
        try:
            return InitProducerIdResponse(producer_id=await self._ids.take())
        except EXPECTED as error:
            return InitProducerIdResponse(error_code=code_of(error))
