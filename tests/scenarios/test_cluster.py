"""Three `tidewire broker` processes on one folder, with either metadata store, and clients that know all addresses.

Brokers are killed, and restarted one by one, under a load of transactions. What was acknowledged is there exactly once
afterwards, in order per key, and nothing aborted is shown. `test_bad_days` has further faults.
"""

from pathlib import Path

import pytest
import trio

from tests.support.admin import Admin
from tests.support.cluster_loads import running_loads, running_regular
from tests.support.http import request
from tests.support.real_cluster import BROKERS, EMBEDDED, running_cluster

SECONDS_MAX = 540
"""A story takes half a minute, and on a machine that is very busy five times as long or more."""
pytestmark = [pytest.mark.interop, pytest.mark.timeout(SECONDS_MAX + 60)]
SCALABLE = [f"topic://public/default/{number}" for number in range(3)]
SESSION_SECONDS_MAX = 300
"""The longest session that the settings allow."""
SESSION = f"session_timeout_seconds = {SESSION_SECONDS_MAX}\n"
COMMITS = 15
"""Commits of each topic's load, before the kill and behind it."""
ROUNDS = 3
"""Messages of `pulsar-client` on each regular topic behind the kill."""


METADATA = ["etcd", "embedded"]


@pytest.fixture(params=METADATA)
def place(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The flags that say where the metadata is."""
    if request.param == "embedded":
        return EMBEDDED
    return ("--metadata", f"etcd://{request.getfixturevalue('etcd_server').endpoint}")


async def test_an_owner_is_killed_under_a_load_of_transactions(place: tuple[str, ...], tmp_path: Path) -> None:
    """C21, D1, D8, E17: our client and pulsar-client go on at the survivors, and so does each transaction."""
    with trio.fail_after(SECONDS_MAX):
        async with running_cluster(tmp_path, *place) as cluster:
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


async def test_a_change_is_asked_when_the_controller_has_just_died(place: tuple[str, ...], tmp_path: Path) -> None:
    """C14, C21: its free lock proves the death. The broker that was asked ends its session, and goes on at once."""
    # Before the session ends by itself.
    with trio.fail_after(SESSION_SECONDS_MAX - 60):
        async with running_cluster(tmp_path, *place, settings=SESSION) as cluster:
            # The end of the metadata controller is another story.
            leads = cluster.metadata_controller().broker if cluster.metadata_epoch else ""
            victim, other = [name for name in BROKERS if name != leads][:2]
            topic = Admin(cluster[victim].http_url).new_topic()
            await Admin(cluster[victim].http_url).split(topic, 0)
            assert (await cluster.claims())[topic] == victim
            await cluster.kill(victim)
            admin = Admin(cluster[other].http_url)
            await admin.split(topic, 1)
            assert (await cluster.claims())[topic] == other
            assert len(admin.active_segments(topic)) == 3


async def test_brokers_are_drained_and_restarted_one_by_one(place: tuple[str, ...], tmp_path: Path) -> None:
    """C7, C21, E17: a rolling restart under a load of transactions. Every client goes on, and nothing is lost."""
    with trio.fail_after(SECONDS_MAX):
        async with (
            # No broker is killed, so a session could end only because this machine is busy.
            running_cluster(tmp_path, *place, settings=SESSION) as cluster,
            running_regular(cluster) as regular,
            running_loads(cluster, SCALABLE) as loads,
        ):
            await trio.to_thread.run_sync(regular.wait_round, ROUNDS)
            for name, broker in cluster.brokers.items():
                await loads.more(COMMITS)
                answer = await request(broker.http, "POST", f"/admin/v2/cluster/brokers/{name}/drain")
                assert answer.status == 204, answer.body
                kept = [one for one, owner in (await cluster.claims_now()).items() if owner == name]
                assert not [one for one in kept if one.startswith(("segment://", "persistent://"))]
                await cluster.stop(name)
                await cluster.start(name)
            rounds = regular.rounds
            await loads.more(COMMITS)
            await trio.to_thread.run_sync(regular.wait_round, rounds + ROUNDS)
            assert await loads.finish() == []
