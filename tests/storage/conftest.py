"""Makes an empty metadata store and an empty simulated disk for each test."""

import pytest

from storage.metadata.memory import MemoryStore
from tests.support.disk import SimulatedFiles


@pytest.fixture
def metadata() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(seed=5)
