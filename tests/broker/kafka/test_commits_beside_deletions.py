"""Offsets that groups commit while their topic is deleted. A later topic of the name must not begin there."""

from collections.abc import Sequence

import pytest

from broker.kafka.groups.offsets import KEY_PREFIX
from broker.names import TopicName
from storage.metadata.store import Op, Put, starting_with
from tests.broker.kafka.test_topics import deleted, served
from tests.support.kafka_connection import KafkaClient, committed, kafka_client
from tests.support.kafka_producer import TransactionalProducer
from tests.support.steered_store import SteeredStore
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from txn.deferred_puts import KEY_PREFIX as DEFERRED

SCALABLE = TopicName.parse("topic://public/default/t")


async def committing(client: KafkaClient, group: str, offset: int) -> int:
    """Commit for partition 0 of `t`. Returns the error code."""
    part = OffsetCommitRequestPartition(0, offset, committed_metadata="")
    request = OffsetCommitRequest(group, topics=(OffsetCommitRequestTopic("t", (part,)),))
    return (await client.ask(request, OffsetCommitResponse, 8)).topics[0].partitions[0].error_code


@pytest.mark.parametrize("is_made_again", [False, True])
@pytest.mark.parametrize("how", ["a regular topic", "a scalable topic", "in a transaction"])
async def test_no_offset_outlives_its_topic(how: str, *, is_made_again: bool) -> None:
    """K36: a commit that comes behind the deletion is refused, or it is one of the new topic."""
    store = SteeredStore()
    async with served(store) as (broker, client), kafka_client(broker) as other:

        async def create() -> None:
            if how == "a scalable topic":
                await broker.controller.create_topic(SCALABLE, 1, {})
            else:
                await other.create("t")

        async def delete_first(ops: Sequence[Op]) -> None:
            if any(isinstance(op, Put) and op.key.startswith((KEY_PREFIX, DEFERRED)) for op in ops):
                store.before = None
                if how == "a scalable topic":
                    await broker.controller.delete_topic(SCALABLE, force=True)
                else:
                    assert (await deleted(other, "t")).error_code == 0
                if is_made_again:
                    await create()

        await create()
        producer = TransactionalProducer(client, "tid")
        if how == "in a transaction":
            await producer.begin_session()
            await producer.add_group("g")
        assert await committing(client, "g", 3) == 0
        store.before = delete_first
        if how == "in a transaction":
            code = await producer.commit_offset("g", "t", 7)
            await producer.end(is_commit=True)
        else:
            code = await committing(client, "g", 7)
        if is_made_again:
            assert code == 0
            assert await committed(client, "g", 0, topic="t") == [7]
        else:
            assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert await store.scan(*starting_with(KEY_PREFIX)) == []
            assert await store.scan(*starting_with(DEFERRED)) == []
            await create()
            assert await committed(client, "g", 0, topic="t") == [-1]


async def test_a_commit_to_many_topics_leaves_room_for_their_conditions() -> None:
    """M25: a change set has fewer operations than etcd takes. A topic that changes meanwhile keeps its commit."""
    store = SteeredStore()
    async with served(store) as (_broker, client):
        names = [f"t{number}" for number in range(120)]
        for name in names:
            await client.create(name)
        sizes: list[int] = []

        async def measure(ops: Sequence[Op]) -> None:
            sizes.append(len(ops))

        part = OffsetCommitRequestPartition(0, 5, committed_metadata="")
        request = OffsetCommitRequest("g", topics=tuple(OffsetCommitRequestTopic(name, (part,)) for name in names))
        store.before = measure
        answer = await client.ask(request, OffsetCommitResponse, 8)
        assert {one.partitions[0].error_code for one in answer.topics} == {0}
        assert max(sizes) <= 124
        assert len(await store.scan(*starting_with(KEY_PREFIX))) == 120
