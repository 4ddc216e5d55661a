"""What a cluster promises to Kafka's clients: they go on when a leader or a coordinator dies, or is drained."""

from typing import Final

import pytest

from tests.support.kafka_clients.contract import Client, Place
from tests.support.kafka_clients.every import FORGETFUL
from tests.support.kafka_cluster import GROUP, TRANSACTION, KafkaCluster
from tests.support.kafka_load import running_load

pytestmark = pytest.mark.interop

PARTITIONS: Final = 3
ROLES: Final = ("leader", "group", "transaction")


def victim_of(cluster: KafkaCluster, role: str, topic: str) -> str:
    """Return the broker with this role in the story of a topic. Its group and transactional id have its name."""
    if role == "leader":
        return cluster.leader(Place(topic))
    return cluster.coordinator(topic, GROUP if role == "group" else TRANSACTION)


@pytest.mark.parametrize("role", ROLES)
def test_clients_go_on_when_a_broker_is_killed(cluster: KafkaCluster, client: Client, name: str, role: str) -> None:
    """K23, K24, K27, K36: nothing acknowledged is lost, nothing is there twice, nothing aborted is shown."""
    client.admin(cluster.bootstrap).create(name, PARTITIONS)
    transacts = client.name not in FORGETFUL
    with running_load(client, cluster.bootstrap, name, partitions=PARTITIONS, transacts=transacts) as load:
        load.more()
        cluster.kill(victim_of(cluster, role, name))
        load.more()
    load.judge()


@pytest.mark.parametrize("role", ROLES)
def test_clients_go_on_when_a_broker_is_drained(cluster: KafkaCluster, client: Client, name: str, role: str) -> None:
    """K36, K40: partitions, groups and transactions are handed over, and clients follow."""
    client.admin(cluster.bootstrap).create(name, PARTITIONS)
    with running_load(client, cluster.bootstrap, name, partitions=PARTITIONS) as load:
        load.more()
        cluster.drain(victim_of(cluster, role, name))
        load.more()
    load.judge()
