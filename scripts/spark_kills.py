"""Kill Spark's driver, executors and broker (kill -9) under a streaming job, and see that no row is lost or doubled.

    python scripts/spark_kills.py [--driver 10] [--executor 10] [--broker 10] [--seed N] [--verbose]

A topic is under a load of transactions (tests/support/transactional_load.py): committed, aborted and left open,
several at a time, while its segments are split and merged. A Spark job (tests/support/spark_job.py), started by
spark-submit as a user would, puts its rows away twice: as Parquet files, by Spark's own exactly-once file sink, and as
messages of another topic, which is split and merged as well. The processes that are killed:

- driver: its JVM, or the Python below it, or all processes at once, with those of its executors. It is started again
  on the same checkpoint, perhaps while workers of the one before still write;
- executor: the JVM that runs tasks, or its Python workers, or both. Spark does their tasks again;
- broker: from outside, or by itself at a write to the disk. It is started again on its data.

The seed spreads the moments over the protocol (tests/support/spark_moments.py): when offsets are named, when they are
written down, while tasks read and write, when the sink has committed and Spark has not, and so on. At the end the load
is finished, a run with `availableNow` takes what is left, and tests/support/row_copies.py judges:

- every message of a committed transaction is there exactly once, in the files and in the topic;
- nothing of an aborted or unfinished one is, and what a commit without answer became is the same everywhere;
- the messages of each key are in the order they were sent in.

Prints one line and exits with 0, or says what was broken, by which seed and where the data is, and exits with 1.
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
"""Of a worker of the load between two of its transactions: Spark has less to do with a message than its start takes."""

CLUSTER: Final = "local-cluster[2,1,1024]"
"""Executors are processes of their own, and there are two of them."""
LOCAL: Final = "local[2,4]"
"""The driver does the work, and tries a task as often as a cluster does; it starts sooner."""

MOMENT_SECONDS_MAX: Final = 60.0
"""What was to be killed is killed by then, whether the moment has come or not."""
PROGRESS_SECONDS_MAX: Final = 180.0
"""By then a micro-batch must have been done, or the query stands."""
DRAIN_SECONDS_MAX: Final = 600.0
DEATH_SECONDS_MAX: Final = 10.0
"""A broker that is to die by itself is killed after this."""
AWAY_SECONDS_MAX: Final = 3.0
STARTS_MAX: Final = 3
"""Of drivers that end before they have done anything."""
CHANGE_SECONDS_MAX: Final = 10.0
"""Between two splits or merges, at most."""


async def run(
    kills: dict[Target, int], *, seed: int, folder: Path, has_sink: bool = True, verbose: bool = False
) -> Report:
    """Do it on data in `folder`, which is empty. Complaints are in the report.

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
        """A driver that runs, with executors to kill if it is those."""
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
        """It has ended; if nobody killed it, that is worth to be told."""
        if driver.status != -signal.SIGKILL and not driver.was_killed:
            self._say(f"a driver ended with status {driver.status}: {driver.reason}")
            self._report.ended.append(driver.reason)

    def _close_driver(self) -> None:
        if self._driver is not None:
            self._driver.close()

    async def _happens(self, event: str, nth: int, driver: SparkDriver, seconds_max: float) -> bool:
        """Wait until it has happened; False: the driver has ended, or it took too long."""
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
                self._report.complaints.append(f"no micro-batch was done in {PROGRESS_SECONDS_MAX} s; {driver.reason}")
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
        """Return when the moment has come; the process that stands still there, if one does."""
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
        # Mostly it is there again at once, and sometimes Spark has time to miss it.
        if self._choices.random() < 0.3:
            await trio.sleep(self._choices.uniform(0, AWAY_SECONDS_MAX))
        await trio.to_thread.run_sync(broker.start)

    # The end

    async def _drain(self, broker: DyingBroker, nursery: trio.Nursery) -> None:
        """Let a run that ends by itself take what is left."""
        if self._driver is not None and self._driver.is_running:
            self._driver.kill(Victims.ALL)
            await self._driver.ended.wait()
        # What the one before had begun is open until this one does it again; and a machine may be too busy for a start.
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
        parser.add_argument(f"--{target.value}", type=int, default=10, help="how often [%(default)s]")
    parser.add_argument("--seed", type=int, default=None, help="of the moments and the load [drawn, and printed]")
    parser.add_argument("--files-only", action="store_true", help="without the second way out, the topic")
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
