"""Kill Kafka's clients and the broker (kill -9) while the clients copy records in transactions, each exactly once.

    python scripts/kafka_kills.py [--seed N] [--seeds 1] [--verbose]

A feed writes transactions to all partitions of a topic, and aborts some. Two groups of copiers read what is committed.
Each copier is a process. They write a copy of each record to another topic, with their offsets in the same transaction:

- confluent-kafka by KIP-447: the group refuses the offsets of a member of an older generation;
- aiokafka with a transactional id for each partition, because it does not tell the group its generation.

Copiers die in chosen steps of that protocol, or stop there and go on when they have an heir. They come back, as static
members or not, so the groups rebalance. They abort some transactions by themselves. The broker dies too, from outside
or at a disk write, and starts again on its data. At the end nobody dies any more until all is copied. Then the broker
is killed once more, and a new client reads everything:

- the topic has the committed transactions, whole, in each key's order, and nothing of the aborted ones;
- each record of it has exactly one copy in each target, in each key's order, and no aborted copy is shown;
- a client that has read along from the beginning has seen the same, in the same order;
- each group's offsets are behind the last record;
- no call of any client took longer than STEP_SECONDS_MAX, and no client ended without a reason.

The seed decides what dies where. The exact timing depends on the machine, so a seed that failed may need a few runs to
fail again. The script prints one line for each seed, and one for all. It exits with 1 if a promise was broken, and
names the data folder.
"""

import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, TypeVar

import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.seeded_runs import play
from tests.support.dying_broker import DyingBroker, dying_broker
from tests.support.history import Fate, Place
from tests.support.kafka_clients.confluent import ConfluentAdmin
from tests.support.kafka_copiers.copying import copies_in
from tests.support.kafka_copiers.feeding import Feed
from tests.support.kafka_copiers.following import Follower
from tests.support.kafka_copiers.judging import read_and_judge
from tests.support.kafka_copiers.moments import BrokerDeath, broker_death, copier_death
from tests.support.kafka_copiers.orders import Orders
from tests.support.kafka_copiers.process import CopierProcess
from tests.support.kafka_copiers.program import FENCED, REPLACED
from tests.support.kafka_copiers.report import Report
from tests.support.kafka_copiers.steps import Death

SOURCE: Final = "inputs"
PARTITIONS: Final = 4
CLIENTS: Final = ("confluent", "aiokafka")
"""Each has a group and a target of its own."""
COPIERS_EACH: Final = 2
STRATEGIES: Final = {
    "confluent": ("range", "roundrobin", "cooperative-sticky"),
    "aiokafka": ("range", "roundrobin"),
}
BROKER_DEATHS: Final = 3
"""The first one comes from outside."""
COPIER_DEATHS: Final = 2
"""Of each copier."""
HEIRS_MAX: Final = 6
"""How often a copier starts that nobody kills any more. A zombie may have taken its place."""

LIFE_SECONDS_MAX: Final = 12.0
"""A copier that has not met its moment is killed then."""
FINISH_SECONDS_MAX: Final = 240.0
"""From the last death to the last copy, on a machine that is very busy. A dead member's session is 6 s, and its
transaction is 10 s."""
ZOMBIE_SECONDS_MAX: Final = 1.0
"""The longest pause of a stopped copier, from the start of its heir."""
_One = TypeVar("_One")


@dataclass(frozen=True)
class Copier:
    """One place in a group. It has several lives."""

    client: str
    number: int
    strategy: str
    is_static: bool

    @property
    def name(self) -> str:
        """Its transactional id, too."""
        return f"{self.client}-{self.number}"


def target_of(client: str) -> str:
    """Return the topic that this client's group writes."""
    return f"copies-{client}"


async def run(*, seed: int, folder: Path, verbose: bool = False) -> Report:
    """Run a seed on data in `folder`, which must be empty. Complaints are in the report.

    Raises:
        BrokerFailure: the broker did not start or ended by itself.
        KafkaException: the broker refused what it must take.
    """
    return await _KafkaKills(seed, folder, verbose=verbose).run()


class _KafkaKills:
    def __init__(self, seed: int, folder: Path, *, verbose: bool) -> None:
        self._report = Report(seed)
        self._folder = folder
        self._verbose = verbose
        self._address = ""
        self._processes: list[CopierProcess] = []
        """All that were started and not found dead, stopped ones too."""
        self._stopped: set[str] = set()
        """The names of copiers that were stopped. Their heirs replace them, or they replace their heirs."""
        self._is_ending = False
        self._wanted: set[Place] | None = None
        """What has to be copied, when it is known."""
        self._is_copied = trio.Event()

    async def run(self) -> Report:
        random = self._random("copiers")
        copiers = [
            Copier(client, number, strategy, is_static=random.random() < 0.6)
            for client in CLIENTS
            for strategy in (random.choice(STRATEGIES[client]),)
            for number in range(COPIERS_EACH)
        ]
        with dying_broker(self._folder / "data", "--ledger-bytes-max", "1MiB") as broker:
            await _in_thread(broker.start)
            self._address = str(broker.kafka)
            try:
                await self._copy(broker, copiers)
            finally:
                for process in self._processes:
                    process.kill()
            broker.kill()
            await _in_thread(broker.start)
            targets = {client: target_of(client) for client in CLIENTS}
            given = (self._address, SOURCE, targets, PARTITIONS, self._report.history, self._follower)
            counts, complaints = await _in_thread(partial(read_and_judge, *given))
            self._report.copies.update({f"by {client}": count for client, count in counts.items()})
            for complaint in complaints:
                self._complain(complaint)
            await _in_thread(broker.stop)
        self._report.close()
        return self._report

    async def _copy(self, broker: DyingBroker, copiers: list[Copier]) -> None:
        topics = [SOURCE, *map(target_of, CLIENTS)]
        admin = ConfluentAdmin(self._address)
        for topic in topics:
            await _in_thread(partial(admin.create, topic, PARTITIONS))
        feed = await _in_thread(lambda: Feed(self._address, SOURCE, partitions=PARTITIONS, seed=self._name("feed")))
        self._report.history = feed.history
        self._follower = Follower(self._address, dict.fromkeys(topics, PARTITIONS))
        async with trio.open_nursery() as background:
            background.start_soon(self._follow)
            async with trio.open_nursery() as deadly:
                over = trio.Event()
                background.start_soon(self._feed, feed, over)
                deadly.start_soon(self._end_broker, broker)
                for copier in copiers:
                    deadly.start_soon(self._live, copier, background)
            over.set()
            with trio.move_on_after(FINISH_SECONDS_MAX):
                await self._is_copied.wait()
            if not self._is_copied.is_set():
                self._complain(f"not all was copied within {FINISH_SECONDS_MAX} s: {self._left()}")
            self._is_ending = True
            await self._end_copiers()
            background.cancel_scope.cancel()
        await _in_thread(self._follower.close)

    async def _feed(self, feed: Feed, over: trio.Event) -> None:
        random = self._random("pauses")
        while not over.is_set():
            await _in_thread(feed.send_one)
            await trio.sleep(random.uniform(0, 0.03))
        committed = (one for one in feed.history.transactions if one.fate is Fate.COMMITTED)
        self._wanted = {sent.place for one in committed for sent in one.sent if sent.place is not None}

    async def _follow(self) -> None:
        """Read along, and say when all is copied."""
        while True:
            await _in_thread(self._follower.poll)
            if self._wanted is not None and not self._left():
                self._is_copied.set()

    def _left(self) -> dict[str, str]:
        """Return how much each target lacks of what is to be copied."""
        left = {}
        for target in map(target_of, CLIENTS):
            missing = (self._wanted or set()) - {
                copy.place for copy in copies_in(self._follower.records[target], complaints=[])
            }
            if missing:
                left[target] = f"{len(missing)} records, of partitions {sorted({one.segment_id for one in missing})}"
        return left

    # Deaths

    async def _end_broker(self, broker: DyingBroker) -> None:
        random = self._random("broker")
        moments = [broker_death(random) for _ in range(BROKER_DEATHS)]
        moments[0] = BrokerDeath(None, moments[0].after_seconds, is_stop=False)
        for number, moment in enumerate(moments):
            self._say(f"the broker {moment}")
            if number and not await _in_thread(partial(broker.start, moment.death)):
                self._report.broker["at start-up"] += 1
                continue
            self._report.broker[await self._end_once(broker, moment)] += 1
            await trio.sleep(random.uniform(0, 0.3))
        await _in_thread(broker.start)

    async def _end_once(self, broker: DyingBroker, moment: BrokerDeath) -> str:
        if moment.death is not None and await _in_thread(partial(broker.wait, moment.after_seconds)):
            return "at a disk write"
        if moment.death is None:
            await trio.sleep(moment.after_seconds)
        if moment.is_stop:
            await _in_thread(broker.stop)
            return "stopped"
        await _in_thread(broker.kill)
        return "from outside"

    async def _live(self, copier: Copier, background: trio.Nursery) -> None:
        """Let the copier live and die, and leave it running at the end."""
        random = self._random(copier.name)
        paused: CopierProcess | None = None
        for life in range(COPIER_DEATHS):
            death = copier_death(random)
            self._say(f"{copier.name}{' (static)' if copier.is_static else ''}, life {life}, {death}")
            process = self._start(copier, life, death)
            if paused is not None:
                background.start_soon(self._resume, paused, random.uniform(0, ZOMBIE_SECONDS_MAX))
                paused = None
            status: int | None = -signal.SIGKILL
            step = "from outside"
            with trio.move_on_after(LIFE_SECONDS_MAX):
                status = await trio.to_thread.run_sync(process.wait_changed, abandon_on_cancel=True)
                step = f"in {death.step}"
            if status is None:
                self._report.copiers[f"stopped {step}"] += 1
                self._stopped.add(copier.name)
                paused = process
            elif status == -signal.SIGKILL:
                self._processes.remove(process)
                process.kill()
                self._report.copiers[f"killed {step}"] += 1
            else:
                self._note_end(process, status, copier.name)
            await trio.sleep(random.uniform(0, 0.3))
        background.start_soon(self._live_on, copier)
        if paused is not None:
            background.start_soon(self._resume, paused, random.uniform(0, ZOMBIE_SECONDS_MAX))

    async def _live_on(self, copier: Copier) -> None:
        """Let the copier live to the end. A zombie may still take its place; then it begins anew."""
        for life in range(COPIER_DEATHS, COPIER_DEATHS + HEIRS_MAX):
            process = self._start(copier, life, None)
            status = await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
            if self._is_ending:
                return
            self._note_end(process, status, copier.name)
        self._complain(f"{copier.name} never stays")

    async def _resume(self, zombie: CopierProcess, after_seconds: float) -> None:
        """Let a stopped copier go on. It has an heir by now, or will have one."""
        await trio.sleep(after_seconds)
        zombie.proceed()

    def _start(self, copier: Copier, life: int, death: Death | None) -> CopierProcess:
        orders = Orders(
            client=copier.client,
            address=self._address,
            source=SOURCE,
            target=target_of(copier.client),
            partitions=PARTITIONS,
            group=copier.client,
            instance=copier.name if copier.is_static else None,
            strategy=copier.strategy,
            name=copier.name,
            seed=self._name(f"{copier.name} {life}"),
            death=death,
        )
        process = CopierProcess(orders, self._folder / f"{copier.name}.stderr")
        self._processes.append(process)
        return process

    def _note_end(self, process: CopierProcess, status: int, name: str) -> None:
        self._processes.remove(process)
        if status == FENCED:
            self._report.fenced += 1
        elif status == REPLACED and name in self._stopped:
            self._report.replaced += 1
        else:
            self._complain(f"{name} ended with status {status}: {process.said}")

    async def _end_copiers(self) -> None:
        """Ask all to end. Stopped ones go on for that. Zombies may have ended as fenced before."""
        async with trio.open_nursery() as nursery:
            for process in self._processes:
                nursery.start_soon(self._end_copier, process)

    async def _end_copier(self, process: CopierProcess) -> None:
        process.ask_to_end()
        process.proceed()
        with trio.move_on_after(FINISH_SECONDS_MAX):
            status = await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
            # One that was being started knows no SIGTERM yet.
            if status not in {0, -signal.SIGTERM}:
                self._note_end(process, status, process.stderr_path.stem)
            return
        self._complain(f"{process.stderr_path.stem} does not end: {process.said}")
        process.kill()

    def _complain(self, text: str) -> None:
        self._report.complaints.append(f"seed {self._report.seed}: {text}")

    def _name(self, what: str) -> str:
        return f"{self._report.seed}/{what}"

    def _random(self, what: str) -> Random:
        return Random(self._name(what))  # noqa: S311 - to be repeated by its seed

    def _say(self, text: str) -> None:
        if self._verbose:
            print(text, flush=True)


async def _in_thread(call: Callable[[], _One]) -> _One:
    return await trio.to_thread.run_sync(call)


def main() -> int:
    return play(run, script="kafka_kills", description=__doc__, verbose="print each death")


if __name__ == "__main__":
    sys.exit(main())
