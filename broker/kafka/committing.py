"""The offsets of groups on the wire: OffsetCommit, OffsetFetch and OffsetDelete."""

from collections.abc import Mapping, Sequence
from typing import Final

from broker.kafka.beginnings import START, Beginnings
from broker.kafka.errors import EXPECTED, coordinator_code_of
from broker.kafka.grouping import code, require_group
from broker.kafka.groups.coordinator import CommitRequest, GroupCoordinator, InTransaction, TopicsChanged
from broker.kafka.groups.loaded import refusal
from broker.kafka.groups.offsets import FetchedOffset, Offset, TopicPartition
from broker.kafka.groups.values import GroupError
from broker.kafka.requests import Api, Asked
from broker.kafka.topics import KafkaTopics
from storage.clock import WallClock
from storage.errors import ExpectedError
from storage.metadata.store import Check
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from tidewire.wire.kafka.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from txn.kafka_coordinator import KafkaCoordinator
from txn.kafka_transaction import Producer

NO_OFFSET: Final = -1
Committed = Sequence[OffsetCommitRequestTopic] | Sequence[TxnOffsetCommitRequestTopic]
_SINCE_SEVERAL_GROUPS: Final = 8
_SINCE_IMPLICIT: Final = 5
"""The first version that adds the group to the transaction (KIP-890)."""


class OffsetHandler:
    """Serves the requests about committed offsets on one connection."""

    def __init__(
        self,
        groups: GroupCoordinator,
        beginnings: Beginnings,
        coordinator: KafkaCoordinator,
        topics: KafkaTopics,
        now_ms: WallClock,
    ) -> None:
        self._groups = groups
        self._beginnings = beginnings
        self._coordinator = coordinator
        self._topics = topics
        self._now_ms = now_ms

    @property
    def apis(self) -> Mapping[ApiKey, Api]:
        """See `Handler`. Later versions name topics by their ids."""
        return {
            ApiKey.OFFSET_COMMIT: Api(OffsetCommitRequest, OffsetCommitResponse, 2, 9, self._commit),
            ApiKey.OFFSET_FETCH: Api(OffsetFetchRequest, OffsetFetchResponse, 1, 9, self._fetch),
            ApiKey.TXN_OFFSET_COMMIT: Api(
                TxnOffsetCommitRequest, TxnOffsetCommitResponse, 0, 5, self._commit_in_transaction
            ),
            ApiKey.OFFSET_DELETE: Api(OffsetDeleteRequest, OffsetDeleteResponse, 0, 0, self._delete),
        }

    async def _commit(self, request: OffsetCommitRequest, _asked: Asked) -> OffsetCommitResponse:
        kept_ms = request.retention_time_ms
        expires_ms = None if kept_ms < 0 else self._now_ms() + kept_ms
        member = request.member_id, request.group_instance_id, request.generation_id
        while True:
            offsets, codes, conditions = await self._existing(request.topics, expires_ms)
            try:
                errors = await self._groups.commit(request.group_id, CommitRequest(offsets, *member, topics=conditions))
                break
            except TopicsChanged:
                continue
        codes |= {place: code(error) for place, error in errors.items()}
        return OffsetCommitResponse(topics=answered(request.topics, codes))

    async def _commit_in_transaction(self, request: TxnOffsetCommitRequest, asked: Asked) -> TxnOffsetCommitResponse:
        try:
            require_group(request.group_id)
            codes = await self._commit_within(request, 2 if asked.version >= _SINCE_IMPLICIT else 1)
        except EXPECTED as error:
            problem = coordinator_code_of(error)
            if problem == ErrorCode.PRODUCER_FENCED:
                # As in Kafka: no version of this response has had another code for it.
                problem = ErrorCode.INVALID_PRODUCER_EPOCH
            places = [
                TopicPartition(one.name, part.partition_index) for one in request.topics for part in one.partitions
            ]
            codes = dict.fromkeys(places, problem)
        return TxnOffsetCommitResponse(topics=answered(request.topics, codes))

    async def _commit_within(self, request: TxnOffsetCommitRequest, version: int) -> dict[TopicPartition, ErrorCode]:
        """Defer the offsets to the end of the transaction, or raise why it does not take them."""
        producer = Producer(request.producer_id, request.producer_epoch)
        while True:
            offsets, codes, existing = await self._existing(request.topics, None)
            conditions = await self._coordinator.admit_group(
                request.transactional_id, producer, request.group_id, version=version
            )
            try:
                errors = await self._groups.commit(
                    request.group_id,
                    CommitRequest(
                        offsets,
                        request.member_id,
                        request.group_instance_id,
                        request.generation_id,
                        InTransaction(request.transactional_id, conditions),
                        existing,
                    ),
                )
            except TopicsChanged:
                continue
            if GroupError.INVALID_TXN_STATE not in errors.values():
                return codes | {place: code(error) for place, error in errors.items()}
            # The transaction has changed since it admitted the group. It says itself what that means for the client.

    async def _existing(
        self, topics: Committed, expires_ms: int | None
    ) -> tuple[dict[TopicPartition, Offset], dict[TopicPartition, ErrorCode], dict[str, Check]]:
        """The offsets of partitions that exist, the codes of the others, and conditions that hold while they exist.

        A commit without them could come behind the deletion of the topic. A later topic of its name would begin there.
        """
        offsets: dict[TopicPartition, Offset] = {}
        codes: dict[TopicPartition, ErrorCode] = {}
        conditions: dict[str, Check] = {}
        for topic in topics:
            try:
                found = await self._topics.find(topic.name)
                count, problem = found.partition_count, ErrorCode.NONE
                if found.unchanged is not None:
                    conditions[topic.name] = found.unchanged
            except EXPECTED as error:
                count, problem = 0, coordinator_code_of(error)
            for part in topic.partitions:
                place = TopicPartition(topic.name, part.partition_index)
                if 0 <= part.partition_index < count:
                    epoch, text = part.committed_leader_epoch, part.committed_metadata or ""
                    offsets[place] = Offset(part.committed_offset, epoch, text, expires_ms=expires_ms)
                else:
                    codes[place] = problem or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return offsets, codes, conditions

    async def _fetch(self, request: OffsetFetchRequest, asked: Asked) -> OffsetFetchResponse:
        if asked.version >= _SINCE_SEVERAL_GROUPS:
            groups = []
            # Each once: a small request must not ask for the offsets of a large group a thousand times.
            for group in {group.group_id: group for group in request.groups}.values():
                topics, error = await self._fetched(group.group_id, group.topics, request.require_stable)
                groups.append(OffsetFetchResponseGroup(group.group_id, topics, error))
            return OffsetFetchResponse(groups=tuple(groups))
        topics, error = await self._fetched(request.group_id, request.topics, request.require_stable)
        return OffsetFetchResponse(topics=topics, error_code=error)

    async def _fetched(
        self,
        group: str,
        topics: tuple[OffsetFetchRequestTopic, ...] | None,
        requires_stable: bool,
    ) -> tuple[tuple[OffsetFetchResponseTopic, ...], ErrorCode]:
        wanted: dict[str, list[int]] = {}
        for topic in topics or ():
            wanted.setdefault(topic.name, []).extend(topic.partition_indexes)
        places = [TopicPartition(name, index) for name, indexes in wanted.items() for index in indexes]
        found = await self._groups.fetch(group, None if topics is None else places, requires_stable=requires_stable)
        if isinstance(found, GroupError):
            return (), code(found)
        if topics is None:
            for place in found:
                wanted.setdefault(place.topic, []).append(place.partition)
        else:
            try:
                found |= dict.fromkeys(await self._beginnings.found(group, found), START)
            except ExpectedError as error:
                return (), code(refusal(error).error)
        return (
            tuple(
                OffsetFetchResponseTopic(
                    name, tuple(_part(index, found.get(TopicPartition(name, index))) for index in indexes)
                )
                for name, indexes in wanted.items()
            ),
            ErrorCode.NONE,
        )

    async def _delete(self, request: OffsetDeleteRequest, _asked: Asked) -> OffsetDeleteResponse:
        places = [
            TopicPartition(topic.name, part.partition_index) for topic in request.topics for part in topic.partitions
        ]
        errors = await self._groups.administration.delete_offsets(request.group_id, places)
        if isinstance(errors, GroupError):
            return OffsetDeleteResponse(code(errors))
        codes = {place: code(error) for place, error in errors.items()}
        return OffsetDeleteResponse(topics=answered(request.topics, codes))


def answered(
    topics: Committed | Sequence[OffsetDeleteRequestTopic], codes: Mapping[TopicPartition, ErrorCode]
) -> tuple[OffsetCommitResponseTopic, ...]:
    """The codes in the order of the request."""
    return tuple(
        OffsetCommitResponseTopic(
            topic.name,
            tuple(
                OffsetCommitResponsePartition(
                    part.partition_index, codes[TopicPartition(topic.name, part.partition_index)]
                )
                for part in topic.partitions
            ),
        )
        for topic in topics
    )


def _part(index: int, found: FetchedOffset | None) -> OffsetFetchResponsePartition:
    if found is None or found.offset is None:
        error = ErrorCode.NONE if found is None else code(found.error)
        return OffsetFetchResponsePartition(index, NO_OFFSET, metadata="", error_code=error)
    offset = found.offset
    return OffsetFetchResponsePartition(index, offset.offset, offset.leader_epoch, offset.metadata)
