"""What can happen to the brokers of a cluster, on each metadata store, under a load of transactions, splits and merges.

In every story acknowledged messages and commits are there exactly once, the order of each key holds, nothing aborted is
shown, and no client waits longer than its time-out. Clients judge that as they read, and the cluster's records have to
agree. The faults come from a seed. Every wait is for an event, and a story as a whole has a time limit.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import orjson
import pytest
import trio

import tidewire
from broker.cluster.placement import preferred
from scripts.need import place as need
from tests.support.admin import Admin
from tests.support.cluster_loads import REGULAR, running_loads
from tests.support.cluster_networks import Ways, cluster_behind_proxies
from tests.support.etcd_nodes import EtcdNodes
from tests.support.happenings import Happenings
from tests.support.http import HEALTH, request
from tests.support.layout_changes import LayoutChanges
from tests.support.outcomes import COMMITTED
from tests.support.plain_client import Client, Type, stored
from tests.support.processes import BROKER_COMMAND, RunningBroker
from tests.support.proxy import Proxy
from tests.support.real_cluster import (
    BROKERS,
    EMBEDDED,
    RETRY_SECONDS,
    RealCluster,
    Records,
    claims_in,
    running_cluster,
)
from tests.support.small_disk import fill, small_disk
from tests.support.wall_clock import WallClock
from tidewire.cli.local_etcd import EtcdProcess
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

SECONDS_MAX = 540
pytestmark = pytest.mark.timeout(SECONDS_MAX + 60)
TOPICS = [f"topic://public/default/{number}" for number in range(2)]
SESSION = "session_timeout_seconds = 3\n"
LONG_SESSION = "session_timeout_seconds = 6\n"
"""For stories that name a broker which must not lose its session because the machine is busy."""
COMMITS = 6
"""Commits of each topic's load between two faults."""

COORDINATORS = 16
IN_USE = "already uses the data folder"
DISK_BYTES = 48 * 1024 * 1024
METADATA = ["etcd", "embedded"]


@pytest.fixture(params=METADATA)
def place(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The flags that say where the metadata is."""
    if request.param == "embedded":
        return EMBEDDED
    return ("--metadata", f"etcd://{request.getfixturevalue('etcd_server').endpoint}")


CONTROLLER = "controller of the metadata store"
ROLES = ("segment://", "coordinator://", "topic://")
"""The names of claims begin so: an owner's, a coordinator's, and that of a topic's controller."""


async def broker_of(cluster: RealCluster, role: str, random: Random) -> str:
    """Return one of the brokers that have this role."""
    if role == CONTROLLER:
        return cluster.metadata_controller().broker
    claims = await cluster.until(lambda claims: any(name.startswith(role) for name in claims))
    return random.choice([broker for name, broker in sorted(claims.items()) if name.startswith(role)])


async def kill_in_each_role(place: tuple[str, ...], folder: Path, seed: int, rounds: int) -> None:
    """Kill brokers under a load with splits, one after another, and judge the end."""
    random = Random(seed)
    async with (
        running_cluster(folder, *place, settings=SESSION) as cluster,
        running_loads(cluster, TOPICS, seed=seed, changes=True) as loads,
    ):
        for _ in range(rounds):
            for role in (*ROLES, CONTROLLER) if cluster.metadata_epoch else ROLES:
                await loads.more(COMMITS)
                victim = await broker_of(cluster, role, random)
                await cluster.kill(victim)
                loads.broker_died()
                await cluster.until_gone(victim)
                await loads.more(COMMITS)
                await cluster.start(victim)
        assert await loads.finish() == []
        assert await cluster.settled() == []
        assert loads.changes


@pytest.mark.interop
async def test_a_broker_is_killed_in_each_of_its_roles(place: tuple[str, ...], tmp_path: Path) -> None:
    """C5, C14, C21, D1, D8, D10: each in the middle of its work. The others take over, and lose nothing."""
    with trio.fail_after(SECONDS_MAX):
        await kill_in_each_role(place, tmp_path, seed=41, rounds=1)


@pytest.mark.thorough
@pytest.mark.kills
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(1, 4))
async def test_brokers_are_killed_in_their_roles_again_and_again(
    place: tuple[str, ...], tmp_path: Path, seed: int
) -> None:
    """C5, C14, C21, D1, D8, D10: with other kills each time."""
    await kill_in_each_role(place, tmp_path, seed, rounds=5)


async def kept(cluster: RealCluster, topic: str) -> int:
    """How many messages a regular topic has, as its owner shows them."""
    while True:
        owner = (await cluster.claims()).get(topic)
        with suppress(AssertionError, OSError):  # It has just moved.
            return await trio.to_thread.run_sync(stored, cluster.any if owner is None else cluster[owner], topic)
        await trio.sleep(RETRY_SECONDS)


def digests(files: Sequence[Path]) -> dict[Path, str]:
    """What is in each file."""
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.interop
async def test_a_frozen_owner_gets_not_one_write_in(place: tuple[str, ...], tmp_path: Path) -> None:
    """C8, C21, D2, E4: it continues when others have its topics, and finds sends of its clients in its sockets.

    A second broker of its identity is refused, before and meanwhile.
    """
    in_thread = trio.to_thread.run_sync
    with trio.fail_after(SECONDS_MAX):
        async with (
            running_cluster(tmp_path, *place, settings=SESSION) as cluster,
            running_loads(cluster, TOPICS, seed=42) as loads,
        ):
            await loads.more(COMMITS)
            victim = await broker_of(cluster, "segment://", Random(42))
            names = (f"persistent://public/default/late-{number}" for number in count())
            topic = next(name for name in names if preferred(name, BROKERS) == victim)
            with await in_thread(Client, cluster[victim], topic) as late:
                assert (await in_thread(late.produce)).type == Type.PRODUCER_SUCCESS
                for number in range(3):
                    assert (await in_thread(late.publish, number)).type == Type.SEND_RECEIPT
                twin = cluster[victim].refused_twin
                assert IN_USE in await in_thread(twin)
                cluster.freeze(victim)
                await cluster.until_gone(victim)
                assert IN_USE in await in_thread(twin), "nobody can tell whether it ended"
                await loads.more(COMMITS)
                assert await kept(cluster, topic) == 3
                ledgers = await cluster.ended_ledgers(victim)
                before = await in_thread(digests, ledgers)
                late.send_publish(3)
                cluster.thaw(victim)
                answer = await in_thread(late.last_answer)
                assert answer is None or answer.type != Type.SEND_RECEIPT
            status = await cluster.ended(victim)
            assert status == 1
            assert f"The broker {victim} has been replaced" in cluster.stderr
            await cluster.start(victim)
            await loads.more(COMMITS)
            assert await loads.finish() == []
            assert await cluster.settled() == []
            assert await kept(cluster, topic) == 3
            assert await in_thread(digests, ledgers) == before


@pytest.mark.interop
@pytest.mark.parametrize("metadata", METADATA)
async def test_the_network_of_a_broker_fails_in_several_ways(
    metadata: str, etcd_server: EtcdProcess, tmp_path: Path
) -> None:
    """C12, C21, D1, E14: it cannot reach the store, or only one way. The others serve its topics meanwhile."""
    etcd = etcd_server.endpoint if metadata == "etcd" else None
    with trio.fail_after(SECONDS_MAX):
        async with (
            cluster_behind_proxies(tmp_path, etcd, settings=LONG_SESSION) as (cluster, ways),
            running_loads(cluster, TOPICS, seed=43, changes=True) as loads,
        ):
            for fault in (partial(Proxy.delay, seconds=0.1), Proxy.half_close):
                await give_trouble(cluster, ways, fault)
                await loads.more(COMMITS)
                mend(cluster, ways)
            for fault in (Proxy.cut, Proxy.mute):
                victim = await cut_off(cluster, ways, fault)
                await loads.more(COMMITS)
                mend(cluster, ways)
                await cluster.until_back(victim)
            await loads.more(COMMITS)
            assert await loads.finish() == []
            assert await cluster.settled() == []
            # Each closed its ledgers itself, so nobody fenced it, and all processes are the same.
            assert "has been replaced" not in cluster.stderr


async def give_trouble(cluster: RealCluster, ways: Ways, fault: Callable[[Proxy], None]) -> str:
    """Give this fault to all ways of one broker that does not decide for the store. Return the broker."""
    deciding = cluster.metadata_controller().broker if cluster.metadata_epoch else None
    victim = next(name for name in ways if name != deciding)
    await cluster.until_back(victim)
    cluster.unasked.add(victim)
    for proxy in ways[victim]:
        fault(proxy)
    return victim


async def cut_off(cluster: RealCluster, ways: Ways, fault: Callable[[Proxy], None]) -> str:
    """Give this fault to one broker, and wait until it has lost what it owned. Return the broker."""
    while True:
        before = cluster.metadata_epoch
        victim = await give_trouble(cluster, ways, fault)
        # The load changes records all the time, so this is looked at again and again.
        is_over = partial(is_cut_off, cluster, victim, before)
        records = await cluster.records("/", is_over)
        if victim not in claims_in(records).values():
            return victim
        # The controller stood still on a busy machine. The victim has taken over, so it is not cut off.
        mend(cluster, ways)


def is_cut_off(cluster: RealCluster, victim: str, epoch: int, records: Records) -> bool:
    """Whether a broker has lost what it owned, or the store has had another controller since this epoch."""
    return victim not in claims_in(records).values() or cluster.metadata_epoch != epoch


def mend(cluster: RealCluster, ways: Ways) -> None:
    """End all faults."""
    cluster.unasked.clear()
    for proxies in ways.values():
        for proxy in proxies:
            proxy.mend()


@pytest.mark.interop
async def test_the_leader_of_etcd_is_killed(tmp_path: Path) -> None:
    """C21, D1: two members of three go on. The brokers ask the next member, and lose nothing that they were told."""
    in_thread = trio.to_thread.run_sync
    with trio.fail_after(SECONDS_MAX), EtcdNodes(tmp_path / "etcd", str(need("etcd"))) as etcd:
        async with (
            running_cluster(
                tmp_path, "--metadata", "etcd://" + ",".join(etcd.endpoints.values()), settings=SESSION
            ) as cluster,
            running_loads(cluster, TOPICS, seed=44, changes=True) as loads,
        ):
            for _ in range(2):
                await loads.more(COMMITS)
                leader = await in_thread(etcd.leader)
                assert leader is not None
                await in_thread(etcd.nodes[leader].kill)
                await loads.more(COMMITS)
                await in_thread(etcd.nodes[leader].start)
            assert await loads.finish() == []
            assert await cluster.settled() == []


@pytest.mark.interop
async def test_a_wall_clock_jumps_by_an_hour(place: tuple[str, ...], tmp_path: Path) -> None:
    """C17, D6: ahead on one broker and behind on another. No transaction times out early, and no session ends."""
    clocks = {name: WallClock(tmp_path / f"clock-{name}") for name in ("one", "two")}
    with trio.fail_after(SECONDS_MAX):
        async with (
            running_cluster(
                tmp_path,
                *place,
                commands={name: clock.over(BROKER_COMMAND) for name, clock in clocks.items()},
                # Longer than the machine can stand still, and shorter than the jump.
                settings="session_timeout_seconds = 60\n",
            ) as cluster,
            running_loads(cluster, TOPICS, seed=45, changes=True) as loads,
            tidewire.connect(cluster.url()) as client,
        ):
            topic = await trio.to_thread.run_sync(Admin(cluster.any.http_url).new_topic)
            async with client.producer(topic) as producer, client.reader(topic) as reader:
                # One with each coordinator, so that each broker has some.
                open_ones = [await client.new_transaction(SECONDS_MAX) for _ in range(COORDINATORS)]
                for seconds in (3600, -3600):
                    await loads.more(COMMITS)
                    for name, ahead in (("one", seconds), ("two", -seconds)):
                        clocks[name].jump(ahead)
                        await until_clock(cluster[name], ahead)
                for number, txn in enumerate(open_ones):
                    await producer.send(b"%d" % number, key="key", txn=txn)
                    await txn.commit()
                shown = [(await reader.receive()).value for _ in open_ones]
                assert shown == [b"%d" % number for number in range(COORDINATORS)]
            await loads.more(COMMITS)
            assert await loads.finish() == []
            assert await cluster.settled() == []
            assert cluster.stderr.count("the wall clock was stepped") >= len(clocks)
            assert "a new metadata session" not in cluster.stderr


async def until_clock(broker: RunningBroker, seconds: int) -> None:
    """Wait until a broker's wall clock is so far ahead. It looks at its setting once a second."""
    while True:
        said = parsedate_to_datetime((await request(broker.http, "GET", HEALTH)).headers["date"])
        if abs((said - datetime.now(UTC)).total_seconds() - seconds) < 600:
            return
        await trio.sleep(RETRY_SECONDS)


@pytest.mark.interop
async def test_the_disk_of_one_broker_is_full(place: tuple[str, ...], tmp_path: Path) -> None:
    """C7, D1, E13: its publishes wait, and everybody else goes on. It is even killed like this, and nothing is lost."""
    in_thread = trio.to_thread.run_sync
    elsewhere = TOPICS[1]
    with trio.fail_after(SECONDS_MAX), small_disk(tmp_path / "data" / "brokers", DISK_BYTES, name="two") as disk:
        async with (
            running_cluster(tmp_path, *place, settings=LONG_SESSION + 'journal_file_bytes_max = "4MiB"\n') as cluster,
            running_loads(cluster, TOPICS, seed=46) as loads,
        ):
            doomed = await in_thread(Admin(cluster.any.http_url).new_topic)
            async with tidewire.connect(cluster.url()) as client, client.producer(doomed) as producer:
                await producer.send(b"")
            for name in await cluster.claims():
                if name.startswith("segment://"):
                    is_elsewhere = name.startswith(elsewhere.replace("topic://", "segment://"))
                    await move(cluster, name, "one" if is_elsewhere else "two")
            for kills in (False, True):
                await loads.more(COMMITS)
                somebody_elses = await in_thread(fill, disk)
                await in_thread(publish_until_refused, cluster["two"])
                await loads.of(elsewhere).happenings.nth(COMMITTED, COMMITS)
                if kills:
                    await cluster.kill("two")
                    await cluster.until_gone("two")
                    await loads.of(elsewhere).happenings.nth(COMMITTED, COMMITS)
                else:
                    await split_and_delete(cluster, doomed)
                somebody_elses.unlink()
            await loads.more(COMMITS)
            await cluster.start("two")
            await loads.more(COMMITS)
            assert await loads.finish() == []
            assert await cluster.settled() == []


async def move(cluster: RealCluster, name: str, to: str) -> None:
    """Hand a segment over to a broker."""
    body = orjson.dumps({"topic": name, "to": to})
    headers = {"content-type": "application/json"}
    while True:
        answer = await request(cluster.any.http, "POST", "/admin/v2/cluster/move", body=body, headers=headers)
        if answer.status != 503:
            break
        # A broker of a busy machine may just have lost its session.
        await trio.sleep(RETRY_SECONDS)
    assert answer.status == 204, answer


async def split_and_delete(cluster: RealCluster, topic: str) -> None:
    """Delete a topic by force, while one of its segments cannot be split because its owner's disk is full."""
    changes = LayoutChanges(cluster.any.http, Happenings())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(changes.change, [topic], Random(0))
        await cluster.records("/topics/", lambda topics: any(value["intent"] for value in topics.values()))
        await trio.to_thread.run_sync(Admin(cluster.any.http_url).delete, topic)


def publish_until_refused(broker: RunningBroker) -> None:
    """Publish until the broker says that its disk is full, which it learns as it writes."""
    with Client(broker, next(name for name in REGULAR if preferred(name, BROKERS) == "two")) as client:
        assert client.produce().type == Type.PRODUCER_SUCCESS
        for number in count():
            answer = client.publish(number, bytes(500_000))
            if answer.type != Type.SEND_RECEIPT:
                break
        assert answer.type == Type.CLOSE_PRODUCER
        assert client.produce().error.error == pb.ServerError.ProducerBlockedQuotaExceededError
