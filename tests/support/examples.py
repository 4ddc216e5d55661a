"""Sets the number of examples of a test with drawn arguments, if its profile's number is too small or too large."""

from typing import Final

from hypothesis import settings

CHECKED: Final = 100
"""Examples of a test that says nothing else, under the profile `check`."""


def examples(count: int) -> int:
    """Use this many examples under the profile `check`, and more in proportion under `thorough`."""
    assert settings.default is not None, "a profile is loaded before tests are collected"
    return count * settings.default.max_examples // CHECKED
