"""A connected broker that is silent for longer than an operation may take: open producers and consumers continue."""

import anyio
import pytest
import trio

from tests.support.backends import on_trio
from tests.support.scripted_broker import T, scripted_broker

X = "topic://public/default/x"


@pytest.mark.parametrize("kind", ["LOOKUP", "PRODUCER"])
@on_trio
async def test_a_send_waits_for_the_broker_as_long_as_its_caller_does(kind: str) -> None:
    """This includes a first send to a broker that is silent."""
    silent = T.Value(kind)
    async with scripted_broker() as broker, broker.client(operation_timeout_seconds=5.0) as client:
        topic = broker.add_topic(X)
        async with client.producer(X) as producer:
            for value in (b"first", b"second"):
                broker.hold(silent)
                broker.drop_connections()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(producer.send, value)
                    await trio.sleep(60)
                    broker.forget(silent)
        assert topic.segments[0].values() == [b"first", b"second"]


@pytest.mark.parametrize("kind", ["LOOKUP", "SUBSCRIBE", "SCALABLE_TOPIC_SUBSCRIBE"])
@on_trio
async def test_a_receive_waits_for_the_broker_as_long_as_its_caller_does(kind: str) -> None:
    """The consumer is open. Opening one takes no longer than an operation may."""
    silent = T.Value(kind)
    async with scripted_broker() as broker, broker.client(operation_timeout_seconds=5.0) as client:
        broker.add_topic(X)
        async with client.producer(X) as producer, client.stream_consumer(X, "s", "me") as consumer:
            broker.hold(silent)
            broker.drop_connections()
            await trio.sleep(60)
            broker.forget(silent)
            await producer.send(b"later")
            with trio.fail_after(60):
                assert (await consumer.receive()).value == b"later"


@on_trio
async def test_a_send_to_a_stopped_broker_is_repeated_on_another_connection() -> None:
    """C21, D1: the stopped broker's kernel keeps the connection. The client gives it up."""
    async with scripted_broker() as broker, broker.client(keep_alive_seconds=30.0) as client:
        topic = broker.add_topic(X)
        async with client.producer(X) as producer, client.stream_consumer(X, "s", "me") as consumer:
            await producer.send(b"first")
            assert (await consumer.receive()).value == b"first"
            before = trio.current_time()
            broker.hold(T.SEND, T.PING)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(producer.send, b"second")
                await broker.seen(T.PING)
                # Another process serves from now on. What the stopped one received is lost.
                for kind in (T.SEND, T.PING):
                    broker.forget(kind)
            assert topic.segments[0].values() == [b"first", b"second"]
            assert 60 <= trio.current_time() - before < 62
