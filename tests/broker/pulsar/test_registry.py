"""The objects that one connection has open, and what its parts learn of each other."""

from collections import Counter

import pytest
import trio

from broker.names import TopicName
from broker.pulsar import registry
from broker.pulsar.consumer_sessions import ConsumerSession
from broker.pulsar.registered_consumers import RegisteredConsumer
from broker.pulsar.registry import Registry
from tests.support.idle import TaskSteps
from tests.support.rooms import TOPIC, Rooms
from tests.support.wire import WireClient
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type


async def layout_epoch(client: WireClient) -> int:
    update = await client.receive()
    assert update.type == Type.SCALABLE_TOPIC_UPDATE
    return update.scalable_topic_update.dag.epoch


async def test_a_layout_comes_again_behind_the_answers_of_consumers(broker: Rooms, client: WireClient) -> None:
    """The Java client's queue consumer loses a layout that arrives while it subscribes to earlier segments."""
    await broker.controller.create_topic(TOPIC, 1, {})
    await client.send(commands.scalable_topic_lookup(5, str(TOPIC)))
    assert await layout_epoch(client) == 0
    await broker.controller.split(TOPIC, 0)
    client.ignored.add(Type.SCALABLE_TOPIC_UPDATE)
    await client.receives_nothing_more()
    client.ignored.clear()
    name = str(await broker.segment(TOPIC, 0))
    answer = await client.ask(commands.subscribe(name, "s", 1, 1, sub_type=pb.CommandSubscribe.Shared))
    assert answer.type == Type.SUCCESS
    assert await layout_epoch(client) == 1


async def test_a_registration_that_has_left_is_forgotten(broker: Rooms, client: WireClient) -> None:
    """Its id means nothing any more, so no subscription moves because of it."""
    await broker.controller.create_topic(TOPIC, 1, {})
    client.ignored.add(Type.SCALABLE_TOPIC_UPDATE)
    registered = await client.ask(commands.scalable_topic_subscribe(5, str(TOPIC), "s", "c", 7))
    assert registered.type == Type.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE
    name = str(await broker.segment(TOPIC, 0))
    assert (await client.ask(commands.subscribe(name, "s", 1, 1, name="c-seg-0"))).type == Type.SUCCESS
    assert (await client.ask(commands.close_consumer(7, 50))).type == Type.SUCCESS
    seek = pb.BaseCommand(type=Type.SEEK, seek=pb.CommandSeek(consumer_id=7, request_id=51, message_publish_time=0))
    assert (await client.ask(seek)).error.error == pb.SubscriptionNotFound


async def test_a_consumer_is_shown_only_to_the_registrations_of_its_topic(
    broker: Rooms, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7: one connection may have 10,000 of them, and each consumer that opens, flows or closes asks."""
    asked: list[TopicName] = []
    has = RegisteredConsumer.has

    def noted(registration: RegisteredConsumer, session: ConsumerSession) -> bool:
        asked.append(registration.group.topic)
        return has(registration, session)

    monkeypatch.setattr(RegisteredConsumer, "has", noted)
    client.ignored |= {Type.SCALABLE_TOPIC_UPDATE, Type.SCALABLE_TOPIC_ASSIGNMENT_UPDATE}
    others = [TopicName.parse(f"topic://public/default/other-{number}") for number in range(5)]
    for number, topic in enumerate((TOPIC, *others)):
        await broker.controller.create_topic(topic, 1, {})
        await client.send(commands.scalable_topic_lookup(number, str(topic)))
        for name in ("a", "b", "b"):
            answer = await client.ask(commands.scalable_topic_subscribe(number, str(topic), "s", name, 10 + number))
            assert answer.type == Type.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE
    segment = str(await broker.segment(TOPIC, 0))
    assert (await client.ask(commands.subscribe(segment, "s", 1, 1, name="a-seg-0"))).type == Type.SUCCESS
    assert (await client.ask(commands.close_consumer(1, 50))).type == Type.SUCCESS
    assert asked
    assert set(asked) == {TOPIC}


async def test_a_registration_is_shown_the_consumers_in_slices(
    broker: Rooms, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7: one connection may have 10,000 consumers, and as many registrations. What leaves meanwhile is not shown."""
    monkeypatch.setattr(registry, "SHOWN_AT_ONCE", 2)
    client.ignored |= {Type.SCALABLE_TOPIC_UPDATE, Type.SCALABLE_TOPIC_ASSIGNMENT_UPDATE}
    await broker.controller.create_topic(TOPIC, 8, {})
    for number in range(8):
        segment = str(await broker.segment(TOPIC, number))
        subscribe = commands.subscribe(segment, "s", number, number, name=f"c-seg-{number}")
        assert (await client.ask(subscribe)).type == Type.SUCCESS
    looked: Counter[int] = Counter()
    shown: list[int] = []
    registries: list[Registry] = []
    register, has, subscribed = Registry.register, RegisteredConsumer.has, RegisteredConsumer.segment_subscribed

    def registering(self: Registry, registration: RegisteredConsumer) -> None:
        registries.append(self)
        register(self, registration)

    def looking(self: RegisteredConsumer, session: ConsumerSession) -> bool:
        looked[steps.of(trio.lowlevel.current_task().name)] += 1
        registries[0].consumers.pop(7, None)
        return has(self, session)

    def noted(self: RegisteredConsumer, segment_id: int, session: str) -> None:
        shown.append(segment_id)
        subscribed(self, segment_id, session)

    monkeypatch.setattr(Registry, "register", registering)
    monkeypatch.setattr(RegisteredConsumer, "has", looking)
    monkeypatch.setattr(RegisteredConsumer, "segment_subscribed", noted)
    with TaskSteps() as steps:
        answer = await client.ask(commands.scalable_topic_subscribe(5, str(TOPIC), "s", "c", 10))
    assert answer.type == Type.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE
    assert shown == list(range(7))
    assert max(looked.values()) == 2
