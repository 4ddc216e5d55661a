"""Tests that a run against a real system leaves out, and says so: a hook of a suite chooses them."""

from collections.abc import Sequence
from typing import Final

import pytest

_NAMES: Final = pytest.StashKey[dict[str, list[str]]]()
"""The names of the tests, by what is said of them."""


def leave_out(config: pytest.Config, items: list[pytest.Item], left_out: Sequence[pytest.Item], title: str) -> None:
    """Take tests out of those that are collected. The summary names them under the title."""
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
    config.stash.setdefault(_NAMES, {})[title] = [item.name for item in left_out]


def print_left_out(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print which tests were left out."""
    for title, names in config.stash.get(_NAMES, {}).items():
        if names:
            terminalreporter.section(title)
            for name in names:
                terminalreporter.line(name)
