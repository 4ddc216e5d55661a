"""The largest legal requests of clients. Each flood is one legal way to demand much of a broker at once.

A flood gets a `Stage` with a running broker, and returns when the broker has answered. It asserts that the answers are
correct. Meanwhile `scripts/stalls.py` measures how long single steps of the broker's event loop take.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import trio

import tests.support.wire
from broker.addresses import Address
from broker.pulsar.sizes import IDS_BYTES_MAX, METADATA_BYTES_MAX
from tests.support.wire import WireClient, message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.frames import encode_command, encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import message_id, position

Type = pb.BaseCommand.Type
SHARED: Final = pb.CommandSubscribe.Shared
EARLIEST: Final = pb.CommandSubscribe.Earliest
SECONDS_MAX: Final = 60


class Stage:
    """A running broker, and a call that begins the measurement."""

    def __init__(self, pulsar: Address, http: Address, begin: Callable[[], None]) -> None:
        self._pulsar = pulsar
        self._http = http
        self.begin = begin
        """Begin the measurement, after the preparation."""

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[WireClient]:
        """Open another connection."""
        tests.support.wire.ANSWER_SECONDS_MAX = SECONDS_MAX
        stream = await trio.open_tcp_stream(*self._pulsar)
        async with stream:
            client = WireClient(stream)
            assert (await client.ask(commands.connect("flood"))).type == Type.CONNECTED
            yield client

    async def rest(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Make one HTTP request, and return the answer's body."""
        async with await trio.open_tcp_stream(*self._http) as stream:
            head = f"{method} {path} HTTP/1.1\r\nhost: {self._http.host}:{self._http.port}\r\nconnection: close\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            await stream.send_all(head.encode() + body)
            answer = bytearray()
            with trio.fail_after(SECONDS_MAX):
                while data := await stream.receive_some(1 << 20):
                    answer += data
        first, _, rest = bytes(answer).partition(b"\r\n")
        assert first.split()[1].startswith(b"2"), first + rest[:300]
        return rest.partition(b"\r\n\r\n")[2]

    async def fill(self, topic: str, count: int, payload: bytes | None = None) -> None:
        """Store `count` messages."""
        async with self.connected() as client:
            assert (await client.produce(1, topic)).type == Type.PRODUCER_SUCCESS
            await send_many(client, count, message() if payload is None else payload)


async def send_many(client: WireClient, count: int, payload: bytes, txn: tuple[int, int] | None = None) -> None:
    """Send with producer 1, pipelined, and wait for all receipts."""

    async def send() -> None:
        for start in range(0, count, 500):
            frames = [
                encode_payload_command(commands.send(1, number, txn=txn), payload)
                for number in range(start, min(start + 500, count))
            ]
            await client.stream.send_all(b"".join(frames))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        for _ in range(count):
            answer = await client.receive()
            assert answer.type == Type.SEND_RECEIPT, answer


async def consume(client: WireClient, topic: str, count: int, name: str = "s") -> list[pb.MessageIdData]:
    """Receive `count` messages with consumer 1 of a shared subscription, without acknowledging them."""
    asked = commands.subscribe(topic, name, 1, 1, sub_type=SHARED, initial_position=EARLIEST)
    answer = await client.ask(asked)
    assert answer.type == Type.SUCCESS, answer
    await client.send(commands.flow(1, 2 * count))
    return [(await client.receive()).message.message_id for _ in range(count)]


def small(ids: list[pb.MessageIdData]) -> list[pb.MessageIdData]:
    """Return the ids as clients send them in ACKs: without the partition."""
    made = []
    for given in ids:
        only = pb.MessageIdData()
        only.ledger_id, only.entry_id = given.ledger_id, given.entry_id
        made.append(only)
    return made


def plain(name: str) -> str:
    """Return a new regular topic."""
    return f"persistent://public/default/{name}"


def scalable(name: str) -> str:
    """Create a scalable topic."""
    return f"topic://public/default/{name}"


async def small_commands(stage: Stage) -> None:
    """Pipeline 100,000 PINGs."""
    async with stage.connected() as client:
        stage.begin()
        data = encode_command(commands.ping()) * 1000
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                for _ in range(100):
                    await client.stream.send_all(data)

            nursery.start_soon(send)
            for _ in range(100_000):
                await client.receive()


async def lookups(stage: Stage) -> None:
    """Pipeline 20,000 LOOKUPs."""
    async with stage.connected() as client:
        stage.begin()
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                for number in range(20_000):
                    await client.send(commands.lookup(plain(f"x{number % 100}"), number))

            nursery.start_soon(send)
            for _ in range(20_000):
                await client.receive()


async def small_sends(stage: Stage) -> None:
    """Pipeline 30,000 small messages."""
    stage.begin()
    await stage.fill(plain("small"), 30_000)


async def large_sends(stage: Stage) -> None:
    """Pipeline 20 messages of 5 MB, and receive them."""
    stage.begin()
    await stage.fill(plain("large"), 20, message(bytes(5_000_000)))
    async with stage.connected() as client:
        await consume(client, plain("large"), 20)


async def large_metadata(stage: Stage) -> None:
    """Send 30 batches whose metadata are full of properties, and receive them."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=2)
    metadata.num_chunks_from_msg, metadata.uuid = 1, "u"
    while metadata.ByteSize() < METADATA_BYTES_MAX - 10_000:
        for _ in range(500):
            metadata.properties.add(key="k", value="v")
    payload = build_payload(metadata, b"xx")
    stage.begin()
    async with stage.connected() as client:
        await client.produce(1, plain("metadata"))
        for number in range(30):
            await client.send_payload(commands.send(1, number, num_messages=2), payload)
        for _ in range(30):
            answer = await client.receive()
            assert answer.type == Type.SEND_RECEIPT, answer
    async with stage.connected() as client:
        await consume(client, plain("metadata"), 30)


async def large_ack_set(stage: Stage) -> None:
    """Send an ACK with the most words that a batch may have, eight times."""
    await stage.fill(plain("words"), 8)
    async with stage.connected() as client:
        ids = await consume(client, plain("words"), 8)
        stage.begin()
        for given in ids:
            await client.send(commands.ack(1, [message_id(*position(given), ack_set=[-1] * 13_654)]))
        await client.receives_nothing_more()


async def scattered_acks(stage: Stage) -> None:
    """Acknowledge every second one of 50,000 messages, 25,000 in one ACK, and then the rest in one ACK."""
    await stage.fill(plain("scattered"), 50_000)
    async with stage.connected() as client:
        ids = small(await consume(client, plain("scattered"), 50_000))
        stage.begin()
        for part in (ids[1::2], ids[::2]):
            command = commands.ack(1, part)
            assert command.ByteSize() <= IDS_BYTES_MAX
            await client.send(command)
            await client.receives_nothing_more()
        await trio.sleep(0.5)


async def acks_in_a_transaction(stage: Stage) -> None:
    """Acknowledge 20,000 messages in one transaction, 10,000 per command, and commit it; then abort as many."""
    topic = scalable("txn-acks")
    await stage.rest("PUT", "/admin/v2/scalable/public/default/txn-acks?numInitialSegments=1")
    async with stage.connected() as client:
        answer = await client.ask(commands.scalable_topic_lookup(1, topic))
        segment = answer.scalable_topic_update.dag.segments[0]
        name = f"segment://public/default/txn-acks/{segment.hash_start:04x}-{segment.hash_end:04x}-{segment.segment_id}"
    await stage.fill(name, 40_000)
    async with stage.connected() as client:
        ids = small(await consume(client, name, 40_000))
        stage.begin()
        for start, commit in ((0, True), (20_000, False)):
            answer = await client.ask(commands.new_txn(5, 0, 100_000))
            txn = (answer.new_txn_response.txnid_most_bits, answer.new_txn_response.txnid_least_bits)
            for half in (0, 10_000):
                part = ids[start + half : start + half + 10_000]
                answer = await client.ask(commands.ack(1, part, txn=txn, request_id=6))
                assert not answer.ack_response.HasField("error"), answer
            answer = await client.ask(commands.end_txn(8, txn, commit=commit))
            assert not answer.end_txn_response.HasField("error"), answer
        await trio.sleep(0.5)


async def everything_again(stage: Stage) -> None:
    """Hold 50,000 messages, and request them again with one small command; then the consumer leaves."""
    topic = plain("again")
    await stage.fill(topic, 50_000)
    async with stage.connected() as client:
        await consume(client, topic, 50_000)
        stage.begin()
        await client.send(commands.redeliver(1))
        await client.receives_nothing_more()
        await client.send(commands.flow(1, 50_000))
        for _ in range(50_000):
            await client.receive()
        answer = await client.ask(commands.close_consumer(1, 5))
        assert answer.type == Type.SUCCESS


async def many_seeks(stage: Stage) -> None:
    """Seek back and forth over 50,000 messages that a consumer holds."""
    topic = plain("again")
    for _ in range(3):
        async with stage.connected() as client:
            ids = await consume(client, topic, 50_000)
            stage.begin()
            client.ignored = {Type.CLOSE_CONSUMER}
            await client.ask(commands.seek(1, 9, to=ids[0]))


async def many_consumers(stage: Stage) -> None:
    """Open 5,000 consumers of one shared subscription on one connection, and close it."""
    topic = plain("consumers")
    await stage.fill(topic, 5_000)
    stage.begin()
    async with stage.connected() as client:
        for start in range(0, 5_000, 250):
            await client.send(
                *(
                    commands.subscribe(topic, "s", number, number, sub_type=SHARED)
                    for number in range(start, start + 250)
                )
            )
            for _ in range(250):
                answer = await client.receive()
                assert answer.type == Type.SUCCESS, answer
    await stage.rest("GET", "/metrics")
    await trio.sleep(0.5)


async def many_producers(stage: Stage) -> None:
    """Open 10,000 producers of one topic on one connection, and close it."""
    topic = plain("producers")
    stage.begin()
    async with stage.connected() as client:
        for start in range(0, 10_000, 250):
            await client.send(*(commands.producer(topic, number, number) for number in range(start, start + 250)))
            for _ in range(250):
                answer = await client.receive()
                assert answer.type == Type.PRODUCER_SUCCESS, answer
    await stage.rest("GET", "/metrics")
    await trio.sleep(0.5)


async def many_connections(stage: Stage) -> None:
    """Open 2,000 connections with one consumer each on one subscription, and close them at once."""
    topic = plain("connections")
    await stage.fill(topic, 100)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(stage.connected()) for _ in range(2_000)]
        for client in clients:
            await client.send(commands.subscribe(topic, "s", 1, 1, sub_type=SHARED), commands.flow(1, 10))
        for client in clients:
            client.ignored = {Type.MESSAGE}
            assert (await client.receive()).type == Type.SUCCESS
        stage.begin()
        for client in clients:
            client.socket.socket.close()
    await stage.rest("GET", "/metrics")
    await trio.sleep(1)


async def many_layout_sessions(stage: Stage) -> None:
    """Open 3,000 sessions of a topic with 300 segments, and split it."""
    topic = scalable("sessions")
    await stage.rest("PUT", "/admin/v2/scalable/public/default/sessions?numInitialSegments=300")
    async with stage.connected() as client:
        for start in range(0, 3_000, 100):
            await client.send(*(commands.scalable_topic_lookup(number, topic) for number in range(start, start + 100)))
            for _ in range(100):
                await client.receive()
        stage.begin()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.rest, "POST", "/admin/v2/scalable/public/default/sessions/split/0")
            for _ in range(3_000):
                assert (await client.receive()).type == Type.SCALABLE_TOPIC_UPDATE


async def many_segments(stage: Stage) -> None:
    """Create, describe, subscribe to and delete a topic of 1,024 segments."""
    stage.begin()
    path = "/admin/v2/scalable/public/default/segments"
    await stage.rest("PUT", f"{path}?numInitialSegments=1024")
    await stage.rest("GET", path)
    async with stage.connected() as client:
        answer = await client.ask(commands.scalable_topic_subscribe(3, scalable("segments"), "s", "c", 9))
        assert answer.type == Type.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE, answer
    await stage.rest("GET", f"{path}/stats")
    await stage.rest("GET", "/metrics")
    await stage.rest("DELETE", f"{path}?force=true")


async def many_topics(stage: Stage) -> None:
    """Create, list and watch 2,000 topics with properties."""
    body = json.dumps({f"property-{number}": "v" * 100 for number in range(20)}).encode()
    path = "/admin/v2/scalable/public/crowded"
    stage.begin()
    async with trio.open_nursery() as nursery:

        async def make(start: int) -> None:
            for number in range(start, start + 125):
                await stage.rest("PUT", f"{path}/t{number}?numInitialSegments=1", body)

        for start in range(0, 2_000, 125):
            nursery.start_soon(make, start)
    assert len(json.loads(await stage.rest("GET", path))) == 2_000
    assert len(json.loads(await stage.rest("GET", f"{path}?property=property-1%3D{'v' * 100}"))) == 2_000
    async with stage.connected() as client:
        for number in range(50):
            await client.send(
                commands.watch_scalable_topics(number, "public/crowded", property_filters={"property-3": "v" * 100})
            )
        for _ in range(50):
            answer = await client.receive()
            assert len(answer.watch_scalable_topics_update.snapshot.topics) == 2_000


async def large_schemas(stage: Stage) -> None:
    """Add two Avro definitions of 250 KB; the second one has one field more."""
    async with stage.connected() as client:
        stage.begin()
        for count in (4_000, 4_001):
            fields = [
                {"name": f"field_{number}", "type": ["null", "string"], "default": None} for number in range(count)
            ]
            definition = json.dumps({"type": "record", "name": "R", "fields": fields}).encode()[: 256 * 1024]
            schema = pb.Schema(name="R", schema_data=definition, type=pb.Schema.Avro)
            answer = await client.ask(commands.get_or_create_schema(count, plain("schemas"), schema))
            assert answer.type == Type.GET_OR_CREATE_SCHEMA_RESPONSE, answer


async def many_properties(stage: Stage) -> None:
    """Subscribe with 10,000 properties, twenty times."""
    async with stage.connected() as client:
        stage.begin()
        properties = {f"k{number}": "v" for number in range(9_999)}
        for number in range(20):
            answer = await client.ask(
                commands.subscribe(plain("props"), "s", number, 1, sub_type=SHARED, properties=properties)
            )
            assert answer.type == Type.SUCCESS, answer


async def large_group(stage: Stage) -> None:
    """Decide a batch of 2,000 transactions at once, half of them winners."""
    async with stage.connected() as client:
        group = pb.TransactionGroup(application="app", batch=1)
        txns = []
        for start in range(0, 2_000, 200):
            await client.send(
                *(commands.new_txn(number, 0, 600_000, group=group) for number in range(start, start + 200))
            )
            for _ in range(200):
                made = (await client.receive()).new_txn_response
                assert not made.HasField("error"), made
                txns.append((made.txnid_most_bits, made.txnid_least_bits))
        stage.begin()
        answer = await client.ask(commands.end_group(9, group, txns[:1_000], commit=True))
        assert not answer.end_txn_response.HasField("error"), answer
        await trio.sleep(0.5)


async def metadata_pages(stage: Stage) -> None:
    """Read every record of the metadata store over HTTP."""
    stage.begin()
    await stage.rest("GET", "/admin/v2/metadata/records")
    await stage.rest("POST", "/admin/v2/metadata/snapshot")


FLOODS: Final[tuple[Callable[[Stage], Awaitable[None]], ...]] = (
    small_commands,
    lookups,
    small_sends,
    large_sends,
    large_metadata,
    large_ack_set,
    scattered_acks,
    acks_in_a_transaction,
    everything_again,
    many_seeks,
    many_consumers,
    many_producers,
    many_connections,
    many_layout_sessions,
    many_segments,
    many_topics,
    large_schemas,
    many_properties,
    large_group,
    metadata_pages,
)
