"""The client's connections are cut, and it continues: nothing is lost, and confirmed messages are not redelivered.

The tests cut the client's own sockets, which a dial function keeps, so the broker need not take part.
"""

import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random

import anyio
import anyio.abc

import tidewire
from tests.scenarios.client.stories import SECONDS_MAX, new_topic, numbers, receive, send, values
from tests.support.admin import Admin
from tests.support.backends import on_both_backends
from tests.support.subjects import Subject
from tidewire.client.client import Client, open_client
from tidewire.client.network import Settings, dial_tcp
from tidewire.protocol.addresses import BrokerAddress, parse_addresses


class Line:
    """All streams of a client."""

    def __init__(self) -> None:
        self._streams: list[anyio.abc.ByteStream] = []
        self.dialed = 0

    async def dial(self, address: BrokerAddress) -> anyio.abc.ByteStream:
        stream = await dial_tcp(address)
        self._streams.append(stream)
        self.dialed += 1
        return stream

    def cut(self) -> None:
        """End every connection at once, with everything on its way."""
        streams, self._streams = self._streams, []
        for stream in streams:
            with suppress(OSError, anyio.ClosedResourceError):
                stream.extra(anyio.abc.SocketAttribute.raw_socket).shutdown(socket.SHUT_RDWR)


@asynccontextmanager
async def cuttable(broker: Subject) -> AsyncIterator[tuple[Client, Line]]:
    line = Line()
    settings = Settings(reconnect_seconds_max=0.5)
    async with open_client(parse_addresses(broker.service_url), settings, dial=line.dial) as client:
        yield client, line


@on_both_backends
async def test_a_producer_and_a_stream_go_on_through_cut_connections_and_a_split(broker: Subject) -> None:
    """First copies are complete and in order per key; without deduplication, resent messages are stored twice."""
    topic, admin, random = new_topic(broker, 2), Admin(broker.http_url), Random(1)
    seen: dict[str | None, list[bytes]] = {}
    count = 600
    async with (
        cuttable(broker) as (producing, producer_line),
        cuttable(broker) as (consuming, consumer_line),
        producing.producer(topic) as producer,
        consuming.stream_consumer(topic, "s") as consumer,
    ):

        async def consume() -> None:
            left = set(numbers(0, count))
            while left:
                message = await consumer.receive()
                left.discard(message.value)
                copies = seen.setdefault(message.key, [])
                if message.value not in copies:
                    copies.append(message.value)
                await consumer.acknowledge_cumulative(message)
            tasks.cancel_scope.cancel()

        async def cut() -> None:
            while True:
                await anyio.sleep(random.uniform(0.05, 0.3))
                random.choice((producer_line, consumer_line)).cut()
                cuts.add(anyio.current_time())
                if len(cuts) == 3:
                    await admin.split(topic, 0)
                if len(cuts) >= 6:
                    return

        cuts: set[float] = set()
        with anyio.fail_after(SECONDS_MAX):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consume)
                tasks.start_soon(cut)
                for first in range(0, count, 10):
                    await send(producer, first, first + 10)
                    await anyio.sleep(0.02)
        assert producer_line.dialed + consumer_line.dialed > 6
    for key in range(16):
        assert seen[str(key)] == numbers(0, count)[key::16]


@on_both_backends
async def test_what_a_queue_confirmed_does_not_come_again_after_a_cut(broker: Subject) -> None:
    topic = new_topic(broker, 2)
    async with (
        tidewire.connect(broker.service_url) as plain,
        plain.producer(topic) as producer,
        cuttable(broker) as (client, line),
        client.queue_consumer(topic, "q") as consumer,
    ):
        sent = await send(producer, 0, 100)
        got = await receive(consumer, 60)
        await consumer.acknowledge(*got, confirmed=True)
        line.cut()
        # What is received before the cut is noticed, and is not acknowledged, comes again.
        confirmed, rest = set(values(got)), set[bytes]()
        while confirmed | rest != set(sent):
            rest.update(values(await receive(consumer, 1)))
        assert not confirmed & rest


@on_both_backends
async def test_a_reader_goes_on_behind_what_it_delivered_also_between_chunks(broker: Subject) -> None:
    """The chunks of two messages alternate; one message is delivered, and the other one starts again."""
    topic = new_topic(broker)
    large = Random(5).randbytes(100_000)
    async with (
        tidewire.connect(broker.service_url) as plain,
        plain.producer(topic, chunking=tidewire.Chunking(5_000)) as one,
        plain.producer(topic, chunking=tidewire.Chunking(5_000)) as two,
        cuttable(broker) as (client, line),
        client.reader(topic) as reader,
    ):
        expected = Counter[bytes]()
        got = Counter[bytes]()
        for round_number in range(5):
            value = b"%d" % round_number + large
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one.send, b"1" + value)
                tasks.start_soon(two.send, b"2" + value)
            expected.update((b"1" + value, b"2" + value))
            got[(await receive(reader, 1))[0].value] += 1
            line.cut()
        while got.total() < expected.total():
            got[(await receive(reader, 1))[0].value] += 1
        assert got == expected


@on_both_backends
async def test_transactions_through_cut_connections_count_once(broker: Subject) -> None:
    topic, random = new_topic(broker, 3), Random(2)
    committed = 30
    async with (
        cuttable(broker) as (client, line),
        client.producer(topic) as producer,
    ):

        async def run(number: int) -> None:
            async def work(txn: tidewire.Transaction) -> None:
                for part in range(4):
                    await producer.enqueue(b"%d.%d" % (number, part), key=f"{number}.{part}", txn=txn)

            await client.run_transaction(work, attempts_max=100)

        async def cut() -> None:
            for _ in range(4):
                await anyio.sleep(random.uniform(0.02, 0.2))
                line.cut()

        with anyio.fail_after(SECONDS_MAX):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cut)
                for number in range(committed):
                    tasks.start_soon(run, number)
        expected = Counter(b"%d.%d" % (number, part) for number in range(committed) for part in range(4))
        async with client.reader(topic) as reader:
            assert Counter(message.value for message in await receive(reader, expected.total())) == expected
            await producer.send(b"next")
            assert [message.value for message in await receive(reader, 1)] == [b"next"]
