"""What administrators ask about producers and transactions (KIP-664): ListTransactions and both Describe* requests."""

from collections.abc import Iterable, Mapping
from typing import Final

from broker.cluster.placement import worker
from broker.kafka.coordinators import SCHEME
from broker.kafka.errors import EXPECTED, SegmentPruned, code_of
from broker.kafka.members import KafkaMembers
from broker.kafka.requests import Api, Asked, take_turns
from broker.kafka.topics import KafkaTopics
from broker.names import TopicName
from storage.clock import WallClock
from storage.metadata.store import MetadataStore, starting_with
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.messages.transactions import (
    AddPartitionsToTxnTopic,
    DescribedPartition,
    DescribedTopic,
    DescribedTransaction,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ProducerState,
)
from txn.id_pattern import IdPattern
from txn.kafka_listing import ListFilter, described
from txn.kafka_participants import Registration, registrations_of
from txn.kafka_transaction import (
    KEY_PREFIX,
    KafkaTransaction,
    required_transaction,
    transaction_key,
    transactional_id_of,
)
from txn.unreadable import Unreadable

PAGE: Final = 500


class InspectionHandler:
    """Serves these requests on one connection."""

    def __init__(
        self, topics: KafkaTopics, metadata: MetadataStore, members: KafkaMembers, now_ms: WallClock, *, me: str
    ) -> None:
        """Set up; `me` is the id of this broker."""
        self._topics = topics
        self._metadata = metadata
        self._members = members
        self._now_ms = now_ms
        self._me = me
        self._unreadable = Unreadable()

    @property
    def apis(self) -> Mapping[ApiKey, Api]:
        """See `Handler`."""
        return {
            ApiKey.DESCRIBE_PRODUCERS: Api(DescribeProducersRequest, DescribeProducersResponse, 0, 0, self._producers),
            ApiKey.DESCRIBE_TRANSACTIONS: Api(
                DescribeTransactionsRequest, DescribeTransactionsResponse, 0, 0, self._describe
            ),
            ApiKey.LIST_TRANSACTIONS: Api(ListTransactionsRequest, ListTransactionsResponse, 0, 2, self._list),
        }

    async def _producers(self, request: DescribeProducersRequest, _asked: Asked) -> DescribeProducersResponse:
        # Each once. Otherwise a small request could ask for a very large response.
        wanted: dict[str, dict[int, None]] = {}
        for topic in request.topics:
            wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions))
        topics = []
        for name, indexes in wanted.items():
            parts = [await self._producers_of(name, index) for index in indexes]
            topics.append(DescribedTopic(name, tuple(parts)))
        return DescribeProducersResponse(topics=tuple(topics))

    async def _producers_of(self, name: str, index: int) -> DescribedPartition:
        try:
            topic = await self._topics.partition(name, index)
        except SegmentPruned:
            return DescribedPartition(index)
        except EXPECTED as error:
            return DescribedPartition(index, code_of(error), str(error))
        if not topic.has_markers:
            # Kafka's producers cannot write there.
            return DescribedPartition(index)
        found = []
        for number, (producer_id, state, first) in enumerate(topic.markers.active_producers()):
            await take_turns(number)
            last = state.batches[-1].last_sequence if state.batches else -1
            offset = -1 if first is None else first
            found.append(ProducerState(producer_id, state.epoch, last, state.last_ms, state.coordinator_epoch, offset))
        return DescribedPartition(index, active_producers=tuple(found))

    async def _describe(self, request: DescribeTransactionsRequest, _asked: Asked) -> DescribeTransactionsResponse:
        states = [await self._described(each) for each in request.transactional_ids]
        return DescribeTransactionsResponse(transaction_states=tuple(states))

    async def _described(self, transactional_id: str) -> DescribedTransaction:
        try:
            key = transaction_key(transactional_id)
            record = required_transaction((await self._metadata.fresh([key])).records[key])
            found = described(transactional_id, record, await self._registrations(transactional_id))
        except EXPECTED as error:
            return DescribedTransaction(code_of(error), transactional_id)
        return DescribedTransaction(
            transactional_id=transactional_id,
            transaction_state=found.state,
            transaction_timeout_ms=found.timeout_ms,
            transaction_start_time_ms=found.started_ms,
            producer_id=found.producer.id,
            producer_epoch=found.producer.epoch,
            topics=_by_topic(found.partitions),
        )

    async def _registrations(self, transactional_id: str) -> list[Registration]:
        found: list[Registration] = []
        start, end = registrations_of(transactional_id)
        while page := await self._metadata.scan(start, end, limit=PAGE):
            for record in page:
                with self._unreadable.reading(record.key):
                    found.append(Registration.from_record(record))
            start = page[-1].key + "\0"
        return found

    async def _list(self, request: ListTransactionsRequest, _asked: Asked) -> ListTransactionsResponse:
        wanted = ListFilter(request.state_filters, request.producer_id_filters, request.duration_filter_ms)
        asked = request.transactional_id_pattern
        found: list[ListedTransaction] = []
        start, end = starting_with(KEY_PREFIX)
        try:
            pattern = IdPattern(asked) if asked else None
            while page := await self._metadata.scan(start, end, limit=PAGE):
                members = self._members.live
                for number, record in enumerate(page):
                    await take_turns(number)
                    transactional_id = transactional_id_of(record.key)
                    if worker(SCHEME + transactional_id, members) != self._me:
                        continue
                    if pattern is not None and not pattern.matches(transactional_id):
                        continue
                    with self._unreadable.reading(record.key):
                        known = KafkaTransaction.from_value(record.value)
                        if wanted.matches(known, self._now_ms()):
                            found.append(ListedTransaction(transactional_id, known.producer.id, known.state))
                start = page[-1].key + "\0"
        except EXPECTED as error:
            return ListTransactionsResponse(error_code=code_of(error))
        return ListTransactionsResponse(
            unknown_state_filters=tuple(wanted.unknown_states), transaction_states=tuple(found)
        )


def _by_topic(partitions: Iterable[str]) -> tuple[AddPartitionsToTxnTopic, ...]:
    """Regular topics as partitions of Kafka's topics."""
    found: dict[str, list[int]] = {}
    for each in partitions:
        name = TopicName.parse(each)
        found.setdefault(name.partitioned_topic.local, []).append(name.partition_index or 0)
    return tuple(AddPartitionsToTxnTopic(topic, tuple(sorted(indexes))) for topic, indexes in sorted(found.items()))
