"""Chunked messages against a scripted broker: what is resent, and what is acknowledged."""

import anyio
import pytest

from tests.support.backends import on_both_backends
from tests.support.scripted_broker import Peer, ScriptedBroker, T, scripted_broker
from tidewire.client.sending import Chunking
from tidewire.protocol.positions import MessageId
from tidewire.wire.pulsar.frames import Frame
from tidewire.wire.pulsar.message_ids import position

X = "topic://public/default/x"
TEN = Chunking(10)


def acknowledged(broker: ScriptedBroker) -> set[int]:
    """Return the individually acknowledged entries."""
    return {position(told)[1] for ack in broker.of(T.ACK) for told in ack.message_id}


@on_both_backends
async def test_all_chunks_are_acknowledged_with_their_message() -> None:
    """This includes a stored id, and an acknowledgement in a transaction."""
    async with scripted_broker() as broker:
        broker.add_topic(X)
        async with (
            broker.client() as client,
            client.producer(X, chunking=TEN) as producer,
            client.queue_consumer(X, "q") as consumer,
        ):
            for first in (0, 4):
                sent = await producer.send(b"x" * 35)
                message = await consumer.receive()
                assert message.value == b"x" * 35
                assert [entry for _, entry in message.message_id.chunks] == [first, first + 1, first + 2]
                assert message.message_id.chunks == sent.chunks
                stored = MessageId.from_bytes(message.message_id.to_bytes())
                assert (stored, stored.chunks) == (sent, sent.chunks)
                if first == 0:
                    await consumer.acknowledge(stored, confirmed=True)
                else:
                    async with client.transaction() as txn:
                        await consumer.acknowledge(message, transaction=txn)
                assert acknowledged(broker) == set(range(first + 4))


@on_both_backends
async def test_a_message_that_was_cut_off_is_sent_again_from_its_first_chunk() -> None:
    """It arrives once, and the useless chunks are acknowledged with it."""
    async with scripted_broker() as broker:
        topic = broker.add_topic(X)
        left = 2

        def handler(peer: Peer, frame: Frame) -> None:
            nonlocal left
            if left == 0:
                broker.drop_connections()
            elif left > 0:
                broker.answer(peer, frame)
            left -= 1
            if left < -1:
                broker.answer(peer, frame)

        broker.on(T.SEND, handler)
        async with (
            broker.client() as client,
            client.producer(X, chunking=TEN) as producer,
            client.queue_consumer(X, "q") as consumer,
        ):
            await producer.send(b"x" * 25)
            with anyio.fail_after(60):
                message = await consumer.receive()
                assert message.value == b"x" * 25
                await consumer.acknowledge(message, confirmed=True)
            assert acknowledged(broker) == set(range(len(topic.segments[0].entries)))
            sends = broker.of(T.SEND)
            assert {send.sequence_id for send in sends} == {0}
            assert all(send.is_chunk for send in sends)


@pytest.mark.parametrize("size", [10, 11])
@on_both_backends
async def test_only_what_is_larger_is_divided(size: int) -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        async with broker.client() as client, client.producer(X, chunking=TEN) as producer:
            message_id = await producer.send(b"x" * size)
        assert len(message_id.chunks) == size - 10
        assert [send.is_chunk for send in broker.of(T.SEND)] == [size > 10] * (size - 9)
