"""The copier of confluent-kafka, by KIP-447: one producer, and the group refuses the offsets of an older generation."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.support.kafka_copiers import steps as at
from tests.support.kafka_copiers.copying import Record, copy_of
from tests.support.kafka_copiers.orders import (
    CALL_SECONDS_MAX,
    DOOMED_SHARE,
    RECORDS_MAX,
    SESSION_MS,
    TRANSACTION_MS,
    Fenced,
    Orders,
    Replaced,
    Stopping,
)
from tests.support.kafka_copiers.steps import Steps

POLL_SECONDS: Final = 0.2
AT_A_MORTAL_BROKER: Final = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "metadata.recovery.strategy": "none",
    "log_level": 2,
}
"""The broker is away for a moment only, and nobody needs a line for each attempt to reach it.

A librdkafka that starts over when all brokers are away forgets the group's coordinator, and then waits for it for ever
(its issue 5511). So this one does not start over.
"""

_PASSING: Final = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE})
_FENCING: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
_One = TypeVar("_One")


def copy(orders: Orders, steps: Steps, stopping: Stopping) -> None:
    """Copy until it is asked to stop.

    Raises:
        Fenced, Replaced: another process has its transactional id, or its instance id.
        KafkaException: what no broker should answer.
    """
    copier = _Copier(orders, steps)
    while not stopping.is_asked:
        copier.copy_some()
    copier.close()


class _Copier:
    def __init__(self, orders: Orders, steps: Steps) -> None:
        self._orders = orders
        self._steps = steps
        self._taken: list[Record] = []
        """Of the next transaction."""
        self._producer = Producer(
            {
                "bootstrap.servers": orders.address,
                "transactional.id": orders.name,
                "transaction.timeout.ms": TRANSACTION_MS,
                "linger.ms": 0,
                **AT_A_MORTAL_BROKER,
            }
        )
        settings: dict[str, Any] = {
            "bootstrap.servers": orders.address,
            "group.id": orders.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "partition.assignment.strategy": orders.strategy,
            "session.timeout.ms": SESSION_MS,
            "max.poll.interval.ms": 45_000,
            "heartbeat.interval.ms": 300,
            **AT_A_MORTAL_BROKER,
        }
        if orders.instance is not None:
            settings["group.instance.id"] = orders.instance
        self._consumer = Consumer(settings)
        steps.begin(at.INIT)
        self._retried(lambda: self._producer.init_transactions(CALL_SECONDS_MAX))
        self._consumer.subscribe([orders.source], on_revoke=self._revoked, on_lost=self._revoked)

    def _revoked(self, _consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Forget what was taken of them. Their next owner takes it, and this member may commit for others only."""
        gone = {one.partition for one in partitions}
        self._taken = [record for record in self._taken if record.partition not in gone]

    def copy_some(self) -> None:
        """Do one transaction, if there is something to copy."""
        self._take()
        taken, self._taken = self._taken, []
        if not taken:
            return
        is_doomed = self._steps.random.random() < DOOMED_SHARE
        try:
            self._transact(taken, is_doomed=is_doomed)
        except KafkaException as error:
            cause = error.args[0]
            _raise_if_fenced(cause)
            if cause.code() == KafkaError._FATAL:
                # `produce` does not say why it refuses. An abort does, and fails for the same reason.
                self._retried(lambda: self._producer.abort_transaction(CALL_SECONDS_MAX))
            if not cause.txn_requires_abort():
                raise
            is_doomed = True
            self._steps.begin(at.ABORT)
            self._retried(lambda: self._producer.abort_transaction(CALL_SECONDS_MAX))
        if is_doomed:
            self._rewind()

    def _take(self) -> None:
        """Take what is there. One call takes one record, so that no record outlives the revocation of its partition."""
        wanted = self._steps.random.randint(1, RECORDS_MAX)
        self._steps.begin(at.POLL)
        message = self._consumer.poll(POLL_SECONDS)
        while message is not None:
            error = message.error()
            if error is None:
                self._taken.append(_record(message))
                if len(self._taken) >= wanted:
                    return
            elif error.code() not in _PASSING:
                _raise_if_fenced(error)
                raise KafkaException(error)
            message = self._consumer.poll(0)

    def _transact(self, taken: Sequence[Record], *, is_doomed: bool) -> None:
        source, target, producer = self._orders.source, self._orders.target, self._producer
        self._steps.begin(at.BEGIN)
        producer.begin_transaction()
        for record in taken:
            self._steps.begin(at.SEND)
            value = copy_of(record, is_doomed=is_doomed)
            producer.produce(target, value, record.key, partition=record.partition)
        nexts = {record.partition: record.offset + 1 for record in taken}
        positions = [TopicPartition(source, partition, offset) for partition, offset in nexts.items()]
        group = self._consumer.consumer_group_metadata()
        self._steps.begin(at.OFFSETS)
        self._retried(lambda: producer.send_offsets_to_transaction(positions, group, CALL_SECONDS_MAX))
        if is_doomed:
            self._steps.begin(at.ABORT)
            self._retried(lambda: producer.abort_transaction(CALL_SECONDS_MAX))
        else:
            self._steps.begin(at.COMMIT)
            self._retried(lambda: producer.commit_transaction(CALL_SECONDS_MAX))

    def _rewind(self) -> None:
        """Go back to what is committed."""
        self._steps.begin(at.REWIND)
        assigned = self._consumer.assignment()
        for place in self._retried(lambda: self._consumer.committed(assigned, CALL_SECONDS_MAX)):
            if place.error is not None:
                raise KafkaException(place.error)
            if place.offset < 0:
                place.offset = OFFSET_BEGINNING
            try:
                self._consumer.seek(place)
            except KafkaException as error:
                # It has not begun with this partition yet, and will begin with what is committed.
                if error.args[0].code() != KafkaError._STATE:
                    raise

    def close(self) -> None:
        """Leave the group."""
        self._steps.begin(at.POLL)
        self._consumer.close()
        self._producer.close()

    @staticmethod
    def _retried(call: Callable[[], _One]) -> _One:
        """Call until the answer is definite. `steps` limits how long."""
        while True:
            try:
                return call()
            except KafkaException as error:
                cause = error.args[0]
                _raise_if_fenced(cause)
                if not cause.retriable() and cause.code() not in _PASSING | {KafkaError._TIMED_OUT}:
                    raise


def _raise_if_fenced(error: KafkaError) -> None:
    # A consumer says in words alone why it cannot go on.
    is_replaced = error.code() == KafkaError._FATAL and "fenced by other consumer" in error.str()
    if is_replaced or error.code() == KafkaError.FENCED_INSTANCE_ID:
        raise Replaced(error.str())
    if error.fatal() and error.code() in _FENCING:
        raise Fenced(error.str())


def _record(message: Message) -> Record:
    partition, offset, key, value = message.partition(), message.offset(), message.key(), message.value()
    assert partition is not None
    assert offset is not None
    assert isinstance(key, bytes)
    assert isinstance(value, bytes)
    return Record(partition, offset, key, value)
