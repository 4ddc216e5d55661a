"""Producing to, fetching from and asking about partitions, as any Kafka client does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from broker.kafka.listener import KafkaServices, open_session
from broker.names import TopicName
from storage.metadata.memory import MemoryStore
from tests.support.disk import SimulatedFiles
from tests.support.kafka_batches import batch, marker
from tests.support.kafka_connection import (
    READ_COMMITTED,
    KafkaClient,
    fetch_request,
    kafka_client,
    produce_request,
    records_of,
    values_of,
)
from tests.support.rooms import MESSAGE_BYTES_MAX, Rooms, rooms
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.api_versions import ApiVersionsResponse
from tidewire.wire.kafka.messages.fetch import AbortedTransaction, FetchRequest, FetchResponse, PartitionData
from tidewire.wire.kafka.messages.list_offsets import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, MAX_TIMESTAMP
from tidewire.wire.kafka.messages.produce import ProduceResponse
from tidewire.wire.kafka.messages.topics import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidewire.wire.kafka.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from tidewire.wire.kafka.record_batches import Compression, read_header
from tidewire.wire.kafka.records import Header, Record, build
from txn.marked_log import Ended
from txn.producer_states import Batch, EndMarker

PARTITION = TopicName.parse("persistent://public/default/orders-partition-0")


@asynccontextmanager
async def served(files: SimulatedFiles | None = None) -> AsyncIterator[tuple[Rooms, KafkaClient]]:
    async with rooms(MemoryStore(), files or SimulatedFiles(seed=1)) as broker, kafka_client(broker) as client:
        yield broker, client


def of(*values: bytes, at: int = 1_000) -> bytes:
    """Make a batch of records with these values."""
    return build([Record(None, value, at + number) for number, value in enumerate(values)])


@pytest.mark.parametrize("codec", Compression)
async def test_batches_come_back_as_they_were_sent_at_their_offsets(codec: Compression) -> None:
    """K20: stored bytes are sent; the offset and the epoch stand before the checksum."""
    async with served() as (broker, client):
        await client.create("orders")
        first = build([Record(b"k", b"a", 5, (Header(b"h", None),)), Record(None, None, 6)], codec)
        second = build([Record(b"", b"", 7)], codec)
        assert (await client.produce("orders", first)).base_offset == 0
        assert (await client.produce("orders", second)).base_offset == 2
        data = await client.fetch("orders", 0)
        assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (3, 3, 0)
        assert data.aborted_transactions is None
        assert stored(data) == placed_at(first, 0) + placed_at(second, 2)
        assert records_of(data) == [
            (0, Record(b"k", b"a", 5, (Header(b"h", None),))),
            (1, Record(None, None, 6)),
            (2, Record(b"", b"", 7)),
        ]
        assert (await broker.topics.get(PARTITION)).ledger.next_index == 3


def stored(data: PartitionData) -> bytes:
    """Return the bytes of a fetched partition."""
    records: object = data.records
    assert isinstance(records, bytes)
    return records


def placed_at(made: bytes, offset: int, epoch: int = 0) -> bytes:
    """Return the batch as a consumer gets it."""
    return offset.to_bytes(8) + made[8:12] + epoch.to_bytes(4) + made[16:]


async def test_a_fetch_begins_in_the_middle_of_a_batch_and_may_exceed_its_bytes_by_one() -> None:
    """K40: the whole batch is sent, and the client skips what it did not ask for."""
    async with served() as (_broker, client):
        await client.create("orders")
        for number in range(3):
            await client.produce("orders", of(b"%d" % number * 500, b"x"))
        assert [offset for offset, _value in values_of(await client.fetch("orders", 3))] == [2, 3, 4, 5]
        assert [offset for offset, _value in values_of(await client.fetch("orders", 3, size_max=10))] == [2, 3]
        assert [offset for offset, _value in values_of(await client.fetch("orders", 0, size_max=1_300))] == [0, 1, 2, 3]


async def test_a_fetch_waits_for_records_and_no_longer_than_its_time(autojump_clock: MockClock) -> None:
    """K40: nothing polls; the deadline is the fetch's own."""
    async with served() as (broker, client), kafka_client(broker) as producer:
        await client.create("orders")
        began = trio.current_time()
        assert (await client.fetch("orders", 0, wait_ms=3_000)).high_watermark == 0
        assert trio.current_time() - began == 3
        number = await client.send(fetch_request("orders", 0, wait_ms=60_000), 12)
        await wait_all_tasks_blocked()
        await producer.produce("orders", of(b"a"))
        answered, response = await client.receive(FetchResponse, ApiKey.FETCH, 12)
        assert answered == number
        assert values_of(response.responses[0].partitions[0]) == [(0, b"a")]
        assert trio.current_time() - began == 3


async def test_a_fetch_of_nothing_is_answered_at_once(autojump_clock: MockClock) -> None:
    """K40: a Java consumer that closes its session sends one."""
    request = FetchRequest(max_wait_ms=500, min_bytes=1, session_epoch=-1)
    async with served() as (_broker, client):
        before = trio.current_time()
        answer = await client.ask(request, FetchResponse, 12)
        assert (answer.error_code, answer.responses) == (0, ())
        assert trio.current_time() == before


async def test_a_fetch_waits_for_as_many_bytes_as_it_asks_for(autojump_clock: MockClock) -> None:
    """K40: bytes that a reader may not have yet do not count."""
    async with served() as (broker, client), kafka_client(broker) as producer:
        await client.create("orders")
        await producer.produce("orders", of(b"a" * 300))
        await client.send(fetch_request("orders", 0, wait_ms=60_000, size_min=700), 12)
        await wait_all_tasks_blocked()
        await producer.produce("orders", of(b"b" * 300))
        _number, response = await client.receive(FetchResponse, ApiKey.FETCH, 12)
        assert [offset for offset, _value in values_of(response.responses[0].partitions[0])] == [0, 1]


async def test_a_waiting_fetch_learns_that_its_partition_has_left(autojump_clock: MockClock) -> None:
    """K40, C21: an unloaded partition is asked for elsewhere."""
    async with served() as (broker, client):
        await client.create("orders")
        await client.produce("orders", of(b"a"))
        await client.send(fetch_request("orders", 1, wait_ms=60_000), 12)
        await wait_all_tasks_blocked()
        await broker.topics.unload(PARTITION)
        _number, response = await client.receive(FetchResponse, ApiKey.FETCH, 12)
        assert response.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        data = await client.fetch("orders", 0)
        assert values_of(data) == [(0, b"a")]


async def test_a_client_that_leaves_while_its_fetch_waits_is_noticed(autojump_clock: MockClock) -> None:
    """K40, E16: its connection and its fetch do not stay for the ten minutes that it would have waited."""
    ours, theirs = memory_stream_pair()
    async with served() as (broker, client), trio.open_nursery() as nursery:
        await client.create("orders")
        assert broker.foundation.kafka is not None
        ended = trio.Event()

        async def serve() -> None:
            assert broker.foundation.kafka is not None
            await open_session(theirs, "test", KafkaServices.of(broker), broker.foundation.kafka).run()
            ended.set()

        nursery.start_soon(serve)
        other = KafkaClient(ours)
        await other.send(fetch_request("orders", 0, wait_ms=600_000), 12)
        await wait_all_tasks_blocked()
        assert not ended.is_set()
        began = trio.current_time()
        await ours.aclose()
        await ended.wait()
        assert trio.current_time() == began


async def test_a_request_behind_a_waiting_fetch_is_answered_after_it(autojump_clock: MockClock) -> None:
    """K25: what comes meanwhile is kept, also if it comes in parts."""
    async with served() as (_broker, client), trio.open_nursery() as nursery:
        await client.create("orders")
        first = await client.send(fetch_request("orders", 0, wait_ms=5_000), 12)
        await wait_all_tasks_blocked()
        head = ApiKey.API_VERSIONS.to_bytes(2) + (3).to_bytes(2) + (77).to_bytes(4) + b"\xff\xff\0"
        data = len(head + b"\2a\2b\0").to_bytes(4) + head + b"\2a\2b\0"
        await client.stream.send_all(data[:7])
        await wait_all_tasks_blocked()
        nursery.start_soon(client.stream.send_all, data[7:])
        answered, _response = await client.receive(FetchResponse, ApiKey.FETCH, 12)
        assert answered == first
        second, versions = await client.receive(ApiVersionsResponse, ApiKey.API_VERSIONS, 3)
        assert (second, versions.error_code) == (77, 0)


async def test_no_fetch_session_is_known() -> None:
    """K40: the client is told, and names all partitions then. A response never gives it a session."""
    async with served() as (_broker, client):
        await client.create("orders")
        await client.produce("orders", of(b"a"))
        begun = replace(fetch_request("orders", 0), session_id=0, session_epoch=0)
        answer = await client.ask(begun, FetchResponse, 12)
        assert (answer.error_code, answer.session_id) == (0, 0)
        assert values_of(answer.responses[0].partitions[0]) == [(0, b"a")]
        unknown = await client.ask(replace(begun, session_id=7, session_epoch=1), FetchResponse, 12)
        assert (unknown.error_code, unknown.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ())


async def test_offsets_outside_of_the_log_are_refused() -> None:
    async with served() as (_broker, client):
        await client.create("orders")
        await client.produce("orders", of(b"a", b"b"))
        for offset in (-1, 3):
            assert (await client.fetch("orders", offset)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await client.fetch("orders", 2)).error_code == ErrorCode.NONE


async def test_pipelined_batches_are_answered_in_order() -> None:
    """K25: the second one does not wait for the sync of the first."""
    files = SimulatedFiles(seed=1)
    async with served(files) as (broker, client):
        await client.create("orders")
        await client.produce("orders", of(b"first"))
        ledger = (await broker.topics.get(PARTITION)).ledger
        files.stop()
        numbers = [await client.send(produce_request("orders", of(b"%d" % number)), 9) for number in range(20)]
        await wait_all_tasks_blocked()
        assert (ledger.next_index, ledger.confirmed_index) == (21, 1)
        files.resume()
        answers = [await client.receive(ProduceResponse, ApiKey.PRODUCE, 9) for _ in numbers]
        assert [number for number, _answer in answers] == numbers
        offsets = [answer.responses[0].partition_responses[0].base_offset for _number, answer in answers]
        assert offsets == list(range(1, 21))


async def test_small_requests_of_one_read_share_a_sync() -> None:
    """K25: a client writes to the partitions of a transaction by one request each, and does not wait in between."""
    async with served() as (broker, client):
        await client.create("orders", 10)
        for partition in range(10):
            await client.produce("orders", of(b"first"), partition=partition)
        before = broker.ledgers.statistics().journal.blocks
        requests = [produce_request("orders", of(b"second"), partition=partition) for partition in range(10)]
        last = await client.send_together(requests, 9)
        answers = [await client.receive(ProduceResponse, ApiKey.PRODUCE, 9) for _ in requests]
        assert [number for number, _answer in answers] == list(range(last - 9, last + 1))
        assert broker.ledgers.statistics().journal.blocks == before + 1


async def test_other_connections_have_turns_between_large_requests_of_one_read() -> None:
    """E7: requests of eight kilobytes and more are handled one in each step of the event loop."""
    files = SimulatedFiles(seed=1)
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with served(files) as (_broker, client), trio.open_nursery() as nursery:
        await client.create("orders")
        await client.produce("orders", of(b"first"))
        await client.send_together([produce_request("orders", of(bytes(9_000))) for _ in range(6)], 9)
        nursery.start_soon(take_turns)
        for _ in range(6):
            await client.receive(ProduceResponse, ApiKey.PRODUCE, 9)
        nursery.cancel_scope.cancel()
    assert turns >= 5


async def test_a_repeated_batch_of_a_numbered_producer_is_stored_once() -> None:
    """K23, K24: over two connections, too; a gap is refused."""
    async with served() as (broker, client), kafka_client(broker) as other:
        await client.create("orders")
        first, second = batch(7, 0, 0, 2), batch(7, 0, 2, 1)
        assert (await client.produce("orders", first)).base_offset == 0
        assert (await other.produce("orders", first)).base_offset == 0
        assert (await client.produce("orders", batch(7, 0, 5, 1))).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await client.produce("orders", second)).base_offset == 2
        assert (await client.produce("orders", batch(7, 1, 0, 1))).base_offset == 3
        assert (await client.produce("orders", batch(7, 0, 3, 1))).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert (await client.fetch("orders", 0)).high_watermark == 4


def changed(made: bytes, at: int, new: bytes) -> bytes:
    return made[:at] + new + made[at + len(new) :]


GOOD = of(b"value")
BAD = {
    "empty": (b"", ErrorCode.INVALID_RECORD),
    "cut": (GOOD[:-1], ErrorCode.CORRUPT_MESSAGE),
    "checksum": (changed(GOOD, 17, b"\0\0\0\0"), ErrorCode.CORRUPT_MESSAGE),
    "old format": (changed(GOOD, 16, b"\1"), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "unknown format": (changed(GOOD, 16, b"\7"), ErrorCode.CORRUPT_MESSAGE),
    "too large": (of(b"x" * MESSAGE_BYTES_MAX), ErrorCode.MESSAGE_TOO_LARGE),
    "transactional": (batch(7, 0, 0, in_txn=True), ErrorCode.INVALID_TXN_STATE),
    "negative producer": (batch(-2, 0, 0), ErrorCode.INVALID_RECORD),
    "negative epoch": (batch(7, -1, 0), ErrorCode.INVALID_RECORD),
    "negative sequence": (batch(7, 0, -1), ErrorCode.INVALID_RECORD),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_bad_batch_is_refused_and_changes_nothing(what: str) -> None:
    """K20, E7: the connection goes on, and so does the rest of the request."""
    made, code = BAD[what]
    async with served() as (_broker, client):
        await client.create("orders")
        assert (await client.produce("orders", made)).error_code == code
        assert (await client.produce("orders", GOOD)).base_offset == 0


async def test_without_acknowledgements_there_is_no_response_and_a_refusal_ends_the_connection() -> None:
    async with served() as (broker, client), kafka_client(broker) as other:
        await client.create("orders")
        await other.send(produce_request("orders", GOOD, acks=0), 9)
        assert (await other.produce("orders", GOOD)).base_offset == 1
        await other.send(produce_request("orders", GOOD[:-1], acks=0), 9)
        with pytest.raises(EOFError):
            await other.produce("orders", GOOD)
        assert (await client.produce("orders", GOOD, acks=2)).error_code == ErrorCode.INVALID_REQUIRED_ACKS


async def test_unknown_topics_and_partitions_are_refused_by_name() -> None:
    async with served() as (_broker, client):
        await client.create("orders")
        for topic, partition in (("other", 0), ("orders", 1), ("orders", -1)):
            for answer in (
                await client.produce(topic, GOOD, partition=partition),
                await client.fetch(topic, 0, partition=partition),
                await client.offset(topic, LATEST, partition=partition),
            ):
                assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await client.produce("no/name", GOOD)).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert (await client.produce("orders-partition-0", GOOD)).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_offsets_are_found_by_the_times_of_records() -> None:
    """K39: records, not batches; and times that go back."""
    async with served() as (_broker, client):
        await client.create("orders")
        await client.produce("orders", of(b"a", b"b", b"c", at=100))
        await client.produce("orders", of(b"d", at=50))
        await client.produce("orders", of(b"e", b"f", at=300))
        for timestamp, expected in {0: (100, 0), 101: (101, 1), 103: (300, 4), 301: (301, 5), 302: (-1, -1)}.items():
            found = await client.offset("orders", timestamp)
            assert (found.timestamp, found.offset) == expected
        assert [(await client.offset("orders", at)).offset for at in (EARLIEST, LATEST, MAX_TIMESTAMP)] == [0, 6, 5]
        # All records are on the broker's own disk.
        assert [(await client.offset("orders", at)).offset for at in (EARLIEST_LOCAL, LATEST_TIERED)] == [0, -1]


async def test_the_leader_epoch_of_a_client_is_checked() -> None:
    """K44: another owner has the next epoch, and its records carry it."""
    async with served() as (broker, client):
        await client.create("orders")
        await client.produce("orders", of(b"a"))
        await broker.topics.unload(PARTITION)
        await client.produce("orders", of(b"b"))
        assert (await client.fetch("orders", 0, epoch=0)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (await client.fetch("orders", 0, epoch=2)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        data = await client.fetch("orders", 0, epoch=1)
        first = read_header(stored(data))
        assert [first.leader_epoch, read_header(stored(data), first.size).leader_epoch] == [0, 1]


async def test_what_a_transaction_left_open_is_read_by_uncommitted_readers_alone() -> None:
    """K1, K3, K16: and what it aborted is named to committed ones."""
    async with served() as (broker, client):
        await client.create("orders")
        await client.produce("orders", of(b"a"))
        topic = await broker.topics.get(PARTITION)
        await topic.markers.admit_producer()
        in_txn = Batch(9, 0, 0, 0, is_transactional=True)
        topic.markers.append_batch(batch(9, 0, 0, in_txn=True), in_txn, 1)
        await topic.ledger.confirmed.wait_for(topic.ledger.last_position)
        await client.produce("orders", of(b"c"))
        committed = await client.fetch("orders", 0, isolation=READ_COMMITTED)
        assert (committed.last_stable_offset, committed.high_watermark) == (1, 3)
        assert values_of(committed) == [(0, b"a")]
        assert committed.aborted_transactions == ()
        assert (await client.offset("orders", LATEST, isolation=READ_COMMITTED)).offset == 1
        assert (await client.offset("orders", LATEST)).offset == 3
        uncommitted = await client.fetch("orders", 0)
        assert [offset for offset, _value in values_of(uncommitted)] == [0, 1, 2]
        assert uncommitted.aborted_transactions is None
        ended = Ended(EndMarker(9, 0, 0, bumps_epoch=False), is_commit=False)
        topic.markers.append_marker(marker(9, 0, is_commit=False), ended)
        await topic.readable.wait_for(topic.ledger.last_position)
        committed = await client.fetch("orders", 0, isolation=READ_COMMITTED)
        assert committed.aborted_transactions == (AbortedTransaction(9, 1),)
        assert (committed.last_stable_offset, committed.high_watermark) == (4, 4)


async def test_each_producer_gets_a_number_of_its_own() -> None:
    """K23: without it, Java's producers do not start."""
    async with served() as (broker, client), kafka_client(broker) as other:
        answers = [
            await each.ask(InitProducerIdRequest(None, 60_000), InitProducerIdResponse, 4)
            for each in (client, other, client)
        ]
        assert [(one.error_code, one.producer_epoch) for one in answers] == [(0, 0)] * 3
        assert len({one.producer_id for one in answers} - {-1}) == 3


async def test_clients_learn_where_leader_epochs_ended() -> None:
    """K44: an epoch ends where the next owner began; a later one is not known."""
    async with served() as (broker, client):
        await client.create("orders")
        await client.produce("orders", of(b"a", b"b"))
        await broker.topics.unload(PARTITION)
        await client.produce("orders", of(b"c"))
        for epoch, expected in {0: (0, 2), 1: (1, 3), 2: (-1, -1), -1: (-1, -1)}.items():
            wanted = OffsetForLeaderTopic("orders", (OffsetForLeaderPartition(0, 1, epoch),))
            answer = await client.ask(OffsetForLeaderEpochRequest(topics=(wanted,)), OffsetForLeaderEpochResponse, 4)
            (one,) = answer.topics[0].partitions
            assert (one.error_code, one.leader_epoch, one.end_offset) == (0, *expected)
