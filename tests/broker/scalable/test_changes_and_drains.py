"""Changes of a topic at a broker that drains: it takes nothing new, and finishes what needs nothing new."""

from collections.abc import Callable, Sequence

import pytest
from trio.testing import MockClock

from broker.cluster.ownership import BrokerDrains, Claims, OwnedElsewhere
from broker.layouts.layout import Layout
from broker.layouts.record import from_json
from broker.layouts.store import layout_key
from storage.metadata.store import Op, Put
from tests.broker.scalable.test_changes_across_brokers import LATE, STREAM, check_whole, leftovers, settled, spread
from tests.support.rooms import TOPIC
from tests.support.several_rooms import Brokers, several
from tests.support.steered_store import SteeredStore


@pytest.fixture(autouse=True)
def bounded_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test in which somebody asks for a refused claim again and again. The clock would stand still for ever."""
    refused, refusals = Claims._refused, 0

    def counted(claims: Claims, topic: str) -> BrokerDrains | None:
        nonlocal refusals
        refusal = refused(claims, topic)
        refusals += refusal is not None
        assert refusals < 20, "it spins"
        return refusal

    monkeypatch.setattr(Claims, "_refused", counted)


async def idle(brokers: Brokers) -> None:
    """Make a topic of two segments with messages and a subscription, which broker `one` controls and nobody owns."""
    for topic in await spread(brokers, "one", "one"):
        await brokers["one"].topics.unload(topic.name)


def drain_once(brokers: Brokers, store: SteeredStore, begun: Callable[[Layout], bool]) -> None:
    """Let broker `one` take nothing new from when the stored layout says that a change has begun."""

    async def drain(ops: Sequence[Op]) -> None:
        layouts = [from_json(op.value) for op in ops if isinstance(op, Put) and op.key == layout_key(TOPIC)]
        if any(begun(layout) for layout in layouts):
            store.after = None
            brokers["one"].claims.refuses_new = True

    store.after = drain


async def test_a_deletion_is_finished(autojump_clock: MockClock) -> None:
    """C7, C14, D16: what it removes it does not have to load. It tried without end."""
    store = SteeredStore()
    async with several("one", "two", shared=store) as brokers:
        await idle(brokers)
        drain_once(brokers, store, lambda layout: layout.is_deleting)
        await brokers["one"].controller.delete_topic(TOPIC, force=True)
        assert brokers["one"].claims.refuses_new
        assert await leftovers(store) == []


async def test_a_deletion_of_a_subscription_is_finished(autojump_clock: MockClock) -> None:
    """C7, C14, D16: its cursors are removed as records."""
    store = SteeredStore()
    async with several("one", "two", shared=store) as brokers:
        await idle(brokers)
        drain_once(brokers, store, lambda layout: any(made.is_deleting for made in layout.subscriptions.values()))
        await brokers["one"].controller.subscriptions.delete(TOPIC, "s")
        assert brokers["one"].claims.refuses_new
        assert [key for key in await leftovers(store) if key.startswith("/cursors/")] == []


async def test_a_split_is_left_to_the_next_controller(autojump_clock: MockClock) -> None:
    """C7, C14, D10: it would have to load the parent."""
    store = SteeredStore()
    async with several("one", "two", shared=store) as brokers:
        await idle(brokers)
        drain_once(brokers, store, lambda layout: layout.intent is not None)
        with pytest.raises(OwnedElsewhere, match="next controller") as refused:
            await brokers["one"].controller.split(TOPIC, 0)
        assert refused.value.retriable
        await brokers["one"].handover.drain()
        await settled(brokers)
        assert brokers["two"].elections.holds(TOPIC)
        await brokers.kill("one")
        assert (await check_whole(brokers, {"s"}, [b"0", b"1"])).epoch == 1


async def test_a_subscription_that_needs_a_segment_is_refused(autojump_clock: MockClock) -> None:
    """C7, C21: the refusal names the segment, whose next owner creates it."""
    async with several("one", "two") as brokers:
        await idle(brokers)
        await brokers["one"].handover.drain()
        with pytest.raises(BrokerDrains) as refused:
            await brokers["one"].controller.subscriptions.add(TOPIC, "late", STREAM, LATE)
        assert refused.value.topic in [str(await brokers["two"].segment(TOPIC, number)) for number in (0, 1)]
        await brokers["two"].controller.subscriptions.add(TOPIC, "late", STREAM, LATE)
        await brokers.kill("one")
        await check_whole(brokers, {"s", "late"}, [b"0", b"1"])
