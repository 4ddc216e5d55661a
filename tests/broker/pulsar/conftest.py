"""A listener with two connections: one misbehaves, and the other must not notice it."""

from collections.abc import AsyncIterator

import pytest
import trio

from storage.metadata.memory import MemoryStore
from tests.support.disk import SimulatedFiles
from tests.support.rooms import Rooms, rooms
from tests.support.wire import WireClient, connected, listening


@pytest.fixture
async def broker() -> AsyncIterator[Rooms]:
    async with rooms(MemoryStore(), SimulatedFiles(seed=5)) as made:
        yield made


@pytest.fixture
async def listener(broker: Rooms) -> AsyncIterator[trio.SocketListener]:
    async with listening(broker) as made:
        yield made


@pytest.fixture
async def client(listener: trio.SocketListener) -> AsyncIterator[WireClient]:
    async with connected(listener) as made:
        yield made


@pytest.fixture
async def other(listener: trio.SocketListener) -> AsyncIterator[WireClient]:
    async with connected(listener) as made:
        yield made
