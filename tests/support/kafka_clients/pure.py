"""kafka-python, which is Python alone. Its consumers talk to the broker in `poll`, and in a thread for heartbeats."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition, errors
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from tests.support.kafka_clients.contract import (
    CALL_SECONDS_MAX,
    Committed,
    ConsumerOptions,
    Described,
    Got,
    Header,
    Place,
    ProducerOptions,
    Refused,
    Sent,
    Spec,
    got,
)

STRATEGIES: Final = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


SPECS: Final[Mapping[Spec, OffsetSpec]] = {
    "earliest": OffsetSpec.EARLIEST,
    "latest": OffsetSpec.LATEST,
    "max-timestamp": OffsetSpec.MAX_TIMESTAMP,
}

# The records of its log hold the sockets of attempts to connect, which it never closes, and pytest keeps the records.
logging.getLogger("kafka").setLevel(logging.CRITICAL)


@contextmanager
def _renamed() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        raise _refused(error) from error


def call(asked: Callable[..., Any], *arguments: Any) -> Any:
    """Call the client. Its error becomes `Refused`."""
    with _renamed():
        return asked(*arguments)


def _refused(error: BaseException) -> Refused:
    return Refused(getattr(error, "errno", None) or -1, repr(error))


def _named(offsets: Mapping[Place, Committed]) -> dict[Any, Any]:
    return {TopicPartition(*place): OffsetAndMetadata(*one, -1) for place, one in offsets.items()}


class PureProducer:
    """See `Producer`."""

    def __init__(self, address: str, options: ProducerOptions) -> None:
        self._producer: Any = KafkaProducer(
            bootstrap_servers=address,
            compression_type=None if options.codec == "none" else options.codec,
            acks="all" if options.acks == "all" else int(options.acks),
            enable_idempotence=options.idempotent or options.transactional_id is not None,
            transactional_id=options.transactional_id,
            transaction_timeout_ms=options.transaction_timeout_ms,
            max_request_size=options.message_bytes_max,
            batch_size=options.message_bytes_max,
            linger_ms=options.linger_ms,
        )

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Sequence[Header] = (),
        timestamp_ms: int | None = None,
    ) -> "Future[Sent]":
        future: Future[Sent] = Future()
        with _renamed():
            asked = self._producer.send(topic, value, key, list(headers), partition, timestamp_ms)
        asked.add_callback(lambda stored: future.set_result(Sent(stored.partition, stored.offset)))
        asked.add_errback(lambda error: future.set_exception(_refused(error)))
        return future

    def flush(self) -> None:
        call(self._producer.flush, CALL_SECONDS_MAX)

    def init_transactions(self) -> None:
        call(self._producer.init_transactions)

    def begin(self) -> None:
        call(self._producer.begin_transaction)

    def commit(self) -> None:
        call(self._producer.commit_transaction)

    def abort(self) -> None:
        call(self._producer.abort_transaction)

    def send_offsets(self, offsets: Mapping[Place, Committed], membership: object) -> None:
        call(self._producer.send_offsets_to_transaction, _named(offsets), membership)

    def close(self) -> None:
        self._producer.close(CALL_SECONDS_MAX)


def check(error: Any) -> None:
    """Raise what it answers as a class of its errors."""
    if error is not errors.NoError:
        raise Refused(error.errno, error.__name__)


class PureConsumer:
    """See `Consumer`."""

    def __init__(self, address: str, options: ConsumerOptions) -> None:
        assert options.protocol == "classic", "it knows no other"
        self._consumer: Any = KafkaConsumer(
            bootstrap_servers=address,
            group_id=options.group_id,
            group_instance_id=options.instance_id,
            enable_auto_commit=False,
            auto_offset_reset=options.reset,
            isolation_level="read_committed" if options.read_committed else "read_uncommitted",
            partition_assignment_strategy=(STRATEGIES[options.strategy],),
            session_timeout_ms=options.session_timeout_ms,
            heartbeat_interval_ms=options.heartbeat_interval_ms,
            metadata_max_age_ms=options.metadata_age_max_ms,
        )

    def subscribe(self, *topics: str) -> None:
        # Version 3.0.12 joins before it knows the topic's partitions, if they come late. It then assigns none of them,
        # and may stay so for good, without heartbeats.
        with _renamed():
            for topic in topics:
                assert self._consumer.partitions_for_topic(topic)
        self._consumer.subscribe(list(topics))

    def assign(self, offsets: Mapping[Place, int]) -> None:
        self._consumer.assign([TopicPartition(*place) for place in offsets])
        for place, offset in offsets.items():
            self.seek(place, offset)

    def poll(self, seconds: float) -> list[Got]:
        with _renamed():
            found = self._consumer.poll(int(seconds * 1000))
        return [got(record) for records in found.values() for record in records]

    def assignment(self) -> frozenset[Place]:
        return frozenset(Place(*place) for place in self._consumer.assignment())

    def seek(self, place: Place, offset: int) -> None:
        self._consumer.seek(TopicPartition(*place), offset)

    def position(self, place: Place) -> int | None:
        with _renamed():
            position: int | None = self._consumer.position(TopicPartition(*place), int(CALL_SECONDS_MAX * 1000))
        return position

    def commit(self, offsets: Mapping[Place, Committed] | None = None) -> None:
        with _renamed():
            self._consumer.commit(None if offsets is None else _named(offsets))

    def membership(self) -> object:
        membership: object = self._consumer.group_metadata()
        return membership

    def begin(self, place: Place) -> int:
        return int(self._for_one(self._consumer.beginning_offsets, place))

    def end(self, place: Place) -> int:
        return int(self._for_one(self._consumer.end_offsets, place))

    def _for_one(self, asked: Callable[..., Any], place: Place) -> Any:
        with _renamed():
            (found,) = asked([TopicPartition(*place)]).values()
        return found

    def offset_at(self, place: Place, timestamp_ms: int) -> int | None:
        with _renamed():
            (found,) = self._consumer.offsets_for_times({TopicPartition(*place): timestamp_ms}).values()
        return None if found is None else found.offset

    def close(self) -> None:
        self._consumer.close()


class PureAdmin:
    """See `Admin`."""

    def __init__(self, address: str) -> None:
        self._admin: Any = KafkaAdminClient(bootstrap_servers=address)

    def create(self, topic: str, partitions: int = 1) -> None:
        call(self._admin.create_topics, {topic: {"num_partitions": partitions, "replication_factor": 1}})

    def delete(self, topic: str) -> None:
        call(self._admin.delete_topics, [topic])

    def grow(self, topic: str, partitions: int) -> None:
        call(self._admin.create_partitions, {topic: partitions})

    def topics(self) -> Mapping[str, int]:
        return {topic["name"]: len(topic["partitions"]) for topic in call(self._admin.describe_topics)}

    def groups(self) -> frozenset[str]:
        return frozenset(group["group_id"] for group in call(self._admin.list_groups))

    def describe(self, group_id: str) -> Described:
        found = call(self._admin.describe_groups, [group_id])[group_id]
        return Described(found["group_state"], tuple(member["group_instance_id"] for member in found["members"]))

    def committed(self, group_id: str) -> Mapping[Place, Committed]:
        found = call(self._admin.list_group_offsets, {group_id: None})[group_id]
        return {Place(*place): Committed(one.offset, one.metadata) for place, one in found.items() if one.offset >= 0}

    def delete_group(self, group_id: str) -> None:
        # It names the error's class instead of raising it.
        result = call(self._admin.delete_groups, [group_id])[group_id]
        if result != "OK":
            raise Refused(getattr(errors, result).errno, result)

    def settings(self, topic: str) -> Mapping[str, str]:
        asked = [ConfigResource(ConfigResourceType.TOPIC, topic)]
        with _renamed():
            found = self._admin.describe_configs(asked, config_filter="all")["topic"][topic]
        return {name: setting["value"] for name, setting in found.items()}

    def change(self, topic: str, setting: str, value: str) -> None:
        result = call(self._admin.alter_configs, [ConfigResource(ConfigResourceType.TOPIC, topic, {setting: value})])
        # It tells the error's text instead of raising it.
        if (text := result["topic"][topic]) != "OK":
            raise Refused(int(text.partition("]")[0].removeprefix("[Error ")), text)

    def delete_records(self, place: Place, offset: int) -> int:
        (deleted,) = call(self._admin.delete_records, {TopicPartition(*place): offset}).values()
        return int(deleted["low_watermark"])

    def offset_of(self, place: Place, spec: Spec) -> int:
        (found,) = call(self._admin.list_partition_offsets, {TopicPartition(*place): SPECS[spec]}).values()
        return int(found.offset)

    def move_group(self, group_id: str, offsets: Mapping[Place, Committed]) -> None:
        for error in call(self._admin.alter_group_offsets, group_id, _named(offsets)).values():
            check(error)

    def close(self) -> None:
        self._admin.close()
