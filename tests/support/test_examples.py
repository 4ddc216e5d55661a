"""How many examples a test draws under each profile."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support.examples import examples


@pytest.fixture(autouse=True)
def profile() -> Iterator[None]:
    """Restores the profile of this run."""
    name = settings.get_current_profile_name()
    yield
    settings.load_profile(name)


def test_a_test_draws_as_many_examples_as_it_says() -> None:
    """`make check` takes no longer than the number says."""
    settings.load_profile("check")
    assert examples(60) == 60


def test_the_thorough_profile_draws_many_more() -> None:
    """A small number grows as much as the profile's own does."""
    settings.load_profile("thorough")
    assert examples(60) == 60 * 30
    assert examples(1) == 30
