"""A topic that is unloaded because nobody uses it leaves nothing in memory."""

import weakref

import pytest
import trio
from trio.testing import MockClock

from broker.names import TopicName
from broker.topics import IDLE_SECONDS_MAX
from storage.position import EARLIEST
from tests.support.disk import SimulatedFiles
from tests.support.reference_counts import collector_stopped
from tests.support.rooms import TOPIC, publish, rooms
from tests.support.steered_store import SteeredStore


@pytest.mark.parametrize("kind", ["regular topic", "segment"])
async def test_an_idle_topic_is_freed_at_once(kind: str, autojump_clock: MockClock) -> None:
    """E16: reference counts alone free it. So ten thousand idle segments do not wait for a full collection."""
    async with rooms(SteeredStore(), SimulatedFiles(seed=5)) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        regular = TopicName.parse("persistent://public/default/plain")
        name = regular if kind == "regular topic" else await broker.segment(TOPIC, 0)
        topic = await broker.topics.get(name)
        await topic.subscribe("s", EARLIEST)
        await publish(topic, b"one")
        gone = weakref.ref(topic)
        del topic
        with collector_stopped():
            await trio.sleep(2 * IDLE_SECONDS_MAX)
            assert list(broker.topics) == []
            assert gone() is None


class Woken(trio.abc.Instrument):
    """Counts the tasks that are to run."""

    count = 0

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


async def test_a_use_keeps_a_topic_and_wakes_nobody(autojump_clock: MockClock) -> None:
    """E9: each request of Kafka's clients is a use, because they register no consumers or producers."""
    async with rooms(SteeredStore(), SimulatedFiles(seed=5)) as broker:
        topic = await broker.topics.get(TopicName.parse("persistent://public/default/plain"))
        await trio.sleep(IDLE_SECONDS_MAX / 2)
        woken = Woken()
        trio.lowlevel.add_instrument(woken)
        topic.clients.touch()
        trio.lowlevel.remove_instrument(woken)
        assert woken.count == 0
        await trio.sleep(IDLE_SECONDS_MAX * 0.9)
        assert list(broker.topics) == [topic]
        await trio.sleep(IDLE_SECONDS_MAX * 0.2)
        assert list(broker.topics) == []
