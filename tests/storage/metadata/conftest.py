"""The stores that the conformance suite holds to the contract, and the etcd that one of them needs."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from storage.metadata.embedded import EmbeddedStore
from storage.metadata.memory import MemoryStore
from storage.metadata.store import MetadataStore
from tests.support.disk import SimulatedFiles
from tests.support.etcd import etcd_store, running_etcd
from tidewire.cli.demo.etcd import EtcdProcess


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    """One etcd for the whole run."""
    with running_etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture(params=["memory", "embedded", "etcd"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[MetadataStore]:
    """An empty store of each kind."""
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "embedded":
        async with EmbeddedStore.open(SimulatedFiles(), Path("/data")) as embedded:
            yield embedded
    else:
        async with etcd_store(request.getfixturevalue("etcd_server").endpoint) as etcd:
            yield etcd
