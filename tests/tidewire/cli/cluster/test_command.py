"""`tidewire cluster start`, `stop` and `status`, with real brokers and an etcd of their own."""

import fcntl
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from tests.support.ports import ports_in_a_row
from tests.support.processes import FREE_PORTS
from tests.tidewire.cli.cluster.conftest import ClusterCommand, is_running, states
from tidewire import connect

BROKERS = ("broker-1", "broker-2", "broker-3")


def test_a_cluster_starts_goes_on_and_stops(made: Callable[[str], ClusterCommand]) -> None:
    """C21, E4: it stops without rest, starts again on the same addresses, and replaces a broker that was killed."""
    cluster = made("data")
    said = cluster.well("start", "--brokers", "3", "--metadata", "etcd", *FREE_PORTS)
    first = cluster.addresses()
    assert tuple(first) == BROKERS
    urls = ",".join(addresses["pulsar"] for addresses in first.values())
    bootstrap = ",".join(addresses["kafka"] for addresses in first.values())
    assert said.splitlines()[-1] == (
        f"ready service-url=pulsar://{urls} http={first['broker-1']['http']} kafka={bootstrap} data={cluster.data_dir}"
    )
    assert {f"kafka={addresses['kafka']}" for addresses in first.values()} <= set(said.split())
    pids = cluster.pids()
    assert sorted(pids) == [*BROKERS, "etcd"]

    async def story() -> None:
        async with connect(f"pulsar://{urls}") as client, client.producer("persistent://public/default/a") as producer:
            await producer.send(b"kept")

    anyio.run(story)
    shown = cluster.status()
    assert states(shown) == dict.fromkeys(BROKERS, "running")
    assert sum(broker["claims"]["topics"] for broker in shown["brokers"]) == 1
    assert [broker["kafka"] for broker in shown["brokers"]] == bootstrap.split(",")
    row = f"broker-2  running  {first['broker-2']['pulsar']}  {first['broker-2']['kafka']}  "
    assert row in cluster.well("status")
    assert shown["metadataController"] is None
    assert "metadata controller" not in cluster.well("status")

    os.kill(pids["broker-2"], signal.SIGKILL)
    again = cluster.well("start").splitlines()
    assert f"broker-1 runs already (pid {pids['broker-1']})" in again
    assert cluster.addresses() == first
    assert {name for name, pid in cluster.pids().items() if pid != pids[name]} == {"broker-2"}
    assert states(cluster.status()) == dict.fromkeys(BROKERS, "running")

    assert cluster.well("stop", "broker-3") == "stopped broker-3\n"
    assert sorted(cluster.pids()) == ["broker-1", "broker-2", "etcd"]
    assert "There are: broker-1, broker-2, broker-3." in cluster.complaint("stop", "broker-9", status=2)
    cluster.well("start")
    ended = cluster.pids()
    assert cluster.well("stop").splitlines() == [f"stopped {name}" for name in (*BROKERS, "etcd")]
    assert not any(is_running(pid) for pid in ended.values())
    assert cluster.pids() == {}
    assert cluster.well("stop") == ""
    assert "answers" in cluster.complaint("status")

    cluster.well("start", "--brokers", "4")
    assert list(cluster.addresses().items())[:3] == list(first.items())
    assert len(cluster.status()["brokers"]) == 4

    async def later() -> None:
        async with connect(f"pulsar://{urls}") as client, client.consumer("persistent://public/default/a", "s") as one:
            assert (await one.receive()).value == b"kept"

    anyio.run(later)


def test_a_watch_goes_on_at_another_broker(made: Callable[[str], ClusterCommand]) -> None:
    """C21: what changes is pushed. When the broker that was asked dies, another one shows that."""
    cluster = made("data")
    cluster.well("start", "--brokers", "2", "--metadata", "etcd", *FREE_PORTS)
    with subprocess.Popen(
        cluster.command("status", "--watch", "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watch:
        assert watch.stdout is not None
        assert watch.stderr is not None
        assert states(json.loads(watch.stdout.readline())) == {"broker-1": "running", "broker-2": "running"}
        assert "cannot change" in cluster.complaint("start", "--metadata", "embedded", "--brokers", "1", status=2)
        os.kill(cluster.pids()["broker-1"], signal.SIGKILL)
        while states(json.loads(watch.stdout.readline())) != {"broker-2": "running"}:
            pass
        cluster.well("stop")
        assert watch.wait() == 1
        assert "None of the brokers" in watch.stderr.read()


def test_the_metadata_controller_is_shown(made: Callable[[str], ClusterCommand]) -> None:
    """C5, C21: on the embedded store, also when another broker becomes it."""
    cluster = made("data")
    cluster.well("start", "--brokers", "2", "--metadata", "embedded", *FREE_PORTS)
    controller = cluster.status()["metadataController"]
    assert f"metadata controller: {controller}" in [line.strip() for line in cluster.well("status").splitlines()]
    with subprocess.Popen(cluster.command("status", "--watch", "--json"), stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        assert json.loads(watch.stdout.readline())["metadataController"] == controller
        os.kill(cluster.pids()[controller], signal.SIGKILL)
        while (shown := json.loads(watch.stdout.readline())["metadataController"]) in {controller, ""}:
            pass
        assert {controller, shown} == set(BROKERS[:2])
        watch.terminate()


def test_a_broker_that_cannot_start_is_explained_and_nothing_is_left(made: Callable[[str], ClusterCommand]) -> None:
    """The second broker's port is taken. The first broker and etcd are stopped again."""
    cluster = made("data")
    port = ports_in_a_row(2)
    with socket.create_server(("127.0.0.1", port + 1)):
        arguments = ("--brokers", "2", "--metadata", "etcd", *FREE_PORTS, "--pulsar", f"127.0.0.1:{port}")
        complaint = cluster.complaint("start", *arguments)
    assert f"broker-2 did not start. Another process already listens on 127.0.0.1:{port + 1}." in complaint
    assert str(cluster.folder / "broker-2.log") in complaint
    assert cluster.pids() == {}
    # The addresses can still be chosen.
    cluster.well("start", "--brokers", "2", "--metadata", "etcd", *FREE_PORTS)


def test_what_a_killed_start_left_is_replaced(made: Callable[[str], ClusterCommand]) -> None:
    """E4: nobody knows the addresses of what it started, so the next start begins again."""
    cluster = made("data")
    cluster.well("start", "--brokers", "2", "--metadata", "etcd", *FREE_PORTS)
    left = cluster.pids()
    (cluster.folder / "cluster.json").unlink()
    said = cluster.well("start", "--brokers", "2", "--metadata", "etcd", *FREE_PORTS)
    assert said.splitlines()[:3] == ["stopped broker-1", "stopped broker-2", "stopped etcd"]
    assert not set(cluster.pids().values()) & set(left.values())
    assert states(cluster.status()) == {"broker-1": "running", "broker-2": "running"}


def test_commands_do_not_get_in_each_others_way(made: Callable[[str], ClusterCommand]) -> None:
    cluster = made("data")
    cluster.folder.mkdir(parents=True)
    with (cluster.folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "Wait until it has ended" in cluster.complaint("start", "--brokers", "1", *FREE_PORTS)


def test_mistakes_are_told_in_one_line(made: Callable[[str], ClusterCommand], tmp_path: Path) -> None:
    cluster = made("data")
    assert "No cluster was started" in cluster.complaint("stop")
    for metadata in ("embedded", "etcd"):
        wildcard = cluster.complaint("start", "--metadata", metadata, "--pulsar", "0.0.0.0:6650", status=2)
        assert "0.0.0.0:6650" in wildcard
        assert "65535" in cluster.complaint("start", "--metadata", metadata, "--pulsar", "127.0.0.1:65535", status=2)
        assert "HOST:PORT" in cluster.complaint("start", "--metadata", metadata, "--pulsar", "6650", status=2)
    assert "embedded" in cluster.complaint("start", "--metadata", "zookeeper", "--brokers", "1", status=2)
    assert cluster.pids() == {}
    (tmp_path / "file").touch()
    assert "cannot be used" in made("file").complaint("start", "--brokers", "1")
    (cluster.folder).mkdir(parents=True, exist_ok=True)
    (cluster.folder / "cluster.json").write_text("{")
    for command in ("start", "stop", "status"):
        assert "damaged" in cluster.complaint(command)
    (cluster.folder / "cluster.json").unlink()


def test_one_broker_needs_no_etcd_and_its_store_is_kept(made: Callable[[str], ClusterCommand]) -> None:
    """The metadata cannot move to another store. More brokers may join the first one, which led alone."""
    cluster = made("data")
    cluster.well("start", "--brokers", "1", *FREE_PORTS)
    assert "cannot change" in cluster.complaint("start", "--metadata", "etcd", status=2)
    assert "later starts" in cluster.complaint("start", "--pulsar", "127.0.0.1:7000", status=2)
    assert states(cluster.status()) == {"broker-1": "running"}
    cluster.well("start", "--brokers", "3")
    assert states(cluster.status()) == {"broker-1": "running", "broker-2": "running", "broker-3": "running"}


def test_programs_get_one_document_of_a_start_and_of_a_stop(made: Callable[[str], ClusterCommand]) -> None:
    """Part 9: with --json, the notes for people go to standard error."""
    cluster = made("data")
    cluster.well("start", "--brokers", "1", *FREE_PORTS, "--kafka", "none")
    again = cluster("start", "--brokers", "2", "--json")
    first, second = ({"broker": name, **addresses, "kafka": None} for name, addresses in cluster.addresses().items())
    assert json.loads(again.stdout) == {
        "serviceUrl": f"pulsar://{first['pulsar']},{second['pulsar']}",
        "http": first["http"],
        "bootstrapServers": None,
        "dataDir": str(cluster.data_dir),
        "brokers": [first, second],
    }
    pids = cluster.pids()
    assert again.stderr.splitlines() == [
        f"tidewire cluster: broker-1 runs already (pid {pids['broker-1']})",
        f"tidewire cluster: broker-2 pulsar={second['pulsar']} http={second['http']} pid={pids['broker-2']}",
    ]
    one = json.loads(cluster.well("stop", "broker-2", "--json"))
    assert one == {"stopped": ["broker-2"], "killed": [], "running": []}
    assert json.loads(cluster.well("stop", "--json"))["stopped"] == ["broker-1"]
    assert json.loads(cluster.well("stop", "--json"))["stopped"] == []


@pytest.mark.interop
def test_a_broker_that_was_replaced_starts_again(made: Callable[[str], ClusterCommand], tmp_path: Path) -> None:
    """C12, E14: it stood still, and the others took over its journal. It ends, and comes back under the same pid."""
    cluster = made("data")
    config = tmp_path / "tidewire.toml"
    config.write_text("session_timeout_seconds = 5\n")
    cluster.well("start", "--brokers", "3", "--config", str(config), *FREE_PORTS)
    urls = ",".join(addresses["pulsar"] for addresses in cluster.addresses().values())
    log = cluster.folder / "broker-3.log"
    topic, pid, first = "persistent://public/default/a", cluster.pids()["broker-3"], cluster.addresses()

    async def story() -> None:
        async with connect(f"pulsar://{urls}", keep_alive_seconds=1) as client, client.producer(topic) as producer:
            await producer.send(b"0")
            await anyio.to_thread.run_sync(cluster.well, "move", topic, "broker-3")
            await producer.send(b"1")
            os.kill(pid, signal.SIGSTOP)
            # The others recover the journal before one of them takes the topic.
            await producer.send(b"2")
            os.kill(pid, signal.SIGCONT)
            await anyio.to_thread.run_sync(wait_until_all_run)
            await anyio.to_thread.run_sync(cluster.well, "move", topic, "broker-3")
            await producer.send(b"3")
            async with client.consumer(topic, "s") as consumer:
                assert [(await consumer.receive()).value for _ in range(4)] == [b"0", b"1", b"2", b"3"]

    def wait_until_all_run() -> None:
        # A broker prints its ready line again only if it was started again.
        with subprocess.Popen(["tail", "-n", "+1", "-f", log], stdout=subprocess.PIPE, text=True) as tail:
            assert tail.stdout is not None
            assert any(line.startswith("ready pulsar=") for line in tail.stdout)
            tail.kill()

    anyio.run(story)
    assert "broker-3 has been replaced" in log.read_text()
    assert (cluster.pids()["broker-3"], cluster.addresses()) == (pid, first)
    assert states(cluster.status()) == dict.fromkeys(BROKERS, "running")


def test_topics_are_moved_and_brokers_drained_and_killed(made: Callable[[str], ClusterCommand]) -> None:
    """C7, C21, E17: by any broker, whoever owns the topic. Its client goes on meanwhile."""
    cluster = made("data")
    cluster.well("start", "--brokers", "3", "--metadata", "etcd", *FREE_PORTS)
    urls = ",".join(addresses["pulsar"] for addresses in cluster.addresses().values())
    topics = [f"persistent://public/default/{number}" for number in range(6)]

    def owned() -> dict[str, int]:
        return {broker["broker"]: broker["claims"]["topics"] for broker in cluster.status()["brokers"]}

    async def story() -> None:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(connect(f"pulsar://{urls}", reconnect_seconds_max=0.2))
            producers = [await stack.enter_async_context(client.producer(topic)) for topic in topics]

            async def send(text: bytes) -> None:
                for producer in producers:
                    await producer.send(text)

            await send(b"0")
            for number, broker in enumerate(BROKERS, 1):
                for topic in topics:
                    said = await anyio.to_thread.run_sync(cluster.well, "move", topic, broker)
                    assert said == f"moved {topic} to {broker}\n"
                await send(b"%d" % number)
                assert owned() == {**dict.fromkeys(BROKERS, 0), broker: len(topics)}
            assert await anyio.to_thread.run_sync(cluster.well, "drain", "broker-3") == "drained broker-3\n"
            await send(b"4")
            assert (owned()["broker-3"], states(cluster.status())["broker-3"]) == (0, "draining")
            assert "is draining" in cluster.complaint("move", topics[0], "broker-3")
            told = json.loads(cluster.well("undrain", "broker-3", "--json"))
            assert told == {"broker": "broker-3", "isDrained": False}
            # Its share comes back, and everything else stays.
            assert "handed over" in await anyio.to_thread.run_sync(cluster.well, "balance")
            await send(b"5")
            assert max(owned().values()) < len(topics)
            again = await anyio.to_thread.run_sync(cluster.well, "balance")
            assert again == "".join(f"{broker} handed over 0 topics\n" for broker in BROKERS)
            told = json.loads(await anyio.to_thread.run_sync(cluster.well, "balance", "--json"))
            assert told == {"handedOver": dict.fromkeys(BROKERS, 0)}
            told = json.loads(cluster.well("unload", topics[0], "--json"))
            assert told == {"topic": topics[0], "unloaded": True}
            killed = f"killed broker-1, which had the pid {cluster.pids()['broker-1']}\n"
            assert cluster.well("kill", "broker-1") == killed
            assert "runs on this machine" in cluster.complaint("kill", "broker-1")
            await send(b"6")
            for topic in topics:
                consumer = await stack.enter_async_context(client.consumer(topic, "s"))
                assert [(await consumer.receive()).value for _ in range(7)] == [b"%d" % number for number in range(7)]

    anyio.run(story)
    assert "These brokers take topics: broker-2, broker-3." in cluster.complaint("move", topics[0], "broker-9")
    assert "nothing://x" in cluster.complaint("move", "nothing://x", "broker-2")
    assert "does not exist" in cluster.complaint("move", "topic://public/default/none", "broker-2")
    assert "does not run" in cluster.complaint("drain", "broker-9")
