"""What a stream consumer may acknowledge in a transaction, against a scripted broker: no redelivered message."""

import anyio
import pytest

from tests.support.backends import on_both_backends
from tests.support.scripted_broker import ScriptedBroker, T, Topic, payload_of, scripted_broker
from tidewire.client import stream_consumer
from tidewire.client.stream_consumer import StreamConsumer
from tidewire.protocol.errors import ConnectionLost
from tidewire.wire.pulsar import commands

X = "topic://public/default/x"


def fill(topic: Topic, segment_id: int, *values: bytes) -> None:
    segment = topic.segments[segment_id]
    segment.entries.extend(payload_of(value) for value in values)
    segment.deliver()


async def end_session(broker: ScriptedBroker, consumer: StreamConsumer, segment_id: int) -> None:
    """Let the broker close the consumer's session on a segment, and wait until it has another one."""
    (peer,) = broker.peers
    for consumer_id, (segment, known) in list(peer.consumers.items()):
        if segment.segment_id == segment_id and known in segment.consumers:
            segment.consumers.remove(known)
            peer.send(commands.close_consumer(consumer_id))
    before = consumer.statistics().segments_connected
    while consumer.statistics().segments_connected == before:
        await anyio.lowlevel.checkpoint()
    while consumer.statistics().segments_connected < before:
        await anyio.lowlevel.checkpoint()


@on_both_backends
async def test_a_message_that_comes_again_counts_in_one_transaction_only() -> None:
    """T24: its session has ended, so another consumer gets the message and puts it into a transaction, too."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"a")
            message = await consumer.receive()
            await end_session(broker, consumer, 0)
            txn = await client.new_transaction()
            with pytest.raises(ConnectionLost, match="are redelivered"):
                await consumer.acknowledge_cumulative(message, transaction=txn)
            with pytest.raises(ConnectionLost, match="are redelivered"):
                await txn.commit()
            assert broker.transactions[txn.transaction_id] == "ABORTED"
            assert broker.of(T.ACK) == []
            again = await consumer.receive()
            assert again.value == b"a"
            async with client.transaction() as txn:
                await consumer.acknowledge_cumulative(again, transaction=txn)
        assert topic.segments[0].cursors["s"] == 1


@on_both_backends
async def test_a_session_that_ends_while_the_coordinator_is_told_takes_its_messages_along() -> None:
    """T24: the next session delivers them again, and its acknowledgement would cover the earlier copies, too."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"a")
            message = await consumer.receive()
            txn = await client.new_transaction()
            broker.hold(T.ADD_SUBSCRIPTION_TO_TXN)

            async def acknowledge() -> None:
                with pytest.raises(ConnectionLost):
                    await consumer.acknowledge_cumulative(message, transaction=txn)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(acknowledge)
                await broker.seen(T.ADD_SUBSCRIPTION_TO_TXN)
                await end_session(broker, consumer, 0)
                assert (await consumer.receive()).value == b"a"
                broker.release(T.ADD_SUBSCRIPTION_TO_TXN)
            assert broker.of(T.ACK) == []
            with pytest.raises(ConnectionLost):
                await txn.commit()
            assert broker.transactions[txn.transaction_id] == "ABORTED"


@on_both_backends
async def test_a_message_of_a_segment_that_another_consumer_has_now_counts_in_its_transaction() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"a")
            await consumer.receive()
            fill(topic, 1, b"b")
            message = await consumer.receive()
            topic.assign(1)
            await broker.seen(T.CLOSE_CONSUMER)
            txn = await client.new_transaction()
            with pytest.raises(ConnectionLost, match=r"segments \[0\]"):
                await consumer.acknowledge_cumulative(message, transaction=txn)
            assert broker.of(T.ACK) == []


async def acknowledge_one_after_the_other(*, transactional: bool) -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"a")
            first = await consumer.receive()
            fill(topic, 1, b"b")
            second = await consumer.receive()
            if transactional:
                async with client.transaction() as txn:
                    await consumer.acknowledge_cumulative(first, transaction=txn)
            else:
                await consumer.acknowledge_cumulative(first, confirmed=True)
            await end_session(broker, consumer, 0)
            assert second.message_id.vector().keys() == {0, 1}
            async with client.transaction() as txn:
                await consumer.acknowledge_cumulative(second, transaction=txn)
        assert topic.segments[1].cursors["s"] == 1


@on_both_backends
async def test_what_was_acknowledged_before_stands_in_nobodys_way() -> None:
    """Its id also names earlier deliveries of other segments, which arrived on separate sessions."""
    await acknowledge_one_after_the_other(transactional=True)
    await acknowledge_one_after_the_other(transactional=False)


@on_both_backends
async def test_what_was_acknowledged_before_a_seek_counts_no_more() -> None:
    """T24, E21: the message comes again, so a session that ends takes it along like any other."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"a")
            await consumer.acknowledge_cumulative(await consumer.receive(), confirmed=True)
            await consumer.seek("earliest")
            message = await consumer.receive()
            await end_session(broker, consumer, 0)
            with pytest.raises(ConnectionLost, match="are redelivered"):
                await consumer.acknowledge_cumulative(message, transaction=await client.new_transaction())


@on_both_backends
async def test_what_was_acknowledged_in_an_aborted_transaction_was_not() -> None:
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"a")
            message = await consumer.receive()
            txn = await client.new_transaction()
            await consumer.acknowledge_cumulative(message, transaction=txn)
            await txn.abort()
            await end_session(broker, consumer, 0)
            with pytest.raises(ConnectionLost, match="are redelivered"):
                await consumer.acknowledge_cumulative(message, transaction=await client.new_transaction())


@on_both_backends
async def test_the_last_message_does_not_speak_for_a_session_that_ended_before_it_came() -> None:
    """So the transaction covers all of its messages, and a redelivered one dooms it."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X, 2)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            fill(topic, 0, b"a")
            first = await consumer.receive()
            topic.assign(1)
            await broker.seen(T.CLOSE_CONSUMER)
            fill(topic, 1, b"b", b"c")
            second, third = await consumer.receive(), await consumer.receive()
            assert third.message_id.vector().keys() == {1}
            with pytest.raises(ConnectionLost, match=r"segments \[0\]"):
                await consumer.acknowledge_cumulative(first, second, transaction=await client.new_transaction())
            async with client.transaction() as txn:
                await consumer.acknowledge_cumulative(third, second, transaction=txn)
        assert [topic.segments[number].cursors["s"] for number in range(2)] == [0, 2]


@on_both_backends
async def test_what_is_acknowledged_of_segments_that_left_is_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """E16: but a message may name a segment that left a short while ago, and then it can still be acknowledged."""
    monkeypatch.setattr(stream_consumer, "LEFT_MAX", 2)
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        async with broker.client() as client, client.stream_consumer(X, "s") as consumer:
            for parent in range(0, 12, 2):
                fill(topic, parent, b"a")
                await consumer.acknowledge_cumulative(await consumer.receive())
                topic.split(parent)
                child = parent + 2
                topic.assign(parent, child)
                fill(topic, child, b"b")
                message = await consumer.receive()
                assert parent in message.message_id.vector()
                topic.assign(child)
                while parent in consumer._segments:
                    await anyio.lowlevel.checkpoint()
                async with client.transaction() as txn:
                    await consumer.acknowledge_cumulative(message, transaction=txn)
            assert len(consumer._settled) == 3
