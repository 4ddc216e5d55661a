"""Produce: record batches into partitions, stored as they came.

A batch is checked once: its checksum, its counts, and the sequence of a numbered producer. Then it is an entry. The
response follows when it is durable, whatever `acks` says. With `acks=0` there is no response, and a refusal ends the
connection, as in Kafka: its client learns of it in no other way.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import trio

from broker.kafka.errors import EXPECTED, Refused, produce_code_of
from broker.kafka.markers import numbered
from broker.kafka.requests import Api, Asked, ConnectionEnds, Later, take_turns
from broker.kafka.topic_settings import ProduceRules
from broker.kafka.topics import KafkaTopics
from broker.topic import Topic
from broker.tracing.spans import Span
from broker.traffic import Traffic
from storage.entry import EntryFormat
from storage.ledger_record import NO_RECORDS
from storage.position import Position
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tidewire.wire.kafka.record_batches import NO_PRODUCER_ID, Compression, batches, check, stamped
from txn.kafka_transaction import Producer
from txn.partition_transactions import Sender
from txn.producer_states import Duplicate

ACKS: Final = frozenset({-1, 0, 1})

SINCE_IMPLICIT: Final = 12
"""The first version whose batches add their partition to the transaction (KIP-890)."""

BATCHES_AT_ONCE: Final = 16
"""Batches that are checked before other tasks have a turn. A checksum of 1 MiB takes about 0.1 ms."""


class Within(NamedTuple):
    """The transaction of a request."""

    transactional_id: str
    version: int
    """The transaction version."""


@dataclass(slots=True)
class _Appended:
    """What became of one partition's batches, and what its response waits for."""

    index: int
    topic: Topic | None = None
    upto: Position | None = None
    base_offset: int = -1
    stamped_ms: int = -1
    """The broker's time, if the records have it."""
    error: Exception | None = None
    messages: int = 0
    size: int = 0
    arrived: float = field(default_factory=trio.current_time)
    spans: list[Span] = field(default_factory=list)
    """Those of its traced records."""


class ProduceHandler:
    """Serves Produce on one connection."""

    def __init__(self, topics: KafkaTopics, traffic: Traffic) -> None:
        self._topics = topics
        self._traffic = traffic

    @property
    def apis(self) -> Mapping[ApiKey, Api]:
        """See `Handler`. Version 3 is the first with the batches of today; earlier ones are refused by their format."""
        return {ApiKey.PRODUCE: Api(ProduceRequest, ProduceResponse, 0, 12, self._produce)}

    async def _produce(self, request: ProduceRequest, asked: Asked) -> Later | None:
        within = None
        if request.transactional_id is not None:
            within = Within(request.transactional_id, 2 if asked.version >= SINCE_IMPLICIT else 1)
        appended: list[tuple[str, list[_Appended]]] = []
        count = 0
        for topic in request.topic_data:
            results = []
            for data in topic.partition_data:
                await take_turns(count, BATCHES_AT_ONCE)
                count += 1
                results.append(await self._append(topic.name, data, request.acks, within))
            appended.append((topic.name, results))
        if request.acks == 0:
            for name, results in appended:
                for result in results:
                    if result.error is not None:
                        raise ConnectionEnds(f"batches for {name} were refused: {result.error}")
            return None
        return Later(partial(self._respond, appended, request.timeout_ms))

    async def _append(self, name: str, data: PartitionProduceData, acks: int, within: Within | None) -> _Appended:
        result = _Appended(data.index)
        try:
            if acks not in ACKS:
                raise Refused(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks} means nothing; use all, 1 or 0.")
            result.topic = topic = await self._topics.writable(name, data.index)
            await self._append_batches(topic, self._topics.rules(name), data.records or b"", within, result)
        except EXPECTED as error:
            result.error = error
        return result

    async def _append_batches(
        self, topic: Topic, rules: ProduceRules, records: bytes, within: Within | None, result: _Appended
    ) -> None:
        # All are checked before one is appended. Only a wrong sequence or a full disk can then refuse some of them.
        checked = []
        for header, batch in batches(records):
            if len(batch) > rules.batch_bytes_max:
                raise Refused(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"A batch has {len(batch)} bytes; the maximum is {rules.batch_bytes_max}. Lower batch.size or "
                    "max.request.size, or raise the topic's max.message.bytes or the broker's message_bytes_max.",
                )
            check(header, batch)
            if header.is_control:
                raise Refused(ErrorCode.INVALID_RECORD, "Only brokers write control batches.")
            if header.is_log_append_time:
                raise Refused(ErrorCode.INVALID_TIMESTAMP, "Only brokers set the timestamp type LogAppendTime.")
            if header.compression not in set(Compression):
                raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"{header.compression} is no known compression.")
            if header.is_transactional and within is None:
                raise Refused(ErrorCode.INVALID_TXN_STATE, "A batch of a transaction comes without a transactional id.")
            if header.producer_id != NO_PRODUCER_ID:
                if min(header.producer_id, header.producer_epoch, header.base_sequence) < 0:
                    raise Refused(
                        ErrorCode.INVALID_RECORD,
                        f"A batch has the producer id {header.producer_id}, the epoch {header.producer_epoch} and the "
                        f"sequence {header.base_sequence}. None of them may be negative.",
                    )
            elif header.is_transactional:
                # It would be in no transaction, and be read at once.
                raise Refused(ErrorCode.INVALID_RECORD, "A batch of a transaction comes without a producer id.")
            checked.append((header, batch))
        if not checked:
            raise Refused(ErrorCode.INVALID_RECORD, "A partition of a Produce request has no record batch.")
        for header, batch in checked:
            sender = None
            if header.is_transactional and within is not None:
                producer = Producer(header.producer_id, header.producer_epoch)
                sender = Sender(within.transactional_id, producer, within.version)
            stored = await topic.publish_batch(
                batch,
                message_count=header.record_count,
                latest_record_ms=max(NO_RECORDS, header.max_timestamp_ms),
                batch=numbered(header),
                sender=sender,
                stamp=stamped if rules.is_log_append_time else None,
            )
            if rules.is_log_append_time:
                result.stamped_ms = stored.timestamp_ms
            if result.base_offset < 0:
                result.base_offset = stored.base_offset
            if topic.spans is not None and not isinstance(stored, Duplicate):
                result.spans += topic.spans.appended(
                    batch,
                    header.record_count,
                    EntryFormat.KAFKA,
                    transaction=None if sender is None else sender.transactional_id,
                    waited_seconds=trio.current_time() - result.arrived,
                )
            # Also for a duplicate: it is durable when all is that was appended before.
            result.upto = topic.ledger.last_position
            result.messages += header.record_count
            result.size += len(batch)

    async def _respond(self, appended: list[tuple[str, list[_Appended]]], timeout_ms: int) -> ProduceResponse:
        with trio.move_on_after(max(0, timeout_ms) / 1000):
            for _name, results in appended:
                for result in results:
                    await _wait_durable(result)
        return ProduceResponse(
            tuple(
                TopicProduceResponse(name, tuple([self._part(result) for result in results]))
                for name, results in appended
            )
        )

    def _part(self, result: _Appended) -> PartitionProduceResponse:
        if result.error is not None:
            code = produce_code_of(result.error)
            return PartitionProduceResponse(result.index, code, error_message=str(result.error))
        assert result.topic is not None, "without an error, it was appended"
        assert result.upto is not None, "without an error, it was appended"
        ledger = result.topic.ledger
        if ledger.confirmed.value < result.upto:
            return PartitionProduceResponse(result.index, ErrorCode.REQUEST_TIMED_OUT)
        self._traffic.messages_in += result.messages
        self._traffic.bytes_in += result.size
        self._traffic.kafka.publish.count(trio.current_time() - result.arrived)
        for span in result.spans:
            span.end()
        return PartitionProduceResponse(
            result.index,
            base_offset=result.base_offset,
            log_append_time_ms=result.stamped_ms,
            log_start_offset=ledger.first_index,
        )


async def _wait_durable(result: _Appended) -> None:
    if result.topic is not None and result.upto is not None and result.error is None:
        try:
            await result.topic.ledger.confirmed.wait_for(result.upto)
        except EXPECTED as error:
            result.error = error
