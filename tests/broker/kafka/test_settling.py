"""An owner settles each decision, whatever it meets. No sweep runs here: it is the duty of another broker."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from broker.kafka.groups.offsets import TopicPartition, offset_key
from broker.names import TopicName
from storage import journal
from storage.errors import SPACE_RETRY_SECONDS
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Committed, Conflict, Delete, Fresh, Op, Put, Record, StoreUnavailable, starting_with
from tests.support.disk import SimulatedFiles
from tests.support.kafka_batches import batch
from tests.support.kafka_connection import READ_COMMITTED, KafkaClient, committed_in, kafka_client
from tests.support.kafka_producer import TransactionalProducer
from tests.support.rooms import Rooms, moving_clock, rooms
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from tidewire.wire.kafka.records import Record as KafkaRecord
from tidewire.wire.kafka.records import build
from txn import marker_buffer
from txn.deferred_puts import KEY_PREFIX as PUTS
from txn.deferred_puts import deferred, deferred_by, settled, target_of
from txn.kafka_coordination import begun, completed
from txn.kafka_participants import KEY_PREFIX, Registration, registrations_of
from txn.kafka_settler import ATTEMPTS_MAX
from txn.kafka_transaction import KafkaTransaction, transaction_key


class RefusingStore(MemoryStore):
    """It refuses what the settler does with registrations, so many times."""

    unanswered = 0
    conflicts = 0

    async def scan(self, start: str, end: str, *, limit: int | None = None) -> list[Record]:
        if self.unanswered and start.startswith(KEY_PREFIX):
            self.unanswered -= 1
            raise StoreUnavailable("no answer")
        return await super().scan(start, end, limit=limit)

    async def commit(self, ops: list[Op]) -> Committed:  # type: ignore[override]
        removed = [op.key for op in ops if isinstance(op, Delete) and op.key.startswith(KEY_PREFIX)]
        if self.conflicts and removed:
            self.conflicts -= 1
            raise Conflict(removed[0], 1, 2)
        return await super().commit(ops)


@asynccontextmanager
async def open_transaction(store: MemoryStore) -> AsyncIterator[tuple[Rooms, KafkaClient, TransactionalProducer]]:
    """A transaction with one record in partition 0 of `t`."""
    async with rooms(store, SimulatedFiles(seed=1), clock=moving_clock()) as broker, kafka_client(broker) as client:
        await client.create("t")
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        await producer.add(("t", 0))
        await producer.send("t", b"x")
        yield broker, client, producer


async def test_an_owner_settles_when_the_store_answers_again(autojump_clock: MockClock) -> None:
    """K1, K32: readers are not held back for good because the store did not answer once."""
    store = RefusingStore()
    async with open_transaction(store) as (_broker, client, producer):
        store.unanswered = 3
        await producer.end(is_commit=True)
        await trio.sleep(60)
        assert committed_in(await client.fetch("t", 0, isolation=READ_COMMITTED)) == [b"x"]
        assert not await store.scan(*starting_with(KEY_PREFIX))
        assert await producer.end(is_commit=True) == 0


async def test_an_owner_settles_however_often_it_meets_changes(autojump_clock: MockClock) -> None:
    """K32: a registration that keeps changing, as under a claim that is lost, does not end the work on the others."""
    store = RefusingStore()
    async with open_transaction(store) as (_broker, _client, producer):
        store.conflicts = ATTEMPTS_MAX + 2
        await producer.end(is_commit=True)
        await trio.sleep(60)
        assert not await store.scan(*starting_with(KEY_PREFIX))
        assert await producer.end(is_commit=True) == 0


async def test_an_owner_settles_what_was_decided_while_it_took_over(autojump_clock: MockClock) -> None:
    """K32: the partition was added, and the transaction decided, while its new owner read what is registered."""

    class Slow(MemoryStore):
        """Whoever has asked for the registrations of a partition waits before it goes on."""

        asked = trio.Event()
        goes_on = trio.Event()
        is_slow = True

        async def query(self, index: str, start: str, end: str, *, limit: int | None = None, after: str = ""):  # type: ignore[no-untyped-def] # noqa: ANN202
            found = await super().query(index, start, end, limit=limit, after=after)
            if self.is_slow and index == "kafka-txn-op-by-participant":
                self.is_slow = False
                self.asked.set()
                await self.goes_on.wait()
            return found

    store = Slow()
    async with (
        rooms(store, SimulatedFiles(seed=1), clock=moving_clock()) as broker,
        kafka_client(broker) as client,
        trio.open_nursery() as nursery,
    ):
        await client.create("t")
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        nursery.start_soon(broker.topics.get, TopicName.parse("persistent://public/default/t-partition-0"))
        await store.asked.wait()
        await producer.add(("t", 0))
        assert await producer.end(is_commit=True) != 0, "nobody owns the partition yet"
        store.goes_on.set()
        await trio.sleep(60)
        assert not await store.scan(*starting_with(KEY_PREFIX))
        assert await producer.end(is_commit=True) == 0


async def test_a_decision_is_not_applied_to_the_transaction_behind_it(autojump_clock: MockClock) -> None:
    """K32: another broker completes it, and the next one begins here, while this broker asks who is registered."""

    class Interrupted(MemoryStore):
        """Something happens before it is answered who is registered."""

        meanwhile: Callable[[], Awaitable[None]] | None = None

        async def scan(self, start: str, end: str, *, limit: int | None = None) -> list[Record]:
            meanwhile = self.meanwhile
            if meanwhile is not None and start == registrations_of("tid")[0]:
                self.meanwhile = None
                await meanwhile()
            return await super().scan(start, end, limit=limit)

    store = Interrupted()
    async with (
        rooms(store, SimulatedFiles(seed=1), clock=moving_clock()) as broker,
        kafka_client(broker) as client,
        kafka_client(broker) as other,
    ):
        await client.create("t", 2)
        await broker.topics.get(TopicName.parse("persistent://public/default/t-partition-0"))
        producer, later = TransactionalProducer(client, "tid"), TransactionalProducer(other, "tid")
        await producer.begin_session()
        await producer.add(("t", 1))
        later.producer_id, later.epoch = producer.producer_id, producer.epoch

        async def others_work() -> None:
            (registered,) = await store.scan(*registrations_of("tid"))
            stored = await store.get(transaction_key("tid"))
            assert stored is not None
            done = completed(KafkaTransaction.from_value(stored.value), 1).to_put("tid", stored.version)
            await store.commit([Delete(registered.key, registered.version), done])
            assert await later.add(("t", 0)) == {0}
            assert (await later.send("t", b"open")).error_code == 0

        store.meanwhile = others_work
        assert await producer.end(is_commit=True) == 0
        await trio.sleep(60)
        assert committed_in(await other.fetch("t", 0, isolation=READ_COMMITTED)) == []
        assert await later.end(is_commit=False) == 0
        assert committed_in(await other.fetch("t", 0, isolation=READ_COMMITTED)) == []


async def test_a_late_settler_writes_nothing_of_the_next_transaction(autojump_clock: MockClock) -> None:
    """K27, K34: another broker has taken the duty over, ended the transaction, and served the next one."""

    class Overtaken(MemoryStore):
        is_armed = False

        async def scan(self, start: str, end: str, *, limit: int | None = None) -> list[Record]:
            if self.is_armed and start.startswith(PUTS):
                self.is_armed = False
                await self.overtake()
            return await super().scan(start, end, limit=limit)

        async def overtake(self) -> None:
            key = transaction_key("tid")
            puts = await self.scan(*deferred_by("tid"))
            registered = await self.scan(*registrations_of("tid"))
            await self.commit([*settled(puts, is_commit=True), *(Delete(one.key, one.version) for one in registered)])
            ending = await self.get(key)
            assert ending is not None
            ended = completed(KafkaTransaction.from_value(ending.value), 2_000_000)
            version = (await self.commit([ended.to_put("tid", ending.version)])).revision
            following = begun(ended, ended.producer, 2_000_001).write
            assert following is not None
            (put,) = puts
            await self.commit([following.to_put("tid", version), deferred("tid", Put(target_of(put), b"undecided"))])

    store = Overtaken()
    async with rooms(store, SimulatedFiles(seed=1), clock=moving_clock()) as broker, kafka_client(broker) as client:
        await client.create("t")
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        await producer.add_group("g")
        assert await producer.commit_offset("g", "t", 7) == 0
        store.is_armed = True
        await producer.end(is_commit=True)
        await trio.sleep(60)
        assert not store.is_armed
        offset = await store.get(offset_key("g", TopicPartition("t", 0)))
        assert offset is not None
        assert b"undecided" not in offset.value
        assert len(await store.scan(*deferred_by("tid"))) == 1


async def test_a_transaction_ends_while_a_full_disk_refuses_publishes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K33: its readers do not wait until somebody frees space. A due snapshot does not stand in the way."""
    monkeypatch.setattr(marker_buffer, "SNAPSHOT_BYTES", 1_000)
    # The journal's files are small here.
    for name, size in (("ENTRY", 24), ("MARKERS", 12), ("DELETIONS", 4)):
        monkeypatch.setattr(journal, f"{name}_ROOM_BYTES", size * 1024)
    files = SimulatedFiles(seed=1)
    async with (
        rooms(MemoryStore(), files, clock=moving_clock()) as broker,
        kafka_client(broker) as client,
    ):
        await client.create("t")
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        await producer.add(("t", 0))
        await producer.send("t", b"x")
        topic = await broker.topics.get(TopicName.parse("persistent://public/default/t-partition-0"))
        for number in range(30):
            # So the snapshot is too large for the room of markers.
            assert (await client.produce("t", batch(1_000 + number, 0, 0))).error_code == 0
        files.set_capacity(files.used_bytes)
        filler = build([KafkaRecord(None, bytes(20_000), 1)])
        while (await client.produce("t", filler)).error_code == 0:
            pass
        await trio.sleep(10 * SPACE_RETRY_SECONDS)
        assert (await client.produce("t", filler)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        before = topic.ledger.confirmed_index
        assert await producer.end(is_commit=True) == 0
        assert topic.readable_end == topic.ledger.confirmed_index == before + 1
        assert (await client.produce("t", filler)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        files.set_capacity(None)
        await trio.sleep(10 * SPACE_RETRY_SECONDS)
        assert (await client.produce("t", filler)).error_code == 0


async def test_a_group_may_have_the_name_of_a_partition(autojump_clock: MockClock) -> None:
    """K34, K32: a partition settles its own registration only, and the group's offsets are applied."""
    group = "persistent://public/default/t-partition-0"
    store = MemoryStore()
    async with open_transaction(store) as (_broker, client, producer):
        assert await producer.add_group(group) == 0
        assert await producer.commit_offset(group, "t", 7) == 0
        assert await producer.end(is_commit=True) == 0
        assert committed_in(await client.fetch("t", 0, isolation=READ_COMMITTED)) == [b"x"]
        topics = (OffsetFetchRequestTopic("t", (0,)),)
        asked = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group, topics=topics),), require_stable=True)
        (answer,) = (await client.ask(asked, OffsetFetchResponse, 8)).groups
        assert answer.topics[0].partitions[0].committed_offset == 7


class AskedStore(MemoryStore):
    """It counts how often registrations are read."""

    asked = 0

    async def fresh(self, keys: Collection[str]) -> Fresh:
        self.asked += any(key.startswith(KEY_PREFIX) for key in keys)
        return await super().fresh(keys)


async def test_a_partition_hears_of_its_registration_from_the_coordinator_beside_it() -> None:
    """K28: so it need not ask for each transaction, and still refuses data behind the end."""
    store = AskedStore()
    async with open_transaction(store) as (broker, client, producer):
        (record,) = await store.scan(*registrations_of("tid"))
        (topic,) = broker.topics
        before = store.asked
        assert (await producer.send("t", b"y")).error_code == 0
        assert await producer.end(is_commit=True) == 0
        assert await producer.add(("t", 0)) == {0}
        assert store.asked == before + 1, "by the coordinator"
        assert (await producer.send("t", b"z")).error_code == 0
        assert store.asked == before + 1
        assert await producer.end(is_commit=True) == 0
        # The news of the first registration arrives late.
        topic.markers.transactions.note_registered(Registration.from_record(record), record.version)
        assert (await producer.send("t", b"late")).error_code == ErrorCode.INVALID_TXN_STATE
        assert committed_in(await client.fetch("t", 0, isolation=READ_COMMITTED)) == [b"x", b"y", b"z"]
