"""Several broker processes as Kafka's clients see them: who leads, who coordinates, and what happens to them.

    with running_kafka_cluster(folder, *EMBEDDED) as cluster:
        cluster.bootstrap                         # all addresses
        victim = cluster.leader(Place("orders"))
        cluster.kill(victim)                      # kill -9
        cluster.heal()                            # all run again, and take topics

Everything blocks, since Kafka's clients block too. Questions go over the wire and over HTTP, like those of users.
"""

import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import trio

from broker.addresses import Address
from tests.support.kafka_clients.contract import Place
from tests.support.kafka_connection import KafkaClient
from tests.support.processes import BROKER_COMMAND, RunningBroker
from tidewire.cli.broker_http import BrokerHttp
from tidewire.wire.kafka.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from tidewire.wire.kafka.messages.metadata import (
    MetadataPartition,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

BROKERS: Final = ("one", "two", "three")
ASK_SECONDS_MAX: Final = 60.0
"""How long one question may take. On a busy machine an answer takes long."""
GROUP: Final = 0
TRANSACTION: Final = 1
"""The types of what has a coordinator."""

Response = TypeVar("Response")


class Named(NamedTuple):
    """Who leads a partition."""

    node: int
    epoch: int


@asynccontextmanager
async def connected(broker: RunningBroker) -> AsyncIterator[KafkaClient]:
    """Connect to a broker, for the length of the block."""
    async with await trio.open_tcp_stream(*broker.kafka) as stream:
        yield KafkaClient(stream)


def asked(address: Address, request: object, response: type[Response], version: int) -> Response:
    """Ask a broker one question, on a connection of its own."""

    async def ask() -> Response:
        with trio.fail_after(ASK_SECONDS_MAX):
            async with await trio.open_tcp_stream(*address) as stream:
                return await KafkaClient(stream).ask(request, response, version)

    return trio.run(ask)


def metadata(address: Address, *topics: str) -> MetadataResponse:
    """Ask a broker for the nodes, and for the leaders of these topics."""
    wanted = tuple(MetadataRequestTopic(name=topic) for topic in topics)
    return asked(address, MetadataRequest(wanted, allow_auto_topic_creation=False), MetadataResponse, 12)


def partition_in(found: MetadataResponse, place: Place) -> MetadataPartition:
    """Return what Metadata says of a partition."""
    (topic,) = (topic for topic in found.topics if topic.name == place.topic)
    (partition,) = (one for one in topic.partitions if one.partition_index == place.partition)
    return partition


def coordinator_of(address: Address, key: str, kind: int) -> tuple[int, Address]:
    """Ask a broker for the coordinator of a group or a transactional id. Return its number and its address."""
    request = FindCoordinatorRequest(key_type=kind, coordinator_keys=(key,))
    (found,) = asked(address, request, FindCoordinatorResponse, 4).coordinators
    assert found.error_code == 0, found
    return found.node_id, Address(found.host, found.port)


def order(http: Address, method: str, path: str, content: object = None) -> None:
    """Let a broker do what `tidewire cluster` asks for."""
    list(BrokerHttp(str(http)).lines(f"/admin/v2/cluster{path}", {}, method=method, content=content))


def move(http: Address, place: Place, to: str) -> None:
    """Hand a partition that was used over to another broker. On return its owner has released it."""
    name = f"persistent://public/default/{place.topic}-partition-{place.partition}"
    order(http, "POST", "/move", {"topic": name, "to": to})


class KafkaCluster:
    """See the module's docstring; made by `running_kafka_cluster`."""

    def __init__(self, brokers: Mapping[str, RunningBroker]) -> None:
        """Set up; nothing runs yet."""
        self.brokers = brokers
        self._drained: set[str] = set()

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for a client's settings."""
        return ",".join(str(broker.kafka) for broker in self.brokers.values())

    @property
    def any(self) -> RunningBroker:
        """A broker that runs."""
        return next(broker for broker in self.brokers.values() if broker.is_running)

    def leader(self, place: Place) -> str:
        """Return the broker that leads a partition."""
        return self._at(self._node(partition_in(metadata(self.any.kafka, place.topic), place).leader_id))

    def named(self, broker: str, place: Place) -> Named:
        """Return who leads a partition, as this broker says."""
        found = partition_in(metadata(self.brokers[broker].kafka, place.topic), place)
        return Named(found.leader_id, found.leader_epoch)

    def coordinator(self, key: str, kind: int) -> str:
        """Return the broker that coordinates a group or a transactional id."""
        return self._at(coordinator_of(self.any.kafka, key, kind)[1])

    def node(self, broker: str) -> int:
        """Return the number of a broker."""
        nodes = metadata(self.any.kafka).brokers
        return next(one.node_id for one in nodes if (one.host, one.port) == self.brokers[broker].kafka)

    def _node(self, number: int) -> Address:
        nodes = metadata(self.any.kafka).brokers
        return next(Address(one.host, one.port) for one in nodes if one.node_id == number)

    def _at(self, address: Address) -> str:
        return next(name for name, broker in self.brokers.items() if broker.kafka == address)

    def others(self, *brokers: str) -> Sequence[str]:
        """Return the other brokers."""
        return [name for name in self.brokers if name not in brokers]

    @property
    def metadata_controller(self) -> str | None:
        """The broker that decides for the metadata; None on etcd."""
        (line,) = BrokerHttp(str(self.any.http)).lines("/admin/v2/cluster", {})
        found: str | None = json.loads(line)["metadataController"]
        return found

    def kill(self, name: str) -> None:
        """Kill a broker (kill -9)."""
        self.brokers[name].kill()

    def freeze(self, name: str) -> None:
        """Let a broker stand still (SIGSTOP) until it is killed. Nobody may ask it meanwhile."""
        self.brokers[name].process.send_signal(signal.SIGSTOP)

    def drain(self, name: str) -> None:
        """Let a broker hand over everything. On return it has."""
        self._drained.add(name)
        order(self.any.http, "POST", f"/brokers/{name}/drain")

    def move(self, place: Place, to: str) -> None:
        """Hand a partition over. On return its owner has released it."""
        move(self.any.http, place, to)

    def heal(self) -> None:
        """Start the brokers that do not run, and let all of them take topics."""
        dead = [broker for broker in self.brokers.values() if not broker.is_running]
        if dead:
            with ThreadPoolExecutor(len(dead)) as threads:
                list(threads.map(RunningBroker.start, dead))
        for name in self._drained:
            order(self.any.http, "DELETE", f"/brokers/{name}/drain")
        self._drained.clear()


@contextmanager
def running_kafka_cluster(folder: Path, *flags: str, settings: str = "") -> Iterator[KafkaCluster]:
    """Run brokers on `folder`, which belongs to them. All are ready. The cluster has the folder's name.

    Raises:
        BrokerFailure: a broker did not start, or did not end cleanly at the end of the block.
    """
    config = folder / "broker.toml"
    config.write_text(f'cluster = "{folder.name}"\n{settings}')
    brokers = {
        name: RunningBroker(
            folder / "data",
            (*flags, "--config", str(config), "--broker-id", name),
            BROKER_COMMAND,
            folder / f"{name}.stderr",
        )
        for name in BROKERS
    }
    cluster = KafkaCluster(brokers)
    try:
        cluster.heal()
        yield cluster
        for broker in brokers.values():
            if broker.is_running:
                broker.stop()
    except BaseException:
        for name, broker in brokers.items():
            print(f"standard error of {name}:\n{broker.stderr}", file=sys.stderr)
        raise
    finally:
        for broker in brokers.values():
            broker.close()
