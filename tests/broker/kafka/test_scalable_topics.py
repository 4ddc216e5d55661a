"""A scalable topic over Kafka's protocol: a partition for each segment, and only what is committed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.errors import TopicExists
from broker.kafka import fetching
from broker.kafka.fetching import TOLD_MAX
from broker.kafka.groups.offsets import KEY_PREFIX
from broker.layouts.parts import StartPosition
from broker.layouts.pruned_segments import KEY_PREFIX as PRUNED
from broker.names import TopicName
from storage.entry import TxnId
from storage.metadata.memory import MemoryStore
from storage.metadata.store import DeleteRange, starting_with
from tests.support.disk import SimulatedFiles
from tests.support.kafka_connection import READ_COMMITTED, KafkaClient, commit, fetch_request, kafka_client, values_of
from tests.support.rooms import TOPIC, Rooms, publish, rooms, segments, subscribe
from tests.support.several_rooms import several
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.fetch import FetchResponse, PartitionData
from tidewire.wire.kafka.messages.list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from tidewire.wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataTopic
from tidewire.wire.kafka.messages.topics import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    NamedTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidewire.wire.kafka.record_batches import batches
from tidewire.wire.kafka.records import Record, build
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from txn.states import EndAction

ISOLATIONS = (0, READ_COMMITTED)


@asynccontextmanager
async def served(segments: int = 1) -> AsyncIterator[tuple[Rooms, KafkaClient]]:
    """A broker with the scalable topic `orders`."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await broker.controller.create_topic(TOPIC, segments, {})
        yield broker, client


async def send(broker: Rooms, segment_id: int, value: bytes, txn: TxnId | None = None, at: int = 5) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=at)
    await publish((await segments(broker))[segment_id], build_payload(metadata, value), txn)


async def begin(broker: Rooms) -> TxnId:
    return await broker.coordinator.new_transaction(0, 60_000)


async def end(broker: Rooms, txn: TxnId, action: EndAction) -> None:
    await broker.coordinator.end(txn, action)
    await wait_all_tasks_blocked()


async def described(client: KafkaClient, name: str | None = "orders") -> MetadataTopic:
    topics = None if name is None else (MetadataRequestTopic(name=name),)
    (topic,) = (await client.ask(MetadataRequest(topics, False), MetadataResponse, 12)).topics
    return topic


async def prune(broker: Rooms, segment_id: int = 0) -> None:
    """Let a subscription drain a sealed segment, so that it is pruned and its data removed."""
    topic = (await segments(broker))[segment_id]
    cursor = topic.subscriptions["s"].cursor
    cursor.acknowledge_cumulative(topic.ledger.last_position)
    await cursor.synced()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.pruner.run)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    layout = await broker.layouts.get(TOPIC)
    assert segment_id not in {*layout.segments, *layout.pruned}


def next_offset(data: PartitionData) -> int:
    """Where a consumer goes on that got this."""
    whole: object = data.records or b""
    assert isinstance(whole, bytes)
    *_, (header, _batch) = batches(whole)
    return header.base_offset + header.last_offset_delta + 1


async def test_each_segment_is_a_partition_for_good() -> None:
    """K41: sealed ones included, through splits and merges; each counts its messages from 0."""
    async with served() as (broker, client):
        await send(broker, 0, b"before")
        await broker.controller.split(TOPIC, 0)
        await send(broker, 1, b"left")
        await send(broker, 2, b"right")
        await broker.controller.merge(TOPIC, 1, 2)
        await send(broker, 3, b"after")
        topic = await described(client, None)
        assert (topic.name, topic.error_code) == ("orders", 0)
        assert [(part.partition_index, part.leader_id, part.error_code) for part in topic.partitions] == [
            (number, 1, 0) for number in range(4)
        ]
        for number, value in enumerate((b"before", b"left", b"right", b"after")):
            assert values_of(await client.fetch("orders", 0, partition=number)) == [(0, value)]
            assert (await client.offset("orders", LATEST, partition=number)).offset == 1
        assert (await client.fetch("orders", 0, partition=4)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_only_what_is_committed_is_shown(isolation: int) -> None:
    """K1, K3, K21: also to readers of uncommitted records. An aborted message leaves an empty batch at its offset."""
    async with served() as (broker, client):
        await send(broker, 0, b"a")
        txn, other = await begin(broker), await begin(broker)
        await send(broker, 0, b"aborted", txn)
        await send(broker, 0, b"b")
        await send(broker, 0, b"kept", other)
        data = await client.fetch("orders", 0, isolation=isolation)
        assert values_of(data) == [(0, b"a")]
        assert (data.high_watermark, data.last_stable_offset) == (1, 1)
        assert (await client.offset("orders", LATEST, isolation=isolation)).offset == 1
        refused = await client.fetch("orders", 2, isolation=isolation)
        assert refused.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        await end(broker, other, EndAction.COMMIT)
        assert (await client.offset("orders", LATEST, isolation=isolation)).offset == 1
        await end(broker, txn, EndAction.ABORT)
        data = await client.fetch("orders", 0, isolation=isolation)
        assert values_of(data) == [(0, b"a"), (2, b"b"), (3, b"kept")]
        assert not data.aborted_transactions
        assert (data.high_watermark, data.last_stable_offset, next_offset(data)) == (4, 4, 4)


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_a_consumer_reaches_the_end_behind_an_aborted_tail(isolation: int) -> None:
    """K21: from its middle, too."""
    async with served() as (broker, client):
        await send(broker, 0, b"a")
        txn = await begin(broker)
        for _ in range(3):
            await send(broker, 0, b"aborted", txn)
        await end(broker, txn, EndAction.ABORT)
        assert (await client.offset("orders", LATEST, isolation=isolation)).offset == 4
        for start in (0, 1, 2, 3):
            data = await client.fetch("orders", start, isolation=isolation)
            assert values_of(data) == ([(0, b"a")] if start == 0 else [])
            assert next_offset(data) == 4
        assert values_of(await client.fetch("orders", 4, isolation=isolation)) == []


async def test_a_commit_that_returned_is_below_the_end() -> None:
    """D8: on each segment, however the position is asked for; offsets do not move when the segment changes hands."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with rooms(store, files) as broker, kafka_client(broker) as client:
        await broker.controller.create_topic(TOPIC, 2, {})
        txn, late = await begin(broker), await begin(broker)
        for segment_id in (0, 1):
            await send(broker, segment_id, b"a", txn)
            await send(broker, segment_id, b"open", late)
        await broker.coordinator.end(txn, EndAction.COMMIT)
        for number in (0, 1):
            assert (await client.offset("orders", LATEST, partition=number)).offset == 1
    async with rooms(store, files.kill()) as broker, kafka_client(broker) as client:
        for number in (0, 1):
            assert (await client.offset("orders", LATEST, partition=number)).offset == 1
        await end(broker, late, EndAction.COMMIT)
        for number in (0, 1):
            assert values_of(await client.fetch("orders", 0, partition=number)) == [(0, b"a"), (1, b"open")]


async def test_the_owner_of_a_segment_leads_its_partition() -> None:
    """K44: each broker says so, and serves only what it owns. Any broker answers for what was pruned."""
    async with several("one", "two") as brokers:
        one, two = brokers["one"], brokers["two"]
        await one.controller.create_topic(TOPIC, 2, {})
        await two.topics.get(await one.segment(TOPIC, 0))
        await one.topics.get(await one.segment(TOPIC, 1))
        await wait_all_tasks_blocked()
        async with kafka_client(one) as client:
            topic = await described(client)
            assert [(part.leader_id, part.isr_nodes) for part in topic.partitions] == [(2, (2,)), (1, (1,))]
            assert (await client.fetch("orders", 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (await client.fetch("orders", 0, partition=1)).error_code == 0
            refused = await client.produce("orders", build([Record(None, b"a", 1)]), partition=0)
            assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_search_by_time_finds_no_aborted_message() -> None:
    """K39: nor one that is still open."""
    async with served() as (broker, client):
        txn, late = await begin(broker), await begin(broker)
        await send(broker, 0, b"aborted", txn, at=5_000)
        await send(broker, 0, b"a", at=6_000)
        await send(broker, 0, b"open", late, at=9_000)
        await end(broker, txn, EndAction.ABORT)
        assert (await client.offset("orders", 1_000)).offset == 1
        found = await client.offset("orders", MAX_TIMESTAMP)
        assert (found.offset, found.timestamp) == (1, 6_000)
        assert (await client.offset("orders", 7_000)).offset == -1


async def test_a_parked_fetch_gets_a_commit_and_hears_of_a_split(autojump_clock: MockClock) -> None:
    """K40, K41: at a split its client is told to look at the metadata at once."""
    async with served() as (broker, client):
        txn = await begin(broker)
        await send(broker, 0, b"a", txn)
        request = fetch_request("orders", 0, wait_ms=60_000)
        started = trio.current_time()
        await client.send(request, 12)
        await wait_all_tasks_blocked()
        await broker.coordinator.end(txn, EndAction.COMMIT)
        _number, answer = await client.receive(FetchResponse, ApiKey.FETCH, 12)
        assert values_of(answer.responses[0].partitions[0]) == [(0, b"a")]
        await client.send(fetch_request("orders", 1, wait_ms=60_000), 12)
        await wait_all_tasks_blocked()
        await broker.controller.split(TOPIC, 0)
        _number, answer = await client.receive(FetchResponse, ApiKey.FETCH, 12)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert trio.current_time() - started < 60
        assert len((await described(client)).partitions) == 3
        # A client whose group rebalances ignores it, so it is told a few times. Then it reads on.
        again = [(await client.fetch("orders", 1, wait_ms=10)).error_code for _ in range(TOLD_MAX)]
        assert again == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * (TOLD_MAX - 1) + [0]


async def test_a_split_between_two_fetches_is_told_at_the_end_of_the_segment() -> None:
    """K41: only on connections that have read the segment before. A new one begins with the metadata."""
    async with served() as (broker, client):
        await send(broker, 0, b"a")
        assert values_of(await client.fetch("orders", 0)) == [(0, b"a")]
        await send(broker, 0, b"b")
        await broker.controller.split(TOPIC, 0)
        assert values_of(await client.fetch("orders", 1)) == [(1, b"b")]
        told = [(await client.fetch("orders", 2, wait_ms=10)).error_code for _ in range(TOLD_MAX + 1)]
        assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * TOLD_MAX + [0]
        async with kafka_client(broker) as other:
            assert (await other.fetch("orders", 2, wait_ms=10)).error_code == 0


async def test_a_connection_that_sees_very_many_splits_still_hears_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """K41, E16: what it remembers of segments is bounded, and replaced ones make room."""
    monkeypatch.setattr(fetching, "GROWING_MAX", 2)
    async with served() as (broker, client):
        for segment in (0, 2, 4, 6, 8):
            await client.fetch("orders", 0, partition=segment, wait_ms=10)
            await broker.controller.split(TOPIC, segment)
            # The client goes on to the children at once, as clients do.
            told = await client.fetch("orders", 0, partition=segment, wait_ms=10)
            assert told.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_pruned_segment_leaves_a_partition_that_begins_where_it_ended() -> None:
    """K41: its number and its end stay. Whoever stands at the end has missed nothing; others are told."""
    async with served() as (broker, client):
        await subscribe(broker, "s", StartPosition.EARLIEST)
        await send(broker, 0, b"a")
        await send(broker, 0, b"b")
        await broker.controller.split(TOPIC, 0)
        assert values_of(await client.fetch("orders", 0)) == [(0, b"a"), (1, b"b")]
        epoch = (await client.offset("orders", LATEST)).leader_epoch
        await prune(broker)
        topic = await described(client)
        assert [(part.partition_index, part.leader_id, part.error_code) for part in topic.partitions] == [
            (number, 1, 0) for number in range(3)
        ]
        page = DescribeTopicPartitionsRequest((NamedTopic("orders"),), 2, None)
        (of_page,) = (await client.ask(page, DescribeTopicPartitionsResponse, 0)).topics
        assert [(part.partition_index, part.leader_id) for part in of_page.partitions] == [(0, 1), (1, 1)]
        for timestamp in (EARLIEST, LATEST):
            found = await client.offset("orders", timestamp)
            assert (found.error_code, found.offset) == (0, 2)
        found = await client.offset("orders", 5)
        assert (found.error_code, found.offset) == (0, -1)
        for isolation in ISOLATIONS:
            data = await client.fetch("orders", 2, wait_ms=5, isolation=isolation)
            assert (data.error_code, values_of(data)) == (0, [])
            assert (data.log_start_offset, data.last_stable_offset, data.high_watermark) == (2, 2, 2)
        for elsewhere in (0, 1, 3):
            assert (await client.fetch("orders", elsewhere)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        part = OffsetForLeaderPartition(0, -1, epoch)
        ends = OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic("orders", (part,)),))
        (answer,) = (await client.ask(ends, OffsetForLeaderEpochResponse, 4)).topics[0].partitions
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, epoch, 2)
        refused = await client.produce("orders", build([Record(None, b"a", 1)]))
        assert refused.error_code == ErrorCode.POLICY_VIOLATION


async def test_the_end_of_a_pruned_segment_goes_with_its_topic() -> None:
    """A topic of the same name begins at 0 again, and nothing of the old one stays in the store."""
    async with served() as (broker, client):
        await subscribe(broker, "s", StartPosition.EARLIEST)
        await send(broker, 0, b"a")
        await broker.controller.split(TOPIC, 0)
        await prune(broker)
        assert len(await broker.metadata.scan(*starting_with(PRUNED))) == 1
        assert (await client.offset("orders", LATEST)).offset == 1
        await broker.controller.delete_topic(TOPIC, force=True)
        await wait_all_tasks_blocked()
        assert await broker.metadata.scan(*starting_with(PRUNED)) == []
        await broker.controller.create_topic(TOPIC, 1, {})
        assert (await client.offset("orders", LATEST)).offset == 0


async def test_a_segment_that_an_earlier_release_pruned_is_empty_from_0() -> None:
    """It wrote no end down. A consumer that was elsewhere is told, and its reset policy decides."""
    async with served() as (broker, client):
        await subscribe(broker, "s", StartPosition.EARLIEST)
        await send(broker, 0, b"a")
        await broker.controller.split(TOPIC, 0)
        await prune(broker)
        await broker.metadata.commit([DeleteRange(*starting_with(PRUNED))])
        for timestamp in (EARLIEST, LATEST):
            assert (await client.offset("orders", timestamp)).offset == 0
        assert (await client.fetch("orders", 0, wait_ms=5)).error_code == 0
        assert (await client.fetch("orders", 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        part = OffsetForLeaderPartition(0, -1, 0)
        ends = OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic("orders", (part,)),))
        (answer,) = (await client.ask(ends, OffsetForLeaderEpochResponse, 4)).topics[0].partitions
        assert (answer.error_code, answer.end_offset) == (0, -1)


async def test_a_migrated_topic_goes_on_under_its_name() -> None:
    """K41, K43: its partition 0 keeps the offsets that it had before; now it can only be read."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        regular = TOPIC.as_regular
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=5)
        await publish(await broker.topics.get(regular), build_payload(metadata, b"before"))
        assert (await client.produce("orders", build([Record(None, b"kafka", 1)]))).error_code == 0
        assert len((await described(client)).partitions) == 1
        await broker.controller.migrate(TOPIC, force=True)
        await send(broker, 1, b"after")
        assert len((await described(client)).partitions) == 2
        assert values_of(await client.fetch("orders", 0)) == [(0, b"before"), (1, b"kafka")]
        assert values_of(await client.fetch("orders", 0, partition=1)) == [(0, b"after")]
        for number in (0, 1):
            refused = await client.produce("orders", build([Record(None, b"a", 1)]), partition=number)
            assert refused.error_code == ErrorCode.POLICY_VIOLATION


async def test_two_topics_never_share_a_name() -> None:
    """K43: a scalable topic is not created beside one of Kafka's, nor the other way round."""
    async with served() as (broker, client):
        await client.create("regular")
        with pytest.raises(TopicExists, match="is a partitioned topic"):
            await broker.controller.create_topic(TopicName.parse("topic://public/default/regular"), 1, {})
        # Not over Kafka, but legal there. It is no partition of `orders`, and Kafka's clients do not see it.
        odd = TopicName.parse("topic://public/default/orders-partition-0")
        await broker.controller.create_topic(odd, 1, {})
        await publish((await broker.topics.get(await broker.segment(odd, 0))), b"odd")
        assert (await described(client, odd.local)).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        await client.create("earlier")
        topics = (await client.ask(MetadataRequest(None, False), MetadataResponse, 12)).topics
        assert [topic.name for topic in topics] == ["earlier", "orders", "regular"]
        for start in ("orders", "orders-", "z"):
            page = DescribeTopicPartitionsRequest((), 100, Cursor(start, 0))
            found = (await client.ask(page, DescribeTopicPartitionsResponse, 0)).topics
            assert [topic.name for topic in found] == [name for name in ("orders", "regular") if name >= start]
        assert (await client.offset("orders", LATEST)).offset == 0


async def test_a_regular_topic_keeps_its_name_if_both_exist() -> None:
    """K43: an older release may have left such a pair."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await client.create("orders", 2)
        await client.produce("orders", build([Record(None, b"kafka", 1)]))
        store = broker.partitioned_topics
        record = await store.find(TOPIC.as_regular)
        assert record is not None
        await store.forget(record)
        await broker.controller.create_topic(TOPIC, 1, {})
        await store.create(TOPIC.as_regular, 2)
        topic = await described(client, None)
        assert len(topic.partitions) == 2
        assert values_of(await client.fetch("orders", 0)) == [(0, b"kafka")]


async def test_a_topic_made_again_has_another_id() -> None:
    """Clients that knew the earlier one begin anew. What groups committed went with it (K36)."""
    async with served() as (broker, client):
        before = (await described(client)).topic_id
        assert before != bytes(16)
        assert (await described(client)).topic_id == before
        await commit(client, "g", 0, 0)
        assert len(await broker.metadata.scan(*starting_with(KEY_PREFIX))) == 1
        await broker.controller.delete_topic(TOPIC, force=True)
        assert (await described(client)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await broker.metadata.scan(*starting_with(KEY_PREFIX)) == []
        await broker.controller.create_topic(TOPIC, 1, {})
        assert (await described(client)).topic_id not in {before, bytes(16)}
