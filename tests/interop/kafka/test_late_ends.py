"""An EndTxn that the network delays ends no later transaction. Jepsen has found that it does so in Kafka."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.interop.kafka.conftest import Station
from tests.support.kafka_clients.contract import Client, Consumer, ConsumerOptions, Place, Producer, ProducerOptions
from tests.support.kafka_clients.every import AIOKAFKA, CONFLUENT, opened
from tests.support.kafka_clients.reading import read_all, values
from tests.support.late_requests import LateRequests, open_late_requests
from tests.support.list_append.clients import TOPIC
from tests.support.list_append.version_2 import running_lists
from tests.support.processes import running_broker
from tidewire.wire.kafka.api_keys import ApiKey
from tidewire.wire.kafka.error_codes import ErrorCode

pytestmark = pytest.mark.interop

OUTCOMES = pytest.mark.parametrize("first", [True, False], ids=["a late commit", "a late abort"])


@asynccontextmanager
async def delayed(folder: Path) -> AsyncIterator[LateRequests]:
    """Run a broker that its clients reach through a proxy."""
    async with open_late_requests() as proxy:
        with running_broker(folder / "data", "--advertised-kafka", proxy.endpoint) as broker:
            proxy.serve(str(broker.kafka))
            yield proxy


@asynccontextmanager
async def closing(one: Producer | Consumer) -> AsyncIterator[None]:
    """Close a client before its broker stops, also when the test fails. Later, it would wait for the broker."""
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(one.close)


async def late_end(proxy: LateRequests, end: Callable[[], Any]) -> None:
    """End a transaction. The client's first request is withheld, and its second one is answered."""
    proxy.withhold(ApiKey.END_TXN)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, end)
        await proxy.withheld.wait()


@OUTCOMES
@pytest.mark.parametrize("client", [CONFLUENT, AIOKAFKA], indirect=True)
async def test_version_1_refuses_an_end_from_an_older_connection(
    client: Client, tmp_path: Path, *, first: bool
) -> None:
    """K31: the transaction that is open by then was begun on a newer connection. It ends as its producer says."""
    async with delayed(tmp_path) as proxy:
        station = Station(client, proxy.endpoint)

        def begin_second() -> None:
            producer.begin()
            producer.send("t", b"second")
            producer.flush()

        def begin_first() -> Any:
            producer = station.producer(ProducerOptions(transactional_id="till"))
            producer.init_transactions()
            producer.begin()
            producer.send("t", b"first")
            producer.flush()
            return producer

        producer = await trio.to_thread.run_sync(begin_first)
        async with closing(producer):
            await late_end(proxy, producer.commit if first else producer.abort)
            await trio.to_thread.run_sync(begin_second)
            assert await proxy.deliver() == ErrorCode.INVALID_TXN_STATE
            await trio.to_thread.run_sync(producer.abort if first else producer.commit)
            consumer = await trio.to_thread.run_sync(station.consumer, ConsumerOptions(read_committed=True))
            async with closing(consumer):
                got = await trio.to_thread.run_sync(read_all, consumer, Place("t"))
            assert values(got) == [b"first" if first else b"second"]


@OUTCOMES
async def test_version_2_refuses_an_end_of_an_earlier_epoch(tmp_path: Path, *, first: bool) -> None:
    """K29: each end gives the producer its next epoch, so the late one has the last transaction's."""
    async with delayed(tmp_path) as proxy:

        def play(lists: Any, value: int) -> None:
            lists.begin()
            lists.append(0, value)
            lists.flush()

        async def in_thread(call: Callable[..., Any], *arguments: Any) -> Any:
            return await trio.to_thread.run_sync(partial(call, *arguments))

        with opened(CONFLUENT) as client:
            await in_thread(client.admin(proxy.endpoint).create, TOPIC)
        with running_lists(proxy.endpoint, "till") as lists:
            await in_thread(lists.begin_session)
            await in_thread(play, lists, 1)
            await late_end(proxy, partial(lists.end, is_commit=first))
            await in_thread(play, lists, 2)
            assert await proxy.deliver() == ErrorCode.PRODUCER_FENCED
            await in_thread(partial(lists.end, is_commit=not first))
            reading = await in_thread(lists.read, 0)
        assert reading is not None
        assert [entry.value for entry in reading.entries] == [1 if first else 2]
