"""What all witnesses of a bad day have in common. A witness is a client with a memory of what it was promised.

A witness works from `open` to `finish`. It goes on through everything. A complaint is a promise that was broken.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from random import Random
from typing import Final, Protocol

import trio

from tests.support.chaos.cluster import Cluster
from tests.support.cluster_loads import OPERATION_SECONDS
from tests.support.layout_changes import SegmentView

SLACK_SECONDS: Final = 10.0
"""How much later than its time-out an operation may end, on a busy machine."""
HEAL_SECONDS_MAX: Final = 60.0
"""`Witness.heal_seconds_max` of most."""
FINISH_SECONDS_MAX: Final = 120.0
"""`Witness.finish_seconds_max` of most."""

Segments = Callable[[str], Awaitable[list[SegmentView]]]
"""Finds a topic's active segments. The cluster has healed."""


class Witness(Protocol):
    """See the module's docstring."""

    name: str
    scalable: Sequence[str]
    """Its scalable topics, which exist before `open`."""
    regular: Sequence[str]
    heal_seconds_max: float
    """How long it may take from the end of the last act until it has gone on."""
    finish_seconds_max: float
    """How long it may take to end its work, and then to read everything again, if that is little."""

    async def open(self, cluster: Cluster, stack: AsyncExitStack) -> None:
        """Connect."""

    def begin(self, nursery: trio.Nursery) -> None:
        """Begin to work. The first promise is given when `goes_on` returns."""

    def broker_died(self, random: Random) -> None:
        """Hear that a broker was killed. Some of what is unanswered may be given up."""

    async def goes_on(self) -> None:
        """Return once something was done that was begun after this call."""

    async def finish(self, segments: Segments) -> list[str]:
        """End the work, read everything, and return complaints."""

    def waits_for(self) -> str:
        """Return what it waits for, for a complaint."""

    async def read_again(self, url: str) -> list[str]:
        """Return complaints about what new readers see, after all brokers were killed and started again."""

    def summary(self) -> str:
        """Return in a few words what it did."""


def overdue(longest: dict[str, float], limited: Sequence[str]) -> list[str]:
    """Return complaints about calls that took longer than their time-out."""
    return [
        f"the call {call} took {longest[call]:.0f} s, and its time-out is {OPERATION_SECONDS:.0f} s"
        for call in limited
        if longest.get(call, 0.0) > OPERATION_SECONDS + SLACK_SECONDS
    ]
