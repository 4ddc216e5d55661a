"""The settings of topics: what may be given, what it does, and what clients are shown."""

from itertools import count

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.kafka.errors import Refused
from broker.kafka.topic_settings import (
    MESSAGE_BYTES,
    RETENTION_BYTES,
    RETENTION_MS,
    TIMESTAMP_TYPE,
    TopicSettings,
    retention_in,
)
from broker.names import TopicName
from broker.retention import Retention
from broker.retention_policies import topic_key
from storage.metadata.memory import MemoryStore
from tests.support.disk import SimulatedFiles
from tests.support.kafka_batches import batch as numbered_batch
from tests.support.kafka_connection import KafkaClient, kafka_client, records_of
from tests.support.rooms import MESSAGE_BYTES_MAX, now_ms, publish, rooms
from tests.support.slow_store import SlowOnce
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.administration import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    ChangedConfig,
    ChangedConfigs,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    ReplacedConfig,
    ReplacedConfigs,
)
from tidewire.wire.kafka.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidewire.wire.kafka.record_batches import Compression, check, read_header, stamped
from tidewire.wire.kafka.records import Header, Record, build

PARTITION = TopicName.parse("persistent://public/default/t-partition-0")
WEEK = 7 * 24 * 60
SETTINGS = TopicSettings(MESSAGE_BYTES_MAX)


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({}, Retention(WEEK, -1)),
        ({RETENTION_MS: "-1"}, Retention(-1, -1)),
        ({RETENTION_MS: "60001", RETENTION_BYTES: "1048577"}, Retention(2, 2)),
        ({RETENTION_MS: "1", RETENTION_BYTES: "1"}, Retention(1, 1)),
        ({RETENTION_MS: "0"}, Retention(0, 0)),
        ({RETENTION_BYTES: "0"}, Retention(0, 0)),
        ({RETENTION_MS: str(2**62), RETENTION_BYTES: str(2**62)}, Retention(2**31 - 1, 2**31 - 1)),
    ],
)
def test_retention_is_kept_in_whole_minutes_and_mebibytes(configs: dict[str, str], expected: Retention) -> None:
    """K37: rounded up, so that nothing is removed too early."""
    assert retention_in(configs) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact"),
        ("segment.bytes", "1"),
        (RETENTION_MS, "-2"),
        (RETENTION_MS, "x"),
        (RETENTION_MS, str(2**63)),
        (MESSAGE_BYTES, "-1"),
        (MESSAGE_BYTES, str(MESSAGE_BYTES_MAX + 1)),
        (TIMESTAMP_TYPE, "NoTime"),
        ("compression.type", "gzip"),
        ("", ""),
    ],
)
def test_what_cannot_be_kept_is_refused(name: str, value: str) -> None:
    """E20: also a number that this broker could not keep."""
    with pytest.raises(Refused) as refused:
        SETTINGS.checked(name, value)
    assert refused.value.code == ErrorCode.INVALID_CONFIG


def test_a_bound_of_an_earlier_start_is_not_exceeded() -> None:
    """E9: the broker may take smaller batches than when the topic was made."""
    assert SETTINGS.rules_in({MESSAGE_BYTES: str(1 << 40)}).batch_bytes_max == MESSAGE_BYTES_MAX


async def shown(client: KafkaClient, kind: int = 2, name: str = "t") -> dict[str, tuple[str | None, int]]:
    """The settings of a resource: values, and where they come from."""
    request = DescribeConfigsRequest((DescribeConfigsResource(kind, name, None),))
    (result,) = (await client.ask(request, DescribeConfigsResponse, 4)).results
    assert result.error_code == 0, result.error_message
    return {config.name: (config.value, config.config_source) for config in result.configs}


async def test_a_topic_keeps_its_records_for_a_week_or_as_its_settings_say() -> None:
    """K37: from its creation on, and after each change."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await client.create("other")
        config = (CreatableTopicConfig(RETENTION_MS, "3600000"),)
        await client.ask(CreateTopicsRequest((CreatableTopic("t", 1, 1, (), config),)), CreateTopicsResponse, 7)
        await trio.testing.wait_all_tasks_blocked()
        assert broker.retention.of(TopicName.parse("persistent://public/default/other-partition-3")).minutes == WEEK
        assert broker.retention.of(PARTITION) == Retention(60, -1)
        assert (await shown(client))[RETENTION_MS] == ("3600000", 1)
        assert (await shown(client)).keys() == SETTINGS.known.keys()
        changes = (ChangedConfig(RETENTION_BYTES, 0, "1048576"), ChangedConfig(RETENTION_MS, 1, None))
        for is_trial, expected in ((True, Retention(60, -1)), (False, Retention(WEEK, 1))):
            request = IncrementalAlterConfigsRequest((ChangedConfigs(2, "t", changes),), is_trial)
            (result,) = (await client.ask(request, AlterConfigsResponse, 1)).responses
            assert result.error_code == 0
            await trio.testing.wait_all_tasks_blocked()
            assert broker.retention.of(PARTITION) == expected
        assert (await shown(client))[RETENTION_BYTES] == ("1048576", 1)
        replaced = AlterConfigsRequest((ReplacedConfigs(2, "t", (ReplacedConfig(RETENTION_MS, "-1"),)),))
        await client.ask(replaced, AlterConfigsResponse, 2)
        await trio.testing.wait_all_tasks_blocked()
        assert broker.retention.of(PARTITION) == Retention(-1, -1)
        assert (await shown(client))[RETENTION_BYTES] == ("-1", 5)


async def test_the_answer_to_a_creation_shows_all_settings() -> None:
    """As in Kafka, so that an administrator need not ask again (KIP-525)."""
    asked = CreateTopicsRequest((CreatableTopic("t", 1, 1, (), (CreatableTopicConfig(RETENTION_MS, "3600000"),)),))
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        (made,) = (await client.ask(asked, CreateTopicsResponse, 7)).topics
        assert made.configs is not None
        assert {one.name: (one.value, one.config_source) for one in made.configs} == await shown(client)
        assert (await shown(client))[RETENTION_MS] == ("3600000", 1)


async def test_the_brokers_settings_have_kafkas_types() -> None:
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        request = DescribeConfigsRequest((DescribeConfigsResource(4, "1", None),))
        (result,) = (await client.ask(request, DescribeConfigsResponse, 4)).results
    types = {config.name: config.config_type for config in result.configs}
    assert (types["auto.create.topics.enable"], types["num.partitions"]) == (1, 3)


async def test_a_setting_that_cannot_be_changed_is_refused_and_changes_nothing() -> None:
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await client.create("t")
        before = await shown(client)
        for kind, name, change, code in (
            (2, "t", ChangedConfig("cleanup.policy", 0, "compact"), ErrorCode.INVALID_CONFIG),
            (2, "t", ChangedConfig("cleanup.policy", 2, "compact"), ErrorCode.INVALID_REQUEST),
            (2, "x", ChangedConfig(RETENTION_MS, 0, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (4, "1", ChangedConfig("num.partitions", 0, "9"), ErrorCode.INVALID_REQUEST),
        ):
            good = ChangedConfig(RETENTION_MS, 0, "1")
            request = IncrementalAlterConfigsRequest((ChangedConfigs(kind, name, (good, change)),))
            (result,) = (await client.ask(request, AlterConfigsResponse, 1)).responses
            assert (result.error_code, bool(result.error_message)) == (code, True)
        assert await shown(client) == before
        assert (await shown(client, 4, "1"))["num.partitions"] == ("1", 4)


async def test_the_policy_of_a_deleted_topic_goes_with_it() -> None:
    """A topic made again begins with its own settings."""
    async with (
        rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker,
        kafka_client(broker) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(broker.partition_removal.run)
        await client.create("t")
        request = DeleteTopicsRequest((DeleteTopicState("t"),), timeout_ms=10_000)
        assert (await client.ask(request, DeleteTopicsResponse, 6)).responses[0].error_code == 0
        await trio.testing.wait_all_tasks_blocked()
        assert broker.retention.of(PARTITION) == Retention(-1, -1)
        nursery.cancel_scope.cancel()


async def test_two_changes_of_settings_at_once_both_last(autojump_clock: MockClock) -> None:
    """None is lost because the other one was written between its read and its write."""
    store = SlowOnce()
    async with rooms(store, SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await client.create("t")
        async with kafka_client(broker) as other:
            store.is_slow = True
            late = await client.send(change(RETENTION_MS, "60000"), 1)
            await wait_all_tasks_blocked()
            (made,) = (await other.ask(change(RETENTION_BYTES, "1048576"), AlterConfigsResponse, 1)).responses
            assert made.error_code == 0
            number, answer = await client.receive(AlterConfigsResponse, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1)
            assert (number, answer.responses[0].error_code) == (late, 0)
        topic = await broker.partitioned_topics.find(TopicName.parse("persistent://public/default/t"))
        assert topic is not None
        assert topic.configs == {RETENTION_MS: "60000", RETENTION_BYTES: "1048576"}
        policy = await broker.retention.stored(topic_key(topic.name))
        assert policy == Retention(1, 1)


def change(name: str, value: str) -> IncrementalAlterConfigsRequest:
    """Set one setting of the topic `t`."""
    return IncrementalAlterConfigsRequest((ChangedConfigs(2, "t", (ChangedConfig(name, 0, value),)),))


async def test_a_topic_may_take_smaller_batches_than_its_broker() -> None:
    """A change counts from its answer on; the broker's own maximum is the default."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await client.create("t")
        assert (await shown(client))[MESSAGE_BYTES] == (str(MESSAGE_BYTES_MAX), 5)
        batch = build([Record(None, b"v" * 500, 1)])
        assert (await client.produce("t", batch)).error_code == 0
        for value, code in ((str(len(batch) - 1), ErrorCode.MESSAGE_TOO_LARGE), (str(len(batch)), ErrorCode.NONE)):
            (made,) = (await client.ask(change(MESSAGE_BYTES, value), AlterConfigsResponse, 1)).responses
            assert made.error_code == 0
            refused = await client.produce("t", batch)
            assert refused.error_code == code
            assert (await shown(client))[MESSAGE_BYTES] == (value, 1)
        larger = await client.produce("t", build([Record(None, b"v" * 501, 1)]))
        assert "max.message.bytes" in str(larger.error_message)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
async def test_records_may_have_the_time_of_the_broker(codec: Compression) -> None:
    """Attributes, timestamp and checksum change at the append, and nothing else. Searches find that time (K39)."""
    config = (CreatableTopicConfig(TIMESTAMP_TYPE, "LogAppendTime"),)
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await client.ask(CreateTopicsRequest((CreatableTopic("t", 1, 1, (), config),)), CreateTopicsResponse, 7)
        sent = [Record(b"k", b"a", 5, (Header(b"h", b"v"),)), Record(None, None, 7)]
        answer = await client.produce("t", build(sent, codec))
        assert (answer.error_code, answer.log_append_time_ms) == (0, now_ms())
        data = await client.fetch("t", 0)
        assert records_of(data) == [(number, one._replace(timestamp_ms=now_ms())) for number, one in enumerate(sent)]
        whole: object = data.records
        assert isinstance(whole, bytes)
        header = read_header(whole)
        check(header, whole)
        assert (header.is_log_append_time, header.base_timestamp_ms) == (True, 5)
        assert whole[61:] == build(sent, codec)[61:]
        assert (await client.offset("t", 100)).offset == 0
        assert (await client.offset("t", now_ms() + 1)).offset == -1
        topic = await broker.topics.get(PARTITION)
        await publish(topic, b"no payload of Pulsar")
        (made,) = (await client.ask(change(TIMESTAMP_TYPE, "CreateTime"), AlterConfigsResponse, 1)).responses
        assert made.error_code == 0
        assert (await client.produce("t", build(sent, codec))).log_append_time_ms == -1
        assert [record.timestamp_ms for _at, record in records_of(await client.fetch("t", 3))] == [5, 7]


async def test_a_repeated_batch_has_the_time_of_its_first_append() -> None:
    """K23: its duplicate is answered as it was."""
    config = (CreatableTopicConfig(TIMESTAMP_TYPE, "LogAppendTime"),)
    moment = 5_000_000
    async with (
        rooms(MemoryStore(), SimulatedFiles(seed=1), clock=lambda: moment) as broker,
        kafka_client(broker) as client,
    ):
        await client.ask(CreateTopicsRequest((CreatableTopic("t", 1, 1, (), config),)), CreateTopicsResponse, 7)
        sent = numbered_batch(7, 0, 0)
        assert (await client.produce("t", sent)).log_append_time_ms == 5_000_000
        moment += 1_000
        assert (await client.produce("t", sent)).log_append_time_ms == 5_000_000
        assert (await client.produce("t", numbered_batch(7, 0, 1))).log_append_time_ms == 5_001_000


async def test_a_repeated_batch_has_the_time_that_is_stored() -> None:
    """K23: though the clock goes on while the batch is appended."""
    config = (CreatableTopicConfig(TIMESTAMP_TYPE, "LogAppendTime"),)
    moments = count(5_000_000)
    async with (
        rooms(MemoryStore(), SimulatedFiles(seed=1), clock=lambda: next(moments)) as broker,
        kafka_client(broker) as client,
    ):
        await client.ask(CreateTopicsRequest((CreatableTopic("t", 1, 1, (), config),)), CreateTopicsResponse, 7)
        sent = numbered_batch(7, 0, 0)
        first = (await client.produce("t", sent)).log_append_time_ms
        (stored,) = records_of(await client.fetch("t", 0))
        assert first == stored[1].timestamp_ms
        assert (await client.produce("t", sent)).log_append_time_ms == first


async def test_a_client_cannot_claim_the_time_of_the_broker() -> None:
    """As in Kafka: the batch is refused, whatever the topic says."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await client.create("t")
        answer = await client.produce("t", stamped(build([Record(None, b"v", 1)]), 5))
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
