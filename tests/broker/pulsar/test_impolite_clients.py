"""Clients that reuse an id, close what they have just requested, or never read. They are answered, within bounds."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.budgets import ReceiveBudget
from broker.names import TopicName
from broker.outbox import BYTES_HIGH, Outbox
from broker.pulsar import listener as listener_module
from broker.pulsar.producer_sessions import INBOX_BYTES_MAX, ProducerSession
from broker.pulsar.session import REQUESTS_MAX
from broker.pulsar.unsupported import Peer
from broker.traffic import Traffic
from storage.metadata.memory import MemoryStore
from storage.metadata.store import Delete, Op, Put
from tests.support.disk import SimulatedFiles
from tests.support.rooms import TOPIC, Rooms, rooms
from tests.support.steered_store import SteeredStore
from tests.support.wire import WireClient, connected, listening, message
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command, encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Type = pb.BaseCommand.Type
PLAIN = "persistent://public/default/plain"


async def test_a_layout_session_asked_for_twice_at_once_is_opened_once(broker: Rooms, client: WireClient) -> None:
    """Closing it ends it, and nothing is pushed to a session that the client does not have."""
    await broker.controller.create_topic(TOPIC, 1, {})
    lookup = commands.scalable_topic_lookup(5, str(TOPIC))
    await client.send(lookup, lookup)
    answers = [(await client.receive()).scalable_topic_update for _ in range(2)]
    assert sorted(answer.HasField("error") for answer in answers) == [False, True]
    await client.send(commands.scalable_topic_close(5))
    await client.receives_nothing_more()
    await broker.controller.split(TOPIC, 0)
    await wait_all_tasks_blocked()
    await client.receives_nothing_more()


async def test_a_layout_session_closed_at_once_is_pushed_nothing(broker: Rooms, client: WireClient) -> None:
    """The close does not overtake the lookup before it."""
    await broker.controller.create_topic(TOPIC, 1, {})
    await client.send(commands.scalable_topic_lookup(5, str(TOPIC)), commands.scalable_topic_close(5))
    client.ignored.add(Type.SCALABLE_TOPIC_UPDATE)
    await wait_all_tasks_blocked()
    await client.receives_nothing_more()
    client.ignored.clear()
    await broker.controller.split(TOPIC, 0)
    await wait_all_tasks_blocked()
    await client.receives_nothing_more()
    # The number is free again.
    update = (await client.ask(commands.scalable_topic_lookup(5, str(TOPIC)))).scalable_topic_update
    assert update.dag.epoch == 1


@pytest.mark.parametrize("kind", ["consumer", "producer"])
async def test_the_same_request_twice_is_answered_twice(client: WireClient, kind: str) -> None:
    """One opens it, the other is refused, and the connection goes on."""
    opens_consumer = kind == "consumer"
    command = commands.subscribe(PLAIN, "s", 1, 10) if opens_consumer else commands.producer(PLAIN, 1, 10)
    await client.send(command, command)
    answers = {(await client.receive()).type for _ in range(2)}
    assert answers == {Type.ERROR, Type.SUCCESS if opens_consumer else Type.PRODUCER_SUCCESS}
    await client.receives_nothing_more()


async def test_a_producer_closed_twice_at_once_is_answered_twice(client: WireClient) -> None:
    await client.produce(1, PLAIN)
    send = encode_payload_command(commands.send(1, 0), message())
    closes = [encode_command(commands.close_producer(1, request_id)) for request_id in (77, 78)]
    await client.stream.send_all(send + b"".join(closes))
    answers = [await client.receive() for _ in range(3)]
    assert [answer.type for answer in answers] == [Type.SEND_RECEIPT, Type.SUCCESS, Type.SUCCESS]
    assert {answer.success.request_id for answer in answers[1:]} == {77, 78}


async def test_the_highest_sequence_id_there_is(broker: Rooms, client: WireClient) -> None:
    """Taken, and named to the next producer of the name as far as the protocol's signed field goes."""
    await broker.controller.create_topic(TOPIC, 1, {})
    segment = str(await broker.segment(TOPIC, 0))
    await client.produce(1, segment, "me")
    await client.publish(1, 2**64 - 1)
    assert (await client.receive()).send_receipt.sequence_id == 2**64 - 1
    assert (await client.ask(commands.close_producer(1, 77))).type == Type.SUCCESS
    opened = await client.produce(1, segment, "me")
    assert opened.type == Type.PRODUCER_SUCCESS
    assert opened.producer_success.last_sequence_id == 2**63 - 1


async def test_answers_that_nobody_reads_do_not_pile_up(
    broker: Rooms, listener: trio.SocketListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded by what the broker allows, however many small requests with large answers arrive at once."""
    await broker.controller.create_topic(TOPIC, 128, {})
    highest = 0

    class Watched(Outbox):
        def put(self, *pieces: bytes) -> None:
            nonlocal highest
            super().put(*pieces)
            highest = max(highest, self._bytes)

    monkeypatch.setattr(listener_module, "Outbox", Watched)
    async with connected(listener) as client:
        await client.send(*(commands.scalable_topic_lookup(number, str(TOPIC)) for number in range(2_000)))
        await wait_all_tasks_blocked()
        answer = len(encode_command(await client.receive()))
        assert highest > BYTES_HIGH, "more was asked for than the bound"
        assert highest <= BYTES_HIGH + REQUESTS_MAX * answer


async def test_small_sends_that_wait_are_bounded_in_number(broker: Rooms) -> None:
    """A send takes more memory than its payload."""
    topic = await broker.topics.get(TopicName.parse(PLAIN))
    producer = ProducerSession(
        1, "p", topic, Outbox(), Peer(), ReceiveBudget(1 << 20).share(), Traffic(), lambda _: None, follows_layout=False
    )
    taken = 0

    async def send_without_end() -> None:
        nonlocal taken
        while taken < INBOX_BYTES_MAX // 64:
            await producer.submit(commands.send(1, taken).send, b"12345")
            taken += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_without_end)
        await wait_all_tasks_blocked()
        assert taken < INBOX_BYTES_MAX // 64
        nursery.cancel_scope.cancel()


async def test_answers_that_wait_for_the_disk_are_bounded_in_number() -> None:
    """This includes refusals: they arrive in order, behind the receipt of a send that is not durable yet."""
    files = SimulatedFiles(seed=5)
    async with rooms(MemoryStore(), files) as broker, trio.open_nursery() as nursery:
        topic = await broker.topics.get(TopicName.parse(PLAIN))
        outbox = Outbox()
        producer = ProducerSession(
            1,
            "p",
            topic,
            outbox,
            Peer(),
            ReceiveBudget(1 << 20).share(),
            Traffic(),
            lambda _: None,
            follows_layout=False,
        )
        nursery.start_soon(producer.run)
        files.stop()
        await producer.submit(commands.send(1, 0).send, message())
        taken = 0

        async def send_without_end() -> None:
            nonlocal taken
            while taken < INBOX_BYTES_MAX // 128:
                await producer.submit(commands.send(1, taken, num_messages=2).send, b"refused")
                await trio.lowlevel.checkpoint()
                taken += 1

        nursery.start_soon(send_without_end)
        await wait_all_tasks_blocked()
        assert taken < INBOX_BYTES_MAX // 128
        files.resume()
        await wait_all_tasks_blocked()
        assert taken == INBOX_BYTES_MAX // 128
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("asked", ["seek", "unsubscribe"])
async def test_who_leaves_while_a_subscription_moves_leaves_nobody_behind(asked: str) -> None:
    """The subscription's other consumers were disconnected with it, and are told so."""
    store = SteeredStore()
    async with rooms(store, SimulatedFiles(seed=5)) as broker, listening(broker) as listener:
        gate = trio.Event()

        async def hold(ops: Sequence[Op]) -> None:
            if any(isinstance(op, Put | Delete) and op.key.startswith("/cursors/") for op in ops):
                await gate.wait()

        async with connected(listener) as client, connected(listener) as other:
            for one in (client, other):
                subscribed = commands.subscribe(PLAIN, "s", 1, 10, sub_type=pb.CommandSubscribe.Shared)
                assert (await one.ask(subscribed)).type == Type.SUCCESS
            store.before = hold
            if asked == "seek":
                await client.send(commands.seek(1, 11, publish_time_ms=0))
            else:
                await client.send(commands.unsubscribe(1, 11, force=True))
            await wait_all_tasks_blocked()
            await client.close()
            await wait_all_tasks_blocked()
            gate.set()
            told = await other.receive()
            assert (told.type, told.close_consumer.consumer_id) == (Type.CLOSE_CONSUMER, 1)
