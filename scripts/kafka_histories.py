"""Let Kafka's clients append to lists in transactions, kill them and the broker, and judge the history.

    python scripts/kafka_histories.py [--seed N] [--seeds 1] [--verbose]

A list is a partition. Clients of transaction version 1 (confluent-kafka, aiokafka) and of version 2 append unique
integers to several lists in a transaction, read lists meanwhile, and abort some transactions. Each is a process that
notes its steps. It is killed at any moment, and its heir goes on with the same transactional id. The broker is killed,
too. At the end, all transactions have ended, and a new reader gets every list, once with the aborted records.
tests/support/list_append/judge.py compares that with what clients were told and have read, and names each anomaly.

The script prints one line for each seed, with the phenomena that a log may show, and one for all. It exits with 1 if a
promise was broken, and names the data folder.
"""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, TypeVar

import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.seeded_runs import play
from tests.support.dying_broker import DyingBroker, dying_broker
from tests.support.history import COMPLAINTS_MAX, Fate
from tests.support.kafka_clients.contract import ConsumerOptions, Place
from tests.support.kafka_clients.every import AIOKAFKA, CONFLUENT, opened
from tests.support.kafka_clients.reading import read_all
from tests.support.list_append.clients import TOPIC, VERSION_2
from tests.support.list_append.history import Entry, History, Logs, transactions_in
from tests.support.list_append.judge import ALLOWED, Found, broken, judge
from tests.support.list_append.program import Orders

CLIENTS: Final = (CONFLUENT, AIOKAFKA, VERSION_2)
LISTS: Final = 3
LIVES: Final = 3
"""Of each client. All but the last end by a kill."""
LIFE_SECONDS: Final = (4.0, 9.0)
"""The shortest and the longest life that ends by a kill. A client's life begins when its program is loaded."""
BROKER_LIVES: Final = 2
END_SECONDS_MAX: Final = 240.0
"""From SIGTERM to the end. A client of the last life ends behind its transaction."""
VALUES_A_LIFE: Final = 100_000
_One = TypeVar("_One")


@dataclass
class Report:
    """The result of one seed, or the sum of several."""

    seed: int
    seeds: int = 1
    fates: Counter[Fate] = field(default_factory=Counter)
    readings: int = 0
    allowed: Counter[str] = field(default_factory=Counter)
    """Phenomena that break no promise."""
    complaints: list[str] = field(default_factory=list)

    def add(self, other: "Report") -> None:
        """Add what another seed found."""
        self.seeds += other.seeds
        self.fates.update(other.fates)
        self.readings += other.readings
        self.allowed.update(other.allowed)
        self.complaints += other.complaints

    def __str__(self) -> str:
        who = f"seed {self.seed}" if self.seeds == 1 else f"{self.seeds} seeds"
        fates = ", ".join(f"{self.fates[fate]} {fate.value}" for fate in Fate)
        allowed = ", ".join(f"{count} {what}" for what, count in sorted(self.allowed.items())) or "nothing"
        return (
            f"{who}: {self.fates.total()} transactions ({fates}), {self.readings} readings; "
            f"allowed and seen: {allowed}: " + (f"{len(self.complaints)} COMPLAINTS" if self.complaints else "OK")
        )


async def run(*, seed: int, folder: Path, verbose: bool = False) -> Report:
    """Run a seed on data in `folder`, which must be empty. Complaints are in the report.

    Raises:
        BrokerFailure: the broker did not start or ended by itself.
    """
    return await _Histories(seed, folder, verbose=verbose).run()


class _Histories:
    def __init__(self, seed: int, folder: Path, *, verbose: bool) -> None:
        self._report = Report(seed)
        self._folder = folder
        self._verbose = verbose
        self._address = ""
        self._running: list[subprocess.Popen[bytes]] = []

    async def run(self) -> Report:
        with dying_broker(self._folder / "data") as broker:
            await _in_thread(broker.start)
            self._address = str(broker.kafka)
            try:
                with opened(CONFLUENT) as client:
                    await _in_thread(partial(client.admin(self._address).create, TOPIC, LISTS))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._kill_broker, broker)
                    for number, client_name in enumerate(CLIENTS):
                        nursery.start_soon(self._live, number, client_name)
            finally:
                for process in self._running:
                    process.kill()
            await _in_thread(partial(self._judge))
            await _in_thread(broker.stop)
        return self._report

    async def _kill_broker(self, broker: DyingBroker) -> None:
        random = self._random("broker")
        for _ in range(BROKER_LIVES):
            await trio.sleep(random.uniform(*LIFE_SECONDS))
            await _in_thread(broker.kill)
            await trio.sleep(random.uniform(0, 0.3))
            await _in_thread(broker.start)

    async def _live(self, number: int, client: str) -> None:
        random = self._random(client)
        for life in range(LIVES):
            orders = Orders(
                client=client,
                address=self._address,
                transactional_id=client,
                lists=LISTS,
                first_value=(number * LIVES + life) * VALUES_A_LIFE,
                seed=f"{self._report.seed}/{client}/{life}",
                events=str(self._folder / f"{client}.events"),
            )
            process = await _in_thread(partial(self._start, orders))
            with trio.move_on_after(random.uniform(*LIFE_SECONDS)):
                status = await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
                self._report.complaints.append(f"{client} ended with status {status}; see {client}.stderr")
                return
            if life < LIVES - 1:
                if self._verbose:
                    print(f"{client} is killed", flush=True)
                process.kill()
                await _in_thread(process.wait)
        await self._end(process, client)

    def _start(self, orders: Orders) -> subprocess.Popen[bytes]:
        """Start a client, and wait until it is ready. From then on it knows SIGTERM."""
        with (self._folder / f"{orders.client}.stderr").open("ab") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.list_append.program", orders.dumps()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        self._running.append(process)
        assert process.stdout is not None
        with process.stdout as stdout:
            # Nothing comes if it ends. Its status then tells of it.
            stdout.readline()
        return process

    async def _end(self, process: subprocess.Popen[bytes], client: str) -> None:
        """Let the last life end by itself, behind its transaction."""
        process.send_signal(signal.SIGTERM)
        status = None
        with trio.move_on_after(END_SECONDS_MAX):
            status = await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
        if status != 0:
            what = "does not end" if status is None else f"ended with status {status}"
            self._report.complaints.append(f"{client} {what}; see {client}.stderr")
            process.kill()

    def _judge(self) -> None:
        history = History()
        for client in CLIENTS:
            lines = (self._folder / f"{client}.events").read_text(encoding="utf-8").splitlines(keepends=True)
            events = [json.loads(line) for line in lines if line.endswith("\n")]
            history.transactions += transactions_in(client, events)
        committed, everything = (self._logs(read_committed=only) for only in (True, False))
        found = judge(history, committed, everything)
        report = self._report
        report.fates.update(transaction.fate for transaction in history.transactions)
        report.readings = len(history.readings)
        report.allowed.update(_counts(found))
        report.complaints += broken(found)[:COMPLAINTS_MAX]

    def _logs(self, *, read_committed: bool) -> Logs:
        with opened(CONFLUENT) as client:
            consumer = client.consumer(self._address, ConsumerOptions(read_committed=read_committed))
            logs = {}
            for of_list in range(LISTS):
                got = read_all(consumer, Place(TOPIC, of_list))
                logs[of_list] = [Entry(one.offset, int(one.value or b"")) for one in got]
            return logs

    def _random(self, what: str) -> Random:
        return Random(f"{self._report.seed}/{what}")  # noqa: S311 - to be repeated by its seed


def _counts(found: Found) -> Counter[str]:
    return Counter({anomaly.name: len(words) for anomaly, words in found.items() if anomaly in ALLOWED})


async def _in_thread(call: Callable[[], _One]) -> _One:
    return await trio.to_thread.run_sync(call)


def main() -> int:
    return play(run, script="kafka_histories", description=__doc__, verbose="print each death of a client")


if __name__ == "__main__":
    sys.exit(main())
