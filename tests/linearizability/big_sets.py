"""A writer of large change sets is killed in the middle of them, repeatedly, while readers sample the state.

    report = await run_big_sets(subject, seed=3, kills=10)
    assert report.complaints == []

Two readers sample inside the store's process as often as its event loop lets them. A watch follows from outside. The
first action after each restart is a sample. The kills hit at a drawn part of a change set's duration, or at one of its
disk writes.
"""

import math
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Final

import trio

from storage.metadata.store import MetadataStore, StoreUnavailable, starting_with
from storage.metadata.watches import BACKLOG_KEYS_MAX
from tests.linearizability.samples import (
    PREFIX,
    Attempt,
    Pieces,
    Sample,
    change_set,
    judge_samples,
    judge_steps,
    look,
    pieces,
)
from tests.linearizability.subjects import Subject
from tests.support.dying_process import Death
from tests.support.remote_store import RemoteStore

SIZE: Final = 10_000
"""Records in a change set, where the store takes that many."""
READERS: Final = 2
ROUND_SECONDS_MAX: Final = 5.0
"""A process that by then has not come to the write at which it was to die is killed nevertheless."""
GIVEN_UP: Final = 0.15
"""The share of change sets that are given up half-way by whoever writes them."""
SLOW_SETS: Final = 2
"""A slow reader of a watch stands still for so many sets, which is more than a watch keeps one by one."""
LAST_SETS: Final = 2
"""How many are written in peace after the last kill."""
LAST_SECONDS_MAX: Final = 60.0
"""How long that may take."""


@dataclass(slots=True)
class BigReport:
    """The result of a run."""

    size: int
    attempts: list[Attempt] = field(default_factory=list)
    samples: list[list[Sample]] = field(default_factory=list)
    """By reader."""
    sittings: list[list[tuple[Pieces, Pieces]]] = field(default_factory=list)
    """Of the watch that is read at once."""
    slow_sittings: list[list[tuple[Pieces, Pieces]]] = field(default_factory=list)
    """Of the one that is read now and then."""
    kills: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    """How the kills hit, by what became of the change set that was under way; two may hit before anybody could look."""
    complaints: list[str] = field(default_factory=list)

    def judge(self) -> None:
        """Fill in the complaints."""
        for samples in self.samples:
            self.complaints += judge_samples(samples, self.attempts, self.size)
        for steps in self.sittings:
            # A watch that holds two sets back has to fold them, however quick its reader is meant to be.
            self.complaints += judge_steps(steps, self.size, folds=2 * self.size > BACKLOG_KEYS_MAX)
        for steps in self.slow_sittings:
            self.complaints += judge_steps(steps, self.size, folds=True)

    def __str__(self) -> str:
        samples = sum(map(len, self.samples))
        steps = sum(map(len, [*self.sittings, *self.slow_sittings]))
        unanswered = sum(attempt.returned is None for attempt in self.attempts)
        fates = ", ".join(f"{number} {fate}" for fate, number in sorted(self.fates.items()))
        return (
            f"{len(self.attempts)} change sets of {self.size} records ({unanswered} unanswered), "
            f"{self.kills} kills ({fates}), "
            f"{samples} samples, {steps} steps of watches, {len(self.complaints)} complaints"
        )


async def run_big_sets(subject: Subject, *, seed: int, kills: int, size: int = SIZE) -> BigReport:
    """Write change sets over `kills` kills, and two more. At first the store is empty and not started."""
    # One operation of each change set deletes older sets.
    writing = _Writing(subject, seed, min(size, subject.change_set_operations_max - 1))
    await writing.run(kills)
    writing.report.judge()
    return writing.report


class _Writing:
    def __init__(self, subject: Subject, seed: int, size: int) -> None:
        self.report = BigReport(size)
        self._subject = subject
        self._random = Random(f"{seed}/big sets")
        self._ticks = count(1)
        self._begun = trio.Event()
        """Set and replaced when a change set gets under way."""
        self._seconds = 0.1
        """How long the last one took."""
        self._was_killed = False
        self._sets_left = 1_000_000
        """A life that ends by a kill writes until then."""
        self._newest = 0
        """The last set that was answered."""
        self._told = trio.Event()
        """Set and replaced when a set was answered or told of."""
        self._follower = _Follower(self.report.sittings)
        self._slow_follower = _Follower(self.report.slow_sittings, SLOW_SETS)

    async def run(self, kills: int) -> None:
        self.report.samples = [[] for _reader in range(READERS + 1)]
        for life in range(kills):
            death = self._draw_death() if life else None
            self.report.kills += 1
            if await trio.to_thread.run_sync(self._subject.start, death):
                await self._live(partial(self._kill, death))
            else:
                self.report.fates["at start-up"] += 1
        assert await trio.to_thread.run_sync(self._subject.start)
        await self._live(self._write_in_peace)

    async def _live(self, until: Callable[[], Awaitable[None]]) -> None:
        """Live once: write, sample and watch until `until` returns."""
        async with trio.open_nursery() as nursery:
            await self._connected(self._look_first)
            for samples in self.report.samples[1:]:
                nursery.start_soon(self._connected, partial(self._look, samples))
            nursery.start_soon(self._connected, partial(self._watch, self._follower))
            nursery.start_soon(self._connected, partial(self._watch, self._slow_follower))
            nursery.start_soon(self._connected, self._write)
            await until()
            nursery.cancel_scope.cancel()

    async def _connected(self, use: Callable[[MetadataStore], Awaitable[None]]) -> None:
        with suppress(StoreUnavailable):
            async with self._subject.client() as store:
                try:
                    await use(store)
                except StoreUnavailable:
                    # It died. Not out of the client's own nursery, which would make a group of it.
                    return

    # Dying

    def _draw_death(self) -> Death | None:
        if not self._subject.takes_deaths or self._random.random() < 0.5:
            return None
        return Death(self._random.randint(2, 30), self._random.random() < 0.5, self._random.choice((0, 0.01)))

    async def _kill(self, death: Death | None) -> None:
        if death is None:
            for _change_set in range(self._random.randint(1, 3)):
                await self._begun.wait()
            await trio.sleep(self._random.uniform(0, 1.2) * self._seconds)
            self._subject.send_kill()
        if not await trio.to_thread.run_sync(self._subject.wait, ROUND_SECONDS_MAX):
            self._subject.send_kill()
            await trio.to_thread.run_sync(self._subject.wait, ROUND_SECONDS_MAX)
        self._was_killed = True

    async def _write_in_peace(self) -> None:
        """Live the last time, until the watches have reported the final state."""
        self._sets_left = LAST_SETS
        with trio.move_on_after(LAST_SECONDS_MAX) as waiting:
            while (
                self._sets_left or self._follower.newest != self._newest or self._slow_follower.newest != self._newest
            ):
                await self._told.wait()
        if waiting.cancelled_caught:
            self.report.complaints.append(
                f"after {LAST_SECONDS_MAX} s set {self._newest} was answered, and watches had told of "
                f"{self._follower.newest} and {self._slow_follower.newest}"
            )

    # Writing and looking

    async def _write(self, store: MetadataStore) -> None:
        attempts = self.report.attempts
        while self._sets_left:
            attempt = Attempt(len(attempts) + 1, next(self._ticks))
            attempts.append(attempt)
            begun = trio.current_time()
            self._begun.set()
            self._begun = trio.Event()
            gives_up = self._sets_left > LAST_SETS and self._random.random() < GIVEN_UP
            with trio.move_on_after(self._random.uniform(0, 1.2) * self._seconds if gives_up else math.inf):
                committed = await store.commit(change_set(attempt.number, self.report.size))
                self._seconds = trio.current_time() - begun
                attempts[-1] = attempt._replace(returned=next(self._ticks), revision=committed.revision)
                self._newest = attempt.number
            self._sets_left -= 1
            self._tell()

    def _tell(self) -> None:
        self._told.set()
        self._told = trio.Event()

    async def _look_first(self, store: MetadataStore) -> None:
        """Sample after a restart, before any write: what happened to the change set in progress?"""
        sample = await self._take(store)
        self.report.samples[0].append(sample)
        if not self._was_killed:
            return
        self._was_killed = False
        last = self.report.attempts[-1]
        if last.returned is not None:
            fate = "between two"
        else:
            fate = "in one that is there" if last.number in sample.scanned else "in one that is absent"
        self.report.fates[fate] += 1

    async def _look(self, samples: list[Sample], store: MetadataStore) -> None:
        while True:
            samples.append(await self._take(store))

    async def _take(self, store: MetadataStore) -> Sample:
        invoked = next(self._ticks)
        found = await (store.run_there(look) if isinstance(store, RemoteStore) else look(store))
        return Sample(invoked, next(self._ticks), *found)

    async def _watch(self, follower: "_Follower", store: MetadataStore) -> None:
        steps: list[tuple[Pieces, Pieces]] = []
        follower.sittings.append(steps)
        async with store.watch_range(*starting_with(PREFIX)) as watch:
            while True:
                change = await watch.next()
                written = pieces((record.key, record.version) for record in change.records)
                steps.append((written, pieces((key, 0) for key in change.deleted)))
                follower.newest = max(written, default=follower.newest)
                self._tell()
                enough = self._newest + follower.pause_sets
                while self._sets_left and self._newest < enough:
                    await self._told.wait()


@dataclass(slots=True)
class _Follower:
    """The reader of a watch."""

    sittings: list[list[tuple[Pieces, Pieces]]]
    pause_sets: int = 0
    """How many sets are answered before it reads on."""
    newest: int = 0
    """The highest set it was told of."""
