"""Runs a broker over a store that a test can stop, for each test."""

from collections.abc import AsyncIterator

import pytest

from tests.support.disk import SimulatedFiles
from tests.support.rooms import Rooms, rooms
from tests.support.steered_store import SteeredStore


@pytest.fixture
def store() -> SteeredStore:
    return SteeredStore()


@pytest.fixture
async def broker(store: SteeredStore) -> AsyncIterator[Rooms]:
    async with rooms(store, SimulatedFiles(seed=5)) as made:
        yield made
