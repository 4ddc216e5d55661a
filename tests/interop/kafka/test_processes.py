"""What `tidewire broker --processes N` promises to Kafka clients: one address to begin at, served by all processes."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.kafka_clients.contract import Client, Place
from tests.support.kafka_clients.every import FORGETFUL
from tests.support.kafka_cluster import GROUP, TRANSACTION, coordinator_of, metadata, move, partition_in
from tests.support.kafka_load import running_load
from tests.support.processes import RunningBroker, children_of, running_broker
from tidewire.cli.broker_http import BrokerHttp

pytestmark = pytest.mark.interop

PROCESSES: Final = 3
ROLES: Final = ("leader", "group", "transaction")


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Run several brokers behind one command."""
    with running_broker(tmp_path_factory.mktemp("processes") / "data", "--processes", str(PROCESSES)) as supervisor:
        yield supervisor


def test_each_process_has_a_number_and_a_port(processes: RunningBroker) -> None:
    """K44: whichever process accepts at the common address, it names all of them, and no client is sent back there."""
    # Which process accepts is the kernel's choice.
    said = [metadata(processes.kafka).brokers for _ in range(2 * PROCESSES)]
    nodes = {(one.node_id, one.host, one.port) for brokers in said for one in brokers}
    assert {len(brokers) for brokers in said} == {PROCESSES}
    assert len({node for node, _host, _port in nodes}) == len({port for *_, port in nodes}) == len(nodes) == PROCESSES
    assert processes.kafka.port not in {port for *_, port in nodes}


@pytest.mark.parametrize("role", ROLES)
def test_clients_go_on_when_a_process_is_killed(processes: RunningBroker, client: Client, name: str, role: str) -> None:
    """K44, C23, K36: its partitions, groups and transactions move, and the command starts it again."""
    bootstrap = str(processes.kafka)
    client.admin(bootstrap).create(name, PROCESSES)
    transacts = client.name not in FORGETFUL
    with running_load(client, bootstrap, name, partitions=PROCESSES, transacts=transacts) as load:
        load.more()
        wait_all_run(processes)
        for partition, broker in enumerate(children_of(processes)):
            move(processes.http, Place(name, partition), broker)
        load.more()
        if role == "leader":
            victim = partition_in(metadata(processes.kafka, name), Place(name)).leader_id
        else:
            victim, _address = coordinator_of(processes.kafka, name, GROUP if role == "group" else TRANSACTION)
        os.kill(pids_by_node(processes)[victim], signal.SIGKILL)
        load.more()
    load.judge()


def wait_all_run(supervisor: RunningBroker) -> None:
    """Wait until a process that a test before has killed runs again."""
    for line in BrokerHttp(str(supervisor.http)).lines("/admin/v2/cluster", {"watch": "true"}):
        if [broker["state"] for broker in json.loads(line)["brokers"]] == ["running"] * PROCESSES:
            return


def pids_by_node(supervisor: RunningBroker) -> dict[int, int]:
    """Return the processes, by the numbers that Kafka's clients know them by."""
    nodes = {f"{one.host}:{one.port}": one.node_id for one in metadata(supervisor.kafka).brokers}
    (line,) = BrokerHttp(str(supervisor.http)).lines("/admin/v2/cluster", {})
    pids = children_of(supervisor)
    return {nodes[broker["kafka"]]: pids[broker["broker"]] for broker in json.loads(line)["brokers"]}
