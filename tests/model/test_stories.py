"""Any story of producers, transactions, consumers, layouts and crashes keeps the promises to users.

Each story runs in one `trio.run`, on a simulated machine, under its own schedule. `operations` has the possible events,
`promises` the checks (docs/design.md#invariants). A failing story is printed as the shortest list that still fails.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, example, given, note, settings
from hypothesis import strategies as st

from tests.model.operations import (
    SETTINGS,
    STORIES,
    Abort,
    Acknowledge,
    Begin,
    Join,
    LosePower,
    Operation,
    Send,
    Setting,
    Split,
)
from tests.model.player import play

EXAMPLES: Final = max(200, settings.default.max_examples if settings.default else 0)
"""More under the profile `thorough`."""

SECONDS_MAX: Final = 1800
"""Most of it is for shrinking: the examples take a tenth of a second each."""

KNOWN: Final[list[list[Operation]]] = [
    # What is delivered or has its receipt before the journal is synced is lost here.
    [Join(0, ordered=False), Send(0, "a"), LosePower(0), Send(0, "a")],
    # An op record that is put behind its entry is missing here, and the entry counts as committed.
    [Send(0, "a"), Begin(300), LosePower(3), Send(0, "a", txn=0)],
    # A header that is forgotten before its participants know makes this commit.
    [Begin(300), Send(0, "a", txn=0), LosePower(0), Abort(0)],
    # What is acknowledged in a transaction that is aborted comes again.
    [Send(0, "a"), Join(0, ordered=False), Begin(300), Acknowledge(0, 0, txn=0), Abort(0)],
    # The child is not read before its parent is acknowledged, nor taken for drained by what is only pending.
    [Send(0, "a"), Join(0, ordered=True), Begin(300), Acknowledge(0, 0, txn=0), Split(0, 0), Send(0, "a"), Abort(0)],
]
"""Stories in which a planted fault was found: each run begins with them."""

Test = TypeVar("Test", bound=Callable[..., None])


def after_the_known(test: Test) -> Test:
    """Let the test begin with the known stories, each on a few disks that forget different writes."""
    for story in KNOWN:
        for disk in range(3):
            test = example(schedule=None, setting=Setting(disk=disk), story=story)(test)
    return test


@pytest.mark.timeout(SECONDS_MAX)
@after_the_known
@settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    # One at a time, and not explained by coverage, which takes longer than all the rest and says less than the story.
    report_multiple_bugs=False,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
@given(
    schedule=st.random_module(),
    setting=SETTINGS,
    story=STORIES,
)
def test_any_story_keeps_the_promises(schedule: object, setting: Setting, story: list[Operation]) -> None:
    """T1: nothing lost, no dirty read, all or nothing, order per key, permanent acknowledgements, through any crash."""
    del schedule  # Drawing it has seeded the scheduler.
    for operation in story:
        note(f"  {operation}")
    play(story, setting)
