"""Layout changes while the disk that all brokers share is full."""

import pytest
import trio
from trio.testing import MockClock

from storage.metadata.memory import MemoryStore
from tests.broker.scalable.test_changes_across_brokers import (
    EARLY,
    LATE,
    STREAM,
    check_whole,
    leftovers,
    settled,
    spread,
)
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC
from tests.support.several_rooms import Brokers


async def test_the_children_of_a_split_need_no_space(autojump_clock: MockClock) -> None:
    """E13, C14: clients get the new layout. The split ends by itself once the parents' last entries have space."""
    disk = SimulatedFiles(seed=5)
    async with trio.open_nursery() as nursery:
        brokers = Brokers(MemoryStore(), disk, nursery)
        for broker_id in ("one", "two"):
            await brokers.start(broker_id)
        one = brokers["one"]
        await spread(brokers, "two", "one")
        disk.set_capacity(disk.used_bytes)
        async with trio.open_nursery() as changes:
            changes.start_soon(one.controller.split, TOPIC, 0)
            await trio.sleep(30)
            layout = await one.layouts.get(TOPIC)
            assert layout.epoch == 1
            assert [segment.id for segment in layout.active()] == [2, 3, 1]
            # Subscriptions come and go meanwhile.
            with trio.fail_after(60):
                await one.controller.subscriptions.add(TOPIC, "late", STREAM, LATE)
                await one.controller.subscriptions.add(TOPIC, "early", STREAM, EARLY)
            assert (await one.layouts.get(TOPIC)).intent is not None
            disk.set_capacity(None)
        with trio.fail_after(60):
            await settled(brokers)
        await check_whole(brokers, {"s", "late", "early"}, [b"0", b"1"])
        for broker_id in tuple(brokers.living):
            await brokers.kill(broker_id)


@pytest.mark.parametrize("owner", ["one", "two"])
async def test_a_topic_is_deleted_while_the_disk_is_full(owner: str, autojump_clock: MockClock) -> None:
    """E13, C14: whoever owns its segments. Its data must go before there is space."""
    disk = SimulatedFiles(seed=5)
    async with trio.open_nursery() as nursery:
        brokers = Brokers(MemoryStore(), disk, nursery)
        for broker_id in ("one", "two"):
            await brokers.start(broker_id)
        await spread(brokers, owner, "one")
        disk.set_capacity(disk.used_bytes)
        with trio.fail_after(60):
            await brokers["one"].controller.delete_topic(TOPIC, force=True)
        assert await leftovers(brokers.shared) == []
        for broker_id in tuple(brokers.living):
            await brokers.kill(broker_id)
