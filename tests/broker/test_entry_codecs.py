"""What a topic reads from its entries, with the codec of each one's format."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trio.testing import wait_all_tasks_blocked

from broker.deduplication.sequences import Stored
from broker.entry_codecs import EntryCodecs, SendId
from broker.front_ends import ENTRY_CODECS
from broker.topic import Topic
from dispatch.subscription_types import SubscriptionType
from storage.entry import EntryFormat
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST, Position
from tests.support.disk import SimulatedFiles
from tests.support.outlet import recording_consumer
from tests.support.plain_codec import PlainCodec, plain
from tests.support.rooms import TOPIC, rooms, visible
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

BOTH = EntryCodecs({**ENTRY_CODECS, EntryFormat.KAFKA: PlainCodec()})
OTHER = EntryFormat.KAFKA


class Machine:
    """One segment, through power losses."""

    def __init__(self, codecs: EntryCodecs = BOTH) -> None:
        self.codecs = codecs
        self.metadata = MemoryStore()
        self.files = SimulatedFiles(seed=1)

    @asynccontextmanager
    async def topic(self) -> AsyncIterator[Topic]:
        async with rooms(self.metadata, self.files, codecs=self.codecs) as broker:
            if not await broker.layouts.names():
                await broker.controller.create_topic(TOPIC, 1, {})
            yield await broker.topics.get(await broker.segment(TOPIC, 0))
        self.files = self.files.crash()


async def send(
    topic: Topic, producer: str, send_id: SendId, payload: bytes, entry_format: EntryFormat = OTHER
) -> Position | Stored:
    made = await topic.publish_once(producer, send_id, payload, message_count=1, txn=None, entry_format=entry_format)
    await topic.ledger.confirmed.wait_for(made if isinstance(made, Position) else made.durable_at)
    return made


def pulsar(producer: str, sequence: int) -> bytes:
    return build_payload(pb.MessageMetadata(producer_name=producer, sequence_id=sequence, publish_time=1), b"x")


async def test_a_new_owner_learns_the_sends_of_every_format_from_the_log() -> None:
    """E6: each format has its codec, and a repeated send is stored once."""
    machine = Machine()
    async with machine.topic() as topic:
        await send(topic, "p", SendId(7, 7), plain("p", 7))
        await send(topic, "q", SendId(5, 5), pulsar("q", 5), EntryFormat.PULSAR)
    async with machine.topic() as topic:
        assert isinstance(await send(topic, "p", SendId(7, 7), plain("p", 7)), Stored)
        assert isinstance(await send(topic, "q", SendId(5, 5), pulsar("q", 5), EntryFormat.PULSAR), Stored)
        assert isinstance(await send(topic, "p", SendId(8, 8), plain("p", 8)), Position)
        assert [entry.format for entry in await visible(topic)] == [OTHER, EntryFormat.PULSAR, OTHER]


async def test_a_format_without_a_codec_is_kept_as_it_is() -> None:
    """E3: the sender is unknown, so nothing is remembered; the entry stays, and the topic is served."""
    machine = Machine()
    async with machine.topic() as topic:
        await send(topic, "p", SendId(7, 7), plain("p", 7, key=b"k"))
    machine.codecs = ENTRY_CODECS
    async with machine.topic() as topic:
        (entry,) = await visible(topic)
        assert (entry.payload, topic.key_of(entry), topic.chunk_of(entry)) == (plain("p", 7, key=b"k"), None, None)
        assert topic.deduplication is not None
        assert not topic.deduplication.knows("p")


async def test_chunks_of_another_format_go_to_one_consumer() -> None:
    async with Machine().topic() as topic:
        for number in range(6):
            payload = plain("p", number, message="m", chunk=number, chunks=6)
            await send(topic, "p", SendId(number, number), payload)
        subscription = topic.subscribe_reader("r", EARLIEST)
        outlets = []
        for name in ("one", "two"):
            consumer, outlet = recording_consumer(name)
            subscription.add_consumer(consumer, SubscriptionType.SHARED)
            subscription.flow(consumer, 10)
            outlets.append(outlet)
        await wait_all_tasks_blocked()
        assert sorted(len(outlet.deliveries) for outlet in outlets) == [0, 6]


async def test_a_source_tells_each_entrys_key() -> None:
    async with Machine().topic() as topic:
        await send(topic, "p", SendId(1, 1), plain("p", 1, key=b"k"))
        await send(topic, "p", SendId(2, 2), plain("p", 2))
        await send(topic, "p", SendId(3, 3), b"nonsense")
        keyed = pb.MessageMetadata(producer_name="p", sequence_id=4, publish_time=1, partition_key="l")
        await send(topic, "p", SendId(4, 4), build_payload(keyed, b"x"), EntryFormat.PULSAR)
        assert [topic.key_of(entry) for entry in await visible(topic)] == [b"k", None, None, b"l"]
