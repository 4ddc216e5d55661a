"""The copier of aiokafka: one producer for each partition that it reads.

aiokafka does not tell the group's generation with its offsets, so the group cannot refuse an older member's (KIP-447).
Each partition has a transactional id instead. Its new owner enters the id, which ends the former owner's transaction,
and only then asks where to begin.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import anyio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import IllegalOperation, KafkaConnectionError, KafkaError, ProducerFenced

from tests.support.kafka_copiers import steps as at
from tests.support.kafka_copiers.copying import Record, copy_of
from tests.support.kafka_copiers.orders import (
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

POLL_MS: Final = 200
AWAY_SECONDS: Final = 0.05
"""Between two attempts to reach a broker at the start. aiokafka leaves these to its users."""
STRATEGIES: Final = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}


def copy(orders: Orders, steps: Steps, stopping: Stopping) -> None:
    """Copy until it is asked to stop.

    Raises:
        Fenced, Replaced: another process has one of its transactional ids, or its instance id.
        KafkaError: what no broker should answer.
    """
    anyio.run(partial(_copy, orders, steps, stopping), backend="asyncio")


async def _copy(orders: Orders, steps: Steps, stopping: Stopping) -> None:
    copier = _Copier(orders, steps)
    await copier.start()
    while not stopping.is_asked:
        await copier.copy_some()
    await copier.close()


class _Copier(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, orders: Orders, steps: Steps) -> None:
        self._orders = orders
        self._steps = steps
        self._producers: dict[TopicPartition, Any] = {}
        """Of the partitions that it may copy."""
        self._left: list[Any] = []
        """Producers of partitions that it has lost."""
        self._consumer: Any = AIOKafkaConsumer(
            bootstrap_servers=orders.address,
            group_id=orders.group,
            group_instance_id=orders.instance,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            partition_assignment_strategy=(STRATEGIES[orders.strategy],),
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=300,
            retry_backoff_ms=50,
        )

    async def start(self) -> None:
        """Join the group."""
        self._steps.begin(at.POLL)
        await _started(self._consumer)
        self._consumer.subscribe([self._orders.source], listener=self)

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Forget their producers. A transaction that is under way ends, or is fenced by the next owner."""
        for place in revoked:
            self._lose(place)

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Nothing yet: `copy_some` enters them."""

    async def copy_some(self) -> None:
        """Do a transaction for each partition of which something is there."""
        while self._left:
            await self._left.pop().stop()
        for place in self._consumer.assignment() - self._producers.keys():
            await self._enter(place)
        self._steps.begin(at.POLL)
        polled = await self._poll(self._steps.random.randint(1, RECORDS_MAX))
        for place, records in polled.items():
            # It was not entered when these were read, or was lost meanwhile. Its owner asks where to begin.
            if place in self._producers:
                taken = [Record(one.partition, one.offset, one.key, one.value) for one in records]
                await self._copy(place, taken)

    async def _poll(self, records_max: int) -> Any:
        try:
            return await self._consumer.getmany(timeout_ms=POLL_MS, max_records=records_max)
        except KafkaError as error:
            # aiokafka has no name for FENCED_INSTANCE_ID.
            if self._orders.instance is not None and "UnknownError" in repr(error):
                raise Replaced(repr(error)) from error
            raise

    async def _enter(self, place: TopicPartition) -> None:
        """Become the only one who copies this partition, and begin behind what is copied."""
        self._steps.begin(at.INIT)
        producer = AIOKafkaProducer(
            bootstrap_servers=self._orders.address,
            transactional_id=f"{self._orders.group}-{place.partition}",
            transaction_timeout_ms=TRANSACTION_MS,
            retry_backoff_ms=50,
        )
        # A partition that is revoked from here on is not this producer's any more.
        self._producers[place] = producer
        await _started(producer)
        await self._rewind(place)

    async def _rewind(self, place: TopicPartition) -> None:
        self._steps.begin(at.REWIND)
        committed = await self._consumer.committed(place)
        if place in self._consumer.assignment():
            self._consumer.seek(place, committed or 0)

    async def _copy(self, place: TopicPartition, taken: list[Record]) -> None:
        producer = self._producers[place]
        is_doomed = self._steps.random.random() < DOOMED_SHARE
        try:
            try:
                await self._transact(producer, place, taken, is_doomed=is_doomed)
            except IllegalOperation:
                # The transaction has failed meanwhile. The client's next call says only that there is none.
                await producer._txn_manager.wait_for_transaction_end()
                raise
        except ProducerFenced as fenced:
            raise Fenced(repr(fenced)) from fenced
        except KafkaError:
            # Its producer may not go on. To enter the partition again ends what is open, and tells where to begin.
            self._lose(place)
        else:
            if is_doomed:
                await self._rewind(place)

    async def _transact(self, producer: Any, place: TopicPartition, taken: list[Record], *, is_doomed: bool) -> None:
        target, group = self._orders.target, self._orders.group
        self._steps.begin(at.BEGIN)
        await producer.begin_transaction()
        sent = []
        for record in taken:
            self._steps.begin(at.SEND)
            value = copy_of(record, is_doomed=is_doomed)
            sent.append(await producer.send(target, value, record.key, partition=record.partition))
        for one in sent:
            await one
        self._steps.begin(at.OFFSETS)
        await producer.send_offsets_to_transaction({place: taken[-1].offset + 1}, group)
        if is_doomed:
            self._steps.begin(at.ABORT)
            await producer.abort_transaction()
        else:
            self._steps.begin(at.COMMIT)
            await producer.commit_transaction()

    def _lose(self, place: TopicPartition) -> None:
        producer = self._producers.pop(place, None)
        if producer is not None:
            self._left.append(producer)

    async def close(self) -> None:
        """Leave the group."""
        self._steps.begin(at.POLL)
        await self._consumer.stop()
        for producer in [*self._producers.values(), *self._left]:
            await producer.stop()


async def _started(client: Any) -> None:
    """Start a consumer or a producer, also while the broker is away. `steps` limits how long."""
    while True:
        try:
            await client.start()
            return
        except KafkaError as error:
            # aiokafka hides the loss of a connection in a plain KafkaError while it looks for a coordinator.
            if not isinstance(error, KafkaConnectionError) and not isinstance(error.__cause__, KafkaConnectionError):
                raise
            await anyio.sleep(AWAY_SECONDS)
