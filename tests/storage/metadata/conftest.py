"""The stores that the conformance suite tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from storage.metadata.embedded import EmbeddedStore
from storage.metadata.memory import MemoryStore
from storage.metadata.store import MetadataStore
from tests.support.disk import SimulatedFiles
from tests.support.etcd import etcd_store


@pytest.fixture(params=["memory", "embedded", "etcd"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[MetadataStore]:
    """Make an empty store of each kind."""
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "embedded":
        async with EmbeddedStore.open(SimulatedFiles(), Path("/data")) as embedded:
            yield embedded
    else:
        async with etcd_store(request.getfixturevalue("etcd_server").endpoint) as etcd:
            yield etcd
