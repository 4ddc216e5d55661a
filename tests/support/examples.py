"""How many examples a test with drawn arguments has, if the number in its profile is too small or too large for it."""

from typing import Final

from hypothesis import settings

CHECKED: Final = 100
"""Examples of a test that says nothing else, under the profile `check`."""


def examples(count: int) -> int:
    """This many examples under the profile `check`. Under `thorough`, as many times more as that profile draws."""
    assert settings.default is not None, "a profile is loaded before tests are collected"
    return count * settings.default.max_examples // CHECKED
