"""Kill Spark's driver, executors and broker (kill -9) under a streaming job, and check that no row is lost or doubled.

    python scripts/spark_kills.py [--driver 10] [--executor 10] [--broker 10] [--seed N] [--verbose]

A topic is under a load of concurrent transactions (tests/support/transactional_load.py), which are committed, aborted
or left open, while its segments are split and merged. A Spark job (tests/support/spark_job.py), started by spark-submit
as a user would, writes its rows twice: to Parquet files with Spark's own exactly-once file sink, and to another topic,
which is also split and merged. The processes that are killed:

- driver: its JVM, or its Python process, or all processes at once, including its executors. It is started again on the
  same checkpoint, perhaps while workers of the previous one still write;
- executor: the JVM that runs tasks, or its Python workers, or both. Spark runs their tasks again;
- broker: from outside, or by itself at a disk write. It is started again on its data.

The seed spreads the moments over the protocol (tests/support/spark_moments.py): when offsets are chosen, when they are
recorded, while tasks read and write, when the sink has committed and Spark has not, and so on. At the end the load
stops, a run with `availableNow` processes the rest, and tests/support/row_copies.py checks:

- every message of a committed transaction is there exactly once, in the files and in the topic;
- nothing of an aborted or unfinished transaction is there, and an unanswered commit has the same outcome everywhere;
- the messages of each key are in the order in which they were sent.

If all is well, the script prints one line and exits with 0. Otherwise it prints what was broken, the seed and the data
folder, and exits with 1.
"""

import argparse
import shutil
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from broker.addresses import Address
from tests.support import spark_steering
from tests.support.dying_broker import DyingBroker, dying_broker
from tests.support.happenings import Happenings
from tests.support.layout_changes import MERGE_DONE, SPLIT_DONE, LayoutChanges
from tests.support.outcomes import Outcomes
from tests.support.row_copies import judge
from tests.support.spark_driver import COMMITS_WRITTEN, STARTED, SparkDriver, Victims, listen
from tests.support.spark_kill_report import Report
from tests.support.spark_moments import Moment, Target, moments
from tests.support.spark_outputs import message_copies, parquet_copies
from tests.support.spark_story import create, read_all, read_until
from tests.support.transactional_load import Load
from tidewire.client.client import Client, connect

TOPIC: Final = "topic://public/default/spark-kills"
COPIES: Final = "topic://public/default/spark-kills-copies"

PAUSE_SECONDS_MAX: Final = 0.5
"""The longest pause of a load's worker between two transactions. Most of Spark's time goes into starts, not
messages."""
CLUSTER: Final = "local-cluster[2,1,1024]"
"""A master with two executors in separate processes."""
LOCAL: Final = "local[2,4]"
"""A master that runs tasks in the driver, with as many attempts as a cluster. It starts faster."""
MOMENT_SECONDS_MAX: Final = 60.0
"""After this time the process is killed even if the moment has not come."""
PROGRESS_SECONDS_MAX: Final = 180.0
"""If no micro-batch has finished within this time, the query is stuck."""
DRAIN_SECONDS_MAX: Final = 600.0
DEATH_SECONDS_MAX: Final = 10.0
"""A broker that should kill itself is killed after this time."""
AWAY_SECONDS_MAX: Final = 3.0
STARTS_MAX: Final = 3
"""How often a driver is started that ends before it has done anything."""
CHANGE_SECONDS_MAX: Final = 10.0
"""The longest time between two splits or merges."""


async def run(
    kills: dict[Target, int], *, seed: int, folder: Path, has_sink: bool = True, verbose: bool = False
) -> Report:
    """Run the kills on data in `folder`, which must be empty. Complaints are in the report.

    Raises:
        BrokerFailure: the broker did not start or ended by itself.
    """
    return await _SparkKills(seed, folder, has_sink=has_sink, verbose=verbose).run(kills)


class _SparkKills:
    def __init__(self, seed: int, folder: Path, *, has_sink: bool, verbose: bool) -> None:
        self._report = Report(seed)
        self._folder = folder
        self._has_sink = has_sink
        self._verbose = verbose
        self._happenings = Happenings()
        self._outcomes = Outcomes(self._happenings)
        self._steering = folder / "steering"
        self._parquet = folder / "parquet"
        self._begun = trio.current_time()
        self._choices = self._random("choices")
        self._driver: SparkDriver | None = None
        self._master = LOCAL
        self._held_send, self._held = trio.open_memory_channel[int](1000)

    async def run(self, kills: dict[Target, int]) -> Report:
        report = self._report
        spark_steering.make_folder(self._steering)
        with dying_broker(self._folder / "data", "--consumer-session-grace-seconds", "2") as broker:
            await trio.to_thread.run_sync(broker.start)
            http = Address(*broker.http)
            for topic in (TOPIC, COPIES):
                await create(http, topic)
            changes = LayoutChanges(http, self._happenings)
            async with (
                connect(broker.service_url, operation_timeout_seconds=120, reconnect_seconds_max=0.1) as client,
                client.producer(TOPIC) as producer,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(partial(listen, self._steering, self._happenings, held=self._held_send))
                given = (producer, report.history, self._happenings, self._outcomes)
                load = Load(client, *given, seed=report.seed, pause_seconds_max=PAUSE_SECONDS_MAX)
                nursery.start_soon(load.run)
                try:
                    async with trio.open_nursery() as changing:
                        changing.start_soon(self._change_segments, changes)
                        for target in Target:
                            random = self._random(target.value)
                            for moment in moments(random, target, kills.get(target, 0), has_sink=self._has_sink):
                                await self._kill_once(moment, broker, nursery)
                        changing.cancel_scope.cancel()
                    ends = await load.finish([view for view in await changes.segments(TOPIC) if view.is_active])
                    await self._drain(broker, nursery)
                finally:
                    self._close_driver()
                await self._judge(client, changes, ends)
                nursery.cancel_scope.cancel()
        report.splits, report.merges = (self._happenings.counts[kind] for kind in (SPLIT_DONE, MERGE_DONE))
        report.batches = self._happenings.counts[COMMITS_WRITTEN]
        report.complaints += [*load.complaints, *changes.complaints, *self._outcomes.complaints]
        return report

    async def _change_segments(self, changes: LayoutChanges) -> None:
        random = self._random("changes")
        while True:
            await trio.sleep(random.uniform(0, CHANGE_SECONDS_MAX))
            await changes.change((TOPIC, COPIES) if self._has_sink else (TOPIC,), random)

    def _random(self, what: str) -> Random:
        return Random(f"{self._report.seed}/{what}")  # noqa: S311 - to be repeated by its seed

    # Drivers

    async def _running(self, target: Target, broker: DyingBroker, nursery: trio.Nursery) -> SparkDriver:
        """Return a running driver; with separate executors if one of them is to be killed."""
        if self._driver is not None and self._driver.is_running:
            if target is not Target.EXECUTOR or self._master == CLUSTER:
                return self._driver
        elif self._driver is not None:
            self._note_end(self._driver)
        is_cluster = target is Target.EXECUTOR or (target is Target.DRIVER and self._choices.random() < 0.3)
        return await self._start(broker, nursery, CLUSTER if is_cluster else LOCAL)

    async def _start(self, broker: DyingBroker, nursery: trio.Nursery, master: str, *further: str) -> SparkDriver:
        self._close_driver()
        spark_steering.let_go(self._steering)
        self._master = master
        arguments = [
            *(
                "--service-url",
                broker.service_url,
                "--topic",
                TOPIC,
                "--checkpoints",
                str(self._folder / "checkpoints"),
            ),
            *("--parquet", str(self._parquet), "--steering", str(self._steering), *further),
        ]
        if self._has_sink:
            arguments += ["--to", COPIES]
        self._driver = SparkDriver(self._folder / "spark", arguments, self._happenings, master=master)
        await self._driver.start(nursery)
        return self._driver

    def _note_end(self, driver: SparkDriver) -> None:
        """Note that the driver has ended, and log it if it was not killed."""
        if driver.status != -signal.SIGKILL and not driver.was_killed:
            self._say(f"a driver ended with status {driver.status}: {driver.reason}")
            self._report.ended.append(driver.reason)

    def _close_driver(self) -> None:
        if self._driver is not None:
            self._driver.close()

    async def _happens(self, event: str, nth: int, driver: SparkDriver, seconds_max: float) -> bool:
        """Wait until the event has happened. Return False if the driver has ended, or it took too long."""
        has_happened = False

        async def until_ended() -> None:
            await driver.ended.wait()
            nursery.cancel_scope.cancel()

        with trio.move_on_after(seconds_max):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(until_ended)
                await self._happenings.nth(event, nth)
                has_happened = True
                nursery.cancel_scope.cancel()
        return has_happened

    # Kills

    async def _kill_once(self, moment: Moment, broker: DyingBroker, nursery: trio.Nursery) -> None:
        for _ in range(STARTS_MAX):
            driver = await self._running(moment.target, broker, nursery)
            if not moment.waits or await self._happens(COMMITS_WRITTEN, 1, driver, PROGRESS_SECONDS_MAX):
                break
            if driver.is_running:
                self._report.complaints.append(f"no micro-batch ended in {PROGRESS_SECONDS_MAX} s; {driver.reason}")
                break
        self._say(f"kill {self._report.kills.total() + 1}: {moment}")
        if moment.target is Target.BROKER:
            await self._kill_broker(moment, broker, driver)
        else:
            pid = await self._until(moment, driver)
            if moment.target is Target.DRIVER:
                driver.kill(moment.victims)
                await driver.ended.wait()
            else:
                self._kill_executor(moment, driver, pid)
        spark_steering.let_go(self._steering)
        self._report.kills[moment.target.value] += 1

    async def _until(self, moment: Moment, driver: SparkDriver) -> int | None:
        """Wait until the moment has come. Return the process that is paused there, if one is."""
        if moment.event == STARTED:
            await trio.sleep(moment.delay_seconds)
            return None
        event = moment.event
        if moment.holds:
            if moment.nth > 1:
                await self._happens(event, moment.nth - 1, driver, MOMENT_SECONDS_MAX)
            spark_steering.hold(self._steering, event)
            event = f"{spark_steering.HELD} {event}"
        if not await self._happens(event, 1 if moment.holds else moment.nth, driver, MOMENT_SECONDS_MAX):
            self._report.missed += 1
            self._say("  the moment did not come")
        await trio.sleep(moment.delay_seconds)
        pid = None
        while moment.holds:
            try:
                pid = self._held.receive_nowait()
            except trio.WouldBlock:
                break
        return pid

    def _kill_executor(self, moment: Moment, driver: SparkDriver, pid: int | None) -> None:
        executors = driver.executors()
        at_work = None if pid is None else driver.executor_of(pid)
        if at_work is None and executors:
            at_work = self._choices.choice(executors)
        if at_work is None:
            self._report.missed += 1
        else:
            driver.kill_executor(at_work, moment.victims)

    async def _kill_broker(self, moment: Moment, broker: DyingBroker, driver: SparkDriver) -> None:
        if moment.death is None:
            await self._until(moment, driver)
        broker.send_kill()
        self._outcomes.broker_died(self._choices)
        await trio.to_thread.run_sync(broker.wait)
        if moment.death is not None and await trio.to_thread.run_sync(broker.start, moment.death):
            if not await trio.to_thread.run_sync(broker.wait, DEATH_SECONDS_MAX):
                self._report.missed += 1
                broker.send_kill()
                await trio.to_thread.run_sync(broker.wait)
            self._outcomes.broker_died(self._choices)
        # Usually it is started again at once. Sometimes it stays away long enough for Spark to notice.
        if self._choices.random() < 0.3:
            await trio.sleep(self._choices.uniform(0, AWAY_SECONDS_MAX))
        await trio.to_thread.run_sync(broker.start)

    # The end

    async def _drain(self, broker: DyingBroker, nursery: trio.Nursery) -> None:
        """Process the rest in a run that ends by itself."""
        if self._driver is not None and self._driver.is_running:
            self._driver.kill(Victims.ALL)
            await self._driver.ended.wait()
        # The previous driver's open batch is repeated first. A busy machine may also need several starts.
        for _ in range(STARTS_MAX):
            driver = await self._start(broker, nursery, LOCAL, "--available-now")
            with trio.move_on_after(DRAIN_SECONDS_MAX):
                await driver.ended.wait()
            if driver.status == 0:
                return
            self._note_end(driver)
        self._report.complaints.append(f"the last run ended with status {driver.status}: {driver.reason}")

    async def _judge(self, client: Client, changes: LayoutChanges, ends: set[bytes]) -> None:
        report = self._report
        reading = await read_until(client, TOPIC, ends)
        report.complaints += reading.complaints + report.history.judge(reading.reads)
        report.rows["read"] = len(reading.reads)
        copies = {"parquet": await trio.to_thread.run_sync(parquet_copies, self._parquet)}
        if self._has_sink:
            copies["topic"] = message_copies(await read_all(client, changes, COPIES))
        for name, found in copies.items():
            report.rows[name] = len(found)
            report.complaints += [f"{name}: {text}" for text in judge(report.history, reading.reads, found)]

    def _say(self, text: str) -> None:
        if self._verbose:
            print(f"{trio.current_time() - self._begun:7.1f} {text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for target in Target:
        parser.add_argument(f"--{target.value}", type=int, default=10, help="number of kills [%(default)s]")
    parser.add_argument("--seed", type=int, default=None, help="seed of the moments and the load [drawn, and printed]")
    parser.add_argument("--files-only", action="store_true", help="write only files, without the second topic")
    parser.add_argument("--verbose", action="store_true", help="print each kill's moment")
    given = parser.parse_args()
    seed = Random().randrange(1_000_000) if given.seed is None else given.seed  # noqa: S311
    kills = {target: getattr(given, target.value) for target in Target}
    folder = Path(tempfile.mkdtemp(prefix="spark-kills-"))
    hunt = partial(run, kills, seed=seed, folder=folder, has_sink=not given.files_only, verbose=given.verbose)
    try:
        report = trio.run(hunt)
    except BaseException:
        print(f"spark kills: seed {seed} failed; the data is in {folder}", file=sys.stderr)
        raise
    print(f"spark kills: {report}")
    if report.complaints:
        for complaint in report.complaints:
            print(f"  {complaint}")
        print(
            f"the data is in {folder}; to repeat: scripts/spark_kills.py --seed {seed} with the same numbers of kills"
        )
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
