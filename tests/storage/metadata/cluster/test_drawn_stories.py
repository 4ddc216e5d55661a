"""Drawn stories of a cluster: see `tests.support.cluster.drawing`. A failure prints the shortest part that still fails.

.venv/bin/python -m pytest -n 0 tests/storage/metadata/cluster/test_drawn_stories.py --story-seed 17
"""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.cluster.drawing import play_seed, play_within_hypothesis, shortest
from tests.support.examples import examples

SEEDS = 6


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Play the seed of the command line, or the first ones."""
    if "story_seed" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--story-seed")
        metafunc.parametrize("story_seed", range(SEEDS) if chosen is None else [chosen])


def test_a_drawn_story_breaks_no_promise(story_seed: int) -> None:
    """M2, M14, M22, C3, C4, C5, C13, R14, R28: whatever happens to three processes, the judge finds no fault."""
    found = play_seed(story_seed)
    if found is not None:
        pytest.fail(str(shortest(story_seed, found)))


def test_a_start_that_a_full_disk_refuses_is_no_broken_promise() -> None:
    """E13: the processes end, start again once there is space, and keep their promises."""
    assert play_seed(0, ["start b1 b2 b3", "fill-disk", "tick 5"]) is None


@pytest.mark.thorough
@settings(max_examples=examples(34), phases=[Phase.generate])
@given(seed=st.integers(0, 1_000_000_000))
def test_no_drawn_story_breaks_a_promise(seed: int) -> None:
    """M2, M14, M22, C3, C4, C5, C13, R14, R28: the same with many seeds. The profile `thorough` uses a thousand."""
    found = play_within_hypothesis(seed)
    assert found is None, f"--story-seed {seed}: {found}"
