"""A broker without front ends and without background work, over stores of the test's choice.

async with rooms(metadata, files) as broker:
    await broker.controller.create_topic(TOPIC, 1, {})
    topic = await broker.topics.get(await broker.segment(TOPIC, 0))

It is the daemon's own `Broker`, which follows the metadata store but has not started its background work. A test starts
the work that it needs: `nursery.start_soon(broker.pruner.run)`. Settings have the daemon's names.

The end of the block is like a kill of the broker, except that its session and claims end at once.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import wait_all_tasks_blocked

from broker.addresses import Address, KafkaNode
from broker.broker import Broker, Foundation
from broker.budgets import Budgets
from broker.cluster.membership import Membership
from broker.cluster.ownership import HasEnded, not_known
from broker.config import BrokerSettings, load_settings
from broker.entry_codecs import EntryCodecs
from broker.front_ends import ENTRY_CODECS
from broker.kafka.group_subscriptions import groups_on, offsets_of_groups
from broker.kafka.groups.offsets import forget_offsets
from broker.kafka.markers import MARKERS
from broker.layouts.parts import StartPosition, SubscriptionKind
from broker.names import TopicName
from broker.pulsar.conversion import ToPulsar
from broker.pulsar.tool_view import tool_view
from broker.topic import Topic
from broker.traffic import Traffic
from storage.clock import WallClock
from storage.directory_ledger_store import DirectoryLedgerStore
from storage.entry import Entry, EntryFormat, TxnId
from storage.metadata.store import Check, MetadataStore, Session
from storage.position import EARLIEST
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import DATA, FOLDER, IsAlive, ledger_store

TOPIC = TopicName.parse("topic://public/default/orders")
MESSAGE_BYTES_MAX = 100_000


def now_ms() -> int:
    """Return a fixed time."""
    return 1_000_000


def moving_clock() -> WallClock:
    """Return a clock that follows Trio's, which a test may jump, starting at the same moment."""
    start = trio.current_time()
    return lambda: now_ms() + round((trio.current_time() - start) * 1000)


class Rooms(Broker):
    """A broker with shortcuts for tests."""

    def __init__(
        self, foundation: Foundation, session: Session, nursery: trio.Nursery, ledgers: DirectoryLedgerStore
    ) -> None:
        super().__init__(foundation, session, nursery)
        self.session = session
        self.ledgers = ledgers
        self.coordinator = self.transactions.coordinator
        self.headers = self.transactions.headers
        self.opened: list[TopicName] = []
        """Every topic that was taken over, in order."""

    async def control(self, topic: TopicName = TOPIC) -> None:
        """Make this broker the topic's controller, and wait until its parts know it."""
        await self.elections.elect(topic)
        await wait_all_tasks_blocked()

    async def register(self, http_url: str | None = None) -> None:
        """Be a member for the other brokers, as the daemon is before it serves. At `http_url` it answers them."""
        broker_id, service_url = self.foundation.settings.broker_id, self.foundation.service_url
        membership = Membership(
            self.metadata,
            broker_id=broker_id,
            folder_id=FOLDER,
            lock_name=broker_id,
            service_url=service_url,
            http_url=http_url or service_url.replace("pulsar://", "http://"),
            kafka=self.foundation.kafka,
            release="test",
        )
        await membership.register(self.session, timeout_seconds=10)

    async def segment(self, topic: TopicName, segment_id: int) -> TopicName:
        """Return the name of a segment."""
        return topic.segment_name((await self.layouts.get(topic)).segment(segment_id).descriptor)

    async def open_topic(self, name: TopicName, claim: Check) -> Topic:
        self.opened.append(name)
        return await super().open_topic(name, claim)


def settings_of(**settings: object) -> BrokerSettings:
    """Return the daemon's settings. A segment's data is removed as soon as possible, unless the test says otherwise."""
    usual = {"data_dir": DATA, "message_bytes_max": MESSAGE_BYTES_MAX, "segment_retention_seconds": 0}
    return load_settings({**usual, **settings})


async def subscribe(broker: Rooms, name: str, start: StartPosition = StartPosition.EARLIEST) -> None:
    """Add a stream subscription to TOPIC."""
    await broker.controller.subscriptions.add(TOPIC, name, SubscriptionKind.STREAM, start)


async def segments(broker: Rooms) -> dict[int, Topic]:
    """Return TOPIC's segments, active and sealed, by id."""
    layout = await broker.layouts.get(TOPIC)
    return {
        segment_id: await broker.topics.get(TOPIC.segment_name(segment.descriptor))
        for segment_id, segment in layout.segments.items()
    }


async def publish(topic: Topic, payload: bytes, txn: TxnId | None = None) -> None:
    """Publish one message and wait until it is durable."""
    position = await topic.publish(payload, message_count=1, txn=txn, entry_format=EntryFormat.PULSAR)
    await topic.ledger.confirmed.wait_for(position)


async def visible(topic: Topic) -> list[Entry]:
    """Return what a reader of the whole topic gets."""
    found: list[Entry] = []
    at = EARLIEST
    while entries := await topic.read(at, entries_max=100, bytes_max=1_000_000):
        found += [entry for entry in entries if topic.is_visible(entry)]
        at = topic.next_after(entries[-1].position)
    return found


async def payloads(topic: Topic) -> list[bytes]:
    """Return the payloads of all visible entries."""
    return [entry.payload for entry in await visible(topic)]


@asynccontextmanager
async def rooms(
    metadata: MetadataStore,
    files: SimulatedFiles,
    *,
    clock: WallClock = now_ms,
    is_alive: IsAlive | None = None,
    codecs: EntryCodecs = ENTRY_CODECS,
    has_ended: HasEnded = not_known,
    kafka_node: int = 1,
    **settings: object,
) -> AsyncIterator[Rooms]:
    """Run one broker's rooms. Kafka's clients know it by the number `kafka_node`.

    `is_alive` says whether another broker of the same folder is alive, and `has_ended` whether it has certainly ended.
    """
    chosen = settings_of(**settings)
    async with (
        ledger_store(files, broker_id=chosen.broker_id, is_alive=is_alive, metadata=metadata) as ledgers,
        trio.open_nursery() as nursery,
    ):
        session = await metadata.open_session(10)
        traffic = Traffic()
        foundation = Foundation(
            settings=chosen,
            version="test",
            service_url=f"pulsar://{chosen.broker_id}:6650",
            kafka=KafkaNode(kafka_node, Address(chosen.broker_id, 9092)),
            metadata=metadata,
            files=files,
            ledgers=ledgers,
            now_ms=clock,
            budgets=Budgets.of(1 << 30, 1_000),
            codecs=codecs,
            markers=MARKERS,
            traffic=traffic,
            for_subscribers=ToPulsar(traffic),
            for_tools=tool_view,
            forget_topic=forget_offsets(chosen.kafka_namespace),
            groups_on=groups_on(chosen.kafka_namespace),
            group_offsets=offsets_of_groups(chosen.kafka_namespace),
            has_ended=has_ended,
        )
        made = Rooms(foundation, session, nursery, ledgers)
        await made.follow()
        try:
            yield made
        finally:
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await session.close()
