"""The client as a whole: its start and end, its errors, and the cost of importing it."""

import subprocess
import sys
from contextlib import AsyncExitStack

import anyio
import pytest

import tidewire
from tests.support.backends import on_both_backends
from tests.support.cancellation import cancel_at_each_step
from tests.support.scripted_broker import T, scripted_broker
from tidewire.client import client as client_module
from tidewire.client.errors import Closed
from tidewire.protocol.errors import ConnectFailed, InvalidName
from tidewire.wire.pulsar.message_ids import NO_REQUEST

X = "topic://public/default/x"


@on_both_backends
async def test_a_wrong_address_is_known_at_once() -> None:
    async with scripted_broker() as broker:
        broker.refuses = True
        with pytest.raises(ConnectFailed):
            async with broker.client():
                pass
        with pytest.raises(InvalidName):
            async with tidewire.connect("localhost"):
                pass


@on_both_backends
async def test_nobody_listens_on_a_real_port() -> None:
    listeners = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listeners.extra(anyio.abc.SocketAttribute.local_port)
    await listeners.aclose()
    with pytest.raises(ConnectFailed, match=f"cannot connect to pulsar://127.0.0.1:{port}: "):
        async with tidewire.connect(f"pulsar://127.0.0.1:{port}"):
            pass


@on_both_backends
async def test_the_programs_own_errors_pass_through_as_themselves() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        error = KeyError("mine")
        with pytest.raises(KeyError) as raised:
            async with broker.client() as client, client.producer(X), client.stream_consumer(X, "s"), client.reader(X):
                raise error
        assert raised.value is error
        group = ExceptionGroup("mine", [KeyError(1), ValueError(2)])
        with pytest.raises(ExceptionGroup) as raised_group:
            async with broker.client():
                raise group
        assert raised_group.value is group


@on_both_backends
async def test_leaving_ends_every_connection_and_everything_that_was_left_open() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        async with AsyncExitStack() as stack:
            async with broker.client() as client:
                producer = await stack.enter_async_context(client.producer(X))
                consumer = await stack.enter_async_context(client.stream_consumer(X, "s"))
                await producer.send(b"x")
                assert len(client.statistics().connections) == 1
            while broker.peers:
                await anyio.lowlevel.checkpoint()
            with pytest.raises(Closed):
                await producer.send(b"y")
            with pytest.raises(Closed):
                await consumer.receive()
            with pytest.raises(Closed):
                await client.new_transaction()
            with pytest.raises(Closed):
                async with client.producer(X):
                    pass


@on_both_backends
async def test_a_mistake_of_our_own_ends_the_client_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)

        def broken(*arguments: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr("tidewire.client.segment_producer.SegmentProducer.received", broken)
        with pytest.raises(BaseExceptionGroup) as raised:
            async with broker.client() as client, client.producer(X) as producer:
                await producer.send(b"x")
        assert raised.value.subgroup(ZeroDivisionError) is not None


async def test_a_client_cancelled_at_any_step_leaves_no_connection() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)

        async def operation() -> None:
            async with broker.client() as client, client.producer(X) as producer:
                await producer.send(b"x")

        async def check() -> None:
            await anyio.wait_all_tasks_blocked()
            assert broker.peers == []

        assert await cancel_at_each_step(operation, check) > 6


@on_both_backends
async def test_what_was_written_before_leaving_leaves() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        async with broker.client() as client:
            async with client.producer(X) as producer:
                await producer.send(b"x")
            before = len(broker.of(T.CLOSE_PRODUCER))
        await anyio.wait_all_tasks_blocked()
        assert before == len(broker.of(T.CLOSE_PRODUCER)) == 1
        assert len(broker.of(T.SCALABLE_TOPIC_CLOSE)) == 1


@on_both_backends
async def test_a_cancelled_program_says_goodbye_nevertheless() -> None:
    async with scripted_broker() as broker:
        broker.add_topic(X)
        with anyio.CancelScope() as scope:
            async with broker.client() as client, client.producer(X) as producer, client.stream_consumer(X, "s"):
                await producer.send(b"x")
                scope.cancel()
                await anyio.sleep_forever()
        await anyio.wait_all_tasks_blocked()
        (closed,) = broker.of(T.CLOSE_PRODUCER)
        assert closed.request_id != NO_REQUEST
        assert [closed.request_id != NO_REQUEST for closed in broker.of(T.CLOSE_CONSUMER)] == [True, True]
        assert len(broker.of(T.SCALABLE_TOPIC_CLOSE)) == len(broker.of(T.SCALABLE_TOPIC_LOOKUP))


def test_the_public_names_are_all_there_and_documented() -> None:
    assert sorted(tidewire.__all__) == list(tidewire.__all__)
    for name in tidewire.__all__:
        assert getattr(tidewire, name).__doc__, name
    assert set(tidewire.__all__) <= set(dir(tidewire))
    with pytest.raises(AttributeError, match="no attribute 'producer'"):
        _ = tidewire.producer
    assert tidewire.Client is client_module.Client


@pytest.mark.parametrize("used", ["tidewire", "tidewire.wire.pulsar.frames"])
def test_importing_the_package_does_not_import_the_client(used: str) -> None:
    """The broker and Spark's workers import this package and need no client."""
    program = f"import sys, {used}; print('tidewire.client' in sys.modules, 'anyio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_the_client_imports_neither_daemon_nor_trio() -> None:
    """The client works without the daemon's rooms, and under asyncio without Trio."""
    program = (
        "import sys, tidewire; tidewire.connect;"
        "print([name for name in ('broker', 'storage', 'dispatch', 'txn', 'trio') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
