"""If a topic ends in a living broker, for any reason, another broker of the same folder can take it over."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster.ownership import KEY_PREFIX as OWNERS
from broker.cluster.ownership import OwnedElsewhere
from broker.errors import TopicClosed
from broker.names import TopicName
from broker.store_retry import RETRY_SECONDS
from broker.topic import Topic
from broker.topic_claims import RELEASE_SECONDS_MAX
from storage.metadata.store import Check, Delete, Op, Put, StoreUnavailable
from storage.position import EARLIEST
from storage.writer import Writer
from tests.support.disk import SimulatedFiles
from tests.support.rooms import Rooms, payloads, publish, rooms
from tests.support.steered_store import SteeredStore
from txn.errors import OwnershipLost

PLAIN = TopicName.parse("persistent://public/default/plain")
OTHER = TopicName.parse("persistent://public/default/other")


async def alive(_writer: Writer) -> bool:
    return True


@asynccontextmanager
async def two_brokers(store: SteeredStore, files: SimulatedFiles) -> AsyncIterator[tuple[Rooms, Rooms]]:
    """Run two living brokers, which do not fence each other."""
    async with (
        rooms(store, files, broker_id="one", is_alive=alive) as one,
        rooms(store, files.process(), broker_id="two", is_alive=alive) as two,
    ):
        yield one, two


def fail(topic: Topic, error: Exception | None = None) -> None:
    """Let one of the topic's tasks raise this error."""

    async def task() -> None:
        await trio.lowlevel.checkpoint()
        raise error or KeyError("defect")

    assert topic._nursery is not None
    topic._nursery.start_soon(task)


@pytest.mark.parametrize("error", [KeyError("defect"), StoreUnavailable("no answer"), OwnershipLost("no answer")])
async def test_a_topic_that_failed_in_a_living_broker_is_taken_over(error: Exception) -> None:
    """E4, E11: the first broker's confirmed entries are there, and its other topics continue."""
    files = SimulatedFiles(seed=1)
    async with two_brokers(SteeredStore(), files) as (one, two):
        topic, other = await one.topics.get(PLAIN), await one.topics.get(OTHER)
        await publish(topic, b"a")
        await topic.subscribe("s", EARLIEST)
        fail(topic, error)
        await wait_all_tasks_blocked()
        taken = await two.topics.get(PLAIN)
        assert await payloads(taken) == [b"a"]
        await publish(taken, b"b")
        assert set(taken.subscriptions) == {"s"}
        await publish(other, b"goes on")
        await two.topics.unload(PLAIN)
        assert await payloads(await one.topics.get(PLAIN)) == [b"a", b"b"]


async def test_a_topic_that_failed_while_it_was_opened_is_taken_over() -> None:
    """E4: its new ledger is already on record."""
    files = SimulatedFiles(seed=2)
    async with two_brokers(SteeredStore(), files) as (one, two):
        real = one.topics._open_topic

        async def broken(name: TopicName, claim: Check) -> Topic:
            await real(name, claim)
            raise StoreUnavailable("no answer")

        one.topics._open_topic = broken
        with pytest.raises(TopicClosed):
            await one.topics.get(PLAIN)
        await publish(await two.topics.get(PLAIN), b"a")


async def test_a_topic_whose_deletion_failed_is_taken_over() -> None:
    """E4: at each change set of a deletion; otherwise the first broker keeps it and can finish the deletion."""
    for step in range(1, 20):
        files, store = SimulatedFiles(seed=step), SteeredStore()
        async with two_brokers(store, files) as (one, two):
            topic = await one.topics.get(PLAIN)
            await publish(topic, b"a")
            await topic.subscribe("s", EARLIEST)
            store.leave_unanswered(step, made=False)
            try:
                await one.topics.delete(PLAIN)
            except Exception:
                await wait_all_tasks_blocked()
            else:
                assert step > 2
                return
            try:
                await two.topics.delete(PLAIN)
            except OwnedElsewhere:
                await one.topics.delete(PLAIN)
            assert [record.key for record in await store.scan("", "~") if "plain" in record.key] == []
    pytest.fail("the deletion never ended")


@pytest.mark.parametrize("is_refused", [False, True])
async def test_a_topic_whose_end_cannot_be_recorded_stays_with_its_broker(
    autojump_clock: MockClock, is_refused: bool
) -> None:
    """E4, E14: no other broker could take it over, so it is not released; this broker loads it again."""
    files, store = SimulatedFiles(seed=4), SteeredStore()
    async with two_brokers(store, files) as (one, two):
        topic = await one.topics.get(PLAIN)
        await publish(topic, b"a")

        async def stall(ops: Sequence[Op]) -> None:
            if any("managed-ledgers" in op.key for op in ops if isinstance(op, Put)):
                if is_refused:
                    raise StoreUnavailable("no answer")
                await trio.sleep_forever()

        store.before = stall
        fail(topic)
        await trio.sleep(RELEASE_SECONDS_MAX + 1)
        store.before = None
        with pytest.raises(OwnedElsewhere, match="one"):
            await two.topics.get(PLAIN)
        assert await payloads(await one.topics.get(PLAIN)) == [b"a"]
        await one.topics.unload(PLAIN)
        assert await payloads(await two.topics.get(PLAIN)) == [b"a"]


async def test_a_topic_that_fails_on_a_full_disk_stays_with_its_broker(autojump_clock: MockClock) -> None:
    """E13: its ledger cannot be completed, so no other broker can read it, but this one can."""
    files = SimulatedFiles(seed=5)
    async with two_brokers(SteeredStore(), files) as (one, two):
        topic = await one.topics.get(PLAIN)
        await publish(topic, b"a")
        files.set_capacity(files.used_bytes)
        fail(topic)
        await trio.sleep(2 * RELEASE_SECONDS_MAX)
        with pytest.raises(OwnedElsewhere, match="one"):
            await two.topics.get(PLAIN)
        assert await payloads(await one.topics.get(PLAIN)) == [b"a"]
        files.set_capacity(None)
        await one.topics.unload(PLAIN)
        assert await payloads(await two.topics.get(PLAIN)) == [b"a"]


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_ledger_that_is_listed_late_keeps_nobody_out(autojump_clock: MockClock, is_new: bool) -> None:
    """E4, E14: the store made the change set after its caller had given up, and had read the record without it.

    The record then names a ledger that only this broker can end. So it does not give the topic up before that.
    """
    files, store = SimulatedFiles(seed=6), SteeredStore()
    async with two_brokers(store, files) as (one, two):
        if not is_new:
            await publish(await one.topics.get(PLAIN), b"a")
            await one.topics.unload(PLAIN)
        late: list[Sequence[Op]] = []

        async def delay(ops: Sequence[Op]) -> None:
            if not late and any("managed-ledgers" in op.key for op in ops if isinstance(op, Put)):
                late.append(ops)
                raise StoreUnavailable("no answer")
            if late and any(isinstance(op, Delete) and op.key.startswith(OWNERS) for op in ops):
                store.before = None
                await store.commit(late[0])

        store.before = delay
        with pytest.raises(TopicClosed):
            await one.topics.get(PLAIN)
        await trio.sleep(2 * RETRY_SECONDS)
        taken = await two.topics.get(PLAIN)
        await publish(taken, b"b")
        assert await payloads(taken) == ([b"b"] if is_new else [b"a", b"b"])
