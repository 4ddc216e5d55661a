"""Topics that move from one living broker to another, on one metadata store and one simulated disk."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker import handover
from broker.cluster.assignments import ASSIGNMENTS, Why
from broker.cluster.broker_load import BROKER_LOADS, BrokerLoad
from broker.cluster.locating import At, Here
from broker.cluster.members import DRAINING
from broker.cluster.ownership import BrokerDrains, OwnedElsewhere, claim_key
from broker.cluster.placement import choose
from broker.handover import TAKE_SECONDS_MAX, NoSuchBroker, NotOwned
from broker.names import TopicName
from broker.topic import Topic
from dispatch.subscription import Acknowledgement
from storage.errors import SPACE_RETRY_SECONDS, NoSpace
from storage.managed_ledger_record import is_there
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Delete, MetadataStore, Op, Put, StoreFull, StoreUnavailable, starting_with
from storage.ranges import EntryAck
from storage.writer import Writer
from tests.support.disk import SimulatedFiles
from tests.support.outlet import recording_consumer
from tests.support.rooms import TOPIC, Rooms, payloads, publish, rooms, subscribe, visible
from tests.support.steered_store import SteeredStore
from txn.states import EndAction

PLAIN = TopicName.parse("persistent://public/default/plain")


@dataclass
class Client:
    """A producer or consumer that records what it is told."""

    name: str = "p"
    follows_layout: bool = True
    sent_to: list[str | None] = field(default_factory=list)

    def topic_closed(self, assigned_url: str | None = None) -> None:
        self.sent_to.append(assigned_url)

    def topic_replaced(self) -> None:
        raise AssertionError("no segment is replaced")


async def alive(_writer: Writer) -> bool:
    return True


@asynccontextmanager
async def brokers(store: MetadataStore, *names: str, files: SimulatedFiles | None = None) -> AsyncIterator[list[Rooms]]:
    """Run registered brokers on one disk, which take what is handed over to them."""
    files = files or SimulatedFiles(seed=3)

    async def run(name: str, stop: trio.Event, *, task_status: trio.TaskStatus[Rooms]) -> None:
        async with (
            rooms(store, files.process(), broker_id=name, is_alive=alive) as broker,
            trio.open_nursery() as tasks,
        ):
            await broker.register()
            tasks.start_soon(broker.handover.run)
            tasks.start_soon(broker.shards.run)
            task_status.started(broker)
            await stop.wait()
            tasks.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        made = [await nursery.start(run, name, stop) for name in names]
        await wait_all_tasks_blocked()
        yield made
        stop.set()


def await_topic(nursery: trio.Nursery, broker: Rooms, name: TopicName, *, creates: bool = True) -> list[Topic]:
    came: list[Topic] = []

    async def come() -> None:
        came.append(await broker.topics.get(name, creates=creates))

    nursery.start_soon(come)
    return came


async def assignments(store: MetadataStore) -> list[str]:
    return [record.key for record in await store.scan(*starting_with(ASSIGNMENTS))]


async def test_a_moved_topic_is_taken_with_everything_in_it() -> None:
    """C7, E13: messages, cursors, open transactions and their acknowledgements go on at the next owner."""
    store = MemoryStore()
    async with brokers(store, "one", "two") as (one, two):
        await one.controller.create_topic(TOPIC, 1, {})
        await subscribe(one, "s")
        name = await one.segment(TOPIC, 0)
        topic = await one.topics.get(name)
        for value in (b"a", b"b", b"c"):
            await publish(topic, value)
        committed, aborted = [await one.coordinator.new_transaction(0, 60_000) for _ in range(2)]
        first, second, _third = await visible(topic)
        consumer, outlet = recording_consumer()
        topic.subscriptions["s"].add_consumer(consumer)
        topic.subscriptions["s"].flow(consumer, 1)
        await wait_all_tasks_blocked()
        assert outlet.positions == [first.position]
        topic.subscriptions["s"].acknowledge([Acknowledgement(first.position)])
        topic.subscriptions["s"].remove_consumer(consumer)
        await topic.acknowledge_in_transaction(topic.subscriptions["s"], committed, [EntryAck(second.position)])
        await publish(topic, b"committed", committed)
        await publish(topic, b"aborted", aborted)
        clients = Client("p"), Client("q")
        for client in clients:
            topic.add_producer(client)

        await one.handover.move(name, "two")
        await wait_all_tasks_blocked()

        assert [client.sent_to for client in clients] == [["pulsar://two:6650"]] * 2
        assert two.opened == [name]
        assert await assignments(store) == []
        assert await one.locator.locate(name, authoritative=False) == At("pulsar://two:6650")
        assert await two.locator.locate(name, authoritative=False) == Here()
        await two.coordinator.end(committed, EndAction.COMMIT)
        await two.coordinator.end(aborted, EndAction.ABORT)
        await wait_all_tasks_blocked()
        moved = await two.topics.get(name)
        assert await payloads(moved) == [b"a", b"b", b"c", b"committed"]
        consumer, outlet = recording_consumer()
        moved.subscriptions["s"].add_consumer(consumer)
        moved.subscriptions["s"].flow(consumer, 10)
        await wait_all_tasks_blocked()
        entries = {entry.position: entry.payload for entry in await visible(moved)}
        assert [entries[position] for position in outlet.positions] == [b"c", b"committed"]
        await publish(moved, b"after")
        # Back again: the first owner is a new owner like any other.
        await two.handover.move(name, "one")
        await wait_all_tasks_blocked()
        assert (await payloads(await one.topics.get(name)))[-2:] == [b"committed", b"after"]


async def test_clients_that_come_before_the_topic_wait_for_it(autojump_clock: MockClock) -> None:
    """E13: the owner sends its clients away before it has released the topic. Nobody tells them to try again."""
    store = MemoryStore()
    async with brokers(store, "one", "two") as (one, two):
        topic = await one.topics.get(PLAIN)
        await one.assignments.assign(str(PLAIN), "two", Why.MOVE, condition=topic.claim)
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as clients:
            came = [await_topic(clients, two, PLAIN) for _ in range(2)]
            await trio.sleep(TAKE_SECONDS_MAX / 2)
            assert came == [[], []]
            await one.topics.unload(PLAIN)
        assert came == [[await two.topics.get(PLAIN)]] * 2


async def test_what_cannot_be_moved_stays() -> None:
    """E13: a wrong broker, a topic of somebody else, and a store without space change nothing."""
    store = SteeredStore()
    async with brokers(store, "one", "two") as (one, two):
        topic = await one.topics.get(PLAIN)
        client = Client()
        topic.add_producer(client)
        with pytest.raises(NoSuchBroker, match="take topics: one, two"):
            await one.handover.move(PLAIN, "three")
        for move in (two.handover.move(PLAIN, "one"), two.handover.unload(PLAIN)):
            with pytest.raises(NotOwned, match="two does not own"):
                await move
        await one.handover.move(PLAIN, "one")

        async def full(ops: Sequence[Op]) -> None:
            if any(isinstance(op, Put) and op.key.startswith(ASSIGNMENTS) for op in ops):
                raise StoreFull("no space")

        store.before = full
        with pytest.raises(StoreFull):
            await one.handover.move(PLAIN, "two")
        await publish(topic, b"goes on")
        assert client.sent_to == []
        assert two.opened == []


async def test_an_unloaded_topic_is_placed_by_the_next_lookup() -> None:
    async with brokers(MemoryStore(), "one", "two") as (one, _two):
        topic = await one.topics.get(PLAIN)
        client = Client()
        topic.add_producer(client)
        await one.handover.unload(PLAIN)
        assert client.sent_to == [None]
        assert one.topics.owned == ()
        assert isinstance(await one.topics.get(PLAIN), type(topic))


async def test_a_drained_broker_owns_nothing_and_takes_nothing() -> None:
    """C21, E17: lookups name the others, also for new topics. Once it takes topics again, it gets some."""
    store = MemoryStore()
    async with brokers(store, "one", "two", "three") as (one, two, three):
        names = [TopicName.parse(f"persistent://public/default/{number}") for number in range(20)]
        for name in names:
            await publish(await one.topics.get(name), str(name).encode())
        await one.control()
        await one.handover.drain()
        await wait_all_tasks_blocked()
        assert one.topics.owned == ()
        assert one.elections.held == ()
        taken = [set(broker.topics.owned) for broker in (two, three)]
        assert set.union(*taken) == set(names)
        assert all(taken), "each of the others got some"
        assert await assignments(store) == []
        for name in names:
            owner = two if name in taken[0] else three
            assert await payloads(await owner.topics.get(name)) == [str(name).encode()]
            assert await one.locator.locate(name, authoritative=True) == At(
                f"pulsar://{owner.foundation.settings.broker_id}:6650"
            )
        with pytest.raises(BrokerDrains):
            await one.topics.get(PLAIN)
        with pytest.raises(NoSuchBroker, match="is draining"):
            await two.handover.move(next(iter(taken[0])), "one")
        await one.handover.drain()
        await one.handover.undrain()
        await one.handover.undrain()
        await wait_all_tasks_blocked()
        await publish(await one.topics.get(PLAIN), b"again")


async def test_a_broker_that_came_later_gets_its_share() -> None:
    """C7: after a restart of each broker, the last one has nothing. Then everything is spread as placement would."""
    store = MemoryStore()
    async with brokers(store, "one", "two", "three") as started:
        one, *_others = started
        await one.controller.create_topic(TOPIC, 4, {})
        names = [PLAIN, *[await one.segment(TOPIC, number) for number in range(4)]]
        for name in names:
            await one.topics.get(name)
            await publish(await one.topics.get(name), b"a")
        places = {name: choose(name, one.members.live, {}) for name in names}
        assert len(set(places.values())) == 3
        # Whatever the loads are: they lag behind.
        await store.put(BROKER_LOADS + "two", BrokerLoad(0.9, 1.0, 1.0, 1).encode())
        await wait_all_tasks_blocked()
        assert await one.handover.balance() == sum(place != "one" for place in places.values())
        await wait_all_tasks_blocked()
        assert {name: broker.claims.broker_id for broker in started for name in broker.topics.owned} == places
        for broker in started:
            assert await broker.handover.balance() == 0
            for name in broker.topics.owned:
                assert await payloads(await broker.topics.get(name)) == [b"a"]


async def test_what_cannot_be_handed_over_stays() -> None:
    """C21: on a store without space for the assignment, for example."""
    store = SteeredStore()
    async with brokers(store, "one", "two") as (one, two):
        name = next(
            name
            for number in range(9)
            if choose(name := TopicName.parse(f"persistent://public/default/{number}"), one.members.live, {}) == "two"
        )
        await one.topics.get(name)

        async def full(_ops: Sequence[Op]) -> None:
            raise StoreFull("no space")

        store.before = full
        assert await one.handover.balance() == 0
        store.before = None
        assert one.topics.owned == (name,)
        assert await one.handover.balance() == 1
        await wait_all_tasks_blocked()
        assert two.topics.owned == (name,)


async def test_a_drain_releases_what_cannot_be_assigned() -> None:
    """C21: the store has no space for the assignment. The next lookup places the topic."""
    store = SteeredStore()
    async with brokers(store, "one", "two") as (one, two):
        await publish(await one.topics.get(PLAIN), b"a")

        async def full(ops: Sequence[Op]) -> None:
            if any(isinstance(op, Put) and op.key.startswith(ASSIGNMENTS) for op in ops):
                raise StoreFull("no space")

        store.before = full
        await one.handover.drain()
        assert one.topics.owned == ()
        assert await payloads(await two.topics.get(PLAIN)) == [b"a"]


async def test_a_drain_goes_on_when_the_last_other_broker_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    """C21: what is left is released, and nobody is named to its clients."""
    monkeypatch.setattr(handover, "AT_ONCE_MAX", 1)
    store = SteeredStore()
    async with brokers(store, "one", "two") as (one, _two):
        clients = []
        for number in range(2):
            topic = await one.topics.get(TopicName.parse(f"persistent://public/default/{number}"))
            clients.append(Client())
            topic.add_producer(clients[-1])

        async def drain_two(ops: Sequence[Op]) -> None:
            if any(isinstance(op, Put) and op.key.startswith(ASSIGNMENTS) for op in ops):
                store.after = None
                await store.put(DRAINING + "two", b"{}")

        store.after = drain_two
        await one.handover.drain()
        assert one.topics.owned == ()
        assert {client.sent_to[0] for client in clients} == {"pulsar://two:6650", None}


async def test_a_topic_that_was_just_lost_is_not_moved() -> None:
    """D4: whoever asked is told, and its new owner keeps it."""
    store = MemoryStore()
    async with brokers(store, "one", "two") as (one, _two):
        topic = await one.topics.get(PLAIN)
        await store.put(topic.claim.key, b'{"broker": "three", "service_url": "pulsar://three:6650"}')
        with pytest.raises(NotOwned, match="just lost"):
            await one.handover.move(PLAIN, "two")
        assert await assignments(store) == []


async def test_topics_stay_where_they_are_while_the_disk_is_full(autojump_clock: MockClock) -> None:
    """E13: to close one takes space, and until there is some it would serve nobody. Reads go on here."""
    store, files = MemoryStore(), SimulatedFiles(seed=3)
    async with brokers(store, "one", "two", files=files) as (one, two):
        names = [TopicName.parse(f"persistent://public/default/{number}") for number in range(9)]
        for name in names:
            await publish(await one.topics.get(name), b"a")
        files.set_capacity(files.used_bytes)
        async with trio.open_nursery() as nursery:
            # This notices it.
            nursery.start_soon((await one.topics.get(names[0])).ledger.close)
            await trio.sleep(1)
            topic = await one.topics.get(names[1])
            client = Client()
            topic.add_producer(client)
            with trio.fail_after(1):
                for refused in (one.handover.move(names[1], "two"), one.handover.unload(names[1])):
                    with pytest.raises(NoSpace):
                        await refused
                assert await one.handover.balance() == 0
                await one.handover.drain()
            assert client.sent_to == []
            assert await payloads(topic) == [b"a"]
            assert await assignments(store) == []
            files.set_capacity(None)
        await trio.sleep(2 * SPACE_RETRY_SECONDS)
        await one.handover.drain()
        await wait_all_tasks_blocked()
        assert set(two.topics.owned) == set(names)


async def test_a_broker_that_goes_meanwhile_gets_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """C21: to hand many topics over takes a while. What is left goes by the brokers of that moment."""
    monkeypatch.setattr(handover, "AT_ONCE_MAX", 1)
    store = SteeredStore()
    async with brokers(store, "one", "two") as (one, _two):
        names = [TopicName.parse(f"persistent://public/default/{number}") for number in range(9)]
        belonging = [name for name in names if choose(name, one.members.live, {}) == "two"]
        assert len(belonging) > 1
        for name in belonging:
            await one.topics.get(name)

        async def drain_two(ops: Sequence[Op]) -> None:
            if any(isinstance(op, Put) and op.key.startswith(ASSIGNMENTS) for op in ops):
                store.after = None
                await store.put(DRAINING + "two", b"{}")

        store.after = drain_two
        assert await one.handover.balance() == 1
        assert len(one.topics.owned) == len(belonging) - 1


async def test_a_repeated_drain_resigns_what_the_first_one_could_not() -> None:
    """C21: the claim stayed until the broker's end. Nobody could register or split, because it takes nothing new."""
    store = SteeredStore()
    async with brokers(store, "one", "two") as (one, two):
        await one.control()

        async def unanswered(ops: Sequence[Op]) -> None:
            if any(isinstance(op, Delete) and op.key == claim_key(str(TOPIC)) for op in ops):
                store.before = None
                raise StoreUnavailable("no answer")

        store.before = unanswered
        with pytest.raises(StoreUnavailable):
            await one.handover.drain()
        await one.handover.drain()
        await two.elections.elect(TOPIC)


async def test_coordinators_leave_a_drained_broker_and_return(autojump_clock: MockClock) -> None:
    """C21: they follow the members. A claim that is refused while the broker drains would not be tried again."""
    store = SteeredStore()

    async def slowly(ops: Sequence[Op]) -> None:
        if any(isinstance(op, Delete) and op.key.startswith(DRAINING) for op in ops):
            # The watches show it before the caller is told.
            await trio.sleep(1)

    store.after = slowly
    async with brokers(store, "one", "two") as (one, two):

        def shards_of(broker: Rooms) -> set[int]:
            return {number for number in range(broker.shards.count) if broker.shards.is_mine(number)}

        before = shards_of(one)
        assert before
        await one.handover.drain()
        await wait_all_tasks_blocked()
        assert shards_of(one) == set()
        assert shards_of(two) == set(range(two.shards.count))
        await one.handover.undrain()
        await wait_all_tasks_blocked()
        assert shards_of(one) == before


async def test_the_last_broker_is_not_drained() -> None:
    """C21: nobody could serve its topics, also if the others are registered but drain."""
    store = MemoryStore()
    async with brokers(store, "one", "two") as (one, two):
        await two.handover.drain()
        await wait_all_tasks_blocked()
        with pytest.raises(NoSuchBroker, match="Start another broker"):
            await one.handover.drain()
        assert [record.key for record in await store.scan(*starting_with(DRAINING))] == [DRAINING + "two"]
        await one.topics.get(PLAIN)


async def test_a_topic_that_is_never_released_is_given_up(autojump_clock: MockClock) -> None:
    """E8: the owner that assigned it hangs. The next broker does not wait for it for ever."""
    store = MemoryStore()
    async with brokers(store, "one", "two") as (one, two):
        topic = await one.topics.get(PLAIN)
        await one.assignments.assign(str(PLAIN), "two", Why.MOVE, condition=topic.claim)
        await trio.sleep(2 * TAKE_SECONDS_MAX)
        assert two.opened == []
        assert two.topics.owned == ()
        with pytest.raises(OwnedElsewhere, match="Broker one"):
            await two.topics.get(PLAIN)
        assert await payloads(topic) == []
        # Nor is it tried again with each later assignment.
        other = await one.topics.get(PLAIN.parse(f"{PLAIN}-2"))
        await one.assignments.assign(str(other.name), "two", Why.MOVE, condition=other.claim)
        await wait_all_tasks_blocked()
        assert set(two.topics.owned) == {other.name}


async def test_a_topic_that_is_deleted_before_it_is_released_is_not_made_again(autojump_clock: MockClock) -> None:
    """E13: the next broker has seen it, and waits. It would make an empty topic of that name."""
    store = MemoryStore()
    async with brokers(store, "one", "two") as (one, two):
        await one.controller.create_topic(TOPIC, 1, {})
        segment = await one.segment(TOPIC, 0)
        for name in (PLAIN, segment):
            topic = await one.topics.get(name)
            await one.assignments.assign(str(name), "two", Why.MOVE, condition=topic.claim)
        await wait_all_tasks_blocked()
        assert set(two.topics.owned) == {PLAIN, segment}, "it waits for both"
        await one.topics.delete(PLAIN)
        await one.controller.delete_topic(TOPIC, force=True)
        await wait_all_tasks_blocked()
        assert two.opened == []
        assert two.topics.owned == ()
        assert not await is_there(str(PLAIN), store)
        assert not await is_there(str(segment), store)


async def test_a_client_that_may_create_the_topic_gets_it_although_it_is_deleted(autojump_clock: MockClock) -> None:
    """E13: it came while the next broker waited for the topic. It would get a new one at any other moment, too."""
    store = MemoryStore()
    async with brokers(store, "one", "two") as (one, two):
        topic = await one.topics.get(PLAIN)
        await publish(topic, b"before")
        await one.assignments.assign(str(PLAIN), "two", Why.MOVE, condition=topic.claim)
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as clients:
            came = [await_topic(clients, two, PLAIN, creates=creates) for creates in (False, True, False)]
            await wait_all_tasks_blocked()
            await one.topics.delete(PLAIN)
        assert [[await payloads(made) for made in each] for each in came] == [[[]]] * 3
