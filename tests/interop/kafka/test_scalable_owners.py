"""Scalable topics whose segments several brokers own, read while segments change and an owner dies."""

import os
import signal
from collections.abc import Callable
from typing import Final

import pytest

from tests.interop.kafka.conftest import PROCESSES
from tests.support.admin import Admin
from tests.support.kafka_clients.contract import Client, Place
from tests.support.kafka_cluster import KafkaCluster, metadata, partition_in
from tests.support.kafka_processes import pids_by_node, wait_all_run
from tests.support.processes import RunningBroker
from tests.support.scalable_load import ScalableLoad, running_scalable_load

pytestmark = pytest.mark.interop

SEGMENTS: Final = 3
"""At first. They are 0, 1 and 2."""
PARTITIONS: Final = 8
"""At the end: two splits and a merge made five more."""


def play(load: ScalableLoad, http_url: Callable[[], str], kill: Callable[[], None]) -> None:
    """Split, kill, merge and split while the load goes on. The victim dies in the middle of it."""
    topic = f"topic://public/default/{load.topic}"
    load.more()
    Admin(http_url()).split_now(topic, 0)
    load.more()
    kill()
    load.more()
    Admin(http_url()).merge_now(topic, 1, 2)
    load.more()
    Admin(http_url()).split_now(topic, 5)
    load.more()


def test_a_group_misses_nothing_on_a_cluster(cluster: KafkaCluster, client: Client, name: str) -> None:
    """K21, K35, K41, K44: each committed message is there once, and no other is shown."""
    Admin(cluster.any.http_url).create(f"topic://public/default/{name}", SEGMENTS)
    owners = {cluster.leader(Place(name, segment)) for segment in range(SEGMENTS)}
    assert len(owners) > 1
    service_url = "pulsar://" + ",".join(str(broker.pulsar) for broker in cluster.brokers.values())
    with running_scalable_load(client, cluster.bootstrap, service_url, name) as load:
        play(load, lambda: cluster.any.http_url, lambda: cluster.kill(cluster.leader(Place(name, 1))))
    load.judge(PARTITIONS)


def test_a_group_misses_nothing_on_several_processes(processes: RunningBroker, client: Client, name: str) -> None:
    """K21, K35, K41, K44: the same with one address, behind which the command starts the victim again."""
    wait_all_run(processes, PROCESSES)
    Admin(processes.http_url).create(f"topic://public/default/{name}", SEGMENTS)
    leaders = [partition_in(metadata(processes.kafka, name), Place(name, n)).leader_id for n in range(SEGMENTS)]
    assert len({*leaders}) > 1

    def kill() -> None:
        victim = partition_in(metadata(processes.kafka, name), Place(name, 1)).leader_id
        os.kill(pids_by_node(processes)[victim], signal.SIGKILL)

    with running_scalable_load(client, str(processes.kafka), processes.service_url, name) as load:
        play(load, lambda: processes.http_url, kill)
    load.judge(PARTITIONS)
