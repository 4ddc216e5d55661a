"""The judge of a simulated cluster finds what is wrong."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import trio

from storage.metadata.store import Change, Put
from tests.support.cluster.commands import Commands
from tests.support.cluster.history import Call, History
from tests.support.cluster.judging import judge
from tests.support.cluster.nodes import Cluster
from tests.support.cluster.transcripts import repeatably, run

STORY = ("start b1", "start b2", "watch b2 /", "put b1 /a x", "put b2 /b y", "put b1 /a z if 1", "get b2 /a")


def judged(lie: Callable[[History], None]) -> list[str]:
    """What the judge says when the history of a good story has a lie in it."""

    async def main() -> list[str]:
        async with Cluster.open() as cluster:
            commands = Commands(cluster)
            for command in STORY:
                await commands.play(command)
            await trio.sleep(1)
            lie(cluster.history)
            return await judge(cluster)

    return repeatably(lambda: run(main))


def made_elsewhere(history: History) -> None:
    history.calls[0].revision += 1


def was_refused(history: History) -> None:
    history.calls[0].outcome = "refused"


def is_lost(history: History) -> None:
    (op,) = history.calls[1].ops
    assert isinstance(op, Put)
    history.calls[1].ops = (replace(op, value=b"never written"),)


def met_no_version(history: History) -> None:
    history.calls[2].conflict = "/a", 1


def reads_the_past(history: History) -> None:
    read = history.calls[3]
    read.revision, read.records = 2, {"/a": None}


def reads_what_was_not(history: History) -> None:
    history.calls[3].records = {"/a": None}


def began_late(history: History) -> None:
    history.calls.append(Call("b1", history.tick(), history.calls[0].ops, outcome="unknown"))


def skips_a_step(history: History) -> None:
    steps = history.watched[0].steps
    first, second = steps[1].change, steps[2].change
    steps[1:3] = [steps[2]._replace(change=Change(second.revision, (*first.records, *second.records)))]


def goes_back(history: History) -> None:
    steps = history.watched[0].steps
    steps.append(steps[1])


@pytest.mark.parametrize(
    ("lie", "complaint"),
    [
        (made_elsewhere, "was acknowledged as revision"),
        (was_refused, "was refused, and is made"),
        (is_lost, "was acknowledged as revision"),
        (met_no_version, "was gone before"),
        (reads_the_past, "reads revision 2 behind"),
        (reads_what_was_not, "reads None"),
        (began_late, "and is made as"),
        (skips_a_step, "was not told of revisions"),
        (goes_back, "was told revision"),
    ],
)
def test_the_judge_finds_a_lie(lie: Callable[[History], None], complaint: str) -> None:
    assert any(complaint in text for text in judged(lie))


def test_the_judge_finds_no_fault_in_the_truth() -> None:
    assert judged(lambda _history: None) == []
