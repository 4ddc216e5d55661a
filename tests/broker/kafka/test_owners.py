"""Partitions and coordinators that change hands between brokers, as each of them tells Kafka's clients."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.cluster.ownership import HasEnded, claim_key, not_known
from broker.cluster.placement import choose, worker
from broker.kafka.coordinators import SCHEME
from broker.names import TopicName
from storage.managed_ledger_record import record_key
from storage.metadata.memory import MemoryStore
from storage.metadata.store import MetadataStore
from storage.writer import Writer
from tests.support.disk import SimulatedFiles
from tests.support.kafka_connection import KafkaClient, kafka_client, values_of
from tests.support.kafka_producer import TransactionalProducer
from tests.support.rooms import Rooms, rooms
from tests.support.several_rooms import OwnStore
from tidewire.wire.kafka.error_codes import ErrorCode
from tidewire.wire.kafka.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from tidewire.wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidewire.wire.kafka.records import Record, build
from txn.kafka_transaction import transaction_key

PARTITION = TopicName.parse("persistent://public/default/orders-partition-0")
TRANSACTION = 1
NODES = {"one": 1, "two": 2}


def of(value: bytes) -> bytes:
    """Make a batch."""
    return build([Record(None, value, 1_000)])


async def alive(_writer: Writer) -> bool:
    return True


@asynccontextmanager
async def served(
    store: MetadataStore, files: SimulatedFiles, name: str, *, has_ended: HasEnded = not_known
) -> AsyncIterator[tuple[Rooms, KafkaClient]]:
    """Run a registered broker, and connect a client to it."""
    async with (
        rooms(
            store, files.process(), broker_id=name, kafka_node=NODES[name], is_alive=alive, has_ended=has_ended
        ) as broker,
        kafka_client(broker) as client,
    ):
        await broker.register()
        await wait_all_tasks_blocked()
        yield broker, client


async def named(client: KafkaClient) -> tuple[int, int, int]:
    """Return the error code, the leader and its epoch, as a client's broker names them for the partition."""
    wanted = (MetadataRequestTopic(name="orders"),)
    request = MetadataRequest(wanted, allow_auto_topic_creation=False)
    answer = await client.ask(request, MetadataResponse, 12)
    ((one,),) = [topic.partitions for topic in answer.topics]
    return one.error_code, one.leader_id, one.leader_epoch


async def test_every_broker_names_a_leader_with_its_epoch() -> None:
    """K44: a broker that should own a partition is named with the epoch that it takes when it does.

    librdkafka keeps the leader that it knows until another one has a higher epoch. Nobody would ever ask the new one.
    """
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    async with served(store, files, "one") as (one, at_one), served(store, files, "two") as (two, at_two):
        await at_one.create("orders")
        first = choose(PARTITION, one.members.live, {})
        owner, leads, follows = (one, at_one, at_two) if first == "one" else (two, at_two, at_one)
        other = two if owner is one else one
        mine, theirs = (NODES[each.foundation.settings.broker_id] for each in (owner, other))
        assert [await named(client) for client in (leads, follows)] == [(0, mine, 0)] * 2, "nobody owns it yet"
        await leads.produce("orders", of(b"a"))
        assert [await named(client) for client in (leads, follows)] == [(0, mine, 0)] * 2
        await owner.handover.move(PARTITION, other.foundation.settings.broker_id)
        await wait_all_tasks_blocked()
        assert [await named(client) for client in (leads, follows)] == [(0, theirs, 1)] * 2, "it was not taken yet"
        fetched = await follows.fetch("orders", 0, epoch=1)
        assert (fetched.error_code, values_of(fetched)) == (ErrorCode.NONE, [(0, b"a")])
        assert (await follows.fetch("orders", 0, epoch=0)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (await leads.fetch("orders", 0, epoch=1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [await named(client) for client in (leads, follows)] == [(0, theirs, 1)] * 2


async def test_a_killed_leader_is_followed_by_the_next_epoch() -> None:
    """K44, C21: it is still registered, and its claim is there until its session ends."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    ended: set[str] = set()

    async def has_ended(broker: str) -> bool:
        return broker in ended

    async with served(store, files, "two", has_ended=has_ended) as (_two, at_two):
        await at_two.create("orders")
        async with served(store, files, "one") as (one, at_one):
            await at_one.produce("orders", of(b"a"))
            await one.topics.unload(PARTITION)
            # It takes the partition once more, and dies before it has recorded its epoch.
            claim = orjson.dumps({"broker": "one", "service_url": "pulsar://one:6650"})
            await store.put(claim_key(str(PARTITION)), claim, session=one.session)
            assert await named(at_two) == (0, NODES["one"], 1)
            ended.add("one")
            assert await named(at_two) == (0, NODES["two"], 1)
        fetched = await at_two.fetch("orders", 0, epoch=1)
        assert values_of(fetched) == [(0, b"a")]


async def test_a_damaged_list_of_ledgers_hides_one_epoch_alone() -> None:
    """K44: the other partitions of the same request have theirs."""
    store = MemoryStore()
    async with served(store, SimulatedFiles(seed=1), "one") as (_broker, client):
        await client.create("orders")
        await store.put(record_key(str(PARTITION)), b"{")
        assert await named(client) == (0, NODES["one"], -1)


async def coordinator(client: KafkaClient, transactional_id: str) -> tuple[int, int]:
    """Return the error code and the coordinator, as a client's broker names it."""
    request = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=(transactional_id,))
    (found,) = (await client.ask(request, FindCoordinatorResponse, 4)).coordinators
    return found.error_code, found.node_id


async def test_no_transaction_is_coordinated_by_a_broker_that_has_ended(autojump_clock: MockClock) -> None:
    """K32: it stays registered until its session ends. Its clients need not wait for that."""
    store, files = MemoryStore(), SimulatedFiles(seed=1)
    ended: set[str] = set()

    async def has_ended(broker: str) -> bool:
        return broker in ended

    ids = [f"till-{number}" for number in range(8)]
    async with (
        served(store, files, "one") as (one, at_one),
        served(store, files, "two", has_ended=has_ended) as (two, at_two),
    ):
        expected = [(0, NODES[worker(SCHEME + each, two.members.live) or ""]) for each in ids]
        assert {node for _code, node in expected} == {1, 2}
        for client in (at_one, at_two):
            assert [await coordinator(client, each) for each in ids] == expected
        ended.add("one")
        assert [await coordinator(at_two, each) for each in ids] == [(0, 2)] * len(ids)
        assert one.members.live.keys() == NODES.keys(), "it is still registered"


async def test_an_end_that_waits_in_vain_has_a_death_noticed(autojump_clock: MockClock) -> None:
    """K32: the broker that should drive the transaction stays registered until its session ends. Nobody looks it up."""
    shared, files = MemoryStore(), SimulatedFiles(seed=1)
    store = OwnStore(shared)
    tried: list[str] = []

    async def has_ended(broker: str) -> bool:
        tried.append(broker)
        return False

    async with (
        served(store, files, "one") as (one, at_one),
        served(shared, files, "two", has_ended=has_ended) as (_two, at_two),
    ):
        ids = [f"till-{number}" for number in range(8)]
        transactional_id = next(each for each in ids if worker(transaction_key(each), one.members.live) == "one")
        await at_one.create("orders")
        assert (await at_one.produce("orders", of(b"first"))).error_code == ErrorCode.NONE
        producer = TransactionalProducer(at_two, transactional_id)
        assert await producer.begin_session() == ErrorCode.NONE
        assert await producer.add(("orders", 0)) == {ErrorCode.NONE}
        producer.client = at_one
        assert (await producer.send("orders", b"x")).error_code == ErrorCode.NONE
        store.fall_silent()
        producer.client = at_two
        tried.clear()
        assert await producer.end(is_commit=True) == ErrorCode.CONCURRENT_TRANSACTIONS
        assert tried == ["one"]
        store.answer()
        assert await producer.end(is_commit=True) == ErrorCode.NONE
        assert tried == ["one"], "what goes on needs no look"
