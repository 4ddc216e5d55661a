"""Kafka's clients and two brokers, one of which dies."""

from contextlib import AsyncExitStack

import trio
from trio.testing import MockClock

from storage.metadata.store import starting_with
from tests.support.kafka_connection import READ_COMMITTED, committed_in, kafka_client
from tests.support.kafka_producer import TransactionalProducer
from tests.support.several_rooms import several
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.topics import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidewire.wire.kafka.records import Record, build
from txn.kafka_participants import KEY_PREFIX


async def test_a_decision_outlives_the_owner_of_a_partition(autojump_clock: MockClock) -> None:
    """K32, K44: EndTxn answers in time without the owner. The next owner ends it, and has the next leader epoch."""
    async with several("one", "two") as brokers, kafka_client(brokers["two"]) as client:
        async with AsyncExitStack() as first:
            owner = await first.enter_async_context(kafka_client(brokers["one"]))
            await owner.create("t")
            producer = TransactionalProducer(client, "tid")
            assert await producer.begin_session() == 0
            assert await producer.add(("t", 0)) == {0}
            producer.client = owner
            assert (await producer.send("t", b"x")).error_code == 0
            refused = await client.produce("t", build([Record(None, b"y", 1)]))
            assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await brokers.kill("one")
        producer.client = client
        began = trio.current_time()
        assert await producer.end(is_commit=True) == ErrorCode.CONCURRENT_TRANSACTIONS
        assert trio.current_time() - began <= 5.5
        assert await producer.end(is_commit=False) == ErrorCode.INVALID_TXN_STATE, "the decision stands"
        store = brokers.shared
        assert len(await store.scan(*starting_with(KEY_PREFIX))) == 1
        # Its first request loads it, and its new owner finds the decision.
        data = await client.fetch("t", 0, isolation=READ_COMMITTED, epoch=1, wait_ms=1_000)
        assert await producer.end(is_commit=True) == 0
        data = await client.fetch("t", 0, isolation=READ_COMMITTED, epoch=1)
        assert committed_in(data) == [b"x"]
        assert (await client.fetch("t", 0, epoch=0)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        asked = OffsetForLeaderTopic("t", (OffsetForLeaderPartition(0, -1, 0),))
        answer = await client.ask(OffsetForLeaderEpochRequest(topics=(asked,)), OffsetForLeaderEpochResponse, 4)
        (end,) = answer.topics[0].partitions
        assert (end.leader_epoch, end.end_offset) == (0, 1)
        assert not await store.scan(*starting_with(KEY_PREFIX))
