"""A real Apache Kafka 4.3.0, one node that is broker and controller, for comparison in benchmarks.

    python scripts/need.py maven:org.apache.kafka:kafka_2.13:4.3.0
    with running_kafka(tmp_path / "kafka") as kafka:
        kafka.bootstrap_servers, kafka.pid

All settings are defaults, except the ports, the folder, one replica for internal topics, and the number of partitions
of automatically created topics. It blocks.
"""

import base64
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.need import place
from scripts.reference_process import free_ports, stop

ARTIFACT: Final = "maven:org.apache.kafka:kafka_2.13:4.3.0"
"""Its name for scripts/need.py."""

START_SECONDS_MAX: Final = 60.0
ASK_AGAIN_SECONDS: Final = 0.2
"""How often its port is tried, because it reports that it is ready only in its log."""

_CONFIGURATION: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/logs
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


@dataclass(frozen=True, slots=True)
class RunningKafka:
    """Its addresses."""

    bootstrap_servers: str
    pid: int


@contextmanager
def running_kafka(folder: Path, *, partitions: int = 1) -> Iterator[RunningKafka]:
    """Run Kafka with its data in `folder`. Automatically created topics have `partitions` partitions.

    Raises:
        RuntimeError: it did not become ready; the message has the end of its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    broker, controller = free_ports(2)
    settings = folder / "server.properties"
    settings.write_text(
        _CONFIGURATION.format(broker=broker, controller=controller, folder=folder, partitions=partitions)
    )
    java = ["java", "-Xms512m", "-Xmx1g", "-cp", f"{place(ARTIFACT)}/*"]
    log = folder / "kafka.log"
    with log.open("wb") as output:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config", str(settings)],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        process = subprocess.Popen(
            [*java, "kafka.Kafka", str(settings)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_until_it_listens(process, broker, log)
        yield RunningKafka(f"127.0.0.1:{broker}", process.pid)
    finally:
        stop(process)


def _wait_until_it_listens(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                return
        except OSError:
            time.sleep(ASK_AGAIN_SECONDS)  # noqa: TID251 - see there
    raise RuntimeError(f"Kafka ended, or was not ready in {START_SECONDS_MAX} s:\n{log.read_text()[-3_000:]}")
