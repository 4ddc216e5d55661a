"""A real Prometheus scrapes a broker: every rule can be evaluated, and every panel of the dashboard shows data.

`scripts/need.py debian:prometheus` installs it.
"""

import json
import math
import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import anyio
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from scripts.need import place
from tests.scripts.test_alerts import OPERATIONS, RULES, alerts
from tests.support.processes import RunningBroker, running_broker
from tidewire.client.client import connect

pytestmark = pytest.mark.interop

SECONDS_MAX: Final = 60.0
"""How long one step may take."""

DATA_SECONDS_MAX: Final = 300.0
"""How long all panels together may take to show data. It usually takes two scrapes."""

BUSY: Final = frozenset({"TidewireLoopStalls", "TidewireUnreachable"})
"""Alerts that fire rightly when this machine has too much to do: for a slow step, or for scrapes that take a second."""

WINDOW: Final = "10s"
"""What stands for Grafana's `$__rate_interval`. A scrape comes every second."""

LISTENING: Final = re.compile(r'msg="Listening on".* address=(\S+)')

TOPIC: Final = "topic://public/default/orders"

CONFIGURATION: Final = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: tidewire
    static_configs: [{{targets: ["{target}"]}}]
"""


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, path: str, **parameters: str) -> Any:
        """Ask its HTTP API."""
        with urlopen(f"{self._url}/api/v1/{path}?{urlencode(parameters)}") as answer:
            content = json.load(answer)
        assert content["status"] == "success", content
        return content["data"]

    def rules(self) -> list[dict[str, Any]]:
        """Return all rules, with how their last evaluation went."""
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def values(self, query: str) -> list[float]:
        """Return what a query gives now."""
        return [float(one["value"][1]) for one in self.get("query", query=query)["result"]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path / "data") as running:
        yield running


@pytest.fixture
def prometheus(broker: RunningBroker, tmp_path: Path) -> Iterator[Prometheus]:
    place("debian:prometheus")
    configuration = tmp_path / "prometheus.yml"
    rules = OPERATIONS / "alerts.yml"
    configuration.write_text(CONFIGURATION.format(rules=rules, target=broker.http), "utf-8")
    with started(configuration, tmp_path / "tsdb") as address:
        yield Prometheus(f"http://{address}")


@contextmanager
def started(configuration: Path, data: Path) -> Iterator[str]:
    """Run Prometheus; it is ready. Yield its address."""
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={configuration}",
            f"--storage.tsdb.path={data}",
            "--web.listen-address=127.0.0.1:0",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    stderr = process.stderr
    assert stderr is not None

    def read() -> None:
        # Reads to the end, so that Prometheus never blocks on a full pipe.
        for line in stderr:
            lines.put(line)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        said = []
        while "Server is ready to receive web requests" not in (line := lines.get(timeout=SECONDS_MAX)):
            said.append(line)
            assert process.poll() is None, "".join(said)
        (address,) = LISTENING.findall("".join(said))
        yield address
    finally:
        process.terminate()
        process.wait(SECONDS_MAX)
        reader.join()
        stderr.close()


@contextmanager
def traffic(broker: RunningBroker) -> Iterator[Callable[[], None]]:
    """Yield what sends and reads a little over both protocols, with transactions, and leaves some of it unread."""
    producer = Producer({"bootstrap.servers": str(broker.kafka), "transactional.id": "t", "linger.ms": 0})
    producer.init_transactions(SECONDS_MAX)
    made = Request(f"{broker.http_url}/admin/v2/scalable/public/default/orders", b"{}", method="PUT")
    with urlopen(made) as answer:
        assert answer.status == 204
    consumer = Consumer({"bootstrap.servers": str(broker.kafka), "group.id": "g", "auto.offset.reset": "earliest"})

    async def over_pulsar() -> None:
        async with (
            connect(broker.service_url) as client,
            client.queue_consumer(TOPIC, "s") as reader,
            client.producer(TOPIC) as writer,
        ):
            async with client.transaction() as txn:
                await writer.send(b"order", txn=txn)
            await writer.send(b"unread")
            await reader.acknowledge(await reader.receive())

    def run() -> None:
        anyio.run(over_pulsar)
        producer.begin_transaction()
        for _ in range(2):
            producer.produce("till", b"order")
        producer.commit_transaction(SECONDS_MAX)
        consumer.assign([TopicPartition("till", 0)])
        assert consumer.poll(SECONDS_MAX) is not None
        consumer.commit(offsets=[TopicPartition("till", 0, 1)], asynchronous=False)

    try:
        yield run
    finally:
        consumer.close()
        producer.close()


def queries() -> dict[str, str]:
    """Return the queries of the dashboard's panels, by title."""
    dashboard = json.loads((OPERATIONS / "dashboard.json").read_text("utf-8"))
    return {
        panel["title"]: target["expr"].replace("$__rate_interval", WINDOW)
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    }


def is_waiting(prometheus: Prometheus) -> bool:
    """Whether a rule was not evaluated yet."""
    return any(rule["health"] == "unknown" for rule in prometheus.rules())


def test_every_panel_shows_data_and_every_rule_can_be_evaluated(broker: RunningBroker, prometheus: Prometheus) -> None:
    """A panel that shows only NaN shows nothing."""
    missing = queries()
    assert len(missing) > 20
    deadline = time.monotonic() + DATA_SECONDS_MAX
    with traffic(broker) as run:
        while (missing or is_waiting(prometheus)) and time.monotonic() < deadline:
            # New messages come for each try, so nothing has to sleep.
            run()
            missing = {
                title: query
                for title, query in missing.items()
                if all(math.isnan(value) for value in prometheus.values(query))
            }
    assert missing == {}
    rules = prometheus.rules()
    assert [rule["name"] for rule in rules] == alerts()
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}
    assert {rule["name"] for rule in rules if rule["state"] == "firing"} <= BUSY
    assert prometheus.values('max_over_time(up{job="tidewire"}[1h])') == [1]


def test_the_rules_pass_promtool() -> None:
    place("debian:prometheus")
    for command in (["check", "rules", str(OPERATIONS / "alerts.yml")], ["test", "rules", str(RULES)]):
        ended = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
