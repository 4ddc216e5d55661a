"""Concurrent clients and watchers of a store whose process is killed repeatedly, and the judges' verdict.

    report = await run(subject, seed=7, kills=20)
    assert report.complaints == []

The seed decides each client's requests and the moments of the kills. Half of the kills come from outside, a moment
after
a number of calls. The others, if the store allows it, come from inside, after or instead of the nth disk write, which
also interrupts starts and recoveries. The timing depends on the machine. So keep the history of a failed run: the seed
only makes a similar one.
"""

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final, NamedTuple

import trio

from storage.metadata.store import MetadataStore, StoreUnavailable, starting_with
from storage.metadata.watches import BACKLOG_KEYS_MAX
from tests.linearizability.histories import Client, History, Seen, judge
from tests.linearizability.subjects import Subject
from tests.linearizability.watch_rules import Writes, judge_key, judge_range
from tests.linearizability.watching import KeyReading, KeyWatcher, RangeReading, RangeWatcher
from tests.linearizability.workload import KEYS, Asker, Groups
from tests.support.dying_process import Death

CLIENTS: Final = 5
READER: Final = 99
"""The client that reads everything in the end."""

ROUND_SECONDS_MAX: Final = 3.0
"""A process that by then has not come to the moment at which it was to die is killed nevertheless."""
FINISH_SECONDS_MAX: Final = 30.0
"""How long calls under way may take to come to their end, once nobody kills any more."""
CATCH_UP_SECONDS_MAX: Final = 10.0
"""How long watches may take to tell the last of it."""
READINGS_MAX: Final = 3
"""How often everything is read in the end, until watches and readings agree."""
RETRY_SECONDS: Final = 0.02
"""How long a client that outlives the process waits after a call without answer."""
SLOW_CALLS: Final = 40
"""A slow reader stands still for about so many calls."""


Use = Callable[[MetadataStore], Awaitable[None]]
"""What somebody does with a client of the store, until it has ended or the store is unavailable."""


class Moment(NamedTuple):
    """When to kill: from inside, or some time after this many calls since the start."""

    death: Death | None
    calls: int = 0
    delay_seconds: float = 0.0


def draw(random: Random, subject: Subject) -> Moment:
    """Draw the moment of one kill."""
    if subject.takes_deaths and random.random() < 0.5:
        write = random.randint(1, 8) if random.random() < 0.25 else round(_log_uniform(random, 4, 200))
        return Moment(Death(write, random.random() < 0.4, random.choice((0, 0, 0.003, 0.02))))
    calls = round(_log_uniform(random, subject.calls_min, 400))
    return Moment(None, calls, random.choice((0.0, _log_uniform(random, 0.00005, 0.005))))


@dataclass(slots=True)
class Report:
    """The result of a run."""

    history: History = field(default_factory=History)
    ranges: list[RangeReading] = field(default_factory=list)
    keys: list[KeyReading] = field(default_factory=list)
    final: dict[str, Seen] = field(default_factory=dict)
    """What is there in the end."""
    kills: Counter[str] = field(default_factory=Counter)
    """By where they hit."""
    complaints: list[str] = field(default_factory=list)
    verdict: str = "not judged"

    def with_watches(self) -> History:
        """Return the history, including everything that watches reported."""
        told = {
            seen for reading in self.ranges for steps in reading.sittings for step in steps for seen in step.records
        }
        told |= {seen for reading in self.keys for states in reading.sittings for seen in states if seen is not None}
        history = History([*self.history.calls])
        history.saw((group_of(seen.key), seen) for seen in sorted(told))
        return history

    def __str__(self) -> str:
        calls = [call for call in self.history.calls if call.kind != "seen"]
        outcomes = Counter(call.outcome for call in calls)
        steps = sum(len(sitting) for reading in self.ranges for sitting in reading.sittings)
        steps += sum(len(sitting) for reading in self.keys for sitting in reading.sittings)
        where = ", ".join(f"{count} {name}" for name, count in sorted(self.kills.items()))
        return (
            f"{len(calls)} operations ({outcomes['conflict']} conflicts, {outcomes['unknown']} unknown), "
            f"{self.kills.total()} kills{f' ({where})' if where else ''}, {steps} steps of watches, {self.verdict}"
        )


async def run(
    subject: Subject,
    *,
    seed: int,
    kills: int = 0,
    calls: int = 0,
    until: trio.Event | None = None,
    seconds: float = math.inf,
    pause_seconds: float = 0.0,
    catch_up_seconds_max: float = CATCH_UP_SECONDS_MAX,
    say: Callable[[str], object] = str,
) -> Report:
    """Let clients call and watchers read over `kills` kills and until `calls` calls, within the time limit.

    With `until` they go on until that event. Each client pauses for `pause_seconds` behind a call. The store is empty
    at first. Its process is started here, and still runs at the end.
    """
    harness = _Harness(subject, seed, pause_seconds, catch_up_seconds_max, say)
    await harness.run(kills, calls, until, seconds)
    await judge_report(harness.report, shares_revisions=subject.shares_revisions, watches_fold=subject.watches_fold)
    return harness.report


async def judge_report(report: Report, *, shares_revisions: bool = False, watches_fold: bool = False) -> None:
    """Add the judges' complaints to the report. They work in a thread: it may take minutes, and others go on."""
    await trio.to_thread.run_sync(partial(_judge, report, shares_revisions=shares_revisions, watches_fold=watches_fold))


def _judge(report: Report, *, shares_revisions: bool, watches_fold: bool) -> None:
    judged = report.with_watches()
    verdict = judge(judged.lines(), shares_revisions=shares_revisions)
    report.complaints += verdict.complaints
    writes = Writes(judged.calls, report.ranges, report.final.values())
    for reading in report.ranges:
        folds = watches_fold or (reading.is_slow and writes.keys_written > BACKLOG_KEYS_MAX)
        report.complaints += judge_range(writes, reading, within(report.final, reading), folds=folds)
    for key_reading in report.keys:
        report.complaints += judge_key(writes, key_reading, report.final.get(key_reading.key))
    report.verdict = verdict.verdict if verdict.verdict != "legal" or not report.complaints else "illegal"


def group_of(key: str) -> str:
    """Return `/g7` of `/g7/a`."""
    return key[: key.index("/", 1)]


class _Harness:
    def __init__(
        self,
        subject: Subject,
        seed: int,
        pause_seconds: float,
        catch_up_seconds_max: float,
        say: Callable[[str], object],
    ) -> None:
        self.report = Report()
        self._subject = subject
        self._seed = seed
        self._pause_seconds = pause_seconds
        self._catch_up_seconds_max = catch_up_seconds_max
        self._say = say
        self._groups = Groups()
        self._askers = [
            Asker(number, Random(f"{seed}/client {number}"), self._groups) for number in range(1, CLIENTS + 1)
        ]
        self._is_up = trio.Event()
        self._lives = 0
        """How often the process was started."""
        self._born = trio.Event()
        """Set and replaced at each start."""
        self._called = trio.Event()
        """Set and replaced at each call's end."""
        self._asking = True
        self._clients_left = CLIENTS
        # Brokers may keep their records in the same store.
        everything = starting_with("/g")
        self._ranges = [
            RangeWatcher(*everything),
            RangeWatcher(*everything, pause=self._pause),
            # Its border goes through the middle of groups, and of change sets.
            RangeWatcher("/g0/b", "/g1/c"),
        ]
        self._keys = [KeyWatcher(f"/g{number}/{key}") for number in range(2) for key in KEYS[:2]]
        self.report.ranges = [watcher.reading for watcher in self._ranges]
        self.report.keys = [watcher.reading for watcher in self._keys]

    async def run(self, kills: int, calls: int, until: trio.Event | None, seconds: float) -> None:
        moments = Random(f"{self._seed}/kills")
        async with trio.open_nursery() as nursery:
            for uses in self._connections():
                nursery.start_soon(self._stay_connected, uses)
            with trio.move_on_after(seconds):
                for _kill in range(kills):
                    await self._live_and_die(draw(moments, self._subject))
            await self._ensure_up()
            with trio.move_on_after(seconds if not kills else FINISH_SECONDS_MAX):
                while self._groups.calls < calls:
                    await self._called.wait()
                if until is not None:
                    await until.wait()
            self._asking = False
            with trio.move_on_after(FINISH_SECONDS_MAX) as waiting:
                while self._clients_left:
                    await self._called.wait()
            if waiting.cancelled_caught:
                self.report.complaints.append(f"the clients did not end within {FINISH_SECONDS_MAX} s")
            # A call that was given up may take effect after one has read everything.
            for _attempt in range(READINGS_MAX):
                await self._read_everything()
                if await self._catch_up():
                    break
            nursery.cancel_scope.cancel()

    # Lives and deaths

    async def _live_and_die(self, moment: Moment) -> None:
        self._say(f"kill {self.report.kills.total() + 1}: {moment}")
        if moment.death is None:
            await self._ensure_up()
            with trio.move_on_after(ROUND_SECONDS_MAX):
                enough = self._groups.calls + moment.calls
                while self._groups.calls < enough:
                    await self._called.wait()
                await trio.sleep(moment.delay_seconds)
            where = "from outside"
            self._subject.send_kill()
        elif not await self._start(moment.death):
            self.report.kills["at start-up"] += 1
            return
        else:
            where = "at a disk write"
            if not await trio.to_thread.run_sync(self._subject.wait, ROUND_SECONDS_MAX):
                where = "from outside"
                self._subject.send_kill()
        self._is_up = trio.Event()
        if where == "from outside":
            assert await trio.to_thread.run_sync(self._subject.wait, FINISH_SECONDS_MAX), "it survived kill -9"
        self.report.kills[where] += 1

    async def _ensure_up(self) -> None:
        if not self._is_up.is_set():
            assert await self._start(None)

    async def _start(self, death: Death | None) -> bool:
        # Not given up half-way: a thread that starts a process does not end with the one who waits for it.
        with trio.CancelScope(shield=True):
            is_up = await trio.to_thread.run_sync(self._subject.start, death)
        if is_up:
            self._lives += 1
            self._is_up.set()
            self._born.set()
            self._born = trio.Event()
        return is_up

    # Clients and watchers

    def _connections(self) -> Sequence[Sequence[Use]]:
        """Decide who shares a client of the store: nobody if it stands for a broker's process, otherwise some do."""
        asking: list[Use] = [partial(self._ask, asker) for asker in self._askers]
        following: list[Use] = [watcher.follow for watcher in self._ranges]
        following += [watcher.follow for watcher in self._keys]
        if self._subject.outlives:
            return [asking[: CLIENTS // 2], asking[CLIENTS // 2 :], following]
        return [[use] for use in (*asking, *following)]

    async def _ask(self, asker: Asker, store: MetadataStore) -> None:
        client = Client(asker.number, store, self.report.history)
        while self._asking:
            await self._is_up.wait()
            try:
                await asker.ask(client)
            finally:
                self._tell()
            if self._pause_seconds:
                await trio.sleep(self._pause_seconds)
        self._clients_left -= 1
        self._tell()

    async def _stay_connected(self, uses: Sequence[Use]) -> None:
        """Use a client until each of `uses` returns; reconnect if the store becomes unavailable."""
        while True:
            await self._is_up.wait()
            life = self._lives
            try:
                async with self._subject.client() as store, trio.open_nursery() as nursery:
                    for use in uses:
                        nursery.start_soon(self._persist if self._subject.outlives else _only, use, store)
                return
            except* StoreUnavailable:
                # It died; the harness may not have noticed yet, so that it is up says nothing.
                pass
            await self._next_life(life)

    async def _persist(self, use: Use, store: MetadataStore) -> None:
        while True:
            try:
                return await use(store)
            except StoreUnavailable:
                await trio.sleep(RETRY_SECONDS)

    async def _next_life(self, life: int) -> None:
        while self._lives == life:
            await self._born.wait()

    def _tell(self) -> None:
        self._called.set()
        self._called = trio.Event()

    async def _pause(self) -> None:
        enough = self._groups.calls + SLOW_CALLS
        while self._asking and self._groups.calls < enough:
            await self._called.wait()

    # The end

    async def _read_everything(self) -> None:
        self.report.final.clear()
        async with self._subject.client() as store:
            client = Client(READER, store, self.report.history)
            for group in self._groups.names:
                for record in await client.scan(group, *starting_with(f"{group}/")):
                    self.report.final[record.key] = Seen.of(record)
                await client.query(group, f"by{group}", "", "~")

    async def _catch_up(self) -> bool:
        """Give the watches time to report the rest; the judge sees what they did not report."""
        final = self.report.final
        with trio.move_on_after(self._catch_up_seconds_max) as waiting:
            for watcher in self._ranges:
                await watcher.wait_for(within(final, watcher.reading))
            for key_watcher in self._keys:
                await key_watcher.wait_for(final.get(key_watcher.reading.key))
        return not waiting.cancelled_caught


def within(records: dict[str, Seen], reading: RangeReading) -> dict[str, Seen]:
    """Return the records of the range that is watched."""
    return {key: seen for key, seen in records.items() if reading.start <= key < reading.end}


async def _only(use: Use, store: MetadataStore) -> None:
    await use(store)


def _log_uniform(random: Random, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high)))
