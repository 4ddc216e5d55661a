"""What an administrator can do with a topic that cannot be loaded because of damage."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.errors import TopicDamaged, TopicNotFound
from broker.layouts.layout import Layout
from broker.layouts.parts import StartPosition, SubscriptionKind
from broker.names import TopicName
from broker.store_retry import RETRY_SECONDS
from storage.cursor import cursor_key
from storage.managed_ledger_record import MANAGED_LEDGERS, record_key
from storage.metadata.memory import MemoryStore
from storage.metadata.store import starting_with
from storage.position import EARLIEST
from storage.ranges import EntryAck
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import LEDGERS, journal_dir
from tests.support.metadata import damage_records, keys_left
from tests.support.outlet import recording_consumer
from tests.support.rooms import TOPIC, Rooms, publish, rooms, visible
from txn.states import EndAction

DAMAGES: dict[str, Callable[[SimulatedFiles], None]] = {}
"""By name, what happens to the ledger of the segment that is open when the broker is killed."""


def _damage(make: Callable[[SimulatedFiles], None]) -> Callable[[SimulatedFiles], None]:
    DAMAGES[make.__name__] = make
    return make


def lose_journal(files: SimulatedFiles) -> None:
    """Remove the journal's entries, as a checkpoint does."""
    for name in files.names(journal_dir()):
        if name.endswith(".journal"):
            files.cut(journal_dir() / name, 0)
            files.open(journal_dir() / name).write_at(0, b"lost")


@_damage
def missing(files: SimulatedFiles) -> None:
    lose_journal(files)
    for name in files.names(LEDGERS):
        files.remove(LEDGERS / name)


@_damage
def flipped(files: SimulatedFiles) -> None:
    lose_journal(files)
    for name in files.names(LEDGERS):
        if name.endswith(".ledger") and files.content(LEDGERS / name):
            files.flip(LEDGERS / name, 8 * (len(files.content(LEDGERS / name)) - 1))
        if name.endswith(".index"):
            # With it nobody looks at the batches before they are read.
            files.remove(LEDGERS / name)


@asynccontextmanager
async def damaged_broker(damage: Callable[[SimulatedFiles], None]) -> AsyncIterator[tuple[Rooms, SimulatedFiles]]:
    """Run a broker whose scalable topic has one segment, which cannot be loaded, and an open transaction."""
    metadata, files = MemoryStore(), SimulatedFiles(seed=5)
    async with rooms(metadata, files) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        await broker.controller.subscriptions.add(TOPIC, "s", SubscriptionKind.QUEUE, StartPosition.EARLIEST)
        segment = await broker.topics.get(await broker.segment(TOPIC, 0))
        txn = await broker.coordinator.new_transaction(0, 900_000)
        await publish(segment, b"a")
        await publish(segment, b"b", txn)
        first = segment.next_after(EARLIEST)
        await segment.acknowledge_in_transaction(segment.subscriptions["s"], txn, [EntryAck(first)])
        # The ledger file has it all, and the journal is not needed for it.
        await broker.ledgers._write_behind.flush(broker.ledgers._open[first.ledger].log)
    survivor = files.kill()
    damage(survivor)
    async with rooms(metadata, survivor) as broker:
        with pytest.raises(TopicDamaged, match="is damaged"):
            await broker.topics.get(await broker.segment(TOPIC, 0))
        yield broker, survivor


async def left(broker: Rooms) -> list[str]:
    """Return the topic's records in the metadata store, without claims."""
    records = await broker.metadata.scan("", "~")
    return [record.key for record in records if "orders" in record.key and not record.key.startswith("/owners/")]


async def op_records(broker: Rooms) -> list[str]:
    return [record.key for record in await broker.metadata.scan(*starting_with("/txn/op/"))]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_topic_that_cannot_be_loaded_can_be_deleted(damage: str) -> None:
    """E3, E10: its records and files are removed, and the name is free; users have no other way out."""
    async with damaged_broker(DAMAGES[damage]) as (broker, files):
        await broker.controller.delete_topic(TOPIC, force=False)
        assert await left(broker) == []
        assert await op_records(broker) == []
        assert files.names(LEDGERS) == []
        await broker.controller.create_topic(TOPIC, 1, {})
        segment = await broker.topics.get(await broker.segment(TOPIC, 0))
        await publish(segment, b"anew")
        assert [entry.payload for entry in await visible(segment)] == [b"anew"]
        assert segment.subscriptions == {}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_subscription_of_a_topic_that_cannot_be_loaded_can_be_deleted(damage: str) -> None:
    """E3, E10: its cursor and its acknowledgements in open transactions are removed; the data stays."""
    async with damaged_broker(DAMAGES[damage]) as (broker, files):
        there = files.names(LEDGERS)
        await broker.controller.subscriptions.delete(TOPIC, "s")
        assert (await broker.layouts.get(TOPIC)).subscriptions == {}
        assert await broker.metadata.scan(*starting_with(cursor_key(str(await broker.segment(TOPIC, 0)), ""))) == []
        assert len(await op_records(broker)) == 1, "that of the write stays"
        assert files.names(LEDGERS) == there


async def test_a_topic_whose_cursor_is_damaged_can_be_deleted() -> None:
    """E10: it is not served, because the subscription's position is unknown."""
    metadata, files = MemoryStore(), SimulatedFiles(seed=6)
    async with rooms(metadata, files) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        name = await broker.segment(TOPIC, 0)
        await (await broker.topics.get(name)).subscribe("s", EARLIEST)
        await broker.topics.unload(name)
        await metadata.put(cursor_key(str(name), "s"), b"{")
        with pytest.raises(TopicDamaged):
            await broker.topics.get(name)
        await broker.controller.delete_topic(TOPIC, force=False)
        assert await left(broker) == []


async def test_damaged_op_records_keep_no_segment_closed(autojump_clock: MockClock) -> None:
    """E11, E10: what the transaction wrote is hidden, and the subscription on which it acknowledged waits for its end.

    Another subscription gets its messages.
    """
    metadata, files = MemoryStore(), SimulatedFiles(seed=8)
    async with rooms(metadata, files) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        name = await broker.segment(TOPIC, 0)
        segment = await broker.topics.get(name)
        for subscription in ("s", "other"):
            await segment.subscribe(subscription, EARLIEST)
        txn = await broker.coordinator.new_transaction(0, 900_000)
        await publish(segment, b"a")
        await publish(segment, b"b", txn)
        first = segment.next_after(EARLIEST)
        await segment.acknowledge_in_transaction(segment.subscriptions["s"], txn, [EntryAck(first)])
    keys = await damage_records(metadata, "/txn/op/", b"{")
    assert len(keys) == 2
    async with rooms(metadata, files.kill()) as broker:
        segment = await broker.topics.get(name)
        outlets = {}
        for subscription in ("s", "other"):
            consumer, outlets[subscription] = recording_consumer()
            segment.subscriptions[subscription].add_consumer(consumer)
            segment.subscriptions[subscription].flow(consumer, 10)
        await wait_all_tasks_blocked()
        assert [entry.payload for entry in await visible(segment)] == [b"a"]
        assert (outlets["other"].positions, outlets["other"].damages) == ([first], [])
        assert outlets["s"].positions == []
        (told,) = outlets["s"].damages
        assert any(key in told for key in keys)
        await broker.coordinator.end(txn, EndAction.ABORT)
        await wait_all_tasks_blocked()
        assert outlets["s"].positions == [first]
        assert await keys_left(metadata, "/txn/op/") == []


async def test_a_migrated_topic_that_cannot_be_loaded_can_be_deleted() -> None:
    """E10: its first segment has the regular topic's name."""
    metadata, files = MemoryStore(), SimulatedFiles(seed=7)
    async with rooms(metadata, files) as broker:
        regular = await broker.topics.get(TOPIC.as_regular)
        await publish(regular, b"a")
        await broker.controller.migrate(TOPIC, force=False)
    survivor = files.kill()
    missing(survivor)
    async with rooms(metadata, survivor) as broker:
        await broker.controller.delete_topic(TOPIC, force=False)
        assert await left(broker) == []
        assert survivor.names(LEDGERS) == []


async def test_a_pruned_segment_whose_files_are_damaged_is_removed(autojump_clock: MockClock) -> None:
    """E10: nothing of the sealed segment is needed any more."""
    metadata, files = MemoryStore(), SimulatedFiles(seed=8)
    async with rooms(metadata, files) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        await broker.controller.subscriptions.add(TOPIC, "s", SubscriptionKind.QUEUE, StartPosition.EARLIEST)
        parent = await broker.topics.get(await broker.segment(TOPIC, 0))
        await publish(parent, b"a")
        await broker.controller.split(TOPIC, 0)
        await broker.controller.subscriptions.skip_all(TOPIC, "s")
        sealed = parent.ledger.last_position.ledger
    survivor = files.kill()
    lose_journal(survivor)
    survivor.remove(LEDGERS / f"{sealed:020d}.ledger")
    async with rooms(metadata, survivor) as broker, trio.open_nursery() as nursery:
        nursery.start_soon(broker.pruner.run)
        await trio.sleep(60)
        layout = await broker.layouts.get(TOPIC)
        assert (0 in layout.segments, dict(layout.pruned)) == (False, {})
        records = [record.key for record in await metadata.scan(*starting_with(MANAGED_LEDGERS))]
        assert [key for key in records if "0000-ffff-0" in key] == []
        nursery.cancel_scope.cancel()


async def test_an_unsubscribe_of_a_segment_that_is_being_deleted_is_refused() -> None:
    """D16: the deletion of the segment removes its cursors."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=9)) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        name = await broker.segment(TOPIC, 0)
        await broker.layouts.change(TOPIC, Layout.begin_deletion)
        with pytest.raises(TopicNotFound):
            await broker.topics.unsubscribe(name, "s")


@pytest.mark.parametrize("value", [b"{", b"[]", b"{}"])
async def test_a_damaged_list_of_ledgers_ends_its_topic_alone(value: bytes, autojump_clock: MockClock) -> None:
    """E11: nor does each later attempt to give the topic up end anything else."""
    metadata = MemoryStore()
    plain, other = (TopicName.parse(f"persistent://public/default/{name}") for name in ("plain", "other"))
    async with rooms(metadata, SimulatedFiles(seed=5)) as broker:
        await metadata.put(record_key(str(plain)), value)
        with pytest.raises(TopicDamaged, match="list of ledgers"):
            await broker.topics.get(plain)
        await trio.sleep(3 * RETRY_SECONDS)
        await publish(await broker.topics.get(other), b"goes on")
        # Once the record is repaired, the topic is served again.
        await metadata.delete(record_key(str(plain)))
        await publish(await broker.topics.get(plain), b"again")
