"""The stores that the conformance suite tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from storage.metadata.cluster.roles import Role
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.memory import MemoryStore
from storage.metadata.store import MetadataStore
from tests.support.disk import SimulatedFiles
from tests.support.etcd import etcd_store
from tests.support.led_store import led
from tests.support.linked_stores import LinkNetwork
from tests.support.shared_stores import brokers
from tests.support.steered_store import LaggingStore

SHARED = ["leading", "following", "failed-over"]
"""A store of several brokers: that of the controller, of a follower, and of a follower whose controller was killed."""

KINDS = ["memory", "embedded", "follower", *SHARED, "etcd"]


@asynccontextmanager
async def _opened(request: pytest.FixtureRequest) -> AsyncIterator[MetadataStore]:
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "lagging":
        yield LaggingStore()
    elif request.param == "embedded":
        async with EmbeddedStore.open(SimulatedFiles(), Path("/data")) as embedded:
            yield embedded
    elif request.param == "follower":
        async with led() as store, LinkNetwork(store.reign).running() as network, network.follower() as follower:
            yield follower
    elif request.param in SHARED:
        async with brokers() as them:
            first, second = await them.start("b1"), await them.start("b2")
            if request.param == "failed-over":
                await them.kill("b1")
                await them.until("b2", Role.LEADING)
            yield first if request.param == "leading" else second
    else:
        async with etcd_store(request.getfixturevalue("etcd_server").endpoint) as etcd:
            yield etcd


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[MetadataStore]:
    """An empty store of each kind."""
    async with _opened(request) as store:
        yield store


@pytest.fixture(params=[*KINDS, "lagging"])
async def any_store(request: pytest.FixtureRequest) -> AsyncIterator[MetadataStore]:
    """An empty store of each kind, and one whose image is as old as its last barrier."""
    async with _opened(request) as store:
        yield store
