"""What `tidewire broker --processes N` promises to Kafka clients: one address to begin at, served by all processes."""

import os
import signal
from typing import Final

import pytest

from tests.interop.kafka.conftest import PROCESSES
from tests.support.kafka_clients.contract import Client, Place
from tests.support.kafka_clients.every import FORGETFUL
from tests.support.kafka_cluster import GROUP, TRANSACTION, coordinator_of, metadata, move, partition_in
from tests.support.kafka_load import running_load
from tests.support.kafka_processes import pids_by_node, wait_all_run
from tests.support.processes import RunningBroker, children_of

pytestmark = pytest.mark.interop

ROLES: Final = ("leader", "group", "transaction")


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
        wait_all_run(processes, PROCESSES)
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
