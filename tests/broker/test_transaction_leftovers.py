"""What transactions leave in a segment's ledgers, and how the sweep of headers treats the remains of a crash."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.layouts.store import layout_key
from broker.topic import Topic
from dispatch.subscription import Subscription
from storage.entry import Entry, TxnId
from storage.metadata.memory import MemoryStore
from storage.metadata.store import MetadataStore, Op, Put, StoreUnavailable, starting_with
from storage.position import EARLIEST, Position
from storage.ranges import EntryAck
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC, Rooms, moving_clock, publish, rooms, visible
from tests.support.steered_store import SteeredStore
from txn.headers import KEY_PREFIX as HEADERS
from txn.headers import header_key
from txn.ops import KEY_PREFIX as OPS
from txn.ops import WriteOp
from txn.states import EndAction

RETENTION_SECONDS = 60


async def the_segment(broker: Rooms) -> Topic:
    return await broker.topics.get(await broker.segment(TOPIC, 0))


async def everything(topic: Topic) -> list[Entry]:
    """Return everything in the ledgers, visible or not."""
    found: list[Entry] = []
    at = EARLIEST
    while entries := await topic.ledger.read(
        at, upto=topic.ledger.confirmed.value, entries_max=100, bytes_max=1_000_000
    ):
        found += entries
        at = topic.next_after(entries[-1].position)
    return found


async def test_a_segments_ledgers_hold_what_was_published_and_nothing_else() -> None:
    """T21: no marker says how a transaction ended: not at its end, not at a takeover, not at the seal."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    published: list[tuple[bytes, TxnId | None]] = []
    positions: list[Position] = []
    for turn in range(3):
        async with rooms(store, files) as broker:
            if not turn:
                await broker.controller.create_topic(TOPIC, 1, {})
            topic = await the_segment(broker)
            for number, action in enumerate((EndAction.COMMIT, EndAction.ABORT, None)):
                txn = await broker.coordinator.new_transaction(0, 60_000)
                for of in (txn, None, txn):
                    payload = b"%d.%d.%d" % (turn, number, len(published))
                    await publish(topic, payload, of)
                    published.append((payload, of))
                if action is not None:
                    await broker.coordinator.end(txn, action)
            await wait_all_tasks_blocked()
            if turn == 2:
                await broker.controller.split(TOPIC, 0)
                await wait_all_tasks_blocked()
            found = await everything(topic)
            assert [(entry.payload, entry.txn) for entry in found] == published
            assert topic.ledger.next_index == len(published)
            positions = [entry.position for entry in found]
            files.crash()
    for ledger in {position.ledger for position in positions}:
        # Entries of one ledger are numbered without a gap in which something else could stand.
        numbers = [position.entry for position in positions if position.ledger == ledger]
        assert numbers == list(range(len(numbers)))


@asynccontextmanager
async def swept(broker: Rooms) -> AsyncIterator[None]:
    """Sweep finished headers in the background."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.shards.run)
        nursery.start_soon(broker.header_sweep.run)
        yield
        nursery.cancel_scope.cancel()


async def left(metadata: MetadataStore, prefix: str) -> int:
    return len(await metadata.scan(*starting_with(prefix)))


async def acknowledge(topic: Topic, subscription: Subscription, position: Position, txn: TxnId) -> None:
    await topic.acknowledge_in_transaction(subscription, txn, [EntryAck(position)], cumulative=True)


async def test_what_aborted_transactions_left_behind_goes_and_stays_aborted(autojump_clock: MockClock) -> None:
    """T30, T19: nobody serves the segment; the sweep removes its records, and aborted entries stay hidden.

    One transaction has an entry. One has none, because its broker died. One acknowledged a message, which is
    redelivered.
    """
    store, files = SteeredStore(), SimulatedFiles(seed=1)
    clock = moving_clock()
    async with rooms(store, files, clock=clock) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        topic = await the_segment(broker)
        subscription = await topic.subscribe("s", EARLIEST)
        await publish(topic, b"before")
        wrote, orphan, took = [await broker.coordinator.new_transaction(0, 900_000) for _ in range(3)]
        await publish(topic, b"aborted", wrote)
        await publish(topic, b"behind")
        op = WriteOp(orphan, topic.ledger.name, topic.ledger.creation_id, topic.ledger.next_position)
        await store.commit([op.to_put()])
        await acknowledge(topic, subscription, (await everything(topic))[0].position, took)
    files.crash()
    assert await left(store, OPS) == 3
    async with rooms(store, files, clock=clock) as broker, swept(broker):
        for txn in (wrote, orphan, took):
            await broker.coordinator.end(txn, EndAction.ABORT)
        await trio.sleep(RETENTION_SECONDS - 1)
        assert broker.opened == [], "nobody has asked for the segment"
        assert await left(store, OPS) == 3
        await trio.sleep(3)
        assert broker.opened == [await broker.segment(TOPIC, 0)]
        assert await left(store, OPS) == 0
        assert await left(store, HEADERS) > 0, "while there were records, their headers stayed"
        await trio.sleep(RETENTION_SECONDS + 1)
        assert await left(store, HEADERS) == 0
        await check(await the_segment(broker), wrote)
    files.crash()
    async with rooms(store, files, clock=clock) as broker:
        assert await store.get(header_key(wrote)) is None
        await check(await the_segment(broker), wrote)


async def test_a_deletion_that_fails_leaves_the_segments_op_records(autojump_clock: MockClock) -> None:
    """T29: the segment cannot be loaded meanwhile, but it still exists, and aborted entries stay hidden."""
    store, files = SteeredStore(), SimulatedFiles(seed=1)
    clock = moving_clock()
    async with rooms(store, files, clock=clock) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        topic = await the_segment(broker)
        await publish(topic, b"before")
        txn = await broker.coordinator.new_transaction(0, 900_000)
        await publish(topic, b"aborted", txn)
    files.crash()
    async with rooms(store, files, clock=clock) as broker, swept(broker):
        await broker.coordinator.end(txn, EndAction.ABORT)

        async def fail(ops: Sequence[Op]) -> None:
            if any(isinstance(op, Put) and op.key == layout_key(TOPIC) for op in ops):
                store.before = None
                # The sweep comes by meanwhile.
                await trio.sleep(2 * RETENTION_SECONDS)
                raise StoreUnavailable("away")

        store.before = fail
        with pytest.raises(StoreUnavailable):
            await broker.controller.delete_topic(TOPIC, force=True)
        assert [entry.payload for entry in await visible(await the_segment(broker))] == [b"before"]


async def check(topic: Topic, aborted: TxnId) -> None:
    assert [entry.payload for entry in await visible(topic)] == [b"before", b"behind"]
    assert [entry.txn for entry in await everything(topic)] == [None, aborted, None]
    assert topic.subscriptions["s"].cursor.mark_delete == EARLIEST
