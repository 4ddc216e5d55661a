"""One topic, and clients of both protocols on it."""

import pytest

from broker.names import TopicName
from broker.read_uncommitted import ReadUncommitted
from storage.entry import EntryFormat
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST
from tests.support.disk import SimulatedFiles
from tests.support.kafka_batches import batch, marker
from tests.support.kafka_connection import READ_COMMITTED, committed_in, kafka_client, records_of, values_of
from tests.support.kafka_producer import TransactionalProducer
from tests.support.rooms import publish, rooms, visible
from tidewire.wire.kafka.messages.list_offsets import LATEST
from tidewire.wire.kafka.records import Header, Record, build
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import parse_payload, read_batch
from txn.marked_log import Ended
from txn.producer_states import Batch, EndMarker

PARTITION = TopicName.parse("persistent://public/default/orders-partition-0")


async def test_a_kafka_consumer_reads_what_pulsar_clients_wrote() -> None:
    """K20, K42: at the same offsets, with keys and properties; what cannot be converted is passed over (K21)."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await client.create("orders")
        topic = await broker.topics.get(PARTITION)
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=7, event_time=5, partition_key="k")
        metadata.properties.add(key="h", value="v")
        await publish(topic, build_payload(metadata, b"from pulsar"))
        await publish(topic, b"no payload of Pulsar")
        await client.produce("orders", build([Record(None, b"from kafka", 9)]))
        data = await client.fetch("orders", 0)
        assert records_of(data) == [
            (0, Record(b"k", b"from pulsar", 5, (Header(b"h", b"v"),))),
            (2, Record(None, b"from kafka", 9)),
        ]
        assert data.high_watermark == 3
        assert (await client.offset("orders", 8)).offset == 2
        await client.fetch("orders", 0)
        assert broker.monitor.statistics().unconvertible == {"kafka": 1, "pulsar": 0}, "its filler is kept in memory"


async def test_a_pulsar_consumer_reads_what_kafka_clients_wrote() -> None:
    """K42: a batch of records is a batch of messages."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await client.create("orders")
        await client.produce("orders", build([Record(b"k", b"a", 5, (Header(b"h", b"v"),)), Record(None, None, 6)]))
        topic = await broker.topics.get(PARTITION)
        (entry,) = await visible(topic)
        assert (entry.format, entry.message_count) == (EntryFormat.PULSAR, 2)
        metadata, body = parse_payload(entry.payload)
        first, second = [(single, bytes(value)) for _number, single, value in read_batch(metadata, bytes(body))]
        assert (first[0].partition_key, first[0].event_time, first[1]) == ("k", 5, b"a")
        assert {one.key: one.value for one in first[0].properties} == {"h": "v"}
        assert second[0].null_value


async def test_a_batch_that_cannot_be_converted_stays_as_it_is() -> None:
    """K42: it harms itself only; the next one comes."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await client.create("orders")
        topic = await broker.topics.get(PARTITION)
        await topic.publish(b"no batch", message_count=1, txn=None, entry_format=EntryFormat.KAFKA)
        await client.produce("orders", build([Record(None, b"a", 6)]))
        assert [entry.format for entry in await visible(topic)] == [EntryFormat.KAFKA, EntryFormat.PULSAR]
        assert broker.monitor.statistics().unconvertible == {"kafka": 0, "pulsar": 1}


@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_pulsar_consumer_gets_what_a_kafka_transaction_committed(*, is_commit: bool) -> None:
    """K22, K35: no marker, and nothing that was aborted; positions pass both."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await client.create("orders")
        topic = await broker.topics.get(PARTITION)
        subscription = await topic.subscribe("s", EARLIEST)
        await topic.markers.admit_producer()
        in_txn = Batch(9, 0, 0, 0, is_transactional=True)
        topic.markers.append_batch(batch(9, 0, 0, in_txn=True), in_txn, 1)
        await client.produce("orders", build([Record(None, b"beside", 6)]))
        assert await visible(topic) == []
        ended = Ended(EndMarker(9, 0, 0, bumps_epoch=False), is_commit)
        topic.markers.append_marker(marker(9, 0, is_commit=is_commit), ended)
        await topic.readable.wait_for(topic.ledger.last_position)
        bodies = [parse_payload(entry.payload)[1] for entry in await visible(topic)]
        assert [bytes(body) for body in bodies] == ([b"value", b"beside"] if is_commit else [b"beside"])
        committed = await client.fetch("orders", 0, isolation=READ_COMMITTED)
        assert len(committed.aborted_transactions or ()) == (0 if is_commit else 1)
        assert values_of(committed) == [(0, b"value"), (1, b"beside")]
        assert (await client.offset("orders", LATEST, isolation=READ_COMMITTED)).offset == 3
        last = await topic.last_visible()
        assert last is not None
        assert last.first_index == 1
        assert subscription.backlog_entries == (2 if is_commit else 1)


async def test_a_reader_of_what_is_uncommitted_gets_what_kafka_clients_wrote() -> None:
    """K42, T14: open, aborted and committed records as messages, and no marker."""
    async with rooms(MemoryStore(), SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        await client.create("orders")
        topic = await broker.topics.get(PARTITION)
        producer = TransactionalProducer(client, "tid", 2)
        await producer.begin_session()
        for is_commit in (True, False):
            await producer.send("orders", b"committed" if is_commit else b"aborted")
            await producer.end(is_commit=is_commit)
        await producer.send("orders", b"open")
        await client.produce("orders", build([Record(None, b"beside", 6)]))
        source = ReadUncommitted(topic)
        entries = await source.read(EARLIEST, entries_max=100, bytes_max=1_000_000)
        shown = [entry for entry in entries if source.is_visible(entry)]
        assert {entry.format for entry in shown} == {EntryFormat.PULSAR}
        bodies = [bytes(parse_payload(entry.payload)[1]) for entry in shown]
        assert bodies == [b"committed", b"aborted", b"open", b"beside"]
        assert broker.monitor.statistics().unconvertible == {"kafka": 0, "pulsar": 0}
        assert bytes(parse_payload((await visible(topic))[0].payload)[1]) == b"committed"


async def test_a_topic_of_both_protocols_opens_again_where_sends_are_deduplicated() -> None:
    """K22: what deduplication reads at a takeover has Kafka's transactions in it."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=7)
    async with rooms(store, files, deduplication=True) as broker, kafka_client(broker) as client:
        await client.create("orders")
        topic = await broker.topics.get(PARTITION)
        await publish(topic, build_payload(metadata, b"from pulsar"))
        producer = TransactionalProducer(client, "tid", 2)
        await producer.begin_session()
        for is_commit in (True, False):
            await producer.send("orders", b"committed" if is_commit else b"aborted")
            assert await producer.end(is_commit=is_commit) == 0
    async with rooms(store, files, deduplication=True) as broker, kafka_client(broker) as client:
        assert committed_in(await client.fetch("orders", 0, isolation=READ_COMMITTED)) == [b"from pulsar", b"committed"]
        topic = await broker.topics.get(PARTITION)
        assert topic.deduplication is not None
