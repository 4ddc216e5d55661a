"""Two brokers on one metadata store: one of them controls a topic, and the other takes over when it dies."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import orjson
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster.ownership import OwnedElsewhere, claim_key
from broker.errors import BrokerError
from broker.layouts.layout import Layout
from broker.layouts.parts import StartPosition, SubscriptionKind
from broker.layouts.registrations import GroupId
from broker.traffic import load_key
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Op
from tests.support.disk import SimulatedFiles
from tests.support.group_members import QuietMember
from tests.support.rooms import TOPIC, Rooms, now_ms, rooms
from tests.support.steered_store import SteeredStore
from tests.support.wire import WireClient, connected, listening
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type
GROUP = GroupId(TOPIC, "s")


@asynccontextmanager
async def broker_named(store: MemoryStore, broker_id: str) -> AsyncIterator[Rooms]:
    """Run a broker with its own data. These tests need no ledger of the other broker."""
    async with rooms(store, SimulatedFiles(seed=5), broker_id=broker_id) as made:
        await made.controller.recover()
        yield made


class Member(QuietMember):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.told: list[set[int]] = []
        self.was_sent_away = False

    def sent_away(self) -> None:
        self.was_sent_away = True

    def assigned(self, layout: Layout, segments: frozenset[int]) -> None:
        self.told.append(set(segments))


async def register(client: WireClient, name: str) -> pb.CommandScalableTopicSubscribeResponse:
    answer = await client.ask(commands.scalable_topic_subscribe(70, str(TOPIC), "s", name, 30))
    assert answer.type == Type.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE
    return answer.scalable_topic_subscribe_response


async def controller_url(client: WireClient) -> str | None:
    """Return the controller's URL in the next update."""
    update = await client.receive()
    assert update.type == Type.SCALABLE_TOPIC_UPDATE
    dag = update.scalable_topic_update.dag
    return dag.controller_broker_url if dag.HasField("controller_broker_url") else None


async def test_clients_are_told_who_controls_the_topic() -> None:
    """At first nobody; then the broker that the first consumer asked; then its death. Both brokers tell."""
    store = MemoryStore()
    async with broker_named(store, "two") as two, listening(two) as at_two, connected(at_two) as watching:
        async with broker_named(store, "one") as one, listening(one) as at_one, connected(at_one) as client:
            await one.controller.create_topic(TOPIC, 1, {})
            for each in (client, watching):
                await each.send(commands.scalable_topic_lookup(5, str(TOPIC)))
                assert await controller_url(each) is None
            await client.send(commands.scalable_topic_subscribe(70, str(TOPIC), "s", "a", 30))
            own = f"pulsar://127.0.0.1:{at_one.socket.getsockname()[1]}"
            assert await controller_url(client) == own, "as the client has reached it"
            assert (await client.receive()).type == Type.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE
            assert await controller_url(watching) == "pulsar://one:6650"
            refused = await register(watching, "b")
            assert refused.error == pb.ServiceNotReady, "worth another try, after another look at the layout"
            assert "pulsar://one:6650" in refused.message
            await watching.receives_nothing_more()
        assert await controller_url(watching) is None
        watching.ignored.add(Type.SCALABLE_TOPIC_UPDATE)
        assert not (await register(watching, "b")).HasField("error")


async def test_the_next_controller_waits_for_the_consumers_of_the_last(autojump_clock: MockClock) -> None:
    """D10: it reads their registrations when it is elected, and they count from then on."""
    store = MemoryStore()
    async with broker_named(store, "two") as two:
        async with broker_named(store, "one") as one:
            await one.controller.create_topic(TOPIC, 2, {})
            await one.controller.subscriptions.add(TOPIC, "s", SubscriptionKind.STREAM, StartPosition.EARLIEST)
            for name in ("b", "a"):
                await one.groups.join(GROUP, Member(name))
            await wait_all_tasks_blocked()
            with pytest.raises(OwnedElsewhere):
                await two.groups.join(GROUP, Member("c"))
            await two.groups.recover()
        await trio.sleep(1000)
        newcomer, back = Member("c"), Member("a")
        await two.groups.join(GROUP, newcomer)
        assert newcomer.told == [set()]
        await two.groups.join(GROUP, back)
        assert back.told == [{1}], "who came second had the second one"
        await trio.sleep(100)
        assert back.told[-1] | newcomer.told[-1] == {0, 1}


async def test_only_the_controller_changes_the_layout() -> None:
    """Other brokers refuse requests for now, and late writes of the former controller are refused."""
    store = MemoryStore()
    async with broker_named(store, "two") as two:
        async with broker_named(store, "one") as one:
            await one.controller.create_topic(TOPIC, 1, {})
            await one.controller.split(TOPIC, 0)
            await wait_all_tasks_blocked()
            before = await store.scan("/topics/", "/topics0")
            for refused in (
                two.controller.split(TOPIC, 1),
                two.controller.merge(TOPIC, 1, 2),
                two.controller.delete_topic(TOPIC, force=True),
            ):
                with pytest.raises(OwnedElsewhere, match="pulsar://one:6650"):
                    await refused
            assert await store.scan("/topics/", "/topics0") == before
            stale = await one.elections.elect(TOPIC)
            await one.session.close()
            await two.elections.elect(TOPIC)
            with pytest.raises(OwnedElsewhere):
                await one.layouts.change(TOPIC, lambda layout: layout.begin_split(1), claim=stale)
        assert (await two.layouts.get(TOPIC)).intent is None


async def test_what_is_refused_elects_nobody() -> None:
    """A possible request may be sent to another broker."""
    store = MemoryStore()
    async with broker_named(store, "one") as one:
        await one.controller.create_topic(TOPIC, 2, {})
        for refused in (
            one.controller.split(TOPIC, 7),
            one.controller.merge(TOPIC, 0, 0),
            one.controller.migrate(TOPIC, force=True),
            one.controller.subscriptions.skip_all(TOPIC, "none"),
        ):
            with pytest.raises(BrokerError):
                await refused
        assert await store.scan("/owners/topic", "/owners/topid") == []


async def test_an_open_mark_elects_who_is_left(autojump_clock: MockClock) -> None:
    """D10: a split that the dead controller began is finished without a request."""
    store = MemoryStore()
    async with broker_named(store, "two") as two:
        async with broker_named(store, "one") as one:
            await one.controller.create_topic(TOPIC, 1, {})
            async with one.controller.locks.hold(TOPIC):
                claim = await one.elections.elect(TOPIC)
                await one.layouts.change(TOPIC, lambda layout: layout.begin_split(0), claim=claim)
                await wait_all_tasks_blocked()
                assert (await two.layouts.get(TOPIC)).intent is not None, "it is its controller's"
                async with broker_named(store, "three"):
                    assert (await two.layouts.get(TOPIC)).intent is not None, "also for who comes later"
                await one.session.close()
        await trio.sleep(10)
        layout = await two.layouts.get(TOPIC)
        assert layout.intent is None
        assert [segment.id for segment in layout.active()] == [1, 2]
        assert not two.elections.is_elsewhere(TOPIC)
        assert two.elections.controller_of(TOPIC) is not None


async def test_what_a_topic_had_goes_with_it() -> None:
    """D16: its claim is removed, too; the first consumer of a new topic of the name elects a controller."""
    store = MemoryStore()
    async with broker_named(store, "two") as two, broker_named(store, "one") as one:
        await one.controller.create_topic(TOPIC, 1, {})
        await one.controller.split(TOPIC, 0)
        await one.controller.delete_topic(TOPIC, force=True)
        await wait_all_tasks_blocked()
        assert await store.scan("/owners/topic", "/owners/topid") == []
        await two.controller.create_topic(TOPIC, 1, {})
        member = Member("a")
        await two.groups.join(GROUP, member)
        assert member.told == [{0}]


async def test_only_the_controller_scales_by_itself(autojump_clock: MockClock) -> None:
    """The new controller continues with what it already knows."""
    store = MemoryStore()
    async with broker_named(store, "two") as two, trio.open_nursery() as nursery:
        nursery.start_soon(two.auto_scaler.run)
        async with broker_named(store, "one") as one:
            await one.controller.create_topic(TOPIC, 1, {})
            await one.control()
            busy = {"msgRateIn": 1e9, "bytesRateIn": 1e9, "msgRateOut": 1e9, "bytesRateOut": 1e9, "sinceMs": now_ms()}
            await store.put(load_key(await one.segment(TOPIC, 0)), orjson.dumps(busy))
            await trio.sleep(1000)
            assert len((await two.layouts.get(TOPIC)).active()) == 1
        await trio.sleep(10)
        assert len((await two.layouts.get(TOPIC)).active()) == 2
        nursery.cancel_scope.cancel()


async def depose(broker: Rooms, store: MemoryStore) -> None:
    """Let another broker take the topic's claim, in one step, so that nobody sees the topic without a controller."""
    key = claim_key(str(TOPIC))
    await store.put(key, b'{"broker": "other", "service_url": "pulsar://other:6650"}')
    await wait_all_tasks_blocked()
    assert broker.elections.is_elsewhere(TOPIC)


async def test_a_deposed_controller_assigns_nothing_and_sends_its_consumers_away(autojump_clock: MockClock) -> None:
    """C15: also if the claim changes hands in one step. Consumers that are away are the new controller's."""
    store = MemoryStore()
    async with broker_named(store, "one") as one:
        await one.controller.create_topic(TOPIC, 2, {})
        await one.controller.subscriptions.add(TOPIC, "s", SubscriptionKind.STREAM, StartPosition.EARLIEST)
        here, gone = Member("a"), Member("b")
        for member in (here, gone):
            await one.groups.join(GROUP, member)
        one.groups.lose(GROUP, gone)
        await wait_all_tasks_blocked()
        registrations = await store.scan("/consumers/", "/consumers~")
        told = list(here.told)
        await depose(one, store)
        assert here.was_sent_away
        assert not gone.was_sent_away
        assert one.groups.consumers_of(TOPIC) == {}
        await one.layouts.change(TOPIC, lambda layout: layout.begin_split(0))
        await trio.sleep(1000)
        assert here.told == told
        assert await store.scan("/consumers/", "/consumers~") == registrations
        with pytest.raises(OwnedElsewhere, match="other"):
            await one.groups.join(GROUP, Member("c"))
        one.groups.leave(GROUP, here)
        assert await store.scan("/consumers/", "/consumers~") == registrations
        await store.delete(claim_key(str(TOPIC)))
        await wait_all_tasks_blocked()
        await one.groups.join(GROUP, here)
        assert one.groups.consumers_of(TOPIC) == {"stream s": 2}, "it reads the registrations anew"


async def test_a_consumer_that_registers_while_its_controller_is_deposed_is_refused() -> None:
    """C15: it does not wait for an assignment that never comes."""
    store = SteeredStore()
    async with broker_named(store, "one") as one:
        await one.controller.create_topic(TOPIC, 1, {})
        await one.groups.join(GROUP, Member("a"))
        await wait_all_tasks_blocked()

        async def depose_first(ops: Sequence[Op]) -> None:
            store.before = None
            await depose(one, store)

        store.before = depose_first
        with pytest.raises(OwnedElsewhere):
            await one.groups.join(GROUP, Member("b"))
        assert one.groups.consumers_of(TOPIC) == {}


async def test_clients_of_a_deposed_controller_are_closed_and_told_the_new_one() -> None:
    """C15: the registration is closed first, and then comes the layout with the address at which to register."""
    store = MemoryStore()
    async with (
        broker_named(store, "one") as one,
        listening(one) as address,
        connected(address, version="tidewire-python") as client,
    ):
        await one.controller.create_topic(TOPIC, 1, {})
        await client.send(commands.scalable_topic_lookup(5, str(TOPIC)))
        assert await controller_url(client) is None
        await client.send(commands.scalable_topic_subscribe(70, str(TOPIC), "s", "a", 30))
        assert await controller_url(client) is not None
        assert (await client.receive()).type == Type.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE
        await depose(one, store)
        closed = await client.receive()
        assert (closed.type, closed.close_consumer.consumer_id) == (Type.CLOSE_CONSUMER, 30)
        assert await controller_url(client) == "pulsar://other:6650"
        refused = await register(client, "a")
        assert refused.error == pb.ServiceNotReady
        await client.receives_nothing_more()


async def test_a_client_that_ignores_closed_registrations_loses_its_connection() -> None:
    """C15: the Java client registers again only then. Otherwise it would never get another assignment."""
    store = MemoryStore()
    async with (
        broker_named(store, "one") as one,
        listening(one) as address,
        connected(address, version="Pulsar-Java-v5.0.0-M1") as client,
        connected(address, version="Pulsar-Java-v5.0.0-M1") as uninvolved,
    ):
        await one.controller.create_topic(TOPIC, 1, {})
        assert not (await register(client, "a")).HasField("error")
        await depose(one, store)
        assert await client.receive_frame() is None
        await uninvolved.receives_nothing_more()
