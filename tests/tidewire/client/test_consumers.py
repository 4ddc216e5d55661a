"""The plain consumer of persistent:// topics against a scripted broker."""

import anyio
import pytest

from tests.support.backends import on_both_backends
from tests.support.cancellation import cancel_at_each_step
from tests.support.scripted_broker import ScriptedBroker, Segment, T, payload_of, scripted_broker
from tidewire.client.errors import Closed
from tidewire.protocol.errors import InvalidName
from tidewire.protocol.positions import MessageId
from tidewire.protocol.refusals import BrokerBusy, SubscriptionBusy, TopicNotFound
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import bits_of_ack_set, position

X = "persistent://public/default/x"


def individually(broker: ScriptedBroker) -> list[tuple[int, int | None]]:
    """Return each individual acknowledgement: the entry, and the remaining bits of its batch."""
    return [
        (position(told)[1], bits_of_ack_set(told.ack_set) if told.ack_set else None)
        for ack in broker.of(T.ACK)
        if ack.ack_type == pb.CommandAck.AckType.Individual
        for told in ack.message_id
    ]


@on_both_backends
async def test_messages_are_acknowledged_one_by_one_and_told_together() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        topic.segments[0].entries.extend(payload_of(b"%d" % number) for number in range(5))
        async with broker.client() as client, client.consumer(X, "s", type="shared", name="me") as consumer:
            got = [await consumer.receive() for _ in range(5)]
            assert [message.value for message in got] == [b"%d" % number for number in range(5)]
            assert got[0].topic == X
            for message in (got[3], got[1], got[4]):
                await consumer.acknowledge(message)
        (request,) = broker.of(T.SUBSCRIBE)
        assert (request.sub_type, request.consumer_name) == (pb.CommandSubscribe.SubType.Shared, "me")
        assert individually(broker) == [(3, None), (1, None), (4, None)]
        assert len(broker.of(T.ACK)) == 1


@on_both_backends
async def test_a_subscription_is_moved_to_and_fro() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        topic.segments[0].entries.extend(payload_of(b"%d" % number) for number in range(5))
        async with broker.client() as client, client.consumer(X, "s") as consumer:
            got = [await consumer.receive() for _ in range(5)]
            await consumer.acknowledge_cumulative(got[3])
            await consumer.seek("earliest")
            assert [(await consumer.receive()).value for _ in range(3)] == [b"0", b"1", b"2"]
            await consumer.seek(got[3].message_id)
            assert (await consumer.receive()).value == b"4"
            await consumer.seek("earliest")
            await consumer.skip_all()
            topic.segments[0].entries.append(payload_of(b"new"))
            topic.segments[0].deliver()
            assert (await consumer.receive()).value == b"new"


@on_both_backends
async def test_a_batch_is_acknowledged_message_by_message() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        broker.hold(T.SEND)
        async with (
            broker.client() as client,
            client.producer(X) as producer,
            client.consumer(X, "s", type="shared") as consumer,
        ):
            await producer.enqueue(b"lone")
            await broker.seen(T.SEND)
            for number in range(3):
                await producer.enqueue(b"%d" % number)
            broker.release(T.SEND)
            _, *batch = [await consumer.receive() for _ in range(4)]
            for message in (batch[1], batch[0], batch[2]):
                await consumer.acknowledge(message, confirmed=True)
            assert individually(broker) == [(1, 0b101), (1, 0b100), (1, None)]


@on_both_backends
async def test_an_exclusive_consumer_may_acknowledge_cumulatively_a_shared_one_may_not() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        topic.segments[0].entries.extend([payload_of(b"a"), payload_of(b"b")])
        async with broker.client() as client:
            async with client.consumer(X, "s") as consumer:
                await consumer.receive()
                second = await consumer.receive()
                await consumer.acknowledge_cumulative(second, confirmed=True)
                await consumer.acknowledge_cumulative(second.message_id)
                assert topic.segments[0].cursors["s"] == 2
                with pytest.raises(ValueError, match="is not the id of a message"):
                    await consumer.acknowledge(MessageId(55, 1, 1))
            async with client.consumer(X, "t", type="shared") as consumer:
                with pytest.raises(ValueError, match="shared"):
                    await consumer.acknowledge_cumulative(second)


@on_both_backends
async def test_partitions_are_consumed_together() -> None:
    async with scripted_broker() as broker:
        broker.on(
            T.PARTITIONED_METADATA,
            lambda peer, frame: peer.send(
                commands.partitioned_metadata_response(frame.command.partition_metadata.request_id, 3)
            ),
        )
        for index in range(3):
            name = f"{X}-partition-{index}"
            broker.segments[name] = Segment(index, name, 0, 0xFFFF, 10 + index)
        async with (
            broker.client() as client,
            client.producer(X) as producer,
            client.consumer(X, "s") as consumer,
        ):
            sent = {(await producer.send(b"%d" % number, key=str(number))).segment_id for number in range(30)}
            assert sent == {0, 1, 2}
            got = [await consumer.receive() for _ in range(30)]
            assert {message.topic for message in got} == set(broker.segments)
            for message in got:
                await consumer.acknowledge(message)
        assert len(individually(broker)) == 30


@on_both_backends
async def test_a_subscription_that_is_taken_is_told_at_once_and_waited_for_afterwards() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        refusals = 1

        def busy(peer: object, frame: object) -> None:
            nonlocal refusals
            if refusals:
                refusals -= 1
                code = pb.ServerError.ConsumerBusy
                peer.send(commands.error(frame.command.subscribe.request_id, code, "taken"))  # type: ignore[attr-defined]
            else:
                broker.answer(peer, frame)  # type: ignore[arg-type]

        broker.on(T.SUBSCRIBE, busy)
        async with broker.client() as client:
            with pytest.raises(SubscriptionBusy):
                async with client.consumer(X, "s"):
                    pass
            async with client.consumer(X, "s") as consumer:
                refusals = 3
                broker.drop_connections()
                topic.segments[0].entries.append(payload_of(b"a"))
                assert (await consumer.receive()).value == b"a"


@on_both_backends
async def test_what_cannot_be_consumed_says_so() -> None:
    async with scripted_broker() as broker, broker.client() as client:
        with pytest.raises(TopicNotFound):
            async with client.consumer(X, "s"):
                pass
        with pytest.raises(InvalidName, match="stream consumer"):
            async with client.consumer("topic://public/default/x", "s"):
                pass
        with pytest.raises(ValueError, match="failover"):
            async with client.consumer(X, "s", type="failover"):  # type: ignore[arg-type]
                pass


@on_both_backends
async def test_a_confirmed_acknowledgement_that_is_refused_says_so() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        topic.segments[0].entries.append(payload_of(b"a"))
        async with broker.client() as client, client.consumer(X, "s") as consumer:
            message = await consumer.receive()
            broker.on(
                T.ACK,
                lambda peer, frame: peer.send(
                    commands.ack_response(
                        frame.command.ack.consumer_id,
                        frame.command.ack.request_id,
                        error=pb.ServerError.MetadataError,
                        message="no",
                    )
                ),
            )
            with pytest.raises(BrokerBusy):
                await consumer.acknowledge(message, confirmed=True)
        with pytest.raises(Closed):
            await consumer.acknowledge(message)


@on_both_backends
async def test_what_is_acknowledged_before_leaving_is_told_before_leaving() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        topic.segments[0].entries.append(payload_of(b"a"))
        async with broker.client() as client:
            async with client.consumer(X, "s") as consumer:
                await consumer.acknowledge(await consumer.receive())
            kinds = [kind for kind, _ in broker.commands if kind in {T.ACK, T.CLOSE_CONSUMER}]
            assert kinds == [T.ACK, T.CLOSE_CONSUMER]


async def test_an_acknowledgement_cancelled_at_any_step_leaves_the_consumer_whole() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.consumer(X, "s") as consumer:

            async def operation() -> None:
                topic.segments[0].entries.append(payload_of(b"a"))
                topic.segments[0].deliver()
                message = await consumer.receive()
                await consumer.acknowledge(message, confirmed=True)

            async def check() -> None:
                await anyio.wait_all_tasks_blocked()
                topic.segments[0].entries.append(payload_of(b"b"))
                topic.segments[0].deliver()
                while (message := await consumer.receive()).value != b"b":
                    pass
                await consumer.acknowledge(message, confirmed=True)

            assert await cancel_at_each_step(operation, check) > 2
