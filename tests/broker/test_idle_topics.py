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
