"""The processes of `tidewire broker --processes N`, as Kafka's clients and the supervisor's HTTP know them."""

import json
from collections.abc import Mapping

from tests.support.kafka_cluster import metadata
from tests.support.processes import RunningBroker, children_of
from tidewire.cli.broker_http import BrokerHttp


def wait_all_run(supervisor: RunningBroker, count: int) -> None:
    """Wait until a process that a test before has killed runs again."""
    for line in BrokerHttp(str(supervisor.http)).lines("/admin/v2/cluster", {"watch": "true"}):
        if [broker["state"] for broker in json.loads(line)["brokers"]] == ["running"] * count:
            return


def pids_by_node(supervisor: RunningBroker) -> Mapping[int, int]:
    """Return the processes, by the numbers that Kafka's clients know them by."""
    nodes = {f"{one.host}:{one.port}": one.node_id for one in metadata(supervisor.kafka).brokers}
    (line,) = BrokerHttp(str(supervisor.http)).lines("/admin/v2/cluster", {})
    pids = children_of(supervisor)
    return {nodes[broker["kafka"]]: pids[broker["broker"]] for broker in json.loads(line)["brokers"]}
