"""Random moments at which to kill a broker under load, from outside and from inside. Pure.

Half of the kills come from outside, at most a few milliseconds after an event of the load: a send, a commit, its
answer, an acknowledgement, a split, a restart. The other half come from inside, after or instead of the nth disk write
since the start (dying_process.py). These also interrupt starts and recoveries.
"""

import math
from random import Random
from typing import Final, NamedTuple

from tests.support import layout_changes, outcomes, pipeline, transactional_load
from tests.support.dying_process import Death

READY: Final = "ready"

_EVENTS: Final = (
    READY,
    transactional_load.BEGUN,
    transactional_load.SENT,
    transactional_load.RECEIVED,
    pipeline.TAKEN,
    pipeline.ACKNOWLEDGED,
    outcomes.COMMIT_ASKED,
    outcomes.COMMITTED,
    outcomes.ABORT_ASKED,
    layout_changes.CHANGE_ASKED,
)


class Moment(NamedTuple):
    """When to kill: from inside, or some time after the nth event since the broker was ready."""

    death: Death | None
    event: str = READY
    nth: int = 1
    delay_seconds: float = 0.0
    change_after_seconds: float | None = None
    """When, after the broker is ready, segments are split or merged; None: not in this round."""

    def __str__(self) -> str:
        if self.death is not None:
            return str(self.death)
        return f"{self.delay_seconds * 1000:.2f} ms after {self.event} {self.nth}"


def draw(random: Random, *, from_outside: bool) -> Moment:
    """Draw the moment of one kill."""
    change_after = random.uniform(0, 0.1) if random.random() < 0.6 else None
    if not from_outside and random.random() < 0.5:
        # The first dozen writes are the broker's start; its segments' recovery follows, and then the load.
        write = random.randint(1, 12) if random.random() < 0.2 else round(_log_uniform(random, 12, 800))
        is_done = random.random() < 0.4
        # Code that wrongly does not wait for this write needs some time to show it.
        stall_seconds = random.choice((0, 0, 0.003) if is_done else (0, 0.003, 0.03, 0.03))
        return Moment(Death(write, is_done, stall_seconds), change_after_seconds=change_after)
    event = random.choice(_EVENTS)
    if event == layout_changes.CHANGE_ASKED:
        return Moment(None, event, 1, _log_uniform(random, 0.0005, 0.05), random.uniform(0, 0.1))
    if event == READY:
        return Moment(None, event, 1, random.uniform(0, 0.2), change_after)
    return Moment(None, event, random.randint(1, 60), _log_uniform(random, 0.00005, 0.01), change_after)


def _log_uniform(random: Random, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high)))
