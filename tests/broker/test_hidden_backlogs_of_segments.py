"""K35 on segments: their transactions leave no markers, and what was aborted is no backlog at any owner."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.topic import Topic
from dispatch.subscription import Acknowledgement
from storage.entry import TxnId
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS
from tests.support.rooms import TOPIC, Rooms, publish, rooms, visible
from txn.states import EndAction


@asynccontextmanager
async def served(store: MemoryStore, files: SimulatedFiles) -> AsyncIterator[tuple[Rooms, Topic]]:
    async with rooms(store, files) as broker:
        if not await broker.layouts.names():
            await broker.controller.create_topic(TOPIC, 1, {})
        yield broker, await broker.topics.get(await broker.segment(TOPIC, 0))


async def check(topic: Topic) -> None:
    entries = await visible(topic)
    for subscription in topic.subscriptions.values():
        left = [entry for entry in entries if not subscription.cursor.is_acknowledged(entry.position)]
        assert await subscription.visible_backlog() == len(left)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("loses_lists", [False, True])
async def test_backlogs_are_exact_at_each_of_several_owners(
    seed: int, autojump_clock: trio.testing.MockClock, *, loses_lists: bool
) -> None:
    """K35: transactions end at later owners than those that they wrote to."""
    random, store, files = Random(seed), MemoryStore(), SimulatedFiles(seed=seed)
    running: list[TxnId] = []
    for _ in range(5):
        async with served(store, files) as (broker, topic):
            await topic.subscribe("untouched", EARLIEST)
            shared = await topic.subscribe("shared", EARLIEST)
            await check(topic)
            for _step in range(40):
                match random.choice(["begin", "write", "write", "write", "plain", "end", "roll"]):
                    case "begin":
                        running.append(await broker.coordinator.new_transaction(0, 600_000))
                    case "write" if running:
                        await publish(topic, b"in a transaction", random.choice(running))
                    case "plain":
                        await publish(topic, b"plain")
                    case "end" if running:
                        txn = running.pop(random.randrange(len(running)))
                        await broker.coordinator.end(txn, random.choice([EndAction.COMMIT, EndAction.ABORT]))
                    case "roll" if random.random() < 0.3:
                        topic.ledger.request_roll()
                await wait_all_tasks_blocked()
            some = [entry.position for entry in await visible(topic) if random.random() < 0.3]
            shared.acknowledge([Acknowledgement(position) for position in some])
            await shared.synced()
            await check(topic)
            if random.random() < 0.5:
                await broker.topics.unload(topic.name)
        if random.random() < 0.5:
            files = files.crash()
        if loses_lists:
            for name in files.names(LEDGERS):
                if name.endswith(".hidden"):
                    files.remove(LEDGERS / name)


async def test_a_segment_without_aborts_gets_no_list(autojump_clock: trio.testing.MockClock) -> None:
    """It costs nothing where nothing is hidden."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with served(store, files) as (broker, topic):
        await topic.subscribe("s", EARLIEST)
        for _ in range(3):
            await publish(topic, b"a")
            topic.ledger.request_roll()
            await wait_all_tasks_blocked()
        await broker.topics.unload(topic.name)
    assert not [name for name in files.names(LEDGERS) if name.endswith(".hidden")]
    async with served(store, files) as (_broker, topic):
        assert await topic.subscriptions["s"].visible_backlog() == 3
