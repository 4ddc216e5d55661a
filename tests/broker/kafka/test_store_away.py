"""What Kafka's clients are told while the metadata store does not answer, or is full."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from storage.metadata.memory import MemoryStore
from storage.metadata.store import Committed, Fresh, IndexHit, Op, Record, StoreFull, StoreUnavailable
from tests.support.disk import SimulatedFiles
from tests.support.kafka_connection import READ_COMMITTED, KafkaClient, committed_in, kafka_client
from tests.support.kafka_producer import TransactionalProducer
from tests.support.rooms import Rooms, moving_clock, rooms
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidewire.wire.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from tidewire.wire.kafka.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from txn.kafka_states import KafkaTxnState
from txn.kafka_transaction import KafkaTransaction, transaction_key


class LeavingStore(MemoryStore):
    """A store that refuses everything with `error`, if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.error: type[StoreUnavailable] | None = None

    def _require(self, *, writes: bool = False) -> None:
        if self.error is not None and (writes or self.error is not StoreFull):
            raise self.error("not now")

    async def commit(self, ops: Sequence[Op]) -> Committed:
        self._require(writes=True)
        return await super().commit(ops)

    async def get(self, key: str) -> Record | None:
        self._require()
        return await super().get(key)

    async def scan(self, start: str, end: str, *, limit: int | None = None) -> list[Record]:
        self._require()
        return await super().scan(start, end, limit=limit)

    async def query(
        self, index: str, start: str, end: str, *, limit: int | None = None, after: str = ""
    ) -> list[IndexHit]:
        self._require()
        return await super().query(index, start, end, limit=limit, after=after)

    async def fresh(self, keys: Collection[str]) -> Fresh:
        self._require()
        return await super().fresh(keys)


def requests(producer: TransactionalProducer) -> dict[str, tuple[object, type[Any], int]]:
    """One request of each kind that a coordinator answers."""
    who = producer.transactional_id, producer.producer_id, producer.epoch
    place = (AddPartitionsToTxnTopic("t", (0,)),)
    offset = (TxnOffsetCommitRequestTopic("t", (TxnOffsetCommitRequestPartition(0, 1),)),)
    part = OffsetCommitRequestPartition(0, 1, committed_metadata="")
    commit = OffsetCommitRequest("g", topics=(OffsetCommitRequestTopic("t", (part,)),))
    fetch = OffsetFetchRequest(groups=(OffsetFetchRequestGroup("g", topics=None),))
    return {
        "a numbered producer": (InitProducerIdRequest(None, 60_000), InitProducerIdResponse, 4),
        "a transactional producer": (InitProducerIdRequest("new", 60_000), InitProducerIdResponse, 4),
        "partitions": (AddPartitionsToTxnRequest(*who, place), AddPartitionsToTxnResponse, 3),
        "a group": (AddOffsetsToTxnRequest(*who, "g"), AddOffsetsToTxnResponse, 3),
        "offsets in a transaction": (
            TxnOffsetCommitRequest(who[0], "g", who[1], who[2], topics=offset),
            TxnOffsetCommitResponse,
            3,
        ),
        "an end": (EndTxnRequest(*who, committed=True), EndTxnResponse, 3),
        "offsets": (commit, OffsetCommitResponse, 8),
        "committed offsets": (fetch, OffsetFetchResponse, 8),
    }


WHAT = tuple(requests(TransactionalProducer(None, "tid")))  # type: ignore[arg-type]


def codes_in(answer: object) -> set[int]:
    """The error codes in a response, at any depth."""
    if isinstance(answer, tuple):
        return set().union(*map(codes_in, answer))
    found: set[int] = set()
    for name in getattr(answer, "__dataclass_fields__", {}):
        value = getattr(answer, name)
        found |= {value} if name.endswith("error_code") else codes_in(value)
    return found


@pytest.mark.parametrize("error", [StoreUnavailable, StoreFull])
@pytest.mark.parametrize("what", WHAT)
async def test_a_coordinator_is_not_available_without_its_store(what: str, error: type[StoreUnavailable]) -> None:
    """E14: clients of every age repeat the request then. At other codes, older producers of Java end."""
    store = LeavingStore()
    async with rooms(store, SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await client.create("t")
        producer = TransactionalProducer(client, "tid")
        assert await producer.begin_session() == 0
        assert await producer.add(("t", 0)) == {0}
        assert (await producer.send("t", b"a")).error_code == 0
        everything = requests(producer)
        joins, joined, joined_version = everything["a group"]
        if what == "offsets in a transaction":
            await client.ask(joins, joined, joined_version)
        request, response, version = everything[what]
        store.error = error
        with trio.fail_after(5):
            answer = await client.ask(request, response, version)
        told = codes_in(answer) - {ErrorCode.NONE}
        # Producers' numbers are reserved in blocks, and what only reads is served by a full store.
        needs_nothing = what == "a numbered producer" or (
            error is StoreFull and what in {"committed offsets", "partitions"}
        )
        assert told == (set() if needs_nothing else {ErrorCode.COORDINATOR_NOT_AVAILABLE})
        store.error = None
        with trio.fail_after(5):
            assert codes_in(await client.ask(request, response, version)) <= {ErrorCode.NONE}


@pytest.mark.parametrize("is_commit", [True, False])
async def test_the_end_of_a_transaction_does_not_wait_longer_than_its_timeout_for_space(
    autojump_clock: MockClock, *, is_commit: bool
) -> None:
    """K33: then the client gives up. When there is space, the transaction is aborted, and a repeated end is fenced."""
    async with (
        overdue_without_space(is_commit=is_commit) as (broker, client, producer, store),
        trio.open_nursery() as tasks,
    ):
        tasks.start_soon(broker.kafka_sweeps.run)
        store.error = None
        await trio.sleep(5)
        assert await producer.end(is_commit=True) == ErrorCode.PRODUCER_FENCED
        stored = await store.get(transaction_key("tid"))
        assert stored is not None
        assert KafkaTransaction.from_value(stored.value).state is KafkaTxnState.COMPLETE_ABORT
        assert await producer.begin_session() == 0
        assert await producer.add(("t", 0)) == {0}
        assert (await producer.send("t", b"b")).error_code == 0
        assert await producer.end(is_commit=True) == 0
        assert committed_in(await client.fetch("t", 0, isolation=READ_COMMITTED)) == [b"b"]
        tasks.cancel_scope.cancel()


async def test_nobody_was_told_that_an_overdue_transaction_is_aborted(autojump_clock: MockClock) -> None:
    """K31, K32, K33: a delayed commit at another broker may come before the sweep, and counts. The successor sees it.

    A broker that remembered what it answered would forget that when it restarts, and others would never know it.
    """
    async with overdue_without_space(is_commit=True) as (_broker, client, producer, store):
        store.error = None
        elsewhere = rooms(store, SimulatedFiles(seed=2), broker_id="two", kafka_node=2, clock=moving_clock())
        async with elsewhere as two, kafka_client(two) as another:
            producer.client = another
            assert await producer.end(is_commit=True) == 0
        producer.client = client
        assert await producer.begin_session() == 0
        assert committed_in(await client.fetch("t", 0, isolation=READ_COMMITTED)) == [b"a"]


@asynccontextmanager
async def overdue_without_space(
    *, is_commit: bool
) -> AsyncIterator[tuple[Rooms, KafkaClient, TransactionalProducer, LeavingStore]]:
    """Let a client end a transaction while the store is full, until the transaction's deadline is over."""
    store = LeavingStore()
    async with (
        rooms(store, SimulatedFiles(seed=1), clock=moving_clock()) as broker,
        kafka_client(broker) as client,
    ):
        await client.create("t")
        producer = TransactionalProducer(client, "tid")
        assert await producer.begin_session(timeout_ms=60_000) == 0
        assert await producer.add(("t", 0)) == {0}
        assert (await producer.send("t", b"a")).error_code == 0
        store.error = StoreFull
        assert await producer.end(is_commit=is_commit) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await trio.sleep(61)
        assert await producer.end(is_commit=is_commit) == ErrorCode.UNKNOWN_SERVER_ERROR
        assert committed_in(await client.fetch("t", 0, isolation=READ_COMMITTED)) == []
        yield broker, client, producer, store


@pytest.mark.parametrize("known", [True, False])
async def test_metadata_names_the_topics_that_have_no_leader_for_now(*, known: bool) -> None:
    """E14: the client keeps its connection and its list of brokers."""
    store = LeavingStore()
    async with rooms(store, SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await client.create("t")
        asked = MetadataRequest((MetadataRequestTopic(name="t"), MetadataRequestTopic(name="a/b")), False)
        if known:

            async def refused(keys: Collection[str]) -> Fresh:
                raise StoreUnavailable("not now")

            store.fresh = refused  # type: ignore[method-assign]
        else:
            store.error = StoreUnavailable
        answer = await client.ask(asked, MetadataResponse, 12)
        assert [topic.error_code for topic in answer.topics] == [
            ErrorCode.LEADER_NOT_AVAILABLE,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ]
        assert [node.node_id for node in answer.brokers] == [1]


async def test_an_answer_that_cannot_say_so_ends_the_connection_in_order() -> None:
    """E14: a list of all topics has no place for an error. The client connects again, and nothing looks like a bug."""
    store = LeavingStore()
    async with rooms(store, SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        store.error = StoreUnavailable
        await client.send(MetadataRequest(None), 12)
        assert await client.stream.receive_some() == b""
        store.error = None
        async with kafka_client(broker) as other:
            assert (await other.ask(MetadataRequest(None), MetadataResponse, 12)).topics == ()
