"""What a topic shows when the data to judge its entries is lost."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.topic import Topic
from storage.errors import LedgerCorrupt
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST, Position
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS
from tests.support.rooms import TOPIC, publish, rooms, visible
from txn.states import EndAction


@asynccontextmanager
async def without_aborted_index() -> AsyncIterator[Topic]:
    """Take over a sealed segment [plain, plain, aborted, plain] without its aborted-transaction index."""
    files, metadata = SimulatedFiles(), MemoryStore()
    async with rooms(metadata, files) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        name = await broker.segment(TOPIC, 0)
        topic = await broker.topics.get(name)
        await publish(topic, b"one")
        await publish(topic, b"two")
        txn = await broker.coordinator.new_transaction(0, 60_000)
        await publish(topic, b"aborted", txn)
        await publish(topic, b"three")
        await broker.coordinator.end(txn, EndAction.ABORT)
        await topic.seal()
        await wait_all_tasks_blocked()
        assert [entry.payload for entry in await visible(topic)] == [b"one", b"two", b"three"]
    indexes = [name for name in files.names(LEDGERS) if ".aborted-" in name]
    assert len(indexes) == 1
    files.remove(LEDGERS / indexes[0])
    async with rooms(metadata, files) as broker:
        yield await broker.topics.get(name)


async def test_without_its_aborted_index_a_ledger_shows_its_plain_part_and_then_says_what_is_missing() -> None:
    """E3, E10: entries before the first one of unknown fate are shown, and no aborted entry is ever shown."""
    async with without_aborted_index() as topic:
        assert [entry.payload for entry in await topic.read(EARLIEST, entries_max=10, bytes_max=10_000)] == [
            b"one",
            b"two",
        ]
        last = topic.ledger.last_position
        damaged = Position(last.ledger, 2)
        with pytest.raises(LedgerCorrupt, match=r"\.aborted-\d+ .* missing"):
            await topic.read(damaged, entries_max=10, bytes_max=10_000)
        behind = await topic.read(topic.next_after(damaged), entries_max=10, bytes_max=10_000)
        assert [entry.payload for entry in behind] == [b"three"]
