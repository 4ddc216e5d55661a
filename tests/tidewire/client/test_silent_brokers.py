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
