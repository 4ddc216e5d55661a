"""LOOKUP with one broker and with two: who is named, and that a lookup asks two brokers at most and changes nothing."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.cluster.assignments import Why
from broker.cluster.members import DRAINING
from broker.cluster.ownership import claim_key
from broker.cluster.placement import preferred
from broker.names import SegmentDescriptor, TopicName
from storage.metadata.memory import MemoryStore
from storage.metadata.store import ABSENT, Check
from storage.writer import Writer
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC, Rooms, rooms
from tests.support.wire import WireClient, connected, listening
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type
Response = pb.CommandLookupTopicResponse
Mode = pb.CommandGetTopicsOfNamespace.Mode
ONE, TWO = "pulsar://one:6650", "pulsar://two:6650"


async def alive(_writer: Writer) -> bool:
    return True


class Cluster:
    """Two registered brokers on one store and one disk, and a client at each."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.brokers: dict[str, Rooms] = {}
        self.clients: dict[str, WireClient] = {}
        self.own_urls: dict[str, str] = {}
        """Where the clients have reached the brokers."""

    async def start(self, broker_id: str, files: SimulatedFiles, stack: AsyncExitStack) -> None:
        broker = await stack.enter_async_context(rooms(self.store, files, broker_id=broker_id, is_alive=alive))
        await broker.register()
        listener = await stack.enter_async_context(listening(broker))
        self.brokers[broker_id] = broker
        self.clients[broker_id] = await stack.enter_async_context(connected(listener))
        self.own_urls[broker_id] = f"pulsar://127.0.0.1:{listener.socket.getsockname()[1]}"

    @asynccontextmanager
    async def controlled_by(self, broker_id: str) -> AsyncIterator[None]:
        """Let that broker control the topic meanwhile."""
        elections = self.brokers[broker_id].elections
        await elections.elect(TOPIC)
        yield
        await elections.resign(TOPIC)

    async def look(self, at: str, name: TopicName, *, authoritative: bool = False) -> pb.CommandLookupTopicResponse:
        answer = await self.clients[at].ask(commands.lookup(str(name), 7, authoritative=authoritative))
        assert answer.type == Type.LOOKUP_RESPONSE
        assert answer.lookup_topic_response.request_id == 7
        return answer.lookup_topic_response

    async def found(self, at: str, name: TopicName) -> str:
        """The broker that a client finds that begins at `at`, in two hops at most."""
        answer = await self.look(at, name)
        if answer.response == Response.Redirect:
            assert answer.authoritative
            at = answer.broker_service_url.removeprefix("pulsar://").removesuffix(":6650")
            answer = await self.look(at, name, authoritative=True)
        assert answer.response == Response.Connect, answer
        here = answer.broker_service_url == self.own_urls[at]
        return at if here else answer.broker_service_url.removeprefix("pulsar://").removesuffix(":6650")

    async def produce(self, at: str, name: TopicName, producer_id: int = 1) -> pb.BaseCommand:
        return await self.clients[at].produce(producer_id, str(name))


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    files = SimulatedFiles(seed=5)
    async with AsyncExitStack() as stack:
        made = Cluster()
        await made.start("one", files, stack)
        await made.start("two", files.process(), stack)
        await wait_all_tasks_blocked()
        yield made


def placed(at: str) -> TopicName:
    """A regular topic whose hash prefers that broker."""
    names = (TopicName.parse(f"persistent://public/default/{number}") for number in range(100))
    return next(name for name in names if preferred(str(name), ["one", "two"]) == at)


async def test_one_broker_names_itself(client: WireClient, broker: Rooms) -> None:
    """C21: as the client has reached it, for every name, and nothing is loaded or claimed by asking."""
    await broker.controller.create_topic(TOPIC, 1, {})
    await wait_all_tasks_blocked()
    before = broker.metadata.statistics().revision
    own = f"pulsar://127.0.0.1:{client.socket.socket.getpeername()[1]}"
    for name in (
        str(TOPIC),
        str(await broker.segment(TOPIC, 0)),
        "segment://public/default/missing/0000-ffff-0",
        "persistent://public/default/new",
        "short",
    ):
        for authoritative in (False, True):
            answer = (await client.ask(commands.lookup(name, 1, authoritative=authoritative))).lookup_topic_response
            assert (answer.response, answer.broker_service_url) == (Response.Connect, own)
            assert answer.authoritative
    assert broker.opened == []
    assert broker.metadata.statistics().revision == before


async def test_a_topic_without_owner_is_placed(cluster: Cluster) -> None:
    """C21: whichever broker is asked; asking claims nothing, and the producer makes one claim."""
    for at, other in (("one", "two"), ("two", "one")):
        name = placed(at)
        redirect = await cluster.look(other, name)
        assert (redirect.response, redirect.broker_service_url) == (Response.Redirect, f"pulsar://{at}:6650")
        assert await cluster.found("one", name) == await cluster.found("two", name) == at
        assert await cluster.store.get(claim_key(str(name))) is None
        assert (await cluster.produce(at, name)).type == Type.PRODUCER_SUCCESS
        assert await cluster.found("one", name) == await cluster.found("two", name) == at


async def test_the_owner_is_named_by_both(cluster: Cluster) -> None:
    """C21: also where the hash prefers the other broker, and with no second hop."""
    name = placed("one")
    assert (await cluster.produce("two", name)).type == Type.PRODUCER_SUCCESS
    for authoritative in (False, True):
        answer = await cluster.look("one", name, authoritative=authoritative)
        assert (answer.response, answer.broker_service_url) == (Response.Connect, TWO)
        answer = await cluster.look("two", name, authoritative=authoritative)
        assert (answer.response, answer.broker_service_url) == (Response.Connect, cluster.own_urls["two"])


async def test_of_two_brokers_that_both_take_a_topic_one_wins(cluster: Cluster) -> None:
    """C21: the loser's client is told to look again, and then finds the winner."""
    name = placed("one")
    for at in ("one", "two"):
        answer = await cluster.look(at, name, authoritative=True)
        assert answer.broker_service_url == cluster.own_urls[at]
    assert (await cluster.produce("two", name)).type == Type.PRODUCER_SUCCESS
    lost = await cluster.produce("one", name)
    assert (lost.type, lost.error.error) == (Type.ERROR, pb.ServiceNotReady)
    assert TWO in lost.error.message
    assert await cluster.found("one", name) == "two"


async def test_the_controller_of_a_scalable_topic_is_named(cluster: Cluster) -> None:
    """C21: before there is one, the broker that the hash prefers."""
    candidate = preferred(str(TOPIC), ["one", "two"])
    assert await cluster.found("one", TOPIC) == await cluster.found("two", TOPIC) == candidate
    for controller in ("one", "two"):
        async with cluster.controlled_by(controller):
            assert await cluster.found("one", TOPIC) == await cluster.found("two", TOPIC) == controller


async def test_the_segments_of_a_topic_are_spread(cluster: Cluster) -> None:
    """C21: they go to the brokers in turn, wherever the topic's controller is."""
    names = [TOPIC.segment_name(SegmentDescriptor(lo, lo, lo)) for lo in range(8)]
    first = preferred(str(TOPIC), ["one", "two"])
    second = "two" if first == "one" else "one"
    expected = dict(zip(names, [first, second] * 4, strict=True))
    async with cluster.controlled_by("one"):
        for at in ("one", "two"):
            assert {name: await cluster.found(at, name) for name in names} == expected


async def test_a_scalable_topic_spans_both_brokers(cluster: Cluster) -> None:
    """C14, C21: whichever broker owns a segment, clients of both find it there, and either broker splits it."""
    await cluster.brokers["two"].controller.create_topic(TOPIC, 4, {})
    used = {}
    for segment in range(4):
        name = await cluster.brokers["one"].segment(TOPIC, segment)
        used[name] = await cluster.found("one", name)
        assert (await cluster.produce(used[name], name, segment)).type == Type.PRODUCER_SUCCESS
        await cluster.clients[used[name]].ask(commands.close_producer(segment, 8))
    assert set(used.values()) == {"one", "two"}
    for at in ("one", "two"):
        assert {name: await cluster.found(at, name) for name in used} == used
    for segment in range(4):
        await cluster.brokers["two"].controller.split(TOPIC, segment)
    for segment in range(12):
        name = await cluster.brokers["one"].segment(TOPIC, segment)
        assert await cluster.found("one", name) == await cluster.found("two", name)


async def test_an_assignment_counts_until_the_topic_is_claimed(cluster: Cluster) -> None:
    """C21: the owner releases the topic to another broker than the hash prefers."""
    name = placed("one")
    await cluster.produce("one", name)
    claim = await cluster.store.get(claim_key(str(name)))
    assert claim is not None
    assignments = cluster.brokers["one"].assignments
    await assignments.assign(str(name), "two", Why.MOVE, condition=Check(claim.key, claim.version))
    await wait_all_tasks_blocked()
    assert await cluster.found("two", name) == "one", "it still owns the topic"
    cluster.clients["one"].ignored.add(Type.CLOSE_PRODUCER)
    await cluster.brokers["one"].topics.unload(name)
    assert await cluster.found("one", name) == await cluster.found("two", name) == "two"
    assert (await cluster.produce("two", name)).type == Type.PRODUCER_SUCCESS
    await wait_all_tasks_blocked()
    assert assignments.broker_for(str(name)) is None


async def test_an_assignment_to_a_broker_that_is_gone_is_ignored(cluster: Cluster) -> None:
    """C21: the topic is placed like any other."""
    name = placed("one")
    free = Check(claim_key(str(name)), ABSENT)
    await cluster.brokers["two"].assignments.assign(str(name), "three", Why.MOVE, condition=free)
    await wait_all_tasks_blocked()
    assert await cluster.found("two", name) == "one"


async def test_a_draining_broker_gets_nothing_new(cluster: Cluster) -> None:
    """C21: it keeps naming itself for what it owns; when all drain, clients are asked to try again."""
    owned, free = placed("one"), TOPIC.as_regular
    await cluster.produce("one", owned)
    await cluster.store.put(DRAINING + "one", b"{}")
    await wait_all_tasks_blocked()
    assert await cluster.found("two", owned) == await cluster.found("one", owned) == "one"
    assert await cluster.found("one", free) == await cluster.found("two", free) == "two"
    await cluster.store.put(DRAINING + "two", b"{}")
    await wait_all_tasks_blocked()
    for authoritative in (False, True):
        answer = await cluster.look("two", free, authoritative=authoritative)
        assert (answer.response, answer.error) == (Response.Failed, pb.ServiceNotReady)
        assert "draining" in answer.message


async def test_a_claim_of_a_broker_that_is_gone(cluster: Cluster) -> None:
    """C21: until its session ends, clients are asked to try again; then the topic is placed again."""
    name = placed("two")
    await cluster.produce("two", name)
    await cluster.store.delete("/brokers/two")
    await wait_all_tasks_blocked()
    answer = await cluster.look("one", name)
    assert (answer.response, answer.error) == (Response.Failed, pb.ServiceNotReady)
    assert "two" in answer.message
    await cluster.brokers["two"].session.close()
    assert await cluster.found("one", name) == "one"
    await cluster.store.put(claim_key(str(name)), b"\xff")
    assert (await cluster.look("one", name)).error == pb.ServiceNotReady, "E11: a damaged claim is somebody's"


async def test_a_namespace_lists_its_regular_topics_and_partitions(client: WireClient, broker: Rooms) -> None:
    """C21: clients that subscribe by a pattern find what they can subscribe to. Scalable topics are not among it."""
    await broker.controller.create_topic(TOPIC, 1, {})
    regular = broker.administration.regular
    for local in ("b", "a"):
        await regular.create(TopicName.parse(f"persistent://public/default/{local}"))
    await regular.create(TopicName.parse("persistent://public/other/c"))
    await regular.create_partitioned(TopicName.parse("persistent://public/default/parts"), 2)

    async def listed(namespace: str, mode: Mode = Mode.PERSISTENT) -> list[str]:
        command = commands.topics_of_namespace(9, namespace, mode=mode, topics_pattern="a.*", topics_hash="x")
        answer = (await client.ask(command)).get_topics_of_namespace_response
        assert (answer.request_id, answer.filtered, answer.changed) == (9, False, True)
        return [name.removeprefix("persistent://") for name in answer.topics]

    default = [f"public/default/{local}" for local in ("a", "b", "parts-partition-0", "parts-partition-1")]
    assert await listed("public/default") == await listed("public/default", Mode.ALL) == default
    assert await listed("public/other") == ["public/other/c"]
    assert await listed("public/default", Mode.NON_PERSISTENT) == await listed("public/none") == []


async def test_lists_of_topics_are_made_one_after_another(
    client: WireClient, broker: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E20: pipelined requests do not hold as many lists in memory."""
    begun, first, proceed = 0, trio.Event(), trio.Event()

    async def names(_tenant: str, _namespace: str) -> list[str]:
        nonlocal begun
        begun += 1
        first.set()
        await proceed.wait()
        return []

    monkeypatch.setattr(broker.administration.regular, "names", names)
    await client.send(*(commands.topics_of_namespace(number, "public/default") for number in range(3)))
    await first.wait()
    await wait_all_tasks_blocked()
    assert begun == 1
    proceed.set()
    answers = {(await client.receive()).get_topics_of_namespace_response.request_id for _ in range(3)}
    assert (begun, answers) == (3, {0, 1, 2})


async def test_a_list_of_topics_is_refused_that_no_frame_holds(
    client: WireClient, broker: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E20: the refusal says what to do, and the connection continues."""
    await broker.administration.regular.create(TopicName.parse("persistent://public/default/a"))
    monkeypatch.setattr("broker.pulsar.lookup.MAX_FRAME_SIZE", 40)
    refusal = (await client.ask(commands.topics_of_namespace(9, "public/default"))).error
    assert (refusal.request_id, refusal.error) == (9, pb.NotAllowedError)
    assert "1 topics and partitions" in refusal.message
    assert "by their names" in refusal.message
    misnamed = (await client.ask(commands.topics_of_namespace(10, "public"))).error
    assert "tenant/namespace" in misnamed.message
