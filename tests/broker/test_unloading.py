"""Topics that are unloaded: by request, when unused, and when the broker stops."""

from collections.abc import Sequence
from errno import EIO
from typing import Any
from urllib.parse import quote, unquote

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker import topic_claims
from broker.cluster.ownership import KEY_PREFIX as OWNERS
from broker.cluster.ownership import OwnedElsewhere
from broker.errors import TopicClosed
from broker.names import TopicName
from broker.store_retry import RETRY_SECONDS
from broker.topic import Topic
from broker.topics import IDLE_SECONDS_MAX
from storage.managed_ledger_opening import let_go_of_managed_ledger
from storage.metadata.store import ABSENT, ChangeSetTooLarge, Check, Delete, Op, Put, StoreUnavailable, starting_with
from storage.position import EARLIEST
from tests.support.disk import SimulatedFiles
from tests.support.idle import TaskSteps
from tests.support.outlet import recording_consumer
from tests.support.rooms import TOPIC, Rooms, payloads, publish, rooms
from tests.support.steered_store import SteeredStore
from txn.errors import OwnershipLost
from txn.states import EndAction

PLAIN = TopicName.parse("persistent://public/default/plain")
OTHER = TopicName.parse("persistent://public/default/other")


class Client:
    """A producer or consumer that records what it is told."""

    follows_layout = True

    def __init__(self, name: str = "p") -> None:
        self.name = name
        self.closed = 0
        self.replaced = 0

    def topic_closed(self, assigned_url: str | None = None) -> None:
        self.closed += 1

    def topic_replaced(self) -> None:
        self.replaced += 1


async def claims(broker: Rooms) -> list[str]:
    return [record.key for record in await broker.metadata.scan(*starting_with(OWNERS))]


async def test_unloading_sends_clients_away_writes_cursors_and_gives_the_claim_up(broker: Rooms) -> None:
    topic = await broker.topics.get(PLAIN)
    await publish(topic, b"a")
    subscription = await topic.subscribe("s", EARLIEST)
    producer, client = Client(), Client()
    topic.add_producer(producer)
    consumer, outlet = recording_consumer()
    subscription.add_consumer(consumer)
    topic.clients.add_consumer(consumer, client)
    subscription.flow(consumer, 10)
    await wait_all_tasks_blocked()
    (position,) = outlet.positions
    subscription.cursor.acknowledge_cumulative(position)
    await broker.topics.unload(PLAIN)
    assert (producer.closed, client.closed) == (1, 1)
    assert await claims(broker) == []
    assert not broker.topics.is_in_use(PLAIN)
    with pytest.raises(TopicClosed):
        topic.add_producer(producer)
    with pytest.raises(TopicClosed):
        await topic.subscribe("s", EARLIEST)
    again = await broker.topics.get(PLAIN)
    assert again is not topic
    assert again.subscriptions["s"].cursor.mark_delete == position
    await broker.topics.unload(OTHER)


async def test_readers_may_leave_at_any_step_of_the_brokers_end() -> None:
    """E14: a session's end cancels topics and connections together, and each connection ends its readers."""
    for step in range(40):
        async with rooms(SteeredStore(), SimulatedFiles(seed=1)) as broker, trio.open_nursery() as nursery:
            ended = trio.CancelScope()

            async def serve(ended: trio.CancelScope, *, task_status: trio.TaskStatus[Topic]) -> None:
                with ended:
                    name = TopicName.parse("persistent://public/default/readers")
                    topic = await Topic.open(name, broker.services, await broker.claims.claim(str(name)))
                    async with trio.open_nursery() as tasks:
                        await tasks.start(topic.run)
                        task_status.started(topic)

            topic: Topic = await nursery.start(serve, ended)
            subscriptions = [topic.subscribe_reader(f"r-{number}", EARLIEST) for number in range(2)]
            await wait_all_tasks_blocked()
            ended.cancel()
            for _ in range(step):
                await trio.lowlevel.checkpoint()
            for subscription in subscriptions:
                topic.end_reader(subscription)


async def test_unloading_a_topic_whose_cursor_has_ended_still_unloads_it(broker: Rooms, store: SteeredStore) -> None:
    """D4: if the last acknowledgements cannot be written, the topic is still unloaded."""
    topic = await broker.topics.get(PLAIN)
    await publish(topic, b"a")
    subscription = await topic.subscribe("s", EARLIEST)
    (key,) = await claims(broker)
    await store.put(key, b'{"broker": "broker-2"}')
    subscription.cursor.acknowledge_cumulative(topic.ledger.last_position)
    await broker.topics.unload(PLAIN)
    assert list(broker.topics) == []
    with pytest.raises(OwnedElsewhere):
        await broker.topics.get(PLAIN)


async def test_a_claim_that_could_not_be_given_up_keeps_nobody_out(
    broker: Rooms, store: SteeredStore, autojump_clock: MockClock
) -> None:
    """D4: the metadata store does not answer during the unload; when it answers again, the topic is served."""

    async def hang(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Delete) and op.key.startswith(OWNERS) for op in ops):
            await trio.sleep_forever()

    await publish(await broker.topics.get(PLAIN), b"before")
    store.before = hang
    await broker.topics.unload(PLAIN)
    store.before = None
    assert len(await claims(broker)) == 1
    await publish(await broker.topics.get(PLAIN), b"after")


async def test_a_claim_that_nobody_knows_of_is_given_up_each_time(
    broker: Rooms, store: SteeredStore, autojump_clock: MockClock
) -> None:
    """D4, C14: its answer was lost. Others would wait for what the owner does."""
    for _ in range(2):
        store.leave_unanswered(1, made=True)
        with pytest.raises(StoreUnavailable):
            await broker.topics.get(PLAIN)
        assert len(await claims(broker)) == 1
        await trio.sleep(2 * RETRY_SECONDS)
        assert await claims(broker) == []


async def test_a_claim_that_is_made_late_is_given_up(
    broker: Rooms, store: SteeredStore, autojump_clock: MockClock
) -> None:
    """D4, C14: the store's disk stands still, and a read shows no claim. The change set waits before all later ones."""
    waiting: list[Sequence[Op]] = []

    async def stand_still(ops: Sequence[Op]) -> None:
        if not waiting and any(isinstance(op, Put) and op.key.startswith(OWNERS) for op in ops):
            waiting.append(ops)
            raise StoreUnavailable("no answer")
        if waiting:
            store.before = None
            await store.commit(waiting[0])

    store.before = stand_still
    with pytest.raises(StoreUnavailable):
        await broker.topics.get(PLAIN)
    await trio.sleep(4 * RETRY_SECONDS)
    await store.put("/anything", b"", expected=ABSENT)
    assert await claims(broker) == []


async def test_a_claim_to_give_up_later_waits_without_a_step_while_the_topic_is_used(
    broker: Rooms, store: SteeredStore, autojump_clock: MockClock
) -> None:
    """D4, E16: its end gives the claim up. Before that, there is nothing to try."""
    store.leave_unanswered(1, made=True)
    with pytest.raises(StoreUnavailable):
        await broker.topics.get(PLAIN)
    topic = await broker.topics.get(PLAIN)
    with topic.clients.held():
        await trio.sleep(2 * RETRY_SECONDS)
        with TaskSteps() as steps:
            await trio.sleep(10 * RETRY_SECONDS)
            assert steps.of("TopicClaims._leave_perhaps") == 0
            assert len(await claims(broker)) == 1
            await broker.topics.unload(PLAIN)
            await wait_all_tasks_blocked()
            assert steps.of("TopicClaims._leave_perhaps") > 0
    assert await claims(broker) == []


async def test_a_disk_fault_at_the_end_of_a_topic_ends_no_other(
    broker: Rooms, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E11: its files cannot be read for a while. Then the broker gives the topic up."""
    faults = 3

    async def faulty(name: str, **others: Any) -> Check | None:
        nonlocal faults
        if faults:
            faults -= 1
            raise OSError(EIO, "Input/output error")
        return await let_go_of_managed_ledger(name, **others)

    monkeypatch.setattr(topic_claims, "let_go_of_managed_ledger", faulty)
    await publish(await broker.topics.get(PLAIN), b"a")
    await broker.topics.unload(PLAIN)
    await publish(await broker.topics.get(OTHER), b"goes on")
    await trio.sleep(4 * RETRY_SECONDS)
    assert [unquote(key.removeprefix(OWNERS)) for key in await claims(broker)] == [str(OTHER)]


async def test_closing_writes_all_cursors_at_once_and_leaves_the_claims_to_the_session(
    broker: Rooms, store: SteeredStore, autojump_clock: MockClock
) -> None:
    """E17: there are two rounds of writes, cursors and then ledgers' ends, for any number of topics. Each takes 1 s."""
    held = []
    for number in range(10):
        topic = await broker.topics.get(TopicName.parse(f"persistent://public/default/many-{number}"))
        await publish(topic, b"a")
        held += [(await topic.subscribe(f"s-{name}", EARLIEST), topic.readable.value) for name in range(5)]
    written: list[str] = []

    async def slowly(ops: Sequence[Op]) -> None:
        written.extend(op.key for op in ops if isinstance(op, Put | Delete))
        await trio.sleep(1)

    store.before = slowly
    for subscription, position in held:
        subscription.cursor.acknowledge_cumulative(position)
    began = trio.current_time()
    await broker.topics.close()
    assert trio.current_time() - began == 2
    assert len(written) == len(set(written)) == len(held) + 10
    assert not any(key.startswith(OWNERS) for key in written)
    assert all(key.startswith("/cursors/") for key in written[: len(held)])


async def test_closing_one_topic_in_vain_lets_the_others_write(broker: Rooms, store: SteeredStore) -> None:
    """E11, E17: the store refuses one topic's record, and the other topics' cursors are written."""
    for name in (PLAIN, OTHER):
        topic = await broker.topics.get(name)
        await publish(topic, b"a")
        subscription = await topic.subscribe("s", EARLIEST)
        subscription.cursor.acknowledge(topic.ledger.last_position)
    refused = "/managed-ledgers/" + quote(str(PLAIN), safe="")

    async def refuse(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Put) and op.key == refused for op in ops):
            raise ChangeSetTooLarge("the record is too large")

    store.before = refuse
    await broker.topics.close()
    written = {info.key: info for info in await store.scan("/managed-ledgers/", "/managed-ledgers0")}
    assert b"true" in written["/managed-ledgers/" + quote(str(OTHER), safe="")].value


async def test_asking_while_it_is_unloaded(broker: Rooms, store: SteeredStore) -> None:
    """The caller is told to look again, or gets the next object of the topic, never an ending one."""
    topic = await broker.topics.get(PLAIN)
    await topic.subscribe("s", EARLIEST)
    held = trio.Event()

    async def hold(ops: Sequence[Op]) -> None:
        if not any(isinstance(op, Put) for op in ops):
            await held.wait()

    store.before = hold
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.topics.unload, PLAIN)
        await wait_all_tasks_blocked()
        found = await broker.topics.get(PLAIN)
        with pytest.raises(TopicClosed):
            found.add_producer(Client())
        held.set()
    assert await broker.topics.get(PLAIN) is not topic


async def test_an_unload_that_is_cancelled_goes_on_without_the_caller(broker: Rooms, store: SteeredStore) -> None:
    """E11: the clients are gone, so the topic ends. Otherwise this broker would refuse everybody for ever."""
    topic = await broker.topics.get(PLAIN)
    subscription = await topic.subscribe("s", EARLIEST)
    await publish(topic, b"a")
    subscription.cursor.acknowledge_cumulative(topic.ledger.last_position)
    held = trio.Event()

    async def hold(_ops: Sequence[Op]) -> None:
        await held.wait()

    store.before = hold
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.topics.unload, PLAIN)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    held.set()
    await wait_all_tasks_blocked()
    again = await broker.topics.get(PLAIN)
    again.add_producer(Client())


async def test_a_topic_that_fails_while_it_is_unloaded_ends_alone(broker: Rooms, store: SteeredStore) -> None:
    """D4: a failure and a cancellation happen at the same moment."""
    topic = await broker.topics.get(PLAIN)
    other = await broker.topics.get(OTHER)
    broker.topics._slots[PLAIN].scope.cancel()
    topic.ledger.confirmed.fail(OwnershipLost("at the same moment"))
    assert topic._nursery is not None

    async def fail() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OwnershipLost("in the same moment")

    topic._nursery.start_soon(fail)
    await wait_all_tasks_blocked()
    assert list(broker.topics) == [other]
    await publish(other, b"goes on")


async def test_a_topic_that_nobody_uses_is_unloaded_after_a_while(broker: Rooms, autojump_clock: MockClock) -> None:
    """E16: memory is bounded by the topics in use, not by all topics ever used."""
    topic = await broker.topics.get(PLAIN)
    producer = Client()
    topic.add_producer(producer)
    await publish(topic, b"a")
    await trio.sleep(10 * IDLE_SECONDS_MAX)
    assert list(broker.topics) == [topic]
    topic.clients.remove_producer(producer)
    await trio.sleep(IDLE_SECONDS_MAX - 1)
    assert await broker.topics.get(PLAIN) is topic
    await trio.sleep(IDLE_SECONDS_MAX - 1)
    assert list(broker.topics) == [topic]
    await trio.sleep(2)
    assert list(broker.topics) == []
    assert await claims(broker) == []
    assert broker.ledgers.statistics().open_ledgers == 0
    again = await broker.topics.get(PLAIN)
    assert await payloads(again) == [b"a"]
    await publish(again, b"b")
    assert await payloads(again) == [b"a", b"b"]


async def test_an_idle_topic_is_read_while_the_disk_is_full(autojump_clock: MockClock) -> None:
    """E13: unloading waits until the ledger can be completed; otherwise everybody would wait for the topic."""
    files = SimulatedFiles(seed=5)
    async with rooms(SteeredStore(), files) as broker:
        topic = await broker.topics.get(PLAIN)
        await publish(topic, b"a")
        other = await broker.topics.get(OTHER)
        await publish(other, b"b")
        async with trio.open_nursery() as nursery:
            files.set_capacity(files.used_bytes)
            nursery.start_soon(other.ledger.close)
            await trio.sleep(10 * IDLE_SECONDS_MAX)
            assert broker.ledgers.shortage is not None
            with trio.fail_after(1):
                assert await payloads(await broker.topics.get(PLAIN)) == [b"a"]
            files.set_capacity(None)
        await trio.sleep(3 * IDLE_SECONDS_MAX)
        assert list(broker.topics) == []


async def test_unloading_does_not_pile_up_ledgers(
    monkeypatch: pytest.MonkeyPatch, broker: Rooms, autojump_clock: MockClock
) -> None:
    """E16, E18: each unload leaves a ledger behind; a topic with many stays loaded, so its record stays writable."""
    monkeypatch.setattr("broker.topic.IDLE_LEDGERS_MAX", 3)
    for number in range(20):
        topic = await broker.topics.get(PLAIN)
        await publish(topic, b"%d" % number)
        await trio.sleep(2 * IDLE_SECONDS_MAX)
    assert len(topic.ledger.closed) == 3
    assert await payloads(topic) == [b"%d" % number for number in range(20)]
    assert list(broker.topics) == [topic]


async def test_whoever_asks_while_an_idle_topic_goes_gets_it_anew(
    broker: Rooms, store: SteeredStore, autojump_clock: MockClock
) -> None:
    """E16: nobody gets an error because an idle topic is unloaded."""
    topic = await broker.topics.get(PLAIN)
    await publish(topic, b"a")
    got: list[Topic] = []

    async def ask() -> None:
        got.append(await broker.topics.get(PLAIN))

    async with trio.open_nursery() as nursery:

        async def ask_before(_ops: Sequence[Op]) -> None:
            store.before = None
            for _ in range(3):
                nursery.start_soon(ask)
            await trio.sleep(1)
            assert got == []

        store.before = ask_before
        await trio.sleep(IDLE_SECONDS_MAX + 2)
    assert got[0] is not topic
    assert got == [got[0]] * 3
    assert broker.opened == [PLAIN] * 2, "one of them loads it for all"
    assert await payloads(got[0]) == [b"a"]


async def test_a_transaction_open_on_an_unloaded_segment_is_applied(broker: Rooms, autojump_clock: MockClock) -> None:
    """E16: what open transactions left is in the metadata store, whether the segment is loaded or not."""
    await broker.controller.create_topic(TOPIC, 1, {})
    name = TopicName.parse("segment://public/default/orders/0000-ffff-0")
    topic = await broker.topics.get(name)
    committed, aborted = [await broker.coordinator.new_transaction(0, 900_000) for _ in range(2)]
    await publish(topic, b"kept", txn=committed)
    await publish(topic, b"dropped", txn=aborted)
    await trio.sleep(IDLE_SECONDS_MAX + 1)
    assert list(broker.topics) == []
    await broker.coordinator.end(committed, EndAction.COMMIT)
    await broker.coordinator.end(aborted, EndAction.ABORT)
    assert await payloads(await broker.topics.get(name)) == [b"kept"]


async def test_a_held_topic_stays_loaded(broker: Rooms, autojump_clock: MockClock) -> None:
    topic = await broker.topics.get(PLAIN)
    with topic.clients.held():
        await trio.sleep(2 * IDLE_SECONDS_MAX)
        assert list(broker.topics) == [topic]
    await trio.sleep(IDLE_SECONDS_MAX + 1)
    assert list(broker.topics) == []
