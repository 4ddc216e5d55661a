"""Runs a host of segments over a store that a test can stop, for each test."""

from collections.abc import AsyncIterator

import pytest

from tests.support.disk import SimulatedFiles
from tests.support.segments import SegmentHost, segment_host
from tests.support.steered_store import SteeredStore


@pytest.fixture
def store() -> SteeredStore:
    return SteeredStore()


@pytest.fixture
async def host(store: SteeredStore) -> AsyncIterator[SegmentHost]:
    async with segment_host(store, SimulatedFiles(seed=3)) as made:
        yield made
