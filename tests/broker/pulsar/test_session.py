"""What is left of a connection that has ended."""

import gc
import socket
import struct
import weakref
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.pulsar.consuming import ConsumerHandler
from broker.pulsar.producing import ProducerHandler
from broker.pulsar.scalable import ScalableHandler
from broker.pulsar.session import Session
from broker.pulsar.transactions import TransactionHandler
from tests.support.reference_counts import collector_stopped
from tests.support.wire import WireClient, connected
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

TOPIC = "persistent://public/default/t"
KINDS = (Session, ProducerHandler, ConsumerHandler, ScalableHandler, TransactionHandler)


async def use(client: WireClient) -> None:
    """Publish a message and be sent it."""
    await client.produce(1, TOPIC)
    subscribed = await client.ask(commands.subscribe(TOPIC, "s", 1, 1, sub_type=pb.CommandSubscribe.Shared))
    assert subscribed.type == pb.BaseCommand.SUCCESS
    await client.send(commands.flow(1, 10))
    await client.publish(1, 0)
    assert {(await client.receive()).type for _ in range(2)} == {pb.BaseCommand.SEND_RECEIPT, pb.BaseCommand.MESSAGE}
    await client.receives_nothing_more()


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
async def test_a_connection_that_has_ended_is_freed_at_once(is_reset: bool, listener: trio.SocketListener) -> None:
    """E16: nothing of it waits for the garbage collector, which visits what is old only rarely."""
    gc.collect()
    with collector_stopped():
        async with connected(listener) as client:
            await use(client)
            freed: list[weakref.ref[Any]] = [weakref.ref(one) for one in gc.get_objects() if isinstance(one, KINDS)]
            assert len(freed) == len(KINDS)
            if is_reset:
                client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await wait_all_tasks_blocked()
        assert all(ref() is None for ref in freed)
