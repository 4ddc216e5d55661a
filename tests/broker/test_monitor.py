"""What `/metrics` shows of transactions. The parts that do the work also count it."""

from collections.abc import AsyncIterator

import pytest
from trio.testing import wait_all_tasks_blocked

from broker.administration_contract import TransactionStatistics
from broker.layouts.parts import StartPosition, SubscriptionKind
from broker.outbox import Outbox
from storage.metadata.memory import MemoryStore
from storage.ranges import EntryAck
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC, Rooms, publish, rooms
from txn.errors import InvalidTxnStatus, TransactionNotFound
from txn.states import EndAction


@pytest.fixture
async def broker() -> AsyncIterator[Rooms]:
    async with rooms(MemoryStore(), SimulatedFiles(seed=5)) as made:
        yield made


async def test_a_transactions_life_is_counted(broker: Rooms) -> None:
    """T34: writes and acknowledgements are op records until they are applied; each end is one compare-and-set."""
    monitor = broker.monitor

    def now() -> TransactionStatistics:
        return monitor.statistics().transactions

    await broker.controller.create_topic(TOPIC, 1, {})
    await broker.controller.subscriptions.add(TOPIC, "s", SubscriptionKind.QUEUE, StartPosition.EARLIEST)
    segment = await broker.topics.get(await broker.segment(TOPIC, 0))
    await publish(segment, b"plain")
    assert (now().op_writes, now().op_records_outstanding) == (0, 0)
    queries = now().index_queries
    assert queries >= 2, "the segment was recovered, and its subscription"

    committed, aborted = [await broker.coordinator.new_transaction(0, 1_000) for _ in range(2)]
    before = now().header_cas_ok
    for txn in (committed, aborted):
        await publish(segment, b"in a transaction", txn)
        await publish(segment, b"and once more: the record is there", txn)
    place = segment.ledger.next_after(segment.subscriptions["s"].cursor.mark_delete)
    await segment.acknowledge_in_transaction(segment.subscriptions["s"], committed, [EntryAck(place)])
    assert (now().op_writes, now().op_records_outstanding) == (3, 3)

    await broker.coordinator.end(committed, EndAction.COMMIT)
    await broker.coordinator.end(aborted, EndAction.ABORT)
    await wait_all_tasks_blocked()
    assert (now().op_writes, now().op_records_outstanding) == (3, 0)
    assert (now().header_cas_ok - before, now().header_cas_conflict) == (2, 0)

    rejected = now().header_cas_reject
    with pytest.raises(InvalidTxnStatus):
        await broker.coordinator.end(aborted, EndAction.COMMIT)
    assert now().header_cas_reject == rejected + 1
    with pytest.raises(TransactionNotFound):
        await broker.coordinator.end(committed._replace(least=committed.least + 999), EndAction.COMMIT)

    await broker.topics.unload(segment.name)
    await broker.topics.get(segment.name)
    assert now().index_queries > queries
    assert now().index_query_seconds >= 0


async def test_memory_that_is_held_for_clients_is_told(broker: Rooms) -> None:
    """E9: each direction has its own metric, so that a leak is visible from outside."""
    monitor, budgets = broker.monitor, broker.foundation.budgets
    share, outbox = budgets.receiving.share(), Outbox(budgets.sending)
    now = monitor.statistics()
    assert (now.received_bytes_max, now.unread_bytes_max, now.connections_max) == (1 << 29, 1 << 29, 1_000)
    await share.take(3)
    outbox.put(b"four")
    now = monitor.statistics()
    assert (now.received_bytes, now.unread_bytes) == (3, 4)
    share.close()
    outbox.close()
    now = monitor.statistics()
    assert (now.received_bytes, now.unread_bytes) == (0, 0)
