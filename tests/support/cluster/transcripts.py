"""Stories as text files: commands, and below each what the processes say. Reviewed as diffs.

    # A comment tells the reader what to look for.

    start b1
    ----
    b1: the store is open

    put b1 /a x
    ----
    b1: put /a: made, revision 3

A block is some commands, a line `----`, and what was said meanwhile. An empty line ends it.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import trio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.support.cluster.commands import Commands
from tests.support.cluster.judging import judge
from tests.support.cluster.nodes import Cluster
from tests.support.cluster.stopping import Stopping

T = TypeVar("T")

RULE: Final = "----"


@dataclass
class Block:
    """One block of a story, or a comment."""

    comment: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)


def parse(text: str) -> list[Block]:
    """The comments and commands of a story."""
    blocks: list[Block] = []
    for part in text.strip().split("\n\n"):
        block = Block()
        for line in part.split("\n"):
            if line == RULE:
                break
            (block.comment if line.startswith("#") else block.commands).append(line)
        blocks.append(block)
    return blocks


def play(text: str) -> str:
    """Play a story's commands. Returns the story with what the processes say now."""
    return repeatably(lambda: run(_play, parse(text)))


async def _play(blocks: list[Block]) -> str:
    told: list[str] = []
    async with Cluster.open() as cluster:
        commands = Commands(cluster)
        for block in blocks:
            said = [line for command in block.commands for line in await commands.play(command)]
            told.append("\n".join([*block.comment, *block.commands, *([RULE, *said] if block.commands else [])]))
        verdict = await judge(cluster)
    return "\n\n".join([*told, *(f"COMPLAINT {text}" for text in verdict)]) + "\n"


def run(work: Callable[..., Awaitable[T]], *args: object) -> T:
    """Run it on a mock clock, with processes that can be stopped."""
    return trio.run(work, *args, clock=MockClock(autojump_threshold=0), instruments=[Stopping()])


def repeatably(work: Callable[[], T]) -> T:
    """Do it with the same order of Trio's tasks each time. Not within another test of Hypothesis."""
    results: list[T] = []

    # Trio registers its scheduler with Hypothesis, which seeds it for each example.
    @settings(
        max_examples=1, phases=[Phase.generate], database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.just(None))
    def once(_nothing: None) -> None:
        results.append(work())

    once()
    return results[0]


def story_of(commands: Iterable[str]) -> str:
    """A story without its answers."""
    return "\n\n".join(commands) + "\n"
