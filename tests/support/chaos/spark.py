"""A Spark job that writes the rows of a scalable topic to files and to another topic, each exactly once.

The topic has a load of transactions by our client. The job is started as users start it (tests/support/spark_job.py),
and again if it ends. In the end a run with `availableNow` takes what is left, and the copies are compared with the
topic.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Final

import trio

import tidewire
from tests.support.chaos.cluster import Cluster
from tests.support.chaos.witnesses import Segments
from tests.support.cluster_loads import KEEP_ALIVE_SECONDS, Follow
from tests.support.happenings import Happenings
from tests.support.outcomes import COMMITTED
from tests.support.row_copies import judge
from tests.support.spark_driver import COMMITS_WRITTEN, SparkDriver, Victims
from tests.support.spark_outputs import message_copies, parquet_copies
from tests.support.spark_story import read_all, read_until

MASTER: Final = "local[2,4]"
STARTS_MAX: Final = 3
"""How often the last run is started. The first one repeats the batch that the run before left open."""
DRAIN_SECONDS_MAX: Final = 300.0
GOES_ON_COMMITS: Final = 3
HEAL_SECONDS_MAX: Final = 240.0
"""A job that has to start again needs half a minute. Its next batches have everything that came meanwhile."""


class Spark:
    """See the module's docstring."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.name = "spark"
        self._topic, self._copies_topic = (f"topic://public/default/chaos-spark{end}" for end in ("", "-copies"))
        self.scalable: Sequence[str] = (self._topic, self._copies_topic)
        self.heal_seconds_max = HEAL_SECONDS_MAX
        self.finish_seconds_max = STARTS_MAX * DRAIN_SECONDS_MAX
        self.regular: Sequence[str] = ()
        self._follow = Follow(self._topic, seed)
        self._folder = folder / "spark"
        self._happenings = Happenings()
        self._driver: SparkDriver | None = None
        self._is_over = False
        self.ended: list[str] = []
        """Why drivers ended by themselves."""
        self._rows = 0

    async def open(self, cluster: Cluster, stack: AsyncExitStack) -> None:
        """See `Witness.open`."""
        self._cluster = cluster
        await self._follow.open(cluster.url(2), stack)
        stack.callback(self._close)

    def begin(self, nursery: trio.Nursery) -> None:
        """See `Witness.begin`."""
        self._nursery = nursery
        self._follow.begin(nursery)
        nursery.start_soon(self._keep_running)

    async def _start(self, *further: str) -> SparkDriver:
        arguments = ["--service-url", self._cluster.url(), "--topic", self._topic, "--to", self._copies_topic]
        arguments += ["--checkpoints", str(self._folder / "checkpoints"), "--parquet", str(self._folder / "rows")]
        self._driver = driver = SparkDriver(self._folder, [*arguments, *further], self._happenings, master=MASTER)
        await driver.start(self._nursery)
        return driver

    async def _keep_running(self) -> None:
        while not self._is_over:
            driver = await self._start()
            await driver.ended.wait()
            driver.close()
            if not self._is_over:
                self.ended.append(driver.reason)
                self._cluster.logbook.say(f"the Spark job ended and is started again: {driver.reason:.300}")

    def _close(self) -> None:
        self._is_over = True
        if self._driver is not None:
            self._driver.close()

    def broker_died(self, random: Random) -> None:
        """See `Witness.broker_died`."""
        self._follow.outcomes.broker_died(random)

    async def goes_on(self) -> None:
        """See `Witness.goes_on`."""
        await self._follow.happenings.nth(COMMITTED, GOES_ON_COMMITS)
        await self._happenings.nth(COMMITS_WRITTEN, GOES_ON_COMMITS)

    async def finish(self, segments: Segments) -> list[str]:
        """See `Witness.finish`."""
        complaints = await self._follow.finish(await segments(self._topic))
        self._is_over = True
        driver = self._driver
        assert driver is not None, "it was started"
        driver.kill(Victims.ALL)
        await driver.ended.wait()
        for _start in range(STARTS_MAX):
            driver.close()
            driver = await self._start("--available-now")
            with trio.move_on_after(DRAIN_SECONDS_MAX):
                await driver.ended.wait()
            if driver.status == 0:
                return complaints
            self.ended.append(driver.reason)
        return [*complaints, f"the last run ended with status {driver.status}: {driver.reason}"]

    def waits_for(self) -> str:
        """See `Witness.waits_for`."""
        return f"{self._follow.happenings.counts} {self._happenings.counts}; {'; '.join(self.ended)}"

    async def read_again(self, url: str) -> list[str]:
        """See `Witness.read_again`."""
        history = self._follow.history
        async with tidewire.connect(url, keep_alive_seconds=KEEP_ALIVE_SECONDS) as client:
            inputs = await read_until(client, self._topic, self._follow.ends)
            asked = self._cluster.layout_changes()
            copies = {
                "parquet": await trio.to_thread.run_sync(parquet_copies, self._folder / "rows"),
                "topic": message_copies(await read_all(client, asked, self._copies_topic)),
            }
        complaints = inputs.complaints + history.judge(inputs.reads)
        for where, found in copies.items():
            self._rows = len(found)
            complaints += [f"{where}: {text}" for text in judge(history, inputs.reads, found)]
        return complaints

    def summary(self) -> str:
        """See `Witness.summary`."""
        batches = self._happenings.counts[COMMITS_WRITTEN]
        return (
            f"{len(self._follow.history.transactions)} transactions, {batches} micro-batches, {self._rows} rows; "
            f"{len(self.ended)} runs ended by themselves"
        )
