"""confluent-kafka, which is librdkafka. Its threads talk to the broker; `flush` and `poll` run its callbacks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import confluent_kafka
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]  # it shows them without saying so
from confluent_kafka.cimpl import NewPartitions, NewTopic

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
)

PASSING: Final = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT})
"""What it tells its consumers while it connects anew by itself."""

SPECS: Final[Mapping[Spec, Callable[[], OffsetSpec]]] = {
    "earliest": OffsetSpec.earliest,
    "latest": OffsetSpec.latest,
    "max-timestamp": OffsetSpec.max_timestamp,
}

UNKNOWN_OFFSET: Final = -1001
"""It has no position, or the group has no offset."""


@contextmanager
def _renamed() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise _refused(error.args[0]) from error
    except SystemError as error:
        # A fatal error that comes beside deliveries. Its binding calls back while the exception is under way.
        if not isinstance(error.__cause__, KafkaException):
            raise
        raise _refused(error.__cause__.args[0]) from error


def _refused(error: KafkaError) -> Refused:
    return Refused(error.code(), f"{error.name()}: {error.str()}")


class ConfluentProducer:
    """See `Producer`."""

    def __init__(self, address: str, options: ProducerOptions) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": address,
            "compression.type": options.codec,
            "acks": options.acks,
            "enable.idempotence": options.idempotent,
            "linger.ms": options.linger_ms,
            "message.max.bytes": options.message_bytes_max,
            "batch.size": options.message_bytes_max,
        }
        if options.transactional_id is not None:
            settings |= {
                "transactional.id": options.transactional_id,
                "transaction.timeout.ms": options.transaction_timeout_ms,
                "enable.idempotence": True,
            }
        self._producer = confluent_kafka.Producer(settings)
        self._is_closed = False

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
        place: dict[str, Any] = {} if partition is None else {"partition": partition}
        if timestamp_ms is not None:
            place["timestamp"] = timestamp_ms
        with _renamed():
            self._producer.produce(
                topic, value, key, headers=list(headers), on_delivery=partial(self._delivered, future), **place
            )
        self._producer.poll(0)
        return future

    @staticmethod
    def _delivered(future: "Future[Sent]", error: KafkaError | None, message: Message) -> None:
        if error is not None:
            future.set_exception(_refused(error))
        else:
            future.set_result(Sent(message.partition() or 0, message.offset() or 0))

    def flush(self) -> None:
        with _renamed():
            assert self._producer.flush(CALL_SECONDS_MAX) == 0

    def init_transactions(self) -> None:
        with _renamed():
            self._producer.init_transactions(CALL_SECONDS_MAX)

    def begin(self) -> None:
        with _renamed():
            self._producer.begin_transaction()

    def commit(self) -> None:
        with _renamed():
            self._producer.commit_transaction(CALL_SECONDS_MAX)

    def abort(self) -> None:
        with _renamed():
            self._producer.abort_transaction(CALL_SECONDS_MAX)

    def send_offsets(self, offsets: Mapping[Place, Committed], membership: object) -> None:
        with _renamed():
            self._producer.send_offsets_to_transaction(_listed(offsets), membership, CALL_SECONDS_MAX)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._producer.purge()
            try:
                self._producer.close()
            except KafkaException as error:
                # It aborts what is open. A fenced producer has nothing to abort any more, and is closed all the same.
                # So is one that never got its transactional id.
                if not error.args[0].fatal():
                    raise


class ConfluentConsumer:
    """See `Consumer`."""

    def __init__(self, address: str, options: ConsumerOptions) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": address,
            # It has no consumers without a group's name. This one neither joins nor commits.
            "group.id": options.group_id or "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error" if options.reset == "none" else options.reset,
            "isolation.level": "read_committed" if options.read_committed else "read_uncommitted",
            "topic.metadata.refresh.interval.ms": options.metadata_age_max_ms,
        }
        if options.protocol == "classic":
            settings |= {
                "partition.assignment.strategy": options.strategy,
                "session.timeout.ms": options.session_timeout_ms,
                "heartbeat.interval.ms": options.heartbeat_interval_ms,
            }
        else:
            settings["group.protocol"] = options.protocol
        if options.instance_id is not None:
            settings["group.instance.id"] = options.instance_id
        self._consumer = confluent_kafka.Consumer(settings)

    def subscribe(self, *topics: str) -> None:
        self._consumer.subscribe(list(topics))

    def assign(self, offsets: Mapping[Place, int]) -> None:
        self._consumer.assign([TopicPartition(*place, offset) for place, offset in offsets.items()])

    def poll(self, seconds: float) -> list[Got]:
        got = []
        message = self._consumer.poll(seconds)
        while message is not None:
            error = message.error()
            if error is None:
                got.append(_got(message))
            elif error.code() not in PASSING:
                raise _refused(error)
            message = self._consumer.poll(0)
        return got

    def assignment(self) -> frozenset[Place]:
        return frozenset(Place(one.topic, one.partition) for one in self._consumer.assignment())

    def seek(self, place: Place, offset: int) -> None:
        with _renamed():
            self._consumer.seek(TopicPartition(*place, offset))

    def position(self, place: Place) -> int | None:
        (found,) = self._consumer.position([TopicPartition(*place)])
        return None if found.offset == UNKNOWN_OFFSET else found.offset

    def commit(self, offsets: Mapping[Place, Committed] | None = None) -> None:
        with _renamed():
            if offsets is None:
                self._consumer.commit(asynchronous=False)
            else:
                self._consumer.commit(offsets=_listed(offsets), asynchronous=False)

    def membership(self) -> object:
        return self._consumer.consumer_group_metadata()

    def begin(self, place: Place) -> int:
        return self._bounds(place)[0]

    def end(self, place: Place) -> int:
        return self._bounds(place)[1]

    def _bounds(self, place: Place) -> tuple[int, int]:
        with _renamed():
            bounds = self._consumer.get_watermark_offsets(TopicPartition(*place), CALL_SECONDS_MAX)
        assert bounds is not None
        return bounds

    def offset_at(self, place: Place, timestamp_ms: int) -> int | None:
        with _renamed():
            (found,) = self._consumer.offsets_for_times([TopicPartition(*place, timestamp_ms)], CALL_SECONDS_MAX)
        return None if found.offset < 0 else found.offset

    def close(self) -> None:
        self._consumer.close()


def _listed(offsets: Mapping[Place, Committed]) -> list[TopicPartition]:
    return [TopicPartition(*place, one.offset, one.metadata) for place, one in offsets.items()]


def _got(message: Message) -> Got:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    key, value = message.key(), message.value()
    assert key is None or isinstance(key, bytes)
    assert value is None or isinstance(value, bytes)
    headers: Any = message.headers() or ()
    return Got(Place(topic, partition), offset, message.timestamp()[1], key, value, tuple(headers))


class ConfluentAdmin:
    """See `Admin`."""

    def __init__(self, address: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": address})

    def create(self, topic: str, partitions: int = 1) -> None:
        self._one(self._admin.create_topics([NewTopic(topic, partitions, 1)]))

    def delete(self, topic: str) -> None:
        self._one(self._admin.delete_topics([topic]))

    def grow(self, topic: str, partitions: int) -> None:
        self._one(self._admin.create_partitions([NewPartitions(topic, partitions)]))

    def topics(self) -> Mapping[str, int]:
        found = self._admin.list_topics(timeout=CALL_SECONDS_MAX).topics
        return {name: len(topic.partitions) for name, topic in found.items()}

    def groups(self) -> frozenset[str]:
        with _renamed():
            listed = self._admin.list_consumer_groups().result(CALL_SECONDS_MAX)
        assert not listed.errors
        return frozenset(group.group_id for group in listed.valid)

    def describe(self, group_id: str) -> Described:
        found = self._one(self._admin.describe_consumer_groups([group_id]))
        # Its enumeration says PREPARING_REBALANCING where Kafka says PreparingRebalance.
        state = found.state.name.title().replace("_", "")
        return Described(state, tuple(member.group_instance_id for member in found.members))

    def committed(self, group_id: str) -> Mapping[Place, Committed]:
        asked = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group_id)])
        return {
            Place(one.topic, one.partition): Committed(one.offset, one.metadata or "")
            for one in self._one(asked).topic_partitions
            if one.offset >= 0
        }

    def delete_group(self, group_id: str) -> None:
        self._one(self._admin.delete_consumer_groups([group_id]))

    def settings(self, topic: str) -> Mapping[str, str]:
        found = self._one(self._admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
        return {name: setting.value for name, setting in found.items()}

    def change(self, topic: str, setting: str, value: str) -> None:
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self._one(self._admin.incremental_alter_configs([resource]))

    def delete_records(self, place: Place, offset: int) -> int:
        return int(self._one(self._admin.delete_records([TopicPartition(*place, offset)])).low_watermark)

    def offset_of(self, place: Place, spec: Spec) -> int:
        return int(self._one(self._admin.list_offsets({TopicPartition(*place): SPECS[spec]()})).offset)

    def move_group(self, group_id: str, offsets: Mapping[Place, Committed]) -> None:
        asked = [ConsumerGroupTopicPartitions(group_id, _listed(offsets))]
        for one in self._one(self._admin.alter_consumer_group_offsets(asked)).topic_partitions:
            if one.error is not None:
                raise _refused(one.error)

    def close(self) -> None:
        """It closes itself when nobody holds it."""

    @staticmethod
    def _one(futures: "Mapping[Any, Future[Any]]") -> Any:
        (future,) = futures.values()
        with _renamed():
            return future.result(CALL_SECONDS_MAX)
