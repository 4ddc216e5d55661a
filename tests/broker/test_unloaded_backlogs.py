"""What `/metrics` shows of the backlogs of topics that were unloaded, and until when."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.layouts.parts import StartPosition, SubscriptionKind
from broker.names import TopicName
from broker.series import OTHER_READERS, Labels, ReaderSums
from broker.topics import IDLE_SECONDS_MAX
from broker.unread import Left, Unread
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST
from tests.broker.test_handover import brokers
from tests.broker.test_series_monitor import broker_with, commit, regular, scrape, written
from tests.support.outlet import recording_consumer
from tests.support.rooms import TOPIC, Rooms

NAME = regular("t")
OWN = Labels("public/default", str(NAME), "s")


@asynccontextmanager
async def quiet(messages: int = 3, **settings: Any) -> AsyncIterator[Rooms]:
    """A broker that has counted a topic with a backlog, and then unloaded it."""
    async with broker_with(**settings) as broker:
        await (await written(broker, NAME, messages)).subscribe("s", EARLIEST)
        await scrape(broker)
        await broker.topics.unload(NAME)
        await wait_all_tasks_blocked()
        assert broker.topics.running(NAME) is None
        yield broker


async def subscriptions(broker: Rooms) -> dict[Labels, ReaderSums]:
    return (await scrape(broker)).subscriptions


async def test_a_topic_that_nobody_uses_keeps_its_backlog(mock_clock: MockClock) -> None:
    """Otherwise an alert on it would end as soon as the topic is unloaded."""
    async with broker_with() as broker:
        topic = await written(broker, NAME, 3)
        await topic.subscribe("s", EARLIEST)
        counted = (await subscriptions(broker))[OWN]
        mock_clock.jump(IDLE_SECONDS_MAX + 1)
        await wait_all_tasks_blocked()
        assert broker.topics.running(NAME) is None
        found = await scrape(broker)
        assert found.topics == {}
        kept = found.subscriptions[OWN]
        assert (kept.backlog_messages, kept.backlog_entries, kept.backlog_bytes) == (3, 3, counted.backlog_bytes)
        assert (kept.consumers, kept.backlog_seconds) == (0, IDLE_SECONDS_MAX + 1)


async def test_a_loaded_topic_is_counted_once_and_as_it_is() -> None:
    async with quiet() as broker:
        topic = await broker.topics.get(NAME)
        assert (await subscriptions(broker))[OWN].backlog_entries == 3
        topic.subscriptions["s"].cursor.acknowledge_cumulative(topic.readable.value)
        assert (await subscriptions(broker))[OWN] == ReaderSums()
        await broker.topics.unload(NAME)
        await wait_all_tasks_blocked()
        assert await subscriptions(broker) == {}


async def test_a_backlog_that_changed_behind_the_last_scrape_is_not_kept() -> None:
    async with broker_with() as broker:
        topic = await written(broker, NAME, 3)
        subscription = (await topic.subscribe("s", EARLIEST)).cursor
        await scrape(broker)
        subscription.acknowledge_cumulative(topic.readable.value)
        await broker.topics.unload(NAME)
        await wait_all_tasks_blocked()
        assert await subscriptions(broker) == {}


async def test_a_topic_that_was_deleted_elsewhere_has_no_backlog() -> None:
    async with brokers(MemoryStore(), "one", "two") as (one, two):
        await (await written(one, NAME, 2)).subscribe("s", EARLIEST)
        await scrape(one)
        await one.topics.unload(NAME)
        await wait_all_tasks_blocked()
        await two.administration.regular.delete(NAME, force=False)
        assert await subscriptions(one) == {}


async def test_a_deleted_subscription_has_no_backlog() -> None:
    """The controller deletes the cursors of a scalable topic's unloaded segments without loading them."""
    async with broker_with() as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        for name in ("s", "r"):
            await broker.controller.subscriptions.add(TOPIC, name, SubscriptionKind.QUEUE, StartPosition.EARLIEST)
        segment = await broker.segment(TOPIC, 0)
        await written(broker, segment)
        await scrape(broker)
        await broker.topics.unload(segment)
        await wait_all_tasks_blocked()
        assert {labels.reader for labels in await subscriptions(broker)} == {"s", "r"}
        await broker.control()
        await broker.administration.delete_subscription(TOPIC, "s")
        await wait_all_tasks_blocked()
        assert {labels.reader for labels in await subscriptions(broker)} == {"r"}
        assert broker.topics.running(segment) is None


async def test_of_several_brokers_the_last_owner_shows_it() -> None:
    """Prometheus sums over brokers, so two that show the same backlog would double it."""
    async with brokers(MemoryStore(), "one", "two") as (one, two):
        await (await written(one, NAME, 2)).subscribe("s", EARLIEST)
        await scrape(one)
        await one.topics.unload(NAME)
        await wait_all_tasks_blocked()
        assert (await subscriptions(one))[OWN].backlog_entries == 2
        await two.topics.get(NAME)
        assert (await subscriptions(one), (await subscriptions(two))[OWN].backlog_entries) == ({}, 2)
        await two.topics.unload(NAME)
        await wait_all_tasks_blocked()
        assert (await subscriptions(one), (await subscriptions(two))[OWN].backlog_entries) == ({}, 2)


async def test_a_sealed_log_belongs_to_the_broker_with_its_claim() -> None:
    """Nothing is written when a sealed log is loaded, so its epoch stays."""
    async with brokers(MemoryStore(), "one", "two") as (one, two):
        topic = await written(one, NAME, 2)
        await topic.subscribe("s", EARLIEST)
        await topic.seal()
        await scrape(one)
        await one.topics.unload(NAME)
        await wait_all_tasks_blocked()
        assert OWN in await subscriptions(one)
        await two.topics.get(NAME)
        assert await subscriptions(one) == {}


async def test_a_broker_that_was_not_asked_meanwhile_sees_by_the_epoch_that_the_topic_was_elsewhere() -> None:
    async with brokers(MemoryStore(), "one", "two") as (one, two):
        await (await written(one, NAME, 2)).subscribe("s", EARLIEST)
        await scrape(one)
        for broker in (one, two):
            await broker.topics.get(NAME)
            await broker.topics.unload(NAME)
            await wait_all_tasks_blocked()
        assert await subscriptions(one) == {}


async def test_a_group_of_kafka_keeps_its_lag_until_it_commits(mock_clock: MockClock) -> None:
    async with broker_with() as broker:
        await written(broker, regular("p").partition(1), 3)
        await commit(broker, "g", "p", 1, 1)
        await scrape(broker)
        await broker.topics.unload(regular("p").partition(1))
        await wait_all_tasks_blocked()
        mock_clock.jump(5)
        ((labels, lag),) = (await scrape(broker)).groups.items()
        assert (labels.topic, labels.reader) == (str(regular("p")), "g")
        assert (lag.backlog_messages, lag.backlog_seconds) == (2, 5)
        await commit(broker, "g", "p", 1, 3)
        assert (await scrape(broker)).groups == {}


async def test_the_console_sees_what_a_subscription_has_left() -> None:
    """Without any scrape: an operator with the console alone must not be told that there is no backlog."""
    async with broker_with() as broker:
        topic = await written(broker, NAME, 3)
        for name in ("s", "done"):
            await topic.subscribe(name, EARLIEST)
        topic.subscriptions["done"].cursor.acknowledge_cumulative(topic.readable.value)
        (loaded,) = broker.live.logs(NAME)
        await broker.topics.unload(NAME)
        await wait_all_tasks_blocked()
        assert list(broker.live.logs(NAME)) == [loaded] == list(broker.live.logs())
        assert [one.backlog for one in loaded.subscriptions.values()] == [3, 0]
        assert broker.live.unread() == Unread(
            left={(str(NAME), "s"): Left(3, grew=False, is_spread=False)}, consumed=[]
        )
        assert list(broker.live.logs(regular("other"))) == []
        await broker.topics.get(NAME)
        assert len(list(broker.live.logs())) == 1


async def test_the_console_does_not_see_who_was_disconnected() -> None:
    async with broker_with() as broker:
        topic = await written(broker, NAME, 3)
        subscription = await topic.subscribe("s", EARLIEST)
        consumer, _ = recording_consumer("c")
        subscription.add_consumer(consumer)
        assert [len(one.subscriptions["s"].consumers) for one in broker.live.logs()] == [1]
        await broker.topics.unload(NAME)
        await wait_all_tasks_blocked()
        assert [one.subscriptions["s"].consumers for one in broker.live.logs()] == [()]


async def test_a_log_without_a_backlog_is_forgotten() -> None:
    async with broker_with() as broker:
        topic = await written(broker, NAME, 3)
        (await topic.subscribe("s", EARLIEST)).cursor.acknowledge_cumulative(topic.readable.value)
        await broker.topics.unload(NAME)
        await wait_all_tasks_blocked()
        assert list(broker.live.logs()) == []


async def test_their_number_is_bounded() -> None:
    """The rows by the same setting as those of loaded topics, and what is remembered too."""
    async with broker_with(metrics_series_max=2) as broker:
        names: list[TopicName] = [regular(f"t{number}") for number in range(4)]
        for name in names:
            await (await written(broker, name)).subscribe("s", EARLIEST)
        await scrape(broker)
        for name in names:
            await broker.topics.unload(name)
        await wait_all_tasks_blocked()
        assert [labels.topic for labels in await subscriptions(broker)] == [str(name) for name in names[:2]]
        await broker.topics.get(regular("t3"))
        found = await subscriptions(broker)
        assert sum(sums.backlog_entries for sums in found.values()) == 3
        assert found[OTHER_READERS].backlog_entries == 1


@pytest.mark.parametrize(("level", "labels"), [("namespace", Labels("public/default")), ("none", Labels())])
async def test_coarse_labels_sum_them(level: str, labels: Labels) -> None:
    async with quiet(metrics_labels=level) as broker:
        await (await written(broker, regular("other"), 2)).subscribe("s", EARLIEST)
        assert {found: sums.backlog_entries for found, sums in (await subscriptions(broker)).items()} == {labels: 5}
