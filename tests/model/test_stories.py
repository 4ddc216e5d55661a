"""Any story of producers, transactions, consumers, layouts and crashes keeps what users are promised.

Each story runs in one `trio.run`, on a simulated machine, under a schedule of its own; see `operations` for what may
happen, `promises` for what is held against it (DESIGN section 9). A story that fails is printed as the shortest list
that still fails.
"""

from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from tests.model.operations import SETTINGS, STORIES, Operation, Setting
from tests.model.player import play

EXAMPLES: Final = max(200, settings.default.max_examples if settings.default else 0)
"""More under the profile `thorough`."""

SECONDS_MAX: Final = 1800
"""Most of it is for shrinking: the examples take a tenth of a second each."""


@pytest.mark.timeout(SECONDS_MAX)
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
    """T1: nothing lost, no dirty read, all or nothing, order per key, acknowledged for ever, through any crash."""
    del schedule  # Drawing it has seeded the scheduler.
    for operation in story:
        note(f"  {operation}")
    play(story, setting)
