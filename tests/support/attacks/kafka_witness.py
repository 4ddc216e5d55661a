"""A witness that uses Kafka's protocol: it writes transactions and reads them, during an attack.

Each transaction writes one record to each partition of its topic. Every third one is aborted. A commit that was
answered is owed: its records can be read exactly once. Nothing of an aborted transaction may be read. A connection that
is lost is opened again, and the producer begins a new epoch, so a commit without an answer may stand or not.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import trio

from broker.addresses import Address
from tests.support.attacks.witness import Unanswered, some, within
from tests.support.kafka_connection import READ_COMMITTED, KafkaClient, committed_in
from tests.support.kafka_producer import TransactionalProducer
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.list_offsets import LATEST, ListOffsetsPartitionResponse
from tidewire.wire.kafka.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tidewire.wire.kafka.record_batches import batches

T = TypeVar("T")

PARTITIONS: Final = 3
PAUSE_SECONDS: Final = 0.05
RETRY_SECONDS: Final = 0.2
AGAIN: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
"""Codes at which a client tries again."""
LOST: Final = (EOFError, OSError, trio.BrokenResourceError)


class _Again(Exception):
    """The broker asked to try again. The producer begins anew."""


class KafkaWitness:
    """See the module's docstring."""

    def __init__(self, address: Address, name: str) -> None:
        """Set up. No topic of the name `name` may exist."""
        self.topic = name
        self.complaints: list[str] = []
        self.longest_wait_seconds = 0.0
        self._address = address
        self._owed: set[bytes] = set()
        self._aborted: set[bytes] = set()
        self._sent: set[bytes] = set()
        self._is_over = False
        self._number = 0

    @property
    def steps(self) -> int:
        """How many records the broker owes it."""
        return len(self._owed)

    def restarted(self, _service_url: str, _http_url: str) -> None:
        """A restarted broker has the same address."""

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Work during the block."""
        async with self._connected() as client:
            request = CreateTopicsRequest((CreatableTopic(self.topic, PARTITIONS, 1),))
            await client.ask(request, CreateTopicsResponse, 7)
        async with trio.open_nursery() as nursery:
            self._is_over = False
            nursery.start_soon(self._write)
            yield
            self._is_over = True

    async def judge(self) -> None:
        """Read all partitions, and complain if the broker broke a promise."""
        seen: Counter[bytes] = Counter()
        try:
            async with self._connected() as client:
                for partition in range(PARTITIONS):
                    await within(self._read(client, partition, seen), f"{self.topic}-{partition} could not be read")
        except (*LOST, _Again, Unanswered) as error:
            self.complaints.append(f"{self.topic} could not be read to its end: {error!r}")
            return
        values = set(seen)
        if lost := self._owed - values:
            self.complaints.append(f"{self.topic}: committed and lost: {some(lost)}")
        if shown := self._aborted & values:
            self.complaints.append(f"{self.topic}: aborted and shown: {some(shown)}")
        if doubled := [value for value, count in seen.items() if count > 1]:
            self.complaints.append(f"{self.topic}: stored twice: {some(doubled)}")
        if strange := values - self._sent:
            self.complaints.append(f"{self.topic}: nobody sent {some(strange)}")

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[KafkaClient]:
        async with await trio.open_tcp_stream(*self._address) as stream:
            yield KafkaClient(stream)

    async def _write(self) -> None:
        while not self._is_over:
            try:
                async with self._connected() as client:
                    producer = TransactionalProducer(client, self.topic, 2)
                    self._require(await self._timed(producer.begin_session()))
                    while not self._is_over:
                        await self._transaction(producer)
                        await trio.sleep(PAUSE_SECONDS)
            except (*LOST, _Again):
                await trio.sleep(RETRY_SECONDS)

    async def _transaction(self, producer: TransactionalProducer) -> None:
        number, self._number = self._number, self._number + 1
        is_commit = number % 3 != 2
        values = {b"%d-%d" % (number, partition) for partition in range(PARTITIONS)}
        self._sent |= values
        if not is_commit:
            self._aborted |= values
        for partition in range(PARTITIONS):
            value = b"%d-%d" % (number, partition)
            answer = await self._timed(producer.send(self.topic, value, partition=partition))
            self._require(answer.error_code)
        self._require(await self._timed(producer.end(is_commit=is_commit)))
        if is_commit:
            self._owed |= values

    async def _timed(self, asked: Awaitable[T]) -> T:
        began = trio.current_time()
        answer = await within(asked, "Kafka's witness was not answered")
        self.longest_wait_seconds = max(self.longest_wait_seconds, trio.current_time() - began)
        return answer

    def _require(self, code: int) -> None:
        if code in AGAIN:
            raise _Again
        if code:
            self.complaints.append(f"a request of Kafka's witness was answered with {ErrorCode(code)!r}")
            raise _Again

    async def _end(self, client: KafkaClient, partition: int) -> ListOffsetsPartitionResponse:
        return await client.offset(self.topic, LATEST, partition=partition, isolation=READ_COMMITTED)

    async def _read(self, client: KafkaClient, partition: int, seen: Counter[bytes]) -> None:
        # The broker is another process, so nothing but asking tells.
        while (asked := await self._end(client, partition)).error_code in AGAIN:  # noqa: ASYNC110
            await trio.sleep(RETRY_SECONDS)
        self._require(asked.error_code)
        end, at = asked.offset, 0
        while at < end:
            data = await client.fetch(self.topic, at, partition=partition, isolation=READ_COMMITTED)
            self._require(data.error_code)
            seen.update(value for value in committed_in(data) if value is not None)
            whole: object = data.records
            assert isinstance(whole, bytes), "a client reads bytes"
            at = max(header.base_offset + header.offset_count for header, _batch in batches(whole))
