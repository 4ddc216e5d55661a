"""Queue consumers against a scripted broker: every segment, single messages, and redelivery after failures."""

from math import inf

import anyio
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.backends import on_both_backends, on_trio
from tests.support.cancellation import cancel_at_each_step
from tests.support.scripted_broker import Peer, ScriptedBroker, T, Topic, payload_of, scripted_broker
from tidewire.client.client import Client
from tidewire.client.dead_letters import DeadLetterPolicy
from tidewire.client.errors import TransactionEnded
from tidewire.client.message import Message
from tidewire.client.queue_consumer import QueueConsumer
from tidewire.client.redelivery import BackoffPolicy
from tidewire.client.transactions import Transaction
from tidewire.protocol.errors import ConnectionLost, InvalidName
from tidewire.protocol.refusals import Refused, TopicNotFound, TransactionConflict
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import bits_of_ack_set, position
from tidewire.wire.pulsar.messages import split_messages

X = "topic://public/default/x"
DEAD = "topic://public/default/dead"
SHARED = pb.CommandSubscribe.SubType.Shared
FIXED = BackoffPolicy(5.0, 5.0, 1.0, jitter_percent=0)


def fill(topic: Topic, segment_id: int, *values: bytes) -> None:
    segment = topic.segments[segment_id]
    segment.entries.extend(payload_of(value) for value in values)
    segment.deliver()


async def receive(consumer: QueueConsumer, count: int) -> list[Message]:
    with anyio.fail_after(1000):
        return [await consumer.receive() for _ in range(count)]


def values(messages: list[Message]) -> list[bytes]:
    return sorted(message.value for message in messages)


def acknowledged(broker: ScriptedBroker) -> list[tuple[int, int, int | None]]:
    """Return each acknowledgement: its entry, and its remaining bits."""
    return [
        (*position(told), bits_of_ack_set(told.ack_set) if told.ack_set else None)
        for ack in broker.of(T.ACK)
        for told in ack.message_id
    ]


# ------------------------------------------------------------------------------------------------------- its segments


@on_both_backends
async def test_every_segment_is_consumed_sealed_ones_too_and_those_that_come() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        fill(topic, 0, b"0")
        topic.split(0)
        fill(topic, 1, b"1")
        fill(topic, 2, b"2")
        async with broker.client() as client, client.queue_consumer(X, "s", "me") as consumer:
            assert values(await receive(consumer, 3)) == [b"0", b"1", b"2"]
            topic.split(1)
            fill(topic, 5, b"5")
            assert values(await receive(consumer, 1)) == [b"5"]
            requests = broker.of(T.SUBSCRIBE)
            assert {request.sub_type for request in requests} == {SHARED}
            assert sorted(request.consumer_name for request in requests) == [f"me-seg-{number}" for number in range(6)]
            assert not broker.of(T.SCALABLE_TOPIC_SUBSCRIBE)
            assert consumer.statistics().segments == 6
            # A segment that all have read is removed.
            del topic.segments[0]
            topic.epoch += 1
            topic.push()
            while consumer.statistics().segments > 5:
                await anyio.lowlevel.checkpoint()


@on_both_backends
async def test_a_new_subscription_may_begin_at_the_latest_but_not_on_segments_that_come() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"old")
        async with broker.client() as client, client.queue_consumer(X, "s", initial="latest") as consumer:
            topic.split(0)
            fill(topic, 1, b"new")
            assert values(await receive(consumer, 1)) == [b"new"]


@on_both_backends
async def test_it_goes_on_after_a_lost_connection_and_tells_what_was_not_told_first() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"a", b"b")
        async with broker.client() as client, client.queue_consumer(X, "s") as consumer:
            got = await receive(consumer, 2)
            broker.refuses = True
            broker.drop_connections()
            while consumer.statistics().segments_connected:
                await anyio.lowlevel.checkpoint()
            await consumer.acknowledge(got[0])
            broker.refuses = False
            assert len(await receive(consumer, 1)) == 1
            kinds = [kind for kind, _ in broker.commands if kind in {T.SUBSCRIBE, T.ACK, T.FLOW}]
            assert kinds == [T.SUBSCRIBE, T.FLOW, T.SUBSCRIBE, T.ACK, T.FLOW]


@on_both_backends
async def test_what_cannot_be_is_refused() -> None:
    async with scripted_broker() as broker, broker.client() as client:
        broker.add_topic(X)
        with pytest.raises(TopicNotFound):
            async with client.queue_consumer("topic://public/default/missing", "s"):
                pass
        with pytest.raises(InvalidName, match="plain consumer"):
            async with client.queue_consumer("persistent://public/default/x", "s"):
                pass
        with pytest.raises(ValueError, match="processing_timeout_seconds"):
            async with client.queue_consumer(X, "s", processing_timeout_seconds=0):
                pass
        with pytest.raises(ValueError, match="max_redeliver_count must be at least 0"):
            DeadLetterPolicy(-1)
        # Said at once, and not when the first message has failed often enough.
        with pytest.raises(TopicNotFound):
            async with client.queue_consumer(X, "s", dead_letter_policy=DeadLetterPolicy(3)):
                pass


# ------------------------------------------------------------------------------------------------------ acknowledging


@on_both_backends
async def test_messages_are_acknowledged_one_by_one() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        fill(topic, 0, b"a", b"b", b"c")
        fill(topic, 1, b"d")
        async with broker.client() as client, client.queue_consumer(X, "s") as consumer:
            got = {message.value: message for message in await receive(consumer, 4)}
            await consumer.acknowledge(got[b"c"], got[b"d"].message_id, confirmed=True)
            ids = {value: message.message_id for value, message in got.items()}
            assert sorted(acknowledged(broker)) == sorted(
                (ids[value].ledger_id, ids[value].entry_id, None) for value in (b"c", b"d")
            )
            assert all(ack.HasField("request_id") for ack in broker.of(T.ACK))
            await consumer.acknowledge(got[b"a"])
        assert len(acknowledged(broker)) == 3
        assert {ack.ack_type for ack in broker.of(T.ACK)} == {pb.CommandAck.AckType.Individual}


# -------------------------------------------------------------------------------------------------- coming back again


@on_trio
async def test_a_message_that_is_given_back_comes_again_after_its_wait_which_grows() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"a", b"b")
        backoff = BackoffPolicy(2.0, 60.0, 3.0, jitter_percent=0)
        async with broker.client() as client, client.queue_consumer(X, "s", negative_ack_backoff=backoff) as consumer:
            first, second = await receive(consumer, 2)
            await consumer.acknowledge(second)
            waits = []
            for count in range(3):
                start = trio.current_time()
                assert first.redelivery_count == count
                await consumer.negative_acknowledge(first)
                (first,) = await receive(consumer, 1)
                assert first.value == b"a"
                waits.append(round(trio.current_time() - start, 3))
            assert waits == [2.0, 6.0, 18.0]
            # The broker was told first what need not come.
            kinds = [kind for kind, _ in broker.commands]
            assert kinds.index(T.ACK) < kinds.index(T.REDELIVER_UNACKNOWLEDGED_MESSAGES)
            await consumer.negative_acknowledge(first.message_id)
            await consumer.acknowledge(first)
            with trio.move_on_after(1000):
                await consumer.receive()
            assert len(broker.of(T.REDELIVER_UNACKNOWLEDGED_MESSAGES)) == 3


@on_trio
async def test_a_message_that_takes_too_long_comes_again_by_itself() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"slow", b"quick", b"given back")
        async with (
            broker.client() as client,
            client.queue_consumer(X, "s", processing_timeout_seconds=30, negative_ack_backoff=FIXED) as consumer,
        ):
            slow, quick, given_back = await receive(consumer, 3)
            await consumer.acknowledge(quick)
            await consumer.negative_acknowledge(given_back)
            (again,) = await receive(consumer, 1)
            assert (again.value, round(trio.current_time()), again.redelivery_count) == (b"given back", 5, 1)
            await consumer.acknowledge(again)
            (again,) = await receive(consumer, 1)
            assert (again.value, round(trio.current_time())) == (b"slow", 30)
            await consumer.acknowledge(slow)
            with trio.move_on_after(1000):
                await consumer.receive()
            assert len(broker.of(T.REDELIVER_UNACKNOWLEDGED_MESSAGES)) == 2


@on_trio
async def test_of_a_batch_what_is_left_is_asked_for_once() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        broker.hold(T.SEND)
        async with (
            broker.client() as client,
            client.producer(X) as producer,
            client.queue_consumer(X, "s", negative_ack_backoff=FIXED) as consumer,
        ):
            await producer.enqueue(b"lone")
            await broker.seen(T.SEND)
            for number in range(4):
                await producer.enqueue(b"%d" % number)
            broker.release(T.SEND)
            _, zero, one, two = await receive(consumer, 4)
            await consumer.negative_acknowledge(zero, two)
            await consumer.acknowledge(one)
            # The fourth message of the batch waits here meanwhile, and does not come twice.
            again = await receive(consumer, 1)
            assert values(again) == [b"3"]
            await trio.sleep(6)
            (request,) = broker.of(T.REDELIVER_UNACKNOWLEDGED_MESSAGES)
            assert [position(told)[1] for told in request.message_ids] == [1]
            assert tuple(left for _, entry, left in acknowledged(broker) if entry == 1) == (0b1101,)
            # The scripted broker sends all of it.
            assert values(await receive(consumer, 4)) == [b"0", b"1", b"2", b"3"]
            await trio.sleep(100)
            assert len(broker.of(T.REDELIVER_UNACKNOWLEDGED_MESSAGES)) == 1


@on_trio
async def test_nothing_is_asked_for_that_comes_by_itself_after_a_lost_connection() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"a")
        async with broker.client() as client, client.queue_consumer(X, "s", negative_ack_backoff=FIXED) as consumer:
            (got,) = await receive(consumer, 1)
            await consumer.negative_acknowledge(got)
            broker.drop_connections()
            (got,) = await receive(consumer, 1)
            assert trio.current_time() < 5
            await trio.sleep(100)
            assert not broker.of(T.REDELIVER_UNACKNOWLEDGED_MESSAGES)


@on_trio
async def test_a_consumer_with_nothing_to_wait_for_has_no_timer() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"a")
        async with (
            # The connection has a timer of its own.
            broker.client(keep_alive_seconds=inf) as client,
            client.queue_consumer(X, "s", processing_timeout_seconds=10) as consumer,
        ):
            (got,) = await receive(consumer, 1)
            await consumer.acknowledge(got)
            await trio.sleep(11)
            await wait_all_tasks_blocked()
            assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")


# -------------------------------------------------------------------------------------------------------- dead letters


def dead_letters(broker: ScriptedBroker) -> list[dict[str, str]]:
    found = []
    for segment in broker.topics[DEAD].segments.values():
        for entry in segment.entries:
            found += [
                {"value": single.value.decode(), "key": single.key or "", **single.properties}
                for single in split_messages(entry)
            ]
    return found


@on_trio
async def test_a_message_that_failed_too_often_is_put_aside_and_then_acknowledged() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        broker.add_topic(DEAD)
        policy = DeadLetterPolicy(2, DEAD, initial_subscription_name="undertaker")
        async with (
            broker.client() as client,
            client.producer(X) as producer,
            client.queue_consumer(X, "s", negative_ack_backoff=FIXED, dead_letter_policy=policy) as consumer,
        ):
            assert "undertaker" in broker.topics[DEAD].segments[0].cursors
            await producer.send(b"bad", key="k", properties={"own": "property"})
            for count in range(3):
                (bad,) = await receive(consumer, 1)
                assert bad.redelivery_count == count
                await consumer.negative_acknowledge(bad)
            broker.hold(T.SEND)
            with trio.move_on_after(10):
                await consumer.receive()
            assert not acknowledged(broker)
            broker.release(T.SEND)
            fill(topic, 0, b"good")
            assert values(await receive(consumer, 1)) == [b"good"]
            await broker.seen(T.ACK)
            assert acknowledged(broker) == [(1, 0, None)]
            assert dead_letters(broker) == [
                {
                    "value": "bad",
                    "key": "k",
                    "own": "property",
                    "REAL_TOPIC": X,
                    "REAL_SUBSCRIPTION": "s",
                    "ORIGIN_MESSAGE_ID": "1:0:0",
                }
            ]


@on_trio
async def test_a_dead_letter_that_is_not_taken_comes_again() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        broker.add_topic(DEAD)
        fill(topic, 0, b"bad")
        refusing = True

        def refuse(peer: Peer, frame: Frame) -> None:
            if refusing:
                send = frame.command.send
                peer.send(commands.send_error(send.producer_id, send.sequence_id, pb.ServerError.NotAllowedError, "no"))
            else:
                broker.answer(peer, frame)

        broker.on(T.SEND, refuse)
        policy = DeadLetterPolicy(0, DEAD)
        async with (
            broker.client() as client,
            client.queue_consumer(X, "s", negative_ack_backoff=FIXED, dead_letter_policy=policy) as consumer,
        ):
            (bad,) = await receive(consumer, 1)
            await consumer.negative_acknowledge(bad)
            with trio.move_on_after(14):
                await consumer.receive()
            assert len(broker.of(T.SEND)) == 2
            assert not acknowledged(broker)
            refusing = False
            with trio.move_on_after(14):
                await consumer.receive()
            assert [letter["value"] for letter in dead_letters(broker)] == ["bad"]
            assert acknowledged(broker) == [(1, 0, None)]


# -------------------------------------------------------------------------------------------------------- transactions


@on_both_backends
async def test_messages_are_acknowledged_in_a_transaction_segment_by_segment() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        fill(topic, 0, b"a", b"b")
        fill(topic, 1, b"c")
        async with broker.client() as client, client.queue_consumer(X, "s") as consumer:
            got = await receive(consumer, 3)
            async with client.transaction() as txn:
                await consumer.acknowledge(*got[:2], transaction=txn)
                await consumer.acknowledge(got[2], transaction=txn)
            announced = [
                (told.topic, told.subscription)
                for request in broker.of(T.ADD_SUBSCRIPTION_TO_TXN)
                for told in request.subscription
            ]
            assert sorted(announced) == [(segment.topic, "s") for segment in topic.segments.values()]
            for ack in broker.of(T.ACK):
                assert (ack.txnid_most_bits, ack.txnid_least_bits) == txn.transaction_id
                assert ack.HasField("request_id")
            assert len(acknowledged(broker)) == 3
            assert broker.transactions == {txn.transaction_id: "COMMITTED"}
            with pytest.raises(TransactionEnded):
                await consumer.acknowledge(got[0], transaction=txn)


@on_both_backends
async def test_of_a_batch_a_transaction_is_told_just_its_own_messages() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        broker.hold(T.SEND)
        async with (
            broker.client() as client,
            client.producer(X) as producer,
            client.queue_consumer(X, "s") as consumer,
        ):
            await producer.enqueue(b"lone")
            await broker.seen(T.SEND)
            for number in range(4):
                await producer.enqueue(b"%d" % number)
            broker.release(T.SEND)
            _, zero, one, two, three = await receive(consumer, 5)
            await consumer.acknowledge(zero, confirmed=True)
            async with client.transaction() as txn:
                await consumer.acknowledge(one, three, transaction=txn)
                await consumer.acknowledge(two, transaction=txn)
            assert [left for _, entry, left in acknowledged(broker) if entry == 1] == [0b1110, 0b0101, 0b1011]


@on_both_backends
async def test_a_commit_waits_for_acknowledgements_and_fails_with_them() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"a", b"b")
        async with broker.client() as client, client.queue_consumer(X, "s") as consumer:
            got = await receive(consumer, 2)
            txn = await client.new_transaction()
            broker.hold(T.ACK)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: consumer.acknowledge(got[0], transaction=txn))
                await broker.seen(T.ACK)
                tasks.start_soon(txn.commit)
                for _ in range(50):
                    await anyio.lowlevel.checkpoint()
                assert not broker.of(T.END_TXN)
                broker.release(T.ACK)
            assert broker.transactions == {txn.transaction_id: "COMMITTED"}

            broker.on(
                T.ACK,
                lambda peer, frame: peer.send(
                    commands.ack_response(
                        frame.command.ack.consumer_id,
                        frame.command.ack.request_id,
                        error=pb.ServerError.TransactionConflict,
                        message="taken",
                    )
                ),
            )
            txn = await client.new_transaction()
            with pytest.raises(Refused, match="taken"):
                await consumer.acknowledge(got[1], transaction=txn)
            with pytest.raises(Refused, match="taken"):
                await txn.commit()
            assert broker.transactions[txn.transaction_id] == "ABORTED"


@on_trio
async def test_messages_whose_acknowledgement_was_refused_are_still_the_consumers() -> None:
    """T24: their transaction may not commit, so they are redelivered in time, or sooner after a nack."""
    async with scripted_broker() as broker:
        fill(broker.add_topic(X), 0, b"given back", b"slow")
        broker.on(
            T.ACK,
            lambda peer, frame: peer.send(
                commands.ack_response(
                    frame.command.ack.consumer_id,
                    frame.command.ack.request_id,
                    error=pb.ServerError.TransactionConflict,
                    message="taken",
                )
            ),
        )
        async with (
            broker.client() as client,
            client.queue_consumer(X, "s", processing_timeout_seconds=30, negative_ack_backoff=FIXED) as consumer,
        ):
            given_back, slow = await receive(consumer, 2)
            txn = await client.new_transaction()
            for message in (given_back, slow):
                with pytest.raises(TransactionConflict, match="taken"):
                    await consumer.acknowledge(message, transaction=txn)
            await txn.abort()
            await consumer.negative_acknowledge(given_back)
            (again,) = await receive(consumer, 1)
            assert (again.value, round(trio.current_time())) == (b"given back", 5)
            (again,) = await receive(consumer, 1)
            assert (again.value, round(trio.current_time())) == (b"slow", 30)


@on_both_backends
async def test_a_transaction_whose_acknowledgement_met_a_lost_connection_has_to_be_run_again() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"a")
        runs = 0
        async with broker.client() as client, client.queue_consumer(X, "s") as consumer:
            broker.hold(T.ACK)

            async def work(txn: Transaction) -> None:
                nonlocal runs
                runs += 1
                message = await consumer.receive()
                if runs == 1:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(drop)
                        with pytest.raises(ConnectionLost):
                            await consumer.acknowledge(message, transaction=txn)
                else:
                    await consumer.acknowledge(message, transaction=txn)

            async def drop() -> None:
                await broker.seen(T.ACK)
                broker.forget(T.ACK)
                broker.drop_connections()

            await client.run_transaction(work)
            assert runs == 2
            assert list(broker.transactions.values()) == ["ABORTED", "COMMITTED"]


# ----------------------------------------------------------------------------------------------------------- seeking


@on_both_backends
async def test_seeking_moves_every_segment_and_forgets_what_was_waiting() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        fill(topic, 0, b"a", b"b")
        fill(topic, 1, b"c")
        async with broker.client() as client, client.queue_consumer(X, "s") as consumer:
            got = await receive(consumer, 2)
            await consumer.acknowledge(got[0])
            await consumer.seek("earliest")
            assert values(await receive(consumer, 3)) == [b"a", b"b", b"c"]
            fill(topic, 0, b"skipped")
            await consumer.skip_all()
            fill(topic, 0, b"new")
            assert values(await receive(consumer, 1)) == [b"new"]
            # Told before the move, never after it.
            kinds = [kind for kind, _ in broker.commands if kind in {T.ACK, T.SEEK}]
            assert kinds[0] == T.ACK
            assert kinds.count(T.ACK) == 1


@on_both_backends
async def test_seeking_goes_behind_a_message_and_to_a_time() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"a", b"b", b"c")
        async with broker.client() as client, client.queue_consumer(X, "s") as consumer:
            got = await receive(consumer, 3)
            await consumer.seek(got[0].message_id)
            assert values(await receive(consumer, 2)) == [b"b", b"c"]
            with pytest.raises(ValueError, match="seek to"):
                await consumer.seek("yesterday")  # type: ignore[arg-type]


@on_trio
async def test_a_segment_that_is_pruned_during_a_seek_needs_no_move() -> None:
    """E21: the others have moved, so the seek is done as soon as the layout says that the segment has left."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        fill(topic, 1, b"a")
        pruned = topic.segments[0]

        def prune(peer: Peer, frame: Frame) -> None:
            if peer.consumers[frame.command.seek.consumer_id][0] is not pruned:
                broker.answer(peer, frame)
                return
            topic.segments[1].hash_start = pruned.hash_start
            del topic.segments[0], broker.segments[pruned.topic]
            topic.epoch += 1
            topic.push()
            not_now = pb.ServerError.ServiceNotReady
            peer.send(commands.error(frame.command.seek.request_id, not_now, "the topic is closed"))
            pruned.close_consumers()

        async with broker.client() as client, client.queue_consumer(X, "s") as consumer:
            assert values(await receive(consumer, 1)) == [b"a"]
            broker.on(T.SEEK, prune)
            before = trio.current_time()
            await consumer.seek("earliest")
            assert trio.current_time() - before < 5
            assert values(await receive(consumer, 1)) == [b"a"]


@on_both_backends
async def test_a_refused_seek_loses_nothing() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"a", b"b")
        broker.on(
            T.SEEK,
            lambda peer, frame: peer.send(
                commands.error(frame.command.seek.request_id, pb.ServerError.NotAllowedError, "not here")
            ),
        )
        async with broker.client() as client, client.queue_consumer(X, "s") as consumer:
            with pytest.raises(Refused, match="not here"):
                await consumer.seek("latest")
            assert values(await receive(consumer, 2)) == [b"a", b"b"]


# -------------------------------------------------------------------------------------------------------- cancellation


async def test_cancelled_at_any_step_receiving_loses_nothing() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        broker.add_topic(DEAD)
        async with (
            broker.client() as client,
            client.queue_consumer(X, "s", dead_letter_policy=DeadLetterPolicy(0, DEAD)) as consumer,
        ):
            got: list[bytes] = []
            fill(topic, 0, *(b"%d" % number for number in range(40)))
            await wait_all_tasks_blocked()

            async def one() -> None:
                got.append((await consumer.receive()).value)

            async def nothing() -> None:
                pass

            assert await cancel_at_each_step(one, nothing) > 1
            rest = [(await consumer.receive()).value for _ in range(40 - len(got))]
            assert got + rest == [b"%d" % number for number in range(40)]


async def test_cancelled_at_any_step_opening_and_seeking_leave_a_client_that_works() -> None:
    async with scripted_broker() as broker, broker.client() as client:
        topic = broker.add_topic(X)
        fill(topic, 0, b"a")

        async def go(client: Client = client) -> None:
            async with client.queue_consumer(X, "s") as consumer:
                await consumer.seek("earliest")
                await consumer.receive()

        async def check() -> None:
            await wait_all_tasks_blocked()
            async with client.queue_consumer(X, "other") as consumer:
                assert (await consumer.receive()).value == b"a"

        assert await cancel_at_each_step(go, check) > 5


@on_both_backends
async def test_a_message_that_came_again_counts_once_in_a_transaction() -> None:
    """T24: its first session has ended, so both copies are the same message."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        fill(topic, 0, b"a")
        async with broker.client() as client, client.queue_consumer(X, "s") as consumer:
            (first,) = await receive(consumer, 1)
            broker.drop_connections()
            (again,) = await receive(consumer, 1)
            txn = await client.new_transaction()
            with pytest.raises(TransactionConflict, match="was passed twice"):
                await consumer.acknowledge(first, again, transaction=txn)
            with pytest.raises(TransactionConflict, match="was passed twice"):
                await txn.commit()
            assert broker.transactions[txn.transaction_id] == "ABORTED"
