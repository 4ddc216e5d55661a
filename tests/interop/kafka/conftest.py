"""Brokers and clients for the scenarios with Kafka's clients.

`--kafka-broker kafka` plays them against a real Apache Kafka 4.3.0 (scripts/reference_kafka.py). Tests that kill a
broker, or that speak Pulsar too, need a Tidewire process and are left out there.
"""

import gc
import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from scripts.reference_kafka import running_kafka
from tests.interop.kafka.kafka_differences import DIFFERENCES
from tests.interop.kafka.patience import patient
from tests.support.kafka_clients.contract import (
    Admin,
    Client,
    Consumer,
    ConsumerOptions,
    Inspector,
    Producer,
    ProducerOptions,
)
from tests.support.kafka_clients.every import AIOKAFKA, CONFLUENT, NAMES, opened
from tests.support.kafka_cluster import KafkaCluster, running_kafka_cluster
from tests.support.kafka_spark.session import running_spark
from tests.support.left_out import leave_out
from tests.support.processes import RunningBroker, running_broker
from tests.support.real_cluster import EMBEDDED
from tests.support.spark_process import RunningSpark

HERE: Final = Path(__file__).parent
OURS: Final = frozenset({"tidewire", "killed_often", "fresh", "cluster", "processes"})
"""The fixtures that are Tidewire processes."""
OF_SEVERAL_BROKERS: Final = {
    "test_cluster.py": "java-4.3",
    "test_processes.py": "java-4.3",
    "test_scalable_owners.py": AIOKAFKA,
}
"""Beside confluent-kafka, the client that `make interop` lets play these on the embedded metadata store."""
PROCESSES: Final = 3
SESSION: Final = "session_timeout_seconds = 120\n"
"""No broker of a busy machine loses it, nor one that stands still for a moment. A free lock proves a death at once."""
EXPECTED_WARNINGS: Final = (
    "ignore:(read|open)_text is deprecated:DeprecationWarning",
    "ignore:unclosed <socket:ResourceWarning",
)
"""What kafka-python warns of when it is imported, and when it could not connect to a broker that is away."""

_numbers = itertools.count(1)


class Station:
    """A client at a broker's address."""

    def __init__(self, client: Client, address: str, *, is_patient: bool = False) -> None:
        """Set up. With a patient station, topics can be used at once when they are created, whichever broker it is."""
        self.client = client
        self.address = address
        self._is_patient = is_patient

    def producer(self, options: ProducerOptions = ProducerOptions()) -> Producer:  # noqa: B008 - it is frozen
        """Make a producer."""
        return self.client.producer(self.address, options)

    def consumer(self, options: ConsumerOptions = ConsumerOptions()) -> Consumer:  # noqa: B008 - it is frozen
        """Make a consumer."""
        return self.client.consumer(self.address, options)

    def admin(self) -> Admin:
        """Make an administrator."""
        admin = self.client.admin(self.address)
        return patient(admin, self.address) if self._is_patient else admin

    def inspector(self) -> Inspector:
        """Make an inspector."""
        return self.client.inspector(self.address)


@pytest.fixture(scope="session")
def tidewire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Run one Tidewire broker for all scenarios."""
    with running_broker(tmp_path_factory.mktemp("tidewire") / "data") as broker:
        yield broker


@pytest.fixture(scope="session")
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of the broker in `--kafka-broker`."""
    if request.config.getoption("kafka_broker") == "kafka":
        with running_kafka(tmp_path_factory.mktemp("kafka") / "data") as kafka:
            yield kafka.bootstrap_servers
    else:
        yield str(request.getfixturevalue("tidewire").kafka)


@pytest.fixture(scope="session")
def killed_often(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Run one Tidewire broker for all tests that kill it. It keeps its data."""
    with running_broker(tmp_path_factory.mktemp("mortal") / "data") as broker:
        yield broker


@pytest.fixture
def mortal(killed_often: RunningBroker) -> RunningBroker:
    """Return a running Tidewire broker that the test may kill."""
    if not killed_often.is_running:
        killed_often.start()
    return killed_often


@pytest.fixture(scope="session", params=["embedded", "etcd"])
def long_lived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Run one cluster for all tests that need one, on each metadata store."""
    place = EMBEDDED
    if request.param == "etcd":
        place = ("--metadata", f"etcd://{request.getfixturevalue('etcd_server').endpoint}")
    with running_kafka_cluster(tmp_path_factory.mktemp("cluster"), *place, settings=SESSION) as cluster:
        yield cluster


@pytest.fixture
def cluster(long_lived: KafkaCluster) -> KafkaCluster:
    """Return a cluster whose brokers all run, and which the test may kill."""
    long_lived.heal()
    return long_lived


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Run several brokers behind one command, for all tests that need them."""
    with running_broker(tmp_path_factory.mktemp("processes") / "data", "--processes", str(PROCESSES)) as supervisor:
        yield supervisor


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSpark]:
    """Run Spark for all tests that need it."""
    with running_spark(tmp_path_factory.mktemp("spark")) as spark:
        assert spark.version == "4.0.5"
        yield spark


@pytest.fixture(params=NAMES)
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    """Open each client in turn. `parametrize("client", ..., indirect=True)` names those that can do what is asked."""
    with opened(request.param) as client:
        yield client
    # Clients leave sockets behind of attempts to connect to a broker that is away.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def station(client: Client, address: str, pytestconfig: pytest.Config) -> Station:
    """Return the client at the shared broker."""
    return Station(client, address, is_patient=pytestconfig.getoption("kafka_broker") == "kafka")


@pytest.fixture
def doomed(mortal: RunningBroker, client: Client) -> Station:
    """Return the client at the broker that the test may kill. It closes before the broker stops."""
    return Station(client, str(mortal.kafka))


@pytest.fixture
def name() -> str:
    """Return a name that no other test uses, for a topic, a group or a transactional id."""
    return f"story-{next(_numbers)}"


@pytest.fixture
def topic(station: Station, name: str) -> str:
    """Create a topic with one partition at the shared broker."""
    station.admin().create(name)
    return name


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave most clients' stories of killed brokers to `make thorough-clients`. Each takes ten seconds."""
    if not isinstance(item, pytest.Function) or item.path.name not in OF_SEVERAL_BROKERS:
        return
    choice = item.callspec.params if hasattr(item, "callspec") else {}
    usual = {None, CONFLUENT}
    if choice.get("long_lived") != "etcd":
        usual.add(OF_SEVERAL_BROKERS[item.path.name])
    if choice.get("client") not in usual:
        item.add_marker(pytest.mark.thorough)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bear the clients' own warnings. At a real Kafka, bear its differences, and leave out what needs our process."""
    suite = [item for item in items if isinstance(item, pytest.Function) and HERE in item.path.parents]
    for item in suite:
        item.add_marker(pytest.mark.filterwarnings(*EXPECTED_WARNINGS))
    if config.getoption("kafka_broker") != "kafka":
        return
    for item in suite:
        if cause := DIFFERENCES.get(item.originalname):
            item.add_marker(pytest.mark.xfail(strict=False, reason=cause))
    left_out = [item for item in suite if "address" not in item.fixturenames or OURS & set(item.fixturenames)]
    leave_out(config, items, left_out, "not played against Kafka: they run or kill a process of ours, or speak Pulsar")
