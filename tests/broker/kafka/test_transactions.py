"""Transactions of Kafka's clients, from the wire to the log and back."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.kafka.groups.offsets import KEY_PREFIX as OFFSETS
from broker.kafka.groups.offsets import TopicPartition, offset_key
from broker.names import TopicName
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Op, Put, starting_with
from tests.support.disk import SimulatedFiles
from tests.support.kafka_batches import batch
from tests.support.kafka_connection import READ_COMMITTED, KafkaClient, committed_in, kafka_client, produce_request
from tests.support.kafka_producer import TransactionalProducer
from tests.support.rooms import Rooms, moving_clock, rooms
from tests.support.steered_store import SteeredStore
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.administration import DescribeLogDirsRequest, DescribeLogDirsResponse
from tidewire.wire.kafka.messages.fetch import AbortedTransaction
from tidewire.wire.kafka.messages.list_offsets import LATEST
from tidewire.wire.kafka.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from tidewire.wire.kafka.messages.produce import ProduceResponse
from tidewire.wire.kafka.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tidewire.wire.kafka.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tidewire.wire.kafka.records import Record, build
from txn.deferred_puts import KEY_PREFIX as PUTS
from txn.kafka_participants import KEY_PREFIX
from txn.kafka_transaction import transaction_key

PARTITIONS = 3


@asynccontextmanager
async def served(
    store: MemoryStore | None = None, files: SimulatedFiles | None = None
) -> AsyncIterator[tuple[Rooms, KafkaClient]]:
    async with (
        rooms(store or MemoryStore(), files or SimulatedFiles(seed=1), clock=moving_clock()) as broker,
        kafka_client(broker) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(broker.kafka_sweeps.run)
        yield broker, client
        nursery.cancel_scope.cancel()


async def committed(client: KafkaClient, topic: str = "t", partition: int = 0) -> list[bytes | None]:
    """What a consumer of committed records shows."""
    return committed_in(await client.fetch(topic, 0, partition=partition, isolation=READ_COMMITTED))


@pytest.mark.parametrize("version", [1, 2])
async def test_a_commit_shows_everything_at_once_and_an_abort_nothing(*, version: int) -> None:
    """K3, K19, K31, K32: on all partitions, when EndTxn is answered; the next transaction begins at once."""
    async with served() as (broker, client):
        await client.create("t", PARTITIONS)
        producer = TransactionalProducer(client, "tid", version)
        assert await producer.begin_session() == 0
        places = [("t", partition) for partition in range(PARTITIONS)]
        for is_commit, value in ((True, b"a"), (False, b"b"), (True, b"c")):
            assert await producer.add(*places) == {0}
            for topic, partition in places:
                assert (await producer.send(topic, value, partition=partition)).error_code == 0
            before = await committed(client)
            assert value not in before
            assert await producer.end(is_commit=is_commit) == 0
            for _topic, partition in places:
                shown = await committed(client, partition=partition)
                assert (value in shown) == is_commit
        data = await client.fetch("t", 0, isolation=READ_COMMITTED)
        assert data.aborted_transactions == (AbortedTransaction(producer.producer_id, 2),)
        assert (data.last_stable_offset, data.high_watermark) == (6, 6)
        assert not await broker.metadata.scan(*starting_with(KEY_PREFIX)), "nobody is registered any more"


async def test_a_partition_that_was_not_added_takes_nothing() -> None:
    async with served() as (_broker, client):
        await client.create("t", 2)
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        await producer.add(("t", 0))
        assert (await producer.send("t", b"x", partition=1)).error_code == ErrorCode.INVALID_TXN_STATE
        assert await producer.add(("t", 0), ("t", 7)) == {
            ErrorCode.OPERATION_NOT_ATTEMPTED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert await producer.end(is_commit=True) == 0
        assert await committed(client) == []


async def test_a_transactional_batch_without_a_producer_is_refused() -> None:
    """K3: no marker could ever end it, so readers of committed records would get it at once."""
    async with served() as (_broker, client):
        await client.create("t")
        request = produce_request("t", batch(-1, -1, -1, in_txn=True), transactional_id="tid")
        answer = await client.ask(request, ProduceResponse, 9)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_RECORD
        assert (await client.offset("t", LATEST)).offset == 0


@pytest.mark.parametrize("version", [1, 2])
async def test_a_new_producer_fences_the_old_one_and_aborts_its_transaction(*, version: int) -> None:
    """K28, K29: a zombie writes nothing and ends nothing."""
    async with served() as (_broker, client):
        await client.create("t")
        old, new = TransactionalProducer(client, "tid", version), TransactionalProducer(client, "tid", version)
        await old.begin_session()
        await old.add(("t", 0))
        await old.send("t", b"old")
        assert await new.begin_session() == 0
        assert (new.producer_id, new.epoch > old.epoch) == (old.producer_id, True)
        assert (await old.send("t", b"late")).error_code in {
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.PRODUCER_FENCED,
        }
        assert await old.end(is_commit=True) == ErrorCode.PRODUCER_FENCED
        await new.add(("t", 0))
        await new.send("t", b"new")
        assert await new.end(is_commit=True) == 0
        assert await committed(client) == [b"new"]


@pytest.mark.parametrize("is_old", [True, False])
async def test_an_older_client_hears_of_fencing_in_words_that_it_knows(*, is_old: bool) -> None:
    """K29: PRODUCER_FENCED came with KIP-588. Clients that do not know it take it for an unknown error."""
    expected = ErrorCode.INVALID_PRODUCER_EPOCH if is_old else ErrorCode.PRODUCER_FENCED
    async with served() as (_broker, client):
        await client.create("t")
        old, new = TransactionalProducer(client, "tid"), TransactionalProducer(client, "tid")
        await old.begin_session()
        await new.begin_session()
        topics = (AddPartitionsToTxnTopic("t", (0,)),)
        add = AddPartitionsToTxnRequest("tid", old.producer_id, old.epoch, topics)
        added = await client.ask(add, AddPartitionsToTxnResponse, 1 if is_old else 2)
        assert added.results_by_topic[0].results_by_partition[0].partition_error_code == expected
        end = EndTxnRequest("tid", old.producer_id, old.epoch, committed=True)
        assert (await client.ask(end, EndTxnResponse, 1 if is_old else 2)).error_code == expected


async def test_a_fenced_producer_that_comes_back_hears_it_in_any_version() -> None:
    """K30: version 3 of InitProducerId names an epoch and does not know PRODUCER_FENCED yet."""
    async with served() as (_broker, client):
        old, new = TransactionalProducer(client, "tid"), TransactionalProducer(client, "tid")
        for producer in (old, new, new):
            await producer.begin_session()
        for version, expected in ((3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)):
            asked = InitProducerIdRequest("tid", 60_000, old.producer_id, old.epoch)
            assert (await client.ask(asked, InitProducerIdResponse, version)).error_code == expected


async def test_a_transaction_ends_at_its_deadline(autojump_clock: MockClock) -> None:
    """K1: readers go on, and its producer is told."""
    async with served() as (broker, client):
        await client.create("t")
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session(timeout_ms=5_000)
        await producer.add(("t", 0))
        await producer.send("t", b"forgotten")
        topic = await broker.topics.get(TopicName.parse("persistent://public/default/t-partition-0"))
        await topic.readable.wait_for(topic.ledger.last_position)
        await trio.sleep(6)
        assert await committed(client) == []
        assert (await client.offset("t", LATEST, isolation=READ_COMMITTED)).offset == 2
        assert await producer.end(is_commit=True) == ErrorCode.PRODUCER_FENCED
        assert await producer.begin_session() == 0


@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_transaction_survives_the_death_of_its_broker(autojump_clock: MockClock, *, is_commit: bool) -> None:
    """K24, K27, D8: what was written before is decided with what comes after."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with served(store, files) as (_broker, client):
        await client.create("t", 2)
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        await producer.add(("t", 0), ("t", 1))
        await producer.send("t", b"before")
    async with served(store, files.crash(keep=0.0)) as (_broker, client):
        producer.client = client
        assert await committed(client) == []
        assert (await producer.send("t", b"after")).base_offset == 1
        assert (await producer.send("t", b"there", partition=1)).error_code == 0
        assert await producer.end(is_commit=is_commit) == 0
        assert [await committed(client, partition=partition) for partition in range(2)] == (
            [[b"before", b"after"], [b"there"]] if is_commit else [[], []]
        )


@pytest.mark.parametrize("version", [1, 2])
async def test_a_decision_is_applied_by_the_next_owner(autojump_clock: MockClock, *, version: int) -> None:
    """K27, K32: the broker dies between the decision and its markers; the client's retry waits for the same end."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with served(store, files) as (broker, client):
        await client.create("t", 2)
        producer = TransactionalProducer(client, "tid", version)
        await producer.begin_session()
        await producer.add(("t", 0), ("t", 1))
        for partition in range(2):
            await producer.send("t", b"x", partition=partition)
        files.stop()  # No marker becomes durable any more.
        assert await producer.end(is_commit=True) == ErrorCode.CONCURRENT_TRANSACTIONS
        files.resume()
        broker.kafka_transactions.settler._due.clear()
    async with served(store, files.crash(keep=0.0)) as (_broker, client):
        producer.client = client
        assert await producer.end(is_commit=True) == 0
        assert [await committed(client, partition=partition) for partition in range(2)] == [[b"x"], [b"x"]]
        assert not await store.scan(*starting_with(KEY_PREFIX))


async def test_a_deleted_topic_counts_as_applied(autojump_clock: MockClock) -> None:
    """K32: the transaction ends on the others."""
    async with served() as (broker, client):
        await client.create("t")
        await client.create("gone")
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        await producer.add(("t", 0), ("gone", 0))
        await producer.send("t", b"x")
        await producer.send("gone", b"y")
        name = TopicName.parse("persistent://public/default/gone-partition-0")
        await broker.topics.delete(name)
        assert await producer.end(is_commit=True) == 0
        assert await committed(client) == [b"x"]


async def stored_offset(client: KafkaClient, *, stable: bool = False) -> tuple[int, int]:
    """The committed offset of partition 0 of `t` for the group `g`, and the error code."""
    topics = (OffsetFetchRequestTopic("t", (0,)),)
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup("g", topics=topics),), require_stable=stable)
    part = (await client.ask(request, OffsetFetchResponse, 8)).groups[0].topics[0].partitions[0]
    return part.committed_offset, part.error_code


async def test_offsets_count_with_the_commit_and_are_dropped_by_an_abort() -> None:
    """K34, K36: until then they are unstable; the plain offset stays."""
    async with served() as (broker, client):
        await client.create("t")
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        expected = -1
        for is_commit, offset in ((True, 5), (False, 9), (True, 3)):
            assert await producer.commit_offset("g", "t", offset) == ErrorCode.INVALID_TXN_STATE
            assert await producer.add_group("g") == 0
            assert await producer.commit_offset("g", "t", offset + 100) == 0
            assert await producer.commit_offset("g", "t", offset) == 0
            assert await stored_offset(client) == (expected, 0)
            assert await stored_offset(client, stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            assert await producer.end(is_commit=is_commit) == 0
            expected = offset if is_commit else expected
            assert await stored_offset(client, stable=True) == (expected, 0)
        assert not await broker.metadata.scan(*starting_with(PUTS))
        assert not await broker.metadata.scan(*starting_with(KEY_PREFIX))


@pytest.mark.parametrize("version", [1, 2])
async def test_offsets_and_records_of_a_transaction_are_one_decision(
    autojump_clock: MockClock, *, version: int
) -> None:
    """K27, K34: the broker dies behind the decision; the next one applies all of it."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with served(store, files) as (_broker, client):
        await client.create("t")
        producer = TransactionalProducer(client, "tid", version)
        await producer.begin_session()
        await producer.add(("t", 0))
        await producer.add_group("g")
        await producer.send("t", b"x")
        assert await producer.commit_offset("g", "t", 7) == 0
        files.stop()
        assert await producer.end(is_commit=True) == ErrorCode.CONCURRENT_TRANSACTIONS
        files.resume()
    async with served(store, files.crash(keep=0.0)) as (_broker, client):
        producer.client = client
        assert await producer.end(is_commit=True) == 0
        assert await committed(client) == [b"x"]
        assert await stored_offset(client, stable=True) == (7, 0)


async def test_a_fenced_producer_commits_no_offsets() -> None:
    """K34: nor does a stale generation."""
    async with served() as (_broker, client):
        await client.create("t")
        old, new = TransactionalProducer(client, "tid"), TransactionalProducer(client, "tid")
        await old.begin_session()
        await old.add_group("g")
        assert await old.commit_offset("g", "t", 7, generation=4, member="gone") in {
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.UNKNOWN_MEMBER_ID,
        }
        assert await new.begin_session() == 0
        # As in Kafka. aiokafka knows no other code for it.
        assert await old.commit_offset("g", "t", 7) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await stored_offset(client, stable=True) == (-1, 0)


@pytest.mark.parametrize("version", [1, 2])
async def test_a_producer_that_is_fenced_while_it_commits_offsets_hears_that(*, version: int) -> None:
    """K34: between the look at the transaction and the write. It does not hear of a wrong state, which it had not."""
    store = SteeredStore()
    async with served(store) as (broker, client), kafka_client(broker) as other:
        await client.create("t")
        old, new = (TransactionalProducer(each, "tid", version) for each in (client, other))
        await old.begin_session()
        await old.add_group("g")

        async def fence(ops: Sequence[Op]) -> None:
            if any(isinstance(op, Put) and op.key.startswith(PUTS) for op in ops):
                store.before = None
                assert await new.begin_session() == 0

        store.before = fence
        assert await old.commit_offset("g", "t", 7) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await stored_offset(client, stable=True) == (-1, 0)


async def test_a_delayed_end_of_version_2_ends_no_later_transaction() -> None:
    """K28, K29, K31: Jepsen's finding on Kafka. Its repeat gets the same answer as long as nothing else began."""
    async with served() as (_broker, client):
        await client.create("t")
        producer = TransactionalProducer(client, "tid", 2)
        await producer.begin_session()
        await producer.send("t", b"a")
        late = EndTxnRequest("tid", producer.producer_id, producer.epoch, committed=True)
        assert await producer.end(is_commit=True) == 0
        repeated = await client.ask(late, EndTxnResponse, 5)
        assert (repeated.error_code, repeated.producer_epoch) == (0, producer.epoch)
        await producer.send("t", b"b")
        assert (await client.ask(late, EndTxnResponse, 5)).error_code == ErrorCode.PRODUCER_FENCED
        assert await committed(client) == [b"a"]
        assert await producer.end(is_commit=False) == 0
        assert await committed(client) == [b"a"]


async def test_a_delayed_end_of_version_1_is_refused_by_its_connection() -> None:
    """K31: the client has gone on over another connection, and would lose its next transaction."""
    async with served() as (broker, client), kafka_client(broker) as newer:
        await client.create("t")
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        await producer.add(("t", 0))
        await producer.send("t", b"a")
        late = EndTxnRequest("tid", producer.producer_id, producer.epoch, committed=True)
        assert await producer.end(is_commit=True) == 0
        producer.client = newer
        await producer.add(("t", 0))
        await producer.send("t", b"b")
        assert (await client.ask(late, EndTxnResponse, 3)).error_code == ErrorCode.INVALID_TXN_STATE
        assert await committed(client) == [b"a"]
        assert await producer.end(is_commit=False) == 0
        assert await committed(client) == [b"a"]


@pytest.mark.parametrize("how", ["it ends it", "another producer begins", "its time is over"])
async def test_nothing_is_remembered_of_a_transaction_that_has_ended(how: str, autojump_clock: MockClock) -> None:
    """E16, K31: however it ends. A producer may end after each transaction, and never come back."""
    async with served() as (broker, client):
        coordinator = broker.kafka_transactions.coordinator
        await client.create("t")
        for number in range(3):
            producer = TransactionalProducer(client, f"tid-{number}")
            await producer.begin_session(timeout_ms=5_000)
            await producer.add(("t", 0))
            await producer.send("t", b"a")
            assert coordinator.remembered == 1
            if how == "it ends it":
                assert await producer.end(is_commit=True) == 0
            elif how == "another producer begins":
                assert await TransactionalProducer(client, producer.transactional_id).begin_session() == 0
            else:
                await trio.sleep(60)
            await wait_all_tasks_blocked()
            assert coordinator.remembered == 0


async def test_what_is_remembered_of_a_transaction_outlives_news_of_the_last_one() -> None:
    """K31: a broker that follows the records late may hear of an end when the next transaction is open."""
    async with served() as (broker, client):
        coordinator, key = broker.kafka_transactions.coordinator, transaction_key("tid")
        await client.create("t")
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        before = await broker.metadata.get(key)
        await producer.add(("t", 0))
        opened = await broker.metadata.get(key)
        assert before is not None
        assert opened is not None
        for told, left in ((before, 1), (opened, 1), (opened._replace(version=opened.version + 1), 0)):
            coordinator.shown(told)
            assert coordinator.remembered == left


async def test_an_earlier_transactions_connection_makes_no_end_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """K31: also while this broker has not heard yet that the earlier one has ended."""
    async with served() as (broker, client), kafka_client(broker) as newer:
        # A producer of version 1 that another instance has replaced and that comes back has an older connection.
        await client.create("t")
        producer = TransactionalProducer(newer, "tid")
        await producer.begin_session()
        monkeypatch.setattr(broker.kafka_transactions.coordinator, "shown", lambda _record: None)
        await producer.add(("t", 0))
        await producer.send("t", b"a")
        assert await producer.end(is_commit=True) == 0
        producer.client = client
        await producer.add(("t", 0))
        await producer.send("t", b"b")
        assert await producer.end(is_commit=True) == 0
        assert await committed(client) == [b"a", b"b"]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("group", ["", "g" * 1_025])
async def test_a_group_without_a_legal_name_joins_no_transaction(group: str, version: int) -> None:
    """K34, E8: it could be in no other request, and would stand in a key of the metadata store."""
    async with served() as (broker, client):
        await client.create("t")
        producer = TransactionalProducer(client, "tid", version)
        await producer.begin_session()
        if version == 1:
            assert await producer.add_group(group) == ErrorCode.INVALID_GROUP_ID
        assert await producer.commit_offset(group, "t", 7) == ErrorCode.INVALID_GROUP_ID
        assert not await broker.metadata.scan(*starting_with(KEY_PREFIX))


async def test_a_transaction_commits_no_offset_of_a_deleted_topic() -> None:
    """It would stay until it expires, and be read by groups of the topic's next life."""
    async with served() as (broker, client), trio.open_nursery() as nursery:
        nursery.start_soon(broker.partition_removal.run)
        for topic in ("t", "t2"):
            await client.create(topic)
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        await producer.add_group("g")
        assert await producer.commit_offset("g", "t", 7) == 0
        assert await producer.commit_offset("g", "t2", 8) == 0
        deletion = DeleteTopicsRequest((DeleteTopicState("t"),), timeout_ms=10_000)
        assert (await client.ask(deletion, DeleteTopicsResponse, 6)).responses[0].error_code == 0
        assert await producer.end(is_commit=True) == 0
        stored = await broker.metadata.scan(*starting_with(OFFSETS))
        assert [record.key for record in stored] == [offset_key("g", TopicPartition("t2", 0))]
        nursery.cancel_scope.cancel()


async def test_transactions_are_listed_by_a_pattern_of_their_ids() -> None:
    """KIP-1152: of the whole id. A pattern that could take any time is refused by name (E20)."""
    async with served() as (_broker, client):
        for name in ("orders-1", "orders-2", "old-orders-1"):
            assert await TransactionalProducer(client, name).begin_session() == 0

        async def listed(pattern: str | None) -> tuple[int, set[str]]:
            request = ListTransactionsRequest(transactional_id_pattern=pattern)
            answer = await client.ask(request, ListTransactionsResponse, 2)
            return answer.error_code, {one.transactional_id for one in answer.transaction_states}

        every = {"orders-1", "orders-2", "old-orders-1"}
        assert await listed(None) == await listed("") == await listed(".*") == (0, every)
        assert await listed("orders-.") == (0, {"orders-1", "orders-2"})
        assert await listed(".*orders-1") == (0, {"orders-1", "old-orders-1"})
        assert await listed("(o+)+") == (ErrorCode.INVALID_REGULAR_EXPRESSION, set())


async def test_administrators_see_producers_and_transactions() -> None:
    """KIP-664: what is open, since when, and where."""
    async with served() as (_broker, client):
        await client.create("t", 2)
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        await producer.add(("t", 0), ("t", 1))
        await producer.send("t", b"a", partition=1)
        listed = await client.ask(ListTransactionsRequest(), ListTransactionsResponse, 1)
        assert [(one.transactional_id, one.transaction_state) for one in listed.transaction_states] == [
            ("tid", "Ongoing")
        ]
        none = await client.ask(ListTransactionsRequest(("Empty", "Odd")), ListTransactionsResponse, 1)
        assert (none.transaction_states, none.unknown_state_filters) == ((), ("Odd",))
        asked = DescribeTransactionsRequest(("tid", "other"))
        found, missing = (await client.ask(asked, DescribeTransactionsResponse, 0)).transaction_states
        assert (found.transaction_state, found.producer_id) == ("Ongoing", producer.producer_id)
        assert [(topic.name, topic.partitions) for topic in found.topics] == [("t", (0, 1))]
        assert missing.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        places = DescribeProducersRequest((AddPartitionsToTxnTopic("t", (0, 1, 2)),))
        parts = (await client.ask(places, DescribeProducersResponse, 0)).topics[0].partitions
        assert [len(part.active_producers) for part in parts] == [0, 1, 0]
        repeated = DescribeProducersRequest((AddPartitionsToTxnTopic("t", (1,) * 100),) * 2)
        (once,) = (await client.ask(repeated, DescribeProducersResponse, 0)).topics
        assert once.partitions == (parts[1],), "E8: a small request asks for no large response"
        assert parts[1].active_producers[0].current_txn_start_offset == 0
        assert parts[2].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await producer.end(is_commit=True)
        (ended,) = (await client.ask(places, DescribeProducersResponse, 0)).topics[0].partitions[1].active_producers
        assert ended.current_txn_start_offset == -1


async def test_an_administrator_ends_a_transaction_that_hangs(autojump_clock: MockClock) -> None:
    """KIP-664: data whose registration was lost hold readers back until a marker is written by hand."""
    async with served() as (broker, client):
        await client.create("t")
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        await producer.add(("t", 0))
        await producer.send("t", b"a")

        async def end() -> int:
            topics = (WritableTxnMarkerTopic("t", (0,)),)
            marker = WritableTxnMarker(producer.producer_id, producer.epoch, False, topics, 0)
            answer = await client.ask(WriteTxnMarkersRequest((marker,)), WriteTxnMarkersResponse, 1)
            return answer.markers[0].topics[0].partitions[0].error_code

        assert await end() == ErrorCode.INVALID_TXN_STATE
        for record in await broker.metadata.scan(*starting_with(KEY_PREFIX)):
            await broker.metadata.delete(record.key)
        await client.produce("t", build([Record(None, b"behind", 1)]))
        assert await committed(client) == []
        assert await end() == 0
        assert await committed(client) == [b"behind"]
        (sizes,) = (await client.ask(DescribeLogDirsRequest(None), DescribeLogDirsResponse, 4)).results
        assert [(topic.name, topic.partitions[0].partition_size > 0) for topic in sizes.topics] == [("t", True)]


async def test_a_marker_by_hand_does_not_keep_later_transactions_from_ending() -> None:
    """KIP-664: an administrator guesses the coordinator's epoch. A high guess must not fence the real coordinator."""
    async with served() as (_broker, client):
        await client.create("t")
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        await producer.add(("t", 0))
        await producer.send("t", b"a")
        assert await producer.end(is_commit=True) == 0
        topics = (WritableTxnMarkerTopic("t", (0,)),)
        marker = WritableTxnMarker(producer.producer_id, producer.epoch, False, topics, coordinator_epoch=9)
        answer = await client.ask(WriteTxnMarkersRequest((marker,)), WriteTxnMarkersResponse, 1)
        assert answer.markers[0].topics[0].partitions[0].error_code == 0
        nobody = WritableTxnMarker(-2, 0, False, topics, coordinator_epoch=0)
        answer = await client.ask(WriteTxnMarkersRequest((nobody,)), WriteTxnMarkersResponse, 1)
        assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST
        await producer.add(("t", 0))
        await producer.send("t", b"b")
        assert await producer.end(is_commit=True) == 0
        assert await committed(client) == [b"a", b"b"]
