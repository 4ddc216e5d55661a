"""Draws the moments at which copiers and the broker are killed. Pure."""

import math
from random import Random
from typing import Final, NamedTuple

from tests.support import dying_process
from tests.support.kafka_copiers import steps
from tests.support.kafka_copiers.steps import Death

_AT_ONCE_SHARE: Final = 0.3
_PAUSE_SHARE: Final = 0.25
_NTH_MAX: Final = {steps.INIT: 1, steps.ABORT: 2, steps.REWIND: 2, steps.POLL: 8, steps.SEND: 15}
"""Rare steps have to be met early, or a copier lives for long."""


class BrokerDeath(NamedTuple):
    """How the broker's life ends: at a disk write of its own, or from outside."""

    death: dying_process.Death | None
    after_seconds: float
    """When it is killed from outside. One that should kill itself is killed then, too."""
    is_stop: bool
    """It is stopped (SIGTERM), not killed."""

    def __str__(self) -> str:
        if self.death is not None:
            return f"dies {self.death}"
        return f"{'stops' if self.is_stop else 'is killed'} {self.after_seconds:.2f} s after its start"


def copier_death(random: Random) -> Death:
    """Draw how a copier's life ends."""
    step = random.choice(steps.STEPS)
    delay = 0.0 if random.random() < _AT_ONCE_SHARE else _log_uniform(random, 0.00005, 0.02)
    return Death(step, random.randint(1, _NTH_MAX.get(step, 4)), delay, random.random() < _PAUSE_SHARE)


def broker_death(random: Random) -> BrokerDeath:
    """Draw how the broker's life ends."""
    kind = random.random()
    if kind < 0.5:
        write = round(_log_uniform(random, 12, 2000))
        is_done = random.random() < 0.4
        stall_seconds = random.choice((0, 0, 0.003) if is_done else (0, 0.003, 0.03))
        return BrokerDeath(dying_process.Death(write, is_done, stall_seconds), 6.0, is_stop=False)
    return BrokerDeath(None, random.uniform(1.0, 5.0), is_stop=kind > 0.85)


def _log_uniform(random: Random, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high)))
