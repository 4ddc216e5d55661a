"""Producers against a scripted broker: routing, batching, bounds, refusals, and every end of a session."""

from random import Random

import anyio
import pytest
import trio

from tests.support.backends import on_both_backends, on_trio
from tests.support.cancellation import cancel_at_each_step
from tests.support.scripted_broker import Peer, ScriptedBroker, T, scripted_broker, send_refusal
from tidewire.client.client import Client
from tidewire.client.errors import Closed
from tidewire.client.network import CLOSE_SECONDS_MAX
from tidewire.client.producer import PENDING_MESSAGES_MAX, Producer
from tidewire.client.sending import Batching
from tidewire.protocol.errors import ConnectionLost, MessageTooLarge
from tidewire.protocol.refusals import (
    BrokerBusy,
    BrokerFull,
    NameTaken,
    NotAllowed,
    NotPermitted,
    TopicNotFound,
    TopicTerminated,
)
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import CHUNKED_MESSAGE_SIZE_MAX
from tidewire.wire.pulsar.frames import MAX_MESSAGE_SIZE, Frame
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.hashing import key_hash
from tidewire.wire.pulsar.message_ids import NO_REQUEST
from tidewire.wire.pulsar.messages import split_messages

X = "topic://public/default/x"
PLAIN = "persistent://public/default/x"


def sent_values(broker: ScriptedBroker) -> list[list[bytes]]:
    """Return the values in each SEND frame, in order."""
    return [
        [single.value for single in split_messages(payload)]
        for (kind, _), payload in zip(broker.commands, broker.payloads, strict=True)
        if kind == T.SEND and payload is not None
    ]


# ------------------------------------------------------------------------------------------------------------- routing


@on_both_backends
async def test_a_key_goes_to_the_segment_that_holds_its_hash() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 4)
        async with broker.client() as client, client.producer(X) as producer:
            for number in range(40):
                key = f"key {number}"
                message_id = await producer.send(key.encode(), key=key)
                segment = topic.segments[message_id.segment_id]
                assert segment.hash_start <= key_hash(key) <= segment.hash_end
                assert segment.values()[message_id.entry_id] == key.encode()
                assert message_id.ledger_id == segment.ledger_id


@on_both_backends
async def test_without_a_key_segments_take_turns() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 3)
        async with broker.client() as client, client.producer(X) as producer:
            for number in range(9):
                await producer.send(b"%d" % number)
        assert [len(segment.entries) for segment in topic.segments.values()] == [3, 3, 3]


@on_both_backends
async def test_a_segment_gets_a_session_when_its_first_message_comes_and_all_are_closed_at_the_end() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X, 4)
        async with broker.client() as client:
            async with client.producer(X, "me") as producer:
                assert broker.of(T.PRODUCER) == []
                await producer.send(b"x", key="k")
                await producer.send(b"x", key="k")
                (opened,) = broker.of(T.PRODUCER)
                assert (opened.producer_name, opened.txn_enabled, opened.epoch) == ("me", True, 0)
                assert opened.topic.startswith("segment://public/default/x/")
                assert producer.statistics().segments_connected == 1
            (closed,) = broker.of(T.CLOSE_PRODUCER)
            assert closed.producer_id == opened.producer_id
            # It was a request, and its answer was waited for: the name is free when the block is left.
            assert closed.request_id != NO_REQUEST


@on_both_backends
async def test_a_plain_topic_is_produced_to_as_a_whole() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(PLAIN)
        async with broker.client() as client, client.producer(PLAIN) as producer:
            await producer.send(b"x", key="k", properties={"a": "b"}, event_time_ms=5)
        (single,) = split_messages(topic.segments[0].entries[0])
        assert (single.value, single.key, single.properties, single.event_time_ms) == (b"x", "k", {"a": "b"}, 5)
        assert single.publish_time_ms > 1_600_000_000_000
        assert broker.of(T.SCALABLE_TOPIC_LOOKUP) == []


# ------------------------------------------------------------------------------------------------------------ batching


@on_both_backends
async def test_messages_that_wait_leave_together_and_a_lone_one_at_once() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        broker.hold(T.SEND)
        async with broker.client() as client, client.producer(X) as producer:
            first = await producer.enqueue(b"first")
            await broker.seen(T.SEND)
            receipts = [await producer.enqueue(b"%d" % number) for number in range(50)]
            assert not first.is_answered
            broker.release(T.SEND)
            ids = [await receipt for receipt in receipts]
            assert [message_id.batch_index for message_id in ids] == list(range(50))
            assert (await first).batch_index == -1
        assert sent_values(broker) == [[b"first"], [b"%d" % number for number in range(50)]]


@on_both_backends
async def test_without_batching_each_message_has_its_frame() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X, batching=False) as producer:
            for number in range(20):
                await producer.enqueue(b"%d" % number)
        assert len(topic.segments[0].entries) == 20


@pytest.mark.parametrize("compression", ["lz4", "zlib", "zstd", "snappy"])
@on_both_backends
async def test_messages_can_travel_compressed(compression: str) -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X, compression=compression) as producer:  # type: ignore[arg-type]
            for _ in range(3):
                await producer.enqueue(b"again and " * 100)
        assert topic.segments[0].values() == [b"again and " * 100] * 3
        assert sum(map(len, topic.segments[0].entries)) < 1000


@on_both_backends
async def test_unknown_compressions_and_batches_are_refused_at_once() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        async with broker.client() as client:
            with pytest.raises(ValueError, match="brotli"):
                async with client.producer(X, compression="brotli"):  # type: ignore[arg-type]
                    pass
            async with client.producer(X, batching=Batching(messages_max=2)) as producer:
                assert producer.batching.messages_max == 2


# -------------------------------------------------------------------------------------------------------------- bounds


@on_both_backends
async def test_what_is_on_its_way_is_bounded() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        broker.hold(T.SEND)
        async with broker.client() as client, client.producer(X) as producer:
            enqueued = 0

            async def enqueue() -> None:
                nonlocal enqueued
                while True:
                    await producer.enqueue(b"x")
                    enqueued += 1

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(enqueue)
                while enqueued < PENDING_MESSAGES_MAX:
                    await anyio.lowlevel.checkpoint()
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()
                assert enqueued == PENDING_MESSAGES_MAX
                assert producer.statistics().pending_messages == PENDING_MESSAGES_MAX
                broker.release(T.SEND)
                while enqueued < PENDING_MESSAGES_MAX + 10:
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            await producer.flush()
            assert producer.statistics().pending_messages == 0
            assert producer.statistics().pending_bytes == 0


@on_both_backends
async def test_large_messages_wait_for_the_connection_to_take_them() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        async with broker.client() as client, client.producer(X) as producer:
            for number in range(30):
                await producer.enqueue(bytes([number]) * 700_000, key=str(number))
        values = [value for segment in topic.segments.values() for value in segment.values()]
        assert sorted(values) == [bytes([number]) * 700_000 for number in range(30)]


@on_both_backends
async def test_the_limit_holds_for_what_a_message_takes_when_it_is_compressed() -> None:
    """As Pulsar's clients do: they send 32 MiB that compress to 5, and read them."""
    large, random = bytes(2 * MAX_MESSAGE_SIZE), Random(1).randbytes(MAX_MESSAGE_SIZE + 100_000)
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client:
            async with client.producer(X, compression="zstd") as producer:
                first = await producer.enqueue(large)
                with pytest.raises(MessageTooLarge, match=r"the broker at .* accepts messages of at most"):
                    await producer.send(random)
                with pytest.raises(MessageTooLarge, match="the limit is 67108864"):
                    await producer.send(bytes(CHUNKED_MESSAGE_SIZE_MAX + 1))
                await first
                await producer.send(b"after")
            assert len(topic.segments[0].entries) == 2
            async with client.reader(X) as reader:
                assert [(await reader.receive()).value for _ in range(2)] == [large, b"after"]


@on_both_backends
async def test_what_can_never_be_sent_is_refused_by_the_call() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            with pytest.raises(MessageTooLarge):
                await producer.send(bytes(MAX_MESSAGE_SIZE + 1))
            with pytest.raises(MessageTooLarge):
                await producer.send(bytes(MAX_MESSAGE_SIZE), key="k")
            with pytest.raises(TypeError):
                await producer.send("text")  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="event_time_ms"):
                await producer.send(b"x", event_time_ms=-1)
            with pytest.raises(UnicodeEncodeError):
                await producer.send(b"x", key="\ud800")
            assert producer.statistics().pending_messages == 0
            changing = bytearray(b"before")
            receipt = await producer.enqueue(changing)  # type: ignore[arg-type]
            changing[:] = b"after!"
            await receipt
        assert broker.topics[X].segments[0].values() == [b"before"]


# ---------------------------------------------------------------------------------------------------- refusals, the end


def refuse_sends(broker: ScriptedBroker, code: int, *values: bytes) -> None:
    def handler(peer: Peer, frame: Frame) -> None:
        assert frame.payload is not None
        if split_messages(frame.payload)[0].value in values:
            send = frame.command.send
            peer.send(send_refusal(send, code, "no"))
        else:
            broker.answer(peer, frame)

    broker.on(T.SEND, handler)


@on_both_backends
async def test_a_refused_message_fails_alone() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        refuse_sends(broker, pb.ServerError.NotAllowedError, b"bad")
        async with broker.client() as client, client.producer(X, batching=False) as producer:
            receipts = [await producer.enqueue(value) for value in (b"good", b"bad", b"better")]
            await receipts[0]
            with pytest.raises(NotAllowed):
                await receipts[1]
            await receipts[2]
        assert topic.segments[0].values() == [b"good", b"better"]


@on_both_backends
async def test_what_a_busy_broker_refused_is_sent_again_in_order() -> None:
    """It is resent on another session, as after a lost connection; in a transaction it fails instead."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        busy = 3

        def handler(peer: Peer, frame: Frame) -> None:
            nonlocal busy
            if busy and frame.command.send.sequence_id >= 1:
                busy -= 1
                peer.send(send_refusal(frame.command.send, pb.ServerError.PersistenceError, "fenced"))
            else:
                broker.answer(peer, frame)

        broker.on(T.SEND, handler)
        async with broker.client() as client, client.producer(X, batching=False) as producer:
            for receipt in [await producer.enqueue(b"%d" % number) for number in range(4)]:
                await receipt
            assert topic.segments[0].values() == [b"0", b"1", b"2", b"3"]
            busy = 1
            txn = await client.new_transaction()
            with pytest.raises(BrokerBusy):
                await producer.send(b"x", txn=txn)
        assert len(broker.of(T.PRODUCER)) > 1


@on_both_backends
async def test_a_refused_batch_fails_as_a_whole() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        refuse_sends(broker, pb.ServerError.NotAllowedError, b"bad")
        async with broker.client() as client, client.producer(X) as producer:
            receipts = [await producer.enqueue(value) for value in (b"bad", b"worse", b"worst")]
            for receipt in receipts:
                with pytest.raises(NotAllowed):
                    await receipt
            assert [send.num_messages for send in broker.of(T.SEND)] == [3]
        assert topic.segments[0].values() == []


@on_both_backends
async def test_a_failure_that_nobody_awaited_comes_out_of_flush_and_of_the_end_once() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        refuse_sends(broker, pb.ServerError.NotAllowedError, b"bad")
        async with broker.client() as client:
            async with client.producer(X, batching=False) as producer:
                await producer.enqueue(b"bad")
                with pytest.raises(NotAllowed):
                    await producer.flush()
                await producer.flush()
            with pytest.raises(NotAllowed):
                async with client.producer(X) as producer:
                    await producer.enqueue(b"bad")


@on_both_backends
async def test_leaving_waits_for_the_answers_and_leaving_by_an_exception_does_not() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client:
            async with client.producer(X) as producer:
                for number in range(100):
                    await producer.enqueue(b"%d" % number)
            assert len(topic.segments[0].values()) == 100
            broker.hold(T.SEND)
            with pytest.raises(KeyError):  # noqa: PT012 - the error comes out of the block
                async with client.producer(X) as producer:
                    receipt = await producer.enqueue(b"x")
                    raise KeyError("the program's own")
            with pytest.raises(Closed):
                await receipt
            with pytest.raises(Closed):
                await producer.send(b"x")


@on_both_backends
async def test_a_topic_that_is_deleted_fails_what_waits_and_what_comes() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        broker.hold(T.SEND)
        async with broker.client() as client:
            with pytest.raises(TopicNotFound, match="deleted"):  # noqa: PT012 - out of the block, too
                async with client.producer(X) as producer:
                    receipt = await producer.enqueue(b"x")
                    await broker.seen(T.SEND)
                    (peer, session_id) = topic.watchers[0]
                    peer.send(commands.scalable_topic_failed(session_id, pb.ServerError.TopicNotFound, "deleted"))
                    with pytest.raises(TopicNotFound):
                        await receipt
                    await producer.send(b"y")


@on_both_backends
async def test_a_producer_that_may_not_produce_says_so() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        broker.on(
            T.PRODUCER,
            lambda peer, frame: peer.send(
                commands.error(frame.command.producer.request_id, pb.ServerError.AuthorizationError, "no entry")
            ),
        )
        async with broker.client() as client:
            with pytest.raises(NotPermitted):
                async with client.producer(X) as producer:
                    await producer.send(b"x")
            with pytest.raises(TopicNotFound):
                async with client.producer(X + "y"):
                    pass


@on_both_backends
async def test_a_plain_topic_that_is_terminated_ends_the_producer() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(PLAIN)
        async with broker.client() as client:
            with pytest.raises(TopicTerminated):  # noqa: PT012 - out of the block, too
                async with client.producer(PLAIN) as producer:
                    await producer.send(b"x")
                    topic.seal(0)
                    await producer.send(b"y")


# ---------------------------------------------------------------------------------------------------- lost connections


@on_both_backends
async def test_unanswered_messages_are_sent_again_under_the_same_ids_and_name() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            await producer.send(b"before")
            broker.hold(T.SEND)
            first = await producer.enqueue(b"1")
            await broker.seen(T.SEND, 2)
            more = [await producer.enqueue(b"%d" % number) for number in range(2, 5)]
            broker.drop_connections()
            broker.forget(T.SEND)
            for receipt in (first, *more):
                await receipt
            opened = broker.of(T.PRODUCER)
            assert [command.epoch for command in opened] == [0, 1]
            assert opened[0].producer_name == ""
            assert opened[1].producer_name != ""
            assert not any(command.user_provided_producer_name for command in opened)
            assert [send.sequence_id for send in broker.of(T.SEND)] == [0, 1, 1, 2]
        assert topic.segments[0].values() == [b"before", b"1", b"2", b"3", b"4"]


@on_trio
async def test_a_full_disk_is_shown_while_messages_wait_for_it() -> None:
    """E13: the producer waits without an end, and the program can say why, also of a client with other work."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        broker.on(
            T.PRODUCER,
            lambda peer, frame: peer.send(
                commands.error(
                    frame.command.producer.request_id,
                    pb.ServerError.ProducerBlockedQuotaExceededError,
                    "the disk is full. Free space.",
                )
            ),
        )
        async with broker.client() as client, client.producer(X) as producer:
            assert producer.troubles.current is None
            receipt = await producer.enqueue(b"x")
            with trio.fail_after(60):
                trouble = await producer.troubles.change(None)
            assert trouble is not None
            assert isinstance(trouble.error, BrokerFull)
            assert trouble.since_seconds == trio.current_time()
            begun = trouble.since_seconds
            for _ in range(5):
                trouble = await producer.troubles.change(trouble)
                assert trouble is not None
                assert trouble.since_seconds == begun
            assert client.troubles.current is not None
            broker.off(T.PRODUCER)
            await receipt
            assert [troubles.current for troubles in (producer.troubles, client.troubles)] == [None, None]
        assert topic.segments[0].values() == [b"x"]


@on_trio
async def test_a_lost_broker_is_shown_even_while_nothing_is_sent() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer, client.reader(X) as reader:
            await producer.send(b"x")
            await reader.receive()
            assert client.troubles.current is None
            broker.refuses = True
            broker.drop_connections()
            with trio.fail_after(60):
                trouble = await producer.troubles.change(None)
            assert trouble is not None
            assert isinstance(trouble.error, ConnectionLost)
            broker.refuses = False
            for troubles in (producer.troubles, client.troubles):
                while (trouble := troubles.current) is not None:
                    await troubles.change(trouble)
            await producer.send(b"y")


@on_both_backends
async def test_a_broker_may_be_away_for_long() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        async with broker.client() as client, client.producer(X) as producer:
            await producer.send(b"before", key="k")
            broker.refuses = True
            broker.drop_connections()
            receipts = [await producer.enqueue(b"%d" % number, key=str(number)) for number in range(20)]
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            assert not any(receipt.is_answered for receipt in receipts)
            broker.refuses = False
            for receipt in receipts:
                await receipt
        assert sum(len(segment.values()) for segment in topic.segments.values()) == 21


@on_both_backends
async def test_a_name_is_taken_at_first_and_ours_afterwards() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        refusals = 0

        def taken(peer: Peer, frame: Frame) -> None:
            nonlocal refusals
            if refusals:
                refusals -= 1
                request_id = frame.command.producer.request_id
                peer.send(commands.error(request_id, pb.ServerError.ProducerBusy, "taken"))
            else:
                broker.answer(peer, frame)

        broker.on(T.PRODUCER, taken)
        async with broker.client() as client:
            refusals = 1
            with pytest.raises(NameTaken):
                async with client.producer(X, "me") as producer:
                    await producer.send(b"x")
            async with client.producer(X, "me") as producer:
                await producer.send(b"x")
                # The broker still believes in the session that was lost.
                refusals = 3
                broker.drop_connections()
                await producer.send(b"y")
        assert refusals == 0


@on_trio
async def test_attempts_to_reconnect_are_spaced() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        async with broker.client(reconnect_seconds_max=2.0) as client, client.producer(X) as producer:
            await producer.send(b"x")
            dials = 0
            dial = broker.dial

            async def counted(address: object) -> anyio.abc.ByteStream:
                nonlocal dials
                dials += 1
                return await dial(address)  # type: ignore[arg-type]

            client._network._dial = counted
            broker.refuses = True
            broker.drop_connections()
            await trio.sleep(60)
            # The producer and its layout watch, each at most every second once the delay has grown.
            assert 50 < dials < 150


@on_both_backends
async def test_closing_does_not_wait_for_a_broker_that_is_gone() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        with pytest.raises(KeyError):  # noqa: PT012 - the error comes out of the block
            async with broker.client() as client, client.producer(X) as producer:
                await producer.send(b"x")
                broker.refuses = True
                broker.drop_connections()
                raise KeyError


@on_trio
async def test_closing_waits_for_the_broker_but_not_long() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        async with broker.client() as client:
            async with client.producer(X, "me") as producer:
                await producer.send(b"x")
                broker.hold(T.CLOSE_PRODUCER)
                before = trio.current_time()
            assert CLOSE_SECONDS_MAX <= trio.current_time() - before < CLOSE_SECONDS_MAX + 0.1


# ------------------------------------------------------------------------------------------------------ cancellation


async def check_producer(client: Client, producer: Producer, broker: ScriptedBroker) -> None:
    with trio.fail_after(60):
        await producer.flush()
        await producer.send(b"still there", key="k")
        await producer.flush()
    assert producer.statistics().pending_messages == 0
    assert producer.statistics().pending_bytes == 0


async def test_a_send_cancelled_at_any_step_leaves_the_producer_whole() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X, 2)
        async with broker.client() as client, client.producer(X) as producer:

            async def send() -> None:
                await producer.send(b"x", key="k")

            async def check() -> None:
                await check_producer(client, producer, broker)

            assert await cancel_at_each_step(send, check) > 2


async def test_an_enqueue_into_a_full_producer_cancelled_at_any_step_takes_no_room() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        async with broker.client() as client, client.producer(X) as producer:
            room = producer._tally.room

            async def enqueue() -> None:
                room._messages = PENDING_MESSAGES_MAX
                trio.lowlevel.spawn_system_task(free_soon)
                await producer.enqueue(b"x")

            async def free_soon() -> None:
                await trio.testing.wait_all_tasks_blocked()
                room.give_back(room.messages, room.bytes)

            async def check() -> None:
                await trio.testing.wait_all_tasks_blocked()
                await check_producer(client, producer, broker)

            assert await cancel_at_each_step(enqueue, check) > 2


async def test_opening_a_producer_cancelled_at_any_step_leaves_nothing_behind() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        async with broker.client() as client:

            async def produce() -> None:
                async with client.producer(X) as producer:
                    await producer.send(b"x", key="k")

            async def check() -> None:
                await trio.testing.wait_all_tasks_blocked()
                assert topic.watchers == []
                assert all(not peer.producers for peer in broker.peers)
                with trio.fail_after(60):
                    await produce()

            assert await cancel_at_each_step(produce, check) > 4


@on_both_backends
async def test_lost_connections_lose_nothing() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)

        def disturb(peer: Peer, frame: Frame) -> None:
            # Lost before it arrived, lost after it arrived, and two that go well.
            turn = len(broker.of(T.SEND)) % 4
            if turn != 0:
                broker.answer(peer, frame)
            if turn < 2:
                broker.drop_connections()

        broker.on(T.SEND, disturb)
        async with broker.client() as client, client.producer(X, batching=Batching(messages_max=3)) as producer:
            for number in range(300):
                await producer.enqueue(b"%03d" % number, key="k")
            await producer.flush()
        seen = topic.segments[0].values()
        assert sorted(set(seen)) == [b"%03d" % number for number in range(300)]
        # Copies come in whole runs: the first copies stand in order.
        assert list(dict.fromkeys(seen)) == sorted(set(seen))


@on_both_backends
async def test_a_peer_that_breaks_the_protocol_ends_the_producer_with_that() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        broker.on(T.SEND, lambda peer, frame: peer.send_bytes(b"\xff\xff\xff\xff"))
        async with broker.client() as client:
            with pytest.raises(Exception, match="broke the protocol") as raised:
                async with client.producer(X) as producer:
                    await producer.send(b"x")
            assert not isinstance(raised.value, ConnectionLost)
