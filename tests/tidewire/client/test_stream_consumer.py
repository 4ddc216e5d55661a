"""Stream consumers against a scripted broker: shares, order, acknowledgements and lost connections."""

import anyio
import pytest
import trio
import trio.testing

from tests.support.backends import on_both_backends, on_trio
from tests.support.cancellation import cancel_at_each_step
from tests.support.scripted_broker import Peer, ScriptedBroker, T, Topic, payload_of, scripted_broker
from tidewire.client.errors import Closed, MessageCorrupted
from tidewire.client.message import Message
from tidewire.client.stream_consumer import StreamConsumer
from tidewire.protocol.errors import ConnectionLost, InvalidName, OperationTimedOut
from tidewire.protocol.positions import MessageId
from tidewire.protocol.refusals import BrokerBusy, NotPermitted, TopicNotFound
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import position

X = "topic://public/default/x"


def fill(topic: Topic, segment_id: int, *values: bytes) -> None:
    segment = topic.segments[segment_id]
    segment.entries.extend(payload_of(value) for value in values)
    segment.deliver()


async def receive(consumer: StreamConsumer, count: int) -> list[Message]:
    return [await consumer.receive() for _ in range(count)]


def acknowledged(broker: ScriptedBroker) -> dict[int, tuple[int, int]]:
    """Return the last cumulative acknowledgement by consumer id."""
    return {
        ack.consumer_id: position(ack.message_id[0])
        for ack in broker.of(T.ACK)
        if ack.ack_type == pb.CommandAck.AckType.Cumulative
    }


# --------------------------------------------------------------------------------------------------------- its share


@on_both_backends
async def test_it_registers_and_subscribes_to_its_share_exclusively() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 4)
        topic.share = [1, 2]
        fill(topic, 0, b"not ours")
        fill(topic, 1, b"a", b"b")
        fill(topic, 2, b"c")
        async with broker.client() as client:
            async with client.stream_consumer(X, "s", "me") as consumer:
                got = [message.value for message in await receive(consumer, 3)]
                assert sorted(got) == [b"a", b"b", b"c"]
                assert got.index(b"a") < got.index(b"b")
                assert consumer.statistics().segments_connected == 2
            registered = broker.of(T.SCALABLE_TOPIC_SUBSCRIBE)[0]
            assert (registered.consumer_name, registered.subscription) == ("me", "s")
            assert registered.consumer_type == pb.ScalableConsumerType.STREAM
            subscribed = broker.of(T.SUBSCRIBE)
            assert {request.consumer_name for request in subscribed} == {"me-seg-1", "me-seg-2"}
            assert {request.sub_type for request in subscribed} == {pb.CommandSubscribe.SubType.Exclusive}
            assert all(request.durable for request in subscribed)
            assert {flow.message_permits for flow in broker.of(T.FLOW)} == {1000}
            # Closing leaves the segments and the group.
            closed = {request.consumer_id for request in broker.of(T.CLOSE_CONSUMER)}
            assert closed == {registered.consumer_id, *(request.consumer_id for request in subscribed)}
            assert topic.members == []


@on_both_backends
async def test_a_new_share_is_taken_over_segment_by_segment() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 3)
        topic.share = [0, 1]
        async with broker.client() as client, client.stream_consumer(X, "s", initial="latest") as consumer:
            fill(topic, 0, b"a")
            assert (await consumer.receive()).value == b"a"
            topic.assign(1, 2)
            await broker.seen(T.CLOSE_CONSUMER)
            fill(topic, 0, b"not ours any more")
            fill(topic, 2, b"b")
            assert (await consumer.receive()).value == b"b"
            assert consumer.statistics().segments == 2
            positions = {request.topic[-6:]: request.initial_position for request in broker.of(T.SUBSCRIBE)}
            # What comes later holds messages that are later than the subscription, all of them wanted.
            assert list(positions.values()) == [
                pb.CommandSubscribe.InitialPosition.Latest,
                pb.CommandSubscribe.InitialPosition.Latest,
                pb.CommandSubscribe.InitialPosition.Earliest,
            ]


@on_both_backends
async def test_what_had_come_from_a_segment_that_is_taken_away_is_dropped() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"a", b"b")
            while consumer.statistics().entries_waiting < 2:
                await anyio.lowlevel.checkpoint()
            await consumer.receive()
            topic.assign(1)
            await broker.seen(T.CLOSE_CONSUMER)
            fill(topic, 1, b"c")
            message = await consumer.receive()
            assert message.value == b"c"
            # Nor does this consumer speak for that segment any more.
            assert list(message.message_id.vector()) == [1]


@on_both_backends
async def test_nothing_of_a_segment_is_delivered_from_the_moment_it_is_taken_away() -> None:
    """Its next consumer may have it already, while this one is still closing."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"a", b"b")
            while consumer.statistics().entries_waiting < 2:
                await anyio.lowlevel.checkpoint()
            consumer._take_up(pb.ScalableConsumerAssignment(layout_epoch=9))
            assert consumer.statistics().entries_waiting == 0


@on_both_backends
async def test_nothing_that_comes_late_from_a_segment_that_is_taken_away_leaves_a_gap() -> None:
    """D11: a late message would be acknowledged with dropped earlier ones, which would then be lost."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"a", b"b")
            while consumer.statistics().entries_waiting < 2:
                await anyio.lowlevel.checkpoint()
            broker.hold(T.CLOSE_CONSUMER)
            topic.assign(1)
            await broker.seen(T.CLOSE_CONSUMER)
            fill(topic, 0, b"late")
            await anyio.wait_all_tasks_blocked()
            broker.release(T.CLOSE_CONSUMER)
            topic.assign(0, 1)
            assert [message.value for message in await receive(consumer, 3)] == [b"a", b"b", b"late"]


@on_both_backends
async def test_children_are_read_after_their_parent_when_the_broker_assigns_them_so() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        topic.share = [0]
        async with (
            broker.client() as client,
            client.producer(X) as producer,
            client.stream_consumer(X, "s") as consumer,
        ):
            for number in range(10):
                await producer.send(b"%d" % number, key="k")
            topic.split(0)
            for number in range(10, 20):
                await producer.send(b"%d" % number, key="k")
            got = await receive(consumer, 10)
            await consumer.acknowledge_cumulative(got[-1], confirmed=True)
            topic.assign(0, 1, 2)
            got += await receive(consumer, 10)
            assert [message.value for message in got] == [b"%d" % number for number in range(20)]


@on_both_backends
async def test_an_update_that_overtakes_the_answer_is_the_newer_one() -> None:
    """FACTS: an ASSIGNMENT_UPDATE may arrive before the response."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)

        def overtake(peer: Peer, frame: Frame) -> None:
            request = frame.command.scalable_topic_subscribe
            topic.share = [0, 1]
            peer.send(commands.scalable_topic_assignment_update(request.consumer_id, 0, topic.assigned()))
            topic.share = []
            peer.send(commands.scalable_topic_subscribe_response(request.request_id, 0, topic.assigned()))

        broker.on(T.SCALABLE_TOPIC_SUBSCRIBE, overtake)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            assert consumer.statistics().segments == 2


@on_both_backends
async def test_a_share_of_an_older_layout_is_dropped() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        topic.epoch = 5
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            (peer, consumer_id) = topic.members[0]
            peer.send(commands.scalable_topic_assignment_update(consumer_id, 4, []))
            fill(topic, 0, b"a")
            assert (await consumer.receive()).value == b"a"
            assert consumer.statistics().segments == 2


@on_both_backends
async def test_another_segment_of_the_same_id_is_read_instead() -> None:
    """The topic was deleted and made again while there was no registration."""
    async with scripted_broker() as broker:
        before, after = broker.add_topic(X, 1), broker.add_topic(f"{X}2", 1)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(after, 0, b"a")
            (peer, consumer_id) = before.members[0]
            peer.send(commands.scalable_topic_assignment_update(consumer_id, 1, after.assigned()))
            with anyio.fail_after(60):
                assert (await consumer.receive()).value == b"a"
            assert consumer.statistics().segments == 1


@on_both_backends
async def test_an_empty_share_is_waited_with() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        topic.share = []
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            assert consumer.statistics().segments == 0
            fill(topic, 0, b"a")
            topic.assign(0)
            assert (await consumer.receive()).value == b"a"


@on_both_backends
async def test_a_segment_that_another_has_not_left_yet_is_waited_for() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        refusals = [pb.ServerError.ConsumerBusy, pb.ServerError.TopicNotFound, pb.ServerError.ServiceNotReady]

        def busy(peer: Peer, frame: Frame) -> None:
            if refusals:
                peer.send(commands.error(frame.command.subscribe.request_id, refusals.pop(0), "not yet"))
            else:
                broker.answer(peer, frame)

        broker.on(T.SUBSCRIBE, busy)
        fill(topic, 0, b"a")
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            assert (await consumer.receive()).value == b"a"
        assert refusals == []


@on_both_backends
async def test_a_controller_that_is_not_ready_is_asked_again() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        refusals = 2

        def not_ready(peer: Peer, frame: Frame) -> None:
            nonlocal refusals
            request_id = frame.command.scalable_topic_subscribe.request_id
            if refusals:
                refusals -= 1
                code = pb.ServerError.ServiceNotReady
                peer.send(commands.scalable_topic_subscribe_failed(request_id, code, "no controller yet"))
            else:
                broker.answer(peer, frame)

        broker.on(T.SCALABLE_TOPIC_SUBSCRIBE, not_ready)
        async with broker.client() as client, client.stream_consumer(X, "s"):
            assert refusals == 0


@on_both_backends
async def test_what_cannot_be_consumed_says_so() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        async with broker.client() as client:
            with pytest.raises(TopicNotFound):
                async with client.stream_consumer(X + "y", "s"):
                    pass
            with pytest.raises(InvalidName, match="plain consumer"):
                async with client.stream_consumer("persistent://public/default/x", "s"):
                    pass
            with pytest.raises(ValueError, match="'earliest' or 'latest'"):
                async with client.stream_consumer(X, "s", initial="newest"):  # type: ignore[arg-type]
                    pass
            with pytest.raises(ValueError, match="at least 1"):
                async with client.stream_consumer(X, "s", queue_messages_max=0):
                    pass
            broker.on(
                T.SUBSCRIBE,
                lambda peer, frame: peer.send(
                    commands.error(frame.command.subscribe.request_id, pb.ServerError.AuthorizationError, "no entry")
                ),
            )
            with pytest.raises(NotPermitted):
                async with client.stream_consumer(X, "s"):
                    pass


@on_trio
async def test_subscribing_takes_no_longer_than_an_operation_may() -> None:
    async with scripted_broker() as broker, broker.client(operation_timeout_seconds=5.0) as client:
        broker.add_topic(X)
        broker.hold(T.SUBSCRIBE)
        before = trio.current_time()
        with pytest.raises(OperationTimedOut):
            async with client.stream_consumer(X, "s"):
                pass
        assert 5 <= trio.current_time() - before < 8


@on_trio
async def test_a_subscription_that_times_out_says_what_the_broker_answered() -> None:
    """E10: the broker refuses a topic that cannot be loaded again and again, and the caller must learn why."""
    async with (
        scripted_broker() as broker,
        broker.client(operation_timeout_seconds=5.0, reconnect_seconds_max=1.0) as client,
    ):
        broker.add_topic(X)
        broker.on(
            T.SUBSCRIBE,
            lambda peer, frame: peer.send(
                commands.error(
                    frame.command.subscribe.request_id, pb.ServerError.ServiceNotReady, "17.ledger is damaged"
                )
            ),
        )
        with pytest.raises(OperationTimedOut, match=r"within 5\.0 s\. The last attempt failed: 17\.ledger is damaged"):
            async with client.stream_consumer(X, "s"):
                pass


# ------------------------------------------------------------------------------------------------- acknowledgements


@on_both_backends
async def test_one_acknowledgement_covers_all_segments_and_only_the_furthest_is_told() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 3)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            for segment_id in range(3):
                fill(topic, segment_id, b"a", b"b")
            got = await receive(consumer, 6)
            for message in got:
                await consumer.acknowledge_cumulative(message)
            await consumer.acknowledge_cumulative(got[0])
        assert {segment.cursors["s"] for segment in topic.segments.values()} == {2}
        assert len(broker.of(T.ACK)) == 3


@on_both_backends
async def test_acknowledging_an_earlier_message_leaves_later_ones_of_all_segments() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"0a")
            assert (await consumer.receive()).value == b"0a"
            fill(topic, 1, b"1a", b"1b")
            middle, _ = await receive(consumer, 2)
            fill(topic, 0, b"0b")
            await consumer.receive()
            stored = MessageId.from_bytes(middle.message_id.to_bytes())
            await consumer.acknowledge_cumulative(stored, confirmed=True)
            assert [segment.cursors["s"] for segment in topic.segments.values()] == [1, 1]


@on_both_backends
async def test_a_message_inside_a_batch_can_be_acknowledged() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        broker.hold(T.SEND)
        async with (
            broker.client() as client,
            client.producer(X) as producer,
            client.stream_consumer(X, "s") as consumer,
        ):
            await producer.enqueue(b"first")
            await broker.seen(T.SEND)
            for number in range(3):
                await producer.enqueue(b"%d" % number)
            broker.release(T.SEND)
            got = await receive(consumer, 4)
            await consumer.acknowledge_cumulative(got[2], confirmed=True)
            told = broker.of(T.ACK)[-1].message_id[0]
            assert (position(told)[1], told.batch_size, list(told.ack_set)) == (1, 3, [0b100])
            await consumer.acknowledge_cumulative(got[3], confirmed=True)
            assert list(broker.of(T.ACK)[-1].message_id[0].ack_set) == []
        assert topic.segments[0].cursors["s"] == 2


@on_both_backends
async def test_a_confirmed_acknowledgement_waits_for_the_brokers_word_and_tells_its_refusal() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)

        def refuse(peer: Peer, frame: Frame) -> None:
            ack = frame.command.ack
            code = pb.ServerError.PersistenceError
            peer.send(commands.ack_response(ack.consumer_id, ack.request_id, error=code, message="disk"))

        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"a")
            fill(topic, 1, b"b")
            got = await receive(consumer, 2)
            broker.on(T.ACK, refuse)
            with pytest.raises(BrokerBusy, match="disk"):
                await consumer.acknowledge_cumulative(got[-1], confirmed=True)


@on_both_backends
async def test_a_segment_taken_away_is_left_to_its_new_consumer() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"a")
            (message,) = await receive(consumer, 1)
            topic.assign(1)
            await broker.seen(T.CLOSE_CONSUMER)
            await consumer.acknowledge_cumulative(message)
            with pytest.raises(ConnectionLost, match="no longer assigned to this consumer"):
                await consumer.acknowledge_cumulative(message, confirmed=True)
            assert broker.of(T.ACK) == []


@on_both_backends
async def test_a_confirmed_acknowledgement_covers_what_it_can_and_says_what_it_cannot() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"a")
            await consumer.receive()
            fill(topic, 1, b"b")
            message = await consumer.receive()
            topic.assign(1)
            await broker.seen(T.CLOSE_CONSUMER)
            with pytest.raises(ConnectionLost, match="no longer assigned to this consumer"):
                await consumer.acknowledge_cumulative(message, confirmed=True)
            assert (topic.segments[0].cursors["s"], topic.segments[1].cursors["s"]) == (0, 1)


@on_both_backends
async def test_an_acknowledgement_that_meets_the_end_of_its_session_is_lost_with_it() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"a")
            message = await consumer.receive()

            def ended(peer: Peer, frame: Frame) -> None:
                ack = frame.command.ack
                unknown = pb.ServerError.ConsumerNotFound
                peer.send(commands.ack_response(ack.consumer_id, ack.request_id, error=unknown, message="gone"))

            broker.on(T.ACK, ended)
            with pytest.raises(ConnectionLost, match="gone"):
                await consumer.acknowledge_cumulative(message, confirmed=True)


@on_both_backends
async def test_confirming_asks_even_if_it_was_told_before_and_only_once() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"a")
            fill(topic, 1, b"b")
            got = await receive(consumer, 2)
            await consumer.acknowledge_cumulative(got[1])
            await broker.seen(T.ACK, 2)
            for _ in range(3):
                await consumer.acknowledge_cumulative(got[1], confirmed=True)
            assert [ack.HasField("request_id") for ack in broker.of(T.ACK)] == [False, False, True, True]


# ------------------------------------------------------------------------------------------------ permits, corruption


@on_both_backends
async def test_permits_are_given_again_at_half_and_what_waits_is_bounded_by_them() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.stream_consumer(X, "s", queue_messages_max=10) as consumer:
            fill(topic, 0, *(b"%d" % number for number in range(10)))
            while consumer.statistics().entries_waiting < 10:
                await anyio.lowlevel.checkpoint()
            assert [flow.message_permits for flow in broker.of(T.FLOW)] == [10]
            await receive(consumer, 4)
            await anyio.wait_all_tasks_blocked()
            assert len(broker.of(T.FLOW)) == 1
            await receive(consumer, 1)
            await broker.seen(T.FLOW, 2)
            await receive(consumer, 5)
            await broker.seen(T.FLOW, 3)
            assert [flow.message_permits for flow in broker.of(T.FLOW)] == [10, 5, 5]


@on_both_backends
async def test_a_corrupted_message_can_be_skipped() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            segment = topic.segments[0]
            segment.entries.append(payload_of(b"abcdef")[:-1] + b"?")
            fill(topic, 0, b"sound")
            with pytest.raises(MessageCorrupted) as raised:
                await consumer.receive()
            await consumer.acknowledge_cumulative(raised.value.message_id, confirmed=True)
            assert segment.cursors["s"] == 1
            assert (await consumer.receive()).value == b"sound"


# -------------------------------------------------------------------------------------------------- lost connections


@on_both_backends
async def test_after_a_lost_connection_it_comes_back_under_its_names_and_unacknowledged_messages_come_again() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        async with broker.client() as client, client.stream_consumer(X, "s", "me") as consumer:
            fill(topic, 0, b"0", b"1", b"2", b"3")
            got = await receive(consumer, 2)
            await consumer.acknowledge_cumulative(got[0], confirmed=True)
            broker.drop_connections()
            while consumer.statistics().segments_connected:
                await anyio.lowlevel.checkpoint()
            again = await receive(consumer, 3)
            assert [message.value for message in again] == [b"1", b"2", b"3"]
            # A message of the connection that is gone is acknowledged on the new one.
            await consumer.acknowledge_cumulative(got[1], confirmed=True)
            assert topic.segments[0].cursors["s"] == 2
            assert [request.consumer_name for request in broker.of(T.SCALABLE_TOPIC_SUBSCRIBE)] == ["me", "me"]
            assert sorted(request.consumer_name for request in broker.of(T.SUBSCRIBE)) == [
                "me-seg-0",
                "me-seg-0",
                "me-seg-1",
                "me-seg-1",
            ]


@on_both_backends
async def test_what_is_acknowledged_on_a_new_connection_does_not_come_again_on_it() -> None:
    """It was already on its way again."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"0", b"1", b"2")
            got = await receive(consumer, 2)
            broker.drop_connections()
            while consumer.statistics().segments_connected:
                await anyio.lowlevel.checkpoint()
            while consumer.statistics().entries_waiting < 3:
                await anyio.lowlevel.checkpoint()
            await consumer.acknowledge_cumulative(got[1], confirmed=True)
            assert [message.value for message in await receive(consumer, 1)] == [b"2"]


@on_both_backends
async def test_a_lost_acknowledgement_does_not_stand_in_the_way_of_the_next() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"0", b"1", b"2")
            got = await receive(consumer, 3)
            broker.hold(T.ACK)
            await consumer.acknowledge_cumulative(got[2])
            await broker.seen(T.ACK)
            broker.drop_connections()
            broker.forget(T.ACK)
            again = await receive(consumer, 3)
            await consumer.acknowledge_cumulative(again[0])
            await broker.seen(T.ACK, 2)
            assert topic.segments[0].cursors["s"] == 1


@on_both_backends
async def test_an_acknowledgement_that_the_closing_broker_drops_does_not_stand_in_the_way_of_the_next() -> None:
    """D11: a segment that moves just then drains at its next owner."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"0", b"1", b"2")
            got = await receive(consumer, 3)
            broker.hold(T.ACK)
            await consumer.acknowledge_cumulative(got[2])
            await broker.seen(T.ACK)
            broker.forget(T.ACK)
            topic.segments[0].close_consumers()
            again = await receive(consumer, 3)
            await consumer.acknowledge_cumulative(again[0])
            await broker.seen(T.ACK, 2)
            assert topic.segments[0].cursors["s"] == 1


@on_both_backends
async def test_what_was_acknowledged_while_nobody_was_there_is_told_afterwards() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"0", b"1")
            got = await receive(consumer, 2)
            broker.refuses = True
            broker.drop_connections()
            while consumer.statistics().segments_connected:
                await anyio.lowlevel.checkpoint()
            await consumer.acknowledge_cumulative(got[1])
            with pytest.raises(ConnectionLost, match="no connection to its broker"):
                await consumer.acknowledge_cumulative(got[1], confirmed=True)
            broker.refuses = False
        assert topic.segments[0].cursors["s"] in {0, 2}


@on_both_backends
async def test_a_segment_session_that_the_broker_closes_is_opened_again() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"a")
            await consumer.receive()
            (peer,) = broker.peers
            for consumer_id, (segment, known) in peer.consumers.items():
                segment.consumers.remove(known)
                peer.send(commands.close_consumer(consumer_id))
            await broker.seen(T.SUBSCRIBE, 2)
            assert (await consumer.receive()).value == b"a"


@on_both_backends
async def test_a_registration_that_the_broker_closes_is_made_again() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.stream_consumer(X, "s"):
            (peer, consumer_id) = topic.members[0]
            peer.send(commands.close_consumer(consumer_id))
            await broker.seen(T.SCALABLE_TOPIC_SUBSCRIBE, 2)


@on_both_backends
async def test_a_split_while_the_broker_was_away_is_in_the_next_share() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"a")
            await consumer.acknowledge_cumulative(await consumer.receive(), confirmed=True)
            broker.refuses = True
            broker.drop_connections()
            topic.split(0)
            fill(topic, 1, b"b")
            broker.refuses = False
            assert (await consumer.receive()).value == b"b"
            assert consumer.statistics().segments == 2


# ----------------------------------------------------------------------------------------------- the end, cancellation


@on_both_backends
async def test_messages_are_iterated_over_until_closed() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client:
            async with client.stream_consumer(X, "s") as consumer:
                fill(topic, 0, b"a", b"b")
                values = []
                async for message in consumer:
                    values.append(message.value)
                    if len(values) == 2:
                        break
                assert values == [b"a", b"b"]
            with pytest.raises(Closed):
                await consumer.receive()
            with pytest.raises(Closed):
                await consumer.acknowledge_cumulative(message)


async def test_a_receive_cancelled_at_any_step_loses_no_message() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            got: list[bytes] = []
            sent = 0

            async def operation() -> None:
                nonlocal sent
                fill(topic, sent % 2, b"%d" % sent)
                sent += 1
                got.append((await consumer.receive()).value)

            async def check() -> None:
                while len(got) < sent:
                    with trio.fail_after(60):
                        got.append((await consumer.receive()).value)
                assert sorted(got) == sorted(b"%d" % number for number in range(sent))

            assert await cancel_at_each_step(operation, check) > 2


async def test_consuming_cancelled_at_any_step_leaves_nothing_behind() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        fill(topic, 0, b"a")
        async with broker.client() as client:

            async def consume() -> None:
                async with client.stream_consumer(X, "s") as consumer:
                    message = await consumer.receive()
                    await consumer.acknowledge_cumulative(message, confirmed=True)

            async def check() -> None:
                await trio.testing.wait_all_tasks_blocked()
                assert topic.members == []
                assert all(not segment.consumers for segment in topic.segments.values())
                topic.segments[0].cursors.clear()

            assert await cancel_at_each_step(consume, check) > 4


@on_both_backends
async def test_a_segment_that_was_taken_away_and_given_back_is_subscribed_to_anew() -> None:
    """The broker waits for that, even if both updates arrive at once."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            topic.assign(1)
            topic.assign(0, 1)
            await broker.seen(T.SUBSCRIBE, 3)
            assert broker.of(T.SUBSCRIBE)[-1].topic == topic.segments[0].topic
            fill(topic, 0, b"a")
            assert (await consumer.receive()).value == b"a"


# ----------------------------------------------------------------------------------------------------------- moving


async def received_two(topic: Topic, consumer: StreamConsumer) -> None:
    fill(topic, 0, b"a", b"b")
    assert [message.value for message in await receive(consumer, 2)] == [b"a", b"b"]


@on_both_backends
async def test_a_seek_moves_all_segments() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        fill(topic, 1, b"c")
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"a", b"b")
            assert sorted(message.value for message in await receive(consumer, 3)) == [b"a", b"b", b"c"]
            await consumer.seek("earliest")
            assert sorted(message.value for message in await receive(consumer, 3)) == [b"a", b"b", b"c"]
            await consumer.skip_all()
            fill(topic, 1, b"d")
            assert (await consumer.receive()).value == b"d"
            # The broker closes what it moves, so nobody leaves.
            assert len(broker.of(T.SCALABLE_TOPIC_SUBSCRIBE)) == 1


@on_trio
async def test_a_segment_that_subscribes_while_the_subscription_is_moved_is_read_on() -> None:
    """E21: the broker does not close a consumer that it opens after the move, so the client opens another session."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            await received_two(topic, consumer)
            broker.hold(T.SUBSCRIBE)
            topic.segments[0].close_consumers()
            await broker.seen(T.SUBSCRIBE, 2)
            await consumer.seek("earliest")
            broker.release(T.SUBSCRIBE)
            with anyio.fail_after(60):
                assert [message.value for message in await receive(consumer, 2)] == [b"a", b"b"]


@on_trio
async def test_nothing_from_before_a_move_comes_by_a_session_that_was_opened_meanwhile() -> None:
    """E21: its position is the old one, and the broker may close it only after it answers the move.

    An acknowledgement of such a message would skip messages that the move redelivers.
    """
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        segment = topic.segments[0]
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            await received_two(topic, consumer)

            def move(peer: Peer, frame: Frame) -> None:
                segment.cursors = dict.fromkeys(segment.cursors, len(segment.entries))
                peer.send(commands.success(frame.command.seek.request_id))

            broker.on(T.SEEK, move)
            broker.hold(T.LOOKUP, T.SEEK)
            segment.close_consumers()
            await broker.seen(T.LOOKUP, len(broker.of(T.LOOKUP)) + 1)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.seek, "latest")
                await broker.seen(T.SEEK)
                broker.release(T.LOOKUP)
                await broker.seen(T.FLOW, len(broker.of(T.FLOW)) + 1)
                await trio.testing.wait_all_tasks_blocked()
                broker.release(T.SEEK)
            fill(topic, 0, b"c")
            with anyio.fail_after(60):
                assert (await consumer.receive()).value == b"c"
