"""Transactions on the wire: InitProducerId, the two Add* requests, and EndTxn (KIP-98, KIP-360, KIP-890).

It translates for `txn/kafka_coordinator.py`. The version of a request says which transaction version its client speaks.
"""

from collections.abc import Mapping
from typing import Final

import trio

from broker.kafka.errors import EXPECTED, Refused, coordinator_code_of
from broker.kafka.grouping import require_group
from broker.kafka.kafka_topic import WRITE_OTHERWISE
from broker.kafka.requests import Api, Asked
from broker.kafka.topics import KafkaTopics
from broker.traffic import Traffic
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from txn.kafka_coordination import EndTxn, InitProducerId
from txn.kafka_coordinator import OF_GROUPS, KafkaCoordinator
from txn.kafka_participants import Kind, Participant
from txn.kafka_transaction import Producer
from txn.producer_ids import ProducerIds

NO_PRODUCER_ID: Final = -1
SINCE_EPOCH: Final = 5
"""The first version of EndTxn that gives the producer its next epoch: transaction version 2 (KIP-890)."""

_SINCE_FENCED: Final = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""The first version of each request that knows PRODUCER_FENCED (KIP-588)."""


class TransactionHandler:
    """Serves the requests about transactions on one connection."""

    def __init__(
        self,
        coordinator: KafkaCoordinator,
        ids: ProducerIds,
        topics: KafkaTopics,
        traffic: Traffic,
        connection: int,
    ) -> None:
        """Set up. `connection` is higher than that of every connection accepted before (K31)."""
        self._coordinator = coordinator
        self._ids = ids
        self._topics = topics
        self._traffic = traffic
        self._connection = connection

    @property
    def apis(self) -> Mapping[ApiKey, Api]:
        """See `Handler`."""
        return {
            ApiKey.INIT_PRODUCER_ID: Api(InitProducerIdRequest, InitProducerIdResponse, 0, 5, self._init),
            ApiKey.ADD_PARTITIONS_TO_TXN: Api(AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, 0, 3, self._add),
            ApiKey.ADD_OFFSETS_TO_TXN: Api(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, 0, 4, self._add_offsets),
            ApiKey.END_TXN: Api(EndTxnRequest, EndTxnResponse, 0, 5, self._end),
        }

    async def _init(self, request: InitProducerIdRequest, asked: Asked) -> InitProducerIdResponse:
        try:
            if request.transactional_id is None:
                return InitProducerIdResponse(producer_id=await self._ids.take())
            known = Producer(request.producer_id, request.producer_epoch)
            expected = None if request.producer_id == NO_PRODUCER_ID else known
            wanted = InitProducerId(request.transaction_timeout_ms, expected)
            producer = await self._coordinator.initialise(request.transactional_id, wanted)
        except EXPECTED as error:
            return InitProducerIdResponse(error_code=_known_code_of(error, ApiKey.INIT_PRODUCER_ID, asked))
        return InitProducerIdResponse(producer_id=producer.id, producer_epoch=producer.epoch)

    async def _add(self, request: AddPartitionsToTxnRequest, asked: Asked) -> AddPartitionsToTxnResponse:
        joining: list[tuple[Participant, str]] = []
        codes: dict[tuple[str, int], ErrorCode] = {}
        for topic in request.topics:
            for index in topic.partitions:
                try:
                    joining.append(await self._participant(topic.name, index))
                    codes[topic.name, index] = ErrorCode.NONE
                except EXPECTED as error:
                    codes[topic.name, index] = coordinator_code_of(error)
        if any(codes.values()):
            # As in Kafka: none is added if one cannot be.
            codes = {place: code or ErrorCode.OPERATION_NOT_ATTEMPTED for place, code in codes.items()}
        else:
            producer = Producer(request.producer_id, request.producer_epoch)
            try:
                await self._coordinator.add(request.transactional_id, producer, joining, self._connection)
            except EXPECTED as error:
                codes = dict.fromkeys(codes, _known_code_of(error, ApiKey.ADD_PARTITIONS_TO_TXN, asked))
        return AddPartitionsToTxnResponse(
            results_by_topic=tuple(
                AddPartitionsToTxnTopicResult(
                    topic.name,
                    tuple(
                        AddPartitionsToTxnPartitionResult(index, codes[topic.name, index]) for index in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    async def _participant(self, name: str, index: int) -> tuple[Participant, str]:
        """A partition, and the creation id of its topic, which is made if there is none yet.

        A partition that is loaded here knows its own. If its topic was deleted at this moment, nothing can be written
        under the old id (`txn/kafka_settlement.py`).
        """
        running = await self._topics.running(name, index)
        if running is not None and running.scalable_topic is None:
            return Participant(Kind.PARTITION, running.ledger.name), running.ledger.creation_id
        if (await self._topics.find(name)).layout is not None:
            # The response has no room for a reason. At this code each client lets its user abort. At others some end.
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{name} is a scalable topic. {WRITE_OTHERWISE}")
        regular, creation_id = await self._topics.made(name, index)
        return Participant(Kind.PARTITION, str(regular)), creation_id

    async def _add_offsets(self, request: AddOffsetsToTxnRequest, asked: Asked) -> AddOffsetsToTxnResponse:
        producer = Producer(request.producer_id, request.producer_epoch)
        joining = [(Participant(Kind.GROUP, request.group_id), OF_GROUPS)]
        try:
            require_group(request.group_id)
            await self._coordinator.add(request.transactional_id, producer, joining, self._connection)
        except EXPECTED as error:
            return AddOffsetsToTxnResponse(error_code=_known_code_of(error, ApiKey.ADD_OFFSETS_TO_TXN, asked))
        return AddOffsetsToTxnResponse()

    async def _end(self, request: EndTxnRequest, asked: Asked) -> EndTxnResponse:
        producer = Producer(request.producer_id, request.producer_epoch)
        end = EndTxn(producer, request.committed, 2 if asked.version >= SINCE_EPOCH else 1)
        arrived = trio.current_time()
        try:
            following = await self._coordinator.end(request.transactional_id, end, self._connection)
        except EXPECTED as error:
            return EndTxnResponse(error_code=_known_code_of(error, ApiKey.END_TXN, asked))
        if request.committed:
            self._traffic.kafka.commit.count(trio.current_time() - arrived)
        return EndTxnResponse(producer_id=following.id, producer_epoch=following.epoch)


def _known_code_of(error: Exception, key: ApiKey, asked: Asked) -> ErrorCode:
    """As `coordinator_code_of`. A client before PRODUCER_FENCED gets the code that told it the same."""
    code = coordinator_code_of(error)
    is_known = code != ErrorCode.PRODUCER_FENCED or asked.version >= _SINCE_FENCED[key]
    return code if is_known else ErrorCode.INVALID_PRODUCER_EPOCH
