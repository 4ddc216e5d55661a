"""Which transaction buffer a topic gets and uses."""

from dataclasses import replace

import pytest

from broker.names import Domain, TopicName
from broker.transaction_buffers import ANY_NAMESPACE, TransactionBuffers
from storage.entry import EntryFormat
from storage.managed_ledger import ManagedLedger
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Check
from storage.position import EARLIEST
from storage.ranges import EntryAck
from tests.support.disk import SimulatedFiles
from tests.support.markers import open_marker_buffer
from tests.support.rooms import TOPIC, publish, rooms, visible
from txn.buffer import TransactionBuffer
from txn.errors import WrongDomain

PLAIN = TopicName.parse("persistent://public/default/plain")
ELSEWHERE = TopicName.parse("topic://public/elsewhere/orders")


async def test_segments_take_v5_transactions_and_regular_topics_take_none() -> None:
    """T35, D6: the kind of topic decides, as configured in the composition."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker:
        await broker.controller.create_topic(TOPIC, 1, {})
        segment = await broker.topics.get(await broker.segment(TOPIC, 0))
        plain = await broker.topics.get(PLAIN)
        txn = await broker.coordinator.new_transaction(0, 60_000)
        await publish(segment, b"in a transaction", txn)
        assert await visible(segment) == []
        with pytest.raises(WrongDomain):
            await publish(plain, b"refused", txn)
        await publish(plain, b"taken")
        assert [entry.payload for entry in await visible(plain)] == [b"taken"]


async def test_a_namespace_may_have_a_buffer_of_its_own() -> None:
    """T35: its segments use that buffer to write and acknowledge; segments of other namespaces do not."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker:
        composed = broker.services.buffers

        def as_composed(ledger: ManagedLedger, claim: Check) -> TransactionBuffer:
            return composed.make(TopicName.parse(ledger.name), ledger, claim)

        def with_markers(ledger: ManagedLedger, claim: Check) -> TransactionBuffer:
            return open_marker_buffer(ledger, broker.metadata, claim)

        table = {
            (Domain.SEGMENT, ANY_NAMESPACE): as_composed,
            (Domain.SEGMENT, "public/elsewhere"): with_markers,
        }
        broker.services = replace(broker.services, buffers=TransactionBuffers(table))
        txn = await broker.coordinator.new_transaction(0, 60_000)
        for name in (TOPIC, ELSEWHERE):
            await broker.controller.create_topic(name, 1, {})
        await publish(await broker.topics.get(await broker.segment(TOPIC, 0)), b"a", txn)
        segment = await broker.topics.get(await broker.segment(ELSEWHERE, 0))
        position = await segment.publish(b"a", message_count=1, txn=None, entry_format=EntryFormat.PULSAR)
        await segment.readable.wait_for(position)
        with pytest.raises(WrongDomain):
            await publish(segment, b"b", txn)
        subscription = await segment.subscribe("s", EARLIEST)
        with pytest.raises(WrongDomain):
            await segment.acknowledge_in_transaction(subscription, txn, [EntryAck(position)])
        assert subscription.backlog_entries == 1
