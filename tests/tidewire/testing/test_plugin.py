"""What the plugin costs a run that does not use it, and how pytest finds it."""

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint

from tests.tidewire.testing.sessions import ROOT
from tidewire.testing import plugin

LOADED = """
import sys
import pytest
before = set(sys.modules)
import tidewire.testing.plugin
print(*sorted(set(sys.modules) - before))
"""


def test_a_run_that_does_not_use_it_imports_the_plugin_alone() -> None:
    """No event loop, no client, no broker."""
    printed = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert printed.split() == ["tidewire", "tidewire.testing", "tidewire.testing.plugin"]


def test_pytest_finds_the_plugin_by_an_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = project["entry-points"]["pytest11"]
    assert {EntryPoint(name, value, "pytest11").load() for name, value in found.items()} == {plugin}
    assert any(need.startswith("pytest>=") for need in project["optional-dependencies"]["testing"])
