"""A transactional producer of Kafka's protocol, over a `KafkaClient`.

With transaction version 2 it adds nothing to a transaction before it writes, and each end gives it the next epoch.
"""

from tests.support.kafka_batches import batch
from tests.support.kafka_connection import KafkaClient, produce_request
from tidewire.wire.kafka.messages.produce import PartitionProduceResponse, ProduceResponse
from tidewire.wire.kafka.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

Place = tuple[str, int]


class TransactionalProducer:
    """One transactional id."""

    def __init__(self, client: KafkaClient, transactional_id: str, version: int = 1) -> None:
        self.client = client
        self.version = version
        self.transactional_id = transactional_id
        self.producer_id = -1
        self.epoch = -1
        self.sequences: dict[Place, int] = {}

    async def begin_session(self, timeout_ms: int = 60_000) -> int:
        """InitProducerId. Returns the error code."""
        request = InitProducerIdRequest(self.transactional_id, timeout_ms)
        answer = await self.client.ask(request, InitProducerIdResponse, 4)
        if answer.error_code == 0:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences = {}
        return answer.error_code

    async def add(self, *places: Place) -> set[int]:
        """AddPartitionsToTxn. Returns the error codes."""
        if self.version == 2:
            return {0}
        topics = tuple(AddPartitionsToTxnTopic(topic, (partition,)) for topic, partition in places)
        request = AddPartitionsToTxnRequest(self.transactional_id, self.producer_id, self.epoch, topics)
        answer = await self.client.ask(request, AddPartitionsToTxnResponse, 3)
        return {one.partition_error_code for topic in answer.results_by_topic for one in topic.results_by_partition}

    async def send(self, topic: str, *values: bytes, partition: int = 0) -> PartitionProduceResponse:
        """Produce a batch in the transaction."""
        place = topic, partition
        sequence = self.sequences.get(place, 0)
        made = batch(self.producer_id, self.epoch, sequence, len(values), in_txn=True, values=values)
        request = produce_request(topic, made, partition=partition, transactional_id=self.transactional_id)
        answer = await self.client.ask(request, ProduceResponse, 9 if self.version == 1 else 12)
        result = answer.responses[0].partition_responses[0]
        if result.error_code == 0:
            self.sequences[place] = sequence + len(values)
        return result

    async def add_group(self, group: str) -> int:
        """AddOffsetsToTxn. Returns the error code."""
        if self.version == 2:
            return 0
        request = AddOffsetsToTxnRequest(self.transactional_id, self.producer_id, self.epoch, group)
        return (await self.client.ask(request, AddOffsetsToTxnResponse, 3)).error_code

    async def commit_offset(
        self, group: str, topic: str, offset: int, *, partition: int = 0, generation: int = -1, member: str = ""
    ) -> int:
        """TxnOffsetCommit for one partition. Returns the error code."""
        topics = (TxnOffsetCommitRequestTopic(topic, (TxnOffsetCommitRequestPartition(partition, offset, -1, ""),)),)
        request = TxnOffsetCommitRequest(
            self.transactional_id, group, self.producer_id, self.epoch, generation, member, None, topics
        )
        answer = await self.client.ask(request, TxnOffsetCommitResponse, 3 if self.version == 1 else 5)
        return answer.topics[0].partitions[0].error_code

    async def end(self, *, is_commit: bool) -> int:
        """EndTxn. Returns the error code."""
        request = EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, is_commit)
        answer = await self.client.ask(request, EndTxnResponse, 3 if self.version == 1 else 5)
        if self.version == 2 and answer.error_code == 0:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences = {}
        return answer.error_code
