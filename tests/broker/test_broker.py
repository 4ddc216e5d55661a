"""The whole broker: building it does nothing, starting it does everything, and one foundation serves several."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.broker import Broker, Foundation
from broker.budgets import Budgets
from broker.front_ends import ENTRY_CODECS
from broker.kafka.markers import MARKERS
from broker.layouts.parts import SubscriptionKind
from broker.layouts.registrations import GroupId, Registrations
from broker.layouts.store import Layouts
from broker.pulsar.listener import PulsarServices
from storage.metadata.memory import MemoryStore
from storage.metadata.store import MetadataStore, starting_with
from tests.support.disk import SimulatedFiles
from tests.support.group_members import QuietMember
from tests.support.ledgers import ledger_store
from tests.support.rooms import TOPIC, moving_clock, publish, settings_of, visible
from txn.headers import KEY_PREFIX
from txn.states import EndAction

RETENTION_SECONDS = 60


@asynccontextmanager
async def founded(metadata: MetadataStore, files: SimulatedFiles) -> AsyncIterator[Foundation]:
    async with ledger_store(files) as ledgers:
        yield Foundation(
            settings=settings_of(txn_retention_seconds=RETENTION_SECONDS, ledger_bytes_max=1024 * 1024),
            version="test",
            service_url="pulsar://127.0.0.1:6650",
            metadata=metadata,
            files=files,
            ledgers=ledgers,
            now_ms=moving_clock(),
            budgets=Budgets.of(1 << 30, 10),
            markers=MARKERS,
            codecs=ENTRY_CODECS,
        )


async def test_building_a_broker_reads_writes_and_runs_nothing(autojump_clock: MockClock) -> None:
    metadata, files = MemoryStore(), SimulatedFiles(seed=1)
    async with founded(metadata, files) as foundation, trio.open_nursery() as nursery:
        session = await metadata.open_session(10)
        operations, revision = files.operations, metadata.statistics().revision
        Broker(foundation, session, nursery)
        await wait_all_tasks_blocked()
        assert (files.operations, metadata.statistics().revision) == (operations, revision)
        assert not nursery.child_tasks


async def test_settings_reach_the_part_that_they_are_about(autojump_clock: MockClock) -> None:
    metadata = MemoryStore()
    async with founded(metadata, SimulatedFiles(seed=1)) as foundation, trio.open_nursery() as nursery:
        broker = Broker(foundation, await metadata.open_session(10), nursery)
        assert broker.services.ledger_config.ledger_bytes_max == foundation.settings.ledger_bytes_max
        assert broker.transactions.coordinator.count == foundation.settings.transaction_coordinators
        services = PulsarServices.of(broker)
        assert services.message_bytes_max == foundation.settings.message_bytes_max
        assert services.server_version == "Tidewire test"


async def test_the_next_broker_goes_on_upon_the_same_foundation(autojump_clock: MockClock) -> None:
    """Work of the first ends under the second: a split, a transaction's retention, a consumer's grace period."""
    metadata = MemoryStore()
    async with founded(metadata, SimulatedFiles(seed=1)) as foundation:
        async with trio.open_nursery() as nursery:
            session = await metadata.open_session(10)
            first = Broker(foundation, session, nursery)
            await first.start()
            await first.administration.create_topic(TOPIC, segments=1, properties={})
            segment = TOPIC.segment_name((await first.layouts.get(TOPIC)).active()[0].descriptor)
            await first.administration.create_subscription(TOPIC, "s", SubscriptionKind.STREAM)
            await first.groups.join(GroupId(TOPIC, "s"), QuietMember("a"))
            txn = await first.transactions.coordinator.new_transaction(0, 1000)
            await publish(await first.topics.get(segment), b"a", txn)
            await first.transactions.coordinator.end(txn, EndAction.COMMIT)
            await first.close()
            nursery.cancel_scope.cancel()
        await session.close()
        assert await metadata.scan(*starting_with(KEY_PREFIX))
        assert await Registrations(metadata).load(TOPIC)
        await Layouts(metadata).change(TOPIC, lambda layout: layout.begin_split(0))
        async with trio.open_nursery() as nursery:
            second = Broker(foundation, await metadata.open_session(10), nursery)
            await second.start()
            await wait_all_tasks_blocked()
            assert (await second.layouts.get(TOPIC)).intent is None
            assert [entry.payload for entry in await visible(await second.topics.get(segment))] == [b"a"]
            await trio.sleep(max(RETENTION_SECONDS, foundation.settings.consumer_session_grace_seconds) + 1)
            await wait_all_tasks_blocked()
            assert not await metadata.scan(*starting_with(KEY_PREFIX))
            assert not await Registrations(metadata).load(TOPIC)
            nursery.cancel_scope.cancel()
