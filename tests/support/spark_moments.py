"""Moments at which to kill Spark's driver, an executor or the broker, spread over all steps of a micro-batch. Pure.

    for moment in moments(Random(7), Target.DRIVER, 30, has_sink=True): ...

Each run of kills goes through the events in its own random order and starts again at the end, so that none is left out.
Most steps of the data source can be held (spark_steering.py). Then the kill comes between two steps that are
microseconds apart. Other events appear in Spark's log, and the kill comes a moment later.
"""

import math
from collections.abc import Iterator
from enum import Enum
from random import Random
from typing import Final, NamedTuple

from tests.support import layout_changes, outcomes, spark_driver, spark_steering, transactional_load
from tests.support.dying_process import Death
from tests.support.spark_driver import Victims

_STEERED: Final = (
    *(spark_steering.PLANNED, spark_steering.DIVIDED, spark_steering.SOURCE_TOLD),
    *(spark_steering.READ_BEGUN, spark_steering.READ_SOME, spark_steering.READ_DONE),
)
_STEERED_SINK: Final = (
    *(spark_steering.WRITE_BEGUN, spark_steering.WRITE_SOME, spark_steering.WRITE_DONE),
    *(spark_steering.SINK_COMMITTING, spark_steering.SINK_COMMITTED),
)
_TASK: Final = (spark_steering.READ_BEGUN, spark_steering.READ_SOME, spark_steering.READ_DONE)
_TASK_SINK: Final = (spark_steering.WRITE_BEGUN, spark_steering.WRITE_SOME, spark_steering.WRITE_DONE)
_LOGGED: Final = (
    *(spark_driver.OFFSETS_BEGUN, spark_driver.OFFSETS_WRITTEN),
    *(spark_driver.MANIFEST_BEGUN, spark_driver.MANIFEST_WRITTEN),
    *(spark_driver.COMMITS_BEGUN, spark_driver.COMMITS_WRITTEN),
)
_LOAD: Final = (
    *(transactional_load.SENT, outcomes.COMMIT_ASKED, outcomes.COMMITTED, outcomes.ABORT_ASKED),
    layout_changes.CHANGE_ASKED,
)


class Target(Enum):
    """What is killed."""

    DRIVER = "driver"
    EXECUTOR = "executor"
    BROKER = "broker"


class Moment(NamedTuple):
    """When to kill: some time after an event has happened this many times, or at a disk write of the broker."""

    target: Target
    event: str
    nth: int
    delay_seconds: float
    holds: bool = False
    """Whether the process that came there stands still meanwhile."""
    victims: Victims = Victims.ALL
    waits: bool = True
    """Whether a micro-batch is to be done first; otherwise what came before may still be under repair."""
    death: Death | None = None
    """The broker's next one, from inside, in place of all of that."""

    def __str__(self) -> str:
        if self.death is not None:
            return f"{self.target.value} {self.death}"
        what = "" if self.target is Target.BROKER else f" ({self.victims.value})"
        where = f"{'held at' if self.holds else 'after'} {self.event} {self.nth}"
        return (
            f"{self.target.value}{what} {self.delay_seconds * 1000:.2f} ms {where}{'' if self.waits else ', at once'}"
        )


def moments(random: Random, target: Target, count: int, *, has_sink: bool) -> Iterator[Moment]:
    """Draw this many moments."""
    events = list(_events(target, has_sink=has_sink))
    deck: list[str | None] = []
    for _ in range(count):
        if not deck:
            deck = random.sample(events, len(events))
        yield _moment(random, target, deck.pop())


def _events(target: Target, *, has_sink: bool) -> Iterator[str | None]:
    if target is Target.EXECUTOR:
        yield from _TASK
        yield from _TASK
        if has_sink:
            yield from _TASK_SINK
            yield from _TASK_SINK
        yield from (spark_driver.OFFSETS_WRITTEN, spark_driver.COMMITS_BEGUN)
        return
    yield from _STEERED
    if has_sink:
        yield from _STEERED_SINK
    yield from _LOGGED
    yield from _LOAD
    if target is Target.DRIVER:
        yield spark_driver.STARTED
    else:
        yield from (None, None, None)


def _moment(random: Random, target: Target, event: str | None) -> Moment:
    if event is None:
        write = round(_log_uniform(random, 4, 400))
        death = Death(write, random.random() < 0.4, random.choice((0, 0.003, 0.03)))
        return Moment(target, "", 1, 0, death=death)
    victims = Victims.ALL
    if target is not Target.BROKER and random.random() < 0.6:
        victims = random.choice((Victims.JVM, Victims.JVM, Victims.PYTHON))
    waits = random.random() < 0.8
    if event == spark_driver.STARTED:
        # A new driver needs some time before it does anything.
        return Moment(target, event, 1, random.uniform(0, 6), False, victims, False)
    holds = event in {*_STEERED, *_STEERED_SINK} and random.random() < 0.7
    delay = _log_uniform(random, 0.001, 0.3) if holds else _log_uniform(random, 0.00005, 0.03)
    return Moment(target, event, random.randint(1, 4), delay, holds, victims, waits)


def _log_uniform(random: Random, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high)))
