"""The ways between the processes of a cluster, and which of them an act makes faulty."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import trio

from tests.support.chaos.acts import BROKERS, FAULTS, PLACES
from tests.support.chaos.network import Network

MEMBERS = {"etcd-1": "127.0.0.1:1", "etcd-2": "127.0.0.1:2", "etcd-3": "127.0.0.1:3"}


@asynccontextmanager
async def opened(members: dict[str, str]) -> AsyncIterator[Network]:
    async with trio.open_nursery() as nursery:
        network = Network()
        await network.open(nursery, BROKERS, members)
        yield network
        nursery.cancel_scope.cancel()


async def test_brokers_reach_each_other_through_their_own_proxies(tmp_path: Path) -> None:
    async with opened({}) as network:
        network.peers["one", "two"].server = "127.0.0.1:80"
        network.store["one", "two"].server = "127.0.0.1:90"
        network.write_routes(tmp_path / "routes", "one")
        routes = json.loads((tmp_path / "routes").read_text())
        assert routes["127.0.0.1:80"] == network.peers["one", "two"].endpoint
        assert routes["127.0.0.1:90"] == network.store["one", "two"].endpoint
        assert "127.0.0.1:80" not in network.routes("two")


async def test_every_fault_is_mended() -> None:
    for members in ({}, MEMBERS):
        async with opened(members) as network:
            for fault in FAULTS:
                for place in PLACES:
                    with network.faulty(fault, place, "two", Random(1)) as ways:
                        assert ways >= 1
                        with network.faulty(fault, place, "two", Random(1)) as again:
                            assert again == 0, "the first act has them"
            assert not network._faulty


async def test_a_broker_can_be_cut_off_in_one_direction_or_from_one_member() -> None:
    async with opened({}) as network:
        found = set()
        for seed in range(20):
            with network.faulty("cut", "store", "two", Random(seed)) as ways:
                found.add(ways)
        assert found == {2, 4}
    async with opened(MEMBERS) as network:
        found = set()
        for seed in range(20):
            with network.faulty("cut", "store", "two", Random(seed)) as ways:
                found.add(ways)
        assert found == {1, 3}
