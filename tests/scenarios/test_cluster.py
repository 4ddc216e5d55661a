"""Three `tidewire broker` processes on one etcd and one folder, and clients that know all addresses.

Brokers are killed, and restarted one by one, under a load of transactions. What was acknowledged is there exactly once
afterwards, in order per key, and nothing aborted is shown. `test_bad_days` has further faults.
"""

from pathlib import Path

import pytest
import trio

from tests.support.cluster_loads import running_loads, running_regular
from tests.support.http import request
from tests.support.real_cluster import BROKERS, running_cluster
from tidewire.cli.local_etcd import EtcdProcess

SECONDS_MAX = 240
pytestmark = [pytest.mark.interop, pytest.mark.timeout(SECONDS_MAX + 60)]
SCALABLE = [f"topic://public/default/{number}" for number in range(3)]
COMMITS = 15
"""Commits of each topic's load, before the kill and behind it."""
ROUNDS = 3
"""Messages of `pulsar-client` on each regular topic behind the kill."""


async def test_an_owner_is_killed_under_a_load_of_transactions(etcd_server: EtcdProcess, tmp_path: Path) -> None:
    """C21, D1, D8, E17: our client and pulsar-client go on at the survivors, and so does each transaction."""
    with trio.fail_after(SECONDS_MAX):
        async with running_cluster(tmp_path, "--metadata", f"etcd://{etcd_server.endpoint}") as cluster:
            async with running_regular(cluster) as regular, running_loads(cluster, SCALABLE) as loads:
                await loads.more(COMMITS)
                await trio.to_thread.run_sync(regular.wait_round, ROUNDS)
                owned = await cluster.owned()
                rounds = regular.rounds
                await cluster.kill(max(owned, key=owned.__getitem__))
                loads.broker_died()
                await loads.more(COMMITS)
                await trio.to_thread.run_sync(regular.wait_round, rounds + ROUNDS)
                assert await loads.finish() == []
            assert owned.keys() == set(BROKERS)
            assert all(owned.values()), "each owned something"


async def test_brokers_are_drained_and_restarted_one_by_one(etcd_server: EtcdProcess, tmp_path: Path) -> None:
    """C7, C21, E17: a rolling restart under a load of transactions. Every client goes on, and nothing is lost."""
    with trio.fail_after(SECONDS_MAX):
        async with (
            running_cluster(tmp_path, "--metadata", f"etcd://{etcd_server.endpoint}") as cluster,
            running_regular(cluster) as regular,
            running_loads(cluster, SCALABLE) as loads,
        ):
            await trio.to_thread.run_sync(regular.wait_round, ROUNDS)
            for name, broker in cluster.brokers.items():
                await loads.more(COMMITS)
                answer = await request(broker.http, "POST", f"/admin/v2/cluster/brokers/{name}/drain")
                assert answer.status == 204, answer.body
                assert (await cluster.owned())[name] == 0
                await cluster.stop(name)
                await cluster.start(name)
            rounds = regular.rounds
            await loads.more(COMMITS)
            await trio.to_thread.run_sync(regular.wait_round, rounds + ROUNDS)
            assert await loads.finish() == []
