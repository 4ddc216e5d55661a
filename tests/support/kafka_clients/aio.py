"""aiokafka. One loop of asyncio, in its own thread, serves all that a client makes. Each call waits for its answer."""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import KafkaError, ProducerFenced
from aiokafka.producer.transaction_manager import TransactionState
from aiokafka.structs import OffsetAndMetadata
from anyio.from_thread import BlockingPortal, start_blocking_portal

from tests.support.kafka_clients.contract import (
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
}

PRODUCER_FENCED: Final = 90
"""Kafka's code."""

FAILED: Final = frozenset({TransactionState.ABORTABLE_ERROR, TransactionState.FATAL_ERROR})
"""Where a transaction is that learned of its failure between two calls."""


def running_loop() -> AbstractContextManager[BlockingPortal]:
    """Run the loop of one client."""
    return start_blocking_portal("asyncio")


@contextmanager
def _renamed() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        # The error about fencing is the client's own, and has no code.
        code = PRODUCER_FENCED if isinstance(error, ProducerFenced) else getattr(error, "errno", None)
        raise Refused(code or -1, repr(error)) from error


def _named(offsets: Mapping[Place, Committed]) -> dict[Any, Any]:
    return {TopicPartition(*place): tuple(one) for place, one in offsets.items()}


class _OnLoop:
    """What lives on the client's loop."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal

    def _call(self, asked: Callable[..., Any], *arguments: Any) -> Any:
        with _renamed():
            return self._portal.call(asked, *arguments)


class AioProducer(_OnLoop):
    """See `Producer`. It enters its transactional id when it starts, so `init_transactions` starts it."""

    def __init__(self, portal: BlockingPortal, address: str, options: ProducerOptions) -> None:
        super().__init__(portal)
        self._producer: Any = portal.call(
            lambda: AIOKafkaProducer(
                bootstrap_servers=address,
                compression_type=None if options.codec == "none" else options.codec,
                acks="all" if options.acks == "all" else int(options.acks),
                enable_idempotence=options.idempotent or options.transactional_id is not None,
                transactional_id=options.transactional_id,
                transaction_timeout_ms=options.transaction_timeout_ms,
                max_request_size=options.message_bytes_max,
                max_batch_size=options.message_bytes_max,
                linger_ms=options.linger_ms,
            )
        )
        if options.transactional_id is None:
            self.init_transactions()

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
        async def send() -> "Awaitable[Any]":
            await self._raise_failure(FAILED)
            answer: Awaitable[Any] = await self._producer.send(
                topic, value, key, partition, timestamp_ms, headers=list(headers)
            )
            return answer

        async def wait(answer: "Awaitable[Any]") -> Sent:
            with _renamed():
                # Without acknowledgements it has nothing to say.
                stored = await answer
            return Sent(0, -1) if stored is None else Sent(stored.partition, stored.offset)

        with _renamed():
            return self._portal.start_task_soon(wait, self._portal.call(send))

    def flush(self) -> None:
        self._call(self._producer.flush)

    def init_transactions(self) -> None:
        self._call(self._producer.start)

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def commit(self) -> None:
        self._call(self._raise_failure, FAILED)
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        # An abort is the way out of the other failure.
        self._call(self._raise_failure, {TransactionState.FATAL_ERROR})
        self._call(self._producer.abort_transaction)

    async def _raise_failure(self, states: Collection[TransactionState]) -> None:
        """Raise why the transaction has failed. The client's own calls say only that it is in a wrong state."""
        manager = self._producer._txn_manager
        if manager is not None and manager.state in states:
            await manager.wait_for_transaction_end()

    def send_offsets(self, offsets: Mapping[Place, Committed], membership: object) -> None:
        self._call(self._producer.send_offsets_to_transaction, _named(offsets), membership)

    def close(self) -> None:
        self._call(self._producer.stop)


class AioConsumer(_OnLoop):
    """See `Consumer`."""

    def __init__(self, portal: BlockingPortal, address: str, options: ConsumerOptions) -> None:
        assert options.protocol == "classic", "it knows no other"
        super().__init__(portal)

        async def make() -> Any:
            made = AIOKafkaConsumer(
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
            await made.start()
            return made

        self._consumer = self._call(make)
        self._group_id = options.group_id
        self._is_closed = False

    def subscribe(self, *topics: str) -> None:
        self._call(self._consumer.subscribe, list(topics))

    def assign(self, offsets: Mapping[Place, int]) -> None:
        self._call(self._consumer.assign, [TopicPartition(*place) for place in offsets])
        for place, offset in offsets.items():
            self.seek(place, offset)

    def poll(self, seconds: float) -> list[Got]:
        async def poll() -> Any:
            return await self._consumer.getmany(timeout_ms=int(seconds * 1000))

        return [got(record) for records in self._call(poll).values() for record in records]

    def assignment(self) -> frozenset[Place]:
        return frozenset(Place(*place) for place in self._call(self._consumer.assignment))

    def seek(self, place: Place, offset: int) -> None:
        self._call(self._consumer.seek, TopicPartition(*place), offset)

    def position(self, place: Place) -> int | None:
        position: int = self._call(self._consumer.position, TopicPartition(*place))
        return position

    def commit(self, offsets: Mapping[Place, Committed] | None = None) -> None:
        self._call(self._consumer.commit, None if offsets is None else _named(offsets))

    def membership(self) -> object:
        # It shows the group alone.
        return self._group_id

    def begin(self, place: Place) -> int:
        return int(self._for_one(self._consumer.beginning_offsets, place))

    def end(self, place: Place) -> int:
        return int(self._for_one(self._consumer.end_offsets, place))

    def _for_one(self, asked: Callable[..., Any], place: Place) -> Any:
        (found,) = self._call(asked, [TopicPartition(*place)]).values()
        return found

    def offset_at(self, place: Place, timestamp_ms: int) -> int | None:
        (found,) = self._call(self._consumer.offsets_for_times, {TopicPartition(*place): timestamp_ms}).values()
        return None if found is None else found.offset

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._call(self._consumer.stop)


class AioAdmin(_OnLoop):
    """See `Admin`."""

    def __init__(self, portal: BlockingPortal, address: str) -> None:
        super().__init__(portal)
        self._admin: Any = portal.call(lambda: AIOKafkaAdminClient(bootstrap_servers=address))
        self._call(self._admin.start)

    def create(self, topic: str, partitions: int = 1) -> None:
        self._check(self._call(self._admin.create_topics, [NewTopic(topic, partitions, 1)]).topic_errors)

    def delete(self, topic: str) -> None:
        self._check(self._call(self._admin.delete_topics, [topic]).topic_error_codes)

    def grow(self, topic: str, partitions: int) -> None:
        self._call(self._admin.create_partitions, {topic: NewPartitions(partitions)})

    def topics(self) -> Mapping[str, int]:
        found = self._call(self._admin.describe_topics)
        return {topic["topic"]: len(topic["partitions"]) for topic in found}

    def groups(self) -> frozenset[str]:
        return frozenset(group[0] for group in self._call(self._admin.list_consumer_groups))

    def describe(self, group_id: str) -> Described:
        ((group,),) = (answer.groups for answer in self._call(self._admin.describe_consumer_groups, [group_id]))
        error, _, state, _, _, members, *_ = group
        self._check([(group_id, error)])
        # The version that it speaks does not name instances.
        return Described(state, (None,) * len(members))

    def committed(self, group_id: str) -> Mapping[Place, Committed]:
        found: Mapping[Any, OffsetAndMetadata] = self._call(self._admin.list_consumer_group_offsets, group_id)
        return {Place(*place): Committed(one.offset, one.metadata) for place, one in found.items() if one.offset >= 0}

    def delete_group(self, group_id: str) -> None:
        raise AssertionError("aiokafka cannot delete groups")

    def settings(self, topic: str) -> Mapping[str, str]:
        (answer,) = self._call(self._admin.describe_configs, [ConfigResource(ConfigResourceType.TOPIC, topic)])
        ((error, text, _, name, settings),) = answer.resources
        self._check([(name, error, text)])
        return {setting[0]: setting[1] for setting in settings}

    def change(self, topic: str, setting: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {setting: value})
        (answer,) = self._call(self._admin.alter_configs, [resource])
        self._check([(name, error, text) for error, text, _, name in answer.resources])

    def delete_records(self, place: Place, offset: int) -> int:
        asked = {TopicPartition(*place): RecordsToDelete(offset)}
        (first,) = self._call(self._admin.delete_records, asked).values()
        return int(first)

    def offset_of(self, place: Place, spec: Spec) -> int:
        raise AssertionError("aiokafka's administrators do not look up offsets")

    def move_group(self, group_id: str, offsets: Mapping[Place, Committed]) -> None:
        raise AssertionError("aiokafka cannot move groups")

    def close(self) -> None:
        self._call(self._admin.close)

    @staticmethod
    def _check(errors: Sequence[Any]) -> None:
        for topic, code, *text in errors:
            if code:
                raise Refused(code, f"{topic}: {text}")
