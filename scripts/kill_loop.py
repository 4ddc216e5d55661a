"""Kill the broker (kill -9) again and again under a load of transactions, restart it, and see that it kept its word.

    python scripts/kill_loop.py [--kills 50] [--seed N] [--keep]

The load (tests/support/transactional_load.py) runs on one scalable topic from the first moment to the last: concurrent
transactions over several segments, committed, aborted and left open, while segments are split and merged. A reader and
a consumer follow it through all crashes. At the end the broker is stopped once more, and what it then reads from the
disk is compared with what the load was told:

- every acknowledged commit is whole, each of its messages once and where its receipt said;
- nothing of an aborted or unfinished transaction can be seen;
- a commit that was not answered is visible wholly or not at all, asking again tells which, and reading agrees;
- the messages of each key stand in the order they were sent in;
- no position was ever given to two messages, not even to ones that were never seen;
- after a restart the readable position of no segment is lower than what had been read before (D8);
- a consumer does not get again what it had acknowledged durably.

The seed decides the moments of the kills. Half of them come from outside, a few milliseconds or less behind something
that the load did (a send, a commit, its answer, a split, a restart). The others come from inside, behind or instead of
the nth write to the disk since the start (tests/support/dying_process.py), which also ends start-ups and recoveries
half-way. What meets what at that moment is up to the machine, so a seed that failed may need a few runs to fail again.

Prints one line and exits with 0, or says what was broken, by which seed and where the data is, and exits with 1.
"""

import argparse
import math
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import h11
import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from broker.addresses import Address
from tests.support import transactional_load as load_events
from tests.support.dying_broker import DyingBroker, dying_broker
from tests.support.dying_process import Death
from tests.support.followers import Reading, consume, follow
from tests.support.history import Fate, History
from tests.support.http import request
from tests.support.last_positions import last_positions
from tests.support.transactional_load import Load
from tidewire.client.client import Client, connect
from tidewire.client.errors import TidewireError
from tidewire.client.names import segment_topic

TOPIC: Final = "topic://public/default/kill-loop"
SEGMENTS: Final = 4
READY: Final = "ready"

ROUND_SECONDS_MAX: Final = 3.0
"""A broker that by then has not come to the moment at which it was to die is killed nevertheless."""

FINISH_SECONDS_MAX: Final = 30.0
"""How long the load may take to end, and a reader to read everything, once nobody kills any more."""


class Moment(NamedTuple):
    """When to kill: from inside, or a while after something has happened so many times since the broker was ready."""

    death: Death | None
    event: str = READY
    nth: int = 1
    delay_seconds: float = 0.0
    splits_after_seconds: float | None = None
    """When, after the broker is ready, a segment is split or merged; None: not in this round."""

    def __str__(self) -> str:
        if self.death is not None:
            return str(self.death)
        return f"{self.delay_seconds * 1000:.2f} ms after {self.event} {self.nth}"


def draw(random: Random, *, from_outside: bool) -> Moment:
    """The moment of one kill."""
    splits_after = random.uniform(0, 0.1) if random.random() < 0.6 else None
    if not from_outside and random.random() < 0.5:
        # The first dozen writes are the broker's start; its segments' recovery follows, and then the load.
        write = random.randint(1, 12) if random.random() < 0.2 else round(_log_uniform(random, 12, 800))
        is_done = random.random() < 0.4
        # What does not wait for a write that is never made needs some time to show it.
        stall_seconds = random.choice((0, 0, 0.003) if is_done else (0, 0.003, 0.03, 0.03))
        return Moment(Death(write, is_done, stall_seconds), splits_after_seconds=splits_after)
    event = random.choice(
        (
            READY,
            load_events.BEGUN,
            load_events.SENT,
            load_events.RECEIVED,
            load_events.COMMIT_ASKED,
            load_events.COMMITTED,
            load_events.ABORT_ASKED,
            load_events.SPLIT_ASKED,
        )
    )
    if event == load_events.SPLIT_ASKED:
        return Moment(None, event, 1, _log_uniform(random, 0.0005, 0.05), random.uniform(0, 0.1))
    if event == READY:
        return Moment(None, event, 1, random.uniform(0, 0.2), splits_after)
    return Moment(None, event, random.randint(1, 60), _log_uniform(random, 0.00005, 0.01), splits_after)


def _log_uniform(random: Random, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high)))


@dataclass
class Report:
    """What came of it."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    """By where they hit: "start-up", "disk write", "outside"."""
    history: History = field(default_factory=History)
    unanswered: int = 0
    """Commits that were unanswered at a kill."""
    splits: int = 0
    read: int = 0
    complaints: list[str] = field(default_factory=list)

    @property
    def kill_count(self) -> int:
        """All kills."""
        return sum(self.kills.values())

    def __str__(self) -> str:
        kills = ", ".join(f"{count} {where}" for where, count in sorted(self.kills.items()))
        committed, aborted = self.history.count(Fate.COMMITTED), self.history.count(Fate.ABORTED)
        unknown = self.history.count(Fate.UNKNOWN)
        return (
            f"seed {self.seed}: {self.kill_count} kills ({kills}), {self.splits} splits and merges, "
            f"{len(self.history.transactions)} transactions: {committed} committed, {aborted} aborted, "
            f"{unknown} unknown ({self.unanswered} commits were unanswered at a kill); {self.read} messages read: "
            + ("OK" if not self.complaints else f"{len(self.complaints)} COMPLAINTS")
        )


async def run(*, kills: int, seed: int, folder: Path, verbose: bool = False) -> Report:
    """Do it on data in `folder`, which is empty. Complaints are in the report.

    Raises:
        BrokerFailure: the broker did not start or ended by itself.
    """
    return await _KillLoop(seed, folder, verbose=verbose).run(kills)


class _KillLoop:
    def __init__(self, seed: int, folder: Path, *, verbose: bool) -> None:
        self._report = Report(seed)
        self._folder = folder
        self._verbose = verbose
        self._reader = Reading("reader")
        self._consumer = Reading("consumer")
        self._reached: dict[str, tuple[int, int]] = {}
        """By segment's topic: the ledger and entry up to which it was readable at some time."""

    async def run(self, kills: int) -> Report:
        report = self._report
        moments = Random(f"{report.seed}/moments")  # noqa: S311 - to be repeated by its seed
        arguments = (
            # Small files, so that ledgers roll and journal files are freed under the kills too.
            *("--journal-file-bytes-max", "1MiB", "--ledger-bytes-max", "1MiB"),
            *("--txn-retention-seconds", str(2 * load_events.RETENTION_SECONDS)),
        )
        with dying_broker(self._folder / "data", *arguments) as broker:
            await _start(broker)
            http = Address(*broker.http)
            path = "/admin/v2/scalable/" + TOPIC.removeprefix("topic://")
            answer = await request(http, "PUT", f"{path}?numInitialSegments={SEGMENTS}")
            assert answer.status == 204, answer
            with trio.CancelScope() as working:
                async with (
                    connect(broker.service_url, operation_timeout_seconds=60, reconnect_seconds_max=0.1) as client,
                    client.producer(TOPIC) as producer,
                ):
                    load = Load(client, producer, http, TOPIC, report.history, seed=report.seed)
                    async with trio.open_nursery() as nursery:
                        await self._follow(client, nursery)
                        nursery.start_soon(load.run)
                        for number in range(kills):
                            moment = draw(moments, from_outside=number == 0)
                            await self._kill_once(broker, load, moment, starts=number > 0)
                        await _start(broker)
                        await self._check_positions(broker, load)
                        ends = await self._finish(load)
                        await self._catch_up(ends)
                        nursery.cancel_scope.cancel()
                    if not ends:
                        # The end of the producer would wait for the answers that the load has waited for.
                        working.cancel()
            await self._read_from_disk(broker, ends)
        report.splits = load.happenings.counts[load_events.SPLIT_DONE]
        report.unanswered = load.unanswered_seen
        report.complaints += load.complaints
        self._judge()
        return report

    async def _follow(self, client: Client, nursery: trio.Nursery) -> None:
        async def read(task_status: trio.TaskStatus[None]) -> None:
            async with client.reader(TOPIC) as reader:
                task_status.started()
                await follow(reader, self._reader)

        async def consume_all(task_status: trio.TaskStatus[None]) -> None:
            async with client.stream_consumer(TOPIC, "kill-loop") as consumer:
                task_status.started()
                await consume(consumer, self._consumer)

        await nursery.start(read)
        await nursery.start(consume_all)

    # Kills

    async def _kill_once(self, broker: DyingBroker, load: Load, moment: Moment, *, starts: bool) -> None:
        self._say(f"kill {self._report.kill_count + 1}: {moment}")
        if starts and not await _start(broker, moment.death):
            self._report.kills["at start-up"] += 1
            return
        async with trio.open_nursery() as nursery:
            if moment.splits_after_seconds is not None:
                nursery.start_soon(self._split, load, moment.splits_after_seconds)
            if starts:
                nursery.start_soon(self._check_positions, broker, load)
            if moment.death is None:
                where = "from outside"
                with trio.move_on_after(ROUND_SECONDS_MAX):
                    if moment.event != READY:
                        await load.happenings.nth(moment.event, moment.nth)
                    await trio.sleep(moment.delay_seconds)
                broker.send_kill()
            else:
                where = "at a disk write"
                if not await trio.to_thread.run_sync(broker.wait, ROUND_SECONDS_MAX):
                    where = "from outside"
                    broker.send_kill()
            load.broker_died(Random(f"{self._report.seed}/kill {self._report.kill_count}"))  # noqa: S311
            if broker.is_running:
                await trio.to_thread.run_sync(broker.wait)
            nursery.cancel_scope.cancel()
        self._report.kills[where] += 1

    async def _split(self, load: Load, delay_seconds: float) -> None:
        await trio.sleep(delay_seconds)
        await load.change_layout(Random(f"{self._report.seed}/split {self._report.kill_count}"))  # noqa: S311

    # Checks

    async def _check_positions(self, broker: DyingBroker, load: Load) -> None:
        """D8: what had been readable before the kill is readable again before anything new is decided."""
        reached = self._reached
        try:
            topics = {
                view.segment_id: segment_topic(TOPIC, view.start, view.end, view.segment_id)
                for view in await load.segments()
            }
            for segment_id, place in self._reader.last.items():
                reached[topics[segment_id]] = max(place, reached.get(topics[segment_id], place))
            before = dict(reached)
            found = await last_positions(*broker.pulsar, topics.values())
        except (TidewireError, OSError, AssertionError, trio.BrokenResourceError, h11.RemoteProtocolError):
            # It was killed meanwhile; the next start is asked again.
            return
        for topic, place in found.items():
            if place < before.get(topic, place):
                self._report.complaints.append(f"{topic} was readable up to {before[topic]}, now up to {place}")
            reached[topic] = max(place, reached.get(topic, place))

    async def _finish(self, load: Load) -> set[bytes]:
        with trio.move_on_after(FINISH_SECONDS_MAX):
            return await load.finish()
        self._report.complaints.append(f"the load did not end within {FINISH_SECONDS_MAX} s")
        return set()

    async def _catch_up(self, ends: set[bytes]) -> None:
        for reading in (self._reader, self._consumer):
            with trio.move_on_after(FINISH_SECONDS_MAX) as waiting:
                await reading.until_seen(ends)
            if waiting.cancelled_caught:
                self._report.complaints.append(f"the {reading.name} never got {reading.missing(ends)}")

    async def _read_from_disk(self, broker: DyingBroker, ends: set[bytes]) -> None:
        """After a clean stop: what a new reader gets from a broker that has nothing in memory."""
        await trio.to_thread.run_sync(broker.stop)
        await _start(broker)
        reading = Reading("new reader")
        async with (
            connect(broker.service_url) as client,
            client.reader(TOPIC) as reader,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(follow, reader, reading)
            with trio.move_on_after(FINISH_SECONDS_MAX) as waiting:
                await reading.until_seen(ends)
            if waiting.cancelled_caught:
                self._report.complaints.append(f"the new reader never got {reading.missing(ends)}")
            nursery.cancel_scope.cancel()
        self._report.read = len(reading.reads)
        self._report.complaints += reading.complaints + self._report.history.judge(reading.reads)

    def _judge(self) -> None:
        history = self._report.history
        for reading, complaints in (
            (self._reader, history.judge(self._reader.reads)),
            (self._consumer, history.judge_again(self._consumer.reads)),
        ):
            self._report.complaints += reading.complaints + [f"the {reading.name}: {text}" for text in complaints]

    def _say(self, text: str) -> None:
        if self._verbose:
            print(text, flush=True)


async def _start(broker: DyingBroker, death: Death | None = None) -> bool:
    """Whether it became ready; False: it killed itself before."""
    return await trio.to_thread.run_sync(broker.start, death)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="how often [%(default)s]")
    parser.add_argument("--seed", type=int, default=None, help="of the moments and the load [drawn, and printed]")
    parser.add_argument("--verbose", action="store_true", help="print each kill's moment")
    given = parser.parse_args()
    seed = Random().randrange(1_000_000) if given.seed is None else given.seed  # noqa: S311
    folder = Path(tempfile.mkdtemp(prefix="kill-loop-"))
    try:
        report = trio.run(lambda: run(kills=given.kills, seed=seed, folder=folder, verbose=given.verbose))
    except BaseException:
        print(f"kill loop: seed {seed} failed; the data is in {folder}", file=sys.stderr)
        raise
    print(f"kill loop: {report}")
    if report.complaints:
        for complaint in report.complaints:
            print(f"  {complaint}")
        print(f"the data is in {folder}; to repeat: scripts/kill_loop.py --kills {given.kills} --seed {seed}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
