"""What `/metrics` shows of topics, subscriptions and groups, and how their number is bounded."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.config import MetricsLabels
from broker.kafka.groups.offsets import Offset, OffsetStore, TopicPartition, slices
from broker.layouts.parts import StartPosition, SubscriptionKind
from broker.names import TopicName
from broker.series import OTHER_READERS, OTHER_TOPICS, Labels, ReaderSums, Series
from broker.topic import Topic
from storage.entry import EntryFormat
from storage.errors import LedgerCorrupt
from storage.metadata.memory import MemoryStore
from storage.metadata.store import StoreUnavailable
from storage.position import EARLIEST
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC, Rooms, moving_clock, publish, rooms
from txn.states import EndAction

OWN = Labels("public/default", str(TOPIC))


@asynccontextmanager
async def broker_with(**settings: Any) -> AsyncIterator[Rooms]:
    async with rooms(MemoryStore(), SimulatedFiles(seed=5), clock=moving_clock(), **settings) as made:
        yield made


def regular(local: str, namespace: str = "default") -> TopicName:
    return TopicName.parse(f"persistent://public/{namespace}/{local}")


async def written(broker: Rooms, name: TopicName, messages: int = 1) -> Topic:
    topic = await broker.topics.get(name)
    for _ in range(messages):
        await publish(topic, b"message")
    return topic


async def scrape(broker: Rooms) -> Series:
    return await broker.monitor.series()


async def test_a_subscriptions_backlog_has_messages_bytes_and_an_age(mock_clock: MockClock) -> None:
    """The segments of a topic are summed; the oldest message of all of them makes the age."""
    async with broker_with() as broker:
        await broker.controller.create_topic(TOPIC, 2, {})
        await broker.controller.subscriptions.add(TOPIC, "s", SubscriptionKind.QUEUE, StartPosition.EARLIEST)
        first = await written(broker, await broker.segment(TOPIC, 0), 2)
        mock_clock.jump(7)
        await written(broker, await broker.segment(TOPIC, 1), 3)
        mock_clock.jump(3)
        found = await scrape(broker)
        backlog = found.subscriptions[OWN._replace(reader="s")]
        assert (backlog.backlog_messages, backlog.backlog_entries, backlog.backlog_seconds) == (5, 5, 10)
        assert backlog.backlog_bytes > 5 * len(b"message")
        assert found.topics[OWN].logs == 2
        assert found.topics[OWN].traffic.messages_in == 5
        assert found.topics[OWN].stored_bytes > 0
        first.subscriptions["s"].cursor.acknowledge_cumulative(first.readable.value)
        backlog = (await scrape(broker)).subscriptions[OWN._replace(reader="s")]
        assert (backlog.backlog_messages, backlog.backlog_seconds) == (3, 3)


async def test_a_reader_that_has_not_moved_costs_no_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_with() as broker:
        topic = await written(broker, regular("t"), 2)
        await topic.subscribe("s", EARLIEST)
        asked = []
        read = topic.ledger.read

        async def noted(*args: object, **options: object) -> object:
            asked.append(args)
            return await read(*args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(topic.ledger, "read", noted)
        for _ in range(2):
            await scrape(broker)
            assert len(asked) == 2, "the end, and the place of the reader"
        subscription = topic.subscriptions["s"]
        subscription.cursor.acknowledge(subscription.cursor.first_unacknowledged())
        await scrape(broker)
        assert len(asked) == 3


async def test_an_open_transaction_holds_messages_back(mock_clock: MockClock) -> None:
    async with broker_with() as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        segment = await written(broker, await broker.segment(TOPIC, 0))
        txn = await broker.coordinator.new_transaction(0, 60_000)
        await publish(segment, b"in a transaction", txn)
        mock_clock.jump(4)
        await publish(segment, b"behind it")
        sums = (await scrape(broker)).topics[OWN]
        assert (sums.held_messages, sums.held_seconds) == (2, 4)
        await broker.coordinator.end(txn, EndAction.COMMIT)
        await wait_all_tasks_blocked()
        sums = (await scrape(broker)).topics[OWN]
        assert (sums.held_messages, sums.held_seconds) == (0, 0)


async def commit(broker: Rooms, group: str, topic: str, partition: int, offset: int) -> None:
    for puts in slices(group, {TopicPartition(topic, partition): Offset(offset)}):
        await OffsetStore(broker.metadata).write(list(puts.values()), [])


async def test_groups_of_kafka_lag(mock_clock: MockClock) -> None:
    """On partitions, on unpartitioned topics and on segments; offsets of partitions that nobody loaded do not count."""
    async with broker_with() as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        await written(broker, await broker.segment(TOPIC, 0), 3)
        await written(broker, regular("p").partition(1), 3)
        batch = await written(broker, regular("single"))
        await batch.publish(b"batch", message_count=5, txn=None, entry_format=EntryFormat.PULSAR)
        await wait_all_tasks_blocked()
        mock_clock.jump(2)
        for topic, partition, offset in (("orders", 0, 1), ("p", 1, 3), ("p", 2, 0), ("single", 0, 3)):
            await commit(broker, "g", topic, partition, offset)
        groups = (await scrape(broker)).groups
        lags = {labels.topic: (sums.backlog_messages, sums.backlog_seconds) for labels, sums in groups.items()}
        assert lags == {str(TOPIC): (2, 2), str(regular("p")): (0, 0), str(regular("single")): (3, 2)}
        assert {labels.reader for labels in groups} == {"g"}


async def test_what_nobody_gets_is_no_backlog(mock_clock: MockClock) -> None:
    """Aborted messages at the end of a topic would otherwise let an idle subscription or group lag forever."""
    async with broker_with() as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        await broker.controller.subscriptions.add(TOPIC, "s", SubscriptionKind.QUEUE, StartPosition.EARLIEST)
        segment = await written(broker, await broker.segment(TOPIC, 0))
        txn = await broker.coordinator.new_transaction(0, 60_000)
        await publish(segment, b"aborted", txn)
        await broker.coordinator.end(txn, EndAction.ABORT)
        await wait_all_tasks_blocked()
        mock_clock.jump(5)
        await commit(broker, "g", "orders", 0, 0)
        found = await scrape(broker)
        for one in (found.subscriptions[OWN._replace(reader="s")], found.groups[OWN._replace(reader="g")]):
            assert (one.backlog_messages, one.backlog_seconds) == (1, 5)
        assert found.subscriptions[OWN._replace(reader="s")].backlog_entries == 1
        first = segment.subscriptions["s"].cursor.first_unacknowledged()
        segment.subscriptions["s"].cursor.acknowledge(first)
        await commit(broker, "g", "orders", 0, 1)
        found = await scrape(broker)
        assert found.subscriptions[OWN._replace(reader="s")] == ReaderSums()
        assert found.groups[OWN._replace(reader="g")] == ReaderSums()
        assert found.unreadable == 0


async def test_without_the_metadata_store_only_groups_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_with() as broker:
        await written(broker, regular("t"))

        async def away(*_args: object, **_options: object) -> list[object]:
            raise StoreUnavailable("away")

        monkeypatch.setattr(broker.metadata, "scan", away)
        found = await scrape(broker)
        assert (len(found.topics), found.groups) == (1, {})


async def test_a_backlog_that_cannot_be_read_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_with() as broker:
        topic = await written(broker, regular("t"))
        await topic.subscribe("s", EARLIEST)

        async def damaged(*_args: object, **_options: object) -> list[object]:
            raise LedgerCorrupt(Path("1.ledger"), 0, "damaged")

        monkeypatch.setattr(topic.ledger, "read", damaged)
        found = await scrape(broker)
        assert found.unreadable == 1
        assert found.subscriptions == {Labels("public/default", str(topic.name), "s"): ReaderSums(backlog_entries=1)}


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (MetricsLabels.NONE, {Labels(): 3}),
        (MetricsLabels.NAMESPACE, {Labels("public/default"): 2, Labels("public/n"): 1}),
    ],
)
async def test_coarse_labels_sum(level: MetricsLabels, expected: dict[Labels, int]) -> None:
    """The subscriptions too."""
    async with broker_with(metrics_labels=level.value) as broker:
        for name in (regular("a"), regular("b"), regular("a", "n")):
            await (await written(broker, name)).subscribe("s", EARLIEST)
        found = await scrape(broker)
        assert {labels: sums.traffic.messages_in for labels, sums in found.topics.items()} == expected
        assert {labels: sums.backlog_messages for labels, sums in found.subscriptions.items()} == expected


async def test_what_does_not_fit_is_summed_and_counted() -> None:
    async with broker_with(metrics_series_max=2) as broker:
        for number in range(4):
            topic = await written(broker, regular(f"t{number}"))
            for name in ("s", "r"):
                await topic.subscribe(name, EARLIEST)
        found = await scrape(broker)
        assert [labels.topic for labels in found.topics] == [str(regular("t0")), str(regular("t1")), "(others)"]
        assert found.topics[OTHER_TOPICS].traffic.messages_in == 2
        assert [labels.topic for labels in found.subscriptions] == [str(regular("t0"))] * 2 + ["(others)"]
        assert found.subscriptions[OTHER_READERS].backlog_messages == 6
        assert found.left_out == {"topics": 2, "subscriptions": 6, "groups": 0}


async def test_the_sum_of_others_never_falls() -> None:
    """Prometheus would take a sum that falls for a broker that was started again."""
    async with broker_with(metrics_series_max=1) as broker:
        for number in range(3):
            await written(broker, regular(f"t{number}"), number + 1)
        await broker.topics.unload(regular("t1"))
        await wait_all_tasks_blocked()
        found = await scrape(broker)
        assert found.topics[OTHER_TOPICS].traffic.messages_in == 5
        assert found.left_out["topics"] == 1
        await broker.topics.unload(regular("t0"))
        await wait_all_tasks_blocked()
        assert list((await scrape(broker)).topics) == [OTHER_TOPICS]
        await written(broker, regular("t1"))
        found = await scrape(broker)
        assert found.topics[Labels("public/default", str(regular("t1")))].traffic.messages_in == 1


async def test_the_counters_of_an_unloaded_segment_stay_in_its_topics_sum() -> None:
    async with broker_with() as broker:
        await broker.controller.create_topic(TOPIC, 2, {})
        names = [await broker.segment(TOPIC, number) for number in range(2)]
        for name in names:
            await written(broker, name)
        await broker.topics.unload(names[0])
        await wait_all_tasks_blocked()
        sums = (await scrape(broker)).topics[OWN]
        assert (sums.logs, sums.traffic.messages_in) == (1, 2)


async def test_a_migrated_topic_is_shown_under_its_new_name() -> None:
    async with broker_with() as broker:
        await written(broker, TOPIC.as_regular)
        await broker.controller.migrate(TOPIC, force=False)
        assert list((await scrape(broker)).topics) == [OWN]
