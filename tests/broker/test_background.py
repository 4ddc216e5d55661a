"""What continues after a failure: background work, and a broker whose metadata store fails at every n-th call."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.background import keep_running
from broker.broker import Broker, Foundation
from broker.budgets import Budgets
from broker.cluster.ownership import OwnedElsewhere
from broker.config import load_settings
from broker.errors import BrokerError
from broker.front_ends import ENTRY_CODECS
from broker.kafka.markers import MARKERS
from broker.layouts.parts import StartPosition, SubscriptionKind
from broker.names import TopicName
from broker.store_retry import RETRY_SECONDS
from broker.topic import Topic
from dispatch.errors import SubscriptionError
from storage.clock import SteadyClock
from storage.cursor import CursorError
from storage.errors import StorageError
from storage.metadata.store import MetadataError, MetadataStore, StoreUnavailable
from tests.support.disk import SimulatedFiles
from tests.support.failing_store import FailingStore
from tests.support.ledgers import ledger_store
from tests.support.rooms import publish
from txn.errors import TxnError
from txn.states import EndAction

REFUSALS = (BrokerError, OwnedElsewhere, MetadataError, StorageError, CursorError, SubscriptionError, TxnError)
"""What a client may be told."""


async def test_background_work_begins_anew_after_any_error(autojump_clock: MockClock) -> None:
    """E11: an error ends one round, and the next round follows after a pause."""
    begun: list[float] = []

    async def work() -> None:
        begun.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if len(begun) == 1:
            raise StoreUnavailable("away")
        if len(begun) == 2:
            raise ExceptionGroup("several", [KeyError("defect")])
        await trio.sleep_forever()

    with trio.move_on_after(60):
        await keep_running("work", work)
    assert [moment - begun[0] for moment in begun] == [0, RETRY_SECONDS, 2 * RETRY_SECONDS]


class Whole:
    """A broker without its front ends."""

    def __init__(self, broker: Broker) -> None:
        self.topics = broker.topics
        self.controller = broker.controller
        self.layouts = broker.layouts
        self.coordinator = broker.transactions.coordinator

    async def segment(self, topic: TopicName) -> Topic:
        layout = await self.layouts.get(topic)
        return await self.topics.get(topic.segment_name(layout.active()[-1].descriptor))


@asynccontextmanager
async def whole_broker(metadata: MetadataStore) -> AsyncIterator[Whole]:
    files = SimulatedFiles(seed=2)
    async with ledger_store(files) as ledgers, trio.open_nursery() as nursery:
        session = await metadata.open_session(10)
        foundation = Foundation(
            settings=load_settings({"data_dir": "/data", "txn_retention_seconds": 1}, None),
            version="test",
            service_url="pulsar://127.0.0.1:6650",
            metadata=metadata,
            files=files,
            ledgers=ledgers,
            now_ms=SteadyClock(),
            budgets=Budgets.of(1 << 30, 1_000),
            markers=MARKERS,
            codecs=ENTRY_CODECS,
        )
        broker = Broker(foundation, session, nursery)
        await broker.start()
        yield Whole(broker)
        nursery.cancel_scope.cancel()


def load(whole: Whole, number: int) -> list[Callable[[], Awaitable[object]]]:
    """Do what clients and administrators do, one step at a time."""
    topic = TopicName.parse(f"topic://public/default/t{number % 3}")
    plain = TopicName.parse(f"persistent://public/default/p{number % 3}")

    async def publish_plain() -> None:
        await publish(await whole.topics.get(plain), b"x")

    async def transaction() -> None:
        txn = await whole.coordinator.new_transaction(number % 4, 5_000)
        await publish(await whole.segment(topic), b"x", txn)
        if number % 3:
            await whole.coordinator.end(txn, EndAction.COMMIT if number % 2 else EndAction.ABORT)

    async def split() -> None:
        segments = (await whole.layouts.get(topic)).active()
        await whole.controller.split(topic, segments[0].id)

    async def subscribe() -> None:
        await whole.controller.subscriptions.add(topic, "s", SubscriptionKind.STREAM, StartPosition.EARLIEST)

    async def unload() -> None:
        await whole.topics.unload(plain)

    async def delete() -> None:
        if number % 7 == 0:
            await whole.controller.delete_topic(topic, force=True)

    return [
        lambda: whole.controller.create_topic(topic, 1, {}),
        publish_plain,
        subscribe,
        transaction,
        split,
        transaction,
        unload,
        delete,
    ]


@pytest.mark.parametrize("every", [2, 3, 5, 7, 11, 17])
async def test_no_answer_of_the_metadata_store_ends_the_broker(every: int, autojump_clock: MockClock) -> None:
    """E11: it is unavailable, unknown or too large at every n-th call: clients are told, and later all is served."""
    metadata = FailingStore(seed=every)
    async with whole_broker(metadata) as whole:
        await wait_all_tasks_blocked()
        metadata.fails_every = every
        for number in range(8):
            for step in load(whole, number):
                try:
                    with trio.move_on_after(30):
                        await step()
                except REFUSALS:
                    continue
            await trio.sleep(3)
        assert metadata.failures > 20
        metadata.fails_every = None
        await trio.sleep(300)
        for name in ("persistent://public/default/p1", "persistent://public/default/new"):
            await publish(await whole.topics.get(TopicName.parse(name)), b"goes on")
        topic = TopicName.parse("topic://public/default/fresh")
        await whole.controller.create_topic(topic, 1, {})
        txn = await whole.coordinator.new_transaction(0, 60_000)
        await publish(await whole.segment(topic), b"x", txn)
        await whole.coordinator.end(txn, EndAction.COMMIT)
