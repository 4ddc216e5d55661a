"""A real Apache Pulsar 5.0.0-M1 standalone broker, for comparison in interop programs and benchmarks.

    python scripts/need.py maven:org.apache.pulsar:pulsar-broker:5.0.0-M1 pulsar-java-client
    with running_pulsar(tmp_path / "pulsar") as pulsar:
        pulsar.service_url, pulsar.http_url, pulsar.pid

It runs with RocksDB metadata and one embedded bookie. Transactions are on, and all other settings are defaults. It
blocks.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from scripts.need import place
from scripts.reference_process import free_ports, stop

ARTIFACT: Final = "maven:org.apache.pulsar:pulsar-broker:5.0.0-M1"
"""Its name for scripts/need.py."""

START_SECONDS_MAX: Final = 120.0
ASK_AGAIN_SECONDS: Final = 0.5
"""How often its health check is asked, because only that reports that it is ready."""

_OPENED: Final = (
    *("java.nio", "sun.nio.ch", "jdk.internal.misc", "java.lang", "java.util.zip", "jdk.internal.platform"),
)

_CONFIGURATION: Final = """\
clusterName=standalone
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
brokerServicePort={pulsar}
webServicePort={http}
metadataStoreUrl=
configurationMetadataStoreUrl=
managedLedgerDefaultEnsembleSize=1
managedLedgerDefaultWriteQuorum=1
managedLedgerDefaultAckQuorum=1
transactionCoordinatorEnabled=true
loadBalancerEnabled=false
webSocketServiceEnabled=false
functionsWorkerEnabled=false
allowLoopback=true
listeningInterface=lo
advertisedAddressForBookie=127.0.0.1
useHostNameAsBookieID=false
httpServerEnabled=false
journalSyncData={fsync}
diskUsageThreshold=0.99
diskUsageWarnThreshold=0.98
nettyMaxFrameSizeBytes=5253120
statsProviderClass=org.apache.bookkeeper.stats.NullStatsProvider
"""

_LOGGING: Final = """\
<Configuration status="WARN">
  <Appenders><Console name="C" target="SYSTEM_OUT"><PatternLayout pattern="%d %-5p %c{1} %m%n"/></Console></Appenders>
  <Loggers><Root level="warn"><AppenderRef ref="C"/></Root></Loggers>
</Configuration>
"""


@dataclass(frozen=True, slots=True)
class RunningPulsar:
    """Its addresses."""

    service_url: str
    http_url: str
    pid: int


@contextmanager
def running_pulsar(folder: Path, *, fsync: bool = True) -> Iterator[RunningPulsar]:
    """Run Pulsar with its data in `folder`. `fsync`: whether its bookie syncs its journal, as it does by default.

    Raises:
        RuntimeError: it did not become ready; the message has the end of its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pulsar, http = free_ports(2)
    (folder / "standalone.conf").write_text(_CONFIGURATION.format(pulsar=pulsar, http=http, fsync=str(fsync).lower()))
    (folder / "log4j2.xml").write_text(_LOGGING)
    log = folder / "broker.log"
    # Its JSON library needs newer annotations than the broker has. Take those of the client.
    annotations = next((place("pulsar-java-client") / "lib").glob("jackson-annotations-*.jar"))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *("java", "-Xms256m", "-Xmx1200m", "-XX:MaxDirectMemorySize=1024m"),
                *(word for name in _OPENED for word in ("--add-opens", f"java.base/{name}=ALL-UNNAMED")),
                *("--add-opens", "java.management/sun.management=ALL-UNNAMED"),
                "-Dio.netty.tryReflectionSetAccessible=true",
                *(f"-Dlog4j2.configurationFile={folder / 'log4j2.xml'}", "-Dlog4j2.disableJmx=true"),
                *("-cp", f"{annotations}:{place(ARTIFACT)}/*", "org.apache.pulsar.PulsarStandaloneStarter"),
                *("--config", str(folder / "standalone.conf"), "--no-functions-worker", "--no-stream-storage"),
                *("--advertised-address", "127.0.0.1"),
            ],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        http_url = f"http://127.0.0.1:{http}"
        _wait_until_healthy(process, f"{http_url}/admin/v2/brokers/health", log)
        yield RunningPulsar(f"pulsar://127.0.0.1:{pulsar}", http_url, process.pid)
    finally:
        stop(process)


def _wait_until_healthy(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urlopen(url, timeout=5):  # noqa: S310 - of the process just started
                return
        except OSError:
            time.sleep(ASK_AGAIN_SECONDS)  # noqa: TID251 - see there
    raise RuntimeError(f"Pulsar ended, or was not ready in {START_SECONDS_MAX} s:\n{log.read_text()[-3_000:]}")
