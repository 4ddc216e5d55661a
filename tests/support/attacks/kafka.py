"""Attacks over Kafka's protocol: broken requests and batches, and more valid ones than any real client sends."""

import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from random import Random
from typing import Any, Final

import trio

from tests.support.attacks.attacker import LOST, READ_BYTES, Attacker
from tests.support.attacks.siege import Attack
from tests.support.kafka_batches import batch
from tests.support.kafka_connection import KafkaClient, fetch_request, produce_request
from tests.support.kafka_requests import RECORDED, framed
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidewire.wire.kafka.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tidewire.wire.kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidewire.wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidewire.wire.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidewire.wire.kafka.messages.produce import ProduceResponse
from tidewire.wire.kafka.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tidewire.wire.kafka.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tidewire.wire.kafka.record_batches import Compression
from tidewire.wire.kafka.records import Record, build

TOPICS: Final = tuple(f"attacked-{number}" for number in range(4))
PARTS: Final = 3_000
BOMB_BYTES: Final = 40 * 1024 * 1024
REQUEST_BYTES_MAX: Final = 5 * 1024 * 1024
HALF_OPEN: Final = 300
SILENT: Final = 50
SMALL: Final = build([Record(b"k", b"value", 1)])


class AttackerKafkaClient(KafkaClient):
    """A connection that the broker may close at any time."""

    async def _take(self, size: int) -> bytes:
        try:
            return await super()._take(size)
        except EOFError:
            raise trio.BrokenResourceError from None


@asynccontextmanager
async def connected(attacker: Attacker) -> AsyncIterator[AttackerKafkaClient]:
    """Yield a connection of Kafka's protocol."""
    assert attacker.kafka is not None, "the broker serves Kafka's clients"
    async with attacker.stream(attacker.kafka) as stream:
        yield AttackerKafkaClient(stream)


async def prepared(attacker: Attacker) -> None:
    """Make the attacked topics, unless they exist."""
    async with connected(attacker) as client:
        made = CreateTopicsRequest(tuple(CreatableTopic(name, 4, 1) for name in TOPICS))
        await client.ask(made, CreateTopicsResponse, 7)


async def random_bytes(attacker: Attacker) -> None:
    """Send random bytes, and requests with random sizes in front of them."""

    async def once(attacker: Attacker, chance: Random) -> None:
        async with connected(attacker) as client:
            size = chance.choice((0, 1, 7, 100, 70_000, REQUEST_BYTES_MAX * 2, 2**31 - 1, 2**31, 2**32 - 1))
            if chance.random() < 0.7:
                await client.stream.send_all(struct.pack(">I", size))
            await client.stream.send_all(chance.randbytes(chance.choice((1, 7, 100, 5_000, 100_000))))
            await ended(attacker, client)

    await attacker.in_parallel(8, once)


async def damaged_requests(attacker: Attacker) -> None:
    """Send recorded requests that are cut, longer than they say, or changed in some bytes."""

    async def once(attacker: Attacker, chance: Random) -> None:
        async with connected(attacker) as client, trio.open_nursery() as reading:
            reading.start_soon(read, client.stream)
            with suppress(*LOST):
                for _ in range(30):
                    request = bytearray(chance.choice(RECORDED))
                    for _change in range(chance.randrange(4)):
                        request[chance.randrange(len(request))] = chance.randrange(256)
                    if chance.random() < 0.3:
                        del request[chance.randrange(8, len(request)) :]
                    elif chance.random() < 0.3:
                        request += chance.randbytes(chance.randrange(1, 40))
                    await client.stream.send_all(framed(bytes(request)))
                    attacker.counts["requests"] += 1
            reading.cancel_scope.cancel()

    await attacker.in_parallel(8, once)


async def unknown_requests(attacker: Attacker) -> None:
    """Send requests of kinds and versions that nobody serves. Each ends its connection, or ApiVersions refuses."""

    async def once(attacker: Attacker, chance: Random) -> None:
        key, version = chance.choice(((-1, 0), (4, 0), (18, 99), (68, 0), (1, 200), (0, -1), (3, 14), (999, 0)))
        head = struct.pack(">hhih", key, version, 7, -1)
        async with connected(attacker) as client:
            await client.stream.send_all(framed(head + bytes(chance.randrange(50))))
            attacker.counts["requests"] += 1
            if key == 18:
                _number, refused = int.from_bytes((await client._take(8))[4:]), await client._take(2)
                if int.from_bytes(refused) != ErrorCode.UNSUPPORTED_VERSION:
                    attacker.complaints.append(f"ApiVersions in version {version} was answered with {refused!r}")
            else:
                await ended(attacker, client)

    await attacker.in_parallel(8, once)


def damaged_batch(chance: Random) -> tuple[bytes, set[int]]:
    """A batch that breaks a rule, and the codes for it."""
    made = bytearray(build([Record(b"k", b"v" * 50, 1)] * 3))
    kind = chance.randrange(6)
    if kind == 0:
        made[chance.randrange(61, len(made))] ^= 0xFF
    elif kind == 1:
        made[16] = chance.choice((0, 1))
        return bytes(made), {ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT}
    elif kind == 2:
        made[16] = 3
    elif kind == 3:
        made[8:12] = chance.choice((0, 48, len(made), 2**31 - 1)).to_bytes(4)
    elif kind == 4:
        del made[chance.randrange(1, len(made)) :]
    else:
        made[57:61] = chance.choice((0, 2, 4, 2**31 - 1)).to_bytes(4)
    return bytes(made), {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}


async def damaged_batches(attacker: Attacker) -> None:
    """Produce batches with wrong checksums, formats, sizes and counts. Good ones between them are stored."""
    await prepared(attacker)

    async def once(attacker: Attacker, chance: Random) -> None:
        async with connected(attacker) as client:
            for _ in range(20):
                bad, codes = damaged_batch(chance)
                refused = await client.produce(chance.choice(TOPICS), bad)
                good = await client.produce(chance.choice(TOPICS), SMALL)
                attacker.counts["batches"] += 2
                if refused.error_code not in codes or good.error_code:
                    attacker.complaints.append(f"{bad[:70]!r} was answered with {refused} and a good one with {good}")

    await attacker.in_parallel(4, once)


async def sequences(attacker: Attacker) -> None:
    """Produce with gaps in sequences, stale epochs and numbers of other producers."""
    await prepared(attacker)

    async def once(attacker: Attacker, chance: Random) -> None:
        async with connected(attacker) as client:
            topic = chance.choice(TOPICS)
            made = await client.ask(InitProducerIdRequest(None, 60_000), InitProducerIdResponse, 4)
            producer = made.producer_id
            for sequence in range(5):
                if (await client.produce(topic, batch(producer, 1, sequence))).error_code:
                    attacker.complaints.append(f"the sequence {sequence} of producer {producer} was refused")
            for epoch, sequence, codes in (
                (1, chance.randrange(6, 2**31), {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}),
                (2, 7, {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}),
                (0, 5, {ErrorCode.INVALID_PRODUCER_EPOCH}),
                (1, 4, {ErrorCode.NONE}),
            ):
                answer = await client.produce(topic, batch(producer, epoch, sequence))
                attacker.counts["batches"] += 1
                if answer.error_code not in codes:
                    attacker.complaints.append(f"epoch {epoch}, sequence {sequence}: {answer}")

    await attacker.in_parallel(4, once)


async def members(attacker: Attacker) -> None:
    """Join groups again and again without coming back, and speak for members that nobody knows."""

    async def once(attacker: Attacker, chance: Random) -> None:
        group = f"attacked-{chance.randrange(20)}"
        async with connected(attacker) as client, trio.open_nursery() as reading:
            answer = await client.ask(HeartbeatRequest(group, chance.randrange(-2, 9), "nobody"), HeartbeatResponse, 3)
            if answer.error_code == ErrorCode.NONE:
                attacker.complaints.append(f"a heartbeat of an unknown member of {group} was taken")
            stranger = SyncGroupRequest(group, 1, "nobody")
            if (await client.ask(stranger, SyncGroupResponse, 3)).error_code == ErrorCode.NONE:
                attacker.complaints.append(f"an unknown member of {group} got an assignment")
            protocols = (JoinGroupRequestProtocol("range", chance.randbytes(chance.choice((1, 100, 50_000)))),)
            await client.send(JoinGroupRequest(group, 6_000, 6_000, "", None, "consumer", protocols), 3)
            attacker.counts["joins"] += 1
            reading.start_soon(read, client.stream)
            await trio.sleep(chance.random() / 5)
            reading.cancel_scope.cancel()

    await attacker.in_parallel(20, once)


async def bombs(attacker: Attacker) -> None:
    """Store batches that inflate a thousand times, and make the broker look into them."""
    await prepared(attacker)
    codecs = (Compression.GZIP, Compression.ZSTD, Compression.LZ4, Compression.SNAPPY)
    # Made once, in a thread: it costs the attackers more than the broker, and the witnesses share their loop.
    made = {
        codec: await trio.to_thread.run_sync(build, [Record(None, bytes(BOMB_BYTES), 5)], codec) for codec in codecs
    }

    async def once(attacker: Attacker, chance: Random) -> None:
        async with connected(attacker) as client:
            bomb = made[chance.choice([codec for codec in codecs if len(made[codec]) < REQUEST_BYTES_MAX])]
            topic = chance.choice(TOPICS)
            answer = await client.produce(topic, bomb)
            if answer.error_code not in {ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE}:
                attacker.complaints.append(f"a batch that inflates was answered with {answer}")
            for moment in (1, 5, 2**50, -3):
                await client.offset(topic, moment)
            await client.fetch(topic, 0, size_max=1_000)
            attacker.counts["bombs"] += 1

    await attacker.in_parallel(4, once)


def huge_requests(chance: Random) -> tuple[tuple[object, type[Any], int], ...]:
    """Requests with thousands of parts."""
    names = [f"{chance.choice(('/', 'none-', ''))}{number % 50}" for number in range(PARTS)]
    topic = chance.choice(TOPICS)
    listed = tuple(ListOffsetsPartition(number, timestamp=chance.choice((-1, -2, -3, 5))) for number in range(PARTS))
    committed = tuple(OffsetCommitRequestPartition(number, 1, committed_metadata="m") for number in range(PARTS))
    return (
        (MetadataRequest(tuple(MetadataRequestTopic(name=name) for name in names), False), MetadataResponse, 12),
        (
            FetchRequest(topics=(FetchTopic(topic, tuple(FetchPartition(number) for number in range(PARTS))),)),
            FetchResponse,
            12,
        ),
        (ListOffsetsRequest(topics=(ListOffsetsTopic(topic, listed),)), ListOffsetsResponse, 7),
        (
            OffsetCommitRequest("attacked", topics=(OffsetCommitRequestTopic(topic, committed),)),
            OffsetCommitResponse,
            8,
        ),
        (
            AddPartitionsToTxnRequest("attacked", 1, 0, (AddPartitionsToTxnTopic(topic, tuple(range(PARTS))),)),
            AddPartitionsToTxnResponse,
            3,
        ),
        (CreateTopicsRequest(tuple(CreatableTopic(name, 0, 1) for name in names)), CreateTopicsResponse, 7),
    )


async def many_partitions(attacker: Attacker) -> None:
    """Ask for thousands of partitions, topics and offsets in one request."""
    await prepared(attacker)

    async def once(attacker: Attacker, chance: Random) -> None:
        async with connected(attacker) as client:
            for request, response, version in huge_requests(chance):
                await client.ask(request, response, version)
                attacker.counts["requests"] += 1

    await attacker.in_parallel(3, once)


async def transactions(attacker: Attacker) -> None:
    """Begin transactions and never end them, and end those of others with wrong numbers."""
    await prepared(attacker)

    async def once(attacker: Attacker, chance: Random) -> None:
        name = f"attacked-{chance.randrange(200)}"
        async with connected(attacker) as client:
            made = await client.ask(InitProducerIdRequest(name, 60_000), InitProducerIdResponse, 4)
            if made.error_code:
                return  # Another attacker's transaction of this name is ending.
            who = name, made.producer_id, made.producer_epoch
            place = (AddPartitionsToTxnTopic(chance.choice(TOPICS), (chance.randrange(4),)),)
            await client.ask(AddPartitionsToTxnRequest(*who, place), AddPartitionsToTxnResponse, 3)
            sent = batch(made.producer_id, made.producer_epoch, 0, in_txn=True)
            await client.ask(
                produce_request(place[0].name, sent, partition=place[0].partitions[0], transactional_id=name),
                ProduceResponse,
                9,
            )
            wrong = EndTxnRequest(name, made.producer_id, chance.choice((-1, 5_000, 32_767)), True)
            if (await client.ask(wrong, EndTxnResponse, 3)).error_code == ErrorCode.NONE:
                attacker.complaints.append(f"{wrong} was taken, although the epoch is {made.producer_epoch}")
            attacker.counts["transactions"] += 1

    await attacker.in_parallel(6, once)


async def half_open(attacker: Attacker) -> None:
    """Open connections that send nothing, or a part of a request, and stay open."""

    async def begin(client: KafkaClient, chance: Random) -> None:
        request = framed(chance.choice(RECORDED))
        await client.stream.send_all(request[: chance.randrange(len(request))])

    await _hold(attacker, HALF_OPEN, begin)


async def stopped_requests(attacker: Attacker) -> None:
    """Stop in the middle of a Produce request of 5 MB."""

    async def begin(client: KafkaClient, chance: Random) -> None:
        await client.stream.send_all((REQUEST_BYTES_MAX).to_bytes(4) + bytes(chance.randrange(REQUEST_BYTES_MAX)))
        attacker.counts["stopped requests"] += 1

    await _hold(attacker, 100, begin)


async def never_read(attacker: Attacker) -> None:
    """Ask for what fills the connection again and again, and read nothing."""
    await prepared(attacker)
    async with connected(attacker) as client:
        for _ in range(20):
            await client.produce(TOPICS[0], build([Record(None, bytes(500_000), 1)]))

    async def fall_silent(client: KafkaClient, _chance: Random) -> None:
        for _ in count():
            await client.send(fetch_request(TOPICS[0], 0, size_max=1 << 30), 12)
            await client.send(MetadataRequest(None), 12)
            attacker.counts["unread requests"] += 2

    await _hold(attacker, SILENT, fall_silent)


async def storm(attacker: Attacker) -> None:
    """Open and close connections, some of them while a fetch waits."""
    await prepared(attacker)

    async def once(attacker: Attacker, chance: Random) -> None:
        async with connected(attacker) as client:
            if chance.random() < 0.7:
                await client.send(fetch_request(chance.choice(TOPICS), 0, wait_ms=600_000, size_min=1 << 30), 12)

    await attacker.in_parallel(20, once)


async def read(stream: trio.abc.Stream) -> None:
    """Read and discard everything."""
    with suppress(*LOST):
        while await stream.receive_some(READ_BYTES):
            pass


async def ended(attacker: Attacker, client: KafkaClient) -> None:
    """Stop sending, and wait until the broker closes the connection."""
    assert isinstance(client.stream, trio.SocketStream), "attackers use sockets"
    with suppress(*LOST):
        await client.stream.send_eof()
    await attacker.ends(client.stream)


async def _hold(attacker: Attacker, connections: int, begin: Callable[[KafkaClient, Random], Awaitable[None]]) -> None:
    """Open this many connections, start each in its own way, and keep them until the time is over."""

    async def one(attacker: Attacker, chance: Random) -> None:
        async with connected(attacker) as client:
            with suppress(*LOST):
                await begin(client, chance)
            await trio.sleep_until(attacker.until)

    await attacker.in_parallel(connections, one)


ATTACKS: Final = (
    Attack("kafka.random-bytes", random_bytes),
    Attack("kafka.damaged-requests", damaged_requests),
    Attack("kafka.unknown-requests", unknown_requests),
    Attack("kafka.damaged-batches", damaged_batches),
    Attack("kafka.sequences", sequences),
    Attack("kafka.members", members),
    Attack("kafka.bombs", bombs),
    Attack("kafka.many-partitions", many_partitions),
    Attack("kafka.transactions", transactions),
    Attack("kafka.half-open", half_open),
    Attack("kafka.stopped-requests", stopped_requests),
    Attack("kafka.never-read", never_read),
    Attack("kafka.storm", storm),
)
