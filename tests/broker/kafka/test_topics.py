"""How Kafka's clients find, create, extend and delete topics."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.errors import TopicNotFound
from broker.kafka.groups.offsets import KEY_PREFIX, TopicPartition, offset_key
from broker.kafka.kafka_topic import KafkaTopic
from broker.kafka.topics import KafkaTopics
from broker.names import TopicName
from broker.topic_existence import TopicExistence
from broker.topic_removal import remove_topic
from storage.managed_ledger_record import MANAGED_LEDGERS
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, Check, starting_with
from tests.support.disk import SimulatedFiles
from tests.support.kafka_connection import KafkaClient, fetch_request, kafka_client, key_of, produce_request, values_of
from tests.support.rooms import Rooms, publish, rooms
from tests.support.slow_store import SlowOnce
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidewire.wire.kafka.messages.fetch import FetchResponse
from tidewire.wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataTopic
from tidewire.wire.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidewire.wire.kafka.messages.produce import ProduceResponse
from tidewire.wire.kafka.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidewire.wire.kafka.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tidewire.wire.kafka.records import Record, build

ONE = build([Record(None, b"a", 1)])


@asynccontextmanager
async def served(
    store: MemoryStore | None = None, files: SimulatedFiles | None = None, *, kafka_partitions: int = 1
) -> AsyncIterator[tuple[Rooms, KafkaClient]]:
    async with (
        rooms(store or MemoryStore(), files or SimulatedFiles(seed=1), kafka_partitions=kafka_partitions) as broker,
        kafka_client(broker) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(broker.partition_removal.run)
        yield broker, client
        nursery.cancel_scope.cancel()


async def described(client: KafkaClient, *names: str, creates: bool = False) -> list[MetadataTopic]:
    topics = tuple(MetadataRequestTopic(name=name) for name in names) if names else None
    answer = await client.ask(MetadataRequest(topics, creates), MetadataResponse, 12)
    assert answer.controller_id == answer.brokers[0].node_id == 1
    assert (answer.brokers[0].host, answer.brokers[0].port, answer.cluster_id) == ("broker-1", 9092, "tidewire")
    return list(answer.topics)


async def deleted(client: KafkaClient, name: str, timeout_ms: int = 10_000) -> DeletableTopicResult:
    request = DeleteTopicsRequest((DeleteTopicState(name),), timeout_ms=timeout_ms)
    (result,) = (await client.ask(request, DeleteTopicsResponse, 6)).responses
    return result


@pytest.mark.parametrize("name", [None, ""])
async def test_a_topic_that_is_asked_for_by_id_is_refused_by_that_id(name: str | None) -> None:
    """E20: Java's administrators write an empty name beside the id, and look for the id in the answer."""
    asked = MetadataRequest((MetadataRequestTopic(b"0123456789abcdef", name),), False)
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        answer = await client.ask(asked, MetadataResponse, 12)
    (topic,) = answer.topics
    assert (topic.error_code, topic.name, topic.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, None, b"0123456789abcdef")


async def test_a_created_topic_can_be_used_at_once() -> None:
    """Its partitions have a leader before anybody has loaded them."""
    async with served() as (broker, client):
        await client.create("orders", 3)
        (topic,) = await described(client, "orders")
        assert [(one.partition_index, one.leader_id, one.isr_nodes) for one in topic.partitions] == [
            (0, 1, (1,)),
            (1, 1, (1,)),
            (2, 1, (1,)),
        ]
        assert any(topic.topic_id)
        assert not broker.topics.owned
        assert (await client.produce("orders", ONE, partition=2)).error_code == 0
        assert [one.name for one in await described(client)] == ["orders"]


async def test_the_first_use_creates_a_topic_if_its_client_wants_that() -> None:
    async with served(kafka_partitions=4) as (_broker, client):
        (missing,) = await described(client, "orders")
        assert (missing.error_code, missing.partitions) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ())
        (made,) = await described(client, "orders", creates=True)
        assert (made.error_code, len(made.partitions)) == (0, 4)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "é", "x" * 250, "x-partition-0", "x-partition-17"])
async def test_a_name_that_is_no_topic_is_refused(name: str) -> None:
    """K43: the name of a partition is no topic of its own."""
    async with served() as (broker, client):
        (made,) = await described(client, name, creates=True)
        assert made.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        request = CreateTopicsRequest((CreatableTopic(name, 1, 1),))
        (result,) = (await client.ask(request, CreateTopicsResponse, 7)).topics
        assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert not await broker.metadata.scan(*starting_with("/partitioned-topics/"))


@pytest.mark.parametrize("name", ["x.y_z-0", "x-partition-", "x-partition-01", "x" * 249])
async def test_different_names_are_different_topics(name: str) -> None:
    """K43: dots, long names, and names that only look like a partition's."""
    async with served() as (_broker, client):
        for each in (name, name.replace("x", "X", 1)):
            await client.create(each)
            await client.produce(each, build([Record(None, each.encode(), 1)]))
        for each in (name, name.replace("x", "X", 1)):
            assert values_of(await client.fetch(each, 0)) == [(0, each.encode())]


async def test_a_topic_of_pulsars_clients_has_one_partition() -> None:
    """K43: and its name is taken."""
    async with served() as (broker, client):
        topic = await broker.topics.get(TopicName.parse("persistent://public/default/plain"))
        await publish(topic, b"no payload of Pulsar")
        (found,) = await described(client, "plain")
        assert len(found.partitions) == 1
        assert (await client.produce("plain", ONE)).base_offset == 1
        request = CreateTopicsRequest((CreatableTopic("plain", 1, 1),))
        (result,) = (await client.ask(request, CreateTopicsResponse, 7)).topics
        assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert (await deleted(client, "plain")).error_code == ErrorCode.POLICY_VIOLATION


REFUSED = {
    "twice": ((CreatableTopic("t", 1, 1), CreatableTopic("t", 1, 1)), ErrorCode.INVALID_REQUEST),
    "no partitions": ((CreatableTopic("t", 0, 1),), ErrorCode.INVALID_PARTITIONS),
    "too many partitions": ((CreatableTopic("t", 10_001, 1),), ErrorCode.INVALID_PARTITIONS),
    "replicas": ((CreatableTopic("t", 1, 3),), ErrorCode.INVALID_REPLICATION_FACTOR),
    "unknown setting": ((CreatableTopic("t", 1, 1, (), (CreatableTopicConfig("x", "1"),)),), ErrorCode.INVALID_CONFIG),
    "other value": (
        (CreatableTopic("t", 1, 1, (), (CreatableTopicConfig("cleanup.policy", "compact"),)),),
        ErrorCode.INVALID_CONFIG,
    ),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_cannot_be_kept_is_refused_by_name(what: str) -> None:
    topics, code = REFUSED[what]
    async with served() as (_broker, client):
        answer = await client.ask(CreateTopicsRequest(topics), CreateTopicsResponse, 7)
        assert {topic.error_code for topic in answer.topics} == {code}
        assert all(topic.error_message for topic in answer.topics)
        assert await described(client) == []


async def test_a_trial_creates_nothing() -> None:
    async with served() as (_broker, client):
        request = CreateTopicsRequest((CreatableTopic("t", 1, 1),), validate_only=True)
        assert [topic.error_code for topic in (await client.ask(request, CreateTopicsResponse, 7)).topics] == [0]
        assert await described(client) == []
        await client.create("t")
        assert [topic.error_code for topic in (await client.ask(request, CreateTopicsResponse, 7)).topics] == [
            ErrorCode.TOPIC_ALREADY_EXISTS
        ]


async def test_a_topic_gets_more_partitions_and_never_fewer() -> None:
    async with served() as (_broker, client):
        await client.create("t", 2)
        await client.produce("t", ONE, partition=1)
        for count, code in ((2, ErrorCode.INVALID_PARTITIONS), (3, 0), (1, ErrorCode.INVALID_PARTITIONS)):
            request = CreatePartitionsRequest((CreatePartitionsTopic("t", count, None),))
            (result,) = (await client.ask(request, CreatePartitionsResponse, 3)).results
            assert result.error_code == code
        assert len((await described(client, "t"))[0].partitions) == 3
        assert (await client.produce("t", ONE, partition=2)).base_offset == 0
        assert values_of(await client.fetch("t", 0, partition=1)) == [(0, b"a")]


async def test_of_two_administrators_at_once_none_takes_partitions_away(autojump_clock: MockClock) -> None:
    """What was written to the partitions of one would be lost with the change of the other."""
    store = SlowOnce()
    async with served(store) as (broker, client), kafka_client(broker) as other:
        await client.create("t", 2)
        store.is_slow = True
        await client.send(CreatePartitionsRequest((CreatePartitionsTopic("t", 3, None),)), 3)
        await wait_all_tasks_blocked()
        request = CreatePartitionsRequest((CreatePartitionsTopic("t", 5, None),))
        (result,) = (await other.ask(request, CreatePartitionsResponse, 3)).results
        assert result.error_code == 0
        (late,) = (await client.receive(CreatePartitionsResponse, ApiKey.CREATE_PARTITIONS, 3))[1].results
        assert late.error_code == ErrorCode.INVALID_PARTITIONS
        assert len((await described(client, "t"))[0].partitions) == 5


async def test_nothing_is_left_of_a_deleted_topic() -> None:
    """Its next life has another id, no records, and no offsets of groups."""
    async with served() as (broker, client):
        for name in ("t", "t2"):
            await client.create(name, 3)
            part = OffsetCommitRequestPartition(1, 7, committed_metadata="")
            commit = OffsetCommitRequest("g", topics=(OffsetCommitRequestTopic(name, (part,)),))
            (committed,) = (await client.ask(commit, OffsetCommitResponse, 8)).topics
            assert committed.partitions[0].error_code == 0
        await client.produce("t", ONE, partition=1)
        (before,) = await described(client, "t")
        assert (await deleted(client, "t")).error_code == 0
        assert not await broker.metadata.scan(*starting_with(MANAGED_LEDGERS))
        offsets = await broker.metadata.scan(*starting_with(KEY_PREFIX))
        assert [record.key for record in offsets] == [offset_key("g", TopicPartition("t2", 1))]
        assert (await client.produce("t", ONE)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await deleted(client, "t")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await client.create("t", 3)
        (after,) = await described(client, "t")
        assert after.topic_id != before.topic_id
        assert (await client.fetch("t", 0, partition=1)).high_watermark == 0


@pytest.mark.parametrize("what", ["produce", "fetch", "join a transaction"])
async def test_no_partition_is_made_behind_the_deletion_of_its_topic(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would remove it, and the topic could not be created again."""
    deleting, going_on = trio.Event(), trio.Event()
    find = KafkaTopics.find

    async def found_before(self: KafkaTopics, name: str) -> KafkaTopic:
        """Find the topic, and go on when it has been deleted."""
        topic = await find(self, name)
        if not deleting.is_set():
            deleting.set()
            await going_on.wait()
        return topic

    requests: dict[str, tuple[object, type[Any], int]] = {
        "produce": (produce_request("t", ONE), ProduceResponse, 9),
        "fetch": (fetch_request("t", 0), FetchResponse, 12),
        "join a transaction": (
            AddPartitionsToTxnRequest("tid", 1, 0, (AddPartitionsToTxnTopic("t", (0,)),)),
            AddPartitionsToTxnResponse,
            3,
        ),
    }
    request, response, version = requests[what]
    async with served() as (broker, client), kafka_client(broker) as other:
        await client.create("t")
        monkeypatch.setattr(KafkaTopics, "find", found_before)
        await other.send(request, version)
        with trio.fail_after(5):
            await deleting.wait()
            assert (await deleted(client, "t")).error_code == 0
        going_on.set()
        _number, answer = await other.receive(response, key_of(request), version)
        assert str(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.value) in repr(answer)
        assert not await broker.metadata.scan(*starting_with(MANAGED_LEDGERS))
        await client.create("t")


async def test_a_partition_that_was_deleted_before_it_was_claimed_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever found it there must not make it."""
    name = TopicName.parse("persistent://public/default/t-partition-0")
    async with served() as (broker, client):
        await client.create("t")
        await client.produce("t", ONE)
        await broker.topics.unload(name)
        require, looked, going_on = TopicExistence.require, trio.Event(), trio.Event()

        async def required_before(self: TopicExistence, topic: TopicName) -> None:
            await require(self, topic)
            if not looked.is_set():
                looked.set()
                await going_on.wait()

        monkeypatch.setattr(TopicExistence, "require", required_before)
        async with trio.open_nursery() as nursery:

            async def refused() -> None:
                with pytest.raises(TopicNotFound):
                    await broker.topics.get(name, creates=False)

            nursery.start_soon(refused)
            await looked.wait()
            # As another broker does.
            await remove_topic(name, broker.services, Check("/owners/none", ABSENT))
            going_on.set()
        assert not await broker.metadata.scan(*starting_with(MANAGED_LEDGERS))


async def test_a_deletion_that_was_interrupted_goes_on_at_the_next_start(autojump_clock: MockClock) -> None:
    """Its client was told that the time was over; until the end, the topic is not there for anybody."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with rooms(store, files) as broker, kafka_client(broker) as client:
        await client.create("t", 2)
        await client.produce("t", ONE)
        assert (await deleted(client, "t", 500)).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert (await described(client, "t"))[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await broker.topics.unload(TopicName.parse("persistent://public/default/t-partition-0"))
    async with served(store, files.crash()):
        await wait_all_tasks_blocked()
        assert not await store.scan(*starting_with("/partitioned-topics/"))
        assert not await store.scan(*starting_with(MANAGED_LEDGERS))


async def test_a_client_learns_what_is_served() -> None:
    """FACTS-kafka: an unknown version of this request is answered in version 0, so that the client can ask again."""
    async with served() as (_broker, client):
        answer = await client.ask(ApiVersionsRequest("test", "1"), ApiVersionsResponse, 4)
        served_now = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        assert served_now[ApiKey.FETCH] == (4, 12)
        assert list(served_now) == sorted(served_now)
        number = await client.send(ApiVersionsRequest("test", "1"), 9)
        answered, refused = await client.receive(ApiVersionsResponse, ApiKey.API_VERSIONS, 0)
        assert (answered, refused.error_code) == (number, ErrorCode.UNSUPPORTED_VERSION)
        assert {api.api_key for api in refused.api_keys} == served_now.keys()


async def test_a_version_that_is_not_served_ends_the_connection() -> None:
    async with served() as (_broker, client):
        await client.create("t")
        await client.send(fetch_request("t", 0), 3)
        with pytest.raises(EOFError):
            await client.receive(FetchResponse, ApiKey.FETCH, 3)
