"""What the cluster looks like, put together from its records."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

import orjson
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster.members import DRAINING
from broker.cluster.membership import BROKERS
from broker.cluster.overview import ClusterView, Overview, State
from broker.cluster.ownership import claim_key
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.memory import MemoryStore
from storage.metadata.store import MetadataStore, Session
from tests.support.disk import SimulatedFiles
from tests.support.metadata_log import DATA
from tests.support.rooms import now_ms
from tests.support.shared_stores import brokers
from txn.states import EndAction
from txn.transactions import Transactions, TransactionSettings


@asynccontextmanager
async def overview(store: MetadataStore) -> AsyncIterator[Overview]:
    async with trio.open_nursery() as nursery:
        shown = Overview(store)
        await nursery.start(shown.run)
        yield shown
        nursery.cancel_scope.cancel()


async def join(store: MetadataStore, broker: str) -> Session:
    session = await store.open_session(10)
    value = orjson.dumps({"service_url": f"pulsar://{broker}:6650", "http_url": f"http://{broker}:8080"})
    await store.put(BROKERS + broker, value, session=session)
    return session


async def claim(store: MetadataStore, name: str, broker: str, session: Session | None = None) -> None:
    value = orjson.dumps({"broker": broker, "service_url": f"pulsar://{broker}:6650"})
    await store.put(claim_key(name), value, session=session)


def states(view: ClusterView) -> dict[str, State]:
    return {broker.broker: broker.state for broker in view.brokers}


def claims(view: ClusterView) -> dict[str, dict[str, int]]:
    return {broker.broker: {kind: n for kind, n in broker.claims.items() if n} for broker in view.brokers}


async def test_the_metadata_controller_is_shown(autojump_clock: MockClock) -> None:
    """C5, C21: on an embedded store. A new one is a change, which sets the signal."""
    async with brokers() as them:
        await them.start("b-1")
        second = await them.start("b-2")
        async with overview(second) as shown:
            assert shown.view().metadata_controller == "b-1"
            await them.kill("b-1")
            seen = []
            while shown.view().metadata_controller != "b-2":
                await shown.changed.wait()
                seen.append(shown.view().metadata_controller)
            assert set(seen) <= {"", "b-2"}
    async with overview(MemoryStore()) as shown:
        assert shown.view().metadata_controller is None


async def test_a_broker_that_is_alone_is_its_own_controller() -> None:
    async with EmbeddedStore.open(SimulatedFiles(), DATA, broker="b-1") as store, overview(store) as shown:
        assert shown.view().metadata_controller == "b-1"


async def test_brokers_come_drain_and_go() -> None:
    """C21: one whose registration has ended, but not its claims, is shown as gone until they end too."""
    store = MemoryStore()
    first = await join(store, "b-1")
    async with overview(store) as shown:
        assert states(shown.view()) == {"b-1": State.RUNNING}
        await join(store, "b-2")
        await claim(store, "segment://public/default/a/0000-ffff-0", "b-1")
        await store.put(DRAINING + "b-1", b"{}", session=first)
        await wait_all_tasks_blocked()
        (one, two) = shown.view().brokers
        assert (one.state, two.state) == (State.DRAINING, State.RUNNING)
        assert (two.service_url, two.http_url) == ("pulsar://b-2:6650", "http://b-2:8080")
        await first.close()
        await wait_all_tasks_blocked()
        assert states(shown.view()) == {"b-1": State.GONE, "b-2": State.RUNNING}
        await store.delete(claim_key("segment://public/default/a/0000-ffff-0"))
        await wait_all_tasks_blocked()
        assert states(shown.view()) == {"b-2": State.RUNNING}


async def test_claims_are_counted_by_owner_and_kind() -> None:
    """Each claim counts for its newest owner. Damaged ones, and those of unknown kinds, count for nobody."""
    store = MemoryStore()
    for broker in ("b-1", "b-2"):
        await join(store, broker)
    for number in range(3):
        await claim(store, f"segment://public/default/a/0000-ffff-{number}", "b-1")
    await claim(store, "topic://public/default/a", "b-2")
    await store.put("/owners/" + quote("persistent://public/default/damaged", safe=""), b"{")
    await claim(store, "weather://tomorrow", "b-2")
    async with overview(store) as shown:
        assert claims(shown.view()) == {"b-1": {"segments": 3}, "b-2": {"controllers": 1}}
        await claim(store, "segment://public/default/a/0000-ffff-2", "b-2")
        await claim(store, "coordinator://3", "b-1")
        await claim(store, "persistent://public/default/damaged", "b-1")
        await wait_all_tasks_blocked()
        expected = {"b-1": {"segments": 2, "coordinators": 1, "topics": 1}, "b-2": {"controllers": 1, "segments": 1}}
        assert claims(shown.view()) == expected


async def test_open_transactions_are_counted_until_they_end() -> None:
    """T7: a transaction that any broker opened counts, until it is committed or aborted, or its header is removed."""
    store = MemoryStore()
    async with trio.open_nursery() as nursery, overview(store) as shown:
        transactions = Transactions(
            store, TransactionSettings(coordinators=1, timeout_ms_max=60_000, retention_ms=60_000), now_ms
        )
        await transactions.start(nursery)
        opened = [await transactions.coordinator.new_transaction(0, 60_000) for _ in range(3)]
        await wait_all_tasks_blocked()
        assert shown.view().open_transactions == 3
        await transactions.coordinator.end(opened[0], EndAction.COMMIT)
        await transactions.coordinator.end(opened[1], EndAction.ABORT)
        await wait_all_tasks_blocked()
        assert shown.view().open_transactions == 1
        (left,) = [hit.record for hit in await store.query("txn-by-deadline", "", "~")]
        await store.delete(left.key)
        await wait_all_tasks_blocked()
        assert shown.view().open_transactions == 0
        nursery.cancel_scope.cancel()
