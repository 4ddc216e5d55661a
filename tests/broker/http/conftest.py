"""Serves an application on a loopback socket for each test."""

import pytest
import trio

from broker.addresses import Address
from broker.http.application import build_application
from broker.http.listener import serve_http
from storage.metadata.memory import MemoryStore
from tests.support.http import FakeCluster, FakeMonitor, FakeTopics


@pytest.fixture
def topics() -> FakeTopics:
    return FakeTopics()


@pytest.fixture
def monitor() -> FakeMonitor:
    return FakeMonitor()


@pytest.fixture
def ownership() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
async def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def listener() -> trio.SocketListener:
    return (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]


@pytest.fixture
async def server(
    topics: FakeTopics,
    monitor: FakeMonitor,
    store: MemoryStore,
    ownership: FakeCluster,
    listener: trio.SocketListener,
    nursery: trio.Nursery,
) -> Address:
    address: Address = await nursery.start(serve_http, build_application(topics, monitor, store, ownership), listener)
    return address
