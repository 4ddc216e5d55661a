"""A broker with a smaller message limit, which CONNECTED announces. It would end a connection with a larger one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import anyio
import pytest

from tests.support.backends import on_both_backends
from tests.support.scripted_broker import ScriptedBroker, T, scripted_broker
from tidewire.client.sending import Chunking
from tidewire.protocol.errors import MessageTooLarge
from tidewire.wire.pulsar import commands

X = "topic://public/default/x"
LARGEST = 20_000


@asynccontextmanager
async def smaller_broker() -> AsyncIterator[ScriptedBroker]:
    async with scripted_broker() as broker:
        broker.on(
            T.CONNECT,
            lambda peer, frame: peer.send(
                commands.connected("scripted", max_message_size=LARGEST, features=broker.features)
            ),
        )
        broker.add_topic(X)
        yield broker
        assert all(len(payload) <= LARGEST + 10 * 1024 for payload in broker.payloads if payload is not None)


def noise(size: int) -> bytes:
    """Return bytes that no codec can compress."""
    return Random(size).randbytes(size)


@on_both_backends
async def test_a_message_above_what_the_broker_takes_fails_alone() -> None:
    """A send that can never succeed fails, and is not repeated on other connections."""
    async with smaller_broker() as broker, broker.client() as client, client.producer(X) as producer:
        with pytest.raises(MessageTooLarge, match="accepts messages of at most 20000;"):
            await producer.send(noise(100_000))
        await producer.send(b"small")
        assert broker.topics[X].segments[0].values() == [b"small"]
        assert len(broker.of(T.CONNECT)) == 1


@on_both_backends
async def test_a_message_above_what_the_broker_takes_fails_its_transaction() -> None:
    async with smaller_broker() as broker, broker.client() as client, client.producer(X) as producer:

        async def transact() -> None:
            async with client.transaction() as txn:
                await producer.send(b"small", txn=txn)
                await producer.send(noise(100_000), txn=txn)

        with pytest.raises(MessageTooLarge, match="accepts messages of at most 20000;"):
            await transact()
        assert set(broker.transactions.values()) == {"ABORTED"}
        assert len(broker.of(T.CONNECT)) == 1


@on_both_backends
async def test_batches_are_no_larger_than_the_broker_takes() -> None:
    async with smaller_broker() as broker, broker.client() as client, client.producer(X) as producer:
        topic = broker.topics[X]
        values = [noise(5_000 + number) for number in range(40)]
        async with anyio.create_task_group() as tasks:
            for value in values:
                tasks.start_soon(producer.send, value)
        assert sorted(topic.segments[0].values()) == sorted(values)
        assert len(broker.of(T.SEND)) >= 10


@on_both_backends
async def test_chunks_are_no_larger_than_the_broker_takes() -> None:
    async with (
        smaller_broker() as broker,
        broker.client() as client,
        client.producer(X, chunking=Chunking()) as producer,
    ):
        await producer.send(noise(100_000))
        assert len(broker.of(T.SEND)) >= 5
