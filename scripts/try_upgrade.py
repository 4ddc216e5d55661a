"""Start this checkout's broker on data of an earlier commit, write with it, and go back: what is kept, what is refused.

    python scripts/try_upgrade.py COMMIT...

Both sides run from their wheels, as users have them. The earlier one writes to a scalable topic, which it splits, and
to a regular topic of which a subscription has read a part. If it has Kafka's port, it also commits a transaction there
and aborts one. Then this checkout reads all of it, writes the same again, and reads that. At last the earlier one is
started on the result. All of this happens twice: brokers are stopped with SIGTERM, and killed.

The script prints one line for each of these, and the sentence of a refusal. It exits with 1 if this checkout lacks a
message, or shows one twice. A refusal is an answer, and no failure.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pulsar
from confluent_kafka import Consumer, Producer, TopicPartition

ROOT: Final = Path(__file__).resolve().parent.parent
SECONDS_MAX: Final = 60.0
SCALABLE: Final = "topic://public/default/scalable"
REGULAR: Final = "persistent://public/default/regular"
KAFKA: Final = "kafka"
SUBSCRIPTION: Final = "half-read"
IDLE_SECONDS: Final = 2
READY: Final = re.compile(r"ready pulsar=(?P<pulsar>\S+) http=(?P<http>\S+)(?: kafka=(?P<kafka>\S+))?")


class Refused(Exception):
    """A broker did not start; the text is its last line."""


@dataclass(frozen=True)
class Release:
    """An unpacked wheel."""

    name: str
    site: Path

    def command(self, *words: str) -> list[str]:
        """A command line of this release."""
        return [sys.executable, "-m", "tidewire.cli", *words]

    def environment(self, **more: str) -> dict[str, str]:
        """No module may come from the current folder."""
        return os.environ | {"PYTHONPATH": str(self.site), "PYTHONSAFEPATH": "1"} | more

    def flags(self) -> list[str]:
        """Free ports for every listener that it has."""
        shown = subprocess.run(
            self.command("broker", "--help"), env=self.environment(), capture_output=True, text=True, check=True
        ).stdout
        return [word for name in ("--pulsar", "--http", "--kafka") if name in shown for word in (name, "127.0.0.1:0")]


@dataclass
class Broker:
    """A running broker of a release, and its addresses."""

    release: Release
    process: subprocess.Popen[str]
    pulsar: str
    http: str
    kafka: str | None

    def run(self, *words: str) -> list[str]:
        """Run a command of the same release. Return its lines."""
        environment = self.release.environment(
            TIDEWIRE_SERVICE_URL=f"pulsar://{self.pulsar}", TIDEWIRE_HTTP_URL=f"http://{self.http}"
        )
        return subprocess.run(
            self.release.command(*words),
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=True,
        ).stdout.splitlines()


def build(commit: str | None, folder: Path) -> Release:
    """Build the wheel of a commit, or of the checkout as it is, and unpack it."""
    source = ROOT
    if commit is not None:
        source = folder / "source"
        source.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "x", "-C", str(source)], input=archive, check=True)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")],
        cwd=source,
        capture_output=True,
        check=True,
    )
    (wheel,) = (folder / "dist").iterdir()
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return Release(commit or "this checkout", folder / "site")


@contextmanager
def running(release: Release, data: Path, stop: signal.Signals) -> Iterator[Broker]:
    """Run a broker, and end it with this signal.

    Raises:
        Refused: it did not start.
    """
    log = data.with_suffix(".log")
    with log.open("w") as errors:
        process = subprocess.Popen(
            release.command("broker", "--data-dir", str(data), *release.flags()),
            env=release.environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    # A broker that ends without becoming ready closes the pipe.
    ready = READY.search(process.stdout.readline())
    if ready is None:
        process.wait(SECONDS_MAX)
        raise Refused(log.read_text("utf-8").strip().splitlines()[-1])
    try:
        yield Broker(release, process, **ready.groupdict())
    finally:
        process.send_signal(stop)
        process.wait(SECONDS_MAX)
        process.stdout.close()


def write(broker: Broker, name: str, *, is_first: bool) -> Counter[str]:
    """Write messages that begin with `name`. Return those that readers have to get."""
    sent = [f"{name} scalable {number}" for number in range(5)]
    if is_first:
        broker.run("topics", "create", SCALABLE, "--segments", "2")
    broker.run("produce", SCALABLE, *sent)
    if is_first:
        broker.run("topics", "split", SCALABLE, "0")
        sent.append(f"{name} scalable, behind a split")
        broker.run("produce", SCALABLE, sent[-1])
    client = pulsar.Client(f"pulsar://{broker.pulsar}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(REGULAR, SUBSCRIPTION, initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(REGULAR)
    for number in range(4):
        sent.append(f"{name} regular {number}")
        producer.send(sent[-1].encode())
    for _ in range(2):
        consumer.acknowledge(consumer.receive(round(SECONDS_MAX * 1000)))
    client.close()
    if broker.kafka is not None:
        with_transactions = Producer({"bootstrap.servers": broker.kafka, "transactional.id": "try-upgrade"})
        with_transactions.init_transactions(SECONDS_MAX)
        for is_committed in (True, False):
            with_transactions.begin_transaction()
            text = f"{name} kafka {'committed' if is_committed else 'aborted'}"
            with_transactions.produce(KAFKA, text.encode())
            if is_committed:
                sent.append(text)
                with_transactions.commit_transaction(SECONDS_MAX)
            else:
                with_transactions.flush(SECONDS_MAX)
                with_transactions.abort_transaction(SECONDS_MAX)
    return Counter(sent)


def read(broker: Broker) -> Counter[str]:
    """Return every message that readers get."""
    found = broker.run("consume", SCALABLE, "--idle", str(IDLE_SECONDS))
    client = pulsar.Client(f"pulsar://{broker.pulsar}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(REGULAR, pulsar.MessageId.earliest)
    while reader.has_message_available():
        found.append(reader.read_next(round(SECONDS_MAX * 1000)).data().decode())
    client.close()
    if broker.kafka is not None:
        found += read_kafka(broker.kafka)
    return Counter(found)


def read_kafka(address: str) -> list[str]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none", "isolation.level": "read_committed"})
    parts = [
        TopicPartition(KAFKA, number, 0)
        for topic in consumer.list_topics(timeout=SECONDS_MAX).topics.values()
        if topic.topic == KAFKA
        for number in topic.partitions
    ]
    consumer.assign(parts)
    found = []
    while parts and (message := consumer.poll(IDLE_SECONDS)) is not None:
        assert message.error() is None, message.error()
        found.append((message.value() or b"").decode())
    consumer.close()
    return found


def left(broker: Broker) -> int:
    """How many messages of the regular topic the subscription has not acknowledged."""
    client = pulsar.Client(f"pulsar://{broker.pulsar}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(REGULAR, SUBSCRIPTION)
    found = 0
    try:
        while True:
            consumer.receive(IDLE_SECONDS * 1000)
            found += 1
    except pulsar.Timeout:
        client.close()
        return found


def attempt(earlier: Release, present: Release, data: Path, stop: signal.Signals) -> list[str]:
    """Play it once. Print what happens, and return what is wrong."""
    how = f"{earlier.name} {'killed' if stop is signal.SIGKILL else 'stopped'}"
    with running(earlier, data, stop) as broker:
        written = write(broker, "earlier", is_first=True)
    try:
        with running(present, data, stop) as broker:
            wrong = differences(f"{how}, after the upgrade", written, read(broker))
            if left(broker) != 2:
                wrong.append(f"{how}, after the upgrade: the subscription stands elsewhere")
            written += write(broker, "present", is_first=False)
            wrong += differences(f"{how}, after writing", written, read(broker))
    except Refused as refused:
        say(f"{how}: the upgrade is refused: {refused}")
        return []
    try:
        with running(earlier, data, stop) as broker:
            # Without Kafka's port, nobody can ask for Kafka's messages.
            asked = Counter({text: 1 for text in written if broker.kafka is not None or KAFKA not in text.split()})
            other = differences("going back", asked, read(broker))
            say(f"{how}: upgraded; the earlier one starts again, and reads {'; '.join(other) or 'all'}")
    except Refused as refused:
        say(f"{how}: upgraded; going back is refused: {refused}")
    return wrong


def differences(when: str, written: Counter[str], found: Counter[str]) -> list[str]:
    problems = [f"{when}: lost {text!r}" for text in written - found]
    return problems + [f"{when}: not expected, or twice: {text!r}" for text in found - written]


def say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description="Upgrade the data of earlier commits, and go back.")
    parser.add_argument("commits", nargs="+", metavar="COMMIT")
    options = parser.parse_args()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tidewire-upgrade-") as folder:
        base = Path(folder)
        present = build(None, base / "present")
        for number, commit in enumerate(options.commits):
            earlier = build(commit, base / str(number))
            for stop in (signal.SIGTERM, signal.SIGKILL):
                wrong += attempt(earlier, present, base / f"data-{number}-{stop.name}", stop)
    print("\n".join(wrong) if wrong else "well: every message is there once after each upgrade")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
