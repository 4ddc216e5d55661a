"""A real Apache Kafka 4.3.0, one node that is broker and controller, for comparison in benchmarks.

    python scripts/need.py maven:org.apache.kafka:kafka_2.13:4.3.0
    with running_kafka(tmp_path / "kafka") as kafka:
        kafka.bootstrap_servers, kafka.pid
        kafka.restart()               # kill -9, then the same data and addresses

All settings are defaults, except the ports, the folder, one replica for internal topics, the number of partitions of
automatically created topics, and what the caller adds. It blocks.
"""

import base64
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from scripts.need import place
from scripts.reference_process import free_ports, stop

ARTIFACT: Final = "maven:org.apache.kafka:kafka_2.13:4.3.0"
"""Its name for scripts/need.py."""

START_SECONDS_MAX: Final = 60.0
ASK_AGAIN_SECONDS: Final = 0.05
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


class RunningKafka:
    """A running broker; made by `running_kafka`."""

    def __init__(self, port: int, command: Sequence[str], folder: Path) -> None:
        self.bootstrap_servers = f"127.0.0.1:{port}"
        self._port = port
        self._command = command
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The running process."""
        assert self._process is not None, "it was never started"
        return self._process

    @property
    def pid(self) -> int:
        """The running process's id; `restart` changes it."""
        return self.process.pid

    def start(self) -> None:
        """Start it, and wait until it listens.

        Raises:
            RuntimeError: it did not become ready; the message has the end of its log.
        """
        log = self._folder / "kafka.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        _wait_until_it_listens(self._process, self._port, log)

    def restart(self) -> None:
        """Kill it as a crash would (kill -9), and start it again. Raises as `start` does."""
        self.process.kill()
        self.process.wait()
        self.start()


@contextmanager
def running_kafka(folder: Path, *, partitions: int = 1, settings: Mapping[str, str] = {}) -> Iterator[RunningKafka]:
    """Run Kafka with its data in `folder`. Automatically created topics have `partitions` partitions.

    Args:
        folder: its own; it is made.
        partitions: num.partitions.
        settings: further lines of its server.properties.

    Raises:
        RuntimeError: it did not become ready; the message has the end of its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    broker, controller = free_ports(2)
    properties = folder / "server.properties"
    properties.write_text(
        _CONFIGURATION.format(broker=broker, controller=controller, folder=folder, partitions=partitions)
        + "".join(f"{name}={value}\n" for name, value in settings.items())
    )
    java = ["java", "-Xms512m", "-Xmx1g", "-cp", f"{place(ARTIFACT)}/*"]
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    with (folder / "kafka.log").open("wb") as output:
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config", str(properties)],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    kafka = RunningKafka(broker, [*java, "kafka.Kafka", str(properties)], folder)
    try:
        kafka.start()
        yield kafka
    finally:
        stop(kafka.process)


def _wait_until_it_listens(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                return
        except OSError:
            time.sleep(ASK_AGAIN_SECONDS)  # noqa: TID251 - see there
    raise RuntimeError(f"Kafka ended, or was not ready in {START_SECONDS_MAX} s:\n{log.read_text()[-3_000:]}")
