"""Kafka's groups as subscriptions of a topic, in the statistics that any broker gives over HTTP."""

from typing import Any

from broker.addresses import Address
from broker.kafka.groups.group_record import group_key
from broker.layouts.parts import StartPosition, SubscriptionKind
from broker.names import TopicName
from broker.topic import Topic
from storage.metadata.memory import MemoryStore
from storage.position import EARLIEST
from tests.broker.kafka.test_groups_on_the_wire import joined
from tests.broker.test_administration_anywhere import PATH, served
from tests.support.http import request
from tests.support.kafka_connection import KafkaClient, commit, kafka_client
from tests.support.kafka_groups import assignment, subscription
from tests.support.kafka_producer import TransactionalProducer
from tests.support.rooms import TOPIC, Rooms, publish, segments
from tidewire.wire.kafka.messages.groups import (
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tidewire.wire.kafka.records import Record, build


async def stats(at: Address, path: str = PATH) -> dict[str, Any]:
    answer = await request(at, "GET", f"{path}/stats")
    assert answer.status == 200, answer
    return dict(answer.json)


async def read(client: KafkaClient, group: str, topic: str) -> None:
    """Join a group as a reader of the topic's partition 0."""
    protocols = (JoinGroupRequestProtocol("range", subscription(topic)),)
    member = await joined(client, group, protocols)
    given = SyncGroupRequestAssignment(member.member_id, assignment({topic: (0,)}))
    request = SyncGroupRequest(group, member.generation_id, member.member_id, None, "consumer", "range", (given,))
    assert (await client.ask(request, SyncGroupResponse, 5)).error_code == 0


async def test_a_group_and_a_subscription_of_one_name_are_two() -> None:
    """K36: both are shown by each broker, with what is left for each. Neither moves the other."""
    async with served("one", "two") as ((one, first), (two, second)):
        await one.controller.create_topic(TOPIC, 1, {})
        await one.control()
        await one.controller.subscriptions.add(TOPIC, "s", SubscriptionKind.STREAM, StartPosition.EARLIEST)
        topic = await two.topics.get(await one.segment(TOPIC, 0))
        for _ in range(3):
            await publish(topic, b"a")
        async with kafka_client(one) as client:
            assert "kafkaGroups" not in await stats(first)
            await commit(client, "s", 0, 2)
            await read(client, "reading", "orders")
            for address in (first, second):
                found = await stats(address)
                assert found["subscriptions"] == {"s": {"type": "STREAM", "consumerCount": 0, "msgBacklog": 3}}
                assert found["kafkaGroups"] == {
                    "reading": {"state": "Stable", "consumerCount": 1, "msgBacklog": 0},
                    "s": {"state": "Empty", "consumerCount": 0, "msgBacklog": 1},
                }
            await one.controller.split(TOPIC, 0)
            await publish((await segments_of(one))[1], b"b")
            # It has not read the children either.
            assert (await stats(second))["kafkaGroups"]["s"]["msgBacklog"] == 2
            assert topic.subscriptions["s"].cursor.mark_delete < topic.ledger.last_position


async def segments_of(broker: Rooms) -> dict[int, Topic]:
    """The active segments, loaded here."""
    layout = await broker.layouts.get(TOPIC)
    return {one.id: await broker.topics.get(TOPIC.segment_name(one.descriptor)) for one in layout.active()}


async def test_a_topic_with_partitions_on_two_brokers() -> None:
    """K36: the partitions' numbers are added. One that nobody used yet has none, and is not made by looking."""
    async with served("one", "two") as ((one, first), (two, second)):
        path = "/admin/v2/persistent/public/default/invoices"
        assert (await request(first, "GET", f"{path}/stats")).status == 404
        async with kafka_client(one) as client:
            await client.create("invoices", 3)
            names = [TopicName.parse(f"persistent://public/default/invoices-partition-{n}") for n in range(3)]
            elsewhere = await two.topics.get(names[1])
            await elsewhere.subscribe("s", EARLIEST)
            await publish(elsewhere, b"a")
            batch = build([Record(None, b"a", 1), Record(None, b"b", 2)])
            await client.produce("invoices", batch)
            await commit(client, "s", 0, 1, topic="invoices")
            await commit(client, "s", 1, 0, topic="invoices")
            for address in (first, second):
                found = await stats(address, path)
                assert found["partitions"] == 3
                assert (found["subscriptions"]["s"]["type"], found["subscriptions"]["s"]["msgBacklog"]) == (
                    "Exclusive",
                    1,
                )
                assert found["kafkaGroups"] == {"s": {"state": "Empty", "consumerCount": 0, "msgBacklog": 2}}
            assert not await one.layouts.is_made(names[2])


async def test_a_damaged_group_is_shown_with_its_offsets() -> None:
    """E11: as in the list of groups. The others are shown, too."""
    async with served("one") as ((one, first),), kafka_client(one) as client:
        await one.controller.create_topic(TOPIC, 1, {})
        await publish((await segments(one))[0], b"a")
        for group in ("damaged", "g"):
            await commit(client, group, 0, 0)
        assert isinstance(one.metadata, MemoryStore)
        await one.metadata.put(group_key("damaged"), b"?")
        await one.metadata.put(group_key("bare"), b"?")
        assert (await stats(first))["kafkaGroups"] == {
            "damaged": {"state": "Dead", "consumerCount": 0, "msgBacklog": 1},
            "g": {"state": "Empty", "consumerCount": 0, "msgBacklog": 1},
        }


async def test_what_no_consumer_gets_is_no_backlog() -> None:
    """K35: markers and aborted records behind the last message, also those of an earlier owner."""
    async with served("one") as ((one, first),), kafka_client(one) as client:
        path = "/admin/v2/persistent/public/default/t"
        await client.create("t")
        topic = await one.topics.get(TopicName.parse("persistent://public/default/t-partition-0"))
        await topic.subscribe("s", EARLIEST)
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        for is_commit in (True, False):
            await producer.add(("t", 0))
            await producer.send("t", b"x")
            assert await producer.end(is_commit=is_commit) == 0
        await commit(client, "g", 0, 0, topic="t")
        for moves in (False, True):
            if moves:
                await one.topics.unload(topic.name)
            found = await stats(first, path)
            assert found["subscriptions"]["s"]["msgBacklog"] == 1
            assert found["kafkaGroups"]["g"]["msgBacklog"] == 1
        await commit(client, "g", 0, 1, topic="t")
        again = await one.topics.get(topic.name)
        last = await again.last_visible()
        assert last is not None
        await again.subscriptions["s"].seek(last.position)
        found = await stats(first, path)
        assert found["subscriptions"]["s"]["msgBacklog"] == 0
        assert found["kafkaGroups"]["g"]["msgBacklog"] == 0


async def test_what_no_consumer_gets_is_no_backlog_between_messages_either() -> None:
    """K35: at the owner and at another broker, which asks the owner from where each group goes on."""
    async with served("one", "two") as ((one, first), (_two, second)), kafka_client(one) as client:
        path = "/admin/v2/persistent/public/default/t"
        await client.create("t")
        topic = await one.topics.get(TopicName.parse("persistent://public/default/t-partition-0"))
        await topic.subscribe("s", EARLIEST)
        producer = TransactionalProducer(client, "tid")
        await producer.begin_session()
        for is_commit in (True, False, True):
            await producer.add(("t", 0))
            await producer.send("t", b"x")
            assert await producer.end(is_commit=is_commit) == 0
        # A message, a marker, an aborted one with its marker, and again a message and a marker.
        for offset in range(6):
            await commit(client, f"g{offset}", 0, offset, topic="t")
        for moves in (False, True):
            if moves:
                await one.topics.unload(topic.name)
                await one.topics.get(topic.name)
            for address in (first, second):
                found = await stats(address, path)
                assert found["subscriptions"]["s"]["msgBacklog"] == 2
                left = {name: group["msgBacklog"] for name, group in found["kafkaGroups"].items()}
                assert left == {"g0": 2, "g1": 1, "g2": 1, "g3": 1, "g4": 1, "g5": 0}
