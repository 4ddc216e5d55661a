"""The broker's rooms behind the listeners, composed as `broker.main` does, over stores of the test's choice.

async with rooms(metadata, files) as broker:
    await broker.controller.create_topic(TOPIC, 1, {})
    topic = await broker.topics.get(await broker.segment(TOPIC, 0))

Leaving the block is like killing the broker. Its claims go with its session, as they would in time.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import wait_all_tasks_blocked

from broker.cluster.elections import Elections
from broker.cluster.ownership import Claims
from broker.names import TopicName
from broker.retention_policies import RetentionPolicies
from broker.scalable.consumer_groups import ConsumerGroups
from broker.scalable.controller import Controller
from broker.scalable.feeds import LayoutFeeds
from broker.scalable.layouts import Layouts
from broker.scalable.namespaces import NamespaceFeeds
from broker.scalable.pruning import Pruner
from broker.topic import Topic
from broker.topic_services import TopicServices
from broker.topics import Topics
from storage.clock import WallClock
from storage.entry import Entry, TxnId
from storage.ledger_ids import LedgerIds
from storage.ledger_store import DirectoryLedgerStore, IsAlive
from storage.managed_ledger import ManagedLedgerConfig
from storage.metadata.store import Check, MetadataStore, Session
from storage.position import EARLIEST
from tests.support.disk import SimulatedFiles
from tests.support.ledgers import ledger_store
from txn.alarm import Alarm
from txn.coordinator import Coordinator
from txn.counters import OpCounters
from txn.header_watch import HeaderWatch

TOPIC = TopicName.parse("topic://public/default/orders")


def now_ms() -> int:
    """A clock that stands."""
    return 1_000_000


def moving_clock() -> WallClock:
    """A clock that goes with Trio's, which a test may jump, from the same moment on."""
    start = trio.current_time()
    return lambda: now_ms() + round((trio.current_time() - start) * 1000)


class Rooms:
    """See the module's docstring."""

    def __init__(
        self,
        metadata: MetadataStore,
        ledgers: DirectoryLedgerStore,
        nursery: trio.Nursery,
        session: Session,
        clock: WallClock,
        grace_seconds: float,
        broker_id: str,
    ) -> None:
        self.metadata = metadata
        self.ledgers = ledgers
        self.session = session
        self.headers = HeaderWatch(metadata)
        self.claims = Claims(metadata, session, broker_id=broker_id, service_url=f"pulsar://{broker_id}:6650")
        self.elections = Elections(self.claims, metadata)
        self.layouts = Layouts(metadata)
        self.feeds = LayoutFeeds(metadata, nursery)
        self.namespaces = NamespaceFeeds(metadata, nursery)
        self.retention = RetentionPolicies(metadata)
        self.services = TopicServices(
            metadata=metadata,
            ledgers=ledgers,
            ledger_ids=LedgerIds(metadata),
            headers=self.headers,
            buffers=OpCounters(),
            ledger_config=ManagedLedgerConfig(),
            now_ms=clock,
            retention=self.retention,
        )
        self.opened: list[TopicName] = []
        """Every topic that was taken over, in order."""
        self.topics = Topics(self.claims, self.layouts, self._open_topic, self.services, nursery, 7)
        self.groups = ConsumerGroups(
            self.topics, self.feeds, self.elections, metadata=metadata, nursery=nursery, grace_seconds=grace_seconds
        )
        self.controller = Controller(
            self.layouts,
            self.topics,
            self.feeds,
            self.groups,
            self.elections,
            now_ms=clock,
            nursery=nursery,
            metadata=metadata,
        )
        self.finals = Alarm(clock, delay_ms=60_000)
        """Rings when the retention of a finished transaction may be over, a minute after its end."""
        self.coordinator = Coordinator(
            metadata,
            count=4,
            now_ms=clock,
            timeout_ms_max=1_000_000,
            final_alarm=self.finals,
            once_alarm=Alarm(clock),
            counters=OpCounters(),
        )

    def pruner(self, *, retention_ms: int = 0, clock: WallClock = now_ms) -> Pruner:
        """One that a test runs."""
        return Pruner(
            self.layouts,
            self.topics,
            self.feeds,
            self.controller.locks,
            self.elections,
            metadata=self.metadata,
            retention_ms=retention_ms,
            now_ms=clock,
        )

    async def control(self, topic: TopicName = TOPIC) -> None:
        """Be the topic's controller, and everybody here knows it."""
        await self.elections.elect(topic)
        await wait_all_tasks_blocked()

    async def segment(self, topic: TopicName, segment_id: int) -> TopicName:
        """The name of a segment."""
        return topic.segment_name((await self.layouts.get(topic)).segment(segment_id).descriptor)

    async def _open_topic(self, name: TopicName, claim: Check) -> Topic:
        self.opened.append(name)
        return await Topic.open(name, self.services, claim)


async def publish(topic: Topic, payload: bytes, txn: TxnId | None = None) -> None:
    """Publish one message and wait until it is durable."""
    position = await topic.publish(payload, message_count=1, txn=txn)
    await topic.ledger.confirmed.wait_for(position)


async def visible(topic: Topic) -> list[Entry]:
    """What a reader of the whole topic gets."""
    found: list[Entry] = []
    at = EARLIEST
    while entries := await topic.read(at, entries_max=100, bytes_max=1_000_000):
        found += [entry for entry in entries if topic.is_visible(entry)]
        at = topic.next_after(entries[-1].position)
    return found


@asynccontextmanager
async def rooms(
    metadata: MetadataStore,
    files: SimulatedFiles,
    *,
    clock: WallClock = now_ms,
    grace_seconds: float = 60,
    broker_id: str = "broker-1",
    is_alive: IsAlive | None = None,
) -> AsyncIterator[Rooms]:
    """One broker's rooms, running; `is_alive` says whether another broker of the same folder does."""
    async with (
        ledger_store(files, broker_id=broker_id, is_alive=is_alive) as ledgers,
        trio.open_nursery() as nursery,
    ):
        session = await metadata.open_session(10)
        made = Rooms(metadata, ledgers, nursery, session, clock, grace_seconds, broker_id)
        await nursery.start(made.headers.run)
        await nursery.start(made.retention.run)
        await nursery.start(made.elections.run)
        await nursery.start(made.coordinator.groups.run)
        try:
            yield made
        finally:
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await session.close()
