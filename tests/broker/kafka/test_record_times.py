"""Searches by the times of records: what they answer, what they read, and how they share the event loop."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.kafka import record_times
from broker.kafka.conversion import ToKafka
from broker.kafka.record_times import NOTHING, Found, RecordTimes
from broker.names import TopicName
from broker.topic import Topic
from broker.traffic import Traffic
from storage.entry import Entry
from storage.ledger_record import NO_RECORDS, UNKNOWN_TIME
from storage.metadata.memory import MemoryStore
from storage.position import Position
from tests.support.disk import SimulatedFiles
from tests.support.examples import examples
from tests.support.kafka_batches import batch, marker
from tests.support.kafka_connection import READ_COMMITTED, KafkaClient, kafka_client
from tests.support.rooms import Rooms, publish, rooms
from tidewire.wire.kafka.messages.list_offsets import MAX_TIMESTAMP
from tidewire.wire.kafka.record_batches import Compression
from tidewire.wire.kafka.records import Header, Record, build
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from txn.marked_log import Ended
from txn.producer_states import Batch, EndMarker

PARTITION = TopicName.parse("persistent://public/default/orders-partition-0")


@asynccontextmanager
async def served(store: MemoryStore, files: SimulatedFiles) -> AsyncIterator[tuple[Rooms, KafkaClient, Topic]]:
    async with rooms(store, files) as broker, kafka_client(broker) as client:
        if not await broker.layouts.is_made(PARTITION):
            await client.create("orders")
        yield broker, client, await broker.topics.get(PARTITION)


def at(*times: int, codec: Compression = Compression.NONE) -> bytes:
    return build([Record(None, b"v", moment) for moment in times], codec)


async def roll(topic: Topic) -> None:
    """Let another ledger take over, and its end be recorded."""
    before = topic.ledger.next_position.ledger
    topic.ledger.request_roll()
    with trio.fail_after(5):
        while topic.ledger.next_position.ledger == before or not all(info.closed for info in topic.ledger.closed):
            await trio.lowlevel.checkpoint()


@contextmanager
def reads_counted(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Position]]:
    """List the entries that the ledger reads."""
    read = topic.ledger.read
    seen: list[Position] = []

    async def counted(start: Position, *, upto: Position, entries_max: int, bytes_max: int) -> list[Entry]:
        found = await read(start, upto=upto, entries_max=entries_max, bytes_max=bytes_max)
        seen.extend(entry.position for entry in found)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(topic.ledger, "read", counted)
        yield seen


@given(
    batches=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), max_size=12),
    rolls=st.sets(st.integers(0, 11)),
    deleted=st.integers(0, 20),
    end=st.integers(0, 50),
    restarts=st.booleans(),
)
@settings(max_examples=examples(25), deadline=None)
def test_searches_answer_what_a_look_at_every_record_does(
    batches: list[list[int]], rolls: set[int], deleted: int, end: int, restarts: bool
) -> None:
    """K38, K39: times that do not rise, records and not batches, an end within the log, and deleted records."""

    async def story() -> None:
        store, files = MemoryStore(), SimulatedFiles(seed=1)
        async with served(store, files) as (_broker, client, topic):
            for number, times in enumerate(batches):
                await client.produce("orders", at(*times))
                if number in rolls:
                    await roll(topic)
            every = [time for times in batches for time in times]
            start = min(deleted, len(every))
            await topic.delete_below(start)
            records = [Found(time, offset) for offset, time in enumerate(every)][start : min(end, len(every))]
            if not restarts:
                await compare(topic, records)
        if restarts:
            async with served(store, files) as (_broker, _client, topic):
                await compare(topic, records)

    async def compare(topic: Topic, records: list[Found]) -> None:
        times = RecordTimes(ToKafka(Traffic()))
        for _ in range(2):
            for moment in range(32):
                expected = next((found for found in records if found.timestamp_ms >= moment), NOTHING)
                assert await times.first_at(topic, moment, end) == expected
            latest = max(records, key=lambda found: (found.timestamp_ms, -found.offset), default=NOTHING)
            assert await times.latest(topic, end) == latest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_times, "BLOCK_BYTES", 150)
        trio.run(story)


async def test_a_ledger_that_cannot_have_the_record_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """K39: the record of the ledgers says so, also after a restart."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with served(store, files) as (broker, client, topic):
        for times in ((10, 40), (20,), (30,)):
            await client.produce("orders", at(*times))
            await roll(topic)
        assert [topic.ledger.latest_record_ms(info.id) for info in topic.ledger.closed] == [40, 20, 30]
        await broker.topics.unload(PARTITION)
    async with served(store, files) as (_broker, client, topic):
        first, second, third = [info.id for info in topic.ledger.closed]
        assert [topic.ledger.latest_record_ms(ledger) for ledger in (first, second, third)] == [40, 20, 30]
        with reads_counted(topic, monkeypatch) as seen:
            assert (await client.offset("orders", 41)).offset == -1
            assert not seen
            assert (await client.offset("orders", 35)).offset == 1
            assert {position.ledger for position in seen} == {first}
            seen.clear()
            assert (await client.offset("orders", MAX_TIMESTAMP)).offset == 1
            assert {position.ledger for position in seen} == {first}


async def test_what_was_read_once_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """K39: one more search reads one block, and what was written since."""
    monkeypatch.setattr(record_times, "BLOCK_BYTES", 1)
    async with served(MemoryStore(), SimulatedFiles(seed=1)) as (_broker, client, topic):
        for moment in range(100):
            await client.produce("orders", at(moment))
        assert (await client.offset("orders", 90)).offset == 90
        await client.produce("orders", at(1_000))
        with reads_counted(topic, monkeypatch) as seen:
            assert (await client.offset("orders", 50)).offset == 50
            assert [position.entry for position in seen] == [50]
            seen.clear()
            assert (await client.offset("orders", 1_000)).offset == 100
            assert len(seen) <= 12


async def test_a_ledger_after_a_crash_is_searched_by_reading_it() -> None:
    """K39: what nobody has recorded is unknown, and not empty."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with served(store, files) as (_broker, client, topic):
        await client.produce("orders", at(10, 40))
    async with served(store, files) as (_broker, client, topic):
        (left,) = topic.ledger.closed
        assert topic.ledger.latest_record_ms(left.id) == UNKNOWN_TIME
        assert (await client.offset("orders", 35)).offset == 1
        assert (await client.offset("orders", MAX_TIMESTAMP)).offset == 1


async def test_entries_of_pulsars_clients_are_searched_too() -> None:
    """K39: their times are known when they are converted."""
    async with served(MemoryStore(), SimulatedFiles(seed=1)) as (_broker, client, topic):
        await client.produce("orders", at(10))
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=7, event_time=30)
        await publish(topic, build_payload(metadata, b"from pulsar"))
        await client.produce("orders", at(20))
        assert topic.ledger.latest_record_ms(topic.ledger.last_position.ledger) == UNKNOWN_TIME
        found = [await client.offset("orders", moment) for moment in (15, 31, MAX_TIMESTAMP)]
        assert [(one.timestamp, one.offset) for one in found] == [(30, 1), (-1, -1), (30, 1)]


async def test_markers_and_what_is_undecided_are_no_answers() -> None:
    """K39: nothing at or above the last stable offset for READ_COMMITTED; a marker's time is no record's."""
    async with served(MemoryStore(), SimulatedFiles(seed=1)) as (_broker, client, topic):
        await client.produce("orders", at(10))
        await topic.markers.admit_producer()
        in_txn = Batch(9, 0, 0, 0, is_transactional=True)
        topic.markers.append_batch(batch(9, 0, 0, in_txn=True), in_txn, 1)
        await topic.ledger.confirmed.wait_for(topic.ledger.last_position)
        await client.produce("orders", at(70))
        assert (await client.offset("orders", 50)).offset == 1
        assert (await client.offset("orders", MAX_TIMESTAMP)).offset == 1
        assert (await client.offset("orders", 50, isolation=READ_COMMITTED)).offset == -1
        assert (await client.offset("orders", MAX_TIMESTAMP, isolation=READ_COMMITTED)).offset == 0
        ended = Ended(EndMarker(9, 0, 0, bumps_epoch=False), is_commit=True)
        topic.markers.append_marker(marker(9, 0, is_commit=True, timestamp_ms=5_000), ended)
        await topic.readable.wait_for(topic.ledger.last_position)
        assert (await client.offset("orders", 50, isolation=READ_COMMITTED)).offset == 1
        assert (await client.offset("orders", 1_001, isolation=READ_COMMITTED)).offset == -1


@pytest.mark.parametrize("what", ["records", "headers"])
async def test_no_searched_batch_stops_the_others(what: str) -> None:
    """E7: neither many records nor many headers are read without pauses."""
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    headers = (Header(b"", b""),) * 2_000 if what == "headers" else ()
    records = [Record(None, b"", 1, headers) for _ in range(10 if headers else 20_000)]
    async with served(MemoryStore(), SimulatedFiles(seed=1)) as (_broker, client, topic):
        await client.produce("orders", build(records, Compression.GZIP))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_turns)
            found = await RecordTimes(ToKafka(Traffic())).latest(topic, topic.ledger.confirmed_index)
            nursery.cancel_scope.cancel()
        assert found == Found(1, 0)
    # The few turns of the reads themselves do not reach half of this.
    assert turns >= (10 if headers else 40)


async def test_searches_at_once_remember_every_entry_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """K39: both read the same entries, and what one has remembered is right for the other."""
    monkeypatch.setattr(record_times, "BLOCK_BYTES", 200)
    async with served(MemoryStore(), SimulatedFiles(seed=1)) as (_broker, client, topic):
        for moment in range(12):
            await client.produce("orders", at(moment))
        read = topic.ledger.read

        async def slow(start: Position, *, upto: Position, entries_max: int, bytes_max: int) -> list[Entry]:
            await trio.lowlevel.checkpoint()
            return await read(start, upto=upto, entries_max=min(entries_max, 2), bytes_max=bytes_max)

        monkeypatch.setattr(topic.ledger, "read", slow)
        times = RecordTimes(ToKafka(Traffic()))
        alone = RecordTimes(ToKafka(Traffic()))
        assert await alone.first_at(topic, 11, 12) == Found(11, 11)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(times.first_at, topic, 11, 12)
        assert times.block_count == alone.block_count
        assert [(await times.first_at(topic, moment, 12)).offset for moment in range(12)] == list(range(12))


async def test_blocks_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """E16: the ledgers that were searched least recently are forgotten, and read again."""
    monkeypatch.setattr(record_times, "BLOCK_BYTES", 1)
    monkeypatch.setattr(record_times, "BLOCKS_MAX", 8)
    monkeypatch.setattr(record_times, "ENTRIES_AT_ONCE", 1)
    async with served(MemoryStore(), SimulatedFiles(seed=1)) as (_broker, client, topic):
        for moment in range(18):
            await client.produce("orders", at(moment))
            if moment % 6 == 5:
                await roll(topic)
        times = RecordTimes(ToKafka(Traffic()))
        for moment in (17, 3, 9, 16, 0):
            assert await times.first_at(topic, moment, 18) == Found(moment, moment)
            assert times.block_count <= 8


async def test_a_ledger_without_records_is_known_to_have_none() -> None:
    """K39: a marker alone keeps no search busy."""
    async with served(MemoryStore(), SimulatedFiles(seed=1)) as (_broker, _client, topic):
        await topic.markers.admit_producer()
        ended = Ended(EndMarker(9, 0, 0, bumps_epoch=False), is_commit=True)
        topic.markers.append_marker(marker(9, 0, is_commit=True), ended)
        await topic.ledger.confirmed.wait_for(topic.ledger.last_position)
        assert topic.ledger.latest_record_ms(topic.ledger.last_position.ledger) == NO_RECORDS
